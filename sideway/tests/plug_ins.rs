//! mlx5 and EFA use the public API and nothing else, as the crate of another vendor does.
//!
//! The test compiles this crate with its other modules moved into one module, `base`, in which
//! `pub(crate)` means `pub(in crate::base)`. The two vendors' modules stay outside and see what
//! `base` exports: what users of the crate see. Two things remain that only modules of this crate
//! can do: they add inherent methods to `WorkRequestHandle`, and they use the macros of `newtype.rs`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const VENDORS: [&str; 2] = ["efa", "mlx5"];

const ROOT: &str = "#![allow(missing_docs)]\n#[macro_use]\n#[path = \"base.rs\"]\nmod base;\npub use base::*;\n\
                    pub mod efa;\npub mod mlx5;\n";

/// A source file outside of the vendors' modules, as a part of `base`.
fn moved(source: &str) -> String {
    let mut text = source.replace("pub(crate)", "pub(in crate::base)").replace("crate::", "crate::base::");
    // What was already a path in `base`, and `$crate` of macros, which are other crates' here.
    for (wrong, right) in [("crate::base::base", "crate::base"), ("$crate::base::", "$crate::")] {
        text = text.replace(wrong, right);
    }
    for vendor in VENDORS {
        text = text.replace(&format!("crate::base::{vendor}::"), &format!("crate::{vendor}::"));
    }
    text
}

/// Copies a folder of sources; `is_vendor` says that its files stay as they are.
fn copy(from: &Path, to: &Path, is_vendor: bool) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            copy(&path, &to.join(&name), is_vendor || VENDORS.contains(&name.as_str()));
        } else if is_vendor || !name.ends_with(".rs") {
            fs::copy(&path, to.join(name)).unwrap();
        } else {
            fs::write(to.join(name), moved(&fs::read_to_string(&path).unwrap())).unwrap();
        }
    }
}

/// Links the entries of a folder, except some.
fn link(from: &Path, to: &Path, except: &[&str]) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if !except.iter().any(|other| name == *other) {
            symlink(&path, to.join(name)).unwrap();
        }
    }
}

/// The workspace with the divided crate, in a new folder. Everything else is linked, so that the
/// manifests and the lock file are the workspace's.
fn divided() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plug-ins");
    let workspace = folder.join("workspace");
    let _ = fs::remove_dir_all(&workspace);
    link(here.parent().unwrap(), &workspace, &["sideway", "target", ".git"]);
    link(here, &workspace.join("sideway"), &["src"]);
    let src = workspace.join("sideway/src");
    copy(&here.join("src"), &src, false);
    let base = fs::read_to_string(src.join("lib.rs")).unwrap();
    let base = VENDORS.iter().fold(base, |base, vendor| {
        let declaration = format!("#[cfg(feature = \"{vendor}\")]\npub mod {vendor};\n");
        assert!(base.contains(&declaration), "lib.rs declares {vendor} otherwise");
        base.replace(&declaration, "")
    });
    fs::write(src.join("base.rs"), base).unwrap();
    fs::write(src.join("lib.rs"), ROOT).unwrap();
    folder
}

fn check(folder: &Path) -> Output {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--quiet", "--offline", "--locked", "-p", "sideway", "--features", "mlx5,efa"]);
    cargo.arg("--target-dir").arg(folder.join("target")).current_dir(folder.join("workspace"));
    // It is for the host, even if the tests are built for another target.
    cargo.env_remove("CARGO_BUILD_TARGET").output().unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "runs the compiler")]
fn vendors_use_the_public_api_alone() {
    let folder = divided();
    let output = check(&folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The same with a call of a private method, to show that it would be found.
    let module = folder.join("workspace/sideway/src/efa/mod.rs");
    let source = fs::read_to_string(&module).unwrap();
    let inside = "fn inside(builder: &mut crate::ibverbs::queue_pair::QueuePairBuilder) {\n    \
                  builder.complete_in_one();\n}\n";
    fs::write(&module, source + inside).unwrap();
    let output = check(&folder);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("E0624"), "{errors}");
}
