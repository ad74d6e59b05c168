//! `cargo xtask c-lib trespass`: trespass as `libtrespass.so.0` and `libtrespass.a`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Args, fill};
use crate::shared_object::{self, RustCode};

const SONAME: &str = "libtrespass.so.0";

pub(super) fn install(root: &Path, args: &Args, prefix: &Path) -> Result<()> {
    let source = root.join("trespass/c");
    let lib = prefix.join("lib");
    let cmake = lib.join("cmake/trespass");
    fs::create_dir_all(&cmake)?;
    let options: &[&str] =
        if args.without_soft { &["--no-default-features", "--features", "rdma"] } else { &[] };
    let code = RustCode { package: "trespass-c", profile: &args.profile, target: None, options };
    let archive = shared_object::archive(root, &code)?;
    shared_object::link(&source.join("src/trespass.map"), SONAME, &lib, |command| {
        shared_object::add_archive(command, &archive);
    })?;
    link_to(SONAME, &lib.join("libtrespass.so"))?;
    fs::copy(&archive, lib.join("libtrespass.a")).context("cannot write libtrespass.a")?;
    fill(&source.join("trespass.pc.in"), &lib.join("pkgconfig/trespass.pc"))?;
    for name in ["trespass-config.cmake", "trespass-config-version.cmake"] {
        fill(&source.join("cmake").join(format!("{name}.in")), &cmake.join(name))?;
    }
    super::install(&source.join("include"), &prefix.join("include"))
}

/// Makes a symbolic link, in place of one from an earlier installation.
fn link_to(name: &str, link: &Path) -> Result<()> {
    if link.is_symlink() {
        fs::remove_file(link)?;
    }
    std::os::unix::fs::symlink(name, link).with_context(|| format!("cannot make {}", link.display()))
}
