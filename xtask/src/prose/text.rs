//! The length of sentences and lines.

use super::source::File;
use super::{Finding, Verdict};

const LONGEST_SENTENCE: usize = 40;
const LONGEST_MEDIAN: usize = 18;
const COLUMNS: usize = 100;

pub(super) fn check(files: &[File]) -> Vec<Verdict> {
    let median = median(files);
    let too_long = (median > LONGEST_MEDIAN).then(|| Finding {
        file: "the hand-written documents".to_owned(),
        line: 0,
        text: format!("half of the sentences have {median} words or more"),
    });
    vec![
        Verdict::none("a document's sentence of more than 40 words", long_sentences(files)),
        Verdict::none("a median of more than 18 words in the documents' sentences", Vec::from_iter(too_long)),
        Verdict::none("a line of prose of more than 100 columns", wide_lines(files)),
    ]
}

/// The median length of a sentence in the hand-written documents, in words.
pub(super) fn median(files: &[File]) -> usize {
    let mut lengths: Vec<_> = documents(files).flat_map(sentences).map(|sentence| sentence.words).collect();
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied().unwrap_or(0)
}

fn documents(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.is_hand_written())
}

fn long_sentences(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in documents(files) {
        for sentence in sentences(file).into_iter().filter(|sentence| sentence.words > LONGEST_SENTENCE) {
            let text = format!("{} words: {}", sentence.words, sentence.text);
            findings.push(Finding { file: file.name.clone(), line: sentence.line, text });
        }
    }
    findings
}

fn wide_lines(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| !file.name.starts_with("docs/generated/")) {
        let mut is_code = false;
        for line in &file.prose {
            let text = line.text.trim_start();
            is_code ^= text.starts_with("```");
            // Tables, code and a link's target cannot be wrapped.
            let is_fixed = is_code
                || text.starts_with('|')
                || line.text.starts_with("    ")
                || text.starts_with('[') && text.contains("]: ")
                || text.contains("http");
            if line.text.chars().count() > COLUMNS && !is_fixed {
                findings.push(Finding {
                    file: file.name.clone(),
                    line: line.number,
                    text: line.text.clone(),
                });
            }
        }
    }
    findings
}

struct Sentence {
    /// Of its paragraph.
    line: usize,
    words: usize,
    text: String,
}

/// The sentences of a document's paragraphs and list items; headings, tables and quotations have
/// none.
fn sentences(file: &File) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut paragraph: Option<(usize, String)> = None;
    let mut last = 0;
    for line in &file.prose {
        let text = line.text.trim();
        let item = text.strip_prefix("- ").or_else(|| text.strip_prefix("* "));
        let is_prose = !text.is_empty() && !text.starts_with(['|', '#', '<', '>']);
        if !is_prose || item.is_some() || line.number != last + 1 {
            split(paragraph.take(), &mut found);
        }
        last = line.number;
        if is_prose {
            let (_, joined) = paragraph.get_or_insert_with(|| (line.number, String::new()));
            if !joined.is_empty() {
                joined.push(' ');
            }
            joined.push_str(item.unwrap_or(text));
        }
    }
    split(paragraph, &mut found);
    found
}

fn split(paragraph: Option<(usize, String)>, into: &mut Vec<Sentence>) {
    let Some((line, mut rest)) = paragraph else { return };
    while !rest.is_empty() {
        let end = rest
            .match_indices(['.', '!', '?'])
            .map(|(index, mark)| index + mark.len())
            .find(|&index| rest[index..].starts_with(' '))
            .unwrap_or(rest.len());
        let tail = rest.split_off(end);
        into.push(Sentence { line, words: rest.split_whitespace().count(), text: rest });
        rest = tail.trim_start().to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_paragraphs_and_items_into_sentences() {
        let file = File::parse(
            "a.md",
            "# Head\n\nOne two. Three\nfour!\n- five six\n  seven\n- eight\n\n| a | b |\n",
        );
        let lengths: Vec<_> =
            sentences(&file).iter().map(|sentence| (sentence.line, sentence.words)).collect();
        assert_eq!(lengths, [(3, 2), (3, 2), (5, 3), (7, 1)]);
    }

    #[test]
    fn finds_long_sentences_and_wide_lines() {
        let long = "word ".repeat(41);
        let files = [File::parse("a.md", &long), File::parse("a.rs", &format!("// {}\n", "x".repeat(101)))];
        assert_eq!(long_sentences(&files).len(), 1);
        assert_eq!(wide_lines(&files).len(), 2);
        assert_eq!(median(&files), 41);
    }
}
