//! Comments that say nothing: documentation that repeats a name, and safety notes without a reason.
//! Functions whose name is a question.

use regex::Regex;

use super::source::{Comment, File};
use super::{Finding, Verdict};

/// Words that carry no meaning beside those of a name.
const FILLERS: &[&str] = &[
    "a", "an", "and", "as", "at", "be", "by", "for", "from", "get", "has", "in", "into", "is", "it", "its",
    "of", "on", "or", "return", "set", "that", "the", "their", "this", "to", "whether", "which", "whose",
    "with",
];
/// A doc comment of more words tells something.
const SHORT_DOC: usize = 8;
/// A safety note of fewer words names no invariant.
const SHORTEST_NOTE: usize = 4;

pub(super) fn check(files: &[File]) -> anyhow::Result<Vec<Verdict>> {
    let item = Regex::new(
        r"^(?:pub(?:\([a-z: ]+\))? )?(?:(?:const|unsafe|async|extern|default|static|fn|struct|enum|trait|type|mod|union|macro_rules!)\s+)*(?:r#)?(\w+)",
    )?;
    let empty = Regex::new(
        r"(?i)^(?:as (?:above|before|below|there)|likewise|the same|see (?:above|below)|(?:as )?the caller(?:'s)? promises?(?: it| this)?)\W*$",
    )?;
    // At the beginning of a line, because tests have declarations in strings.
    let question = Regex::new(
        r"^\s*(?:pub(?:\([a-z: ]+\))? )?(?:(?:const|unsafe|async|extern|default|\x22\w+\x22) )*fn (?:what|who)_\w+",
    )?;
    let (mut repeats, mut notes, mut questions) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        for comment in &file.comments {
            let finding = || Finding {
                file: file.name.clone(),
                line: comment.number,
                text: format!("{} [{}]", comment.text.join(" "), comment.code),
            };
            if comment.is_doc && repeats_name(comment, &item) {
                repeats.push(finding());
            }
            if is_empty_note(comment, &empty) {
                notes.push(finding());
            }
        }
        for line in file.code.iter().filter(|line| question.is_match(&line.text)) {
            let text = line.text.trim().to_owned();
            questions.push(Finding { file: file.name.clone(), line: line.number, text });
        }
    }
    Ok(vec![
        Verdict::none("documentation that repeats its item's name", repeats),
        Verdict::none("a SAFETY note without an invariant", notes),
        Verdict::none("a function named what_* or who_*: name its result", questions),
    ])
}

fn repeats_name(comment: &Comment, item: &Regex) -> bool {
    let text = comment.text.join(" ");
    if text.split_whitespace().count() > SHORT_DOC || text.contains("```") {
        return false;
    }
    let Some(name) = item.captures(&comment.code).and_then(|found| found.get(1)) else { return false };
    let name = stems(&split_case(name.as_str()));
    let doc = stems(&text);
    !doc.is_empty() && doc.iter().all(|word| name.contains(word))
}

/// `QueuePair` and `queue_pair` as "Queue Pair".
fn split_case(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() {
            words.push(' ');
        }
        words.push(if letter == '_' { ' ' } else { letter });
    }
    words
}

/// The words that carry meaning, without their endings.
fn stems(text: &str) -> Vec<String> {
    text.split(|letter: char| !letter.is_alphanumeric())
        .map(str::to_lowercase)
        .map(|word| stem(&word).to_owned())
        .filter(|word| word.len() > 1 && !FILLERS.contains(&word.as_str()))
        .collect()
}

fn stem(word: &str) -> &str {
    let short = ["ing", "ed", "es", "s", "e"]
        .into_iter()
        .find_map(|ending| word.strip_suffix(ending).filter(|stem| stem.len() > 2));
    short.unwrap_or(word)
}

fn is_empty_note(comment: &Comment, empty: &Regex) -> bool {
    let text = comment.text.join(" ");
    let Some((_, note)) = text.split_once("SAFETY:") else { return false };
    let note = note.trim();
    note.split_whitespace().count() < SHORTEST_NOTE || empty.is_match(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(source: &str) -> [usize; 3] {
        let verdicts = check(&[File::parse("a.rs", source)]).unwrap();
        [0, 1, 2].map(|index| verdicts[index].findings.len())
    }

    #[test]
    fn finds_documentation_that_repeats_a_name() {
        assert_eq!(counts("/// Creates a queue pair.\npub fn create_queue_pair() {}\n"), [1, 0, 0]);
        assert_eq!(counts("/// The address.\naddress: u64,\n"), [1, 0, 0]);
        assert_eq!(
            counts("/// The queue pair.\n#[derive(Debug)]\npub(crate) struct QueuePair;\n"),
            [1, 0, 0]
        );
        assert_eq!(counts("/// In bytes, below 2 GiB.\nlength: u64,\n"), [0, 0, 0]);
    }

    #[test]
    fn finds_safety_notes_without_an_invariant() {
        assert_eq!(counts("// SAFETY: as above.\nunsafe { f() }\n"), [0, 1, 0]);
        assert_eq!(counts("// SAFETY: the caller's promises.\nunsafe { f() }\n"), [0, 1, 0]);
        assert_eq!(
            counts("// SAFETY: `open` made the context, and it lives until `close`.\nunsafe { f() }\n"),
            [0, 0, 0]
        );
    }

    #[test]
    fn finds_functions_named_by_a_question() {
        assert_eq!(counts("fn what_is_sent() {}\nfn whatever() {}\n"), [0, 0, 1]);
        assert_eq!(counts("    pub(super) unsafe extern \"C\" fn who_calls() {}\n"), [0, 0, 1]);
        assert_eq!(counts("    found(\"fn what_is_sent() {}\");\n"), [0, 0, 0]);
    }
}
