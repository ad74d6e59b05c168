//! A peer process and the proof of its death (pidfd or start time).

use std::num::NonZeroU32;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::fork::ForkSafeFd;
use super::socket::Socket;

/// A process. Its start time distinguishes it from a later process with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: NonZeroU32,
    started: u64,
}

impl Process {
    /// Finds the process with this number; `None` if none exists, or none is visible from this pid
    /// namespace.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let pid = NonZeroU32::new(pid)?;
        Some(Self { pid, started: start_time(pid)? })
    }

    pub(crate) fn pid(self) -> u32 {
        self.pid.get()
    }

    /// Whether the process has certainly ended: all its threads have exited, so that it touches
    /// nothing any more. A zombie counts as ended.
    pub(crate) fn is_dead(self) -> bool {
        let Some(pid) = i32::try_from(self.pid.get()).ok().and_then(Pid::from_raw) else { return false };
        let file = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::SRCH) => return true,
            // An emulator that lacks pidfds, or no descriptor is left.
            Err(_) => return self.is_said_dead(),
        };
        // The pidfd refers to the current owner of the number. If that is a later process, the one
        // meant is dead.
        start_time(self.pid).is_some_and(|started| started != self.started) || has_ended(&file)
    }

    /// The same question, answered from `/proc`.
    fn is_said_dead(self) -> bool {
        match stat(self.pid) {
            Ok(stat) => {
                let threads = field(&stat, 17).and_then(|threads| threads.parse().ok());
                // The first thread of a process may have ended while others run.
                let ended =
                    matches!(field(&stat, 0), Some("Z" | "X")) && threads.is_some_and(|left: u64| left <= 1);
                ended || field(&stat, STARTED).is_some_and(|started| started != self.started.to_string())
            }
            Err(error) => {
                error.kind() == std::io::ErrorKind::NotFound
                    && std::fs::exists("/proc/self").is_ok_and(|there| there)
            }
        }
    }
}

/// Whether a pidfd reports that its process has ended. Any other answer proves nothing.
fn has_ended(file: impl AsFd) -> bool {
    let mut files = [PollFd::new(&file, PollFlags::IN)];
    let ready = poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready == Ok(1) && files[0].revents().contains(PollFlags::IN)
}

/// The means by which this process learns that another has ended.
#[derive(Debug)]
pub(crate) enum Lifeline {
    /// A pidfd, which becomes readable at the end of the process.
    File(ForkSafeFd),
    /// No pidfd is available, so the process must be checked repeatedly.
    Number(Process),
}

impl Lifeline {
    /// The lifeline of the process that connected, or of `process` if that is known; `None` if it
    /// is not visible.
    pub(crate) fn of(connection: &Socket, process: Option<Process>) -> Option<Self> {
        connection.peer_process().map(Self::File).or(process.map(Self::Number))
    }

    /// Whether the process has ended.
    pub(crate) fn is_cut(&self) -> bool {
        match self {
            Self::File(file) => has_ended(file),
            Self::Number(process) => process.is_dead(),
        }
    }
}

/// Index of the start time in the count of [`field`].
const STARTED: usize = 19;

/// A field of the text that [`stat`] returns; number 0 is the state, which follows the name. The
/// name, in parentheses, may contain any character.
fn field(stat: &[u8], number: usize) -> Option<&str> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().nth(number)
}

/// The contents of `stat` for a process's first thread, which started with the process. qemu-user
/// makes up the process's own file, but shows each thread its true start time.
fn stat(pid: NonZeroU32) -> std::io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/task/{pid}/stat"))
}

/// The start time of a process, in the kernel's clock ticks.
fn start_time(pid: NonZeroU32) -> Option<u64> {
    field(&stat(pid).ok()?, STARTED)?.parse().ok()
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
        assert!(!process.is_dead() && !process.is_said_dead());
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
        // Polls until the child has ended; without `waitpid` it stays a zombie.
        let mut tries = 0;
        while !process.is_dead() {
            std::thread::sleep(std::time::Duration::from_millis(1));
            tries += 1;
            assert!(tries < 10_000, "killed, but not dead");
        }
        assert!(process.is_said_dead());
        child.wait().expect("wait");
        assert!(process.is_dead() && process.is_said_dead());
    }

    #[test]
    fn all_threads_find_the_same_process() {
        let own = Process::find(std::process::id());
        // At least one clock tick later.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let found = std::thread::spawn(|| Process::find(std::process::id())).join().expect("no panic");
        assert_eq!(found, own);
        assert!(own.is_some_and(|own| !own.is_dead()));
    }

    #[test]
    fn a_later_process_of_the_same_number_is_another() {
        let own = Process::find(std::process::id()).expect("this process");
        assert!(!own.is_dead());
        let later = Process { started: own.started + 1, ..own };
        assert!(later.is_dead() && later.is_said_dead());
        assert_eq!(Process::find(0), None);
    }
}
