//! The C programs and the examples report the same devices under every configuration, and they
//! explain an invalid configuration.

use std::collections::BTreeSet;

use crate::ProgramTest;
use crate::examples::{self, ExampleTransport};
use crate::place::ProgramRunner;
use crate::process::ProgramOutcome;

/// The launcher's options for devices of several kinds.
const DEVICES: [(&str, &[&str]); 7] = [
    ("one device", &[]),
    ("three devices of two ports", &["--devices", "3", "--ports", "2"]),
    ("no GUID", &["--faults", "node_guid=0"]),
    ("no GID", &["--faults", "no_gids"]),
    (
        "a second device with neither",
        &["--devices", "2", "--faults", "node_guid=0 device=soft1; no_gids device=soft1"],
    ),
    (
        "the identity of a NIC",
        &["--faults", "vendor_id=0x15b3; vendor_part_id=4119; hw_ver=1; node_guid=0x1234"],
    ),
    (
        "few things",
        &["--faults", "no_atomics", "--limits", "max_sge=1,max_qp_wr=4,max_inline_data=0,max_cqe=8"],
    ),
];

/// Invalid configurations: the options, and the words of the remedy.
const IMPOSSIBLE: [(&[&str], &str); 5] = [
    (
        &["--limits", "max_sge=many"],
        "SOFT_RNIC_LIMITS is \"max_sge=many\"; set it to a number for max_sge, not \"many\"",
    ),
    (&["--limits", "max_fun=1"], "with the names max_mr_size, max_dm_size, max_pd, "),
    (
        &["--faults", "drip"],
        "fault rule \"drip\" (line 1, column 1): \"drip\" is not an action: drop[=TIMES], ",
    ),
    (&["--faults", "drop; no_gids chance=0.5"], "line 1, column 7"),
    (&["--faults", "@/nowhere"], "fault rules, or @FILE with a readable file (No such file or directory"),
];

/// Lines that newer releases of the C program print and the example does not.
const ONLY_IN_C: [&str; 4] = ["max_comp_cntr:", "comp_cntr_caps:", "QP_ATTACH_", "effective_speed:"];

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for (title, options) in DEVICES {
        for way in ExampleTransport::ALL {
            let mut add =
                |what: &str,
                 program,
                 check: fn(&ProgramRunner, &[&str], ExampleTransport) -> Result<(), String>| {
                    let name = format!("{title}: {what} {}", way.name());
                    tests.push(ProgramTest::new(name, &[program], move |place| check(place, options, way)));
                };
            add("ibv_devinfo", "ibv_devinfo", same_information);
            add("show_gids", "ibv_devinfo", same_gids);
            add("ibv_devices", "ibv_devices", same_guids);
        }
    }
    for (options, advice) in IMPOSSIBLE {
        let name = format!("impossible: {}", options.join(" "));
        tests.push(ProgramTest::new(name, &["ibv_devices"], move |place| impossible(place, options, advice)));
    }
    tests.push(ProgramTest::new("devices that the launcher refuses", &[], refused_options));
    for way in ExampleTransport::ALL {
        tests.push(ProgramTest::new(format!("nothing to go by {}", way.name()), &[], move |place| {
            no_gid(place, way)
        }));
    }
    tests.push(ProgramTest::new("unknown providers", &[], unknown_providers));
}

fn example(
    place: &ProgramRunner,
    options: &[&str],
    way: ExampleTransport,
    program: &str,
    flags: &[&str],
) -> Result<ProgramOutcome, String> {
    let started = examples::started(way, program)?;
    let arguments: Vec<&str> = started.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    place.run(options, "env", &arguments)
}

/// Compares the outputs line by line.
fn same_information(place: &ProgramRunner, options: &[&str], way: ExampleTransport) -> Result<(), String> {
    for flags in [&[][..], &["-v"], &["-l"], &["-i", "1", "-v"], &["-d", "soft0"]] {
        let theirs = place.run(options, "ibv_devinfo", flags)?;
        let ours = example(place, options, way, "ibv_devinfo", flags)?;
        let known = |line: &&str| !ONLY_IN_C.iter().any(|label| line.trim_start().starts_with(label));
        let expected: Vec<&str> = theirs.well()?.lines().filter(known).collect();
        if expected.is_empty() || !ours.well()?.lines().eq(expected.iter().copied()) {
            return Err(format!("they differ: {theirs}\n{ours}"));
        }
    }
    Ok(())
}

/// Device, port, index and address.
type Gid = (String, String, String, std::net::Ipv6Addr);

/// The table lists exactly the addresses that `ibv_devinfo -v` prints below each port.
fn same_gids(place: &ProgramRunner, options: &[&str], way: ExampleTransport) -> Result<(), String> {
    let theirs = place.run(options, "ibv_devinfo", &["-v"])?;
    let ours = example(place, options, way, "show_gids", &[])?;
    let (expected, shown) = (gids_of_devinfo(theirs.well()?)?, gids_of_table(ours.well()?)?);
    let none_are_meant = options.contains(&"no_gids");
    if expected == shown && expected.is_empty() == none_are_meant {
        Ok(())
    } else {
        Err(format!("C shows {expected:#?}, and we show {shown:#?}"))
    }
}

fn gids_of_devinfo(text: &str) -> Result<BTreeSet<Gid>, String> {
    let (mut device, mut port, mut gids) = ("", "", BTreeSet::new());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("hca_id:") {
            device = name.trim();
        } else if let Some(number) = line.strip_prefix("port:") {
            port = number.trim();
        } else if let Some((index, gid)) = line.strip_prefix("GID[").and_then(|rest| rest.split_once("]:")) {
            // `fe80::1, RoCE v2`
            let gid = gid.split(',').next().unwrap_or_default().trim();
            let gid = gid.parse().map_err(|error| format!("{line}: {error}"))?;
            gids.insert((device.to_owned(), port.to_owned(), index.trim().to_owned(), gid));
        }
    }
    Ok(gids)
}

fn gids_of_table(text: &str) -> Result<BTreeSet<Gid>, String> {
    let mut gids = BTreeSet::new();
    for line in text.lines().skip(2) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [device, port, index, gid, ..] = cells[..] else { return Err(format!("too short: {line}")) };
        let gid = gid.parse().map_err(|error| format!("{line}: {error}"))?;
        gids.insert((device.to_owned(), port.to_owned(), index.to_owned(), gid));
    }
    Ok(gids)
}

/// The list shows the GUIDs that the example `ibv_devinfo` shows.
fn same_guids(place: &ProgramRunner, options: &[&str], way: ExampleTransport) -> Result<(), String> {
    let theirs: Vec<(String, String)> = crate::listing::listed(place, options)?;
    let ours = example(place, options, way, "ibv_devinfo", &[])?;
    let after = |label: &str| -> Result<Vec<String>, String> {
        let lines = ours.well()?.lines().filter_map(|line| line.trim().strip_prefix(label));
        Ok(lines.map(|value| value.trim().replace(':', "")).collect())
    };
    let ours: Vec<_> = after("hca_id:")?.into_iter().zip(after("node_guid:")?).collect();
    if ours == theirs && !ours.is_empty() { Ok(()) } else { Err(format!("{theirs:?} and {ours:?}")) }
}

/// No program ignores the configuration; each names the invalid value and the valid ones.
fn impossible(place: &ProgramRunner, options: &[&str], advice: &str) -> Result<(), String> {
    let theirs = place.run(options, "ibv_devices", &[])?;
    let mut all = vec![theirs];
    for way in ExampleTransport::ALL {
        all.push(example(place, options, way, "show_gids", &[])?);
    }
    match all.iter().find(|ended| ended.status.success() || !ended.stderr.contains(advice)) {
        Some(wrong) => Err(format!("{advice:?} was expected: {wrong}")),
        None => Ok(()),
    }
}

fn refused_options(place: &ProgramRunner) -> Result<(), String> {
    let cases = [
        (["--devices", "0"], "0 is not in 1..=16"),
        (["--devices", "17"], "17 is not in 1..=16"),
        (["--ports", "9"], "9 is not in 1..=8"),
    ];
    for (options, advice) in cases {
        let ended = place.run(&options, "true", &[])?;
        if ended.status.success() || !ended.stderr.contains(advice) {
            return Err(format!("{advice:?} was expected: {ended}"));
        }
    }
    Ok(())
}

/// A software device lacks addresses only because of a rule; the message says to change the rule.
fn no_gid(place: &ProgramRunner, way: ExampleTransport) -> Result<(), String> {
    let ended = example(place, &["--faults", "no_gids"], way, "rc_pingpong", &[])?;
    let is_told = ended.stderr.contains("port 1 of soft0 has no GID: a fault rule took them away (`no_gids`");
    if ended.status.code() == Some(2) && is_told { Ok(()) } else { Err(ended.to_string()) }
}

fn unknown_providers(place: &ProgramRunner) -> Result<(), String> {
    let started = examples::started(ExampleTransport::Library, "show_gids")?;
    let program = started.last().ok_or("there is a program")?;
    for value in ["Soft", "soft0", "hardware", "soft "] {
        let variable = format!("SIDEWAY_PROVIDER={value}");
        let ended = place.run(&[], "env", &[&variable, program])?;
        let advice =
            format!("error: {variable}: there is no such provider; choose `system`, `soft` or `auto`");
        if ended.status.code() != Some(2) || ended.stderr.trim_end() != advice {
            return Err(format!("{advice:?} was expected: {ended}"));
        }
    }
    // An empty variable counts as unset: the program uses the library's devices without a notice.
    let ended = place.run(&[], "env", &["SIDEWAY_PROVIDER=", program])?;
    if ended.well()?.contains("soft0") && ended.stderr.is_empty() { Ok(()) } else { Err(ended.to_string()) }
}
