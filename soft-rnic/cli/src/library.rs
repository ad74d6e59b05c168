//! Finds the folder of the device's `libibverbs.so.1`.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The shared object that programs of libibverbs load.
pub(crate) const SONAME: &str = "libibverbs.so.1";

/// The libraries to preload, in this order. The first shows the device files; the others replace
/// copies with other names.
pub(crate) const PRELOADED: [&str; 3] = ["libsoft-rnic-preload.so", SONAME, "librdmacm.so.1"];

/// The folder with the library: the named one, or the first that contains it among those that
/// belong to this program.
pub(crate) fn folder(named: Option<&Path>) -> Result<PathBuf> {
    let candidates = match named {
        Some(folder) => vec![std::path::absolute(folder)?],
        None => candidates(&env::current_exe()?.canonicalize()?),
    };
    if let Some(folder) = candidates.iter().find(|folder| folder.join(SONAME).is_file()) {
        // The loader splits its variables at these, and offers no way to escape them.
        if folder.as_os_str().as_encoded_bytes().iter().any(|byte| b":; ".contains(byte)) {
            bail!(
                "{} has a colon, semicolon or space, which LD_LIBRARY_PATH and LD_PRELOAD cannot hold",
                folder.display()
            );
        }
        return Ok(folder.clone());
    }
    let tried: Vec<String> = candidates.iter().map(|folder| folder.display().to_string()).collect();
    bail!(
        "no {SONAME} in {}: build it with `cargo xtask soft-libs`, or name its folder with --lib-dir",
        tried.join(", ")
    )
}

/// Fails unless the folder has every library to preload. The loader only warns of a missing one.
pub(crate) fn check_preloaded(folder: &Path) -> Result<()> {
    match PRELOADED.iter().find(|name| !folder.join(name).is_file()) {
        None => Ok(()),
        Some(name) => bail!(
            "no {name} in {}: build it with `cargo xtask soft-libs`, or give --no-preload",
            folder.display()
        ),
    }
}

/// Beside the program, installed with it, or in the workspace's target folder. Never `../lib`
/// itself, which may be the system's.
fn candidates(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let mut candidates = vec![folder.to_owned()];
    if let Some(above) = folder.parent() {
        candidates.push(above.join("lib/soft-rnic"));
        candidates.push(above.join("soft-rnic/lib"));
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looked_for_beside_installed_and_built() {
        let installed = candidates(Path::new("/usr/local/bin/soft-rnic"));
        assert!(installed.contains(&"/usr/local/lib/soft-rnic".into()), "{installed:?}");
        let built = candidates(Path::new("/w/target/release/soft-rnic"));
        assert!(built.contains(&"/w/target/soft-rnic/lib".into()), "{built:?}");
        assert!(!installed.contains(&"/usr/local/lib".into()));
    }

    #[test]
    fn a_folder_without_the_library_is_named() {
        let error = folder(Some(Path::new("/nonexistent"))).unwrap_err().to_string();
        assert!(error.contains("/nonexistent") && error.contains("cargo xtask soft-libs"), "{error}");
    }
}
