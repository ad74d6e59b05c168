//! The C program: written, compiled without the names that the headers lack, and run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// One question to the C compiler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Probe {
    Size(String),
    Alignment(String),
    Offset(String, String),
    Constant(String),
}

impl Probe {
    pub(crate) fn size(c_name: &str) -> Self {
        Self::Size(c_name.to_owned())
    }

    pub(crate) fn alignment(c_name: &str) -> Self {
        Self::Alignment(c_name.to_owned())
    }

    pub(crate) fn offset(c_name: &str, path: &str) -> Self {
        Self::Offset(c_name.to_owned(), path.to_owned())
    }

    pub(crate) fn constant(name: &str) -> Self {
        Self::Constant(name.to_owned())
    }

    fn expression(&self) -> String {
        match self {
            Self::Size(ty) => format!("sizeof({ty})"),
            Self::Alignment(ty) => format!("_Alignof({ty})"),
            Self::Offset(ty, path) => format!("offsetof({ty}, {path})"),
            Self::Constant(name) => name.clone(),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expression())
    }
}

/// The result of a run.
pub(crate) struct ProbeOutcome {
    pub(crate) values: BTreeMap<Probe, i64>,
    /// The questions with names that the headers lack.
    pub(crate) unknown: Vec<Probe>,
}

/// The number of compilations, each without the lines that the last one rejected.
const ROUNDS: usize = 5;

/// Asks all questions of the headers in `include`; an `Err` has the reason why that was not
/// possible.
pub(crate) fn run(include: &Path, probes: &[Probe]) -> Result<ProbeOutcome, String> {
    if !include.join("infiniband/verbs.h").exists() {
        return Err(format!("no infiniband/verbs.h in {}", include.display()));
    }
    let compiler = Compiler::find(include)?;
    let mut refused = BTreeSet::new();
    for _ in 0..ROUNDS {
        compiler.write(probes, &refused);
        let output = compiler.compile();
        if output.status.success() {
            return Ok(answers(&compiler.program, probes, &refused));
        }
        let lines = compiler.lines_with_errors(&output);
        assert!(!lines.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        refused.extend(lines);
    }
    panic!("the C compiler still refuses something after {ROUNDS} rounds");
}

struct Compiler {
    name: String,
    include: PathBuf,
    source: PathBuf,
    program: PathBuf,
    /// The number of lines before the first question.
    before: usize,
}

/// The set of headers differs between releases.
const PREAMBLE: &str = "\
#include <stddef.h>
#include <stdio.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>
#endif
#if __has_include(<infiniband/efadv.h>)
#include <infiniband/efadv.h>
#endif
static const struct { int number; long long value; } answers[] = {
";

impl Compiler {
    fn find(include: &Path) -> Result<Self, String> {
        let name = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        if let Err(error) = Command::new(&name).arg("--version").output() {
            return Err(format!("no C compiler `{name}` ({error})"));
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let stem = format!("layout-{}", std::process::id());
        Ok(Self {
            name,
            include: include.to_owned(),
            source: folder.join(format!("{stem}.c")),
            program: folder.join(stem),
            before: PREAMBLE.lines().count(),
        })
    }

    /// One question in each line, so that an error names its question.
    fn write(&self, probes: &[Probe], refused: &BTreeSet<usize>) {
        let mut text = PREAMBLE.to_owned();
        for (number, probe) in probes.iter().enumerate() {
            if !refused.contains(&number) {
                text += &format!("{{ {number}, (long long)({}) }},", probe.expression());
            }
            text.push('\n');
        }
        text += "};\nint main(void)\n{\n\
                 for (size_t n = 0; n < sizeof(answers) / sizeof(*answers); n++)\n\
                 printf(\"%d %lld\\n\", answers[n].number, answers[n].value);\nreturn 0;\n}\n";
        std::fs::write(&self.source, text).expect("the target folder can be written");
    }

    fn compile(&self) -> Output {
        Command::new(&self.name)
            .env("LC_ALL", "C")
            .args(["-std=gnu11", "-w", "-fno-diagnostics-color"])
            .arg(if self.is_clang() { "-ferror-limit=0" } else { "-fmax-errors=0" })
            .arg("-isystem")
            .arg(&self.include)
            .arg("-o")
            .arg(&self.program)
            .arg(&self.source)
            .output()
            .expect("the compiler was found before")
    }

    fn is_clang(&self) -> bool {
        let version = Command::new(&self.name).arg("--version").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("clang"))
    }

    /// The numbers of the questions with errors.
    fn lines_with_errors(&self, output: &Output) -> BTreeSet<usize> {
        let text = String::from_utf8_lossy(&output.stderr);
        let source = format!("{}:", self.source.display());
        let errors = text.lines().filter(|line| line.contains(" error: "));
        let lines =
            errors.filter_map(|line| line.strip_prefix(&source)?.split(':').next()?.parse::<usize>().ok());
        lines.filter_map(|line| line.checked_sub(self.before + 1)).collect()
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.source);
        let _ = std::fs::remove_file(&self.program);
    }
}

/// Runs the program and parses its output.
fn answers(program: &Path, probes: &[Probe], refused: &BTreeSet<usize>) -> ProbeOutcome {
    let output = Command::new(program).output().expect("the program was just compiled");
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout).expect("numbers");
    let mut values = BTreeMap::new();
    for line in text.lines() {
        let (number, value) = line.split_once(' ').expect("two numbers");
        let probe = &probes[number.parse::<usize>().expect("a number")];
        values.insert(probe.clone(), value.parse().expect("a number"));
    }
    let unknown = refused.iter().map(|number| probes[*number].clone()).collect();
    ProbeOutcome { values, unknown }
}
