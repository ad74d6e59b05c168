//! The programs of `tests/c`: plainly, with sanitizers, and under valgrind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use libtest_mimic::Trial;

use crate::{Over, TestOutcome, TestResult, installed, is_built, run, scratch, source, trial_over};

/// The cases of `suite.c`, whose list the test `every_case_runs` compares with this one.
const CASES: [&str; 21] = [
    "streams",
    "streams_end",
    "streams_wait",
    "streams_large",
    "messages",
    "messages_in_parts",
    "nonblocking_poll",
    "nonblocking_epoll",
    "nonblocking_connect",
    "halves",
    "busy",
    "signals",
    "options",
    "null_arguments",
    "wrong_handles",
    "zero_copy_stream",
    "zero_copy_messages",
    "workers",
    "worker_failures",
    "killed",
    FORKED,
];

/// The case whose child has neither the threads nor the registered memory of its parent, so that
/// valgrind would take what they have for lost.
const FORKED: &str = "forked";

/// Memory errors, undefined behaviour. valgrind finds leaks, also where no process may trace another,
/// which the leak detector of the sanitizer needs.
const SANITIZERS: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"];

pub(crate) const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];

pub(crate) fn trials(over: Over) -> Vec<Trial> {
    let mut trials: Vec<_> = CASES
        .into_iter()
        .map(|case| trial_over(over, case, &["cc"], move || pass(over, [], suite()?, &[case])))
        .collect();
    trials.push(trial_over(over, "every_case_runs", &["cc"], move || every_case_runs(over)));
    trials.push(trial_over(over, "static_library", &["cc"], move || {
        pass(over, [], static_suite()?, &["streams", "killed", "workers"])
    }));
    trials.push(trial_over(over, "classes", &["c++"], move || pass(over, [], classes(over)?, &[])));
    trials.push(trial_over(over, "sanitized_suite", &["cc"], move || {
        without_sanitizers("cc").map_or_else(|| pass(over, [], sanitized_suite()?, &[]), Ok)
    }));
    trials.push(trial_over(over, "sanitized_classes", &["c++"], move || {
        without_sanitizers("c++").map_or_else(|| pass(over, [], sanitized_classes()?, &[]), Ok)
    }));
    trials.push(trial_over(over, "valgrind", &["cc", "valgrind", "taskset"], move || under_valgrind(over)));
    trials.push(trial_over(over, "valgrind_classes", &["c++", "valgrind", "taskset"], move || {
        pass(over, VALGRIND, classes(over)?, &[])
    }));
    trials
}

/// Makes the programs of [`trials`] over the system's devices. The library is the last.
pub(crate) fn over_devices() -> Result<Vec<PathBuf>, String> {
    let library = installed()?.join("lib/libtrespass.so.0");
    Ok(vec![suite()?.to_owned(), static_suite()?.to_owned(), classes(Over::Rdma)?.to_owned(), library])
}

/// valgrind, which fails for each error and each block that nothing points to.
const VALGRIND: [&str; 7] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    // A thread that waits for another by polling gives way to it.
    "--fair-sched=try",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];

fn under_valgrind(over: Over) -> TestResult {
    let others: Vec<_> = CASES.into_iter().filter(|case| *case != FORKED).collect();
    pass(over, VALGRIND, suite()?, &others)?;
    let [valgrind, quiet, exit_code, fair, ..] = VALGRIND;
    pass(over, [valgrind, quiet, exit_code, fair, "--leak-check=no"], suite()?, &[FORKED])
}

/// Runs a program, perhaps by another one.
fn pass<const N: usize>(over: Over, by: [&str; N], program: &Path, arguments: &[&str]) -> TestResult {
    run(&mut command(over, &by, program, arguments)).map(|_| TestOutcome::Passed)
}

fn command(over: Over, by: &[&str], program: &Path, arguments: &[&str]) -> Command {
    let mut command = match by {
        [] => Command::new(program),
        options => {
            let mut command = Command::new("taskset");
            command.args(["-c", &processor()]).args(options).arg(program);
            // A handshake takes as long as the machine needs.
            command.env("TRESPASS_PROBE_TIMEOUT", "10000");
            command
        }
    };
    over.apply(&mut command);
    command.args(arguments).env("ASAN_OPTIONS", "detect_leaks=0");
    command
}

/// The first processor that this process may use. valgrind runs one thread at a time, so that a thread
/// that polls only takes the others' time. Nothing polls on a single processor.
fn processor() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or("0").trim().split([',', '-']).next().unwrap_or("0").to_owned()
}

/// The program runs exactly the cases of the list.
fn every_case_runs(over: Over) -> TestResult {
    let output = run(&mut command(over, &[], suite()?, &[]))?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let ran: Vec<_> = words.lines().filter_map(|line| line.strip_prefix("case ")).collect();
    if ran == CASES { Ok(TestOutcome::Passed) } else { Err(format!("its cases are {ran:?}")) }
}

/// Why the compiler's sanitizers cannot be used.
fn without_sanitizers(compiler: &str) -> Option<TestOutcome> {
    if is_built() {
        return Some(TestOutcome::Skipped(format!(
            "no sanitizers of {compiler} in a guest; `soft::` has them"
        )));
    }
    let probe = crate::write("probe.c", "int main(void) { return 0; }\n").ok()?;
    let out = probe.with_extension(compiler.replace('+', "x"));
    let mut command = Command::new(compiler);
    let built = run(command.args(SANITIZERS).args(["-x", "c"]).arg(probe).arg("-o").arg(&out));
    match built.and_then(|_| run(&mut Command::new(out))) {
        Ok(_) => None,
        Err(_) => Some(TestOutcome::Skipped(format!("no sanitizers of {compiler}"))),
    }
}

/// The C files of the suite.
fn sources() -> Result<Vec<PathBuf>, String> {
    let folder = source("tests/c");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    Ok(files)
}

/// The program with all cases.
pub(crate) fn suite() -> Result<&'static Path, String> {
    static BUILT: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| compile(C, &sources()?, "suite", &[]));
    BUILT.as_deref().map_err(Clone::clone)
}

fn sanitized_suite() -> Result<&'static Path, String> {
    static BUILT: LazyLock<Result<PathBuf, String>> =
        LazyLock::new(|| compile(C, &sources()?, "suite_sanitized", &SANITIZERS));
    BUILT.as_deref().map_err(Clone::clone)
}

/// The program of the classes. A guest may have an older C++ library than the compiler's.
fn classes(over: Over) -> Result<&'static Path, String> {
    static SHARED: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| wrapper("wrapper", &[]));
    static FIXED: LazyLock<Result<PathBuf, String>> =
        LazyLock::new(|| wrapper("wrapper_fixed", &["-static-libstdc++"]));
    if over == Over::Rdma { FIXED.as_deref() } else { SHARED.as_deref() }.map_err(Clone::clone)
}

fn sanitized_classes() -> Result<&'static Path, String> {
    static BUILT: LazyLock<Result<PathBuf, String>> =
        LazyLock::new(|| wrapper("wrapper_sanitized", &SANITIZERS));
    BUILT.as_deref().map_err(Clone::clone)
}

fn wrapper(name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    compile(CPP, &[source("tests/c/wrapper.cpp")], name, flags)
}

/// The suite with the static library, whose needs are those of `trespass.pc`.
fn static_suite() -> Result<&'static Path, String> {
    static BUILT: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
        let program = scratch()?.join("suite_static");
        if is_built() {
            return Ok(program);
        }
        let mut command = compiler(C, &[])?;
        command.args(sources()?).arg("-o").arg(&program).arg(installed()?.join("lib/libtrespass.a"));
        run(command.args(["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"])).map(|_| program)
    });
    BUILT.as_deref().map_err(Clone::clone)
}

/// A compiler and its standard.
pub(crate) type Language = (&'static str, &'static str);

pub(crate) const C: Language = ("cc", "-std=c99");
pub(crate) const CPP: Language = ("c++", "-std=c++17");

/// A compiler with the installed header and warnings as errors.
pub(crate) fn compiler((program, standard): Language, flags: &[&str]) -> Result<Command, String> {
    let mut command = Command::new(program);
    command.args([standard, "-g"]).args(STRICT).args(flags).arg("-I").arg(installed()?.join("include"));
    Ok(command)
}

/// Compiles a program and links it with the shared library.
pub(crate) fn compile(
    language: Language,
    files: &[PathBuf],
    name: &str,
    flags: &[&str],
) -> Result<PathBuf, String> {
    let program = scratch()?.join(name);
    if is_built() {
        return Ok(program);
    }
    let lib = installed()?.join("lib");
    let mut command = compiler(language, flags)?;
    command.args(files).arg("-o").arg(&program).arg("-L").arg(&lib).args(["-ltrespass", "-pthread"]);
    run(command.arg(format!("-Wl,-rpath,{}", lib.display()))).map(|_| program)
}
