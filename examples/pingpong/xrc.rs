//! Exchanges messages over extended reliable connections: `xsrq_pingpong`.
//!
//! The server exchanges messages with all its clients at the same time. Each side has one shared
//! receive queue, and for each peer an initiator for sending and a target for receiving. Two
//! buffers suffice: all messages are received into one, and sent from the other, which nothing
//! writes to.
//!
//! All clients of a host share the XRC domain of one file, as in the C program: its server may send
//! to the queue of one client through the target of another.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect, connect_xrc_target};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairTable, QueuePairType, WorkRequestFlags, XrcTarget,
};
use sideway::ibverbs::srq::SharedReceiveQueue;
use sideway::ibverbs::xrc::{XrcDomain, XrcDomainFlags};

use super::wire::XrcAddress;
use super::{
    IdleTimeout, PingPongBuffers, PingPongPlan, RECEIVE, SEND, Turns, exchange, report, single, start_poll,
    wire,
};
use crate::program::{Failure, note, say};

/// The buffer for receiving; the next one is for sending.
const IN: u32 = 0;
const OUT: u32 = 1;

/// Runs all of it, from opening the device to the last exchange.
///
/// # Errors
///
/// The arguments do not fit the device, or an operation fails.
pub fn run(plan: &PingPongPlan) -> Result<(), Failure> {
    let (context, path) = plan.open()?;

    let pd = context.alloc_pd()?;
    // Declared before the queues, so that it is dropped after them: the device writes to the
    // buffers as long as the queues exist.
    let buffers = PingPongBuffers::new(&pd, plan.size)?;
    let channel = plan.events.then(|| context.create_comp_channel()).transpose()?;
    let mut builder = context.create_cq_builder();
    if let Some(channel) = &channel {
        builder.setup_comp_channel(channel);
    }
    let cq = builder.setup_cqe(plan.rx_depth + plan.sharing).build_generic()?;
    let file = domain_file();
    let domain = context.open_xrcd(file.as_ref().map(AsFd::as_fd), XrcDomainFlags::Create)?;
    let srq = pd.create_srq_builder().setup_max_wr(plan.rx_depth).setup_xrc(&domain, &cq).build()?;
    let mut ping_pong = XrcPingPong {
        path,
        options: single::options(plan),
        pd,
        domain,
        cq,
        channel,
        srq,
        connections: Vec::new(),
        by_qp_number: QueuePairTable::new(),
        buffers: &buffers,
        idle: IdleTimeout::new(plan.timeout),
    };
    // Before any peer gets an address to send to.
    (0..plan.rx_depth).try_for_each(|_| ping_pong.post_receive())?;
    let mut peers = match &plan.host {
        Some(host) => vec![ping_pong.call(host, plan)?],
        None => ping_pong.answer(plan)?,
    };
    ping_pong.run()?;
    exchange::finish(&mut peers, plan.host.is_some())?;
    say("success")
}

/// The C program's file of the domain. Without it the domain belongs to this process alone, which
/// fails only if the C program's server has other clients on this host.
fn domain_file() -> Option<OwnedFd> {
    const FILE: &str = "/tmp/xrc_domain";
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // A file of another user cannot be opened for creation on every system.
    let open = |flags| rustix::fs::open(FILE, flags, Mode::RUSR | Mode::RGRP);
    let file = open(flags | OFlags::CREATE).or_else(|_| open(flags));
    file.inspect_err(|error| note(format_args!("{FILE}: {error}; the XRC domain is not shared"))).ok()
}

/// A connection to one peer.
struct XrcConnection {
    initiator: GenericQueuePair,
    _target: XrcTarget,
    /// The number of the peer's queue.
    srqn: u32,
    turns: Turns,
}

/// One side, with all its connections.
struct XrcPingPong<'ball> {
    path: LocalPath,
    options: ConnectOptions,
    pd: ProtectionDomain,
    domain: XrcDomain,
    cq: GenericCompletionQueue,
    /// The channel to sleep on; `None` polls.
    channel: Option<CompletionChannel>,
    srq: SharedReceiveQueue,
    connections: Vec<XrcConnection>,
    /// The connection of a completion: by the initiator's number for sends, by the target's for
    /// receives.
    by_qp_number: QueuePairTable<usize>,
    buffers: &'ball PingPongBuffers,
    idle: IdleTimeout,
}

/// The local ends of a connection whose peer is not known yet.
struct XrcEnds {
    initiator: GenericQueuePair,
    target: XrcTarget,
    local: XrcAddress,
}

impl XrcPingPong<'_> {
    fn call(&mut self, host: &str, plan: &PingPongPlan) -> Result<TcpStream, Failure> {
        let ends = self.ends()?;
        let local = ends.local.clone();
        let (stream, remote) = exchange::call_xrc(host, plan.port, &local)?;
        self.connect(ends, &remote, plan)?;
        say(format_args!("   local: {}", wire::describe_xrc(&local)))?;
        say(format_args!("  remote: {}", wire::describe_xrc(&remote)))?;
        Ok(stream)
    }

    fn answer(&mut self, plan: &PingPongPlan) -> Result<Vec<TcpStream>, Failure> {
        let listener = exchange::listen(plan.port)?;
        (0..plan.sharing)
            .map(|_| {
                let ends = self.ends()?;
                let local = ends.local.clone();
                exchange::answer_xrc(&listener, &local, |remote| {
                    self.connect(ends, remote, plan)?;
                    say(format_args!("  remote: {}", wire::describe_xrc(remote)))?;
                    say(format_args!("   local: {}", wire::describe_xrc(&local)))
                })
            })
            .collect()
    }

    fn ends(&self) -> Result<XrcEnds, Failure> {
        let mut builder = self.pd.create_qp_builder();
        builder.setup_qp_type(QueuePairType::XrcSend).setup_send_cq(&self.cq).setup_max_send_wr(1);
        let (target, initiator) = (self.domain.create_target()?, builder.build_generic()?);
        let srqn = self.srq.srqn().ok_or_else(|| Failure::setup("the shared receive queue has no number"))?;
        // The C program starts with the same number in both directions.
        let receive = Endpoint::of_xrc_target(&target, &self.path, super::first_psn());
        let local = XrcAddress { send_qpn: initiator.qp_number(), receive, srqn };
        Ok(XrcEnds { initiator, target, local })
    }

    fn connect(&mut self, ends: XrcEnds, remote: &XrcAddress, plan: &PingPongPlan) -> Result<(), Failure> {
        let XrcEnds { mut initiator, mut target, local } = ends;
        let (path, options) = (&self.path, &self.options);
        connect_xrc_target(&mut target, path, &local.receive, &remote.sender(), options)?;
        let connection = connect(&mut initiator, path, &local.sender(), &remote.receive, options)?;
        note(format_args!("connected: {connection}"));
        let connection = self.connections.len();
        self.by_qp_number.insert(initiator.qp_number(), connection);
        self.by_qp_number.insert(target.qp_number(), connection);
        // The server sends first.
        let turns = Turns::new(plan.iters, plan.host.is_none());
        self.connections.push(XrcConnection { initiator, _target: target, srqn: remote.srqn, turns });
        Ok(())
    }

    fn run(&mut self) -> Result<(), Failure> {
        (0..self.connections.len()).try_for_each(|connection| self.send_if_due(connection))?;
        while !self.connections.iter().all(|connection| connection.turns.is_over()) {
            if let Some(connection) = self.poll()? {
                self.idle.completed();
                self.send_if_due(connection)?;
            } else if let Some(channel) = &mut self.channel {
                self.idle.sleep(channel)?;
            } else {
                self.idle.poll_was_empty()?;
            }
        }
        Ok(())
    }

    /// Takes a completion, and returns the index of its connection.
    fn poll(&mut self) -> Result<Option<usize>, Failure> {
        let mut poller = start_poll(&mut self.cq, self.channel.is_some())?;
        let Some(wc) = poller.next() else {
            poller.finish().map_err(Failure::work)?;
            return Ok(None);
        };
        let number = wc.qp_num().unwrap_or(u32::MAX);
        if wc.status() != WorkCompletionStatus::Success {
            let connection = self.by_qp_number.get(number).map(|connection| &self.connections[*connection]);
            return Err(report::failed(&wc, connection.map(|connection| connection.initiator.control())));
        }
        let connection = match self.by_qp_number.get(number) {
            Some(connection) => *connection,
            // The message came through the target of another process.
            None if self.connections.len() == 1 && wc.wr_id() == RECEIVE => 0,
            None => {
                return Err(Failure::work(format_args!("completion of unknown queue pair {number:#08x}")));
            }
        };
        match wc.wr_id() {
            SEND => self.connections[connection].turns.sent(),
            RECEIVE => {
                drop(poller);
                self.connections[connection].turns.received();
                self.post_receive()?;
            }
            other => return Err(report::unknown(other)),
        }
        Ok(Some(connection))
    }

    fn post_receive(&mut self) -> Result<(), Failure> {
        let mut guard = self.srq.start_post_recv();
        let (addr, length) = self.buffers.receive_target(IN);
        // SAFETY: the buffers outlive the queues, and nothing holds a reference to them.
        unsafe { guard.construct_wr(RECEIVE).setup_sge(self.buffers.lkey(), addr, length) };
        guard.post().map_err(Failure::work)
    }

    fn send_if_due(&mut self, connection: usize) -> Result<(), Failure> {
        let XrcConnection { initiator, srqn, turns, .. } = &mut self.connections[connection];
        if turns.take_turn().is_none() {
            return Ok(());
        }
        let mut guard = initiator.start_post_send();
        let send = guard.construct_wr(SEND, WorkRequestFlags::Signaled).setup_xrc_srqn(*srqn).setup_send();
        // SAFETY: the buffers outlive the queue pair, and nothing writes to the send buffer.
        unsafe { send.setup_sge(self.buffers.lkey(), self.buffers.addr(OUT), self.buffers.size()) };
        guard.post().map_err(Failure::work)
    }
}
