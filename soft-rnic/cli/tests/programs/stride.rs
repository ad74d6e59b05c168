//! stride-perf beside perftest: figures with the same name measure the same thing. Their size does
//! not matter here.
//!
//! Both run with the same flags over the same device. The test checks each output against its
//! definition: the bytes and messages of a bandwidth, the half of a round trip, and the rank of a
//! percentile among the samples.

use std::fs;
use std::path::PathBuf;

use crate::ProgramTest;
use crate::examples::{ExampleTransport, started};
use crate::pair::{PairProgram, play};
use crate::place::ProgramRunner;
use crate::process::ProgramOutcome;

/// The same verb in both tools.
const VERBS: [(&str, &str); 4] =
    [("ib_write", "write"), ("ib_read", "read"), ("ib_send", "send"), ("ib_atomic", "atomic")];

/// The flags of both tools.
const COUNTED: [(&str, &str, &str); 8] = [
    ("ib_write_bw", "write bw", "-n 300"),
    ("ib_write_bw", "write bw", "-n 300 -s 4096 -q 4"),
    ("ib_write_bw", "write bw", "-n 320 -s 64 -l 8"),
    ("ib_write_bw", "write bw", "-n 300 -b"),
    ("ib_read_bw", "read bw", "-n 300 -s 4096"),
    ("ib_send_bw", "send bw", "-n 300 -s 4096 -q 2"),
    ("ib_send_bw", "send bw", "-n 300 -c UD -s 512"),
    ("ib_atomic_bw", "atomic bw", "-n 300"),
];

/// The delay of every message in microseconds, long enough that all other costs are small beside
/// it.
const DELAY: f64 = 20_000.0;

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    for (theirs, ours, flags) in COUNTED {
        let name = format!("{theirs} and stride-perf count the same messages and bytes: {flags}");
        tests.push(ProgramTest::new(name, &[theirs], move |place| count(place, theirs, ours, flags)));
    }
    for (theirs, ours) in VERBS {
        let program = program(theirs);
        let name = format!("{program} and stride-perf mean the same by latency");
        tests.push(ProgramTest::new(name, &[program], move |place| delayed(place, program, ours)));
    }
    for (theirs, ours, columns) in [("ib_write_bw", "write bw", 5), ("ib_write_lat", "write lat", 9)] {
        let name = format!("{theirs} and stride-perf --compat perftest have the same columns");
        tests.push(ProgramTest::new(name, &[theirs], move |place| alike(place, theirs, ours, columns)));
    }
    let name = "ib_write_lat and stride-perf give percentiles the same rank";
    tests.push(ProgramTest::new(name, &["ib_write_lat"], ranked));
}

fn program(verb: &str) -> &'static str {
    match verb {
        "ib_read" => "ib_read_lat",
        "ib_send" => "ib_send_lat",
        "ib_atomic" => "ib_atomic_lat",
        _ => "ib_write_lat",
    }
}

/// The output of perftest's client.
fn perftest(
    place: &ProgramRunner,
    program: &str,
    flags: &str,
    options: &[&str],
) -> Result<ProgramOutcome, String> {
    let flags = format!("-d soft0 -x 0 -F {flags}");
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let side = PairProgram { options, program, flags: &flags };
    Ok(play(place, side, side)?.0)
}

/// The output of stride-perf's client.
fn stride(
    place: &ProgramRunner,
    test: &str,
    flags: &str,
    options: &[&str],
) -> Result<ProgramOutcome, String> {
    let words = started(ExampleTransport::Library, "stride-perf")?;
    let rest = format!("{test} -d soft0 -x 0 {flags}");
    let flags: Vec<&str> = words.iter().map(String::as_str).chain(rest.split_whitespace()).collect();
    let server: Vec<&str> = flags.iter().copied().take_while(|flag| *flag != "--json").collect();
    let side = |flags| PairProgram { options, program: "env", flags };
    Ok(play(place, side(&server), side(&flags))?.0)
}

/// The only row of a table: a line of exactly `columns` numbers.
fn row(ended: &ProgramOutcome, columns: usize) -> Result<Vec<f64>, String> {
    let numbers =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    let mut rows = ended.stdout.lines().filter_map(numbers).filter(|row| row.len() == columns);
    match (rows.next(), rows.next()) {
        (Some(row), None) => Ok(row),
        _ => Err(format!("not one row of {columns} numbers: {ended}")),
    }
}

fn count(place: &ProgramRunner, theirs: &str, ours: &str, flags: &str) -> Result<(), String> {
    let perftest = perftest(place, theirs, &format!("{flags} --report_gbits"), &[])?;
    // On a busy machine perftest may fail to calibrate its clock: it then prints this, and its
    // figures are 0.
    let has_clock = !perftest.stderr.contains("Correlation coefficient");
    let theirs = row(&perftest, 5)?;
    let ours = row(&stride(place, ours, flags, &[])?, 4)?;
    if theirs[..2] != ours[..2] {
        return Err(format!(
            "sizes and iterations: perftest {:?}, stride-perf {:?}",
            &theirs[..2],
            &ours[..2]
        ));
    }
    // The printed precision: two decimal places, or six for a small figure.
    let digit = |gigabits: f64| if gigabits < 0.1 { 1e-6 } else { 1e-2 };
    let figures = [("perftest", theirs[3], theirs[4], has_clock), ("stride-perf", ours[2], ours[3], true)];
    for (tool, gigabits, million_messages, counts) in figures {
        let of_messages = million_messages * 1e6 * theirs[0] * 8.0 / 1e9;
        let wrong = (gigabits - of_messages).abs() > digit(gigabits) + of_messages * 1e-4;
        if counts && (wrong || gigabits <= 0.0) {
            return Err(format!(
                "{tool}: {gigabits} Gb/s are not {million_messages} Mpps of {} bytes",
                theirs[0]
            ));
        }
    }
    Ok(())
}

/// A parser of perftest's table also reads stride-perf's.
fn alike(place: &ProgramRunner, theirs: &str, ours: &str, columns: usize) -> Result<(), String> {
    let flags = "-n 300 -s 64";
    let theirs = perftest(place, theirs, flags, &[])?;
    let ours = stride(place, ours, &format!("{flags} --compat perftest"), &[])?;
    let heading = |ended: &ProgramOutcome| -> Option<Vec<String>> {
        let line = ended.stdout.lines().find(|line| line.contains("#bytes"))?;
        Some(line.split_whitespace().map(str::to_owned).collect())
    };
    if heading(&ours).is_none() || heading(&ours) != heading(&theirs) {
        return Err(format!("not the same columns: {theirs}, {ours}"));
    }
    let (theirs, ours) = (row(&theirs, columns)?, row(&ours, columns)?);
    if theirs[..2] == ours[..2] { Ok(()) } else { Err(format!("perftest {theirs:?}, stride-perf {ours:?}")) }
}

/// Every message is delayed by the same time, so half of a round trip is that time, and a whole one
/// is twice as much.
fn delayed(place: &ProgramRunner, theirs: &str, ours: &str) -> Result<(), String> {
    let faults = format!("delay={}us", DELAY as u64);
    let options = ["--faults", faults.as_str()];
    let flags = "-n 10";
    let perftest = perftest(place, theirs, flags, &options)?;
    let has_clock = !perftest.stderr.contains("Correlation coefficient");
    // perftest: size, iterations, min, max, typical and so on; stride-perf: size, iterations, min,
    // avg, p50 and so on.
    let theirs = row(&perftest, 9)?;
    let ours = row(&stride(place, &format!("{ours} lat"), flags, &options)?, 10)?;
    if theirs[..2] != ours[..2] {
        return Err(format!(
            "sizes and iterations: perftest {:?}, stride-perf {:?}",
            &theirs[..2],
            &ours[..2]
        ));
    }
    for (tool, typical, counts) in [("perftest", theirs[4], has_clock), ("stride-perf", ours[4], true)] {
        if counts && !(DELAY * 0.95..DELAY * 1.9).contains(&typical) {
            return Err(format!(
                "{tool}: {typical} us, where a message takes {DELAY} us: {theirs:?}, {ours:?}"
            ));
        }
    }
    Ok(())
}

/// The percentiles that a tool prints, and the samples behind them.
struct Ranked {
    tool: &'static str,
    samples: Vec<f64>,
    median: f64,
    p99: f64,
    p99_9: f64,
    extremes: [f64; 2],
    average: f64,
    /// The number of greatest samples that the tool excludes from the average and the maximum.
    left_out: usize,
    /// The most by which a sample may differ from the printed figure: an absolute and a relative
    /// part.
    digit: f64,
    part: f64,
}

fn ranked(place: &ProgramRunner) -> Result<(), String> {
    const FLAGS: &str = "-n 2000 -s 64";
    let perftest = perftest(place, "ib_write_lat", &format!("{FLAGS} -U"), &[])?;
    if !perftest.stderr.contains("Correlation coefficient") {
        of_perftest(&perftest)?.check()?;
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("ranks-{}.json", place.fabric()));
    let json = path.to_str().ok_or("the target folder's path is no text")?;
    let ours = stride(place, "write lat", &format!("{FLAGS} --json {json} --force"), &[])?;
    let document = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let _ = fs::remove_file(&path);
    of_stride(&ours, &document)?.check()
}

fn of_perftest(ended: &ProgramOutcome) -> Result<Ranked, String> {
    let sample = |line: &str| {
        line.split_once(", ").and_then(|(number, us)| {
            number.trim().parse::<u64>().ok()?;
            us.trim().parse().ok()
        })
    };
    let row = row(ended, 9)?;
    Ok(Ranked {
        tool: "perftest",
        samples: ended.stdout.lines().filter_map(sample).collect(),
        median: row[4],
        p99: row[7],
        p99_9: row[8],
        extremes: [row[2], row[3]],
        average: row[5],
        // perftest never prints the greatest sample, and its average excludes the second greatest,
        // too.
        left_out: 2,
        digit: 0.011,
        part: 1e-4,
    })
}

/// Samples have a precision of one part in a thousand, because they are counted in buckets.
fn of_stride(ended: &ProgramOutcome, document: &str) -> Result<Ranked, String> {
    let row = row(ended, 10)?;
    let document: serde_json::Value = serde_json::from_str(document).map_err(|error| error.to_string())?;
    let buckets = &document["results"][0]["histogram"]["buckets_us"];
    let buckets: Vec<(f64, usize)> =
        serde_json::from_value(buckets.clone()).map_err(|error| error.to_string())?;
    Ok(Ranked {
        tool: "stride-perf",
        samples: buckets.iter().flat_map(|(us, count)| std::iter::repeat_n(*us, *count)).collect(),
        median: row[4],
        p99: row[6],
        p99_9: row[7],
        extremes: [row[2], row[8]],
        average: row[3],
        left_out: 0,
        digit: 0.0011,
        part: 2e-3,
    })
}

impl Ranked {
    fn check(&self) -> Result<(), String> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if !(1990..=2000).contains(&count) {
            return Err(format!("{}: {count} samples of 2000 messages", self.tool));
        }
        let is = |printed: f64, sample: f64| (printed - sample).abs() <= self.digit + sample * self.part;
        for (name, printed, quantile) in
            [("median", self.median, 0.5), ("99 %", self.p99, 0.99), ("99.9 %", self.p99_9, 0.999)]
        {
            // The first sample has rank 1. The tools' definitions leave the rank uncertain by one.
            let rank = quantile * count as f64;
            let near = (rank - 2.0).max(0.0) as usize..((rank + 2.0) as usize).min(count);
            let between = is(printed, printed.clamp(sorted[near.start], sorted[near.end - 1]));
            if !between {
                let place = sorted.partition_point(|sample| *sample < printed);
                let samples = &sorted[near];
                return Err(format!(
                    "{}: {name} is {printed}, at {place} of {count}: {samples:?}",
                    self.tool
                ));
            }
        }
        let counted = &sorted[..count - self.left_out];
        let mean = counted.iter().sum::<f64>() / counted.len() as f64;
        let ends = [counted[0], sorted[count - self.left_out.max(1)]];
        if !is(self.average, mean) || !is(self.extremes[0], ends[0]) || !is(self.extremes[1], ends[1]) {
            let (average, extremes) = (self.average, self.extremes);
            return Err(format!("{}: {average} for {mean}, {extremes:?} for {ends:?}", self.tool));
        }
        Ok(())
    }
}
