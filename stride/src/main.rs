//! `stride-perf`: bandwidth and latency of RDMA, as perftest defines them.

use std::io::ErrorKind;
use std::process::ExitCode;

use stride::cli::{self, Usage};
use stride::error::Error;
use stride::plan::Plan;
use stride::report::Output;

/// What every error exits with.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let failure = match cli::parse(std::env::args_os()) {
        Ok(cli) => match run(cli) {
            Ok(code) => return ExitCode::from(code),
            // Whoever reads the table has seen enough of it: no failure.
            Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Err(error) => format!("stride-perf: {}", error.one_line()),
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

/// What the process exits with.
fn run(cli: cli::Cli) -> Result<u8, Error> {
    let args = cli.output.clone();
    let plan = Plan::new(cli)?;
    let mut output = Output::of_run(&args, &plan, std::env::args_os().collect())?;
    let done = stride::session::run(&plan, &mut output);
    output.finish(done)
}
