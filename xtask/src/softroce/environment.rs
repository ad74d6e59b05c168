//! The environment of a command, the same in a guest and on the host.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use super::folders::Folders;
use super::machine::TestMachine;
use super::programs::Programs;
use super::shell;

/// A folder of the host that the guest sees at the same path.
pub(super) struct SharedFolder {
    pub(super) folder: PathBuf,
    pub(super) writable: bool,
}

/// A command with its environment.
#[derive(Default)]
pub(crate) struct Job {
    /// Shell code, run in the workspace's root.
    pub(crate) command: String,
    environment: Vec<(&'static str, String)>,
    pub(super) directory: PathBuf,
    pub(super) shares: Vec<SharedFolder>,
}

/// The variables of the calling environment that a guest inherits.
const INHERITED: &[&str] = &["RUST_BACKTRACE", "RUST_LOG"];

impl Job {
    pub(super) fn new(folders: &Folders, machine: &TestMachine, programs: &Programs) -> Result<Self> {
        let mut job = Self { directory: folders.root.clone(), ..Self::default() };
        fs::create_dir_all(programs.folder())?;
        job.share(&folders.root)?;
        job.share(&programs.folder())?;
        job.shares.push(SharedFolder { folder: folders.out.clone(), writable: true });

        job.environment.extend(machine.variables());
        job.environment.push(("PATH", search_path(machine, &programs.folder())));
        job.environment.push(("SOFTROCE_OUT", text(&folders.out)?));
        job.environment.push(("SIDEWAY_PROVIDER", "system".to_owned()));
        job.environment.push(("SIDEWAY_TEST_REQUIRE_DEVICE", "1".to_owned()));
        for name in INHERITED {
            job.environment.extend(env::var(name).ok().map(|value| (*name, value)));
        }
        Ok(job)
    }

    /// A command without environment.
    pub(super) fn bare(command: &str) -> Self {
        Self { command: command.to_owned(), directory: "/".into(), ..Self::default() }
    }

    /// Shares a folder with the guest, read-only, unless a shared folder contains it.
    pub(super) fn share(&mut self, folder: &Path) -> Result<()> {
        let folder = folder
            .canonicalize()
            .with_context(|| format!("cannot share {} with the guest", folder.display()))?;
        ensure!(folder.is_dir(), "cannot share {}: it is not a folder", folder.display());
        if !self.shares.iter().any(|share| folder.starts_with(&share.folder)) {
            self.shares.push(SharedFolder { folder, writable: false });
        }
        Ok(())
    }

    /// The shell script that sets the environment and executes the command.
    pub(super) fn script(&self) -> Result<String> {
        let mut script = String::new();
        for (name, value) in &self.environment {
            script += &format!("export {name}={}\n", shell::quote(value));
        }
        script += &format!("cd {} || exit 125\n", shell::quote(&text(&self.directory)?));
        script += &self.command;
        script.push('\n');
        Ok(script)
    }
}

/// The path as text for a script and a mount table.
pub(super) fn text(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("the path {} is not UTF-8", path.display()))?;
    ensure!(!text.contains(['\n', ',']), "the path {text:?} has a comma or a line break; use another one");
    Ok(text.to_owned())
}

/// The search path, with the workspace's programs first.
fn search_path(machine: &TestMachine, programs: &Path) -> String {
    let system = match machine {
        TestMachine::Guest(_) => "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        TestMachine::Host(_) => env::var("PATH").unwrap_or_default(),
    };
    format!("{0}:{0}/examples:{system}", programs.display())
}

#[cfg(test)]
mod tests {
    use super::Job;

    #[test]
    fn the_script_quotes_its_values_and_not_the_command() {
        let job = Job {
            command: "echo $A".to_owned(),
            environment: vec![("A", "two words".to_owned())],
            directory: "/some where".into(),
            shares: Vec::new(),
        };
        let script = job.script().unwrap();
        assert_eq!(script, "export A='two words'\ncd '/some where' || exit 125\necho $A\n");
    }
}
