//! The set of descriptors of a connection over several queue pairs.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use super::super::device::PORT_EVENTS;

/// The token of the ports' events; those of completion channels are below.
const PORTS: Token = Token(64);

/// The completion channels, and the events of ports.
pub(crate) struct ChannelSet {
    set: Poll,
    events: Events,
    /// Open for as long as it is in the set.
    _ports: Arc<OwnedFd>,
}

impl ChannelSet {
    pub(crate) fn new() -> io::Result<Self> {
        let (set, ports) = (Poll::new()?, PORT_EVENTS.take()?);
        set.registry().register(&mut SourceFd(&ports.as_raw_fd()), PORTS, Interest::READABLE)?;
        Ok(Self { set, events: Events::with_capacity(crate::protocol::DEVICES_MAX), _ports: ports })
    }

    pub(super) fn registry(&self) -> &Registry {
        self.set.registry()
    }

    /// Takes the events, so that the set is not readable.
    pub(super) fn take_events(&mut self) {
        // An interrupted or failed call finds nothing, and the dispatchers look by themselves.
        let _ = self.set.poll(&mut self.events, Some(Duration::ZERO));
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}
