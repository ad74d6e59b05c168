//! A virtual machine that is booted for one job.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::accelerator::Accelerator;
use super::environment::{self, Job};
use super::folders::sweep;
use super::host_tools;
use super::user_space::{RdmaCore, UserSpace, last_lines};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobOutcome {
    Exited(u8),
    TimedOut(Duration),
}

impl JobOutcome {
    /// The exit code of this program: the command's, or 124 like `timeout`.
    pub(crate) fn exit_code(self) -> ExitCode {
        if let Self::TimedOut(limit) = self {
            eprintln!(
                "softroce: stopped after the time limit of {} s (--timeout raises it)",
                limit.as_secs()
            );
        }
        ExitCode::from(self.code())
    }

    fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::TimedOut(_) => 124,
        }
    }
}

/// The result of a run, apart from its output.
pub(crate) struct JobReport {
    pub(crate) outcome: JobOutcome,
    pub(crate) rdma_core_version: String,
    pub(crate) kernel_version: String,
}

/// The machine to boot.
pub(crate) struct Vm {
    pub(super) rdma_core: RdmaCore,
    pub(super) user_space: UserSpace,
    pub(super) accelerator: Accelerator,
    pub(super) cpus: u32,
    /// The file that receives the console's text after a failure.
    pub(super) console_copy: Option<PathBuf>,
    /// Of the whole run, boot included.
    pub(super) time_limit: Duration,
}

/// The prefix of a run's folder; the process and a number follow.
const PREFIX: &str = "softroce-";

const GUEST_SCRIPT: &str = include_str!("guest.sh");

impl Vm {
    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        let fixed = [
            ("SOFTROCE_RDMA_CORE", self.rdma_core.name()),
            ("SOFTROCE_DEVICE", "rxe0"),
            ("SOFTROCE_GID_INDEX", "1"),
            ("SOFTROCE_ADDRESS", "10.77.0.1"),
            ("SOFTROCE_PEER_DEVICE", "rxe1"),
            ("SOFTROCE_PEER_ADDRESS", "10.77.0.2"),
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
        ];
        let mut variables: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).into();
        if self.accelerator != Accelerator::Kvm {
            variables.push(("SOFTROCE_EMULATED", "1".to_owned()));
        }
        variables
    }

    pub(super) fn run<O, E>(&self, job: &Job, stdout: &mut O, stderr: &mut E) -> Result<JobReport>
    where
        O: Write + Send,
        E: Write + Send,
    {
        let folder = RunFolder::new(job)?;
        let ports = [folder.port("stdout")?, folder.port("stderr")?];
        let status = thread::scope(|scope| -> Result<_> {
            scope.spawn(|| pass_on(&ports[0], stdout));
            scope.spawn(|| pass_on(&ports[1], stderr));
            let status = self.qemu(&folder, job).and_then(|mut qemu| wait(&mut qemu, self.time_limit));
            // If QEMU has ended before it opened the ports, their threads stop waiting.
            for name in ["stdout", "stderr"] {
                let _ = UnixStream::connect(folder.folder.join(name));
            }
            status
        })?;
        folder.report(status, self.time_limit).inspect_err(|_| {
            if let Some(copy) = &self.console_copy {
                let _ = fs::copy(folder.console(), copy);
                eprintln!("softroce: the guest's console is in {}", copy.display());
            }
        })
    }

    fn qemu(&self, folder: &RunFolder, job: &Job) -> Result<Child> {
        let log = fs::File::create(folder.folder.join("qemu.log"))?;
        // If this process is killed, its guest ends, too.
        let mut qemu = host_tools::command("setpriv")?;
        qemu.args(["--pdeathsig", "KILL", "--"]);
        qemu.arg(host_tools::find("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35"]);
        qemu.args(self.accelerator.arguments());
        qemu.args(["-m", "2G", "-smp", &self.cpus.to_string()]);
        qemu.arg("-kernel").arg(self.user_space.kernel()).arg("-initrd").arg(self.user_space.initramfs());
        let kernel = self.accelerator.kernel_arguments();
        qemu.args(["-append", &format!("console=ttyS0 loglevel=6 panic=-1 mitigations=off {kernel}")]);
        qemu.args(["-serial", &format!("file:{}", environment::text(&folder.console())?)]);
        // Writes to the disk go to a temporary file.
        let disk = environment::text(&self.user_space.disk())?;
        qemu.args(["-drive", &format!("file={disk},format=raw,if=virtio,snapshot=on")]);
        qemu.args(["-device", "virtio-serial-pci"]);
        for name in ["stdout", "stderr"] {
            let socket = environment::text(&folder.folder.join(name))?;
            qemu.args(["-chardev", &format!("socket,id={name},path={socket}")]);
            qemu.args(["-device", &format!("virtserialport,chardev={name},name=softroce.{name}")]);
        }
        share(&mut qemu, "control", &folder.control(), true)?;
        for (index, shared) in job.shares.iter().enumerate() {
            share(&mut qemu, &tag(index), &shared.folder, shared.writable)?;
        }
        qemu.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        qemu.spawn().context("cannot start QEMU")
    }
}

/// The folder on the host through which a run and its guest communicate.
struct RunFolder {
    folder: PathBuf,
}

impl RunFolder {
    /// Writes the job's files for the guest; guest.sh describes them.
    fn new(job: &Job) -> Result<Self> {
        // Not in the target folder, because the path of a socket has at most 107 bytes.
        let temporary = std::env::temp_dir();
        sweep(&temporary, PREFIX);
        let folder = temporary.join(format!("{PREFIX}{}-{}", process::id(), unique()));
        let folder = Self { folder };
        fs::create_dir_all(folder.control())
            .with_context(|| format!("cannot make {}", folder.folder.display()))?;
        let mut shares = String::new();
        for (index, share) in job.shares.iter().enumerate() {
            let mode = if share.writable { "rw" } else { "ro" };
            shares += &format!("{} {mode} {}\n", tag(index), environment::text(&share.folder)?);
        }
        for (name, text) in [("guest.sh", GUEST_SCRIPT), ("shares", &shares), ("command", &job.script()?)] {
            fs::write(folder.control().join(name), text)?;
        }
        Ok(folder)
    }

    fn control(&self) -> PathBuf {
        self.folder.join("control")
    }

    fn console(&self) -> PathBuf {
        self.folder.join("console.log")
    }

    fn port(&self, name: &str) -> Result<UnixListener> {
        let path = self.folder.join(name);
        UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))
    }

    /// A file that the guest wrote, if it did.
    fn answer(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.control().join(name)).ok()?.trim().to_owned())
    }

    fn log(&self, path: &Path) -> String {
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).replace('\r', "")
    }

    /// Determines how the command ended, or why it did not.
    fn report(&self, status: Option<ExitStatus>, time_limit: Duration) -> Result<JobReport> {
        let console = telling_lines(&self.log(&self.console()));
        if let Some(failure) = self.answer("failure") {
            bail!("{failure}; its console says:\n{console}");
        }
        let outcome = match (self.answer("exit"), status) {
            (Some(code), _) => JobOutcome::Exited(code.parse().context("the guest wrote no exit code")?),
            (None, None) if self.answer("ready").is_some() => JobOutcome::TimedOut(time_limit),
            (None, None) => bail!(
                "the guest was not up within the time limit of {} s (--timeout raises it); its console says:\n{console}",
                time_limit.as_secs()
            ),
            (None, Some(status)) => bail!(
                "the virtual machine ended before the command did (QEMU: {status}).\n{}\nits console says:\n{console}",
                self.log(&self.folder.join("qemu.log")).trim()
            ),
        };
        let versions = self.answer("versions").unwrap_or_default();
        let mut versions = versions.lines().map(str::to_owned);
        let mut version = || versions.next().unwrap_or_else(|| "unknown".to_owned());
        Ok(JobReport { outcome, rdma_core_version: version(), kernel_version: version() })
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The first line of a crash with its surroundings, else the end of the text.
fn telling_lines(console: &str) -> String {
    const SIGNS: &[&str] = &["BUG:", "Oops", "Kernel panic", "Out of memory"];
    let lines: Vec<_> = console.lines().collect();
    match lines.iter().position(|line| SIGNS.iter().any(|sign| line.contains(sign))) {
        Some(crash) => lines[crash.saturating_sub(3)..lines.len().min(crash + 20)].join("\n"),
        None => last_lines(console, 20),
    }
}

fn tag(index: usize) -> String {
    format!("share{index}")
}

fn share(qemu: &mut Command, tag: &str, folder: &Path, writable: bool) -> Result<()> {
    let folder = environment::text(folder)?;
    let readonly = if writable { "" } else { ",readonly=on" };
    qemu.args(["-virtfs", &format!("local,path={folder},mount_tag={tag},security_model=none{readonly}")]);
    Ok(())
}

/// A number that is unique in this process.
fn unique() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// Copies the guest's output until it or QEMU closes the port.
fn pass_on(port: &UnixListener, sink: &mut (impl Write + ?Sized)) {
    let Ok((mut stream, _)) = port.accept() else { return };
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            // The reader of our output has left; the guest must not wait for it.
            Ok(count) => drop(sink.write_all(&buffer[..count]).and_then(|()| sink.flush())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Waits for the process; `None` if the time limit expired and it was killed.
fn wait(child: &mut Child, time_limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + time_limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{JobOutcome, telling_lines};

    #[test]
    fn the_exit_code_is_the_command_s_own_or_that_of_timeout() {
        assert_eq!(JobOutcome::Exited(7).code(), 7);
        assert_eq!(JobOutcome::TimedOut(Duration::from_secs(1)).code(), 124);
    }

    #[test]
    fn a_crash_is_shown_from_its_beginning() {
        let noise = "noise\n".repeat(100);
        let shown = telling_lines(&format!("{noise}before\nKernel panic - not syncing\nafter\n{noise}"));
        assert!(shown.starts_with("noise\nnoise\nbefore\nKernel panic") && shown.lines().count() < 25);
        assert!(telling_lines(&format!("{noise}the end")).ends_with("the end"));
    }
}
