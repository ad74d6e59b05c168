//! Many clients on one thread: the other side of `many_clients`.

use std::net::SocketAddr;
use std::time::Duration;

use sideway::ibverbs::queue_pair::{QueuePair, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace};

use crate::hub::{Completion, Hub, Message};
use crate::program::{Failure, say};
use crate::reactor::Reactor;

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long an address or a route may take to be found.
const RESOLUTION: Duration = Duration::from_secs(5);

/// Connects so many times, so many at a time; asks once by each connection, waits for the answers, and hangs up.
///
/// # Errors
///
/// The server rejects one, or something else fails.
pub fn call(channel: &EventChannel, server: SocketAddr, clients: u32, window: u32) -> Result<(), Failure> {
    let mut callers = Callers {
        channel,
        server,
        clients: u64::from(clients),
        ids: Vec::new(),
        hub: None,
        connected: 0,
        answered: 0,
        gone: 0,
    };
    callers.run(u64::from(window))?;
    say(format_args!("{clients} clients connected, asked, were answered and hung up"))
}

struct Callers<'channel> {
    channel: &'channel EventChannel,
    server: SocketAddr,
    clients: u64,
    /// By the client's number.
    ids: Vec<Option<Identifier>>,
    hub: Option<Hub<u64>>,
    connected: u64,
    answered: u64,
    gone: u64,
}

/// The context of an identifier: the client's number.
struct Client(u64);

/// The context of one that has a queue pair: its number.
struct Number(u32);

impl Callers<'_> {
    fn run(&mut self, window: u64) -> Result<(), Failure> {
        let reactor = Reactor::new(self.channel)?;
        while self.gone < self.clients {
            while (self.ids.len() as u64) < self.clients.min(self.connected + window) {
                self.begin()?;
            }
            let ready = reactor.wait(Some(PATIENCE))?;
            if ready.messages {
                self.messages()?;
            }
            if ready.connections {
                while let Some(event) = self.channel.try_get_cm_event().map_err(Failure::work)? {
                    let had_hub = self.hub.is_some();
                    self.connection(&event)?;
                    if let (Some(hub), false) = (&self.hub, had_hub) {
                        reactor.add_messages(hub)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Another client.
    fn begin(&mut self) -> Result<(), Failure> {
        let id = self.channel.create_id(PortSpace::Tcp)?;
        id.setup_context(Client(self.ids.len() as u64));
        id.resolve_addr(None, self.server, RESOLUTION)?;
        self.ids.push(Some(id));
        Ok(())
    }

    /// A connection has come a step further.
    fn connection(&mut self, event: &Event) -> Result<(), Failure> {
        if let Some(error) = event.error() {
            let words = String::from_utf8_lossy(event.private_data());
            let words = words.trim_end_matches('\0');
            let said = if words.is_empty() { String::new() } else { format!(": it says `{words}`") };
            return Err(Failure::work(format_args!("{error}{said}")));
        }
        let id = event.cm_id();
        match event.event_type() {
            EventType::AddressResolved => Ok(id.resolve_route(RESOLUTION)?),
            EventType::RouteResolved => self.connect(id),
            EventType::ConnectResponse => self.establish(id),
            EventType::Disconnected => self.hung_up(id),
            _ => Ok(()),
        }
    }

    fn connect(&mut self, id: &Identifier) -> Result<(), Failure> {
        if self.hub.is_none() {
            self.hub = Some(Hub::new(&id.get_device_context()?, u32::try_from(self.clients)?)?);
        }
        let (Some(hub), Some(client)) = (&mut self.hub, id.get_context::<Client>()) else { return Ok(()) };
        let mut qp = hub.create_qp()?;
        id.modify_qp(&mut qp, QueuePairState::Init)?;
        id.connect(ConnectionParameter::new().setup_queue_pair(qp.control()))?;
        let number = hub.add(qp, client.0);
        id.setup_context(Number(number));
        Ok(())
    }

    fn establish(&mut self, id: &Identifier) -> Result<(), Failure> {
        let (Some(hub), Some(number)) = (&mut self.hub, id.get_context::<Number>()) else { return Ok(()) };
        let Some(member) = hub.members.get_mut(number.0) else { return Ok(()) };
        id.modify_qp(&mut member.qp, QueuePairState::ReadyToReceive)?;
        id.modify_qp(&mut member.qp, QueuePairState::ReadyToSend)?;
        id.establish()?;
        self.connected += 1;
        let client = member.rest;
        hub.send(number.0, Message { client, count: 0 })
    }

    /// Answers came. When all are there, all hang up: until then the server has as many clients as there are.
    fn messages(&mut self) -> Result<(), Failure> {
        let Some(hub) = &mut self.hub else { return Ok(()) };
        for (number, completion) in hub.wake()? {
            let client = hub.members.get(number).map(|member| member.rest);
            match completion {
                Completion::Received(answer) if Some(answer.client) == client && answer.count > 0 => {
                    self.answered += 1;
                }
                Completion::Received(answer) => {
                    return Err(Failure::work(format_args!("client {client:?} was answered {answer:?}")));
                }
                Completion::Sent => {}
                Completion::Flushed if self.answered == self.clients => {}
                Completion::Flushed => {
                    return Err(Failure::work(format_args!("client {client:?} could not ask")));
                }
            }
        }
        if self.answered == self.clients {
            for id in self.ids.iter().flatten() {
                id.disconnect().map_err(Failure::work)?;
            }
        }
        Ok(())
    }

    fn hung_up(&mut self, id: &Identifier) -> Result<(), Failure> {
        if self.answered < self.clients {
            return Err(Failure::work("the server hung up"));
        }
        let (Some(hub), Some(number)) = (&mut self.hub, id.get_context::<Number>()) else { return Ok(()) };
        if let Some(member) = hub.members.remove(number.0) {
            // The queue pair first, then the identifier, of which the event has the last handle.
            let client = usize::try_from(member.rest)?;
            drop(member);
            self.ids[client] = None;
            self.gone += 1;
        }
        Ok(())
    }
}
