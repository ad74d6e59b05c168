//! Sending and receiving bytes.

use std::ffi::c_int;

use super::queues::UserBuffer;
use super::socket::{Blocking, LINGER, RSocket, RsPhase, RsState};
use super::stream::UserBuffers;
use super::wait::Deadline;

/// Flags for unsupported features. Other flags without a meaning here are ignored, as TCP does.
const NO_SEND_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;
const NO_RECEIVE_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;

fn wait(flags: c_int) -> Blocking {
    if flags & libc::MSG_DONTWAIT != 0 { Blocking::Never } else { Blocking::Usually }
}

impl RSocket {
    /// Like recvmsg(2).
    ///
    /// # Safety
    ///
    /// - The pieces are writable.
    pub(super) unsafe fn receive(&self, pieces: &[UserBuffer], flags: c_int) -> Result<usize, c_int> {
        if flags & NO_RECEIVE_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let mut pieces = UserBuffers::new(pieces)?;
        let deadline = Deadline::after(self.locked().options.receive_timeout);
        let mut total = 0;
        let received = self.attempt(wait(flags), deadline, |state| {
            // SAFETY: the caller guarantees that the pieces are writable.
            unsafe { state.receive(&mut pieces, flags, &mut total) }
        });
        if total > 0 { Ok(total) } else { received.map(|()| 0) }
    }

    /// Like sendmsg(2), but without `SIGPIPE`.
    ///
    /// # Safety
    ///
    /// - The pieces are readable.
    pub(super) unsafe fn send(&self, pieces: &[UserBuffer], flags: c_int) -> Result<usize, c_int> {
        if flags & NO_SEND_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let mut pieces = UserBuffers::new(pieces)?;
        let deadline = Deadline::after(self.locked().options.send_timeout);
        let mut total = 0;
        let sent = self.attempt(wait(flags), deadline, |state| {
            // SAFETY: the caller guarantees that the pieces are readable.
            unsafe { state.send(&mut pieces, &mut total) }
        });
        if total > 0 { Ok(total) } else { sent.map(|()| 0) }
    }

    /// Like shutdown(2). When it returns, the written bytes are in the peer's memory, unless the
    /// peer is stopped.
    pub(super) fn shut_down(&self, how: c_int) -> Result<(), c_int> {
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(libc::EINVAL);
        }
        {
            let mut state = self.locked();
            if !state.is_connected() {
                return Err(if state.phase == RsPhase::Closed { libc::EBADF } else { libc::ENOTCONN });
            }
            state.reads_no_more |= how != libc::SHUT_WR;
            state.writes_no_more |= how != libc::SHUT_RD;
            state.sleepers.wake_all();
        }
        if how != libc::SHUT_RD {
            match self.flush(Deadline::after(Some(LINGER))) {
                // After a timeout, the end of the stream is sent as soon as possible.
                Ok(()) | Err(libc::EAGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl RsState {
    /// Takes the pending error, which is reported once.
    fn told(&mut self) -> Option<Result<(), c_int>> {
        match core::mem::take(&mut self.error) {
            0 => None,
            error => Some(Err(error)),
        }
    }

    /// Attempts to receive once. Returns `None` if the caller must wait.
    ///
    /// # Safety
    ///
    /// - The pieces are writable.
    unsafe fn receive(
        &mut self,
        pieces: &mut UserBuffers<'_>,
        flags: c_int,
        total: &mut usize,
    ) -> Option<Result<(), c_int>> {
        if self.is_connecting() {
            return None;
        }
        let Some(stream) = self.stream.as_mut().filter(|_| self.phase != RsPhase::Listening) else {
            return self.told().or(Some(if self.phase == RsPhase::Over {
                Ok(())
            } else {
                Err(libc::ENOTCONN)
            }));
        };
        let peeks = flags & libc::MSG_PEEK != 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && !peeks;
        // SAFETY: the caller guarantees that the pieces are writable.
        *total += unsafe { stream.read(pieces, peeks) };
        let is_over = stream.has_ended() || self.reads_no_more;
        if pieces.left() == 0 || *total > 0 && !wants_all || is_over {
            return Some(Ok(()));
        }
        if self.phase != RsPhase::Over {
            return None;
        }
        // Return the received bytes first, and the error at the next call.
        if *total > 0 {
            return Some(Ok(()));
        }
        if core::mem::take(&mut self.is_cut_off) {
            self.error = 0;
            return Some(Err(libc::ECONNRESET));
        }
        self.told().or(Some(Ok(())))
    }

    /// Attempts to send once. Returns `None` if the caller must wait for room.
    ///
    /// # Safety
    ///
    /// - The pieces are readable.
    unsafe fn send(&mut self, pieces: &mut UserBuffers<'_>, total: &mut usize) -> Option<Result<(), c_int>> {
        if self.writes_no_more {
            return Some(Err(libc::EPIPE));
        }
        match self.phase {
            RsPhase::Resolving | RsPhase::Routing | RsPhase::Asking | RsPhase::Answering => None,
            RsPhase::Idle | RsPhase::Listening => self.told().or(Some(Err(libc::ENOTCONN))),
            RsPhase::Over if *total > 0 => Some(Ok(())),
            RsPhase::Over => self.told().or(Some(Err(libc::EPIPE))),
            RsPhase::Closed => Some(Err(libc::EBADF)),
            RsPhase::Connected => {
                // SAFETY: the caller guarantees that the pieces are readable.
                *total += unsafe { self.stream.as_mut()?.write(pieces) };
                (pieces.left() == 0).then_some(Ok(()))
            }
        }
    }
}
