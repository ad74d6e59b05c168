//! Programs see the same over `std::net` and over this crate.
//!
//! Each scenario is written once, over the interface that both share (`net.rs`). It returns what its
//! program has observed: counts, bytes, kinds of errors and ends, but no times. A case runs it over
//! `std::net` and over the part's transport, and the two observations must be equal. The list of five
//! differences in the documentation of the crate's root has the rest.

mod closing;
mod connecting;
mod ends;
mod late_readers;
pub(crate) mod net;
pub(crate) mod processes;
mod readiness;
pub(crate) mod storm;

use std::fmt::Debug;
use std::panic::resume_unwind;
use std::thread;

use test_harness::Outcome;

use super::fixture::Fixture;
use net::{Own, Std};

/// Adds scenarios as cases.
macro_rules! compared {
    ($suite:ident: $($scenario:ident),* $(,)?) => {
        $($suite.add(module_path!(), stringify!($scenario), "", |fixture| {
            $crate::parity::compare(fixture, $scenario, $scenario)
        });)*
    };
}
use compared;

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    connecting::add(suite);
    closing::add(suite);
    ends::add(suite);
    readiness::add(suite);
    processes::add(suite);
    late_readers::add(suite);
    storm::add(suite);
}

/// Runs a scenario over both at the same time, because some of them sleep.
fn compare<T: Debug + PartialEq + Send>(
    fixture: &Fixture,
    over_std: impl FnOnce(&Std) -> T + Send,
    over_own: impl FnOnce(&Own) -> T,
) -> Outcome {
    thread::scope(|scope| {
        let expected = scope.spawn(|| over_std(&Std));
        let observed = over_own(&Own::new(fixture));
        let expected = expected.join().unwrap_or_else(|panic| resume_unwind(panic));
        assert_eq!(observed, expected, "this crate, and `std::net`");
    });
    Ok(())
}
