//! trespass compared with rstream, UCX and perftest over SoftRoCE, in a guest.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::SoftroceArgs;
use crate::bench::document::{Section, today};
use crate::bench::rounds::{Better, Bound, NamedRounds, Round, compare, parse};
use crate::bench::statistics::median;
use crate::softroce::Profile;

/// The script that runs in the guest.
const SCRIPT: &str = include_str!("softroce.sh");

/// The duration of a run in an emulated guest, in microseconds.
const RUN: u32 = 500_000;

const SIZES: &str = "64 256 1024 4096 16384 65536 262144 1048576 4194304";
const QUICK_SIZES: &str = "64 65536";

/// The prefix of rows in which no side is trespass.
const BARE: &str = "bare";

/// The output of the guest's script.
struct ScriptOutput {
    rows: Vec<NamedRounds>,
    /// How often a receiver was not ready, by the row's name without its reference.
    not_ready: Vec<(String, u64)>,
    /// The comparisons that were not possible, a sentence for each.
    without: Vec<String>,
    /// The versions of the references; the last line counts.
    versions: String,
}

pub(super) fn run(root: &Path, args: &SoftroceArgs, dry_run: bool) -> Result<ExitCode> {
    let (machine, programs, mut job) = args.machine.prepare(root, Profile::Release)?;
    if !args.no_build {
        programs.build_package("stride")?;
    }
    let (pairs, run, sizes) = if args.quick { (1, RUN / 10, QUICK_SIZES) } else { (args.pairs, RUN, SIZES) };
    job.command = format!("PAIRS={pairs}\nRUN={run}\nSIZES={sizes:?}\n{SCRIPT}");
    let mut output = Vec::new();
    let ran = machine.run(&job, &mut output, &mut io::stderr())?;
    let said = ScriptOutput::parse(&String::from_utf8_lossy(&output))?;
    ensure!(!said.versions.is_empty(), "the guest did not finish; see its messages above");
    let body = said.table()?;
    println!("{body}");
    if !dry_run && !args.quick {
        let intro = format!(
            "{}, on {}, {}, stride-perf {}. Server and client are two processes over one device. Geometric means of {pairs} ratios of \
             interleaved runs, in brackets the 95 % bootstrap interval; above 1 trespass is better, and it is better where its whole interval \
             is above 1 and above that of the reference against itself. A row is missed where its whole interval is below the bound. Latency is half \
             a round trip: the median, against rstream and TCP the mean. All poll: perftest, rstream and UCX by themselves, trespass by `--poll`; \
             its TCP driver sleeps. Corked, short messages share frames (`--cork`). Without that each is one packet, as with rstream and UCX. \
             The rows of ib_send_lat and ib_send_bw are perftest's, beside the same: what bare verbs do. RNR is how often, in all runs of trespass for the row, the device met a receiver that was not ready.\n\n    cargo xtask bench trespass softroce {} --pairs {pairs}",
            today(),
            machine.title(&ran),
            said.versions,
            env!("CARGO_PKG_VERSION"),
            args.machine.flag(),
        );
        let name = format!("trespass softroce {}", args.machine.rdma_core());
        Section { name: &name, title: "trespass over SoftRoCE", intro: &intro, body: &body }.write(root)?;
    }
    super::ensure_ready(said.not_ready.iter().map(|run| run.1).sum())?;
    Ok(ran.outcome.exit_code())
}

/// A row, by its name in the script: `lat 64 rstream`.
struct ScriptRow {
    what: String,
    against: String,
    unit: &'static str,
    better: Better,
    bound: Bound,
}

impl ScriptRow {
    fn named(name: &str) -> Result<Self> {
        let words: Vec<&str> = name.split(' ').collect();
        let [kind, size, against] = words[..] else { bail!("not a row: {name}") };
        let bound = match (kind, against) {
            ("send", "perftest") => Bound::Times(1.0 / 1.3),
            ("pool", "perftest") => Bound::Times(0.95),
            ("copy", "perftest") => Bound::Times(0.6),
            ("rate", "rstream") => Bound::Times(2.0),
            ("step", _) => Bound::Times(super::NO_COLLAPSE),
            ("lat" | "bw" | "cork", "rstream" | "ucx") | ("poollat" | "poolbw", "ucx") => Bound::Better,
            ("lat" | "bw", "tcp") | ("barelat" | "barebw", "rstream" | "ucx") => Bound::None,
            _ => bail!("not a row: {name}"),
        };
        let (what, unit) = match kind {
            "send" | "lat" => (format!("latency, {size} bytes"), "us"),
            "poollat" => (format!("latency, pool's buffers, {size} bytes"), "us"),
            "pool" | "poolbw" => (format!("bandwidth, pool's buffers, {size} bytes"), "Gb/s"),
            "copy" | "bw" => (format!("bandwidth, copying, {size} bytes"), "Gb/s"),
            "cork" => (format!("bandwidth, corked, {size} bytes"), "Gb/s"),
            "barelat" => (format!("latency of `ib_send_lat`, {size} bytes"), "us"),
            "barebw" => (format!("bandwidth of `ib_send_bw`, {size} bytes"), "Gb/s"),
            "rate" => (format!("rate, {size} bytes, 64 in flight"), "/s"),
            _ => (format!("rate, 64 bytes, {size} in flight"), "/s"),
        };
        let against = match (kind, against) {
            ("send", "perftest") => "`ib_send_lat`, polled",
            (_, "perftest") => "`ib_write_bw`",
            (_, "rstream") => "`rstream`",
            ("lat" | "poollat" | "barelat", "ucx") => "UCX `tag_lat`",
            (_, "ucx") => "UCX `tag_bw`",
            (_, "tcp") => "its TCP driver",
            (_, fewer) => &format!("{fewer} in flight"),
        };
        let better = if unit == "us" { Better::Less } else { Better::More };
        Ok(Self { what, against: against.to_owned(), unit, better, bound })
    }

    /// `not_ready` of programs other than trespass does not matter.
    fn line(&self, rounds: &[Round], not_ready: Option<u64>) -> String {
        let Self { what, against, unit, better, bound } = self;
        let (times, noise) = compare(rounds, *better);
        let theirs = median(rounds.iter().flat_map(|round| [round.reference, round.again]).collect());
        let ours = median(rounds.iter().map(|round| round.ours).collect());
        let ready = match not_ready {
            None => "-".to_owned(),
            Some(0) => "0".to_owned(),
            Some(times) => format!("{times} **missed**"),
        };
        let noise_text = match bound {
            Bound::None => "-".to_owned(),
            _ => format!("{:.2} ({:.2} to {:.2})", noise.mean, noise.low, noise.high),
        };
        format!(
            "| {what} | {against} | {} | {} | {unit} | {:.2} ({:.2} to {:.2}){} | {noise_text} | {bound} | {ready} |",
            figure(theirs),
            figure(ours),
            times.mean,
            times.low,
            times.high,
            bound.verdict(times, noise),
        )
    }
}

fn figure(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

impl ScriptOutput {
    /// Parses samples, lines `rnr ROW COUNT` and `without WORDS`, and `versions WORDS`.
    fn parse(output: &str) -> Result<Self> {
        let (mut samples, mut not_ready) = (String::new(), Vec::new());
        let (mut without, mut versions) = (Vec::new(), String::new());
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["rnr", row, count] => {
                    let count = count.parse().with_context(|| format!("no count: {line}"))?;
                    not_ready.push((row.replace('_', " "), count));
                }
                ["without", ..] => without.push(format!("**{line}.**")),
                ["versions", ..] => line["versions".len()..].trim().clone_into(&mut versions),
                _ => samples += &format!("{line}\n"),
            }
        }
        Ok(Self { rows: parse(&samples)?, not_ready, without, versions })
    }

    fn not_ready_of(&self, name: &str) -> Result<u64> {
        let runs: Vec<u64> = self
            .not_ready
            .iter()
            .filter(|(row, _)| name.starts_with(&format!("{row} ")))
            .map(|run| run.1)
            .collect();
        ensure!(!runs.is_empty(), "{name}: the output has no count of receivers that were not ready");
        Ok(runs.iter().sum())
    }

    fn table(&self) -> Result<String> {
        let mut table = String::from(
            "| what | against | theirs | ours | unit | times | reference against itself | at least | RNR |\n\
             | --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |\n",
        );
        for NamedRounds { name, rounds } in &self.rows {
            let not_ready = if name.starts_with(BARE) { None } else { Some(self.not_ready_of(name)?) };
            writeln!(table, "{}", ScriptRow::named(name)?.line(rounds, not_ready))?;
        }
        self.without.iter().try_for_each(|line| writeln!(table, "\n{line}"))?;
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_bound_and_its_receivers() {
        let round = "sample lat_64_rstream 20 10 20\nsample lat_64_ucx 10 20 10\nsample lat_64_tcp 10 20 10\n\
                    sample send_64_perftest 10 12 10\nsample rate_64_rstream 10 15 10\nsample step_4_1 10 8 10\n\
                    sample poollat_64_ucx 10 8 10\nrnr poollat_64 0\n\
                    sample cork_64_ucx 10 20 10\nrnr cork_64 0\nsample barebw_64_rstream 10 11 10\n\
                    rnr lat_64 0\nrnr send_64 0\nrnr rate_64 2\nrnr step_4 0\nrnr step_4 0\n";
        let said =
            ScriptOutput::parse(&[round, round, "without Y\nversions perftest 6, UCX 1\n"].concat()).unwrap();
        assert_eq!(said.versions, "perftest 6, UCX 1");
        let table = said.table().unwrap();
        assert!(table.ends_with("\n\n**without Y.**\n"), "{table}");
        let lines: Vec<&str> = table.lines().skip(2).collect();
        for (line, expected) in lines.iter().zip([
            "| latency, 64 bytes | `rstream` | 20.000 | 10.000 | us | 2.00 (2.00 to 2.00) | 1.00 (1.00 to 1.00) | better | 0 |",
            "| latency, 64 bytes | UCX `tag_lat` | 10.000 | 20.000 | us | 0.50 (0.50 to 0.50) **missed** |",
            "| latency, 64 bytes | its TCP driver | 10.000 | 20.000 | us | 0.50 (0.50 to 0.50) | - | - | 0 |",
            "| latency, 64 bytes | `ib_send_lat`, polled | 10.000 | 12.000 | us | 0.83 (0.83 to 0.83) |",
            "| rate, 64 bytes, 64 in flight | `rstream` | 10.000 | 15.000 | /s | 1.50 (1.50 to 1.50) **missed** |",
            "| rate, 64 bytes, 4 in flight | 1 in flight | 10.000 | 8.000 | /s | 0.80 (0.80 to 0.80) **missed** |",
            "| latency, pool's buffers, 64 bytes | UCX `tag_lat` | 10.000 | 8.000 | us | 1.25 (1.25 to 1.25) |",
            "| bandwidth, corked, 64 bytes | UCX `tag_bw` | 10.000 | 20.000 | Gb/s | 2.00 (2.00 to 2.00) |",
            "| bandwidth of `ib_send_bw`, 64 bytes | `rstream` | 10.000 | 11.000 | Gb/s | 1.10 (1.10 to 1.10) | - | - | - |",
        ]) {
            assert!(line.starts_with(expected), "{line}");
        }
        assert!(lines[4].ends_with("| 2.00 | 4 **missed** |"), "{}", lines[4]);
    }

    #[test]
    fn missing_counts_and_unknown_rows_are_errors() {
        assert!(ScriptOutput::parse("sample lat_64_ucx 1 2 1\n").unwrap().table().is_err());
        assert!(ScriptOutput::parse("sample what_64_ucx 1 2 1\nrnr what_64 0\n").unwrap().table().is_err());
        assert!(ScriptOutput::parse("rnr lat_64 x\n").is_err() && ScriptOutput::parse("what\n").is_err());
    }
}
