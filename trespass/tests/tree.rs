//! Without the feature `rdma` the dependency tree contains no RDMA crate.

use std::process::Command;

/// The names of the crates that a user of trespass gets.
fn tree(flags: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--locked",
            "-p",
            "trespass",
            "-e",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .args(flags)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// For this host, whose crates are downloaded; CI checks other targets where their crates are.
#[test]
fn without_the_feature_rdma_nothing_of_rdma_is_there() {
    const OF_RDMA: [&str; 3] = ["sideway", "rdma-mummy-sys", "soft-rnic"];
    let names = tree(&["--no-default-features"]);
    assert!(names.iter().any(|name| name == "mio"), "{names:?}");
    for name in OF_RDMA {
        assert!(!names.iter().any(|found| found == name), "{name} in {names:?}");
    }
    // With the feature the same check finds them.
    let names = tree(&[]);
    for name in &OF_RDMA[..2] {
        assert!(names.iter().any(|found| found == name), "no {name} in {names:?}");
    }
}
