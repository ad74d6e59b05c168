//! Promises that hold between processes: what may be touched after a call has returned, what becomes of those who are killed or
//! stopped at any moment, and what is left of them.
//!
//! A test starts this program again as a *role*, in a fabric of its own; a role starts others. A role that hangs is ended by an
//! alarm, and a role whose parent has ended ends with it.

mod cm;
mod connection_soak;
mod connections;
mod copies;
mod death;
mod kit;
mod limits;
mod multicast;
mod regions;
mod revocation;
mod role;
mod rsockets;
mod sends;
mod soak;
mod status;
mod stuck;
mod windows;
mod xrc;

use libtest_mimic::{Arguments, Trial};

fn main() -> std::process::ExitCode {
    if role::play() {
        return std::process::ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Time is part of what is tested, though never of what passes: two at a time is what a small machine can do.
    arguments.test_threads.get_or_insert(2);
    let mut trials: Vec<Trial> = Vec::new();
    trials.extend(revocation::trials());
    trials.extend(death::trials());
    trials.extend(limits::trials());
    trials.extend(copies::trials());
    trials.extend(sends::trials());
    trials.extend(multicast::trials());
    trials.extend(xrc::trials());
    trials.extend(regions::trials());
    trials.extend(soak::trials());
    trials.extend(status::trials());
    trials.extend(stuck::trials());
    trials.extend(windows::trials());
    trials.extend(connections::trials());
    trials.extend(connection_soak::trials());
    trials.extend(rsockets::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}
