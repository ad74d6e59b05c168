//! Where the chore keeps what it makes.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};

/// The folders of the workspace that a run uses.
pub(super) struct Folders {
    /// The workspace itself, also the command's working directory.
    pub(super) root: PathBuf,
    /// What a later run takes up again: the guests. `RDMA_SOFTROCE_DIR` moves it.
    pub(super) cache: PathBuf,
    /// Cargo's target folder for programs that run in a guest.
    pub(super) guest_target: PathBuf,
    /// Cargo's target folder for programs that run on the host.
    pub(super) host_target: PathBuf,
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
        Ok(Self { root: root.to_owned(), cache, guest_target: own.join("build"), host_target: target, out })
    }
}
