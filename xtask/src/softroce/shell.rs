//! Text that a POSIX shell reads back unchanged.

/// One argument, quoted where the shell would change it.
pub(super) fn quote(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

/// A command line of quoted arguments.
pub(super) fn join<S: AsRef<str>>(arguments: &[S]) -> String {
    arguments.iter().map(|argument| quote(argument.as_ref())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{join, quote};

    #[test]
    fn plain_words_stay_as_they_are() {
        assert_eq!(quote("--size=64"), "--size=64");
        assert_eq!(join(&["ib_write_bw", "-d", "rxe0"]), "ib_write_bw -d rxe0");
    }

    #[test]
    fn whatever_the_shell_would_touch_is_quoted() {
        assert_eq!(quote(""), "''");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("$HOME"), "'$HOME'");
        assert_eq!(quote("~"), "'~'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let arguments = ["plain", "", "two words", "'", "\"$(exit 3)\"", "a\nb", "*", "\\"];
        let script = format!("printf '%s\\0' {}", join(&arguments));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        let read: Vec<_> = output.stdout.strip_suffix(b"\0").unwrap().split(|byte| *byte == 0).collect();
        assert_eq!(read, arguments.map(str::as_bytes));
    }
}
