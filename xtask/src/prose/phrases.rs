//! Phrases that stand where a noun, a verb or a quantity should.

use regex::Regex;

use super::source::File;
use super::{Finding, Verdict};

const VERBS: &str = "(?:is|was|are|has|had|waits|reads|goes|comes|sends|does|needs|may|can|wants|calls|says|looks|takes|\
                     begins|posts|dies|sleeps|asks|holds|polls|lies|fits|fails|follows|came|belongs|would|spins|writes)";

/// A habit and how often it may occur in 1,000 words.
struct Phrase {
    rule: &'static str,
    pattern: String,
    per_thousand: f64,
    /// Where this follows, the phrase is an ordinary one.
    unless_followed_by: &'static str,
}

fn phrases() -> Vec<Phrase> {
    let phrase = |rule, pattern: &str| Phrase {
        rule,
        pattern: pattern.to_owned(),
        per_thousand: 0.10,
        unless_followed_by: "",
    };
    vec![
        Phrase {
            per_thousand: 0.20,
            ..phrase(
                "a clause as the subject: name the actor",
                &format!(r"(?:^|[.:;,|] )(?:[Ww]ho|[Ww]hat|[Ww]hoever) {VERBS}\b"),
            )
        },
        Phrase {
            unless_followed_by: " as",
            ..phrase(
                "so many, so much, so long, so often: give the quantity",
                r"\bso (?:many|much|long|often)\b",
            )
        },
        phrase("is there, are there: use a verb", r"\b(?:is|are|was) (?:not )?there\b"),
        phrase("of ours, of its own: name the owner", r"\bof (?:ours|its own|their own)\b"),
        phrase("as X has it: say that X defines or requires it", r"\b(?:has|have) it\b"),
        phrase(
            "anew, besides, likewise, meanwhile, thereof",
            r"\b(?:anew|besides|likewise|meanwhile|thereof)\b",
        ),
        phrase("says so, tells so: say what", r"\b(?:says?|tells?) so\b"),
        phrase("is that of, are those that: repeat the noun", r"\b(?:is|are) (?:that|those) (?:of|that)\b"),
    ]
}

pub(super) fn check(files: &[File], words: usize) -> anyhow::Result<Vec<Verdict>> {
    let verdict = |phrase: Phrase| {
        let pattern = Regex::new(&phrase.pattern)?;
        Ok(Verdict {
            rule: format!("{} ({:.2} per 1,000 words)", phrase.rule, phrase.per_thousand),
            findings: findings(files, &pattern, phrase.unless_followed_by),
            limit: (phrase.per_thousand * words as f64 / 1000.0) as usize,
        })
    };
    phrases().into_iter().map(verdict).collect()
}

/// How many words of 1,000 join a cause and its effect. It is shown, and has no limit.
pub(super) fn causal(files: &[File], words: usize) -> anyhow::Result<f64> {
    let pattern = r"\b(?:because|however|therefore|for example|for instance|e\.g\.|since|unless|so that)\b";
    let found = findings(files, &Regex::new(pattern)?, "").len();
    Ok(1000.0 * found as f64 / words.max(1) as f64)
}

fn findings(files: &[File], pattern: &Regex, unless_followed_by: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for line in &file.prose {
            for found in pattern.find_iter(&line.text) {
                let ordinary = !unless_followed_by.is_empty()
                    && line.text[found.end()..].starts_with(unless_followed_by);
                if !ordinary {
                    findings.push(Finding {
                        file: file.name.clone(),
                        line: line.number,
                        text: line.text.clone(),
                    });
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phrase_is_found_and_its_plain_form_is_not() {
        let cases = [
            ("Who waits is woken.", "The waiter is woken."),
            ("It takes so long.", "It takes so long as to be seen."),
            ("No peer is there.", "The peer exited."),
            ("a lock of its own", "its lock"),
            ("as the man page has it", "as the man page requires"),
            ("It starts anew.", "It starts again."),
            ("The error says so.", "The error names the port."),
            ("The key is that of the peer.", "The key is the peer's key."),
        ];
        for ((bad, good), phrase) in cases.into_iter().zip(phrases()) {
            let pattern = Regex::new(&phrase.pattern).unwrap();
            let count = |text: &str| {
                findings(&[File::parse("a.md", text)], &pattern, phrase.unless_followed_by).len()
            };
            assert_eq!((count(bad), count(good)), (1, 0), "{}", phrase.rule);
        }
    }
}
