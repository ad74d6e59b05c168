//! The library in the hands of pkg-config and CMake.

use std::process::Command;

use libtest_mimic::Trial;

use crate::programs::STRICT;
use crate::{TestOutcome, TestResult, installed, run, scratch, source, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("pkg_config", &["cc", "pkg-config"], pkg_config),
        trial("cmake", &["cc", "c++", "cmake"], cmake),
    ]
}

/// An example builds with the flags of pkg-config, also statically. A program with the static library
/// starts without a path to the shared one.
fn pkg_config() -> TestResult {
    let lib = installed()?.join("lib");
    let ask = |options: &[&str]| {
        let mut ask = Command::new("pkg-config");
        ask.args(options).arg("trespass").env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
        run(&mut ask).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let path = format!("-Wl,-rpath,{}", lib.display());
    let shared = ask(&["--cflags", "--libs"])? + &path;
    let fixed = ask(&["--cflags", "--libs", "--static"])?.replace("-ltrespass", "-l:libtrespass.a");
    for (name, flags) in [("shared", shared), ("static", fixed)] {
        let program = scratch()?.join(format!("by_pkg_config_{name}"));
        let mut cc = Command::new("cc");
        cc.args(STRICT).arg(source("examples/echo_client.c")).arg("-o").arg(&program);
        run(cc.args(flags.split_whitespace()))?;
        starts(&program)?;
    }
    Ok(TestOutcome::Passed)
}

/// The example says how it is used.
fn starts(program: &std::path::Path) -> Result<(), String> {
    let output = Command::new(program).output().map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    if words.starts_with("usage: echo_client") { Ok(()) } else { Err(format!("{program:?} printed {words}")) }
}

const PROJECT: &str = "cmake_minimum_required(VERSION 3.13)
project(test C CXX)
find_package(trespass 0.1 REQUIRED)
add_executable(client ${EXAMPLES}/echo_client.c)
target_link_libraries(client PRIVATE trespass::trespass)
add_executable(static_client ${EXAMPLES}/echo_client.c)
target_link_libraries(static_client PRIVATE trespass::trespass-static)
";

fn cmake() -> TestResult {
    let folder = scratch()?.join("cmake");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    std::fs::write(folder.join("CMakeLists.txt"), PROJECT).map_err(|error| error.to_string())?;
    let build = folder.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&folder).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", installed()?.display()));
    run(configure.arg(format!("-DEXAMPLES={}", source("examples").display())))?;
    run(Command::new("cmake").arg("--build").arg(&build))?;
    starts(&build.join("client"))?;
    starts(&build.join("static_client"))?;
    Ok(TestOutcome::Passed)
}
