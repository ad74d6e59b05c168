//! `cargo xtask bench rails`: one trespass connection over several software devices, compared with
//! one over a single device.
//!
//! A fault rule limits the rate of each device, so that the limits are the bottleneck and not the
//! processors. Two runs of the same kind stand next to each ratio.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use test_harness::free_port;

use super::document::{today, wrapped};
use super::perftest::pair::converse;
use super::programs::Programs;
use super::rounds::{Better, Bound, Round, compare};
use super::statistics::median;

/// Bytes of a long message and of a short one.
const LONG: u64 = 1 << 20;
const SHORT: u64 = 64;
/// Short messages have the best of this number of runs, and each takes these seconds. On a machine
/// with other work a side sleeps in some runs and polls in others.
const SHORT_RUNS: usize = 5;
const SHORT_SECONDS: &str = "0.3";
/// The seconds of a run in which a port goes down. The last ones must be those after its return.
const RECOVERY_SECONDS: &str = "12";
/// The fault has happened in a second whose rate is below this part of the earlier ones. The port
/// of one of two equal devices is down for half a second, which costs a quarter of a second's bytes,
/// in at most two rows.
const DIP: f64 = 0.9;
/// The number of seconds at the end of a run that must have the rate of those before the fault.
const AFTER: usize = 3;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The number of rounds (one device, several, one again) for each row
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The seconds of a run of long messages, except for those in which a port goes down
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Use the program of the last build
    #[arg(long)]
    no_build: bool,
    /// Measure only the rows with these words in their titles
    #[arg(long)]
    row: Option<String>,
}

/// A row of the table.
struct Row {
    title: &'static str,
    /// What the figures of the reference are.
    reference: &'static str,
    unit: Unit,
    bound: Bound,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// A connection over all devices, against the sum of connections over these single ones. The
    /// limits are in Gb/s, one for each device; none are unlimited.
    Several { devices: usize, limits: &'static [u32], alone: &'static [usize] },
    /// The seconds after a fault of one of two devices, against those before it.
    Recovery { faulty: Faulty },
}

/// The process in which the port of one of two devices goes down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Faulty {
    Sender,
    Receiver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Gbps,
    Microseconds,
    MessageRate,
}

const ROWS: [Row; 8] = [
    Row {
        title: "2 + 2 Gb/s",
        reference: "2 Gb/s",
        unit: Unit::Gbps,
        bound: Bound::Times(1.9),
        kind: Kind::Several { devices: 2, limits: &[2, 2], alone: &[0] },
    },
    Row {
        title: "2 + 8 Gb/s",
        reference: "the sum of each alone",
        unit: Unit::Gbps,
        bound: Bound::Times(0.95),
        kind: Kind::Several { devices: 2, limits: &[2, 8], alone: &[0, 1] },
    },
    Row {
        title: "8 + 2 Gb/s",
        reference: "the sum of each alone",
        unit: Unit::Gbps,
        bound: Bound::Times(0.95),
        kind: Kind::Several { devices: 2, limits: &[8, 2], alone: &[0, 1] },
    },
    Row {
        title: "2 + 2 + 2 Gb/s",
        reference: "2 Gb/s",
        unit: Unit::Gbps,
        bound: Bound::None,
        kind: Kind::Several { devices: 3, limits: &[2, 2, 2], alone: &[0] },
    },
    Row {
        title: "two without a limit, latency of 64 bytes",
        reference: "one",
        unit: Unit::Microseconds,
        bound: Bound::None,
        kind: Kind::Several { devices: 2, limits: &[], alone: &[0] },
    },
    Row {
        title: "two without a limit, messages of 64 bytes",
        reference: "one",
        unit: Unit::MessageRate,
        bound: Bound::None,
        kind: Kind::Several { devices: 2, limits: &[], alone: &[0] },
    },
    Row {
        title: "2 + 2 Gb/s, after a port of the sender was down",
        reference: "before",
        unit: Unit::Gbps,
        bound: Bound::Times(0.98),
        kind: Kind::Recovery { faulty: Faulty::Sender },
    },
    Row {
        title: "2 + 2 Gb/s, after a port of the receiver was down",
        reference: "before",
        unit: Unit::Gbps,
        bound: Bound::Times(0.98),
        kind: Kind::Recovery { faulty: Faulty::Receiver },
    },
];

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Gbps => "Gb/s",
            Self::Microseconds => "us",
            Self::MessageRate => "M/s",
        }
    }

    fn better(self) -> Better {
        if self == Self::Microseconds { Better::Less } else { Better::More }
    }

    fn best(self, figures: Vec<f64>) -> f64 {
        let figures = figures.into_iter();
        match self.better() {
            Better::More => figures.fold(f64::NEG_INFINITY, f64::max),
            Better::Less => figures.fold(f64::INFINITY, f64::min),
        }
    }

    fn size(self) -> u64 {
        if self == Self::Gbps { LONG } else { SHORT }
    }

    fn measure(self) -> &'static str {
        if self == Self::Microseconds { "lat" } else { "bw" }
    }

    /// The column of stride-perf's row: the bandwidth, the median, or the message rate.
    fn column(self) -> usize {
        match self {
            Self::Gbps => 2,
            Self::Microseconds => 4,
            Self::MessageRate => 3,
        }
    }
}

impl Faulty {
    fn device(self) -> &'static str {
        match self {
            Self::Sender => "soft0",
            Self::Receiver => "soft1",
        }
    }

    /// The request of that process at which the port goes down, a few seconds after the start. The
    /// receiver READs the messages in parts, and the sender has fewer requests. Nearly all of these
    /// go over the first device.
    fn nth(self) -> u32 {
        match self {
            Self::Sender => 5000,
            Self::Receiver => 9000,
        }
    }
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let programs = Programs::as_they_are(root);
    if !args.no_build {
        programs.cargo(&["--package", "stride", "--bins"])?;
    }
    let mut body = String::from(
        "| one connection over | against | reference | several | unit | times | reference against itself | at least |\n\
         | --- | --- | ---: | ---: | --- | ---: | ---: | ---: |\n",
    );
    let wanted = args.row.as_deref().unwrap_or_default();
    for row in ROWS.iter().filter(|row| row.title.contains(wanted)) {
        let mut rounds = Vec::new();
        for position in 0..args.rounds {
            match row.round(position, args.seconds, &programs).with_context(|| row.title)? {
                Some(round) => rounds.push(round),
                None => {
                    eprintln!("bench rails: {}: no fault was seen, so a round is left out", row.title)
                }
            }
        }
        row.write(&mut body, &rounds)?;
    }
    let intro = format!(
        "{}, {} processors, `stride-perf msg` over software devices. The figures of 1 MiB are of devices whose rate a fault rule limits, \
         those of 64 bytes the best of {SHORT_RUNS} runs of {SHORT_SECONDS} s. Medians of {} rounds; in brackets the 95 % bootstrap \
         interval of the geometric mean. A bound that is missed is marked.\n\n    cargo xtask bench rails --rounds {} --seconds {}\n",
        today(),
        std::thread::available_parallelism()?,
        args.rounds,
        args.rounds,
        args.seconds,
    );
    println!("{}\n\n{body}", wrapped(&intro));
    Ok(ExitCode::SUCCESS)
}

impl Row {
    /// `None` if a port should have gone down, and the log or the rates do not show it.
    fn round(&self, position: u32, seconds: u32, programs: &Programs) -> Result<Option<Round>> {
        match self.kind {
            Kind::Several { devices, limits, alone } => {
                let run = |used: &[usize]| self.best(devices, limits, used, seconds, programs);
                let all: Vec<usize> = (0..devices).collect();
                Round::take(position, |several| {
                    if several { run(&all) } else { alone.iter().map(|device| run(&[*device])).sum() }
                })
                .map(Some)
            }
            Kind::Recovery { faulty } => recovery(programs, faulty),
        }
    }

    /// The figure of a connection over these devices: of one long run, or the best of short ones.
    fn best(
        &self,
        devices: usize,
        limits: &[u32],
        used: &[usize],
        seconds: u32,
        programs: &Programs,
    ) -> Result<f64> {
        let seconds = seconds.to_string();
        let (runs, seconds) =
            if self.unit == Unit::Gbps { (1, &*seconds) } else { (SHORT_RUNS, SHORT_SECONDS) };
        let mut figures = Vec::new();
        for _ in 0..runs {
            let mut command = stride(programs, self.unit, seconds, devices, used);
            command.env("SOFT_RNIC_FAULTS", rules(limits)).arg("--loopback");
            let output = command.output().context("cannot run stride-perf")?;
            let said = String::from_utf8_lossy(&output.stdout);
            let wrong = || format!("{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
            ensure!(output.status.success(), "{}", wrong());
            figures.push(figure(&said, self.unit).with_context(wrong)?);
        }
        Ok(self.unit.best(figures))
    }

    fn write(&self, body: &mut String, rounds: &[Round]) -> Result<()> {
        if rounds.is_empty() {
            return Ok(());
        }
        let (times, noise) = compare(rounds, self.unit.better());
        let column = |value: fn(&Round) -> f64| median(rounds.iter().map(value).collect());
        writeln!(
            body,
            "| {} | {} | {:.2} | {:.2} | {} | {:.2} ({:.2} to {:.2}){} | {:.2} | {} |",
            self.title,
            self.reference,
            column(|round| (round.reference * round.again).sqrt()),
            column(|round| round.ours),
            self.unit.name(),
            times.mean,
            times.low,
            times.high,
            self.bound.verdict(times, noise),
            noise.mean,
            self.bound,
        )?;
        Ok(())
    }
}

/// One run, in which a port of one process goes down for half a second.
fn recovery(programs: &Programs, faulty: Faulty) -> Result<Option<Round>> {
    let port = free_port()?;
    let side = |is_faulty| {
        let mut command = stride(programs, Unit::Gbps, RECOVERY_SECONDS, 2, &[0, 1]);
        let mut faults = rules(&[2, 2]);
        if is_faulty {
            write!(faults, "; port_down=500ms device={} nth={}", faulty.device(), faulty.nth())?;
        }
        // Retries run out at once.
        command.env("SOFT_RNIC_FAULTS", faults).env("SOFT_RNIC_TIME_SCALE", "0.01");
        command.env("TRESPASS_LOG", "info").args(["-p", &port.to_string()]);
        Ok::<_, std::fmt::Error>(command)
    };
    let (server, mut client) = (side(faulty == Faulty::Receiver)?, side(faulty == Faulty::Sender)?);
    client.arg("127.0.0.1");
    let (_, noted) = converse(programs, server, client, port)?;
    let has_failed = noted.contains("event=PortError");
    Ok(before_and_after(&seconds(&noted)).filter(|_| has_failed))
}

/// stride-perf over these devices of `devices`.
fn stride(programs: &Programs, unit: Unit, seconds: &str, devices: usize, used: &[usize]) -> Command {
    let mut command = Command::new(programs.path("stride-perf"));
    command.args(["msg", unit.measure(), "--transport", "rdma"]);
    command.args(["-s", &unit.size().to_string(), "-D", seconds]);
    if unit == Unit::Microseconds {
        command.arg("--poll");
    }
    let used: Vec<String> = used.iter().map(|device| format!("soft{device}")).collect();
    command.env("SIDEWAY_PROVIDER", "soft").env("SOFT_RNIC_DEVICES", devices.to_string());
    command.env("TRESPASS_DEV", used.join(",")).env_remove("TRESPASS_TRANSPORT");
    command.env("SOFT_RNIC_FABRIC", format!("bench.{}", std::process::id())).stdin(Stdio::null());
    command
}

/// The fault rules that limit the devices, in Gb/s.
fn rules(limits: &[u32]) -> String {
    let rules = limits.iter().enumerate();
    rules
        .map(|(device, limit)| format!("rate={limit}Gb/s device=soft{device}"))
        .collect::<Vec<_>>()
        .join("; ")
}

/// The figure of stride-perf's only row.
fn figure(said: &str, unit: Unit) -> Option<f64> {
    let row = said.lines().find(|line| !line.starts_with('#'))?;
    let words: Vec<&str> = row.split_whitespace().collect();
    let is_asked = words.first()?.parse() == Ok(unit.size());
    words.get(unit.column())?.parse().ok().filter(|figure| is_asked && *figure > 0.0)
}

/// The rates of the seconds, in Gb/s, from the lines that stride-perf prints while it measures:
/// `1048576 bytes, 3 s: 3.9597 Gb/s, 472 ops/s`.
fn seconds(noted: &str) -> Vec<f64> {
    let rate = |line: &str| line.split_once(" s: ")?.1.split_once(" Gb/s")?.0.parse().ok();
    noted.lines().filter_map(rate).collect()
}

/// The seconds before the fault in two halves, and the last seconds. The first second does not
/// count, because the second device joins during it. `None` if the rate never fell, or fell too
/// early or too late.
fn before_and_after(seconds: &[f64]) -> Option<Round> {
    let counted = seconds.get(1..)?;
    let is_dip = |at: &usize| counted[*at] < DIP * median(counted[..*at].to_vec());
    let at = (2..counted.len()).find(is_dip)?;
    // The first second after the fault may still be its.
    let after = counted.get(at + 2..).filter(|rows| rows.len() >= AFTER)?;
    let mean = |rows: &[f64]| rows.iter().sum::<f64>() / rows.len() as f64;
    let (first, second) = counted[..at].split_at(at / 2);
    Some(Round { reference: mean(first), ours: mean(&after[after.len() - AFTER..]), again: mean(second) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_of_each_measurement_is_read() {
        let bandwidth =
            "# words\n#bytes iterations Gb/s Mpps\n1048576             457       3.9751     0.000474\n";
        assert_eq!(figure(bandwidth, Unit::Gbps), Some(3.9751));
        assert_eq!(figure(bandwidth, Unit::MessageRate), None);
        let rate = "# words\n64             3742289       1.8722     3.656737\n";
        assert_eq!(figure(rate, Unit::MessageRate), Some(3.656_737));
        let latency = "#bytes\n64 24353 11.668 20.529 11.805 11.978 46.014 1944.581 3804.658 115.014\n";
        assert_eq!(figure(latency, Unit::Microseconds), Some(11.805));
        assert_eq!(figure("# words\n", Unit::Gbps), None);
    }

    #[test]
    fn the_best_latency_is_the_shortest() {
        assert_eq!(Unit::Microseconds.best(vec![12.0, 0.5, 0.6]), 0.5);
        assert_eq!(Unit::MessageRate.best(vec![3.0, 3.5]), 3.5);
    }

    #[test]
    fn each_device_has_a_rule() {
        assert_eq!(rules(&[2, 8]), "rate=2Gb/s device=soft0; rate=8Gb/s device=soft1");
        assert_eq!(rules(&[]), "");
    }

    #[test]
    fn seconds_are_read_in_their_order() {
        let noted = "messages bw of 1048576 bytes, 6 s, over RDMA (soft0)\n1048576 bytes, 1 s: 3.6901 Gb/s, 440 ops/s\n\
                     serving 127.0.0.1:42888\n1048576 bytes, 2 s: 3.9261 Gb/s, 468 ops/s\n";
        assert_eq!(seconds(noted), [3.6901, 3.9261]);
    }

    #[test]
    fn the_last_seconds_stand_against_those_before_the_fault() {
        let recovered = [3.0, 4.0, 4.0, 3.9, 4.1, 2.5, 2.1, 3.0, 4.0, 4.0, 4.0];
        assert_eq!(before_and_after(&recovered), Some(Round { reference: 4.0, ours: 4.0, again: 4.0 }));
        let lost = [3.0, 4.0, 4.0, 2.5, 2.0, 2.0, 2.0, 2.0];
        assert_eq!(before_and_after(&lost), Some(Round { reference: 4.0, ours: 2.0, again: 4.0 }));
    }

    #[test]
    fn a_run_without_a_dip_or_with_a_late_one_is_left_out() {
        assert_eq!(before_and_after(&[3.0, 4.0, 4.0, 3.9, 4.1, 4.0, 4.0, 4.0]), None);
        assert_eq!(before_and_after(&[3.0, 4.0, 4.0, 4.0, 4.0, 2.0, 2.0]), None);
        assert_eq!(before_and_after(&[]), None);
    }

    #[test]
    fn a_row_shows_a_missed_bound_and_none_without_rounds() {
        let said = |ours| {
            let rounds = [Round { reference: 2.0, ours, again: 2.0 }; 2];
            let mut body = String::new();
            ROWS[0].write(&mut body, &rounds).unwrap();
            body
        };
        assert_eq!(
            said(3.0),
            "| 2 + 2 Gb/s | 2 Gb/s | 2.00 | 3.00 | Gb/s | 1.50 (1.50 to 1.50) **missed** | 1.00 | 1.90 |\n"
        );
        assert!(!said(3.9).contains("missed"));
        let mut body = String::new();
        ROWS[7].write(&mut body, &[]).unwrap();
        assert_eq!(body, "");
        let slower = [Round { reference: 10.0, ours: 20.0, again: 10.0 }; 2];
        ROWS[4].write(&mut body, &slower).unwrap();
        assert!(body.contains("| us | 0.50 (0.50 to 0.50) | 1.00 | - |"), "{body}");
    }
}
