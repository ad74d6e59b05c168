//! The programs of the connection manager: those of rdmacm-utils, and perftest's with `-R`.
//!
//! They find each other by soft0's addresses (such as `127.0.0.1`) and by ports of the software
//! connection manager, which are private to each test's fabric.

use std::fs;

use crate::pair::PairProgram;
use crate::place::ProgramRunner;
use crate::process::{LIMIT, ProgramOutcome};
use crate::{INLINE, ProgramTest};

pub(crate) const PROGRAMS: [&str; 12] = [
    "rping",
    "ucmatose",
    "udaddy",
    "cmtime",
    "mckey",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "rstream",
    "riostream",
    "rcopy",
];

struct ServerAndClient {
    programs: [&'static str; 2],
    /// Flags of both, before those of each: `PORT` stands for a port.
    flags: &'static str,
    server: &'static str,
    client: &'static str,
    /// The text that both print on success.
    says: &'static str,
    /// Whether the server keeps running after its client has finished.
    stays: bool,
}

/// The default values of a pair.
const PAIR: ServerAndClient = ServerAndClient {
    programs: ["ucmatose"; 2],
    flags: "",
    server: "",
    client: "-s 127.0.0.1",
    says: "return status 0",
    stays: false,
};
const UDADDY: ServerAndClient = ServerAndClient { programs: ["udaddy"; 2], ..PAIR };
const RPING: ServerAndClient = ServerAndClient {
    programs: ["rping"; 2],
    server: "-s -a 127.0.0.1",
    client: "-c -a 127.0.0.1",
    says: "",
    ..PAIR
};
const ENDPOINTS: ServerAndClient =
    ServerAndClient { programs: ["rdma_server", "rdma_client"], says: "end 0", ..PAIR };
const X_ENDPOINTS: ServerAndClient =
    ServerAndClient { programs: ["rdma_xserver", "rdma_xclient"], ..ENDPOINTS };

const CMTIME: ServerAndClient =
    ServerAndClient { programs: ["cmtime"; 2], says: "destroying id", stays: true, ..PAIR };

const RSTREAM: ServerAndClient =
    ServerAndClient { programs: ["rstream"; 2], client: "-s 127.0.0.1", says: "usec/xfer", ..PAIR };
const RIOSTREAM: ServerAndClient = ServerAndClient { programs: ["riostream"; 2], ..RSTREAM };

/// A port other than the default.
const PORT: u16 = 9471;

const PAIRS: [ServerAndClient; 43] = [
    ServerAndClient { flags: "-V -C 10", ..RPING },
    ServerAndClient { flags: "-v -C 10 -p PORT", says: "ping data: rdma-ping-9", ..RPING },
    ServerAndClient { flags: "-V -C 50 -S 4096 -p PORT", ..RPING },
    ServerAndClient { flags: "-v -C 10 -q -p PORT", says: "ping data: rdma-ping-9", ..RPING },
    ServerAndClient { flags: "-C 10 -p PORT", server: "-s -P -a 127.0.0.1", stays: true, ..RPING },
    ServerAndClient { flags: "-C 10 -p PORT", server: "-s", client: "-c -a 127.0.0.1 -I 127.0.0.1", ..RPING },
    ServerAndClient { flags: "", ..PAIR },
    ServerAndClient { flags: "-c 50 -C 3", ..PAIR },
    ServerAndClient { flags: "-C 20 -S 8192 -m", ..PAIR },
    ServerAndClient { flags: "-C 5 -m", ..PAIR },
    ServerAndClient { flags: "-C 5 -t 32 -a 14 -p PORT", ..PAIR },
    ServerAndClient { flags: "-C 5 -P ib", ..PAIR },
    ServerAndClient { flags: "-C 5", server: "-b 127.0.0.1", client: "-s 127.0.0.1 -b 127.0.0.1", ..PAIR },
    ServerAndClient { flags: "-C 5", client: "-s 127.0.0.1 -f ip", ..PAIR },
    ServerAndClient { flags: "", ..UDADDY },
    ServerAndClient { flags: "-c 20 -C 3", ..UDADDY },
    ServerAndClient { flags: "-C 20 -S 1024 -t 8", ..UDADDY },
    ServerAndClient { flags: "-C 5 -b 127.0.0.1", ..UDADDY },
    ServerAndClient { flags: "", ..ENDPOINTS },
    ServerAndClient { flags: "-p PORT", server: "-s 127.0.0.1", ..ENDPOINTS },
    ServerAndClient { flags: "", ..X_ENDPOINTS },
    ServerAndClient { flags: "-p PORT -c r", ..X_ENDPOINTS },
    ServerAndClient { flags: "-p PORT -c x", ..X_ENDPOINTS },
    ServerAndClient { flags: "-c 100 -p PORT", ..CMTIME },
    ServerAndClient { flags: "-c 500 -b 127.0.0.1", ..CMTIME },
    // Latency and bandwidth over rstream's default sizes take seconds, so only one case runs them.
    ServerAndClient { flags: "", says: "1m_bw", ..RSTREAM },
    ServerAndClient { flags: "-S all -C 20 -I 5 -T v", says: "custom", ..RSTREAM },
    ServerAndClient { flags: "-S 4096 -C 10 -I 50", ..RSTREAM },
    ServerAndClient { flags: "-S 100000 -C 10 -I 20 -T b -T v", ..RSTREAM },
    ServerAndClient { flags: "-S 100000 -C 10 -I 20 -T n -T v", ..RSTREAM },
    ServerAndClient { flags: "-S 5000 -C 10 -I 20 -T a", ..RSTREAM },
    ServerAndClient { flags: "-S 5000 -C 10 -I 20 -T a -T b", ..RSTREAM },
    ServerAndClient { flags: "-S 5000 -C 10 -I 20 -T a -T n -T v", ..RSTREAM },
    ServerAndClient { flags: "-S 5000 -C 10 -I 20 -T r -p PORT", ..RSTREAM },
    ServerAndClient { flags: "-S 1 -C 1000 -I 2 -T r -T a", ..RSTREAM },
    ServerAndClient { flags: "-S 1000 -C 10 -I 20 -B 65536 -i 32 -k 5", ..RSTREAM },
    ServerAndClient { flags: "-S 1000 -C 10 -I 20 -f ip -p PORT", server: "-b 127.0.0.1", ..RSTREAM },
    ServerAndClient { flags: "-S 1000 -C 10 -I 20 -f ipv6", server: "-b ::1", client: "-s ::1", ..RSTREAM },
    ServerAndClient { flags: "-S all -C 20 -I 5 -T v", says: "custom", ..RIOSTREAM },
    ServerAndClient { flags: "-S 4096 -C 10 -I 50", ..RIOSTREAM },
    ServerAndClient { flags: "-S 100000 -C 10 -I 20 -T b -T v", ..RIOSTREAM },
    ServerAndClient { flags: "-S 100000 -C 10 -I 20 -T n -T v", ..RIOSTREAM },
    ServerAndClient { flags: "-S 5000 -C 10 -I 20 -T a -T v -B 65536 -p PORT", ..RIOSTREAM },
];
/// perftest's programs and flags that make the connection manager connect.
const PERFTEST: [(&str, &str); 14] = [
    ("ib_write_bw", "-R -n 300"),
    ("ib_write_bw", "-R -n 300 -q 4"),
    ("ib_write_lat", "-R -n 300"),
    ("ib_read_bw", "-R -n 300"),
    ("ib_read_bw", "-R -n 300 -b"),
    ("ib_read_lat", "-R -n 300"),
    ("ib_send_bw", "-R -n 300"),
    ("ib_send_bw", "-R -n 300 -c UD"),
    ("ib_send_bw", "-R -n 300 -T 16"),
    ("ib_send_lat", "-R -n 300"),
    ("ib_send_lat", "-R -n 300 -c UD -e"),
    ("ib_atomic_bw", "-R -n 300"),
    ("ib_atomic_lat", "-R -n 300"),
    ("ib_send_bw", "-z -n 300"),
];
pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for pair in PAIRS {
        let ServerAndClient { programs, flags, server, client, .. } = pair;
        let sides = if server.is_empty() { client.to_owned() } else { format!("{client} to {server}") };
        let words = [programs[0], flags, &sides].into_iter().filter(|words| !words.is_empty());
        let name = words.collect::<Vec<_>>().join(" ");
        tests.push(ProgramTest::new(name, &programs.clone(), move |place| play(place, &pair)));
    }
    for (program, flags) in PERFTEST {
        tests.push(ProgramTest::new(format!("{program} {flags} by rdma_cm"), &[program], move |place| {
            let flags: Vec<&str> = flags.split_whitespace().chain(["-F"]).collect();
            let client = [&flags[..], &["127.0.0.1"]].concat();
            let sides = [&flags[..], &client].map(|flags| PairProgram { options: &[], program, flags });
            // perftest exchanges the attributes of all its queue pairs over one CM connection.
            let (client, _) = meet(place, sides, false)?;
            let row = |line: &str| line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let rows = client.stdout.lines().map(row);
            let done =
                rows.filter(|row: &Vec<f64>| row.len() >= 4 && row[1] >= 300.0 && row[3] > 0.0).count();
            if done == 1 { Ok(()) } else { Err(format!("not the table: {client}")) }
        }));
    }
    tests.push(ProgramTest::new("mckey", &["mckey"], multicast));
    tests.push(ProgramTest::new("rcopy", &["rcopy"], copy));
    tests.push(ProgramTest::new("ucmatose at soft1", &["ucmatose"], |place| {
        let side = |flags| PairProgram { options: &["--devices", "2"], program: "ucmatose", flags };
        let server = side(&["-b", "127.0.0.2", "-C", "5"]);
        let client = side(&["-s", "127.0.0.2", "-C", "5"]);
        let (client, server) = meet(place, [server, client], false)?;
        client.says("return status 0").and_then(|()| server.says("return status 0"))
    }));
    tests.push(ProgramTest::new("rping to nobody", &["rping"], |place| {
        let ended = place.run(&[], "rping", &["-c", "-a", "127.0.0.1", "-C", "1"])?;
        refused(&ended, "REJECTED, error 8")
    }));
    // librdmacm ignores a device without a GUID although the address is resolved, and its programs
    // crash.
    tests.push(ProgramTest::new("rdma_client without a GUID", &["rdma_client"], |place| {
        let ended = place.run(&["--faults", "node_guid=0"], "rdma_client", &["-s", "127.0.0.1"])?;
        refused(&ended, "rdma_create_ep: Invalid argument")
    }));
}

/// The program failed by itself, with this message.
fn refused(ended: &ProgramOutcome, words: &str) -> Result<(), String> {
    let failed = ended.status.code().is_some_and(|code| code != 0);
    let said = ended.stdout.contains(words) || ended.stderr.contains(words);
    if failed && said { Ok(()) } else { Err(format!("it should fail with {words:?}: {ended}")) }
}

fn play(place: &ProgramRunner, pair: &ServerAndClient) -> Result<(), String> {
    let with_port = pair.flags.replace("PORT", &PORT.to_string());
    let flags = |own: &'static str| own.split_whitespace().chain(with_port.split_whitespace()).collect();
    let [server, client]: [Vec<&str>; 2] = [flags(pair.server), flags(pair.client)];
    let side = |number: usize, flags| PairProgram { options: &[], program: pair.programs[number], flags };
    let (client, server) = meet(place, [side(0, &server), side(1, &client)], pair.stays)?;
    client.says(pair.says)?;
    if pair.stays { Ok(()) } else { server.says(pair.says) }
}

/// Runs both until they succeed, and terminates a server that keeps running. Returns the client's
/// and the server's output.
pub(crate) fn meet(
    place: &ProgramRunner,
    [server, client]: [PairProgram<'_>; 2],
    stays: bool,
) -> Result<(ProgramOutcome, ProgramOutcome), String> {
    let serving = place.start(server.options, server.program, server.flags)?;
    let serving = serving.wait_until("listened", |_| listens(place))?;
    let client = place.start(client.options, client.program, client.flags)?.finish_within(LIMIT);
    let well = client.as_ref().is_ok_and(|client| client.status.success());
    if stays || !well {
        serving.terminate()?;
    }
    match (client, serving.finish_within(LIMIT)) {
        (Ok(client), Ok(server)) if well && (stays || server.status.success()) => Ok((client, server)),
        (client, server) => {
            let words =
                |end: Result<ProgramOutcome, String>| end.map_or_else(|error| error, |end| end.to_string());
            Err(format!("client: {}\nserver: {}", words(client), words(server)))
        }
    }
}

/// Whether a process of this fabric listens through the connection manager.
fn listens(place: &ProgramRunner) -> bool {
    let there = soft_rnic::status::processes(Some(place.fabric())).unwrap_or_default();
    there.iter().any(|process| process.answer.as_ref().is_ok_and(|status| status.identifiers.listening > 0))
}

/// The sender repeats its messages, because those sent before the receiver joins are lost and the
/// test cannot ask whether it has joined.
///
/// The sender destroys its queue pair as soon as it has posted, which loses deferred work; so this
/// runs inline only.
fn multicast(place: &ProgramRunner) -> Result<(), String> {
    let flags = ["-b", "127.0.0.1", "-m", "239.1.2.3", "-C", "10"];
    let mut member = place.start(&[], "mckey", &flags)?;
    let at_once = place.of_mode(INLINE);
    for _ in 0..10 {
        let sender = at_once.run(&[], "mckey", &[&flags[..], &["-s"]].concat())?;
        sender.well()?;
        sender.says("return status 0")?;
        if member.has_ended() {
            break;
        }
    }
    let member = member.finish_within(LIMIT)?;
    member.well()?;
    member.says("return status 0")
}

/// Copies a file of several megabytes from one process to the other.
fn copy(place: &ProgramRunner) -> Result<(), String> {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let [from, to] = ["from", "to"].map(|name| folder.join(format!("rcopy-{}.{name}", place.fabric())));
    let bytes: Vec<u8> = (0..5_000_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&from, &bytes).map_err(|error| error.to_string())?;
    let port = "7473";
    let serving = place.start(&[], "rcopy", &["-p", port])?;
    let serving = serving.wait_until("listened", |_| listens(place))?;
    let there = format!("127.0.0.1:{}", to.display());
    let client = place.run(&[], "rcopy", &[&from.display().to_string(), &there, "-p", port]);
    serving.terminate()?;
    let server = serving.finish_within(LIMIT)?;
    let copied = fs::read(&to);
    let _ = (fs::remove_file(&from), fs::remove_file(&to));
    let client = client?;
    client.well()?;
    match copied {
        Ok(copied) if copied == bytes => Ok(()),
        Ok(copied) => Err(format!("{} bytes that differ: {client}\nserver: {server}", copied.len())),
        Err(error) => Err(format!("no copy, {error}: {client}\nserver: {server}")),
    }
}
