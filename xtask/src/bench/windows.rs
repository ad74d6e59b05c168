//! `cargo xtask bench windows`: one-sided operations of `trespass::window` against the same verbs.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use super::document::{Section, today};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The number of rounds (verbs, window, verbs again) for each row
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print the result without writing it to docs/generated/performance
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["bench", "--package", "trespass", "--bench", "windows", "--locked"]);
    command.env("TRESPASS_BENCH_ROUNDS", args.rounds.to_string()).stderr(Stdio::inherit());
    let output = command.output().context("cannot run the program that measures")?;
    ensure!(output.status.success(), "the program that measures failed");
    let said = String::from_utf8_lossy(&output.stdout);
    let body = table(&said).with_context(|| format!("no table: {said}"))?;
    println!("{body}");
    if !args.dry_run {
        let intro = format!(
            "{}, {} processors, two processes over soft0. A loop that posts the same requests as verbs takes turns with the calls. \
             Medians of {} rounds: above 1 the window is faster.\n\n    cargo xtask bench windows --rounds {}",
            today(),
            std::thread::available_parallelism()?,
            args.rounds,
            args.rounds,
        );
        let title = "One-sided operations on windows against the verbs";
        Section { name: "windows", title, intro: &intro, body: &body }.write(root)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The rows of the table, of which there must be some behind the heading.
fn table(said: &str) -> Option<String> {
    let rows: Vec<&str> = said.lines().filter(|line| line.starts_with('|')).collect();
    (rows.len() > 2).then(|| rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_rows() {
        let heading = "words\n| operation |\n| --- |\n";
        assert_eq!(table(heading), None);
        assert_eq!(table(&format!("{heading}| put |\n")).unwrap(), "| operation |\n| --- |\n| put |");
    }
}
