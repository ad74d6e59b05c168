//! `rpoll` and `rselect`: waiting for rsockets and other descriptors at once.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use super::socket::{PollDepth, RSocket};
use super::table;
use super::wait::{self, Deadline, ThreadWaker};

/// What is waited for.
struct PollSet<'a> {
    fds: &'a mut [libc::pollfd],
    /// The rsockets among them.
    sockets: Vec<(usize, Arc<RSocket>)>,
}

impl PollSet<'_> {
    /// What each has now; how many have anything.
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

    /// The descriptors for poll(2), which leaves out the rsockets.
    fn without_sockets(&self) -> Vec<libc::pollfd> {
        let mut others = self.fds.to_vec();
        for (place, _) in &self.sockets {
            others[*place].fd = -1;
        }
        others
    }

    /// The descriptors to sleep on.
    fn with_descriptors(&self) -> Vec<libc::pollfd> {
        let mut all = self.fds.to_vec();
        for (place, socket) in &self.sockets {
            let fd = socket.sleeps_on(all[*place].events);
            all[*place] = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        }
        all
    }
}

/// As poll(2); rsockets may be among the descriptors.
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

/// The three sets of select(2): null if there is none.
pub(super) struct FdSets(pub(super) [*mut libc::fd_set; 3]);

/// What each set asks for, and what puts a descriptor into it.
const ASKED: [(i16, i16); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// As select(2); rsockets may be among the descriptors.
///
/// # Safety
///
/// - The sets are null, or sets.
pub(super) unsafe fn select(nfds: c_int, sets: &FdSets, timeout: Deadline) -> Result<c_int, c_int> {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&nfds) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the sets are null, or sets, by the contract of `select`; the number is below the size
    // of a set.
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
                // SAFETY: the sets are null, or sets, by the contract of `select`; the number is
                // below the size of a set.
                unsafe { libc::FD_CLR(fd.fd, set) };
            }
        }
    }
    Ok(count)
}

/// Of poll(2): less than 0 is for ever.
pub(super) fn after_milliseconds(milliseconds: c_int) -> Deadline {
    Deadline::after(u64::try_from(milliseconds).ok().map(Duration::from_millis))
}
