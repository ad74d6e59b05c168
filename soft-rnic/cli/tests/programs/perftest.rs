//! The programs of perftest.

use crate::ProgramTest;
use crate::pair::{PairProgram, play};
use crate::place::ProgramRunner;
use crate::process::ProgramOutcome;

/// A program and the flags of both sides, without the device and the GID's index.
const CASES: [(&str, &str); 54] = [
    ("ib_write_bw", "-n 300"),
    ("ib_write_bw", "-n 200 -a"),
    ("ib_write_bw", "-n 300 -b"),
    ("ib_write_bw", "-n 300 -q 4"),
    ("ib_write_bw", "-n 300 -b -q 4"),
    ("ib_write_bw", "-n 200 -c UC -a"),
    ("ib_write_bw", "-n 320 -l 8 -s 64"),
    ("ib_write_bw", "-n 300 -s 32 -I 32"),
    ("ib_write_bw", "-n 300 -m 256"),
    ("ib_write_bw", "-n 300 --use_old_post_send"),
    ("ib_write_lat", "-n 300"),
    ("ib_write_lat", "-n 100 -a"),
    ("ib_write_lat", "-n 300 -s 32 -I 32"),
    ("ib_read_bw", "-n 300"),
    ("ib_read_bw", "-n 200 -a"),
    ("ib_read_bw", "-n 300 -b"),
    ("ib_read_bw", "-n 300 -q 4"),
    ("ib_read_bw", "-n 300 -e"),
    ("ib_read_bw", "-n 300 -o 1"),
    ("ib_read_lat", "-n 300"),
    ("ib_read_lat", "-n 100 -a"),
    ("ib_read_lat", "-n 300 -e"),
    ("ib_send_bw", "-n 300"),
    ("ib_send_bw", "-n 200 -a"),
    ("ib_send_bw", "-n 300 -b"),
    ("ib_send_bw", "-n 300 -q 4"),
    ("ib_send_bw", "-n 300 -b -q 4"),
    ("ib_send_bw", "-n 300 -e"),
    ("ib_send_bw", "-n 300 -b -e"),
    ("ib_send_bw", "-n 300 -c UD -q 4"),
    ("ib_send_bw", "-n 300 -c UD -b"),
    ("ib_send_bw", "-n 300 --use-srq"),
    ("ib_send_bw", "-n 300 -c XRC -q 4"),
    ("ib_read_bw", "-n 300 -c XRC -q 4"),
    ("ib_send_bw", "-n 300 -s 32 -I 32"),
    ("ib_send_bw", "-n 300 -r 1"),
    ("ib_send_lat", "-n 300"),
    ("ib_send_lat", "-n 100 -a"),
    ("ib_send_lat", "-n 300 -e"),
    ("ib_send_lat", "-n 300 -c UC -e"),
    ("ib_send_lat", "-n 300 -c UD -e"),
    ("ib_send_lat", "-n 300 -s 32 -I 32"),
    ("ib_send_lat", "-n 300 --use_old_post_send"),
    ("ib_atomic_bw", "-n 300"),
    ("ib_atomic_bw", "-n 300 -A CMP_AND_SWAP"),
    ("ib_atomic_bw", "-n 300 -b"),
    ("ib_atomic_bw", "-n 300 -q 4"),
    ("ib_atomic_bw", "-n 300 -b -q 4"),
    ("ib_atomic_bw", "-n 300 -e"),
    ("ib_atomic_bw", "-n 300 -o 1"),
    ("ib_atomic_lat", "-n 300"),
    ("ib_atomic_lat", "-n 300 -A CMP_AND_SWAP"),
    ("ib_atomic_lat", "-n 300 -e"),
    ("ib_atomic_lat", "-n 300 -o 1"),
];

/// One of each program, for tests that concern all of them.
const PROGRAMS: [&str; 8] = [
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
];

/// Each program with each kind of connection that it has.
fn connections() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROGRAMS.into_iter().flat_map(|program| {
        let kinds: &[&str] = match program {
            "ib_send_bw" | "ib_send_lat" => &["RC", "UC", "UD", "XRC"],
            "ib_write_bw" | "ib_write_lat" => &["RC", "UC", "XRC"],
            _ => &["RC", "XRC"],
        };
        kinds.iter().map(move |kind| (program, *kind))
    })
}

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for (program, flags) in CASES {
        tests.push(ProgramTest::new(format!("{program} -x 0 {flags}"), &[program], move |place| {
            measure(place, program, flags, [&["-d", "soft0", "-x", "0"]; 2], &[])
        }));
    }
    for (program, connection) in connections() {
        let name = format!("{program} -x 0 -c {connection}");
        tests.push(ProgramTest::new(name, &[program], move |place| {
            let flags = format!("-n 300 -c {connection}");
            measure(place, program, &flags, [&["-d", "soft0", "-x", "0"]; 2], &[])
        }));
        let name = format!("{program} by LID -c {connection}");
        tests.push(ProgramTest::new(name, &[program], move |place| {
            let flags = format!("-n 300 -c {connection}");
            measure(place, program, &flags, [&["-d", "soft0"]; 2], &["--link", "ib"])
        }));
    }
    for program in PROGRAMS {
        tests.push(ProgramTest::new(format!("{program} -x 1"), &[program], move |place| {
            measure(place, program, "-n 300", [&["-d", "soft0", "-x", "1"]; 2], &[])
        }));
        tests.push(ProgramTest::new(format!("{program} from soft1 to soft0"), &[program], move |place| {
            let devices: [&[&str]; 2] = [&["-d", "soft0", "-x", "0"], &["-d", "soft1", "-x", "0"]];
            measure(place, program, "-n 300", devices, &["--devices", "2"])
        }));
    }
}

/// Runs a program between two devices; the client's table must have every row.
fn measure(
    place: &ProgramRunner,
    program: &str,
    flags: &str,
    devices: [&[&str]; 2],
    options: &[&str],
) -> Result<(), String> {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    // -F: a changing processor clock does not matter here.
    let [server, client] = devices.map(|device| [device, &flags, &["-F"]].concat());
    let side = |flags| PairProgram { options, program, flags };
    let (client, server) = play(place, side(&server), side(&client))?;
    for ended in [&client, &server] {
        for complaint in ["Failed status", "Completion with error", "Couldn't", "Unable to"] {
            if ended.stderr.contains(complaint) || ended.stdout.contains(complaint) {
                return Err(format!("{complaint:?}: {ended}"));
            }
        }
    }
    check_table(&client, &flags)
}

/// The column of the standard deviation in a table of latencies.
const DEVIATION: usize = 6;

/// The rows of perftest's table: size, iterations, figures.
fn check_table(client: &ProgramOutcome, flags: &[&str]) -> Result<(), String> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let rows: Vec<Vec<f64>> =
        client.stdout.lines().filter_map(numbers).filter(|row| row.len() >= 4).collect();
    let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    let all_sizes: Vec<f64> = (1..=23).map(|power| f64::from(1 << power)).collect();
    let right_sizes = match flags.iter().position(|flag| *flag == "-s") {
        _ if flags.contains(&"-a") => sizes == all_sizes,
        Some(at) => sizes == [flags[at + 1].parse::<f64>().map_err(|error| error.to_string())?],
        None => sizes.len() == 1,
    };
    let wanted: f64 = flags[1].parse().map_err(|_| "each case begins with -n")?;
    // With several queue pairs the row shows their sum.
    let all_ran = rows.iter().all(|row| row[1] >= wanted && row[1] % wanted == 0.0);
    // On a busy machine perftest may fail to calibrate its clock: it then prints this, and its
    // figures are 0.
    let no_clock = client.stderr.contains("Correlation coefficient");
    // Where a message took 100 ms, perftest's sum of squares overflows, and it prints "-nan" as the
    // standard deviation.
    let is_figure =
        |(column, figure): (usize, &f64)| *figure >= 0.0 || column == DEVIATION && figure.is_nan();
    let has_figures =
        rows.iter().all(|row| row.iter().enumerate().skip(2).all(is_figure) && (row[3] > 0.0 || no_clock));
    if right_sizes && all_ran && has_figures { Ok(()) } else { Err(format!("not the table: {client}")) }
}
