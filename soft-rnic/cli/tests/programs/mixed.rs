//! The examples' ping-pongs against the distribution's, and against each other across both ways to
//! the device.

use std::thread;
use std::time::Duration;

use crate::ProgramTest;
use crate::examples::{self, ExampleTransport};
use crate::pair::{PairProgram, free_port, play};
use crate::ping_pong::{agree, went_well};
use crate::place::ProgramRunner;
use crate::process::LIMIT;

const C: &str = "ibv_rc_pingpong";
const OURS: [&str; 2] = ["rc_pingpong", "rc_pingpong_split"];

/// Examples of other transports, the C program for each, and the flags of both.
const KIN: [(&str, &str, &[&str]); 3] = [
    (
        "uc_pingpong",
        "ibv_uc_pingpong",
        &[
            "-g 0 -n 300 -c",
            "-g 1 -n 300",
            "-g 0 -n 300 -e -c",
            "-g 0 -n 50 -s 65536 -m 4096 -c",
            "-g 0 -n 50 -s 1 -r 1 -c",
        ],
    ),
    (
        "ud_pingpong",
        "ibv_ud_pingpong",
        &[
            "-g 0 -n 300 -c",
            "-g 1 -n 300",
            "-g 0 -n 300 -e -c",
            "-g 0 -n 100 -s 4096 -c",
            "-g 0 -n 50 -s 1 -r 1 -c",
        ],
    ),
    (
        "srq_pingpong",
        "ibv_srq_pingpong",
        &[
            "-g 0 -n 300 -c",
            "-g 1 -n 300",
            "-g 0 -n 300 -e -c",
            "-g 0 -n 100 -q 1 -c",
            "-g 0 -n 200 -q 64 -r 64 -c",
            "-g 0 -n 5 -q 16 -c",
            "-g 0 -n 50 -s 65536 -m 4096 -c",
        ],
    ),
];

/// The flags of both sides, and those of the C program alone, because the example lacks them.
const CASES: [(&str, &str); 12] = [
    ("-g 0 -n 300 -c", ""),
    ("-g 1 -n 300 -c", ""),
    ("-g 0 -n 300", ""),
    ("-g 0 -n 300 -s 1 -c", ""),
    ("-g 0 -n 100 -s 65536 -m 4096 -c", ""),
    ("-g 0 -n 20 -s 1048576 -c", ""),
    ("-g 0 -n 50 -s 63 -r 1 -c", ""),
    ("-g 1 -n 50 -s 5000 -m 256 -r 3 -c", ""),
    ("-g 0 -n 300 -N -c", ""),
    // Both sides sleep until completions come, or only the C program does; the C program uses
    // timestamps.
    ("-g 0 -n 300 -c -e", ""),
    ("-g 0 -n 300 -c", "-e -N"),
    ("-g 0 -n 300 -c", "-t"),
];

/// A program, and how it reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Implementation {
    C(&'static str),
    Ours(&'static str, ExampleTransport),
}

impl Implementation {
    fn name(self) -> String {
        match self {
            Self::C(name) => name.to_owned(),
            Self::Ours(name, way) => format!("{name} {}", way.name()),
        }
    }

    /// The program to start, with these flags.
    fn command(self, flags: &str) -> Result<(&'static str, Vec<String>), String> {
        let flags = flags.split_whitespace().map(str::to_owned);
        match self {
            Self::C(name) => Ok((name, flags.collect())),
            Self::Ours(name, way) => {
                Ok(("env", examples::started(way, name)?.into_iter().chain(flags).collect()))
            }
        }
    }
}

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for ours in OURS {
        for way in ExampleTransport::ALL {
            let player = Implementation::Ours(ours, way);
            for (server, client) in [(player, Implementation::C(C)), (Implementation::C(C), player)] {
                for (flags, of_c) in CASES {
                    let name = format!("{} serves {} {flags} {of_c}", server.name(), client.name());
                    tests.push(ProgramTest::new(name.trim_end(), &[C], move |place| {
                        let all = format!("{flags} {of_c}");
                        let flags = [server, client]
                            .map(|side| if side == Implementation::C(C) { &all } else { flags });
                        ping_pong(place, [server, client], flags, ["soft0"; 2])
                    }));
                }
            }
            add_troubles(tests, ours, way);
        }
        add_both_ways(tests, ours, "-g 0 -n 300 -s 20000 -c");
    }
    for (ours, c, cases) in KIN {
        for way in ExampleTransport::ALL {
            let (ours, c_s) = (Implementation::Ours(ours, way), Implementation::C(c));
            for (server, client) in [(ours, c_s), (c_s, ours)] {
                for flags in cases {
                    let name = format!("{} serves {} {flags}", server.name(), client.name());
                    tests.push(ProgramTest::new(name, &[c], move |place| {
                        ping_pong(place, [server, client], [flags; 2], ["soft0"; 2])
                    }));
                }
                let name = format!("{} on soft1 serves {} on soft0", server.name(), client.name());
                tests.push(ProgramTest::new(name, &[c], move |place| {
                    ping_pong(place, [server, client], ["-g 0 -n 100 -s 1024 -c"; 2], ["soft1", "soft0"])
                }));
            }
        }
        add_both_ways(tests, ours, cases[0]);
    }
}

/// Runs the example against itself, once through the library and once natively.
fn add_both_ways(tests: &mut Vec<ProgramTest>, ours: &'static str, flags: &'static str) {
    for (server, client) in [
        (ExampleTransport::Library, ExampleTransport::Native),
        (ExampleTransport::Native, ExampleTransport::Library),
    ] {
        let (server, client) = (Implementation::Ours(ours, server), Implementation::Ours(ours, client));
        let name = format!("{} serves {}", server.name(), client.name());
        tests.push(ProgramTest::new(name, &[], move |place| {
            ping_pong(place, [server, client], [flags; 2], ["soft0"; 2])
        }));
    }
}

fn add_troubles(tests: &mut Vec<ProgramTest>, ours: &'static str, way: ExampleTransport) {
    let player = Implementation::Ours(ours, way);
    let name = player.name();
    tests.push(ProgramTest::new(format!("{name} from soft1 to C's soft0"), &[C], move |place| {
        ping_pong(place, [Implementation::C(C), player], ["-g 0 -n 100 -c"; 2], ["soft0", "soft1"])
    }));
    tests.push(ProgramTest::new(format!("{name} refuses -t"), &[], move |place| {
        let (program, flags) = player.command("-t")?;
        let ended = place.run(&[], program, &words(&flags))?;
        let is_told = ended.stderr.contains("-t (--ts) is not supported");
        if ended.status.code() == Some(2) && is_told { Ok(()) } else { Err(ended.to_string()) }
    }));
    tests.push(ProgramTest::new(format!("{name} and C with another path MTU"), &[C], move |place| {
        other_mtu(place, player)
    }));
    for is_server in [true, false] {
        let side = if is_server { "client" } else { "server" };
        tests.push(ProgramTest::new(format!("{name} survives C's {side}"), &[C], move |place| {
            survive(place, player, is_server)
        }));
    }
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// Server and client both finish, and each has printed the other's address.
fn ping_pong(
    place: &ProgramRunner,
    players: [Implementation; 2],
    flags: [&str; 2],
    devices: [&str; 2],
) -> Result<(), String> {
    let command = |side: usize| players[side].command(&format!("-d {} {}", devices[side], flags[side]));
    let ((server, server_flags), (client, client_flags)) = (command(0)?, command(1)?);
    let (server_flags, client_flags) = (words(&server_flags), words(&client_flags));
    let options = &["--devices", "2"];
    let side = |program, flags| PairProgram { options, program, flags };
    let (client, server) = play(place, side(server, &server_flags), side(client, &client_flags))?;
    let after = |flag| flags[0].split_whitespace().skip_while(move |word| *word != flag).nth(1);
    let iterations = after("-n").ok_or("each case has -n")?;
    went_well(&client, iterations)?;
    went_well(&server, iterations)?;
    agree(&client, &server)
}

/// One packet passes, several do not, and both sides report the reason.
fn other_mtu(place: &ProgramRunner, player: Implementation) -> Result<(), String> {
    let smaller = "-g 0 -n 20 -s 1024 -m 1024";
    let larger = "-g 0 -n 20 -s 1024 -m 4096";
    ping_pong(place, [player, Implementation::C(C)], [smaller, larger], ["soft0"; 2])?;
    let [smaller, larger] = [smaller, larger].map(|flags| flags.replace("-s 1024", "-s 2048"));
    let failed = ping_pong(place, [player, Implementation::C(C)], [&smaller, &larger], ["soft0"; 2]);
    // The C client sends first, and the example then sees the flush; each library words both
    // differently.
    let expected =
        ["failed status remote invalid request error (9)", "failed status work request flushed error (5)"];
    match failed {
        Err(said) if expected.iter().all(|words| said.to_lowercase().contains(words)) => Ok(()),
        other => Err(format!("{expected:?} were expected: {other:?}")),
    }
}

/// The C program is killed while it runs; the example ends and reports the reason.
fn survive(place: &ProgramRunner, player: Implementation, is_server: bool) -> Result<(), String> {
    let port = free_port()?.to_string();
    let endless = format!("-d soft0 -g 0 -s 64 -n 100000000 -p {port}");
    let (program, mut ours) = player.command(&format!("{endless} --timeout 3"))?;
    let (_, mut theirs) = Implementation::C(C).command(&endless)?;
    let client = if is_server { &mut theirs } else { &mut ours };
    client.push("127.0.0.1".to_owned());
    let number = port.parse().map_err(|_| "a port is a number")?;
    let start = |program: &str, flags: &[String]| place.start(&[], program, &words(flags));
    let (ours, theirs) = if is_server {
        let ours = start(program, &ours)?.wait_until("listened", |_| test_harness::is_listening(number))?;
        (ours, start(C, &theirs)?)
    } else {
        let theirs = start(C, &theirs)?.wait_until("listened", |_| test_harness::is_listening(number))?;
        (start(program, &ours)?, theirs)
    };
    let ours = ours.wait_until("met its peer", |said| said.contains("remote address"))?;
    thread::sleep(Duration::from_millis(100));
    drop(theirs);
    let ended = ours.finish_within(LIMIT)?;
    let reasons = ["Failed status ", "nothing completed for 3 s"];
    let is_told = reasons.iter().any(|reason| ended.stderr.contains(reason));
    if ended.status.code() == Some(1) && is_told { Ok(()) } else { Err(ended.to_string()) }
}
