//! `stride-perf`: measures bandwidth and latency of RDMA by perftest's definitions.

use std::io::ErrorKind;
use std::process::ExitCode;

use stride::cli::{self, StrideCommand, Usage};
use stride::error::Error;
use stride::interrupt::Interrupted;
use stride::memory::avoid_scatter;
use stride::plan::RunPlan;
use stride::report::Output;
use stride::{session, suite};

/// The exit status of every error.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let failure = match cli::command(std::env::args_os()) {
        Ok(command) => match run(command) {
            Ok(code) => return ExitCode::from(code),
            // The reader closed the pipe, which is not a failure.
            Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("stride-perf: {}", error.one_line());
                return ExitCode::from(error.interrupted().map_or(FAILURE, Interrupted::exit_code));
            }
        },
        Err(Usage::Asked(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Usage::Missing(text)) => text,
        Err(Usage::Wrong(text)) => format!("stride-perf: {text}"),
    };
    eprintln!("{failure}");
    ExitCode::from(FAILURE)
}

/// Keeps freed memory in the process. glibc returns megabytes to the system at once, so that a test
/// with several long messages would measure page faults.
///
/// # Safety
///
/// No other thread exists.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "a function of C")]
unsafe fn keep_freed_memory() {
    /// The most that all versions of glibc allow.
    const LONGEST_FROM_HEAP: i32 = 32 << 20;
    for (parameter, value) in
        [(libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_MMAP_THRESHOLD, LONGEST_FROM_HEAP)]
    {
        // SAFETY: mallopt(3) changes the allocator, which the caller promises is in no other thread's use.
        if unsafe { libc::mallopt(parameter, value) } == 0 {
            eprintln!("stride-perf: mallopt({parameter}, {value}) failed: long messages cost page faults");
        }
    }
}

/// Runs the command and returns the exit status.
#[allow(unsafe_code, reason = "the environment and the allocator, while there is one thread")]
fn run(command: StrideCommand) -> Result<u8, Error> {
    let words = std::env::args_os().collect();
    match command {
        StrideCommand::Test(cli) => {
            let args = cli.output.clone();
            let plan = RunPlan::new(*cli)?;
            // SAFETY: `main` calls this function before it creates any thread.
            unsafe { avoid_scatter(plan.local.buffer) };
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            // SAFETY: `main` calls this function before it creates any thread.
            unsafe {
                keep_freed_memory();
            }
            let output = Output::of_run(&args, &plan, words)?;
            session::to_the_end(output, |output| session::run(&plan, output))
        }
        StrideCommand::Ping(args, files) => {
            session::to_the_end(Output::standard(), |output| session::ping(&args, &files, output))
        }
        StrideCommand::Suite(args, files) => suite::run(&args, &files),
        StrideCommand::Serve(args, files) => {
            // SAFETY: `main` calls this function before it creates any thread.
            unsafe { avoid_scatter(args.memory.kind()) };
            let output = Output::of_server(&files, words)?;
            session::to_the_end(output, |output| session::serve(&(*args).into(), output))
        }
    }
}
