//! The workspace's programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::folders::Folders;
use super::glibc;
use super::machine::TestMachine;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

/// The workspace's programs, in cargo's usual target folder.
///
/// A guest runs the host's, because Rust's standard library and the project need no recent symbol of
/// libc. So one build serves all machines; [`glibc::check`] refuses a program that needs more.
pub(crate) struct Programs {
    root: PathBuf,
    target: PathBuf,
    for_guests: bool,
    profile: Profile,
}

impl Programs {
    pub(super) fn new(folders: &Folders, machine: &TestMachine, profile: Profile) -> Self {
        Self {
            root: folders.root.clone(),
            target: folders.target.clone(),
            for_guests: matches!(machine, TestMachine::Guest(_)),
            profile,
        }
    }

    /// The folder of the programs; the examples are in a subfolder.
    pub(super) fn folder(&self) -> PathBuf {
        self.target.join(if self.profile == Profile::Release { "release" } else { "debug" })
    }

    /// Builds every program and example.
    pub(crate) fn build(&self) -> Result<()> {
        self.build_all().map(drop)
    }

    fn build_all(&self) -> Result<Vec<Value>> {
        eprintln!("softroce: building the workspace's programs");
        self.cargo(&["build", "--workspace", "--bins", "--examples"])
    }

    /// Builds the programs of one package.
    pub(crate) fn build_package(&self, package: &str) -> Result<()> {
        eprintln!("softroce: building the programs of {package}");
        self.cargo(&["build", "--package", package, "--bins"]).map(drop)
    }

    /// Builds one example of a package.
    pub(crate) fn build_example(&self, package: &str, example: &str) -> Result<()> {
        eprintln!("softroce: building {example}");
        self.cargo(&["build", "--package", package, "--example", example]).map(drop)
    }

    /// Builds every program and example, and the integration tests of these packages.
    ///
    /// Both commands select the same packages as `cargo test --workspace`, so that cargo unifies
    /// features in the same way and builds nothing twice.
    pub(super) fn build_tests(&self, packages: &[&str]) -> Result<Vec<TestProgram>> {
        let programs = self.build_all()?;
        eprintln!("softroce: building the tests");
        // The tests of async runtimes need a feature, and use software devices only.
        let artifacts =
            self.cargo(&["test", "--no-run", "--workspace", "--exclude", "async-tests", "--test", "*"])?;
        let mut tests: Vec<_> = artifacts.iter().filter_map(TestProgram::from_artifact).collect();
        tests.retain(|test| packages.contains(&&*test.package));
        for test in &mut tests {
            test.programs = programs.iter().filter_map(|artifact| test.program(artifact)).collect();
        }
        Ok(tests)
    }

    /// Runs a test program that makes more programs, and adds these to those that it may start. It
    /// prints their paths.
    pub(super) fn build_more(&self, test: &mut TestProgram, variable: Option<(&str, &str)>) -> Result<()> {
        eprintln!("softroce: building the programs of the tests of {}", test.package);
        let mut command = Command::new(&test.executable);
        command.current_dir(&test.directory).envs(variable).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().with_context(|| format!("cannot start {}", test.executable))?;
        let paths = str::from_utf8(&output.stdout)?;
        ensure!(
            output.status.success() && !paths.is_empty(),
            "{} has not made its programs ({})",
            test.executable,
            output.status
        );
        for path in paths.lines() {
            if self.for_guests {
                glibc::check(Path::new(path))?;
            }
            test.programs.push(path.to_owned());
        }
        Ok(())
    }

    /// Runs cargo and returns its artifact messages.
    fn cargo(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root).args(arguments).arg("--message-format=json-render-diagnostics");
        cargo.arg("--quiet").arg("--target-dir").arg(&self.target);
        if self.profile == Profile::Release {
            cargo.arg("--release");
        }
        let output =
            cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
        ensure!(output.status.success(), "the workspace does not build (cargo {})", arguments.join(" "));

        let messages =
            str::from_utf8(&output.stdout)?.lines().filter_map(|line| serde_json::from_str(line).ok());
        let artifacts: Vec<Value> =
            messages.filter(|message: &Value| message["reason"] == "compiler-artifact").collect();
        if self.for_guests {
            artifacts
                .iter()
                .filter_map(|artifact| artifact["executable"].as_str())
                .try_for_each(|p| glibc::check(Path::new(p)))?;
        }
        Ok(artifacts)
    }
}

/// An integration test that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestProgram {
    pub(super) package: String,
    pub(super) name: String,
    pub(super) executable: String,
    /// The package's folder, which is the working directory under cargo.
    pub(super) directory: String,
    /// The programs of its package that it may start.
    pub(super) programs: Vec<String>,
}

impl TestProgram {
    fn from_artifact(artifact: &Value) -> Option<Self> {
        let target = &artifact["target"];
        let integration = target["kind"].as_array()?.iter().any(|kind| kind == "test");
        let directory = Path::new(artifact["manifest_path"].as_str()?).parent()?.to_str()?;
        let program = Self {
            package: package_name(artifact["package_id"].as_str()?)?.to_owned(),
            name: target["name"].as_str()?.to_owned(),
            executable: artifact["executable"].as_str()?.to_owned(),
            directory: directory.to_owned(),
            programs: Vec::new(),
        };
        integration.then_some(program)
    }

    /// The program or example in the artifact message, if it belongs to this test's package.
    fn program(&self, artifact: &Value) -> Option<String> {
        let mut kinds = artifact["target"]["kind"].as_array()?.iter();
        let is_program = kinds.any(|kind| kind == "bin" || kind == "example");
        let is_ours = package_name(artifact["package_id"].as_str()?)? == self.package;
        let executable = artifact["executable"].as_str()?;
        (is_program && is_ours && artifact["profile"]["test"] != true).then(|| executable.to_owned())
    }
}

/// The name in `path+file:///folder#name@0.1.0`, or in `path+file:///name#0.1.0`.
fn package_name(id: &str) -> Option<&str> {
    let (source, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => source.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{TestProgram, package_name};

    #[test]
    fn a_package_id_has_the_name_in_two_places() {
        assert_eq!(package_name("path+file:///w/examples#rdma-examples@0.1.0"), Some("rdma-examples"));
        assert_eq!(package_name("path+file:///w/sideway#0.1.0"), Some("sideway"));
        assert_eq!(package_name("sideway"), None);
    }

    #[test]
    fn only_integration_tests_are_taken() {
        let artifact = |kind: &str| {
            json!({
                "package_id": "path+file:///w/sideway#0.1.0",
                "manifest_path": "/w/sideway/Cargo.toml",
                "target": { "kind": [kind], "name": "rc" },
                "executable": "/t/rc-1234",
            })
        };
        let program = TestProgram::from_artifact(&artifact("test")).unwrap();
        assert_eq!((&*program.package, &*program.name), ("sideway", "rc"));
        assert_eq!((&*program.executable, &*program.directory), ("/t/rc-1234", "/w/sideway"));
        assert_eq!(TestProgram::from_artifact(&artifact("lib")), None);
        assert_eq!(program.program(&artifact("test")), None);
        assert_eq!(program.program(&artifact("example")).as_deref(), Some("/t/rc-1234"));
    }
}
