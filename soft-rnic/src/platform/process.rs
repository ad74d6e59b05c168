//! Another process, and whether it is dead.

use std::num::NonZeroU32;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process, told from a later one of the same number by the time at which it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: NonZeroU32,
    started: u64,
}

impl Process {
    /// The process of this number; `None` if there is none, or none that can be seen from this pid namespace.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let pid = NonZeroU32::new(pid)?;
        Some(Self { pid, started: start_time(pid)? })
    }

    pub(crate) fn pid(self) -> u32 {
        self.pid.get()
    }

    /// Whether the process has ended, for certain: all its threads, so that it touches nothing any more. That nobody
    /// has waited for it yet makes no difference.
    pub(crate) fn is_dead(self) -> bool {
        let Some(pid) = i32::try_from(self.pid.get()).ok().and_then(Pid::from_raw) else { return false };
        let file = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(file) => file,
            Err(error) => return error == rustix::io::Errno::SRCH,
        };
        // The descriptor is of whoever has the number now. If that is a later process, the one meant is dead.
        if start_time(self.pid).is_some_and(|started| started != self.started) {
            return true;
        }
        let mut files = [PollFd::new(&file, PollFlags::IN)];
        let ready = poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        // Anything else (an emulator that does not know such descriptors) proves nothing.
        ready == Ok(1) && files[0].revents().contains(PollFlags::IN)
    }
}

/// When a process started, in the kernel's ticks: the start of its first thread, which is the same. The file of the thread
/// is read since an emulator (qemu-user) makes up the process's own: there each thread finds its own start.
fn start_time(pid: NonZeroU32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/task/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything. The start is the 22nd field, the state after the name the 3rd.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_is_dead_and_a_stopped_process_is_not() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("sleep");
        let process = Process::find(child.id()).expect("a child");
        assert!(!process.is_dead());
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("kill");
        assert!(!process.is_dead());
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
        // Until it has ended, without waiting for it: it stays a zombie.
        let mut tries = 0;
        while !process.is_dead() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            tries += 1;
            assert!(tries < 10_000, "killed, but not dead");
        }
        child.wait().expect("wait");
        assert!(process.is_dead());
    }

    #[test]
    fn all_threads_find_the_same_process() {
        let own = Process::find(std::process::id());
        // A tick later.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let found = std::thread::spawn(|| Process::find(std::process::id())).join().expect("no panic");
        assert_eq!(found, own);
        assert!(own.is_some_and(|own| !own.is_dead()));
    }

    #[test]
    fn a_later_process_of_the_same_number_is_another() {
        let own = Process::find(std::process::id()).expect("this process");
        assert!(!own.is_dead());
        assert!(Process { started: own.started + 1, ..own }.is_dead());
        assert_eq!(Process::find(0), None);
    }
}
