//! The mailbox of the service thread: commands from other threads, and the socket that wakes it.

use core::num::NonZero;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::message::{Doorbell, ExportId};
use super::peer_process::PeerProcess;
use super::port_lookup::LookupWaiter;
use super::ports::{CmPort, PortListener};
use crate::platform::socket::Socket;

/// A command for the service thread.
#[derive(Debug)]
pub(crate) enum ServiceCommand {
    /// Connect to the owner of this block, because a queue pair in it is wanted.
    Connect {
        block: u16,
    },
    /// This process has taken a block: accept peers there.
    Listen {
        socket: Socket,
        ordinal: u8,
    },
    /// This process rang its own doorbell.
    Ring(Doorbell),
    /// This attached peer is dead, although its connection is open.
    PeerDied {
        peer_id: u16,
        serial: u64,
    },
    /// The peer seems to be dead: check.
    Suspect(Arc<PeerProcess>),
    /// Exported memory was removed: notify the peers that have mapped it.
    ExportGone(ExportId),
    /// A completion channel was destroyed: notify the peers that have its descriptor.
    ChannelGone(NonZero<u64>),
    /// CM messages for this block wait, and their senders cannot send them.
    FlushOutbox {
        block: u16,
    },
    /// This process has taken a port or a group of ports: listen there.
    ListenOnPort(Arc<PortListener>),
    /// The port or group was released.
    StopListening {
        token: u64,
    },
    /// Find the process that owns a port.
    LookUpPort {
        port: CmPort,
        waiter: LookupWaiter,
    },
    /// Connect to every process, for multicast.
    DiscoverProcesses {
        of: u32,
    },
    Stop,
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    commands: Mutex<Vec<ServiceCommand>>,
    /// Set when the service thread starts.
    sockets: OnceLock<WakeSockets>,
    woken: AtomicBool,
    /// The program has closed the device's descriptors.
    lost: AtomicBool,
}

/// The ends of the wake-up connection. They are sockets, because a socket can be distinguished from
/// a file that the program has opened under the same descriptor number.
#[derive(Debug)]
struct WakeSockets {
    reader: Socket,
    writer: Socket,
}

impl Mailbox {
    /// Creates the sockets, and returns the one to wait for.
    ///
    /// # Errors
    ///
    /// If the process has no file descriptor left.
    pub(crate) fn wake_socket(&self) -> io::Result<&Socket> {
        if self.sockets.get().is_none() {
            let (reader, writer) = Socket::both_ends()?;
            let _ = self.sockets.set(WakeSockets { reader, writer });
            // Commands posted before the sockets existed set this flag without waking the thread.
            self.woken.store(false, Ordering::SeqCst);
            self.wake();
        }
        self.sockets.get().map(|sockets| &sockets.reader).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn post(&self, command: ServiceCommand) {
        if self.is_lost() {
            return;
        }
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.wake();
    }

    /// Wakes the service thread.
    pub(crate) fn wake(&self) {
        if let Some(sockets) = self.sockets.get()
            && !self.woken.swap(true, Ordering::SeqCst)
            // A full socket wakes the thread anyway.
            && let Err(error) = sockets.writer.send(&[1])
            && error.kind() != io::ErrorKind::WouldBlock
        {
            if sockets.writer.is_there() {
                log::error!("the service thread could not be woken: {error}");
            } else {
                self.lose();
            }
        }
    }

    /// Whether the program is known to have closed the device's descriptors.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Checks whether the program has closed the descriptors. False if it has.
    pub(crate) fn check(&self) -> bool {
        if self.sockets.get().is_some_and(|sockets| !sockets.reader.is_there()) {
            self.lose();
        }
        !self.is_lost()
    }

    fn lose(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            log::error!(
                "the program has closed descriptors that the software device had opened (closefrom, close_range?): peers can \
                 no longer be reached; close only the program's descriptors, or open the device afterwards"
            );
        }
    }

    /// Consumes a wake-up. Commands posted after this wake the thread again; commands posted before
    /// it can be [taken](Self::take).
    pub(crate) fn drain_wakes(&self) {
        if let Some(sockets) = self.sockets.get() {
            // One packet at a time: a second packet wakes the thread again.
            let _ = sockets.reader.receive(&mut [0; 1]);
        }
        self.woken.store(false, Ordering::SeqCst);
    }

    /// Takes all commands. Each command posted after this wakes the thread.
    pub(crate) fn take(&self) -> Vec<ServiceCommand> {
        core::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
