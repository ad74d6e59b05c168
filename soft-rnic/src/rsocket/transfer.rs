//! Sending and receiving bytes.

use std::ffi::c_int;

use super::queues::Piece;
use super::socket::{LINGER, Phase, Socket, State, Wait};
use super::stream::Pieces;
use super::wait::Deadline;

/// Flags that ask for what there is not. Others that mean nothing here are left alone, as TCP does.
const NO_SEND_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_FASTOPEN | libc::MSG_ZEROCOPY;
const NO_RECEIVE_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;

fn wait(flags: c_int) -> Wait {
    if flags & libc::MSG_DONTWAIT != 0 { Wait::Never } else { Wait::Usually }
}

impl Socket {
    /// As recvmsg(2).
    ///
    /// # Safety
    ///
    /// - The pieces are writable.
    pub(super) unsafe fn receive(&self, pieces: &[Piece], flags: c_int) -> Result<usize, c_int> {
        if flags & NO_RECEIVE_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let mut pieces = Pieces::new(pieces)?;
        let deadline = Deadline::after(self.locked().options.receive_timeout);
        let mut total = 0;
        let received = self.attempt(wait(flags), deadline, |state| {
            // SAFETY: the caller's promise.
            unsafe { state.receive(&mut pieces, flags, &mut total) }
        });
        if total > 0 { Ok(total) } else { received.map(|()| 0) }
    }

    /// As sendmsg(2): without the signal.
    ///
    /// # Safety
    ///
    /// - The pieces are readable.
    pub(super) unsafe fn send(&self, pieces: &[Piece], flags: c_int) -> Result<usize, c_int> {
        if flags & NO_SEND_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let mut pieces = Pieces::new(pieces)?;
        let deadline = Deadline::after(self.locked().options.send_timeout);
        let mut total = 0;
        let sent = self.attempt(wait(flags), deadline, |state| {
            // SAFETY: the caller's promise.
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
                return Err(if state.phase == Phase::Closed { libc::EBADF } else { libc::ENOTCONN });
            }
            state.reads_no_more |= how != libc::SHUT_WR;
            state.writes_no_more |= how != libc::SHUT_RD;
            state.bells.ring();
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

impl State {
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
        pieces: &mut Pieces<'_>,
        flags: c_int,
        total: &mut usize,
    ) -> Option<Result<(), c_int>> {
        if self.is_connecting() {
            return None;
        }
        let Some(stream) = self.stream.as_mut().filter(|_| self.phase != Phase::Listening) else {
            return self.told().or(Some(if self.phase == Phase::Over {
                Ok(())
            } else {
                Err(libc::ENOTCONN)
            }));
        };
        let peeks = flags & libc::MSG_PEEK != 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && !peeks;
        // SAFETY: the caller's promise.
        *total += unsafe { stream.read(pieces, peeks) };
        let is_over = stream.has_ended() || self.reads_no_more;
        if pieces.left() == 0 || *total > 0 && !wants_all || is_over {
            return Some(Ok(()));
        }
        if self.phase != Phase::Over {
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
    unsafe fn send(&mut self, pieces: &mut Pieces<'_>, total: &mut usize) -> Option<Result<(), c_int>> {
        if self.writes_no_more {
            return Some(Err(libc::EPIPE));
        }
        match self.phase {
            Phase::Resolving | Phase::Routing | Phase::Asking | Phase::Answering => None,
            Phase::Idle | Phase::Listening => self.told().or(Some(Err(libc::ENOTCONN))),
            Phase::Over if *total > 0 => Some(Ok(())),
            Phase::Over => self.told().or(Some(Err(libc::EPIPE))),
            Phase::Closed => Some(Err(libc::EBADF)),
            Phase::Connected => {
                // SAFETY: the caller's promise.
                *total += unsafe { self.stream.as_mut()?.write(pieces) };
                (pieces.left() == 0).then_some(Ok(()))
            }
        }
    }
}
