//! Programs that list devices and show their attributes.

use std::os::unix::process::ExitStatusExt;

use crate::ProgramTest;
use crate::place::ProgramRunner;
use crate::process::LIMIT;

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    tests.push(ProgramTest::new("ibv_devices", &["ibv_devices"], devices));
    tests.push(ProgramTest::new("ibv_devices of three", &["ibv_devices"], three_devices));
    tests.push(ProgramTest::new("ibv_devinfo -l", &["ibv_devinfo"], |place| {
        place.run(&[], "ibv_devinfo", &["-l"])?.says("soft0")
    }));
    tests.push(ProgramTest::new("ibv_devinfo", &["ibv_devinfo"], device_information));
    tests.push(ProgramTest::new("ibv_devinfo -v", &["ibv_devinfo"], verbose_device_information));
    tests.push(ProgramTest::new("ibv_devinfo of two ports", &["ibv_devinfo"], two_ports));
    tests.push(ProgramTest::new("ibv_devinfo of no device", &["ibv_devinfo"], unknown_device));
    tests.push(ProgramTest::new("a program that is not there", &[], missing_program));
    tests.push(ProgramTest::new("an exit status", &["sh"], exit_status));
    tests.push(ProgramTest::new("ibv_asyncwatch", &["ibv_asyncwatch", "stdbuf"], asyncwatch));
    for (rules, device, events) in EVENTS {
        let name = format!("ibv_asyncwatch of {rules}");
        tests.push(ProgramTest::new(name, &["ibv_asyncwatch", "stdbuf"], move |place| {
            watch_events(place, rules, device, events)
        }));
    }
}

/// Fault rules, the device to watch, and the expected events.
const EVENTS: [(&str, &str, &[&str]); 4] = [
    (
        "port_down=50ms call=open_device",
        "soft0",
        &["IBV_EVENT_PORT_ERR (10), port 1", "IBV_EVENT_PORT_ACTIVE (9), port 1"],
    ),
    ("port_down port=2 call=open_device device=soft1", "soft1", &["IBV_EVENT_PORT_ERR (10), port 2"]),
    ("device_fatal call=open_device", "soft0", &["IBV_EVENT_DEVICE_FATAL (8), port 0"]),
    (
        "port_down call=open_device; device_fatal call=open_device",
        "soft1",
        &["IBV_EVENT_PORT_ERR (10), port 1", "IBV_EVENT_DEVICE_FATAL (8), port 0"],
    ),
];

/// The device and GUID of each line of `ibv_devices`.
pub(crate) fn listed(place: &ProgramRunner, options: &[&str]) -> Result<Vec<(String, String)>, String> {
    let ended = place.run(options, "ibv_devices", &[])?;
    let lines = ended.well()?.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_guid = |word: &str| word.len() == 16 && word.chars().all(|digit| digit.is_ascii_hexdigit());
    let devices = lines.filter_map(|words| match words[..] {
        [name, guid] if is_guid(guid) => Some((name.to_owned(), guid.to_owned())),
        _ => None,
    });
    Ok(devices.collect())
}

fn devices(place: &ProgramRunner) -> Result<(), String> {
    match &listed(place, &[])?[..] {
        [(name, guid)] if name == "soft0" && guid != "0000000000000000" => Ok(()),
        other => Err(format!("not soft0 alone: {other:?}")),
    }
}

fn three_devices(place: &ProgramRunner) -> Result<(), String> {
    let devices = listed(place, &["--devices", "3"])?;
    let names: Vec<_> = devices.iter().map(|(name, _)| name.as_str()).collect();
    let mut guids: Vec<_> = devices.iter().map(|(_, guid)| guid).collect();
    guids.sort();
    guids.dedup();
    if names == ["soft0", "soft1", "soft2"] && guids.len() == 3 {
        Ok(())
    } else {
        Err(format!("three devices, each with its GUID, were expected: {devices:?}"))
    }
}

fn device_information(place: &ProgramRunner) -> Result<(), String> {
    let ended = place.run(&[], "ibv_devinfo", &["-d", "soft0"])?;
    ended.well()?;
    for words in ["hca_id:\tsoft0", "PORT_ACTIVE (4)", "Ethernet", "phys_port_cnt:\t\t\t1"] {
        ended.says(words)?;
    }
    Ok(())
}

fn verbose_device_information(place: &ProgramRunner) -> Result<(), String> {
    let ended = place.run(&[], "ibv_devinfo", &["-v", "-d", "soft0"])?;
    ended.well()?;
    for words in ["max_mr_size:", "ATOMIC_HCA", "max_srq:", "GID[  0]:", "GID[  1]:", "RoCE v2", "fe80:"] {
        ended.says(words)?;
    }
    if ended.stderr.is_empty() { Ok(()) } else { Err(format!("it complained: {ended}")) }
}

fn two_ports(place: &ProgramRunner) -> Result<(), String> {
    let ended = place.run(&["--ports", "2"], "ibv_devinfo", &["-d", "soft0"])?;
    let ports = ended.well()?.matches("PORT_ACTIVE").count();
    if ports == 2 { Ok(()) } else { Err(format!("{ports} active ports instead of 2: {ended}")) }
}

fn unknown_device(place: &ProgramRunner) -> Result<(), String> {
    let ended = place.run(&[], "ibv_devinfo", &["-d", "hard0"])?;
    let is_told = ended.stderr.contains("IB device 'hard0' wasn't found");
    if !ended.status.success() && is_told { Ok(()) } else { Err(format!("it found it: {ended}")) }
}

/// The program waits for events until it is killed. `stdbuf` makes it flush each line.
fn asyncwatch(place: &ProgramRunner) -> Result<(), String> {
    let running = place.start(&[], "stdbuf", &["-oL", "ibv_asyncwatch", "-d", "soft0"])?;
    let running = running.wait_until("opened the device", |said| said.contains("soft0: async event FD"))?;
    running.terminate()?;
    let ended = running.finish_within(LIMIT)?;
    const SIGTERM: i32 = 15;
    if ended.status.signal() == Some(SIGTERM) { Ok(()) } else { Err(format!("not ended: {ended}")) }
}

/// The events arrive in order, and no others do.
fn watch_events(place: &ProgramRunner, rules: &str, device: &str, events: &[&str]) -> Result<(), String> {
    let options = ["--devices", "2", "--ports", "2", "--faults", rules];
    let running = place.start(&options, "stdbuf", &["-oL", "ibv_asyncwatch", "-d", device])?;
    let heard = |said: &str| said.matches("event_type").count() >= events.len();
    let running = running.wait_until("heard of it all", heard)?;
    running.terminate()?;
    let ended = running.finish_within(LIMIT)?;
    let lines = ended.stdout.lines().filter_map(|line| line.trim().strip_prefix("event_type "));
    if lines.eq(events.iter().copied()) { Ok(()) } else { Err(format!("{events:?} were expected: {ended}")) }
}

fn missing_program(place: &ProgramRunner) -> Result<(), String> {
    let ended = place.run(&[], "env", &["no-such-program"])?;
    let ours = place.run(&[], "/no/such/program", &[])?;
    let is_told = ours.stderr.contains("cannot run /no/such/program");
    let codes = [&ended, &ours].map(|ended| ended.status.code());
    if is_told && codes == [Some(127); 2] { Ok(()) } else { Err(format!("{ended}\n{ours}")) }
}

/// The program replaces the launcher, so its exit status is the launcher's.
fn exit_status(place: &ProgramRunner) -> Result<(), String> {
    let ended = place.run(&["--devices", "7"], "sh", &["-c", "echo $SOFT_RNIC_DEVICES; exit 3"])?;
    if ended.status.code() == Some(3) && ended.stdout == "7\n" { Ok(()) } else { Err(ended.to_string()) }
}
