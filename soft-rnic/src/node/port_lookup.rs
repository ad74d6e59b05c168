//! Lookup of a connection manager port's owner, in the background.

use std::io;
use std::time::{Duration, Instant};

use super::mailbox::ServiceCommand;
use super::message::Reply;
use super::names::{self, Found};
use super::ports::CmPort;
use super::service::{EventSource, ServiceThread};
use super::{ALONE, Node};
use crate::platform::socket::{Received, Socket};

/// How soon to connect again to a port's owner whose backlog is full.
const BUSY: Duration = Duration::from_millis(2);
/// The most concurrent lookups, because each needs a descriptor. Further lookups wait.
const AT_A_TIME: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortOwner {
    ThisProcess,
    /// The process with this block.
    Block(u16),
    /// No process of this user.
    Nobody,
    /// A process that did not answer in time, because it is stopped or overloaded.
    Unresponsive,
}

/// A caller of [`Node::find_port`] that waits for the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupWaiter {
    token: u64,
    until: Instant,
}

/// A lookup that runs or waits for its turn.
#[derive(Debug)]
pub(crate) struct PortLookup {
    port: CmPort,
    socket: Option<Socket>,
    waiters: Vec<LookupWaiter>,
}

impl Node {
    /// Finds the owner of a port. `None` means that the handler's `cm_port_owner` will be called
    /// with the token, at `until` or shortly after at the latest.
    ///
    /// An immediate answer may be out of date; with `fresh` the owner is always asked.
    pub(crate) fn find_port(
        &self,
        space: u8,
        port: u16,
        until: Instant,
        token: u64,
        fresh: bool,
    ) -> Option<PortOwner> {
        let port = CmPort { space, number: port };
        if self.state.ports.has(port) {
            return Some(PortOwner::ThisProcess);
        }
        if ALONE {
            return Some(PortOwner::Nobody);
        }
        if fresh {
            self.state.ports.remember(port, None);
        } else if let Some(block) = self.state.ports.known_owner(port) {
            return Some(PortOwner::Block(block));
        }
        if let Err(error) = self.ensure_service() {
            log::warn!(
                "the service thread cannot be started: {error}; ports of other processes cannot be looked up"
            );
            return Some(PortOwner::Unresponsive);
        }
        self.state
            .common
            .mailbox
            .post(ServiceCommand::LookUpPort { port, waiter: LookupWaiter { token, until } });
        None
    }
}

impl ServiceThread {
    pub(crate) fn start_lookup(&mut self, port: CmPort, waiter: LookupWaiter) {
        let open = self.sources.iter_mut().find_map(|(token, source)| match source {
            EventSource::PortLookup(lookup) if lookup.port == port => Some((*token, lookup)),
            _ => None,
        });
        if let Some((token, lookup)) = open {
            lookup.waiters.push(waiter);
            return self.set_deadline(waiter.until, token);
        }
        let token = self.new_token();
        self.set_deadline(waiter.until, token);
        self.retry_lookup(token, PortLookup { port, socket: None, waiters: vec![waiter] });
    }

    /// Connects to the port's owner if that has not happened yet. Reports `Unresponsive` to waiters
    /// whose time is over.
    pub(crate) fn retry_lookup(&mut self, token: u64, mut lookup: PortLookup) {
        let now = Instant::now();
        let late: Vec<_> = lookup.waiters.extract_if(.., |waiter| waiter.until <= now).collect();
        self.report_port_owner(&late, PortOwner::Unresponsive);
        if lookup.waiters.is_empty() {
            lookup.socket.iter().for_each(|socket| self.unwatch(socket));
            return;
        }
        if lookup.socket.is_none() {
            match self.connect_to_port(token, lookup.port) {
                Ok(Some(socket)) => lookup.socket = Some(socket),
                Ok(None) => self.set_deadline(now + BUSY, token),
                Err(found) => return self.report_port_owner(&lookup.waiters, found),
            }
        }
        self.sources.insert(token, EventSource::PortLookup(lookup));
    }

    /// Connects to a port's owner; `None` if the caller must try again.
    fn connect_to_port(&self, token: u64, port: CmPort) -> Result<Option<Socket>, PortOwner> {
        let is_open = |source: &&EventSource| {
            matches!(source, EventSource::PortLookup(PortLookup { socket: Some(_), .. }))
        };
        if self.sources.values().filter(is_open).count() >= AT_A_TIME {
            return Ok(None);
        }
        let failed = |error: io::Error| {
            log::warn!("the owner of port {} cannot be asked: {error}", port.number);
            PortOwner::Unresponsive
        };
        let thing = port.thing(&self.state.common.settings.fabric);
        let names = names::owners(&thing, self.state.socket_user).map_err(failed)?;
        let socket = match names::connect(&names, self.state.user).map_err(failed)? {
            Found::Owner(socket, _) => socket,
            Found::Busy => return Ok(None),
            Found::Nobody => return Err(PortOwner::Nobody),
        };
        match self.watch(&socket, token) {
            Ok(()) => Ok(Some(socket)),
            Err(error) => {
                log::warn!("epoll_ctl: {error}");
                Err(PortOwner::Unresponsive)
            }
        }
    }

    pub(crate) fn receive_lookup_reply(&mut self, lookup: PortLookup) -> Option<EventSource> {
        let socket = lookup.socket.as_ref()?;
        let found = match socket.receive(&mut self.buffer) {
            Received::Nothing => return Some(EventSource::PortLookup(lookup)),
            Received::Packet(len, _) => match Reply::decode(&self.buffer[..len]) {
                Some(Reply::Block { block }) if self.state.blocks.has(block) => PortOwner::ThisProcess,
                Some(Reply::Block { block }) => PortOwner::Block(block),
                _ => {
                    log::warn!(
                        "the owner of port {} sent an invalid answer: it runs another version or another program",
                        lookup.port.number
                    );
                    PortOwner::Nobody
                }
            },
            // The port was released.
            Received::End => PortOwner::Nobody,
        };
        self.unwatch(socket);
        if let PortOwner::Block(block) = found {
            self.state.ports.remember(lookup.port, Some(block));
        }
        self.report_port_owner(&lookup.waiters, found);
        None
    }

    /// Answers the waiters when the service thread ends.
    pub(crate) fn abandon_lookup(&self, lookup: &PortLookup) {
        self.report_port_owner(&lookup.waiters, PortOwner::Unresponsive);
    }

    fn report_port_owner(&self, waiters: &[LookupWaiter], found: PortOwner) {
        let Some(handler) = self.state.handler() else { return };
        waiters.iter().for_each(|waiter| handler.cm_port_owner(waiter.token, found));
    }
}
