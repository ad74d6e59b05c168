//! `cargo xtask bench overhead`: the cost of sideway in addition to C, in instructions.
//!
//! Two programs do the same over the same libibverbs.so.1, the software device's, and callgrind
//! counts their instructions. An operation is a work request that is posted and completed. Its cost
//! is the difference of two runs, so that the setup does not count. Because time plays no role, the
//! result is a gate: `.ci/run overhead`.

pub(super) mod disassembly;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use super::callgrind::InstructionCounts;
use super::document::Section;
use super::programs::{self, Programs};

/// The largest number of instructions per operation that sideway may cost in addition to C.
const BOUND: f64 = 2.0;
/// The allowed cost of a slice of a pool, as a multiple of the raw path.
const POOL_BOUND: f64 = 1.15;
/// The allowed excess of the device over its budget, as a factor.
const MARGIN: f64 = 1.1;
/// The file of budgets, with lines `ARCHITECTURE OPERATION INSTRUCTIONS`.
pub(super) const BUDGET: &str = "xtask/bench/budget.txt";
/// Operations of the shorter run; the longer one has twice as many.
const OPERATIONS: u64 = 1280;

/// The largest number of counts until two of them must agree.
const RUNS: usize = 8;
/// The tolerance within which two counts agree, in instructions per operation.
const SAME: f64 = 0.1;

/// The variants: title, name in the budget file, and the programs' arguments.
const VARIANTS: [(&str, &str, &str, u64); 4] = [
    ("extended, singly", "extended-singly", "extended", 1),
    ("extended, lists of 64", "extended-lists", "extended", 64),
    ("classic, singly", "classic-singly", "classic", 1),
    ("classic, lists of 64", "classic-lists", "classic", 64),
];

#[derive(clap::Args)]
pub(super) struct Args {
    /// Print the result without writing it to docs/generated/performance
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let programs = Programs::build(root)?;
    let c = programs.compile_c("overhead")?;
    let rust = programs.path("overhead");
    let counter = Counter { programs: &programs, folder: tempfolder(&programs)? };

    let mut report = String::new();
    let mut failures = Vec::new();
    writeln!(report, "| signaled 8-byte inline writes, posted and polled | C | sideway | difference |")?;
    writeln!(report, "| --- | ---: | ---: | ---: |")?;
    let mut functions = Vec::new();
    let budget = Budget::read(root)?;
    for (title, operation, flavour, list) in VARIANTS {
        let in_c = counter.per_operation(&c, flavour, list)?.of_object(&c);
        let counts = counter.per_operation(&rust, flavour, list)?;
        let in_rust = counts.of_object(&rust);
        ensure!(
            in_c > 5.0 && in_rust > 5.0,
            "{title}: {in_c} and {in_rust} instructions are too few for a loop"
        );
        let more = in_rust - in_c;
        let verdict = if more > BOUND + 0.005 { " **missed**" } else { "" };
        writeln!(report, "| {title} | {in_c:.2} | {in_rust:.2} | {more:+.2}{verdict} |")?;
        let allowed = budget.of(operation).map_or(BOUND, |budget| budget.min(BOUND));
        if more > allowed + 0.005 {
            failures.push(format!(
                "{title}: sideway costs {more:.2} instructions more than C; at most {allowed:.2} are allowed"
            ));
        }
        functions.extend(counts.functions_of(&rust));
    }
    functions.sort();
    functions.dedup();
    let found = disassembly::expensive(&rust, &functions)?;
    let words = if found.is_empty() { "none".to_owned() } else { format!("**{}**", found.len()) };
    writeln!(
        report,
        "\nLocked or exchange instructions and fences in the {} functions of the program that ran for each operation: \
         {words}.",
        functions.len()
    )?;
    failures.extend(found);

    let raw = counter.per_operation(&rust, "message", 1)?;
    let pool = counter.per_operation(&rust, "pool", 1)?;
    failures.extend(write_pool(&mut report, &budget, &rust, &raw, &pool)?);

    let mut device = vec![("message", "a 64-byte write", raw.outside(&rust))];
    for (operation, title) in
        [("send-64", "a 64-byte SEND and its receive"), ("send-512", "a 512-byte SEND and its receive")]
    {
        device.push((operation, title, counter.per_operation(&rust, operation, 1)?.outside(&rust)));
    }
    failures.extend(write_device(&mut report, &budget, &device)?);

    print!("{report}");
    std::fs::remove_dir_all(&counter.folder)?;
    if !args.dry_run {
        let compiler = programs::first_line(Command::new("cc").arg("--version"));
        let rustc = programs::first_line(Command::new("rustc").arg("--version"));
        let intro = format!(
            "{}, with {} and {compiler}. Instructions per operation, of the caller alone: outside libibverbs.so.1 and \
             the C library. sideway may cost {BOUND} more at most.",
            super::document::today(),
            rustc
        );
        Section { name: "overhead", title: "sideway against C", intro: &intro, body: &report }.write(root)?;
    }
    for failure in &failures {
        eprintln!("bench overhead: {failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The cost of messages inside the device: name in the budget file, title, instructions.
fn write_device(report: &mut String, budget: &Budget, messages: &[(&str, &str, f64)]) -> Result<Vec<String>> {
    writeln!(
        report,
        "\n| inside the device, the C library included | instructions | budget |\n| --- | ---: | ---: |"
    )?;
    let mut failures = Vec::new();
    for (operation, title, instructions) in messages {
        let allowed = budget.of(operation);
        let of_budget = allowed.map_or_else(|| "none".to_owned(), |budget| format!("{budget:.0}"));
        writeln!(report, "| {title} | {instructions:.0} | {of_budget} |")?;
        if let Some(budget) = allowed.filter(|budget| *instructions > budget * MARGIN) {
            failures.push(format!(
                "the device costs {instructions:.0} instructions for {title}, and its budget in {BUDGET} is {budget:.0}: \
                 find out why, or change it"
            ));
        }
    }
    writeln!(
        report,
        "\nThe message goes from one queue pair of a process to another, and is posted and polled, extended. At most 10 % \
         more than the budget are allowed."
    )?;
    Ok(failures)
}

/// The cost of taking a buffer from a pool, posting it and reclaiming it, compared with posting an
/// address.
fn write_pool(
    report: &mut String,
    budget: &Budget,
    rust: &Path,
    raw: &InstructionCounts,
    pool: &InstructionCounts,
) -> Result<Vec<String>> {
    let [raw_caller, pool_caller] = [raw, pool].map(|counts| counts.of_object(rust));
    ensure!(
        raw_caller > 5.0 && pool_caller > raw_caller,
        "{raw_caller} and {pool_caller} instructions are too few for a loop"
    );
    let [raw_all, pool_all] = [raw, pool].map(|counts| counts.of_object(rust) + counts.outside(rust));
    let (more, ratio) = (pool_caller - raw_caller, pool_all / raw_all);
    let verdict = if ratio > POOL_BOUND { " **missed**" } else { "" };
    writeln!(report, "\n| signaled 64-byte writes, singly, extended | raw address | slice of a pool | |")?;
    writeln!(report, "| --- | ---: | ---: | ---: |")?;
    writeln!(
        report,
        "| the whole path, device included | {raw_all:.2} | {pool_all:.2} | x {ratio:.3}{verdict} |"
    )?;
    writeln!(report, "| of that, the caller alone | {raw_caller:.2} | {pool_caller:.2} | {more:+.2} |")?;
    writeln!(
        report,
        "\nThe slice is taken from the pool, posted, given back by its completion and dropped. The whole path is to cost \
         {POOL_BOUND} times the raw one at most."
    )?;
    let mut failures = Vec::new();
    if ratio > POOL_BOUND {
        failures.push(format!(
            "a slice of a pool costs {ratio:.3} times the raw path; at most {POOL_BOUND} is allowed"
        ));
    }
    let functions = pool.functions_of(rust);
    failures.extend(disassembly::expensive(rust, &functions)?);
    if let Some(allowed) = budget.of("pool").filter(|allowed| more > allowed + 0.005) {
        failures.push(format!(
            "a slice of a pool costs the caller {more:.2} instructions more, and its budget in {BUDGET} is {allowed:.2}"
        ));
    }
    Ok(failures)
}

/// Counts the instructions of programs.
struct Counter<'a> {
    programs: &'a Programs,
    folder: PathBuf,
}

impl Counter<'_> {
    /// Two of several counts must agree, because a busy machine lets the thread wait at other moments.
    fn per_operation(&self, program: &Path, flavour: &str, list: u64) -> Result<InstructionCounts> {
        let lists = OPERATIONS / list;
        let mut known = Vec::<InstructionCounts>::new();
        while known.len() < RUNS {
            let short = self.count(program, flavour, list, lists)?;
            let long = self.count(program, flavour, list, 2 * lists)?;
            let counts = long.more_than(&short, OPERATIONS);
            if known.iter().any(|other| (other.total() - counts.total()).abs() < SAME) {
                return Ok(counts);
            }
            known.push(counts);
        }
        let totals: Vec<_> = known.iter().map(InstructionCounts::total).collect();
        bail!("{} {flavour} {list}: no two of {RUNS} counts agree: {totals:.2?}", program.display())
    }

    fn count(&self, program: &Path, flavour: &str, list: u64, lists: u64) -> Result<InstructionCounts> {
        let out = self.folder.join("callgrind.out");
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind", "--demangle=no", "--error-exitcode=99"]);
        // How far the device's own thread has come when the program ends depends on the machine.
        command.arg("--separate-threads=yes");
        command.arg(format!("--callgrind-out-file={}", out.display()));
        command.arg(program).args([flavour, &list.to_string(), &lists.to_string()]);
        self.programs.over_the_device(&mut command);
        let status = command.status().context("cannot run valgrind: install it (package valgrind)")?;
        ensure!(status.success(), "{} {flavour} {list} {lists} failed under callgrind", program.display());
        InstructionCounts::parse(&std::fs::read_to_string(out.with_extension("out-01"))?)
    }
}

fn tempfolder(programs: &Programs) -> Result<PathBuf> {
    let folder = programs.folder().join(format!("overhead.{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The budget lines of this architecture.
pub(super) struct Budget(Vec<(String, f64)>);

impl Budget {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(root.join(BUDGET)).with_context(|| format!("cannot read {BUDGET}"))?;
        let mut operations = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let [arch, operation, instructions] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                bail!("{BUDGET}: {line}");
            };
            if arch == std::env::consts::ARCH {
                let instructions = instructions.parse().with_context(|| format!("{BUDGET}: {line}"))?;
                operations.push((operation.to_owned(), instructions));
            }
        }
        Ok(Self(operations))
    }

    pub(super) fn of(&self, operation: &str) -> Option<f64> {
        self.0.iter().find(|(name, _)| name == operation).map(|(_, instructions)| *instructions)
    }
}
