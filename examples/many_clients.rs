//! A server that takes a thousand clients at a time, on one thread: with epoll.
//!
//! ```text
//! $ cargo run --example many_clients -- -n 1000               # on one side
//! 1000 clients came, 1000 at a time at most: 1000 messages in, 1000 out, in 402 wake-ups; 0 rejected, 0 lost
//! $ cargo run --example many_clients -- 127.0.0.1 -n 1000     # on the other
//! 1000 clients connected, asked, were answered and hung up
//! ```
//!
//! epoll watches two descriptors, whatever the number of clients: the event channel of the connection manager, where clients come and
//! go, and the channel of the one completion queue that all connections have. The identifier's context says which queue pair is
//! meant, the completion's number says which client it was.
//!
//! Who is one too many is rejected, and told why. With an address the program is as many clients.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use clap::Parser;
use rdma_examples::hub::{Completion, Hub, Message};
use rdma_examples::program::{self, Failure, note, say};
use rdma_examples::{callers, devices, reactor};
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairAttribute, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace};

/// Serves many clients on one thread; or is many clients.
#[derive(Parser)]
struct Arguments {
    /// The server's name or address; without it this side is the server
    host: Option<String>,

    /// The server's port
    #[arg(short, long, default_value_t = 7471)]
    port: u16,

    /// The address to listen at
    #[arg(short, long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind: IpAddr,

    /// The number of clients; the server ends when so many have gone [default: 1000; of a server, no end]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: Option<u32>,

    /// How many clients the server takes at a time
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    most: u32,

    /// How many clients connect at a time
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
        return callers::call(&channel, server, arguments.clients.unwrap_or(1000), arguments.window);
    }
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(SocketAddr::new(arguments.bind, arguments.port))?;
    // Those who wait for an answer: it comes soon.
    listener.listen(1024)?;
    note(format_args!("listening at {}", SocketAddr::new(arguments.bind, arguments.port)));
    let mut server = Server { most: arguments.most, hub: None, counts: Counts::default() };
    server.serve(&channel, arguments.clients)?;
    say(server.counts.line())
}

struct Server {
    most: u32,
    /// What the connections share, on the device that the first client came by.
    hub: Option<Hub<Guest>>,
    counts: Counts,
}

/// What a queue pair has besides.
struct Guest {
    id: Identifier,
    /// It has hung up; what is on its way to it still has to complete.
    is_leaving: bool,
}

/// The context of a guest's identifier: the number of its queue pair.
struct Number(u32);

#[derive(Default)]
struct Counts {
    came: u64,
    gone: u64,
    most: usize,
    messages_in: u64,
    messages_out: u64,
    wake_ups: u64,
    rejected: u64,
    lost: u64,
}

impl Counts {
    fn line(&self) -> String {
        let Self { came, most, messages_in, messages_out, wake_ups, rejected, lost, .. } = self;
        format!(
            "{came} clients came, {most} at a time at most: {messages_in} messages in, {messages_out} out, in {wake_ups} \
             wake-ups; {rejected} rejected, {lost} lost"
        )
    }
}

impl Server {
    /// Serves until so many have gone, or for ever.
    fn serve(&mut self, channel: &EventChannel, clients: Option<u32>) -> Result<(), Failure> {
        let reactor = reactor::Reactor::new(channel)?;
        while clients.is_none_or(|clients| self.counts.gone < u64::from(clients)) {
            let ready = reactor.wait(None)?;
            self.counts.wake_ups += 1;
            if ready.messages {
                self.messages()?;
            }
            if ready.connections {
                while let Some(event) = channel.try_get_cm_event().map_err(Failure::work)? {
                    let had_hub = self.hub.is_some();
                    self.connection(event)?;
                    if let (Some(hub), false) = (&self.hub, had_hub) {
                        reactor.add_messages(hub)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Somebody comes, or goes.
    fn connection(&mut self, event: Event) -> Result<(), Failure> {
        match event.event_type() {
            EventType::ConnectRequest => self.request(event.into_cm_id()),
            EventType::Disconnected => {
                // The answer to the client's; the server is the one that hears of it.
                let _ = event.cm_id().disconnect();
                self.leave(event.cm_id())
            }
            _ => match event.error() {
                Some(error) => {
                    note(format_args!("a client is lost: {error}"));
                    self.counts.lost += 1;
                    self.leave(event.cm_id())
                }
                None => Ok(()),
            },
        }
    }

    fn request(&mut self, id: Identifier) -> Result<(), Failure> {
        let context = id.get_device_context()?;
        if self.hub.is_none() {
            self.hub = Some(Hub::new(&context, self.most)?);
        }
        let Some(hub) = &mut self.hub else { return Ok(()) };
        let refusal = match () {
            () if hub.members.len() >= self.most as usize => Some("no more clients"),
            () if *hub.context() != context => Some("this server is on another device"),
            () => None,
        };
        if let Some(refusal) = refusal {
            self.counts.rejected += 1;
            // If the client has gone by itself there is nobody to tell.
            let _ = id.reject(refusal.as_bytes());
            return Ok(());
        }
        let mut qp = hub.create_qp()?;
        id.modify_qp(&mut qp, QueuePairState::Init)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToReceive)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToSend)?;
        if let Err(error) = id.accept(ConnectionParameter::new().setup_queue_pair(qp.control())) {
            note(format_args!("a client is lost: {error}"));
            self.counts.lost += 1;
            return Ok(());
        }
        let number = hub.add(qp, Guest { id: id.clone(), is_leaving: false });
        id.setup_context(Number(number));
        self.counts.came += 1;
        self.counts.most = self.counts.most.max(hub.members.len());
        Ok(())
    }

    /// A client is gone: so is its queue pair, when nothing is on its way any more.
    fn leave(&mut self, id: &Identifier) -> Result<(), Failure> {
        let (Some(hub), Some(number)) = (&mut self.hub, id.get_context::<Number>()) else { return Ok(()) };
        let Some(member) = hub.members.get_mut(number.0) else { return Ok(()) };
        member.rest.is_leaving = true;
        member.qp.modify(QueuePairAttribute::new().setup_state(QueuePairState::Error))?;
        // What it has taken of the shared receive queue comes back by its completions, which would go with the queue pair.
        self.messages()?;
        self.dismiss(number.0);
        Ok(())
    }

    fn dismiss(&mut self, number: u32) {
        let Some(hub) = &mut self.hub else { return };
        if hub.members.get(number).is_some_and(|member| member.rest.is_leaving && member.sending == 0) {
            let gone = hub.members.remove(number);
            self.counts.gone += 1;
            // Queue pair first, then the identifier.
            drop(gone.map(|member| (member.qp, member.rest.id)));
        }
    }

    /// Messages came in, and are answered; or went out.
    fn messages(&mut self) -> Result<(), Failure> {
        let Some(hub) = &mut self.hub else { return Ok(()) };
        for (number, completion) in hub.wake()? {
            let Some(hub) = &mut self.hub else { return Ok(()) };
            match completion {
                Completion::Received(message) => {
                    self.counts.messages_in += 1;
                    let is_there = hub.members.get(number).is_some_and(|member| !member.rest.is_leaving);
                    if is_there {
                        hub.send(number, Message { count: self.counts.messages_in, ..message })?;
                    }
                }
                Completion::Sent => self.counts.messages_out += 1,
                Completion::Flushed => {}
            }
            self.dismiss(number);
        }
        Ok(())
    }
}
