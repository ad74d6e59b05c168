//! The ping-pong programs, with each other and with the C programs.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::common::{Output, RunningProgram, example, on_path};
use crate::test_device::{TestDevice, tcp_port};
use crate::{InteropTest, Needs};

/// The program on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PingPongProgram {
    C,
    Rust,
    Split,
    /// An example of another kind; with `C` on the other side its C counterpart.
    Kin(&'static str),
    Twin(&'static str),
}

const C_PROGRAM: &str = "ibv_rc_pingpong";

/// The examples whose output has the C program's four lines, and their counterparts.
const KIN: [(&str, &str); 2] = [("uc_pingpong", "ibv_uc_pingpong"), ("ud_pingpong", "ibv_ud_pingpong")];

impl PingPongProgram {
    fn name(self) -> &'static str {
        match self {
            Self::C => "c",
            Self::Rust => "rc_pingpong",
            Self::Split => "rc_pingpong_split",
            Self::Kin(name) | Self::Twin(name) => name,
        }
    }

    fn program(self) -> Result<PathBuf, String> {
        match self {
            Self::C => on_path(C_PROGRAM).ok_or_else(|| format!("{C_PROGRAM} is gone")),
            Self::Twin(name) => on_path(name).ok_or_else(|| format!("{name} is gone")),
            _ => example(self.name()),
        }
    }
}

/// All combinations with at least one example of this package.
const PAIRS: [(PingPongProgram, PingPongProgram); 8] = [
    (PingPongProgram::C, PingPongProgram::Rust),
    (PingPongProgram::Rust, PingPongProgram::C),
    (PingPongProgram::C, PingPongProgram::Split),
    (PingPongProgram::Split, PingPongProgram::C),
    (PingPongProgram::Rust, PingPongProgram::Rust),
    (PingPongProgram::Rust, PingPongProgram::Split),
    (PingPongProgram::Split, PingPongProgram::Rust),
    (PingPongProgram::Split, PingPongProgram::Split),
];

pub(crate) fn add(tests: &mut Vec<InteropTest>) {
    for (server, client) in PAIRS {
        let against_c = [server, client].contains(&PingPongProgram::C);
        let needs = if against_c { Needs::C(C_PROGRAM) } else { Needs::Nothing };
        let mut add = |name: &str, flags: &'static [&'static str]| {
            let name = format!("{}_serves_{}::{name}", server.name(), client.name());
            tests.push(InteropTest::new(name, needs, move |dut| play(dut, server, client, flags)));
        };
        add("1_byte", &["-s", "1", "-n", "20", "-c"]);
        add("4096_bytes", &["-s", "4096", "-n", "20", "-c"]);
        add("65536_bytes", &["-s", "65536", "-n", "5", "-c"]);
        add("asleep", &["-s", "64", "-n", "200", "-e", "-c"]);
        if !against_c {
            continue;
        }
        add("63_bytes_and_no_check", &["-s", "63", "-n", "10"]);
        add("5000_bytes_of_no_whole_page", &["-s", "5000", "-n", "11", "-c"]);
        add("once", &["-n", "1", "-c"]);
        add("often", &["-s", "64", "-n", "1000", "-c"]);
        add("one_receive_at_a_time", &["-s", "64", "-n", "30", "-r", "1", "-c"]);
        add("few_receives", &["-s", "64", "-n", "30", "-r", "3", "-c"]);
        add("small_packets", &["-s", "10000", "-n", "5", "-m", "256", "-c"]);
        add("service_level_and_port", &["-s", "64", "-n", "5", "-l", "1", "-i", "1"]);
        add("ibv_wr", &["-s", "2048", "-n", "10", "-N", "-c"]);
    }
    for (ours, twin) in KIN {
        let (kin, c) = (PingPongProgram::Kin(ours), PingPongProgram::Twin(twin));
        for (server, client) in [(kin, c), (c, kin), (kin, kin)] {
            let needs = if server == client { Needs::Nothing } else { Needs::C(twin) };
            let mut add = |name: &str, flags: &'static [&'static str]| {
                let name = format!("{}_serves_{}::{name}", server.name(), client.name());
                tests.push(InteropTest::new(name, needs, move |dut| play(dut, server, client, flags)));
            };
            add("1_byte", &["-s", "1", "-n", "20", "-c"]);
            add("1024_bytes", &["-s", "1024", "-n", "20", "-c"]);
            add("asleep", &["-s", "64", "-n", "200", "-e", "-c"]);
        }
    }
    for ours in [PingPongProgram::Rust, PingPongProgram::Split] {
        let name = ours.name();
        let c = Needs::C(C_PROGRAM);
        tests.push(InteropTest::new(format!("{name}::chooses_a_gid"), Needs::Nothing, move |dut| {
            choose_a_gid(dut, ours)
        }));
        tests.push(InteropTest::new(format!("{name}::notices_what_was_not_marked"), c, move |dut| {
            play_unmarked(dut, ours)
        }));
        for dies in [PingPongProgram::C, ours] {
            let needs = if dies == PingPongProgram::C { c } else { Needs::Nothing };
            let whose = if dies == PingPongProgram::C { "c" } else { "its" };
            tests.push(InteropTest::new(format!("{name}::survives_{whose}_client"), needs, move |dut| {
                lose_the_peer(dut, ours, dies, true)
            }));
            tests.push(InteropTest::new(format!("{name}::survives_{whose}_server"), needs, move |dut| {
                lose_the_peer(dut, dies, ours, false)
            }));
        }
    }
}

/// Starts a server, waits until it listens, and starts its client.
fn start(
    dut: &TestDevice,
    (server, server_flags): (PingPongProgram, &[&str]),
    (client, client_flags): (PingPongProgram, &[&str]),
) -> Result<(RunningProgram, RunningProgram), String> {
    let port = tcp_port()?;
    let port_text = port.to_string();
    let common = ["-d", dut.device.as_str(), "-p", port_text.as_str()];
    let mut server = RunningProgram::start(&server.program()?, &[&common, server_flags].concat(), &[])?;
    server.wait_for("listened", |_| test_harness::is_listening(port))?;
    let client =
        RunningProgram::start(&client.program()?, &[&common, client_flags, &["127.0.0.1"]].concat(), &[])?;
    Ok((server, client))
}

/// The stdout of both sides, if both succeeded.
fn finish((server, client): (RunningProgram, RunningProgram)) -> Result<(String, String), String> {
    let client = client.finish()?;
    if client.code != Some(0) {
        return Err(format!("the client failed: {client}\nand its server: {}", kill(server)));
    }
    Ok((server.finish()?.ok()?, client.stdout))
}

fn kill(mut running: RunningProgram) -> String {
    running.kill();
    running.finish().map_or_else(|error| error, |output| output.to_string())
}

fn play(
    dut: &TestDevice,
    server: PingPongProgram,
    client: PingPongProgram,
    flags: &[&str],
) -> Result<(), String> {
    let flags = [&["-g", dut.gid_index.as_str()], flags].concat();
    let (server, client) = finish(start(dut, (server, &flags), (client, &flags))?)?;
    check(&server, &client, &flags)
}

/// Checks that both sides print the C program's lines.
fn check(server: &str, client: &str, flags: &[&str]) -> Result<(), String> {
    let number = |flag: &str, default: u64| -> u64 {
        let at = flags.iter().position(|given| *given == flag);
        at.and_then(|at| flags.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let (size, iters) = (number("-s", 4096), number("-n", 1000));
    let failed = |what: &str| Err(format!("{what}; the server printed\n{server}and the client\n{client}"));
    // `ibv_ud_pingpong` has a colon in one of its lines.
    let (server, client) = (&server.replace(": GID", ", GID"), &client.replace(": GID", ", GID"));
    for text in [server, client] {
        let lines: Vec<&str> = text.lines().collect();
        let [local, remote, bytes, each] = lines[..] else {
            return failed("the output does not have four lines");
        };
        if !is_address(local, "  local address:  ") || !is_address(remote, "  remote address: ") {
            return failed("an address has another format");
        }
        let bytes_begin = format!("{} bytes in ", size * iters * 2);
        if !is_measure(bytes, &bytes_begin, "Mbit/sec")
            || !is_measure(each, &format!("{iters} iters in "), "usec/iter")
        {
            return failed("the speed has another format");
        }
    }
    let address = |text: &str, line: usize| text.lines().nth(line).map(|line| line[18..].to_owned());
    if address(server, 0) != address(client, 1) || address(server, 1) != address(client, 0) {
        return failed("they print different addresses");
    }
    Ok(())
}

/// `LID 0x0000, QPN 0x000011, PSN 0x6f79a8, GID ::ffff:10.77.0.1`
fn is_address(line: &str, label: &str) -> bool {
    let Some(rest) = line.strip_prefix(label) else { return false };
    let fields: Vec<&str> = rest.split(", ").collect();
    let [lid, qpn, psn, gid] = fields[..] else { return false };
    let hex = |field: &str, label: &str, digits: usize| {
        let number = field.strip_prefix(label).and_then(|field| field.strip_prefix(" 0x"));
        number.is_some_and(|number| number.len() == digits && u32::from_str_radix(number, 16).is_ok())
    };
    let gid = gid.strip_prefix("GID ").and_then(|gid| gid.parse::<std::net::Ipv6Addr>().ok());
    hex(lid, "LID", 4) && hex(qpn, "QPN", 6) && hex(psn, "PSN", 6) && gid.is_some()
}

/// `8192000 bytes in 0.02 seconds = 3276.80 Mbit/sec`
fn is_measure(line: &str, begin: &str, unit: &str) -> bool {
    let Some((seconds, speed)) = line.strip_prefix(begin).and_then(|rest| rest.split_once(" seconds = "))
    else {
        return false;
    };
    let two_places = |number: &str| {
        number.split_once('.').is_some_and(|(_, places)| places.len() == 2) && number.parse::<f64>().is_ok()
    };
    let speed = speed.strip_suffix(unit).and_then(|speed| speed.strip_suffix(' '));
    // C divides by 0 if a single iteration takes less than a microsecond of the guest's clock.
    let is_infinite = |speed| speed == "inf" && seconds == "0.00";
    two_places(seconds) && speed.is_some_and(|speed| two_places(speed) || is_infinite(speed))
}

/// Without `-g`, which the C program needs on Ethernet.
fn choose_a_gid(dut: &TestDevice, player: PingPongProgram) -> Result<(), String> {
    let flags = ["-n", "5", "-s", "64"];
    let (server, client) = finish(start(dut, (player, &flags), (player, &flags))?)?;
    let gid = format!("GID {}", std::net::Ipv6Addr::from(dut.gid));
    if !server.contains(&gid) {
        return Err(format!("the server did not choose {gid}:\n{server}"));
    }
    check(&server, &client, &flags)
}

/// The server checks the data, but the client did not mark it.
fn play_unmarked(dut: &TestDevice, server: PingPongProgram) -> Result<(), String> {
    let flags = ["-g", dut.gid_index.as_str(), "-n", "5", "-s", "9000"];
    let (server, client) =
        start(dut, (server, &[&flags[..], &["-c"]].concat()), (PingPongProgram::C, &flags))?;
    client.finish()?.ok()?;
    let server = server.finish()?;
    let complaints: Vec<&str> = server.stdout.lines().filter(|line| line.starts_with("invalid")).collect();
    let expected: Vec<String> =
        (0..9000usize.div_ceil(page_size())).map(|page| format!("invalid data in page {page}")).collect();
    if server.code == Some(1) && complaints == expected { Ok(()) } else { Err(server.to_string()) }
}

fn page_size() -> usize {
    rustix::param::page_size()
}

/// One side is killed during the exchange; the other must end with an error.
fn lose_the_peer(
    dut: &TestDevice,
    server: PingPongProgram,
    client: PingPongProgram,
    client_dies: bool,
) -> Result<(), String> {
    let gid = ["-g", dut.gid_index.as_str()];
    let endless = [&gid[..], &["-s", "64", "-n", "100000000"]].concat();
    // The survivor polls, and an emulated processor takes many seconds for each of these.
    let patience = if dut.is_guest { "1" } else { "3" };
    let ours = [&endless[..], &["--timeout", patience]].concat();
    let flags = |survives: bool| if survives { &ours[..] } else { &endless[..] };
    let (server, client) = start(dut, (server, flags(client_dies)), (client, flags(!client_dies)))?;
    let (mut dies, mut survives) = if client_dies { (client, server) } else { (server, client) };
    survives.wait_for("connected", |stdout| stdout.contains("remote address"))?;
    thread::sleep(Duration::from_millis(300));
    dies.kill();
    let Output { code, stderr, title, .. } = survives.finish()?;
    let gave_up = format!("nothing completed for {patience} s");
    if code == Some(1) && ["Failed status ", &gave_up].iter().any(|reason| stderr.contains(reason)) {
        return Ok(());
    }
    Err(format!("{title} ended with {code:?}: {stderr}"))
}
