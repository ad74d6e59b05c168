//! What other threads ask of the service thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::link::Link;
use super::message::{Doorbell, ShareId};
use super::ports::{Door, Port};
use super::questions::Seeker;
use crate::platform::socket::Socket;

/// Something for the service thread to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Somebody wants to reach a queue pair in this block.
    Connect {
        block: u16,
    },
    /// A block was taken.
    Listen {
        socket: Socket,
        ordinal: u8,
    },
    /// This process rang its own doorbell.
    Ring(Doorbell),
    /// The process at this link of the own segment is dead, although its connection is open.
    PeerDied {
        peer_id: u16,
        serial: u64,
    },
    /// The peer seems to be dead.
    Suspect(Arc<Link>),
    /// Shareable memory was taken away: peers are to unmap it.
    ShareGone(ShareId),
    /// CM messages for this block wait, and nobody sends them.
FlushOutbox {
        block: u16,
    },
    /// A port was taken, or a group of them.
    Door(Arc<Door>),
    /// It was let go.
    Shut {
        token: u64,
    },
    /// Somebody wants to know who has a port.
    Question {
        port: Port,
        seeker: Seeker,
    },
    /// Everybody is to be found.
    Census {
        of: u32,
    },
    Stop,
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    commands: Mutex<Vec<Command>>,
    /// There once the service thread is.
    bell: OnceLock<Bell>,
    rung: AtomicBool,
    /// The program has closed the device's descriptors.
    lost: AtomicBool,
}

/// What the service thread hears, and what rings it. Sockets, because they can be told from files that the program has put in
/// their place.
#[derive(Debug)]
struct Bell {
    heard: Socket,
    rings: Socket,
}

impl Mailbox {
    /// Makes the bell, and says what to wait for.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left.
    pub(crate) fn bell(&self) -> io::Result<&Socket> {
        if self.bell.get().is_none() {
            let (heard, rings) = Socket::both_ends()?;
            let _ = self.bell.set(Bell { heard, rings });
            // What was posted before found no bell.
            self.rung.store(false, Ordering::SeqCst);
            self.ring();
        }
        self.bell.get().map(|bell| &bell.heard).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn post(&self, command: Command) {
        if self.is_lost() {
            return;
        }
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.ring();
    }

    /// Wakes the service thread.
    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell.get()
            && !self.rung.swap(true, Ordering::SeqCst)
            // A full socket is a rung bell.
            && let Err(error) = bell.rings.send(&[1])
            && error.kind() != io::ErrorKind::WouldBlock
        {
            if bell.rings.is_there() {
                log::error!("the service thread could not be woken: {error}");
            } else {
                self.lose();
            }
        }
    }

    /// Whether the program has closed the device's descriptors, as far as is known.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Looks whether it has.
    pub(crate) fn check(&self) -> bool {
        if self.bell.get().is_some_and(|bell| !bell.heard.is_there()) {
            self.lose();
        }
        !self.is_lost()
    }

    fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            log::error!(
                "the program has closed descriptors that the software device had opened (closefrom, close_range?): no peer can \
                 be reached any more; close only your own, or open the device after that"
            );
        }
    }

    /// The bell was heard. What is posted after this rings again; what was posted before is there to be [taken](Self::take).
    pub(crate) fn hear(&self) {
        if let Some(bell) = self.bell.get() {
            // One at a time: if there is another, it is heard again.
            let _ = bell.heard.receive(&mut [0; 1]);
        }
        self.rung.store(false, Ordering::SeqCst);
    }

    /// Takes all commands. Of those that are posted after this, the bell tells.
    pub(crate) fn take(&self) -> Vec<Command> {
        core::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
