//! Guarantees that hold between processes. A call that revokes memory returns only when nobody
//! accesses it any more. A process that dies or stops at any moment harms no other process, and
//! leaves nothing behind.
//!
//! A test starts this program again in a *role*, in a separate fabric, and a role may start others.
//! An alarm ends a role that hangs. A role ends when its parent does.

mod announced;
mod captured_log;
mod cm;
mod connection_soak;
mod connections;
mod copies;
mod death;
mod footprint;
mod guest;
mod implicit;
mod kit;
mod limits;
mod multicast;
mod partner;
mod regions;
mod revocation;
mod rights;
mod role;
mod rsockets;
mod scribble;
mod sends;
mod soak;
mod status;
mod stuck;
mod unanswered;
mod users;
mod wakes;
mod windows;
mod xrc;

use libtest_mimic::{Arguments, Trial};

fn main() -> std::process::ExitCode {
    if role::play() {
        return std::process::ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Most tests wait for processes that sleep or end. Their time limits hold with two at a time on
    // each processor.
    arguments.test_threads.get_or_insert(2 * std::thread::available_parallelism().map_or(1, usize::from));
    let mut trials: Vec<Trial> = Vec::new();
    trials.extend(revocation::trials());
    trials.extend(death::trials());
    trials.extend(users::trials());
    trials.extend(limits::trials());
    trials.extend(footprint::trials());
    trials.extend(announced::trials());
    trials.extend(copies::trials());
    trials.extend(sends::trials());
    trials.extend(multicast::trials());
    trials.extend(xrc::trials());
    trials.extend(regions::trials());
    trials.extend(implicit::trials());
    trials.extend(soak::trials());
    trials.extend(status::trials());
    trials.extend(scribble::trials());
    trials.extend(guest::trials());
    trials.extend(stuck::trials());
    trials.extend(unanswered::trials());
    trials.extend(wakes::trials());
    trials.extend(windows::trials());
    trials.extend(connections::trials());
    trials.extend(connection_soak::trials());
    trials.extend(rsockets::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}
