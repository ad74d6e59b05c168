//! The ping-pong programs of ibverbs-utils.

use crate::ProgramTest;
use crate::pair::{PairProgram, play};
use crate::place::ProgramRunner;
use crate::process::ProgramOutcome;

const RC: &str = "ibv_rc_pingpong";
const UC: &str = "ibv_uc_pingpong";
const UD: &str = "ibv_ud_pingpong";
const SRQ: &str = "ibv_srq_pingpong";

/// A program and the flags of both sides, without the device and the GID's index.
const CASES: [(&str, &str); 26] = [
    (RC, "-n 300 -c"),
    (RC, "-n 300"),
    (RC, "-n 300 -e -c"),
    (RC, "-n 300 -N -c"),
    (RC, "-n 300 -N -e -c"),
    (RC, "-n 300 -t -c"),
    (RC, "-n 300 -t -N -c"),
    (RC, "-n 300 -s 1 -c"),
    (RC, "-n 100 -s 65536 -m 4096 -c"),
    (RC, "-n 20 -s 1048576 -c"),
    (RC, "-n 50 -s 63 -r 1 -c"),
    (RC, "-n 50 -s 5000 -m 256 -r 3 -c"),
    (UC, "-n 300 -c"),
    (UC, "-n 300"),
    (UC, "-n 300 -e -c"),
    (UC, "-n 100 -s 65536 -c"),
    (UD, "-n 300 -s 1024 -c"),
    (UD, "-n 300 -s 1024"),
    (UD, "-n 300 -s 1024 -e -c"),
    (UD, "-n 300 -s 4096 -c"),
    (SRQ, "-n 300 -c"),
    (SRQ, "-n 300"),
    (SRQ, "-n 300 -e -c"),
    (SRQ, "-n 100 -q 1 -c"),
    (SRQ, "-n 50 -q 64 -c"),
    (SRQ, "-n 100 -s 65536 -c"),
];

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for (program, flags) in CASES {
        // GID 0 is the link-local one, as on hardware; GID 1 has the host's address.
        for gid in ["0", "1"] {
            let name = format!("{program} -g {gid} {flags}");
            tests.push(ProgramTest::new(name, &[program], move |place| {
                ping_pong(place, program, flags, [&["-d", "soft0", "-g", gid]; 2], &[])
            }));
        }
    }
    for program in [RC, UC, UD, SRQ] {
        let flags = if program == UD { "-n 100 -s 1024 -c" } else { "-n 100 -c" };
        tests.push(ProgramTest::new(format!("{program} from soft1 to soft0"), &[program], move |place| {
            let devices = [&["-d", "soft0", "-g", "0"], &["-d", "soft1", "-g", "0"]];
            ping_pong(place, program, flags, devices, &["--devices", "2"])
        }));
    }
}

/// Runs server and client on two devices; both must succeed.
fn ping_pong(
    place: &ProgramRunner,
    program: &str,
    flags: &str,
    devices: [&[&str; 4]; 2],
    options: &[&str],
) -> Result<(), String> {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let [server, client] = devices.map(|device| [&device[..], &flags].concat());
    let side = |flags| PairProgram { options, program, flags };
    let (client, server) = play(place, side(&server), side(&client))?;
    let iterations = flags[1];
    went_well(&client, iterations)?;
    went_well(&server, iterations)?;
    agree(&client, &server)
}

/// Whether the program completed all iterations without an error.
pub(crate) fn went_well(ended: &ProgramOutcome, iterations: &str) -> Result<(), String> {
    ended.says("remote address:")?;
    ended.says(&format!("\n{iterations} iters in "))?;
    ended.says(" bytes in ")?;
    let complaints = ["Failed status", "invalid data", "Couldn't", "errno"];
    match complaints.iter().find(|words| ended.stderr.contains(**words) || ended.stdout.contains(**words)) {
        Some(complaint) => Err(format!("{complaint:?}: {ended}")),
        None => Ok(()),
    }
}

/// Whether both sides print the same addresses.
pub(crate) fn agree(client: &ProgramOutcome, server: &ProgramOutcome) -> Result<(), String> {
    let address = |ended: &ProgramOutcome, label: &str| {
        let line = ended.stdout.lines().find_map(|line| line.trim_start().strip_prefix(label));
        // `ibv_ud_pingpong` prints a colon in one of them.
        line.map(|line| line.trim().replace(": GID", ", GID"))
    };
    let both_ways = [(client, server), (server, client)];
    let same = |(one, other)| {
        let own = address(one, "local address:");
        own.is_some() && own == address(other, "remote address:")
    };
    if both_ways.into_iter().all(same) { Ok(()) } else { Err(format!("they disagree: {client}\n{server}")) }
}
