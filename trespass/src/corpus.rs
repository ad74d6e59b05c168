//! The fuzz targets' seed inputs, and the inputs that once failed.

use std::fs;
use std::path::PathBuf;

fn of(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fuzz", "corpus", target].iter().collect()
}

/// Runs every input of a target, and checks that there are at least `least` of them.
pub(crate) fn replay(target: &str, least: usize, run: impl Fn(&[u8])) {
    let mut count = 0;
    for entry in fs::read_dir(of(target)).expect("the corpus is committed") {
        run(&fs::read(entry.expect("an entry").path()).expect("a file"));
        count += 1;
    }
    assert!(count >= least, "{count} inputs");
}

/// Writes a target's seed inputs again.
pub(crate) fn write<N: AsRef<str>>(target: &str, inputs: impl IntoIterator<Item = (N, Vec<u8>)>) {
    fs::create_dir_all(of(target)).expect("a directory");
    for (name, bytes) in inputs {
        fs::write(of(target).join(name.as_ref()), bytes).expect("written");
    }
}
