//! Event counters (`eventfd`) of other processes.
//!
//! A process takes the descriptor itself (`pidfd_getfd`, Linux 5.6), for which the system asks for the
//! rights of a debugger. A process with those can do anything to the other one anyway.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::file_table;
use super::fork::OwnedFile;

/// The number that no other event counter of the system has while this one exists (Linux 5.2).
/// `None` for other files.
pub(crate) fn id(file: BorrowedFd<'_>) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("eventfd-id:")).and_then(|id| id.trim().parse().ok())
}

/// The event counter that another process has under this number.
pub(crate) fn of_process(pid: u32, number: RawFd, wanted: u64) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    let file = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
    if id(file.as_fd()) == Some(wanted) {
        return Some(file);
    }
    // Closing some files takes as long as their process wants.
    file_table::close(OwnedFile::new(file));
    None
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn only_the_wanted_counter_is_taken() {
        let [one, other] = [0; 2].map(|_| eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"));
        let (own, number) = (std::process::id(), one.as_raw_fd());
        let wanted = id(one.as_fd()).expect("Linux 5.2 or newer");
        let Some(taken) = of_process(own, number, wanted) else {
            let name = "platform::event_counter::tests::only_the_wanted_counter_is_taken";
            return test_harness::report_skip(
                name,
                "the kernel (before 5.6) or a seccomp profile forbids it",
            );
        };
        rustix::io::write(&taken, &3_u64.to_ne_bytes()).expect("a counter");
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(&one, &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 3);
        assert!(of_process(own, other.as_raw_fd(), wanted).is_none());
        let (reads, _writes) = rustix::pipe::pipe().expect("two descriptors");
        assert!(id(reads.as_fd()).is_none() && of_process(own, reads.as_raw_fd(), wanted).is_none());
    }
}
