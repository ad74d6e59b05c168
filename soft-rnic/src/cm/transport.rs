//! The environment of the connection manager: messages to other processes, ports, and time.

use std::ffi::c_int;
use std::io;
use std::time::Instant;

use super::types::PortSpace;

/// The owner of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortLocation {
    ThisProcess,
    /// Another process, which has this block.
    Block(u16),
    Nobody,
    /// A process that does not answer.
    Unresponsive,
}

/// A port of this process, held until it is dropped.
pub(super) struct PortLease {
    pub(super) port: u16,
    _held: Box<dyn Send + Sync>,
}

impl PortLease {
    pub(super) fn new(port: u16, held: impl Send + Sync + 'static) -> Self {
        Self { port, _held: Box::new(held) }
    }
}

/// The environment of a state machine. Its functions never wait, and never call the state machine.
pub(super) trait Transport: Send + Sync {
    /// Takes a port for this process; 0 takes any port.
    ///
    /// # Errors
    ///
    /// An error number: `EADDRINUSE` if another process has the port, or none is free.
    fn take_port(&self, space: PortSpace, port: u16) -> Result<PortLease, c_int>;

    /// The owner of a port. `None` means that
    /// [`CmStateMachine::found`](super::state_machine::CmStateMachine::found) will be called, at
    /// `until` or shortly after at the latest.
    ///
    /// An immediate answer may be out of date; with `fresh` the owner is always asked.
    fn find_port(
        &self,
        space: PortSpace,
        port: u16,
        until: Instant,
        token: u64,
        fresh: bool,
    ) -> Option<PortLocation>;

    /// Sends a message to the owner of a block. Messages arrive in order and completely until the
    /// owner is reported gone.
    ///
    /// # Errors
    ///
    /// If no process can be reached.
    fn send(&self, block: u16, message: &[u8]) -> io::Result<()>;

    /// Requests a call of [`CmStateMachine::expire`](super::state_machine::CmStateMachine::expire)
    /// at this time.
    fn wake_at(&self, when: Instant);
}

#[cfg(any(fuzzing, all(test, not(loom))))]
pub(super) use alone::LoopbackTransport;

/// An environment for tests.
#[cfg(any(fuzzing, all(test, not(loom))))]
mod alone {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use super::*;

    /// The ports that are taken if the caller asks for any port.
    const EPHEMERAL: core::ops::RangeInclusive<u16> = 32768..=60999;

    /// An environment without other processes.
    #[derive(Clone, Default)]
    pub(in crate::cm) struct LoopbackTransport(Arc<Mutex<LocalPorts>>);

    #[derive(Default)]
    struct LocalPorts {
        taken: HashSet<(PortSpace, u16)>,
        next: u16,
    }

    struct LocalPort {
        of: LoopbackTransport,
        space: PortSpace,
        port: u16,
    }

    impl LoopbackTransport {
        fn ports(&self) -> MutexGuard<'_, LocalPorts> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Drop for LocalPort {
        fn drop(&mut self) {
            self.of.ports().taken.remove(&(self.space, self.port));
        }
    }

    impl Transport for LoopbackTransport {
        fn take_port(&self, space: PortSpace, port: u16) -> Result<PortLease, c_int> {
            let mut ports = self.ports();
            let port = if port == 0 {
                let count = EPHEMERAL.len() as u16;
                let candidates = (0..count).map(|step| EPHEMERAL.start() + (ports.next + step) % count);
                let free = candidates.into_iter().find(|port| !ports.taken.contains(&(space, *port)));
                let port = free.ok_or(libc::EADDRINUSE)?;
                ports.next = (port - EPHEMERAL.start() + 1) % count;
                port
            } else {
                port
            };
            if !ports.taken.insert((space, port)) {
                return Err(libc::EADDRINUSE);
            }
            Ok(PortLease::new(port, LocalPort { of: self.clone(), space, port }))
        }

        fn find_port(
            &self,
            space: PortSpace,
            port: u16,
            _: Instant,
            _: u64,
            _: bool,
        ) -> Option<PortLocation> {
            let here = self.ports().taken.contains(&(space, port));
            Some(if here { PortLocation::ThisProcess } else { PortLocation::Nobody })
        }

        fn send(&self, _: u16, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::NotConnected.into())
        }

        fn wake_at(&self, _: Instant) {}
    }
}
