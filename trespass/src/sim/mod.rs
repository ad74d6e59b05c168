//! The simulator: two connections, a modelled link between them, virtual time and one seed.
//!
//! Nothing here knows a thread, a socket or a clock. A run is a loop of steps; each step lets chance
//! choose who does something: a program writes or reads, a driver takes completions or posts, a
//! device carries work out, time passes. The oracle beside it knows what was sent and checks what
//! arrives; the link and the memory check what devices and memory are asked to do.
//!
//! A failure prints its seed and step; `TRESPASS_SIM_SEED=<seed> cargo test -p trespass <test>`
//! repeats that run alone. `TRESPASS_SIM_STEPS=<n>` runs each test until it has made `n` steps. How many steps and how much virtual
//! time it was is printed (`--nocapture`); `.ci/run sim` adds that up.

mod endpoint;
mod invariants;
mod link;
mod memory;
mod monitor;
mod oracle;
mod pattern;
mod plan;
mod program;
mod rng;
mod shared_receives;
mod simulation;
mod tcp;

use rng::SimRng;
use simulation::RunStatistics;
use std::str::FromStr;
use std::time::Duration;

/// Runs `run` with one seed after the other until it has made `budget` steps, and gives the sum of what happened.
fn explore(budget: u64, run: impl Fn(u64, SimRng) -> RunStatistics) -> RunStatistics {
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

/// Prints how much was simulated, as `.ci/run sim` reads it.
pub(crate) fn report(steps: u64, runs: u64, time: Duration) {
    let thread = std::thread::current();
    let test = thread.name().and_then(|name| name.rsplit("::").next()).unwrap_or("?");
    println!("simulated {test}: {steps} steps, {runs} runs, {} s of virtual time", time.as_secs());
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
