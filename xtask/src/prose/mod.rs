//! A checker of the words in documents and comments: `cargo xtask prose`.
//!
//! Some habits make a text hard to read for an engineer who meets it first: a clause as the
//! subject, a sentence of fifty words, a comment that repeats the name below it. Each rule here
//! finds one of them and names the file and the line. The limits are counts per 1,000 words,
//! because a phrase that is wrong as a habit may be right once.

mod items;
mod phrases;
mod source;
mod text;
mod types;

use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use self::source::File;

/// Check the words of documents and comments
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Check only these files or folders; limits per 1,000 words apply to them alone
    paths: Vec<String>,
    /// Show every place that a rule finds, also below its limit
    #[arg(long)]
    all: bool,
}

/// A place that a rule finds.
struct Finding {
    file: String,
    line: usize,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.text.chars().take(140).collect();
        write!(f, "{}:{}: {text}", self.file, self.line)
    }
}

/// The outcome of a rule over all files.
struct Verdict {
    rule: String,
    findings: Vec<Finding>,
    /// The most findings that pass.
    limit: usize,
}

impl Verdict {
    /// A rule without exceptions.
    fn none(rule: &str, findings: Vec<Finding>) -> Self {
        Self { rule: rule.to_owned(), findings, limit: 0 }
    }

    fn fails(&self) -> bool {
        self.findings.len() > self.limit
    }
}

/// Runs every rule, prints a line for each, and fails if one is over its limit.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let files = tracked(root, &args.paths)?;
    let words: usize = files.iter().map(File::words).sum();
    let mut verdicts = phrases::check(&files, words)?;
    verdicts.extend(text::check(&files));
    verdicts.extend(items::check(&files)?);
    verdicts.push(types::check(&files)?);
    println!("{words} words in {} files", files.len());
    for verdict in &verdicts {
        let state = if verdict.fails() { "FAILED" } else { "ok" };
        println!("{:6} {:5} of at most {:3}  {}", state, verdict.findings.len(), verdict.limit, verdict.rule);
        for finding in verdict.findings.iter().filter(|_| args.all || verdict.fails()) {
            println!("           {finding}");
        }
    }
    println!("median of the documents' sentences: {} words", text::median(&files));
    println!("because, since, so that, ...: {:.2} per 1,000 words", phrases::causal(&files, words)?);
    if verdicts.iter().any(Verdict::fails) {
        eprintln!("rewrite the sentences above; CONTRIBUTING.md says how the project reads");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The tracked documents and sources, without the generated bindings.
fn tracked(root: &Path, paths: &[String]) -> anyhow::Result<Vec<File>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--"]).args(paths).current_dir(root);
    let output = git.output().context("git lists the files to check; is it installed?")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout).context("a tracked file's name is not UTF-8")?;
    names
        .split('\0')
        .filter(|name| name.ends_with(".md") || name.ends_with(".rs"))
        .filter(|name| !name.contains("/bindings/") && root.join(name).is_file())
        .map(|name| File::read(root, name))
        .collect()
}
