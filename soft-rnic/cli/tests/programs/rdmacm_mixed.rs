//! The examples' programs of the connection manager against the distribution's, and against each
//! other across both ways to the device.

use crate::ProgramTest;
use crate::examples::{self, ExampleTransport};
use crate::pair::PairProgram;
use crate::place::ProgramRunner;
use crate::process::ProgramOutcome;
use crate::rdmacm::meet;

/// The flags of both sides of rping.
const RPINGS: [&str; 5] =
    ["-V -v -C 10", "-V -v -C 50 -S 4096", "-V -v -C 5 -S 65535", "-V -v -C 5 -S 26", "-V -v -C 10 -q"];

/// The flags of both sides of cmtime.
const CMTIMES: [&str; 2] = ["-c 100", "-c 200 -b 127.0.0.1"];

/// A side's program, and how it reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Implementation {
    C,
    Ours(ExampleTransport),
}

impl Implementation {
    /// All pairs of server and client with at least one example; pairs of two examples only if they
    /// reach the device differently.
    fn pairs() -> Vec<[Self; 2]> {
        let ours = ExampleTransport::ALL.map(Self::Ours);
        let against_c = ours.into_iter().flat_map(|ours| [[ours, Self::C], [Self::C, ours]]);
        against_c.chain([[ours[0], ours[1]], [ours[1], ours[0]]]).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::C => "C's",
            Self::Ours(ExampleTransport::Library) => "ours by the library",
            Self::Ours(ExampleTransport::Native) => "ours natively",
        }
    }

    fn title([server, client]: [Self; 2], program: &str, flags: &str) -> String {
        format!("{program} {flags}: {} serves {}", server.name(), client.name())
    }

    /// The program to start, with these flags.
    fn command(self, program: &'static str, flags: &str) -> Result<(&'static str, Vec<String>), String> {
        let flags = flags.split_whitespace().map(str::to_owned);
        match self {
            Self::C => Ok((program, flags.collect())),
            Self::Ours(way) => {
                Ok(("env", examples::started(way, program)?.into_iter().chain(flags).collect()))
            }
        }
    }
}

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for players in Implementation::pairs() {
        let needs = |program| if players.contains(&Implementation::C) { vec![program] } else { Vec::new() };
        for flags in RPINGS {
            let name = Implementation::title(players, "rping", flags);
            tests.push(ProgramTest::new(name, &needs("rping"), move |place| rping(place, players, flags)));
        }
        for flags in CMTIMES {
            let name = Implementation::title(players, "cmtime", flags);
            tests.push(ProgramTest::new(name, &needs("cmtime"), move |place| cmtime(place, players, flags)));
        }
        let name = Implementation::title(players, "rping", "-P");
        tests.push(ProgramTest::new(name, &needs("rping"), move |place| persistent(place, players)));
    }
    for (server, client) in [
        (ExampleTransport::Library, ExampleTransport::Native),
        (ExampleTransport::Native, ExampleTransport::Library),
    ] {
        let title = Implementation::title([server, client].map(Implementation::Ours), "many_clients", "");
        tests.push(ProgramTest::new(title.trim_end(), &[], move |place| many_clients(place, server, client)));
    }
}

/// Runs both; returns the client's and the server's output.
fn run(
    place: &ProgramRunner,
    program: &'static str,
    players: [Implementation; 2],
    flags: [&str; 2],
    stays: bool,
) -> Result<(ProgramOutcome, ProgramOutcome), String> {
    let (server, server_flags) = players[0].command(program, flags[0])?;
    let (client, client_flags) = players[1].command(program, flags[1])?;
    let [server_flags, client_flags] =
        [&server_flags, &client_flags].map(|flags| flags.iter().map(String::as_str).collect::<Vec<_>>());
    let side = |program, flags| PairProgram { options: &[], program, flags };
    meet(place, [side(server, &server_flags), side(client, &client_flags)], stays)
}

/// The server has read the client's data, and the client has verified the echo.
fn rping(place: &ProgramRunner, players: [Implementation; 2], flags: &str) -> Result<(), String> {
    let [server, client] = [format!("-s -a 127.0.0.1 {flags}"), format!("-c -a 127.0.0.1 {flags}")];
    let (client, server) = run(place, "rping", players, [&server, &client], false)?;
    let pings = |ended: &ProgramOutcome, label: &str| -> Vec<String> {
        let lines = ended.stdout.lines().filter_map(|line| line.strip_prefix(label));
        lines.map(str::to_owned).collect()
    };
    let (sent, read) = (pings(&client, "ping data: "), pings(&server, "server ping data: "));
    let count = flags.split_whitespace().skip_while(|word| *word != "-C").nth(1);
    if Some(sent.len().to_string().as_str()) == count && sent == read {
        Ok(())
    } else {
        Err(format!("they disagree: {client}\n{server}"))
    }
}

/// One server, one client after the other.
fn persistent(place: &ProgramRunner, players: [Implementation; 2]) -> Result<(), String> {
    let flags = ["-s -P -a 127.0.0.1", "-c -V -a 127.0.0.1 -C 20"];
    let (client, _) = run(place, "rping", players, flags, true)?;
    if client.stderr.contains("rror") { Err(client.to_string()) } else { Ok(()) }
}

/// Each row of the client's table shows a time above zero. The C program comes from rdma-core
/// before 52, whose server keeps running.
fn cmtime(place: &ProgramRunner, players: [Implementation; 2], flags: &str) -> Result<(), String> {
    let bound = if flags.contains("-b") { "-b 127.0.0.1" } else { "" };
    let earlier = if players.contains(&Implementation::C) { "" } else { "--earlier " };
    let server = format!("{earlier}{flags}");
    let client = format!("{earlier}-s 127.0.0.1 {flags}");
    let (client, _) = run(place, "cmtime", players, [&server, &client], true)?;
    let rows: Vec<&str> =
        client.stdout.lines().skip_while(|line| !line.starts_with("step ")).skip(1).collect();
    let steps = [
        "create id",
        "bind addr",
        "resolve addr",
        "resolve route",
        "create qp",
        "connect",
        "disconnect",
        "destroy",
    ];
    let steps = steps.iter().filter(|step| !bound.is_empty() || **step != "bind addr");
    let is_row = |(row, step): (&&str, &&str)| {
        let total =
            row.strip_prefix(*step).and_then(|rest| rest.trim_start_matches([' ', ':']).split(' ').next());
        total.and_then(|total| total.parse::<f64>().ok()).is_some_and(|total| total >= 0.0)
    };
    let complaint = client.stdout.contains("rror") || client.stderr.contains("rror");
    if !complaint && rows.len() == steps.clone().count() && rows.iter().zip(steps).all(is_row) {
        Ok(())
    } else {
        Err(format!("not the table: {client}"))
    }
}

/// A thousand clients at a time, on one thread.
fn many_clients(
    place: &ProgramRunner,
    server: ExampleTransport,
    client: ExampleTransport,
) -> Result<(), String> {
    let players = [server, client].map(Implementation::Ours);
    let flags = ["-n 1000", "127.0.0.1 -n 1000"];
    let (client, server) = run(place, "many_clients", players, flags, false)?;
    client.says("1000 clients connected, asked, were answered and hung up")?;
    server.says("1000 clients came, 1000 at a time at most: 1000 messages in, 1000 out,")?;
    server.says("; 0 rejected, 0 lost")
}
