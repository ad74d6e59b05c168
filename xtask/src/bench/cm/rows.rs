//! Connections over the software device.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::programs::Programs;
use crate::bench::rounds::Round;
use crate::bench::statistics::median;

/// The required connection rate, as a multiple of TCP's.
const RATE: f64 = 0.3;

/// The allowed cost of a connection with many others open, as a multiple of that with few.
const CROWDED: f64 = 1.5;

/// The title of each row, and its arguments for `xtask/bench/src/bin/cm`.
const ROWS: [(&str, &[&str]); 4] = [
    ("one after the other; TCP's server confirms its accept", &["answered", "200"]),
    ("one after the other; TCP's client continues after its own connect", &["tcp", "1", "200"]),
    ("16 at a time", &["tcp", "16", "400"]),
    ("128 at a time", &["tcp", "128", "400"]),
];

pub(super) fn against_tcp(programs: &Programs, pairs: u32) -> Result<String> {
    let mut table = String::from(
        "| connections | us each | TCP: connect and accept, us | rate, times TCP's | TCP against itself | at least |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (title, arguments) in ROWS {
        let said = run(programs, arguments, pairs)?;
        let rounds = rounds(&said, "sample", pairs)?;
        let rate = median(rounds.iter().map(|round| round.reference / round.ours).collect());
        let verdict = if rate < RATE { " **missed**" } else { "" };
        writeln!(
            table,
            "| {title} | {:.1} | {:.1} | {rate:.2}{verdict} | {:.2} | {RATE:.2} |",
            micro(&rounds, |round| round.ours),
            micro(&rounds, |round| round.reference),
            median(rounds.iter().map(|round| round.reference / round.again).collect()),
        )?;
    }
    Ok(table)
}

pub(super) fn crowded(programs: &Programs, pairs: u32) -> Result<String> {
    let said = run(programs, &["ids", "10", "10000", "100"], pairs)?;
    let mut table = String::from(
        "| one more connection | us with 10,000 open | us with 10 open | times | 10 against 10 | at most |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (title, name) in [("opening it", "sample"), ("closing it", "ending")] {
        let rounds = rounds(&said, name, pairs)?;
        let times = median(rounds.iter().map(|round| round.ours / round.reference).collect());
        let verdict = if times > CROWDED { " **missed**" } else { "" };
        writeln!(
            table,
            "| {title} | {:.1} | {:.1} | {times:.2}{verdict} | {:.2} | {CROWDED:.2} |",
            micro(&rounds, |round| round.ours),
            micro(&rounds, |round| round.reference),
            median(rounds.iter().map(|round| round.again / round.reference).collect()),
        )?;
    }
    Ok(table)
}

fn micro(rounds: &[Round], value: fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(value).collect()) / 1000.0
}

/// Parses lines `NAME OURS REFERENCE REFERENCE`.
fn rounds(said: &str, name: &str, pairs: u32) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [first, ours, reference, again] = words[..] else { bail!("unexpected output: {line}") };
        if first == name {
            let number = |word: &str| word.parse().with_context(|| format!("not a number in: {line}"));
            rounds.push(Round { ours: number(ours)?, reference: number(reference)?, again: number(again)? });
        }
    }
    ensure!(rounds.len() == pairs as usize, "{} rounds instead of {pairs}: {said}", rounds.len());
    Ok(rounds)
}

fn run(programs: &Programs, arguments: &[&str], pairs: u32) -> Result<String> {
    let mut command = Command::new(programs.path("cm"));
    command.args(arguments).arg(pairs.to_string());
    programs.over_the_device(&mut command);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} failed ({})", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_told_apart_by_their_names() {
        let said = "sample 3 1 2\nending 6 5 4\nsample 9 8 7\n";
        let found = rounds(said, "sample", 2).unwrap();
        assert_eq!(found[1], Round { ours: 9.0, reference: 8.0, again: 7.0 });
        assert_eq!(rounds(said, "ending", 1).unwrap().len(), 1);
        assert!(rounds(said, "ending", 2).is_err() && rounds("what", "ending", 0).is_err());
    }
}
