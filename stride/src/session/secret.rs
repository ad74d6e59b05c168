//! The source of the shared secret.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::control::{LONGEST_SECRET, Secret};
use crate::error::{NoSecretError, SECRET_VARIABLE};
use crate::plan::LocalOptions;
use crate::report::Output;

/// Reads the secret from the file that the user named, else from the variable, if either is given.
pub(super) fn find(local: &LocalOptions, output: &mut Output) -> Result<Option<Secret>, NoSecretError> {
    if let Some(path) = &local.secret_file {
        return of_file(path, output).map(Some);
    }
    of_variable(std::env::var_os(SECRET_VARIABLE).as_deref())
}

fn of_file(path: &Path, output: &mut Output) -> Result<Secret, NoSecretError> {
    let mut bytes = Vec::new();
    // One byte more than the longest secret and a line end, so that a longer file is noticed.
    let read = File::open(path).and_then(|file| {
        let mode = file.metadata()?.permissions().mode();
        file.take(LONGEST_SECRET as u64 + 3).read_to_end(&mut bytes)?;
        Ok(mode)
    });
    let mode = read.map_err(|source| NoSecretError::Read { path: path.to_owned(), source })?;
    if mode & 0o044 != 0 {
        let path = path.display();
        output.note(format_args!(
            "warning: others on this machine can read the secret in {path}: chmod 600 {path}"
        ));
    }
    Secret::new(&bytes).map_err(|source| NoSecretError::File { path: path.to_owned(), source })
}

/// An empty variable is an error: it is no secret, but the user may not want to go without one.
fn of_variable(value: Option<&OsStr>) -> Result<Option<Secret>, NoSecretError> {
    value.map(|value| Secret::new(value.as_bytes()).map_err(NoSecretError::Variable)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_secret_or_is_not_set() {
        assert!(of_variable(None).unwrap().is_none());
        let found = of_variable(Some(OsStr::new("0123456789abcdef"))).unwrap();
        assert_eq!(found, Some(Secret::new(b"0123456789abcdef").unwrap()));
        for short in ["", "short"] {
            let text = of_variable(Some(OsStr::new(short))).unwrap_err().to_string();
            assert!(text.starts_with("STRIDE_SECRET: ") && text.contains("unset"), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_named() {
        let mut output = Output::silent();
        for (path, words) in
            [("/nowhere/secret", "cannot read"), ("/dev/null", "0 bytes"), ("/dev/zero", "more than 4096")]
        {
            let text = of_file(Path::new(path), &mut output).unwrap_err().to_string();
            assert!(
                text.starts_with("--secret-file") && text.contains(path) && text.contains(words),
                "{text}"
            );
        }
    }
}
