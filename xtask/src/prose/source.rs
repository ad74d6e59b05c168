//! A file as a reader sees it: the prose of a document, or the comments of a source and its code.

use std::path::Path;

use anyhow::Context;

/// A line of a file, with its number from 1.
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) text: String,
}

/// A comment: adjacent lines of one kind, and the first line of code after it.
pub(super) struct Comment {
    pub(super) number: usize,
    pub(super) is_doc: bool,
    pub(super) text: Vec<String>,
    /// Without attributes and blank lines; empty at the end of the file.
    pub(super) code: String,
}

/// A tracked file.
pub(super) struct File {
    pub(super) name: String,
    /// A document without its code blocks, or the text of a source's comments.
    pub(super) prose: Vec<Line>,
    pub(super) comments: Vec<Comment>,
    pub(super) code: Vec<Line>,
}

impl File {
    pub(super) fn read(root: &Path, name: &str) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(root.join(name)).with_context(|| format!("{name} cannot be read"))?;
        Ok(Self::parse(name, &text))
    }

    pub(super) fn parse(name: &str, text: &str) -> Self {
        let mut file =
            Self { name: name.to_owned(), prose: Vec::new(), comments: Vec::new(), code: Vec::new() };
        if file.is_document() {
            file.prose = prose_of_document(text);
        } else {
            file.split(text);
        }
        file
    }

    pub(super) fn is_document(&self) -> bool {
        self.name.ends_with(".md")
    }

    /// A document that people write; commands write those in `docs/generated`.
    pub(super) fn is_hand_written(&self) -> bool {
        self.is_document() && !self.name.starts_with("docs/generated/")
    }

    pub(super) fn words(&self) -> usize {
        self.prose.iter().map(|line| line.text.split_whitespace().count()).sum()
    }

    fn split(&mut self, text: &str) {
        let mut open: Option<(&str, Comment)> = None;
        for (index, whole) in text.lines().enumerate() {
            let number = index + 1;
            let Some((kind, comment)) = comment(whole) else {
                let code = whole.trim();
                self.code.push(Line { number, text: whole.to_owned() });
                if !code.is_empty()
                    && !code.starts_with("#[")
                    && let Some((_, mut comment)) = open.take()
                {
                    comment.code = code.to_owned();
                    self.comments.push(comment);
                }
                continue;
            };
            self.prose.push(Line { number, text: comment.to_owned() });
            match open.as_mut() {
                Some((same, earlier)) if *same == kind && earlier.number + earlier.text.len() == number => {
                    earlier.text.push(comment.to_owned());
                }
                _ => {
                    self.comments.extend(open.take().map(|(_, comment)| comment));
                    let text = vec![comment.to_owned()];
                    open = Some((kind, Comment { number, is_doc: kind == "///", text, code: String::new() }));
                }
            }
        }
        self.comments.extend(open.map(|(_, comment)| comment));
    }
}

/// The kind of a line that is a comment, and its text.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    let (kind, text) =
        ["//!", "///", "//"].into_iter().find_map(|kind| Some((kind, line.strip_prefix(kind)?)))?;
    Some((kind, text.strip_prefix(' ').unwrap_or(text)))
}

fn prose_of_document(text: &str) -> Vec<Line> {
    let mut fenced = false;
    let mut prose = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && !line.starts_with("    ") {
            prose.push(Line { number: index + 1, text: line.to_owned() });
        }
    }
    prose
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_comments_of_a_source_with_the_code_below() {
        let file = File::parse("a.rs", "//! Head.\n\n/// One\n/// two.\n#[inline]\nfn f() {} // three\n");
        assert_eq!(file.words(), 3);
        let doc = &file.comments[1];
        assert!(doc.is_doc && doc.text == ["One", "two."] && doc.code.starts_with("fn f"), "{}", doc.code);
    }

    #[test]
    fn leaves_out_the_code_of_a_document() {
        let file = File::parse("a.md", "One two\n```\ncode\n```\n    code\nthree\n");
        assert_eq!(file.words(), 3);
        assert_eq!(file.prose[1].number, 6);
    }
}
