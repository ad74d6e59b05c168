//! Flags that write results to files, and compare them with thresholds.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Expectation, heading};

/// The destinations of results, and the thresholds that they must meet.
#[derive(Clone, Debug, Default, Args)]
pub struct OutputArgs {
    /// Write the whole record of the run to FILE as one JSON document; - is standard output
    #[arg(help_heading = heading::OUTPUT, long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,

    /// Append a JSON object for each row to FILE as it is measured; - is standard output
    #[arg(help_heading = heading::OUTPUT, long, value_name = "FILE", global = true)]
    pub jsonl: Option<PathBuf>,

    /// Write a header and a line for each row to FILE; - is standard output
    #[arg(help_heading = heading::OUTPUT, long, value_name = "FILE", global = true)]
    pub csv: Option<PathBuf>,

    /// Write the distribution of latencies to FILE for HdrHistogram's tools; with several message
    /// sizes, FILE.hgrm becomes FILE.BYTES.hgrm (msg grid: FILE.BYTES.INFLIGHT.hgrm)
    #[arg(help_heading = heading::OUTPUT, long, value_name = "FILE", global = true)]
    pub hgrm: Option<PathBuf>,

    /// Print the table with another program's columns and units, for parsers of it; defaults and
    /// definitions are perftest's in any case
    #[arg(help_heading = heading::OUTPUT, long, value_name = "PROGRAM", global = true)]
    pub compat: Option<CompatArg>,

    /// Replace existing files
    #[arg(help_heading = heading::OUTPUT, long, global = true)]
    pub force: bool,

    /// Exit with 1 if the bandwidth of any size is below GBPS; BYTES:GBPS applies to one size only
    #[arg(help_heading = heading::PASS_OR_FAIL, long, value_name = "GBPS", global = true, allow_hyphen_values = true)]
    pub expect_bw: Vec<Expectation>,

    /// Exit with 1 if the 99th percentile of any size's latency is above US microseconds; BYTES:US
    /// applies to one size only
    #[arg(help_heading = heading::PASS_OR_FAIL, long, value_name = "US", global = true, allow_hyphen_values = true)]
    pub expect_p99: Vec<Expectation>,
}

/// The program whose table is imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompatArg {
    /// perftest's columns, in MiB/s, without a peak
    Perftest,
}

impl OutputArgs {
    /// These flags, completed from `others`.
    pub fn or(self, others: &Self) -> Self {
        let Self { json, jsonl, csv, hgrm, compat, force, expect_bw, expect_p99 } = self;
        let limits = |own: Vec<_>, others: &Vec<_>| if own.is_empty() { others.clone() } else { own };
        Self {
            json: json.or_else(|| others.json.clone()),
            jsonl: jsonl.or_else(|| others.jsonl.clone()),
            csv: csv.or_else(|| others.csv.clone()),
            hgrm: hgrm.or_else(|| others.hgrm.clone()),
            compat: compat.or(others.compat),
            force: force || others.force,
            expect_bw: limits(expect_bw, &others.expect_bw),
            expect_p99: limits(expect_p99, &others.expect_p99),
        }
    }

    /// The first of the given flags, if any.
    pub fn first_flag(&self) -> Option<&'static str> {
        let Self { json, jsonl, csv, hgrm, compat, force, expect_bw, expect_p99 } = self;
        let given = [
            ("--json", json.is_some()),
            ("--jsonl", jsonl.is_some()),
            ("--csv", csv.is_some()),
            ("--hgrm", hgrm.is_some()),
            ("--compat", compat.is_some()),
            ("--force", *force),
            ("--expect-bw", !expect_bw.is_empty()),
            ("--expect-p99", !expect_p99.is_empty()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}
