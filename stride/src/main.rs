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

/// Runs the command and returns the exit status.
#[allow(unsafe_code, reason = "the environment, while there is one thread")]
fn run(command: StrideCommand) -> Result<u8, Error> {
    let words = std::env::args_os().collect();
    match command {
        StrideCommand::Test(cli) => {
            let args = cli.output.clone();
            let plan = RunPlan::new(*cli)?;
            // SAFETY: `main` calls this function before it creates any thread.
            unsafe { avoid_scatter(plan.local.buffer) };
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
