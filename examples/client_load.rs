//! The client side of `many_clients`: many clients on one thread.

use std::net::SocketAddr;
use std::time::Duration;

use sideway::ibverbs::queue_pair::{QueuePair, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace};

use crate::program::{Failure, say};
use crate::reactor::Reactor;
use crate::shared_queues::{ClientMessage, MessageCompletion, SharedQueues};

/// The time limit without an event or completion.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// The time limit for resolving an address or a route.
const RESOLUTION: Duration = Duration::from_secs(5);

/// Opens `clients` connections, `window` at a time. Sends one request on each, waits for all
/// answers, and disconnects.
///
/// # Errors
///
/// The server rejects a connection, or an operation fails.
pub fn run_clients(
    channel: &EventChannel,
    server: SocketAddr,
    clients: u32,
    window: u32,
) -> Result<(), Failure> {
    let mut client_load = ClientLoad {
        channel,
        server,
        clients: u64::from(clients),
        ids: Vec::new(),
        queues: None,
        connected: 0,
        answered: 0,
        gone: 0,
    };
    client_load.run(u64::from(window))?;
    say(format_args!("{clients} clients connected, asked, were answered and hung up"))
}

struct ClientLoad<'channel> {
    channel: &'channel EventChannel,
    server: SocketAddr,
    clients: u64,
    /// By the client's number.
    ids: Vec<Option<Identifier>>,
    queues: Option<SharedQueues<u64>>,
    connected: u64,
    answered: u64,
    gone: u64,
}

/// The context of an identifier without a queue pair: the client's number.
struct ClientIndex(u64);

/// The context of an identifier with a queue pair: the queue pair's number.
struct QpNumber(u32);

impl ClientLoad<'_> {
    fn run(&mut self, window: u64) -> Result<(), Failure> {
        let reactor = Reactor::new(self.channel)?;
        while self.gone < self.clients {
            while (self.ids.len() as u64) < self.clients.min(self.connected + window) {
                self.start_client()?;
            }
            let ready = reactor.wait(Some(IDLE_LIMIT))?;
            if ready.messages {
                self.handle_messages()?;
            }
            if ready.connections {
                while let Some(event) = self.channel.try_get_cm_event().map_err(Failure::work)? {
                    let had_queues = self.queues.is_some();
                    self.handle_event(&event)?;
                    if let (Some(queues), false) = (&self.queues, had_queues) {
                        reactor.add_messages(queues)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts to connect another client.
    fn start_client(&mut self) -> Result<(), Failure> {
        let id = self.channel.create_id(PortSpace::Tcp)?;
        id.setup_context(ClientIndex(self.ids.len() as u64));
        id.resolve_addr(None, self.server, RESOLUTION)?;
        self.ids.push(Some(id));
        Ok(())
    }

    /// Performs the next step of the connection that the event belongs to.
    fn handle_event(&mut self, event: &Event) -> Result<(), Failure> {
        if let Some(error) = event.error() {
            let words = String::from_utf8_lossy(event.private_data());
            let words = words.trim_end_matches('\0');
            let said = if words.is_empty() { String::new() } else { format!(": its reason is `{words}`") };
            return Err(Failure::work(format_args!("{error}{said}")));
        }
        let id = event.cm_id();
        match event.event_type() {
            EventType::AddressResolved => Ok(id.resolve_route(RESOLUTION)?),
            EventType::RouteResolved => self.connect(id),
            EventType::ConnectResponse => self.establish(id),
            EventType::Disconnected => self.handle_disconnect(id),
            _ => Ok(()),
        }
    }

    fn connect(&mut self, id: &Identifier) -> Result<(), Failure> {
        if self.queues.is_none() {
            self.queues = Some(SharedQueues::new(&id.get_device_context()?, u32::try_from(self.clients)?)?);
        }
        let (Some(queues), Some(client)) = (&mut self.queues, id.get_context::<ClientIndex>()) else {
            return Ok(());
        };
        let mut qp = queues.create_qp()?;
        id.modify_qp(&mut qp, QueuePairState::Init)?;
        id.connect(ConnectionParameter::new().setup_queue_pair(qp.control()))?;
        let number = queues.add(qp, client.0);
        id.setup_context(QpNumber(number));
        Ok(())
    }

    fn establish(&mut self, id: &Identifier) -> Result<(), Failure> {
        let (Some(queues), Some(number)) = (&mut self.queues, id.get_context::<QpNumber>()) else {
            return Ok(());
        };
        let Some(connected) = queues.connections.get_mut(number.0) else { return Ok(()) };
        id.modify_qp(&mut connected.qp, QueuePairState::ReadyToReceive)?;
        id.modify_qp(&mut connected.qp, QueuePairState::ReadyToSend)?;
        id.establish()?;
        self.connected += 1;
        let client = connected.data;
        queues.send(number.0, ClientMessage { client, count: 0 })
    }

    /// Takes the answers. When all have arrived, all clients disconnect; until then the server has
    /// all of them at the same time.
    fn handle_messages(&mut self) -> Result<(), Failure> {
        let Some(queues) = &mut self.queues else { return Ok(()) };
        for (number, completion) in queues.take_completions()? {
            let client = queues.connections.get(number).map(|connected| connected.data);
            match completion {
                MessageCompletion::Received(answer) if Some(answer.client) == client && answer.count > 0 => {
                    self.answered += 1;
                }
                MessageCompletion::Received(answer) => {
                    return Err(Failure::work(format_args!(
                        "client {client:?} got the wrong answer {answer:?}"
                    )));
                }
                MessageCompletion::Sent => {}
                MessageCompletion::Flushed if self.answered == self.clients => {}
                MessageCompletion::Flushed => {
                    return Err(Failure::work(format_args!("client {client:?} could not send its request")));
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

    fn handle_disconnect(&mut self, id: &Identifier) -> Result<(), Failure> {
        if self.answered < self.clients {
            return Err(Failure::work("the server hung up"));
        }
        let (Some(queues), Some(number)) = (&mut self.queues, id.get_context::<QpNumber>()) else {
            return Ok(());
        };
        if let Some(connected) = queues.connections.remove(number.0) {
            // The queue pair must be dropped before its identifier, of which the event has the last
            // handle.
            let client = usize::try_from(connected.data)?;
            drop(connected);
            self.ids[client] = None;
            self.gone += 1;
        }
        Ok(())
    }
}
