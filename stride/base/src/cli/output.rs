//! What becomes of the figures, beside the table.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Expectation;

/// Where results go, and what they have to be like.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Write everything that is known of the run to this file, as one JSON document; - is standard output
    #[arg(long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,

    /// Append a JSON object for each row to this file as it is measured; - is standard output
    #[arg(long, value_name = "FILE", global = true)]
    pub jsonl: Option<PathBuf>,

    /// Write a header and a line for each row to this file; - is standard output
    #[arg(long, value_name = "FILE", global = true)]
    pub csv: Option<PathBuf>,

    /// Write the distribution of latencies to this file, as HdrHistogram's tools read it; with more than one
    /// message size, FILE.hgrm becomes FILE.BYTES.hgrm (of msg grid FILE.BYTES.INFLIGHT.hgrm)
    #[arg(long, value_name = "FILE", global = true)]
    pub hgrm: Option<PathBuf>,

    /// Print the table with the columns and units of another program, for what reads that; everything else is perftest's as it is
    /// (defaults, completion moderation, definitions)
    #[arg(long, value_name = "PROGRAM", global = true)]
    pub compat: Option<CompatArg>,

    /// Replace files that exist
    #[arg(long, global = true)]
    pub force: bool,

    /// Exit with 1 if the bandwidth is below this, of any message size; BYTES:GBPS is about one size alone
    #[arg(long, value_name = "GBPS", global = true, allow_hyphen_values = true)]
    pub expect_bw: Vec<Expectation>,

    /// Exit with 1 if the 99th percentile of the latency is above this, of any message size; BYTES:US is about one size
    /// alone
    #[arg(long, value_name = "US", global = true, allow_hyphen_values = true)]
    pub expect_p99: Vec<Expectation>,
}

/// Whose table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompatArg {
    /// perftest's, in MiB/s, without a peak
    Perftest,
}

impl OutputArgs {
    /// These, and of what they leave out the others.
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

    /// The first flag of these that was given, if any was.
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
