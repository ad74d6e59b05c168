//! The pinned packages, with version and digest.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The committed pin, `xtask/bindings/bindings.lock.json`.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Lock {
    /// The bindgen that writes the bindings; it must be the one in `Cargo.lock`.
    pub(super) bindgen: String,
    /// The distribution's suite that the packages come from.
    pub(super) suite: String,
    /// The libclang that parses the headers, a wheel of the package `libclang`.
    pub(super) libclang: Wheel,
    /// The packages that the headers and symbol lists come from.
    pub(super) packages: Vec<Package>,
}

/// A pinned Python wheel.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Wheel {
    pub(super) version: String,
    pub(super) platform: String,
    pub(super) file: String,
    pub(super) sha256: String,
}

/// A pinned Debian package.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) arch: String,
    pub(super) version: String,
    pub(super) file: String,
    pub(super) sha256: String,
}

impl Lock {
    fn path(root: &Path) -> PathBuf {
        root.join("xtask/bindings/bindings.lock.json")
    }

    /// Reads the committed pin.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let path = Self::path(root);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a valid pin", path.display()))
    }

    /// Replaces the committed pin.
    pub(super) fn write(&self, root: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(Self::path(root), text).context("cannot write the pin")
    }

    /// The version of rdma-core that is pinned.
    pub(super) fn rdma_core(&self) -> &str {
        self.packages.iter().find(|p| p.name == "libibverbs-dev").map_or("?", |p| p.version.as_str())
    }
}
