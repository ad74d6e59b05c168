//! The folders that the command uses.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};

pub(super) struct Folders {
    /// The workspace, which is also the command's working directory.
    pub(super) root: PathBuf,
    /// Files that later runs use again: the guests. `RDMA_SOFTROCE_DIR` moves it.
    pub(super) cache: PathBuf,
    /// Cargo's target folder.
    pub(super) target: PathBuf,
    /// The command's `SOFTROCE_OUT`.
    pub(super) out: PathBuf,
}

impl Folders {
    pub(super) fn new(root: &Path) -> Result<Self> {
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
        let own = target.join("softroce");
        let cache = env::var_os("RDMA_SOFTROCE_DIR").map_or_else(|| own.clone(), |folder| root.join(folder));
        let out = own.join("out");
        for folder in [&cache, &out] {
            fs::create_dir_all(folder).with_context(|| {
                format!("cannot make {}; set RDMA_SOFTROCE_DIR or CARGO_TARGET_DIR", folder.display())
            })?;
        }
        Ok(Self { root: root.to_owned(), cache, target, out })
    }
}

/// Removes leftovers of killed processes: the entries `PREFIX<process>...` of a folder whose
/// process no longer exists.
pub(super) fn sweep(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(prefix)) else { continue };
        let process = rest.split('-').next().unwrap_or_default();
        if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::sweep;

    #[test]
    fn only_the_leavings_of_dead_processes_are_swept() {
        let folder = env::temp_dir().join(format!("sweep-test-{}", process::id()));
        let (dead, alive) = (format!("x-{}-1", u32::MAX), format!("x-{}-1", process::id()));
        for name in [&*dead, &*alive, "x-other", "else"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        sweep(&folder, "x-");
        let left = [&*dead, &*alive, "x-other", "else"].map(|name| folder.join(name).exists());
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(left, [false, true, true, true]);
    }
}
