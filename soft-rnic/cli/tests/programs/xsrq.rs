//! `ibv_xsrq_pingpong`: extended reliable connections, one server to several clients.

use crate::ProgramTest;
use crate::pair::free_port;
use crate::place::ProgramRunner;
use crate::process::{LIMIT, ProgramOutcome};

const XSRQ: &str = "ibv_xsrq_pingpong";

/// The number of clients, and the flags of all sides, without the device and the GID's index.
const CASES: [(usize, &str); 7] = [
    (1, "-n 300"),
    (1, "-n 300 -e"),
    (1, "-n 300 -s 1"),
    (1, "-n 100 -s 65536 -m 4096"),
    (3, "-n 200"),
    (3, "-n 200 -e"),
    (10, "-n 20 -s 5000 -m 256"),
];

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for (clients, flags) in CASES {
        for gid in ["0", "1"] {
            let name = format!("{XSRQ} with {clients} clients -g {gid} {flags}");
            tests.push(ProgramTest::new(name, &[XSRQ], move |place| {
                serve(place, clients, flags, [&["-d", "soft0", "-g", gid]; 2], &[])
            }));
        }
    }
    tests.push(ProgramTest::new(format!("{XSRQ} from soft1 to soft0"), &[XSRQ], |place| {
        let devices = [&["-d", "soft0", "-g", "0"], &["-d", "soft1", "-g", "0"]];
        serve(place, 2, "-n 100", devices, &["--devices", "2"])
    }));
}

/// A server and its clients, which all succeed and print each other's addresses.
fn serve(
    place: &ProgramRunner,
    clients: usize,
    flags: &str,
    devices: [&[&str; 4]; 2],
    options: &[&str],
) -> Result<(), String> {
    let (port, count) = (free_port()?.to_string(), clients.to_string());
    let flags: Vec<&str> = flags.split_whitespace().chain(["-p", &port]).collect();
    let [server, client] = devices.map(|device| [&device[..], &flags].concat());
    let number = port.parse().map_err(|error| format!("{error}"))?;
    let serving = place
        .start(options, XSRQ, &[&server[..], &["-c", &count]].concat())?
        .wait_until("listened", |_| test_harness::is_listening(number))?;
    let client = [&client[..], &["127.0.0.1"]].concat();
    let playing: Vec<_> =
        (0..clients).map(|_| place.start(options, XSRQ, &client)).collect::<Result<_, _>>()?;
    let ended: Vec<ProgramOutcome> =
        playing.into_iter().map(|client| client.finish_within(LIMIT)).collect::<Result<_, _>>()?;
    let server = serving.finish_within(LIMIT)?;
    for side in ended.iter().chain([&server]) {
        went_well(side)?;
    }
    // Each side prints its address; each client's address appears in the server's list.
    let (told, heard) = (addresses(&server, "local"), addresses(&server, "remote"));
    let known = ended.iter().all(|client| {
        let (own, others) = (addresses(client, "local"), addresses(client, "remote"));
        own.len() == 1 && others.len() == 1 && heard.contains(&own[0]) && told.contains(&others[0])
    });
    if known && heard.len() == clients {
        Ok(())
    } else {
        {
            let words: Vec<String> = ended.iter().map(ToString::to_string).collect();
            Err(format!("they disagree: {server}\n{}", words.join("\n")))
        }
    }
}

fn went_well(ended: &ProgramOutcome) -> Result<(), String> {
    let complaints = ["rror", "Couldn't", "Failed", "Unable"];
    let wrong = complaints.iter().any(|words| ended.stderr.contains(words) || ended.stdout.contains(words));
    if ended.status.success() && !wrong { Ok(()) } else { Err(ended.to_string()) }
}

fn addresses(ended: &ProgramOutcome, label: &str) -> Vec<String> {
    let lines = ended.stdout.lines().filter_map(|line| line.trim_start().strip_prefix(label));
    lines
        .filter(|line| line.contains("SRQN"))
        .map(|line| line.trim_start_matches(':').trim().to_owned())
        .collect()
}
