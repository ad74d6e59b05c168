//! What is compared with what, and by how much it may be worse.

use std::fmt::Write as _;

use anyhow::Result;

use super::side::{Carrier, Measure, Run, Tool};
use crate::bench::perftest::pair::Files;
use crate::bench::programs::Programs;
use crate::bench::soft::way::{Way, Ways};
use crate::bench::statistics::{bootstrap, median};

/// A comparison.
#[derive(Clone, Copy, Debug)]
struct Row {
    what: &'static str,
    against: &'static str,
    measure: Measure,
    size: u64,
    ours: (Tool, Carrier),
    reference: (Tool, Carrier),
    /// How good it has to be, times the reference.
    bound: f64,
}

/// What of a figure came of one turn.
struct Turn {
    ours: f64,
    reference: f64,
    again: f64,
}

const SLOT: Carrier = Carrier::Soft(Way::Slot);
const DIRECT: Carrier = Carrier::Soft(Way::Direct);

fn rows() -> Vec<Row> {
    let mut rows = vec![Row {
        what: "latency",
        against: "`ib_send_lat`, polled",
        measure: Measure::Latency,
        size: 64,
        ours: (Tool::Copy, SLOT),
        reference: (Tool::Perftest, SLOT),
        bound: 1.0 / 1.3,
    }];
    // What is copied into frames goes to receives, whose memory no peer may write: through the kernel.
    for (what, tool, carrier, bound, sizes) in [
        ("bandwidth, pool's buffers", Tool::Pool, DIRECT, 0.95, &[64 << 10, 256 << 10, 1 << 20][..]),
        ("bandwidth, copying", Tool::Copy, Carrier::Soft(Way::Vm), 0.6, &[64 << 10]),
        ("bandwidth, copying", Tool::Copy, DIRECT, 0.6, &[256 << 10, 1 << 20, 4 << 20]),
    ] {
        rows.extend(sizes.iter().map(|size| Row {
            what,
            against: "`ib_write_bw`",
            measure: Measure::Bandwidth,
            size: *size,
            ours: (tool, carrier),
            reference: (Tool::Perftest, carrier),
            bound,
        }));
    }
    for (what, measure) in [("latency", Measure::Latency), ("bandwidth, copying", Measure::Bandwidth)] {
        rows.extend((3..12).map(|power| Row {
            what,
            against: "its TCP driver",
            measure,
            size: 1 << (2 * power),
            ours: (Tool::Copy, Carrier::AnyWay),
            reference: (Tool::Tcp, Carrier::Sockets),
            bound: 1.0,
        }));
    }
    rows
}

impl Row {
    /// So many messages that a run measures for a tenth of a second or so.
    fn iterations(&self) -> u64 {
        let message = match self.measure {
            Measure::Bandwidth => 2000 + self.size / 8,
            Measure::Latency => 4000 + self.size / 2,
        };
        (100_000_000 / message).clamp(150, 50_000)
    }

    fn turn(
        &self,
        programs: &Programs,
        files: &Files,
        position: u32,
        part: u64,
    ) -> Result<(Turn, Option<Ways>)> {
        let iterations = (self.iterations() / part).max(100);
        let (mut figures, mut way) = ([0.0; 3], None);
        for step in 0..3 {
            let who = ((step + position) % 3) as usize;
            let (tool, carrier) = if who == 1 { self.ours } else { self.reference };
            let run = Run { tool, measure: self.measure, carrier, size: self.size, iterations };
            let (figure, ways) = run.figure(programs, files)?;
            figures[who] = figure;
            if who == 1 {
                way = ways;
            }
        }
        let [reference, ours, again] = figures;
        Ok((Turn { ours, reference, again }, way))
    }

    /// Above 1 where `this` is better than `that`.
    fn better(&self, this: f64, that: f64) -> f64 {
        match self.measure {
            Measure::Bandwidth => this / that,
            Measure::Latency => that / this,
        }
    }

    /// Which way the payload of both sides went.
    fn way(&self, ways: Option<Ways>) -> String {
        match (self.ours.1, self.reference.1) {
            (Carrier::Soft(way), Carrier::Soft(_)) => way.to_string(),
            _ => format!("{} / sockets", ways.map_or_else(String::new, Ways::most)),
        }
    }

    fn line(&self, turns: &[Turn], way: Option<Ways>) -> String {
        let ratios: Vec<f64> = turns.iter().map(|turn| self.better(turn.ours, turn.reference)).collect();
        let noise = median(turns.iter().map(|turn| self.better(turn.again, turn.reference)).collect());
        let interval = bootstrap(&ratios.iter().map(|ratio| vec![*ratio]).collect::<Vec<_>>());
        let ratio = median(ratios);
        let verdict = if ratio < self.bound { " **missed**" } else { "" };
        let Self { what, against, size, bound, .. } = self;
        format!(
            "| {what} | {size} | {against} | {} | {ratio:.2} ({:.2} to {:.2}){verdict} | {noise:.2} | {bound:.2} |",
            self.way(way),
            interval.low,
            interval.high,
        )
    }
}

/// Measures all rows, `rounds` times one after the other.
pub(super) fn measure(programs: &Programs, rounds: u32, part: u64) -> Result<String> {
    let files = Files::new()?;
    let mut rows: Vec<(Row, Vec<Turn>, Option<Ways>)> =
        rows().into_iter().map(|row| (row, Vec::new(), None)).collect();
    for round in 0..rounds {
        for ((row, turns, ways), position) in rows.iter_mut().zip(round..) {
            let (turn, way) = row.turn(programs, &files, position, part)?;
            turns.push(turn);
            *ways = way;
        }
    }
    let mut table = String::from(
        "| what | bytes | against | way | times | reference against itself | at least |\n\
         | --- | ---: | --- | --- | ---: | ---: | ---: |\n",
    );
    for (row, turns, way) in &rows {
        writeln!(table, "{}", row.line(turns, *way))?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_its_bound_is_missed() {
        let row = rows()[0];
        let turns =
            |ours| [Turn { ours, reference: 1.0, again: 1.0 }, Turn { ours, reference: 1.0, again: 1.1 }];
        assert!(
            row.line(&turns(1.25), None)
                .contains("| latency | 64 | `ib_send_lat`, polled | receive slot | 0.80 (0.80 to 0.80) |")
        );
        assert!(row.line(&turns(1.4), None).contains("**missed**"));
        let row = rows()[1];
        assert!(row.line(&turns(0.96), None).contains("| direct | 0.96 (0.96 to 0.96) |"));
        assert!(row.line(&turns(0.94), None).contains("**missed**"));
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
        assert!(rows.iter().all(|row| (150..=50_000).contains(&row.iterations())));
    }
}
