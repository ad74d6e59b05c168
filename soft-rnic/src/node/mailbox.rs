//! The mailbox of the service thread: commands of other threads, and the socket that wakes it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::message::{Doorbell, ExportId};
use super::peer_process::PeerProcess;
use super::port_lookup::LookupWaiter;
use super::ports::{CmPort, PortListener};
use crate::platform::socket::Socket;

/// Something for the service thread to do.
#[derive(Debug)]
pub(crate) enum ServiceCommand {
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
    /// The attached peer with this number is dead, although its connection is open.
    PeerDied {
        peer_id: u16,
        serial: u64,
    },
    /// The peer seems to be dead.
    Suspect(Arc<PeerProcess>),
    /// Shareable memory was taken away: peers are to unmap it.
    ExportGone(ExportId),
    /// CM messages for this block wait, and nobody sends them.
    FlushOutbox {
        block: u16,
    },
    /// A port was taken, or a group of them.
    ListenOnPort(Arc<PortListener>),
    /// It was let go.
    StopListening {
        token: u64,
    },
    /// Somebody wants to know who has a port.
    LookUpPort {
        port: CmPort,
        waiter: LookupWaiter,
    },
    /// Everybody is to be found.
    DiscoverProcesses {
        of: u32,
    },
    Stop,
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    commands: Mutex<Vec<ServiceCommand>>,
    /// There once the service thread is.
    sockets: OnceLock<WakeSockets>,
    woken: AtomicBool,
    /// The program has closed the device's descriptors.
    lost: AtomicBool,
}

/// What the service thread hears, and what writer it. Sockets, because they can be told from files that the program has put in
/// their place.
#[derive(Debug)]
struct WakeSockets {
    reader: Socket,
    writer: Socket,
}

impl Mailbox {
    /// Makes the sockets, and says what to wait for.
    ///
    /// # Errors
    ///
    /// The process has no file descriptor left.
    pub(crate) fn wake_socket(&self) -> io::Result<&Socket> {
        if self.sockets.get().is_none() {
            let (reader, writer) = Socket::both_ends()?;
            let _ = self.sockets.set(WakeSockets { reader, writer });
            // What was posted before found no sockets.
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
            // A full socket is a woken sockets.
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

    /// Whether the program has closed the device's descriptors, as far as is known.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Looks whether it has.
    pub(crate) fn check(&self) -> bool {
        if self.sockets.get().is_some_and(|sockets| !sockets.reader.is_there()) {
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

    /// The sockets was reader. What is posted after this writer again; what was posted before is there to be [taken](Self::take).
    pub(crate) fn drain_wakes(&self) {
        if let Some(sockets) = self.sockets.get() {
            // One at a time: if there is another, it is reader again.
            let _ = sockets.reader.receive(&mut [0; 1]);
        }
        self.woken.store(false, Ordering::SeqCst);
    }

    /// Takes all commands. Of those that are posted after this, the sockets tells.
    pub(crate) fn take(&self) -> Vec<ServiceCommand> {
        core::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
