//! stride-perf against the distribution's perftest, server and client as two processes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::statistics::{bootstrap, median};
use super::way::{Way, Ways};
use crate::bench::callgrind::Counts;
use crate::bench::programs::Programs;

/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Bandwidth,
    Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Perftest,
    Stride,
}

/// By message size: a million messages a second, or microseconds.
type Figures = BTreeMap<u64, f64>;

pub(super) fn compare(programs: &Programs, pairs: u32) -> Result<String> {
    let bench = Bench { programs, files: Files::new()? };
    let mut report = String::from(
        "stride-perf against perftest, 2 bytes to 8 MiB (above 1: stride-perf is better; in brackets the 95 % bootstrap \
         interval of the geometric mean):\n\n| test | way of both | stride-perf / perftest | perftest / perftest | |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    let mut details = String::from("\n| test | way | bytes | perftest | stride-perf | unit | ratio |\n");
    details.push_str("| --- | --- | ---: | ---: | ---: | --- | ---: |\n");
    for measure in [Measure::Bandwidth, Measure::Latency] {
        for way in [Way::Direct, Way::Vm] {
            let rounds = bench.rounds(measure, way, pairs)?;
            let ratios = |of: fn(&Round) -> &Figures| -> Vec<Vec<f64>> {
                rounds.iter().map(|round| measure.better(of(round), &round.perftest)).collect()
            };
            let (ours, noise) = (bootstrap(&ratios(|r| &r.stride)), bootstrap(&ratios(|r| &r.again)));
            let verdict = if ours.high >= noise.low { "" } else { "**missed**" };
            writeln!(
                report,
                "| {} | {way} | {:.3} ({:.3} to {:.3}) | {:.3} ({:.3} to {:.3}) | {verdict} |",
                measure.title(),
                ours.mean,
                ours.low,
                ours.high,
                noise.mean,
                noise.low,
                noise.high
            )?;
            for size in [2, 64, 4096, 65536, 1 << 20, 8 << 20] {
                let column = |of: fn(&Round) -> &Figures| {
                    median(rounds.iter().filter_map(|round| of(round).get(&size).copied()).collect())
                };
                let (a, b) = (column(|r| &r.perftest), column(|r| &r.stride));
                let ratio = if measure == Measure::Bandwidth { b / a } else { a / b };
                let (title, unit) = (measure.title(), measure.unit());
                writeln!(details, "| {title} | {way} | {size} | {a:.4} | {b:.4} | {unit} | {ratio:.3} |")?;
            }
        }
    }
    report.push_str(&details);
    let (a, b) = (bench.instructions(Tool::Perftest)?, bench.instructions(Tool::Stride)?);
    let verdict = if b <= a { "" } else { " **missed**" };
    writeln!(
        report,
        "\nInstructions a message in the timed loop (write bw, 64 bytes; the program alone, without libibverbs and the C \
         library): perftest {a:.1}, stride-perf {b:.1}{verdict}."
    )?;
    Ok(report)
}

impl Measure {
    fn title(self) -> &'static str {
        match self {
            Self::Bandwidth => "write bw",
            Self::Latency => "write lat, median",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "M messages/s",
            Self::Latency => "us",
        }
    }

    /// Size by size, above 1 where `this` is better than `that`.
    fn better(self, this: &Figures, that: &Figures) -> Vec<f64> {
        let ratio = |(size, that): (&u64, &f64)| {
            let this = this.get(size)?;
            Some(if self == Self::Bandwidth { this / that } else { that / this })
        };
        that.iter().filter_map(ratio).collect()
    }
}

/// What was run together.
struct Round {
    perftest: Figures,
    stride: Figures,
    again: Figures,
}

struct Bench<'a> {
    programs: &'a Programs,
    files: Files,
}

impl Bench<'_> {
    /// In turns; who goes first changes.
    fn rounds(&self, measure: Measure, way: Way, pairs: u32) -> Result<Vec<Round>> {
        let run = |tool| self.run(tool, measure, way);
        (0..pairs)
            .map(|pair| {
                let (mut perftest, mut stride, mut again) = (None, None, None);
                for turn in 0..3 {
                    match (turn + pair) % 3 {
                        0 => perftest = Some(run(Tool::Perftest)?),
                        1 => stride = Some(run(Tool::Stride)?),
                        _ => again = Some(run(Tool::Perftest)?),
                    }
                }
                let missing = "a turn was left out";
                Ok(Round {
                    perftest: perftest.context(missing)?,
                    stride: stride.context(missing)?,
                    again: again.context(missing)?,
                })
            })
            .collect()
    }

    fn run(&self, tool: Tool, measure: Measure, way: Way) -> Result<Figures> {
        let iterations = if measure == Measure::Bandwidth { "2000" } else { "500" };
        let what = format!("{tool:?} {measure:?} {way}");
        let arguments = ["-a", "-n", iterations];
        let client = self.pair(|| None, tool, measure, way, &arguments).with_context(|| what.clone())?;
        // The columns of the rate, or of the median.
        let column = match (tool, measure) {
            (Tool::Stride, Measure::Bandwidth) => 3,
            _ => 4,
        };
        let mut figures = Figures::new();
        for line in client.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(size) = words.first().and_then(|word| word.parse::<u64>().ok()) else { continue };
            if !size.is_power_of_two() || words.get(1) != Some(&iterations) {
                continue;
            }
            // What the device says when it is closed may follow on the same line.
            let value = words.get(column).map(|word| word.trim_end_matches("soft-rnic:"));
            figures
                .insert(size, value.and_then(|v| v.parse().ok()).with_context(|| format!("{what}: {line}"))?);
        }
        ensure!(figures.len() == 23, "{what}: {} sizes in: {client}", figures.len());
        ensure!(figures.values().all(|value| *value > 0.0), "{what}: nothing was measured: {client}");
        Ok(figures)
    }

    /// Instructions of the client's program a message.
    fn instructions(&self, tool: Tool) -> Result<f64> {
        let out = self.programs.folder().join(format!("callgrind.{}.out", std::process::id()));
        let mut runs = Vec::new();
        for iterations in ["10000", "20000"] {
            let valgrind = || {
                let mut valgrind = Command::new("valgrind");
                valgrind.args(["--quiet", "--tool=callgrind"]);
                valgrind.arg(format!("--callgrind-out-file={}", out.display()));
                Some(valgrind)
            };
            let arguments = ["-s", "64", "-n", iterations];
            self.pair(valgrind, tool, Measure::Bandwidth, Way::Direct, &arguments)?;
            runs.push(Counts::parse(&std::fs::read_to_string(&out)?)?);
            std::fs::remove_file(&out)?;
        }
        let program = self.program(tool, Measure::Bandwidth);
        Ok(runs[1].more_than(&runs[0], 10_000).of_object(&program))
    }

    /// Runs a server and a client; what the client said. Both must have taken the way: where the peer's memory came
    /// to be mapped so late that many messages had gone another one, they run again.
    fn pair(
        &self,
        under: impl Fn() -> Option<Command>,
        tool: Tool,
        measure: Measure,
        way: Way,
        arguments: &[&str],
    ) -> Result<String> {
        let mut attempt = 1;
        loop {
            let (said, ways) = self.pair_once(under(), tool, measure, way, arguments)?;
            match ways.must_be(way, &format!("{tool:?} {measure:?}")) {
                Ok(()) => return Ok(said),
                Err(error) if attempt == 3 => return Err(error),
                Err(error) => eprintln!("bench soft: {error:#}; again"),
            }
            attempt += 1;
        }
    }

    fn pair_once(
        &self,
        under: Option<Command>,
        tool: Tool,
        measure: Measure,
        way: Way,
        arguments: &[&str],
    ) -> Result<(String, Ways)> {
        let port = free_port()?;
        let program = self.program(tool, measure);
        let command = |under: Option<Command>, side: usize, host: &[&str]| -> Command {
            let mut command = match under {
                Some(mut command) => {
                    command.arg(&program);
                    command
                }
                None => Command::new(&program),
            };
            match (tool, measure) {
                (Tool::Stride, Measure::Bandwidth) => _ = command.args(["write", "bw"]),
                (Tool::Stride, Measure::Latency) => _ = command.args(["write", "lat"]),
                // Without the column of the peak, which takes the time of each message.
                (Tool::Perftest, Measure::Bandwidth) => _ = command.args(["-F", "-N"]),
                (Tool::Perftest, Measure::Latency) => _ = command.arg("-F"),
            }
            match (tool, way) {
                (Tool::Stride, Way::Direct) => _ = command.args(["--buffer", "shared"]),
                (Tool::Stride, _) => _ = command.args(["--buffer", "malloc"]),
                (Tool::Perftest, Way::Direct) => {
                    command.arg(format!("--mmap={}", self.files.0[side].display()));
                    command.env("SOFT_RNIC_SHM", "1");
                }
                (Tool::Perftest, _) => {}
            }
            command.args(arguments).args(["-p", &port.to_string()]).args(host);
            self.programs.over_the_device(&mut command);
            command.env("SOFT_RNIC_LOG", "info").stdin(Stdio::null());
            command
        };
        let mut server =
            Running::start(command(None, 0, &[]), self.programs.folder().join("bench-server.log"))?;
        while !listens(port)? {
            server.check()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        let client = Running::start(
            command(under, 1, &["127.0.0.1"]),
            self.programs.folder().join("bench-client.log"),
        )?;
        let (said, answered) = (client.finish()?, server.finish()?);
        let ways = Ways::parse(&(said.1 + &answered.1))?;
        Ok((said.0, ways))
    }

    fn program(&self, tool: Tool, measure: Measure) -> PathBuf {
        match (tool, measure) {
            (Tool::Stride, _) => self.programs.path("stride-perf"),
            (Tool::Perftest, Measure::Bandwidth) => "/usr/bin/ib_write_bw".into(),
            (Tool::Perftest, Measure::Latency) => "/usr/bin/ib_write_lat".into(),
        }
    }
}

/// A process that ends in time, or is ended.
struct Running {
    child: Child,
    log: PathBuf,
    start: Instant,
}

impl Running {
    fn start(mut command: Command, log: PathBuf) -> Result<Self> {
        // Two files: in one, a warning may stand in the middle of a row.
        command.stdout(File::create(&log)?).stderr(File::create(log.with_extension("err"))?);
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {command:?}: install perftest, and valgrind"))?;
        Ok(Self { child, log, start: Instant::now() })
    }

    /// Fails if the process has failed or takes too long; whether it has ended.
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
            std::thread::sleep(Duration::from_millis(5));
        }
        self.said()
    }

    /// On standard output and error.
    fn said(&self) -> Result<(String, String)> {
        let read = std::fs::read_to_string::<&std::path::Path>;
        Ok((read(&self.log)?, read(&self.log.with_extension("err"))?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended already, unless something failed.
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
        let _ = std::fs::remove_file(self.log.with_extension("err"));
    }
}

/// Two files in shared memory, which perftest maps instead of allocating.
struct Files([PathBuf; 2]);

impl Files {
    fn new() -> Result<Self> {
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

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("0.0.0.0", 0))?.local_addr()?.port())
}

/// Whether anybody listens there, without disturbing them.
fn listens(port: u16) -> Result<bool> {
    let listens = |table: &str| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        let local = format!(":{port:04X}");
        table.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1).is_some_and(|word| word.ends_with(&local)) && words.get(3) == Some(&"0A")
        })
    };
    Ok(listens("/proc/net/tcp") || listens("/proc/net/tcp6"))
}
