//! The comparisons over the software device, with their bounds.

use std::fmt::Write as _;

use anyhow::Result;

use super::NO_COLLAPSE;
use super::run::{Carrier, Copies, Measure, MessageRun, Tool};
use crate::bench::perftest::pair::Files;
use crate::bench::programs::Programs;
use crate::bench::rounds::{Better, Bound, Round, compare};
use crate::bench::soft::copy_path::{CopyPath, CopyPathCounts};

/// A comparison.
#[derive(Clone, Copy, Debug)]
struct TrespassRow {
    what: &'static str,
    against: &'static str,
    measure: Measure,
    size: u64,
    ours: (Tool, Carrier),
    reference: (Tool, Carrier),
    bound: Bound,
}

/// A comparison with its results so far.
struct MeasuredRow {
    row: TrespassRow,
    rounds: Vec<Round>,
    /// The copy paths of trespass and of the reference.
    paths: [Option<CopyPathCounts>; 2],
    not_ready: u64,
}

const SLOT: Carrier = Carrier::Soft(CopyPath::Slot);
const DIRECT: Carrier = Carrier::Soft(CopyPath::Direct);

/// More requests in flight, compared with fewer.
const STEPS: [(&str, u32, &str, u32); 5] = [
    ("rate, 4 in flight", 4, "1 in flight", 1),
    ("rate, 16 in flight", 16, "4 in flight", 4),
    ("rate, 64 in flight", 64, "16 in flight", 16),
    ("rate, 256 in flight", 256, "64 in flight", 64),
    ("rate, 512 in flight", 512, "256 in flight", 256),
];

/// The duration of a run with requests in flight, in nanoseconds. The step between two numbers of
/// requests is small. Runs differ mostly by where the scheduler places the two processes, which
/// settles within this time.
const RATE_RUN: u64 = 800_000_000;

/// The duration of any other run, in nanoseconds. The start, when the peer's memory is not mapped
/// yet and the scheduler has not settled, is a small part of it. Three rounds take a few minutes.
const RUN: u64 = 150_000_000;

fn rows() -> Vec<TrespassRow> {
    let mut rows = vec![TrespassRow {
        what: "latency",
        against: "`ib_send_lat`, polled",
        measure: Measure::Latency,
        size: 64,
        ours: (Tool::Copy, SLOT),
        reference: (Tool::Perftest, SLOT),
        bound: Bound::Times(1.0 / 1.3),
    }];
    for (what, tool, bound, sizes) in [
        ("bandwidth, two of the pool's buffers", Tool::Pool, 0.95, &[64 << 10, 256 << 10, 1 << 20][..]),
        ("bandwidth, copying", Tool::Copy, 0.6, &[64 << 10, 256 << 10, 1 << 20, 4 << 20]),
    ] {
        rows.extend(sizes.iter().map(|size| TrespassRow {
            what,
            against: "`ib_write_bw`",
            measure: Measure::Bandwidth,
            size: *size,
            ours: (tool, DIRECT),
            reference: (Tool::Perftest, DIRECT),
            bound: Bound::Times(bound),
        }));
    }
    // The limit of the rows above: copies without any transport.
    for (what, copies, sizes) in [
        ("one copy from two buffers", Copies::One, &[64 << 10, 256 << 10, 1 << 20][..]),
        ("two copies and nothing else", Copies::Two, &[64 << 10, 256 << 10, 1 << 20, 4 << 20]),
        ("three copies and nothing else", Copies::Three, &[64 << 10, 256 << 10, 1 << 20, 4 << 20]),
    ] {
        rows.extend(sizes.iter().map(|size| TrespassRow {
            what,
            against: "`ib_write_bw`",
            measure: Measure::Bandwidth,
            size: *size,
            ours: (Tool::Copies(copies), Carrier::Memory),
            reference: (Tool::Perftest, DIRECT),
            bound: Bound::None,
        }));
    }
    for (what, measure) in [("latency", Measure::Latency), ("bandwidth, copying", Measure::Bandwidth)] {
        rows.extend((3..12).map(|power| TrespassRow {
            what,
            against: "its TCP driver",
            measure,
            size: 1 << (2 * power),
            ours: (Tool::Copy, Carrier::AnyPath),
            reference: (Tool::Tcp, Carrier::Sockets),
            bound: Bound::Better,
        }));
    }
    rows.extend(STEPS.map(|(what, more, against, fewer)| TrespassRow {
        what,
        against,
        measure: Measure::Rate,
        size: 64,
        ours: (Tool::InFlight(more), Carrier::AnyPath),
        reference: (Tool::InFlight(fewer), Carrier::AnyPath),
        bound: Bound::Times(NO_COLLAPSE),
    }));
    rows
}

impl TrespassRow {
    /// The number of messages for a run of the intended duration.
    fn iterations(&self, tool: Tool) -> u64 {
        let (run, message) = match (self.measure, tool) {
            (Measure::Bandwidth, Tool::Perftest | Tool::Pool | Tool::Copies(_)) => {
                (2 * RUN, 100 + self.size / 40)
            }
            (Measure::Bandwidth, _) => (RUN, 500 + self.size / 6),
            (Measure::Latency, _) => (RUN, 3000 + self.size / 2),
            (Measure::Rate, Tool::InFlight(1)) => (RATE_RUN, 4000),
            (Measure::Rate, _) => (RATE_RUN, 1000),
        };
        (run / message).clamp(300, 2_000_000)
    }

    /// perftest polls, and a row that is compared with it polls, too.
    fn polls(&self) -> bool {
        self.reference.0 == Tool::Perftest
    }

    /// Above 1 if ours is better.
    fn better(&self) -> Better {
        match self.measure {
            Measure::Bandwidth | Measure::Rate => Better::More,
            Measure::Latency => Better::Less,
        }
    }

    /// The path of the payload on both sides, or both paths if they differ.
    fn path(&self, paths: [Option<CopyPathCounts>; 2]) -> String {
        let [ours, reference] = paths.map(|paths| paths.map_or_else(String::new, CopyPathCounts::most));
        match (self.ours.1, self.reference.1) {
            (Carrier::Soft(path), Carrier::Soft(_)) => path.to_string(),
            (Carrier::Memory, Carrier::Soft(path)) => format!("memory / {path}"),
            (_, Carrier::Sockets) => format!("{ours} / sockets"),
            _ if ours == reference => ours,
            _ => format!("{ours} / {reference}"),
        }
    }
}

impl MeasuredRow {
    fn round(&mut self, programs: &Programs, files: &Files, position: u32, part: u64) -> Result<()> {
        let row = self.row;
        let round = Round::take(position, |ours| {
            let (tool, carrier) = if ours { row.ours } else { row.reference };
            let iterations = (row.iterations(tool) / part).max(100);
            let run = MessageRun {
                tool,
                measure: row.measure,
                carrier,
                size: row.size,
                iterations,
                polls: row.polls(),
            };
            let ran = run.run(programs, files)?;
            // perftest posts its receives late on purpose, so that its count does not matter.
            self.not_ready += if tool == Tool::Perftest { 0 } else { ran.not_ready };
            self.paths[usize::from(!ours)] = ran.paths;
            Ok(ran.figure)
        })?;
        self.rounds.push(round);
        Ok(())
    }

    fn line(&self) -> String {
        let TrespassRow { what, against, size, bound, .. } = self.row;
        let (times, noise) = compare(&self.rounds, self.row.better());
        let ready = if self.not_ready > 0 { " **missed**" } else { "" };
        format!(
            "| {what} | {size} | {against} | {} | {:.2} ({:.2} to {:.2}){} | {:.2} ({:.2} to {:.2}) | {bound} | {}{ready} |",
            self.row.path(self.paths),
            times.mean,
            times.low,
            times.high,
            bound.verdict(times, noise),
            noise.mean,
            noise.low,
            noise.high,
            self.not_ready,
        )
    }
}

/// The measured rows, and how often a receiver of trespass was not ready.
pub(super) struct RowTable {
    pub(super) body: String,
    pub(super) not_ready: u64,
}

/// Measures the rows with one of these words in their titles, or all, `rounds` times one after the
/// other. `None` if there is no such row.
pub(super) fn measure(
    programs: &Programs,
    rounds: u32,
    part: u32,
    words: &[String],
) -> Result<Option<RowTable>> {
    let chosen = rows().into_iter().filter(|row| super::is_chosen(row.what, words));
    let unmeasured = |row| MeasuredRow { row, rounds: Vec::new(), paths: [None; 2], not_ready: 0 };
    let mut rows: Vec<MeasuredRow> = chosen.map(unmeasured).collect();
    if rows.is_empty() {
        return Ok(None);
    }
    let files = Files::new()?;
    for round in 0..rounds {
        for (row, position) in rows.iter_mut().zip(round..) {
            row.round(programs, &files, position, part.into())?;
        }
    }
    let mut table = String::from(
        "| what | bytes | against | path | times | reference against itself | at least | RNR |\n\
         | --- | ---: | --- | --- | ---: | ---: | ---: | ---: |\n",
    );
    for row in &rows {
        writeln!(table, "{}", row.line())?;
    }
    Ok(Some(RowTable { body: table, not_ready: rows.iter().map(|row| row.not_ready).sum() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(row: TrespassRow, ours: f64) -> MeasuredRow {
        let round = |again| Round { ours, reference: 1.0, again };
        MeasuredRow { row, rounds: vec![round(1.0), round(1.0)], paths: [None; 2], not_ready: 0 }
    }

    #[test]
    fn a_row_below_its_bound_is_missed() {
        let row = rows()[0];
        let line = measured(row, 1.25).line();
        assert!(
            line.contains(
                "| latency | 64 | `ib_send_lat`, polled | receive slot | 0.80 (0.80 to 0.80) | 1.00"
            ),
            "{line}"
        );
        assert!(measured(row, 1.4).line().contains("**missed**"));
        let row = rows()[1];
        let line = measured(row, 0.96).line();
        assert!(
            line.contains("| direct | 0.96 (0.96 to 0.96) |") && line.ends_with("| 0.95 | 0 |"),
            "{line}"
        );
        assert!(measured(row, 0.94).line().contains("**missed**"));
    }

    #[test]
    fn a_receiver_that_was_not_ready_is_missed() {
        let line = MeasuredRow { not_ready: 2, ..measured(rows()[0], 1.0) }.line();
        assert!(line.ends_with("| 2 **missed** |"), "{line}");
    }

    #[test]
    fn every_size_of_the_comparison_with_tcp_is_there() {
        let rows = rows();
        let sizes = |measure| {
            let rows = rows.iter().filter(move |row| row.reference.0 == Tool::Tcp && row.measure == measure);
            rows.map(|row| row.size).collect::<Vec<_>>()
        };
        for measure in [Measure::Bandwidth, Measure::Latency] {
            assert_eq!(sizes(measure), [64, 256, 1024, 4096, 16384, 65536, 262_144, 1 << 20, 4 << 20]);
        }
        for row in rows {
            assert!((300..=2_000_000).contains(&row.iterations(row.ours.0)), "{row:?}");
        }
    }

    #[test]
    fn rows_against_perftest_poll() {
        let polling: Vec<&str> = rows().iter().filter(|row| row.polls()).map(|row| row.against).collect();
        assert_eq!(polling.len(), 1 + 7 + 11);
        assert_eq!(polling[0], "`ib_send_lat`, polled");
        assert!(polling[1..].iter().all(|against| *against == "`ib_write_bw`"));
    }

    #[test]
    fn each_step_begins_where_the_one_before_it_ended() {
        assert!(STEPS.windows(2).all(|pair| pair[0].1 == pair[1].3 && pair[0].0.ends_with(pair[1].2)));
        assert_eq!((STEPS[0].3, STEPS[4].1), (1, 512));
    }
}
