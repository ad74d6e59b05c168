//! The programs on either side of a comparison.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use test_harness::free_port;

use crate::bench::perftest::pair::{Files, converse};
use crate::bench::programs::{PERFTEST, Programs};
use crate::bench::soft::copy_path::{CopyPath, CopyPathCounts};

/// The blocks that a sender uses in turn. perftest never changes its one buffer. A program that
/// owns its data needs at least two, one to fill and one being sent. More blocks than fit into the
/// caches would measure memory instead of messages.
const POOL_BLOCKS: u32 = 2;

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Bandwidth,
    Latency,
    /// Requests with answers.
    Rate,
}

/// The program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    /// perftest's `ib_send_lat` and `ib_write_bw`, which poll.
    Perftest,
    /// trespass over queue pairs, from the program's memory, with this number of requests in
    /// flight.
    InFlight(u32),
    /// trespass over queue pairs, from the program's memory.
    Copy,
    /// trespass over queue pairs, from blocks of the pool.
    Pool,
    /// trespass over TCP, from the program's memory.
    Tcp,
    /// Copies without a transport: by one process, by two, or by two of which one copies twice.
    Copies(Copies),
}

/// The number of copies of each byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copies {
    One,
    Two,
    Three,
}

impl Copies {
    /// The argument of the program `copies`.
    fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Two => "two",
            Self::Three => "three",
        }
    }
}

/// The carrier of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    Soft(CopyPath),
    /// The software device, with the path that it chooses.
    AnyPath,
    Sockets,
    /// Memory without a device.
    Memory,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RunResult {
    /// Messages per microsecond, microseconds, or requests per second.
    pub(super) figure: f64,
    /// The copy paths, if the software device carried the payload.
    pub(super) paths: Option<CopyPathCounts>,
    /// How often a receiver was not ready.
    pub(super) not_ready: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MessageRun {
    pub(super) tool: Tool,
    pub(super) measure: Measure,
    pub(super) carrier: Carrier,
    pub(super) size: u64,
    pub(super) iterations: u64,
    /// Whether trespass busy-polls while it waits. perftest always does.
    pub(super) polls: bool,
}

impl MessageRun {
    /// Runs a server and a client.
    pub(super) fn run(self, programs: &Programs, files: &Files) -> Result<RunResult> {
        let mut attempt = 1;
        loop {
            let ran = self.once(programs, files).with_context(|| format!("{self:?}"))?;
            match self.check(ran.paths) {
                Ok(()) => return Ok(ran),
                Err(error) if attempt == 5 => return Err(error),
                // The peer's memory was mapped late.
                Err(error) => eprintln!("bench trespass: {error:#}; again"),
            }
            attempt += 1;
        }
    }

    fn check(self, paths: Option<CopyPathCounts>) -> Result<()> {
        match (self.carrier, paths) {
            (Carrier::Soft(CopyPath::Slot), Some(paths)) => paths.must_be(CopyPath::Slot, "a short message"),
            (Carrier::Soft(path), Some(paths)) => paths.must_mostly_be(path),
            (Carrier::AnyPath, Some(_)) | (Carrier::Sockets | Carrier::Memory, None) => Ok(()),
            (carrier, paths) => {
                bail!("expected {carrier:?} to carry the payload, but the device reports {paths:?}")
            }
        }
        .with_context(|| format!("{self:?}"))
    }

    fn once(self, programs: &Programs, files: &Files) -> Result<RunResult> {
        if let Tool::Copies(copies) = self.tool {
            return self.copies(programs, copies);
        }
        let port = free_port()?;
        let mut client = self.command(programs, files, 1, port);
        client.arg("127.0.0.1");
        let (said, noted) = converse(programs, self.command(programs, files, 0, port), client, port)?;
        let soft = self.carrier != Carrier::Sockets;
        let paths = soft.then(|| CopyPathCounts::parse(&noted)).transpose()?;
        let not_ready = if soft { not_ready(&noted)? } else { 0 };
        Ok(RunResult { figure: self.read(&said)?, paths, not_ready })
    }

    /// The program starts the second process itself, if it needs one.
    fn copies(self, programs: &Programs, copies: Copies) -> Result<RunResult> {
        let mut command = Command::new(programs.path("copies"));
        command.arg(copies.word());
        let output = command.args([self.size.to_string(), self.iterations.to_string()]).output()?;
        let (said, noted) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{command:?} failed ({}): {noted}", output.status);
        Ok(RunResult { figure: self.read(&said)?, paths: None, not_ready: 0 })
    }

    fn command(self, programs: &Programs, files: &Files, side: usize, port: u16) -> Command {
        let mut command = match (self.tool, self.measure) {
            (Tool::Perftest, Measure::Bandwidth) => Command::new(PERFTEST),
            (Tool::Perftest, _) => Command::new("/usr/bin/ib_send_lat"),
            _ => Command::new(programs.path("stride-perf")),
        };
        match (self.tool, self.measure) {
            (Tool::Perftest, measure) => {
                command.arg("-F");
                if measure == Measure::Bandwidth {
                    // Without the column of the peak, which needs the time of each message.
                    command.arg("-N");
                }
                if self.carrier != Carrier::Soft(CopyPath::Vm) {
                    command.arg(format!("--mmap={}", files.0[side].display())).env("SOFT_RNIC_SHM", "1");
                }
            }
            (_, Measure::Bandwidth) => _ = command.args(["msg", "bw"]),
            (_, Measure::Latency) => _ = command.args(["msg", "lat"]),
            (_, Measure::Rate) => _ = command.args(["msg", "grid"]),
        }
        match self.tool {
            Tool::Perftest | Tool::Copies(_) => {}
            Tool::Copy => _ = command.args(["--transport", "rdma", "--api", "copy"]),
            Tool::InFlight(count) => {
                command.args(["--transport", "rdma", "--api", "copy", "-t", &count.to_string()]);
            }
            Tool::Pool => {
                command.args(["--transport", "rdma", "--api", "pool", "-t", &POOL_BLOCKS.to_string()]);
            }
            Tool::Tcp => _ = command.args(["--transport", "tcp", "--api", "copy"]),
        }
        if self.polls && self.tool != Tool::Perftest {
            command.arg("--poll");
        }
        let (size, iterations) = (self.size.to_string(), self.iterations.to_string());
        command.args(["-s", &size, "-n", &iterations, "-p", &port.to_string()]);
        programs.over_the_device(&mut command);
        command.env_remove("TRESPASS_TRANSPORT").env("SOFT_RNIC_LOG", "info").stdin(Stdio::null());
        command
    }

    /// The rate or the median, from the row of the client's table.
    fn read(self, said: &str) -> Result<f64> {
        let column = match (self.tool, self.measure) {
            (Tool::Perftest, _) | (_, Measure::Latency) => 4,
            (_, Measure::Bandwidth) => 3,
            (_, Measure::Rate) => 6,
        };
        let (size, iterations) = (self.size.to_string(), self.iterations.to_string());
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first() == Some(&size.as_str()) && words.get(1) == Some(&iterations.as_str()) {
                let value = words.get(column).and_then(|word| word.parse().ok()).filter(|value| *value > 0.0);
                return value.with_context(|| format!("not a measurement: {line}"));
            }
        }
        bail!("nothing was measured: {said}")
    }
}

/// The device's counter, summed over both processes.
fn not_ready(noted: &str) -> Result<u64> {
    let counts: Vec<u64> = noted
        .lines()
        .filter_map(|line| {
            line.split_once("soft-rnic: info: receivers that were not ready: ")?.1.parse().ok()
        })
        .collect();
    if counts.is_empty() {
        bail!("the device printed no count of receivers that were not ready: {noted}");
    }
    Ok(counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn the_row_of_the_size_is_read_from_both_tools_tables() {
        let run = |tool, measure| MessageRun {
            tool,
            measure,
            carrier: Carrier::AnyPath,
            size: 64,
            iterations: 1000,
            polls: false,
        };
        let ours =
            "# words\n#bytes       iterations\n64               1000      1.0      2.0      3.0      4.0\n";
        assert_eq!(run(Tool::Copy, Measure::Latency).read(ours).unwrap(), 3.0);
        assert_eq!(run(Tool::Tcp, Measure::Bandwidth).read(ours).unwrap(), 2.0);
        assert_eq!(run(Tool::Perftest, Measure::Bandwidth).read(ours).unwrap(), 3.0);
        let grid = "#bytes       iterations in-flight\n64               1000        16          1.0        2.0        3.0      123456\n";
        assert_eq!(
            run(Tool::Copies(Copies::Two), Measure::Bandwidth).read("64 1000 5.0 6.0\n").unwrap(),
            6.0
        );
        assert_eq!(run(Tool::InFlight(16), Measure::Rate).read(grid).unwrap(), 123_456.0);
        assert!(run(Tool::Copy, Measure::Latency).read("64 999 1 2 3 4").is_err());
        assert!(run(Tool::Copy, Measure::Latency).read("64 1000 1 2 0 4").is_err());
    }

    #[test]
    fn trespass_polls_where_it_is_told_to() {
        let (programs, files) =
            (Programs::as_they_are(Path::new("/")), Files([1, 2].map(|_| PathBuf::new())));
        let polls = |tool, polls| {
            let measure = Measure::Bandwidth;
            let run =
                MessageRun { tool, measure, carrier: Carrier::AnyPath, size: 64, iterations: 1000, polls };
            run.command(&programs, &files, 0, 1).get_args().any(|word| word == "--poll")
        };
        for tool in [Tool::Copy, Tool::Pool, Tool::InFlight(4)] {
            assert!(polls(tool, true) && !polls(tool, false), "{tool:?}");
        }
        assert!(!polls(Tool::Perftest, true) && !polls(Tool::Tcp, false));
    }

    #[test]
    fn receivers_that_were_not_ready_are_those_of_both_sides() {
        let said = |count: u64| format!("64 1000 1soft-rnic: info: receivers that were not ready: {count}\n");
        assert_eq!(not_ready(&(said(0) + "words\n" + &said(3))).unwrap(), 3);
        assert!(not_ready("words").is_err());
    }

    #[test]
    fn a_run_over_another_path_gives_no_figure() {
        let run = MessageRun {
            tool: Tool::Pool,
            measure: Measure::Bandwidth,
            carrier: Carrier::Soft(CopyPath::Direct),
            size: 64,
            iterations: 1000,
            polls: true,
        };
        let paths = |direct: u32, vm: u32| {
            let line = format!(
                "soft-rnic: info: payload of messages: 0 within the process, {direct} by shared memory, {vm} by process_vm, 0 by the owner"
            );
            Some(CopyPathCounts::parse(&line).unwrap())
        };
        assert!(run.check(paths(1000, 3)).is_ok());
        assert!(run.check(paths(1000, 300)).is_err() && run.check(None).is_err());
        assert!(MessageRun { carrier: Carrier::Sockets, ..run }.check(None).is_ok());
        assert!(MessageRun { carrier: Carrier::Sockets, ..run }.check(paths(1, 0)).is_err());
        assert!(MessageRun { carrier: Carrier::Soft(CopyPath::Slot), ..run }.check(paths(1000, 0)).is_err());
    }
}
