//! Exchanges a message between two queue pairs, with one completion queue for everything.
//!
//! [`PingPongPlan::open`] chooses device and address, and [`connect`] or [`activate_ud`] prepares
//! the queue pair. `rc_pingpong`, `uc_pingpong` and `ud_pingpong` differ in the queue pair's type
//! only.

use std::time::Instant;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address_handle::{AddressHandle, GlobalRoutingHeader};
use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, activate_ud, connect};
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairType, WorkRequestFlags,
};

use super::{
    IdleTimeout, PingPongBuffers, PingPongPlan, RECEIVE, ReceiveRefill, SEND, Turns, exchange, report,
    start_poll, wire,
};
use crate::program::{Failure, note, say};

/// The Q_Key of both sides, as in the C program.
pub const QKEY: u32 = 0x1111_1111;

/// Runs all of it, from opening the device to printing the speed.
///
/// # Errors
///
/// The arguments do not fit the device, or an operation fails.
pub fn run(plan: &PingPongPlan) -> Result<(), Failure> {
    let (context, path) = plan.open()?;

    let pd = context.alloc_pd()?;
    let is_datagram = plan.qp_type == QueuePairType::UnreliableDatagram;
    // Declared before the queue pair, so that it is dropped after it: the device writes to the
    // buffers as long as the queue pair exists.
    let header = if is_datagram { GlobalRoutingHeader::LEN as u32 } else { 0 };
    let buffers = PingPongBuffers::with_header(&pd, plan.size, header)?;
    let channel = plan.events.then(|| context.create_comp_channel()).transpose()?;
    let mut builder = context.create_cq_builder();
    if let Some(channel) = &channel {
        builder.setup_comp_channel(channel);
    }
    let cq = builder.setup_cqe(plan.rx_depth + 1).build_generic()?;
    let mut builder = pd.create_qp_builder();
    builder.setup_qp_type(plan.qp_type);
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(1).setup_max_recv_wr(plan.rx_depth);
    let qp = if plan.extended_only { builder.build_ex()?.into() } else { builder.build_generic()? };

    let local = Endpoint::new(&qp, &path, super::first_psn());
    say(format_args!("  local address:  {}", wire::describe(&local)))?;

    let mut ping_pong = PingPong {
        cq,
        channel,
        qp,
        peer: None,
        buffers: &buffers,
        turns: Turns::new(plan.iters, plan.host.is_some()),
        receives: ReceiveRefill::new(plan.rx_depth),
        idle: IdleTimeout::new(plan.timeout),
    };
    let options = options(plan);
    // The server posts its receives before the client gets its address, and the client before it
    // sends, so that every message finds a receive.
    let connect_to = |ping_pong: &mut PingPong<'_>, remote: &Endpoint| {
        if is_datagram {
            activate_ud(&mut ping_pong.qp, &path, QKEY, local.packet_seq_num, &options)?;
            let ah = pd.create_ah(&path.address_to(remote, &options)?)?;
            ping_pong.peer = Some((ah, remote.qp_number));
        } else {
            let connection = connect(&mut ping_pong.qp, &path, &local, remote, &options)?;
            note(format_args!("connected: {connection}"));
        }
        ping_pong.post_receives()
    };
    let remote = match &plan.host {
        Some(host) => {
            let remote = exchange::call(host, plan.port, &local)?;
            connect_to(&mut ping_pong, &remote)?;
            remote
        }
        None => exchange::answer(plan.port, &local, |remote| connect_to(&mut ping_pong, remote))?,
    };
    say(format_args!("  remote address: {}", wire::describe(&remote)))?;
    if plan.check && plan.host.is_some() {
        buffers.mark(ping_pong.turns.latest());
    }

    let start = Instant::now();
    ping_pong.run()?;
    report::speed(plan.size, plan.iters, start.elapsed())?;
    if plan.check { report::validity(&buffers.wrong_pages(ping_pong.turns.latest())) } else { Ok(()) }
}

/// Peers need no access to the memory. Like the C program, this one does not negotiate the MTU.
pub(super) fn options(plan: &PingPongPlan) -> ConnectOptions {
    ConnectOptions {
        access_flags: AccessFlags::empty(),
        mtu: plan.mtu,
        service_level: plan.service_level,
        ..ConnectOptions::default()
    }
}

/// One side of the exchange.
struct PingPong<'ball> {
    cq: GenericCompletionQueue,
    /// The channel to sleep on; `None` polls.
    channel: Option<CompletionChannel>,
    qp: GenericQueuePair,
    /// The destination of datagrams; a connected pair has none.
    peer: Option<(AddressHandle, u32)>,
    buffers: &'ball PingPongBuffers,
    turns: Turns,
    receives: ReceiveRefill,
    idle: IdleTimeout,
}

impl PingPong<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        self.send_if_due()?;
        while !self.turns.is_over() {
            if self.poll()? {
                self.idle.completed();
                self.post_receives()?;
                self.send_if_due()?;
            } else if let Some(channel) = &mut self.channel {
                self.idle.sleep(channel)?;
            } else {
                self.idle.poll_was_empty()?;
            }
        }
        Ok(())
    }

    /// Takes all completions; false if none was found.
    fn poll(&mut self) -> Result<bool, Failure> {
        let mut poller = start_poll(&mut self.cq, self.channel.is_some())?;
        let mut any = false;
        while let Some(wc) = poller.next() {
            if wc.status() != WorkCompletionStatus::Success {
                return Err(report::failed(&wc, Some(self.qp.control())));
            }
            match wc.wr_id() {
                SEND => self.turns.sent(),
                RECEIVE => {
                    self.turns.received();
                    self.receives.taken();
                }
                other => return Err(report::unknown(other)),
            }
            any = true;
        }
        poller.finish().map_err(Failure::work)?;
        Ok(any)
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        let mut guard = self.qp.start_post_recv();
        for turn in self.receives.refill() {
            let (addr, length) = self.buffers.receive_target(turn);
            // SAFETY: the buffers outlive the queue pair, and nothing holds a reference to them.
            unsafe { guard.construct_wr(RECEIVE).setup_sge(self.buffers.lkey(), addr, length) };
        }
        guard.post().map_err(Failure::work)
    }

    fn send_if_due(&mut self) -> Result<(), Failure> {
        let Some(turn) = self.turns.take_turn() else { return Ok(()) };
        let mut guard = self.qp.start_post_send();
        let request = guard.construct_wr(SEND, WorkRequestFlags::Signaled);
        let send = match &self.peer {
            Some((ah, number)) => request.setup_ud_address(ah, *number, QKEY).setup_send(),
            None => request.setup_send(),
        };
        // SAFETY: the buffers outlive the queue pair. Nothing writes to this message until the send
        // has completed: the next message arrives in the other buffer. The one after that is sent
        // only in answer to our next send, which waits for this one.
        unsafe { send.setup_sge(self.buffers.lkey(), self.buffers.addr(turn), self.buffers.size()) };
        guard.post().map_err(Failure::work)
    }
}
