//! A server for a thousand clients at the same time, on one thread with epoll.
//!
//! ```text
//! $ cargo run --example many_clients -- -n 1000               # on one side
//! 1000 clients came, 1000 at a time at most: 1000 messages in, 1000 out, in 402 wake-ups; 0 rejected, 0 lost
//!
//! $ cargo run --example many_clients -- 127.0.0.1 -n 1000     # on the other
//! 1000 clients connected, asked, were answered and hung up
//! ```
//!
//! epoll watches two descriptors, whatever the number of clients. One is the event channel of the
//! connection manager, which reports new and closed connections. The other is the completion
//! channel of the one completion queue that all connections share. An identifier's context gives
//! its queue pair, and a completion's queue pair number gives its client.
//!
//! A client beyond the limit is rejected with a reason. With an address the program is that many
//! clients.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;
use rdma_examples::program::{self, Failure, note, say};
use rdma_examples::shared_queues::{ClientMessage, MessageCompletion, SharedQueues};
use rdma_examples::{client_load, devices, reactor};
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairAttribute, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace};

/// Serves many clients on one thread, or runs many clients.
#[derive(Parser)]
struct Arguments {
    /// The server's name or address; without it this side is the server.
    host: Option<String>,

    /// The server's port.
    #[arg(short, long, default_value_t = 7471)]
    port: u16,

    /// The address to listen at.
    #[arg(short, long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind: IpAddr,

    /// The number of clients; the server ends when this many have disconnected [default: 1000 for
    /// clients, unlimited for a server]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: Option<u32>,

    /// The number of clients that the server accepts at the same time.
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    most: u32,

    /// The number of clients that connect at the same time.
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
}

fn main() -> ExitCode {
    program::run(many_clients)
}

fn many_clients() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let channel = EventChannel::from_provider(devices::provider()?)?;
    if let Some(host) = &arguments.host {
        let server = devices::resolve(host, arguments.port)?;
        return client_load::run_clients(
            &channel,
            server,
            arguments.clients.unwrap_or(1000),
            arguments.window,
        );
    }
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(SocketAddr::new(arguments.bind, arguments.port))?;
    // The backlog of requests; the server answers them soon.
    listener.listen(1024)?;
    note(format_args!("listening at {}", SocketAddr::new(arguments.bind, arguments.port)));
    let mut server =
        ManyClientsServer { most: arguments.most, queues: None, counts: ServerCounts::default() };
    server.serve(&channel, arguments.clients)?;
    say(server.counts.line())
}

struct ManyClientsServer {
    most: u32,
    /// The shared queues, on the device of the first client.
    queues: Option<SharedQueues<ClientState>>,
    counts: ServerCounts,
}

/// The server's data for a connection.
struct ClientState {
    id: Identifier,
    /// The client has disconnected, but some requests have not completed yet.
    is_leaving: bool,
}

/// The context of a client's identifier: the number of its queue pair.
struct QpNumber(u32);

#[derive(Default)]
struct ServerCounts {
    came: u64,
    gone: u64,
    most: usize,
    messages_in: u64,
    messages_out: u64,
    wake_ups: u64,
    rejected: u64,
    lost: u64,
}

impl ServerCounts {
    fn line(&self) -> String {
        let Self { came, most, messages_in, messages_out, wake_ups, rejected, lost, .. } = self;
        format!(
            "{came} clients came, {most} at a time at most: {messages_in} messages in, {messages_out} out, in {wake_ups} \
             wake-ups; {rejected} rejected, {lost} lost"
        )
    }
}

impl ManyClientsServer {
    /// Serves until this number of clients have disconnected; `None` serves forever.
    fn serve(&mut self, channel: &EventChannel, clients: Option<u32>) -> Result<(), Failure> {
        let reactor = reactor::Reactor::new(channel)?;
        while clients.is_none_or(|clients| self.counts.gone < u64::from(clients)) {
            let ready = reactor.wait(None)?;
            self.counts.wake_ups += 1;
            if ready.messages {
                self.handle_messages()?;
            }
            if ready.connections {
                while let Some(event) = channel.try_get_cm_event().map_err(Failure::work)? {
                    let had_queues = self.queues.is_some();
                    self.handle_event(event)?;
                    if let (Some(queues), false) = (&self.queues, had_queues) {
                        reactor.add_messages(queues)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles a connection manager event.
    fn handle_event(&mut self, event: Event) -> Result<(), Failure> {
        match event.event_type() {
            EventType::ConnectRequest => self.request(event.into_cm_id()),
            EventType::Disconnected => {
                // Disconnects the server's side as well; only the server gets this event.
                let _ = event.cm_id().disconnect();
                self.handle_departure(event.cm_id())
            }
            _ => match event.error() {
                Some(error) => {
                    note(format_args!("a client is lost: {error}"));
                    self.counts.lost += 1;
                    self.handle_departure(event.cm_id())
                }
                None => Ok(()),
            },
        }
    }

    fn request(&mut self, id: Identifier) -> Result<(), Failure> {
        let context = id.get_device_context()?;
        if self.queues.is_none() {
            self.queues = Some(SharedQueues::new(&context, self.most)?);
        }
        let Some(queues) = &mut self.queues else { return Ok(()) };
        let refusal = match () {
            () if queues.connections.len() >= self.most as usize => Some("no more clients"),
            () if *queues.context() != context => Some("this server is on another device"),
            () => None,
        };
        if let Some(refusal) = refusal {
            self.counts.rejected += 1;
            // The client may have exited already.
            let _ = id.reject(refusal.as_bytes());
            return Ok(());
        }
        let mut qp = queues.create_qp()?;
        id.modify_qp(&mut qp, QueuePairState::Init)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToReceive)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToSend)?;
        if let Err(error) = id.accept(ConnectionParameter::new().setup_queue_pair(qp.control())) {
            note(format_args!("a client is lost: {error}"));
            self.counts.lost += 1;
            return Ok(());
        }
        let number = queues.add(qp, ClientState { id: id.clone(), is_leaving: false });
        id.setup_context(QpNumber(number));
        self.counts.came += 1;
        self.counts.most = self.counts.most.max(queues.connections.len());
        Ok(())
    }

    /// Handles the end of a connection. Its queue pair is destroyed when its sends have completed.
    fn handle_departure(&mut self, id: &Identifier) -> Result<(), Failure> {
        let (Some(queues), Some(number)) = (&mut self.queues, id.get_context::<QpNumber>()) else {
            return Ok(());
        };
        let Some(connected) = queues.connections.get_mut(number.0) else { return Ok(()) };
        connected.data.is_leaving = true;
        connected.qp.modify(QueuePairAttribute::new().setup_state(QueuePairState::Error))?;
        // Receives that the queue pair took from the shared receive queue return with their
        // completions, which the destruction of the queue pair would discard.
        self.handle_messages()?;
        self.remove_if_idle(number.0);
        Ok(())
    }

    fn remove_if_idle(&mut self, number: u32) {
        let Some(queues) = &mut self.queues else { return };
        if queues
            .connections
            .get(number)
            .is_some_and(|connected| connected.data.is_leaving && connected.sending == 0)
        {
            let gone = queues.connections.remove(number);
            self.counts.gone += 1;
            // The queue pair must be dropped before its identifier.
            drop(gone.map(|connected| (connected.qp, connected.data.id)));
        }
    }

    /// Answers received messages, and counts sent ones.
    fn handle_messages(&mut self) -> Result<(), Failure> {
        let Some(queues) = &mut self.queues else { return Ok(()) };
        for (number, completion) in queues.take_completions()? {
            let Some(queues) = &mut self.queues else { return Ok(()) };
            match completion {
                MessageCompletion::Received(message) => {
                    self.counts.messages_in += 1;
                    let is_there =
                        queues.connections.get(number).is_some_and(|connected| !connected.data.is_leaving);
                    if is_there {
                        queues.send(number, ClientMessage { count: self.counts.messages_in, ..message })?;
                    }
                }
                MessageCompletion::Sent => self.counts.messages_out += 1,
                MessageCompletion::Flushed => {}
            }
            self.remove_if_idle(number);
        }
        Ok(())
    }
}
