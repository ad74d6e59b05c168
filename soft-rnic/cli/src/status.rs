//! `soft-rnic status`: shows the processes that have a software device open, and the paths of their
//! payload.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use soft_rnic::Mode;
use soft_rnic::status::{self, Moved, NoAnswer, Peer, Process, Statistics, Traffic};

/// Show the processes that use software devices: their objects, and the paths between them
///
/// Lists processes of this user and this network namespace that have created a queue pair on a
/// device that is still open. Each process counts the messages that it sends and reads. A short
/// message, which travels in the slot of its receive, counts as `slot`.
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// Name of the fabric to show; the default one has no name (SOFT_RNIC_FABRIC)
    #[arg(long, value_name = "NAME", env = "SOFT_RNIC_FABRIC", default_value = "", hide_env_values = true)]
    fabric: String,
    /// Show every fabric
    #[arg(long)]
    all_fabrics: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A process and its statistics.
struct StatusRow {
    process: Process,
    command: Option<String>,
}

/// Prints the processes. An empty list is not a failure.
pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let fabric = (!args.all_fabrics).then_some(args.fabric.as_str());
    let mut processes = status::processes(fabric).context("cannot look for processes")?;
    processes.sort_by(|a, b| (&a.fabric, a.pid).cmp(&(&b.fabric, b.pid)));
    let rows =
        processes.into_iter().map(|process| StatusRow { command: process.pid.and_then(command), process });
    let rows: Vec<StatusRow> = rows.collect();
    let text = if args.json { format!("{:#}\n", json(&rows)) } else { table(&rows, fabric) };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The user closed the pager.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A process's command line, if it is readable.
fn command(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let line = words.join(" ");
    (!line.trim().is_empty()).then(|| line.trim().to_owned())
}

fn table(rows: &[StatusRow], fabric: Option<&str>) -> String {
    if rows.is_empty() {
        let of = match fabric {
            None => "of any fabric".to_owned(),
            Some("") => "of the default fabric (--fabric NAME, --all-fabrics)".to_owned(),
            Some(name) => format!("of fabric {}", printable(name)),
        };
        return format!("no process {of} has a queue pair on a software device\n");
    }
    let mut text = String::new();
    for StatusRow { process, command } in rows {
        let pid = process.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let command = printable(command.as_deref().unwrap_or("?"));
        let fabric = match process.fabric.as_str() {
            "" => String::new(),
            name => format!("  [fabric {}]", printable(name)),
        };
        let _ = writeln!(text, "{pid}  {command}{fabric}");
        match &process.answer {
            Err(error) => {
                let _ = writeln!(text, "    not answering: {error}");
            }
            Ok(statistics) => describe(&mut text, statistics, process.pid),
        }
    }
    text
}

/// The counts of connection manager identifiers.
fn identifiers(statistics: &Statistics) -> String {
    let all = &statistics.identifiers;
    format!("{} ({} listening, {} connected)", all.count, all.listening, all.connected)
}

fn describe(text: &mut String, statistics: &Statistics, own: Option<u32>) {
    let devices = statistics.devices.iter().map(|device| match device.contexts {
        1 => device.name.clone(),
        contexts => format!("{} (open {contexts} times)", device.name),
    });
    let kinds = statistics.queue_pairs.iter();
    let kinds = kinds.map(|kind| format!("{} {} {}", kind.count, kind.type_name(), kind.state_name()));
    let lines = [
        ("devices", format!("{}, {}", none_or(devices.collect()), mode(statistics))),
        ("queue pairs", none_or(kinds.collect())),
        ("regions", format!("{} ({})", statistics.regions.count, size(statistics.regions.bytes))),
        ("completion queues", statistics.completion_queues.to_string()),
        ("shared receive queues", statistics.shared_receive_queues.to_string()),
        ("identifiers", identifiers(statistics)),
    ];
    for (name, value) in lines {
        let _ = writeln!(text, "    {name:<24}{value}");
    }
    for Peer { pid, traffic, .. } in &statistics.peers {
        let is_own = pid.is_some() && *pid == own;
        if is_own && *traffic == Traffic::default() {
            continue;
        }
        let to = match pid {
            _ if is_own => "to itself".to_owned(),
            Some(pid) => format!("to {pid}"),
            None => "to another namespace".to_owned(),
        };
        let _ = writeln!(text, "    {to:<24}{}", paths(traffic));
    }
    if statistics.more_peers > 0 {
        let to = format!("to {} more", statistics.more_peers);
        let _ = writeln!(text, "    {to:<24}not shown");
    }
    if statistics.former != Traffic::default() {
        let _ = writeln!(text, "    {:<24}{}", "to the dead", paths(&statistics.former));
    }
}

fn none_or(words: Vec<String>) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn mode(statistics: &Statistics) -> &'static str {
    match statistics.mode {
        Mode::Deferred => "deferred",
        _ => "inline",
    }
}

fn paths(traffic: &Traffic) -> String {
    let used = traffic.paths().into_iter().filter(|(_, moved)| moved.messages > 0);
    let used = used.map(|(name, Moved { messages, bytes, .. })| {
        let plural = if messages == 1 { "" } else { "s" };
        format!("{name} {messages} message{plural} ({})", size(bytes))
    });
    let used: Vec<_> = used.collect();
    if used.is_empty() { "connected, nothing sent".to_owned() } else { used.join(", ") }
}

/// A number of bytes, with three digits.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Replaces control characters, because any process chooses its command line and must not control
/// the terminal.
fn printable(words: &str) -> String {
    const LONGEST: usize = 100;
    let plain: String = words.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    match plain.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &plain[..end]),
        None => plain,
    }
}

fn json(rows: &[StatusRow]) -> Value {
    let processes = rows.iter().map(|StatusRow { process, command }| {
        let mut object = json!({ "pid": process.pid, "command": command, "fabric": process.fabric });
        match &process.answer {
            Ok(statistics) => object["statistics"] = json_of(statistics),
            Err(error) => object["error"] = json!({ "kind": kind(error), "message": error.to_string() }),
        }
        object
    });
    json!({ "processes": processes.collect::<Vec<_>>() })
}

fn kind(error: &NoAnswer) -> &'static str {
    match error {
        NoAnswer::Late => "late",
        NoAnswer::Busy => "busy",
        NoAnswer::HungUp => "hung_up",
        NoAnswer::OtherVersion(_) => "other_version",
        _ => "nonsense",
    }
}

fn json_of(statistics: &Statistics) -> Value {
    let devices = statistics.devices.iter();
    let kinds = statistics.queue_pairs.iter();
    let peers = statistics.peers.iter();
    json!({
        "mode": mode(statistics),
        "devices": devices.map(|device| json!({ "name": device.name, "contexts": device.contexts }))
            .collect::<Vec<_>>(),
        "queue_pairs": kinds.map(|kind| json!({
            "type": kind.type_name(), "state": kind.state_name(), "count": kind.count
        })).collect::<Vec<_>>(),
        "regions": { "count": statistics.regions.count, "bytes": statistics.regions.bytes },
        "completion_queues": statistics.completion_queues,
        "shared_receive_queues": statistics.shared_receive_queues,
        "identifiers": {
            "count": statistics.identifiers.count,
            "listening": statistics.identifiers.listening,
            "connected": statistics.identifiers.connected,
        },
        "peers": peers.map(|peer| json!({ "pid": peer.pid, "paths": json_paths(&peer.traffic) }))
            .collect::<Vec<_>>(),
        "more_peers": statistics.more_peers,
        "former_peers": { "paths": json_paths(&statistics.former) },
    })
}

fn json_paths(traffic: &Traffic) -> Value {
    let paths = traffic.paths().into_iter();
    let of = |moved: Moved| json!({ "messages": moved.messages, "bytes": moved.bytes });
    Value::Object(paths.map(|(name, moved)| (name.to_owned(), of(moved))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        let cases =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (100_000, "97.7 KiB"), (1 << 30, "1.00 GiB")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn words_of_others_cannot_move_the_cursor() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
        assert_eq!(printable(&"x".repeat(200)).len(), 103);
    }

    #[test]
    fn that_nobody_is_there_is_said() {
        assert!(table(&[], Some("")).contains("--all-fabrics"));
        assert!(table(&[], Some("lab")).contains("of fabric lab"));
    }
}
