//! Searches the text of the C headers for names.

use std::path::Path;

/// All headers of rdma-core, one after the other.
pub(crate) struct Headers {
    text: String,
}

impl Headers {
    /// Reads the folders that belong to rdma-core.
    pub(crate) fn read(include: &Path) -> Self {
        let mut text = String::new();
        for folder in ["infiniband", "rdma"] {
            let Ok(entries) = std::fs::read_dir(include.join(folder)) else { continue };
            for entry in entries.flatten() {
                text += &std::fs::read_to_string(entry.path()).unwrap_or_default();
            }
        }
        Self { text }
    }

    pub(crate) fn of(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    /// Whether the word is anywhere in them.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        has_word(&self.text, name)
    }

    /// Whether `struct name` is defined, not merely named.
    pub(crate) fn defines(&self, c_name: &str) -> bool {
        self.body(c_name).is_some()
    }

    /// Whether the struct has all the words of a field's path.
    pub(crate) fn has_field(&self, c_name: &str, path: &str) -> bool {
        self.body(c_name).is_some_and(|body| path.split('.').all(|name| has_word(body, name)))
    }

    /// The text between the braces of a struct's definition.
    fn body(&self, c_name: &str) -> Option<&str> {
        let bodies = self
            .text
            .match_indices(c_name)
            .filter_map(|(at, _)| self.text[at + c_name.len()..].trim_start().strip_prefix('{'));
        bodies.map(up_to_closing_brace).next()
    }
}

fn up_to_closing_brace(body: &str) -> &str {
    let mut depth = 1;
    let end = body.find(|c| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        depth == 0
    });
    &body[..end.unwrap_or(body.len())]
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}
