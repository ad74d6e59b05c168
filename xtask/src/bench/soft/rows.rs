//! The rows of the comparison of the device with the machine.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::copy_path::{CopyPath, CopyPathCounts};
use crate::bench::programs::Programs;
use crate::bench::statistics::median;

/// A row of `xtask/bench/src/bin/soft`, and its allowed cost as a multiple of its reference.
struct SoftRow {
    name: &'static str,
    title: &'static str,
    reference: &'static str,
    path: CopyPath,
    bound: f64,
}

const ROWS: [SoftRow; 8] = [
    row("bandwidth", "64 KiB writes", "memcpy of as much", CopyPath::Direct, 1.0 / 0.8),
    row("rate", "64-byte writes", "memcpy of 4 KiB, out of line", CopyPath::Direct, 1.8),
    row("write-latency", "64-byte write, one way", "cache line from core to core", CopyPath::Direct, 2.0),
    row("send-latency", "64-byte send, one way", "cache line from core to core", CopyPath::Slot, 4.0),
    row("loopback", "64-byte write, post and poll", "two copies of 4 KiB", CopyPath::Own, 1.0),
    row("vm-4096", "4 KiB writes", "process_vm_writev, same parts", CopyPath::Vm, 1.0 / 0.9),
    row("vm-65536", "64 KiB writes", "process_vm_writev, same parts", CopyPath::Vm, 1.0 / 0.9),
    row("vm-1048576", "1 MiB writes", "process_vm_writev, same parts", CopyPath::Vm, 1.0 / 0.9),
];

const fn row(
    name: &'static str,
    title: &'static str,
    reference: &'static str,
    path: CopyPath,
    bound: f64,
) -> SoftRow {
    SoftRow { name, title, reference, path, bound }
}

/// The rows that measure time.
pub(super) fn timed(programs: &Programs, samples: u32) -> Result<String> {
    let mut table = String::from(
        "| what | way | ns | against | ns | times | at most |\n| --- | --- | ---: | --- | ---: | ---: | ---: |\n",
    );
    for row in &ROWS {
        let mut command = Command::new(programs.path("soft"));
        command.args([row.name, &samples.to_string()]);
        let (said, complained) = run(programs, &mut command)?;
        CopyPathCounts::parse(&complained)?.must_be(row.path, row.name)?;
        let pairs = pairs(&said)?;
        ensure!(pairs.len() == samples as usize, "{}: {} samples", row.name, pairs.len());
        let column = |value: fn(&(f64, f64)) -> f64| median(pairs.iter().map(value).collect());
        let times = column(|(ours, reference)| ours / reference);
        let verdict = if times > row.bound { " **missed**" } else { "" };
        writeln!(
            table,
            "| {} | {} | {:.1} | {} | {:.1} | {times:.2}{verdict} | {:.2} |",
            row.title,
            row.path,
            column(|pair| pair.0),
            row.reference,
            column(|pair| pair.1),
            row.bound
        )?;
    }
    Ok(table)
}

fn pairs(said: &str) -> Result<Vec<(f64, f64)>> {
    said.lines()
        .map(|line| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["sample", ours, reference] => Ok((ours.parse()?, reference.parse()?)),
            _ => bail!("unexpected output: {line}"),
        })
        .collect()
}

/// The rows that count resources: queue pairs, open and idle.
pub(super) fn counted(programs: &Programs, idle: u32) -> Result<String> {
    let scale = programs.compile_c("scale")?;
    let mut said = run(programs, Command::new(&scale).args(["pairs", "10000"]))?.0;
    said += &run(programs, Command::new(&scale).args(["idle", &idle.to_string()]))?.0;
    said += &run(programs, Command::new(programs.path("soft")).args(["descriptors", "1"]))?.0;
    let value = |name: &str| -> Result<f64> {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.with_context(|| format!("nobody said {name}"))?.parse()?)
    };
    let opening = value("open-last")? / value("open-100")?;
    // One clock tick in ten seconds counts as none.
    let rows = [
        ("opening the 10,000th connected pair of queue pairs, times the 100th", opening, 1.5),
        ("memory of an idle pair of queue pairs, KiB", value("kib-per-pair")?, 64.0),
        ("descriptors of a queue pair", value("descriptors-of-pairs")? / 10_000.0, 0.01),
        ("descriptors of a connected pair of processes, in one of them", value("descriptors")?, 2.0),
        ("descriptors left after closing", value("left-descriptors")?, 0.0),
        ("mappings left after closing", value("left-mappings")?, 0.0),
        ("memory left after closing 20,000 queue pairs, KiB", value("left-kib")?, 1024.0),
        (
            "processor time while 100 queue pairs wait for an event, ms a second",
            value("idle-ms")? / f64::from(idle),
            1.0,
        ),
    ];
    let mut table = String::from("| what | is | at most |\n| --- | ---: | ---: |\n");
    for (title, is, bound) in rows {
        let verdict = if is > bound { " **missed**" } else { "" };
        writeln!(table, "| {title} | {is:.2}{verdict} | {bound} |")?;
    }
    Ok(table)
}

/// Runs a program, and returns its standard output and standard error.
fn run(programs: &Programs, command: &mut Command) -> Result<(String, String)> {
    programs.over_the_device(command);
    command.env("SOFT_RNIC_LOG", "info");
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} failed ({}): {said}{complained}", output.status);
    Ok((said.into_owned(), complained.into_owned()))
}
