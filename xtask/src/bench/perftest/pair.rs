//! A server and a client over the device, as two processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use test_harness::{free_port, is_listening};

use crate::bench::programs::Programs;
use crate::bench::soft::copy_path::{CopyPath, CopyPathCounts};

/// The time limit of a run.
const PATIENCE: Duration = Duration::from_secs(60);

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Bandwidth,
    Latency,
}

/// The RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Operation {
    Write,
    Send,
    Read,
    Atomic,
}

impl Operation {
    /// Its name, the same for both tools.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }

    /// The size of a message; atomics have only one.
    pub(super) fn size(self, wanted: u64) -> u64 {
        if self == Self::Atomic { 8 } else { wanted }
    }

    /// The path of a message of this size if longer messages take the wanted one.
    pub(super) fn path(self, wanted: CopyPath, size: u64) -> CopyPath {
        match self {
            // The device copies a message of this size into the receive's slot.
            Self::Send if size <= 256 => CopyPath::Slot,
            _ => wanted,
        }
    }
}

/// The depth of the queues and lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadKind {
    /// The default of both tools.
    Usual,
    /// Long lists in long queues.
    Lists,
    /// Enough receives posted that no message of a short run waits for one.
    Received,
    /// Few receives posted, so that nearly every message causes a new one to be posted.
    Few,
}

impl LoadKind {
    /// Messages of a list.
    pub(super) const LIST: u64 = 64;

    /// Whether both tools support it for this operation.
    pub(super) fn is_for(self, operation: Operation) -> bool {
        self != Self::Lists || operation != Operation::Atomic
    }

    /// Rounds the number of messages to whole lists. The first list, which is sent before the
    /// peer's memory is mapped, must be a small part of them.
    pub(super) fn whole(self, messages: u64) -> u64 {
        if self == Self::Lists {
            messages.max(32 * Self::LIST).next_multiple_of(Self::LIST)
        } else {
            messages
        }
    }

    /// The flags, the same for both tools.
    pub(super) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Usual => &[],
            Self::Lists => &["-l", "64", "-t", "4096"],
            Self::Received => &["-r", "4096"],
            Self::Few => &["-r", "16"],
        }
    }
}

/// The tool under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Perftest,
    Stride,
}

impl Measure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Latency => "lat",
        }
    }
}

impl Tool {
    pub(super) fn program(self, programs: &Programs, operation: Operation, measure: Measure) -> PathBuf {
        match self {
            Self::Stride => programs.path("stride-perf"),
            Self::Perftest => format!("/usr/bin/ib_{}_{}", operation.name(), measure.name()).into(),
        }
    }
}

/// A run of one tool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerftestRun {
    pub(super) tool: Tool,
    pub(super) operation: Operation,
    pub(super) measure: Measure,
    /// The copy path that both processes must use.
    pub(super) path: CopyPath,
    pub(super) load: LoadKind,
    pub(super) size: u64,
    pub(super) iterations: u64,
    /// Additional flags of stride-perf's client.
    pub(super) more: &'static [&'static str],
}

/// Runs servers and clients.
pub(super) struct Pairs<'a> {
    programs: &'a Programs,
    files: Files,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(programs: &'a Programs) -> Result<Self> {
        Ok(Self { programs, files: Files::new()? })
    }

    /// Messages per microsecond, or the median latency in microseconds.
    pub(super) fn figure(&self, run: PerftestRun) -> Result<f64> {
        let said = self.run(run)?;
        // The column of the rate, or of the median.
        let column = match (run.tool, run.measure) {
            (Tool::Stride, Measure::Bandwidth) => 3,
            _ => 4,
        };
        let (size, iterations) = (run.size.to_string(), run.iterations.to_string());
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first() != Some(&size.as_str()) || words.get(1) != Some(&iterations.as_str()) {
                continue;
            }
            let value = words.get(column).and_then(|word| word.parse().ok()).filter(|value| *value > 0.0);
            return value.with_context(|| format!("{run:?}: not a measurement: {line}"));
        }
        bail!("{run:?}: nothing was measured: {said}")
    }

    /// Runs a server and a client, and returns the client's output. If many messages took another
    /// path, because the peer's memory was mapped late, the run is repeated.
    fn run(&self, run: PerftestRun) -> Result<String> {
        let mut attempt = 1;
        loop {
            let (said, noted) = self.once(run, |_| None)?;
            match CopyPathCounts::parse(&noted)?
                .must_mostly_be(run.operation.path(run.path, run.size))
                .with_context(|| format!("{run:?}"))
            {
                Ok(()) => return Ok(said),
                Err(error) if attempt == 5 => return Err(error),
                Err(error) => eprintln!("bench perftest: {error:#}; again"),
            }
            attempt += 1;
        }
    }

    /// Runs a server and a client (sides 0 and 1), each optionally under another program. Returns
    /// the client's output, and the standard error of both.
    pub(super) fn once(
        &self,
        run: PerftestRun,
        under: impl Fn(usize) -> Option<Command>,
    ) -> Result<(String, String)> {
        let port = free_port()?;
        let mut client = self.command(run, under(1), 1, port);
        client.args(run.more).arg("127.0.0.1");
        let server = self.command(run, under(0), 0, port);
        converse(self.programs, server, client, port).with_context(|| format!("{run:?}"))
    }

    fn command(&self, run: PerftestRun, under: Option<Command>, side: usize, port: u16) -> Command {
        let program = run.tool.program(self.programs, run.operation, run.measure);
        let mut command = match under {
            Some(mut under) => {
                under.arg(&program);
                under
            }
            None => Command::new(&program),
        };
        match (run.tool, run.measure) {
            (Tool::Stride, measure) => _ = command.args([run.operation.name(), measure.name()]),
            // Without the column of the peak, which needs the time of each message.
            (Tool::Perftest, Measure::Bandwidth) => _ = command.args(["-F", "-N"]),
            (Tool::Perftest, Measure::Latency) => _ = command.arg("-F"),
        }
        match (run.tool, run.path) {
            (Tool::Stride, CopyPath::Direct) => _ = command.args(["--buffer", "shared"]),
            (Tool::Stride, _) => _ = command.args(["--buffer", "malloc"]),
            (Tool::Perftest, CopyPath::Direct) => {
                command.arg(format!("--mmap={}", self.files.0[side].display()));
                command.env("SOFT_RNIC_SHM", "1");
            }
            (Tool::Perftest, _) => {}
        }
        let (size, iterations) = (run.size.to_string(), run.iterations.to_string());
        // perftest's atomics have one size, and no flag for it.
        if run.operation != Operation::Atomic {
            command.args(["-s", &size]);
        }
        command.args(["-n", &iterations, "-p", &port.to_string()]).args(run.load.flags());
        self.programs.over_the_device(&mut command);
        command.env("SOFT_RNIC_LOG", "info").stdin(Stdio::null());
        command
    }
}

/// Runs a server, and a client as soon as the server listens. Returns the client's output, and the
/// standard error of both.
pub(in crate::bench) fn converse(
    programs: &Programs,
    server: Command,
    client: Command,
    port: u16,
) -> Result<(String, String)> {
    let log = |side| programs.folder().join(format!("bench-{side}.{}.log", std::process::id()));
    let mut server = RunningProcess::start(server, log("server"))?;
    while !is_listening(port) {
        server.check()?;
        std::thread::sleep(Duration::from_millis(2));
    }
    let client = RunningProcess::start(client, log("client"))?;
    let (said, answered) = (client.finish()?, server.finish()?);
    Ok((said.0, said.1 + &answered.1))
}

/// A process with a time limit.
struct RunningProcess {
    child: Child,
    log: PathBuf,
    start: Instant,
}

impl RunningProcess {
    fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        // Two files, because in a single one a warning could split a row.
        command.stdout(File::create(&log)?).stderr(File::create(log.with_extension("err"))?);
        let child = command.spawn().with_context(|| {
            format!("cannot run {command:?}: build it (no --no-build), or install perftest and valgrind")
        })?;
        Ok(Self { child, log, start: Instant::now() })
    }

    /// Fails if the process has failed or exceeded its limit. Returns whether it has ended.
    fn check(&mut self) -> Result<bool> {
        let ended = self.child.try_wait()?;
        let said = || self.said().map(|(out, err)| out + &err).unwrap_or_default();
        match ended {
            Some(status) if status.success() => Ok(true),
            Some(status) => bail!("{status}: {}", said()),
            None if self.start.elapsed() > PATIENCE => bail!("not done in {PATIENCE:?}: {}", said()),
            None => Ok(false),
        }
    }

    fn finish(mut self) -> Result<(String, String)> {
        while !self.check()? {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.said()
    }

    /// Its standard output and standard error.
    fn said(&self) -> Result<(String, String)> {
        let read = std::fs::read_to_string::<&Path>;
        Ok((read(&self.log)?, read(&self.log.with_extension("err"))?))
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended already, unless something failed.
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
        let _ = std::fs::remove_file(self.log.with_extension("err"));
    }
}

/// Two files in shared memory, which perftest maps as its buffers.
pub(in crate::bench) struct Files(pub(in crate::bench) [PathBuf; 2]);

impl Files {
    pub(in crate::bench) fn new() -> Result<Self> {
        let path = |side| PathBuf::from(format!("/dev/shm/xtask-bench.{}.{side}", std::process::id()));
        let files = Self([path(0), path(1)]);
        for file in &files.0 {
            // Twice the longest message, for both directions.
            File::create(file)?.set_len(32 << 20)?;
        }
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}
