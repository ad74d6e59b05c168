//! `rpoll` and `rselect`: waiting for rsockets and other descriptors together.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use super::socket::{PollDepth, RSocket};
use super::table;
use super::wait::{self, Deadline, ThreadWaker};

/// The descriptors that a call waits for.
struct PollSet<'a> {
    fds: &'a mut [libc::pollfd],
    /// The rsockets, with their indices in `fds`.
    sockets: Vec<(usize, Arc<RSocket>)>,
}

impl PollSet<'_> {
    /// Updates `revents` of all entries; returns the number of ready ones.
    fn look(&mut self, look: PollDepth) -> Result<usize, c_int> {
        let mut others = self.without_sockets();
        wait::poll(&mut others, 0)?;
        for (fd, other) in self.fds.iter_mut().zip(&others) {
            fd.revents = other.revents;
        }
        for (place, socket) in &self.sockets {
            let fd = &mut self.fds[*place];
            fd.revents = socket.ready(fd.events, look);
        }
        Ok(self.fds.iter().filter(|fd| fd.revents != 0).count())
    }

    /// The descriptors for poll(2), with the rsockets disabled.
    fn without_sockets(&self) -> Vec<libc::pollfd> {
        let mut others = self.fds.to_vec();
        for (place, _) in &self.sockets {
            others[*place].fd = -1;
        }
        others
    }

    /// The descriptors to sleep on, with each rsocket replaced by its descriptor.
    fn with_descriptors(&self) -> Vec<libc::pollfd> {
        let mut all = self.fds.to_vec();
        for (place, socket) in &self.sockets {
            let fd = socket.sleeps_on(all[*place].events);
            all[*place] = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        }
        all
    }
}

/// Like poll(2), for rsockets and other descriptors.
pub(super) fn poll(fds: &mut [libc::pollfd], timeout: Deadline) -> Result<usize, c_int> {
    let sockets: Vec<_> =
        fds.iter().enumerate().filter_map(|(place, fd)| Some((place, table::find(fd.fd)?))).collect();
    let mut waiting = PollSet { fds, sockets };
    loop {
        let ready = waiting.look(PollDepth::Thoroughly)?;
        if ready > 0 || timeout.has_passed() {
            return Ok(ready);
        }
        let waker = ThreadWaker::own()?;
        waiting.sockets.iter().for_each(|(_, socket)| socket.add_sleeper(&waker));
        let slept = waiting.look(PollDepth::BeforeSleep).and_then(|ready| {
            if ready == 0 { wait::sleep(&mut waiting.with_descriptors(), &waker, timeout) } else { Ok(()) }
        });
        waiting.sockets.iter().for_each(|(_, socket)| socket.remove_sleeper(&waker));
        slept?;
    }
}

/// The three sets of select(2); a pointer is null if the program gave no set.
pub(super) struct FdSets(pub(super) [*mut libc::fd_set; 3]);

/// For each set, the events to poll for, and the events that put a descriptor into the result.
const ASKED: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// Like select(2), for rsockets and other descriptors.
///
/// # Safety
///
/// - Each set is null or valid.
pub(super) unsafe fn select(nfds: c_int, sets: &FdSets, timeout: Deadline) -> Result<c_int, c_int> {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&nfds) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller guarantees that a set is null or valid; `fd` is below `FD_SETSIZE`.
    let is_in = |set: *mut libc::fd_set, fd| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
    let mut fds: Vec<_> = (0..nfds)
        .filter_map(|fd| {
            let asked = sets.0.iter().zip(ASKED).filter(|(set, _)| is_in(**set, fd));
            let events = asked.fold(0, |events, (_, (asked, _))| events | asked);
            (events != 0).then_some(libc::pollfd { fd, events, revents: 0 })
        })
        .collect();
    poll(&mut fds, timeout)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(libc::EBADF);
    }
    let mut count = 0;
    for (set, (asked, told)) in sets.0.into_iter().zip(ASKED).filter(|(set, _)| !set.is_null()) {
        for fd in &fds {
            let is_ready = fd.events & asked != 0 && fd.revents & told != 0;
            count += c_int::from(is_ready);
            if !is_ready {
                // SAFETY: the caller guarantees that a set is null or valid; `fd` is below
                // `FD_SETSIZE`.
                unsafe { libc::FD_CLR(fd.fd, set) };
            }
        }
    }
    Ok(count)
}

/// Converts the timeout of poll(2); a negative one means no deadline.
pub(super) fn after_milliseconds(milliseconds: c_int) -> Deadline {
    Deadline::after(u64::try_from(milliseconds).ok().map(Duration::from_millis))
}
