//! The libraries that the tests are about, made as their users make them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The folder with `libibverbs.so.1` and `librdmacm.so.1`, built once a run. The tests of
/// `soft-rnic-cli` use it too.
pub(crate) fn folder() -> Result<&'static Path, String> {
    static FOLDER: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-libs");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["run", "--quiet", "--package", "xtask", "--"]);
        let output = cargo.arg("soft-libs").arg("--out").arg(&folder).output();
        let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("`cargo xtask soft-libs` failed ({}):\n{words}", output.status));
        }
        Ok(folder)
    });
    FOLDER.as_deref().map_err(Clone::clone)
}
