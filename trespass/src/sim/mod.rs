//! A deterministic simulator of the protocol: two connections, a modelled link between them,
//! virtual time, and one seed.
//!
//! Nothing here uses a thread, a socket or a clock. A run is a loop of steps. In each step chance
//! chooses an actor: a program writes or reads, a driver takes completions or posts requests, a
//! device executes work, or time passes. The oracle knows what was sent, and checks what arrives.
//! The link and the memory check the requests to devices and memory.
//!
//! A failure prints its seed and step. `TRESPASS_SIM_SEED=<seed> cargo test -p trespass <test>`
//! repeats that run alone. `TRESPASS_SIM_STEPS=<n>` runs each test until it has made `n` steps.
//! Each test prints its number of steps and its virtual time (`--nocapture`), and `.ci/run sim`
//! adds them up.

mod arrivals;
mod closing;
mod crowd;
mod endpoint;
mod invariants;
mod link;
mod memory;
mod monitor;
mod oracle;
mod pattern;
mod plan;
mod program;
mod rails;
mod rng;
mod shared_receives;
mod simulation;
mod tcp;
mod visits;
mod wire;

use rng::SimRng;
use simulation::RunStatistics;
use std::str::FromStr;
use std::time::Duration;

/// Repeats `run` with increasing seeds until it has made `budget` steps; returns the sum of the
/// statistics.
fn explore(budget: u64, mut run: impl FnMut(u64, SimRng) -> RunStatistics) -> RunStatistics {
    let mut sum = RunStatistics::default();
    if let Some(seed) = variable("TRESPASS_SIM_SEED") {
        sum.add(&run(seed, SimRng::new(seed)));
        eprintln!("seed {seed}: {sum:?}");
        return sum;
    }
    let budget = variable("TRESPASS_SIM_STEPS").unwrap_or(budget);
    let mut seed = 0;
    while sum.steps < budget {
        seed += 1;
        sum.add(&run(seed, SimRng::new(seed)));
    }
    report(sum.steps, seed, sum.time);
    sum
}

/// Prints how to repeat a run that has failed, at the end of its simulation.
fn tell_failed_run(seed: u64, at: std::fmt::Arguments<'_>) {
    if std::thread::panicking() {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("");
        eprintln!("seed {seed}, {at}. Again: TRESPASS_SIM_SEED={seed} cargo test -p trespass {test}");
    }
}

/// Prints the amount of simulation in the format that `.ci/run sim` reads.
pub(crate) fn report(steps: u64, runs: u64, time: Duration) {
    let thread = std::thread::current();
    let test = thread.name().and_then(|name| name.rsplit("::").next()).unwrap_or("?");
    println!("simulated {test}: {steps} steps, {runs} runs, {} s of virtual time", time.as_secs());
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}
