//! What other threads ask of the service thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::link::Link;
use super::message::{Doorbell, ShareId};
use crate::platform::fork::Descriptor;
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
    GuestDied {
        link: u16,
        serial: u64,
    },
    /// The peer seems to be dead.
    Suspect(Arc<Link>),
    /// Shareable memory was taken away: peers are to unmap it.
    ShareGone(ShareId),
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
    bell: OnceLock<Descriptor>,
    rung: AtomicBool,
}

impl Mailbox {
    /// Makes the bell, and says what to wait for.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left.
    pub(crate) fn bell(&self) -> io::Result<&Descriptor> {
        if self.bell.get().is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let _ = self.bell.set(Descriptor::open(|| eventfd(0, flags))?);
            // What was posted before found no bell.
            self.rung.store(false, Ordering::SeqCst);
            self.ring();
        }
        self.bell.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn post(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.ring();
    }

    /// Wakes the service thread.
    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell.get()
            && !self.rung.swap(true, Ordering::SeqCst)
            // A full counter is a rung bell.
            && let Err(error) = rustix::io::write(bell, &1_u64.to_ne_bytes())
            && error != rustix::io::Errno::AGAIN
        {
            log::error!("the service thread could not be woken: {error}");
        }
    }

    /// Takes all commands. What is posted after this rings again.
    pub(crate) fn take(&self) -> Vec<Command> {
        if let Some(bell) = self.bell.get() {
            let mut count = [0; 8];
            let _ = rustix::io::read(bell, &mut count);
        }
        self.rung.store(false, Ordering::SeqCst);
        core::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
