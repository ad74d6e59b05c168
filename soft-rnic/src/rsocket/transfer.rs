//! Sending and receiving bytes.

use std::ffi::c_int;

use super::queues::UserBuffer;
use super::socket::{Blocking, LINGER, RSocket, RsPhase, RsState};
use super::stream::UserBuffers;
use super::wait::Deadline;

/// Flags that ask for what there is not. Others that mean nothing here are left alone, as TCP does.
const NO_SEND_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;
const NO_RECEIVE_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;

fn wait(flags: c_int) -> Blocking {
    if flags & libc::MSG_DONTWAIT != 0 { Blocking::Never } else { Blocking::Usually }
}

impl RSocket {
    /// As recvmsg(2).
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
            // SAFETY: the pieces are writable, by the contract of `receive`.
            unsafe { state.receive(&mut pieces, flags, &mut total) }
        });
        if total > 0 { Ok(total) } else { received.map(|()| 0) }
    }

    /// As sendmsg(2): without the signal.
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
            // SAFETY: the pieces are readable, by the contract of `send`.
            unsafe { state.send(&mut pieces, &mut total) }
        });
        if total > 0 { Ok(total) } else { sent.map(|()| 0) }
    }

    /// As shutdown(2). What was written is where the other side finds it when this returns, unless that is stopped.
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
                // It is told as soon as it can be.
                Ok(()) | Err(libc::EAGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl RsState {
    /// The error that is to be told once.
    fn told(&mut self) -> Option<Result<(), c_int>> {
        match core::mem::take(&mut self.error) {
            0 => None,
            error => Some(Err(error)),
        }
    }

    /// `None`: there is nothing yet.
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
        // SAFETY: the pieces are writable, by the contract of `receive`.
        *total += unsafe { stream.read(pieces, peeks) };
        let is_over = stream.has_ended() || self.reads_no_more;
        if pieces.left() == 0 || *total > 0 && !wants_all || is_over {
            return Some(Ok(()));
        }
        if self.phase != RsPhase::Over {
            return None;
        }
        // What was received is given first, and the error with the next call.
        if *total > 0 {
            return Some(Ok(()));
        }
        if core::mem::take(&mut self.is_cut_off) {
            self.error = 0;
            return Some(Err(libc::ECONNRESET));
        }
        self.told().or(Some(Ok(())))
    }

    /// `None`: there is no room for all.
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
                // SAFETY: the pieces are readable, by the contract of `send`.
                *total += unsafe { self.stream.as_mut()?.write(pieces) };
                (pieces.left() == 0).then_some(Ok(()))
            }
        }
    }
}
