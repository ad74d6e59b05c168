//! Exchanges messages over many queue pairs that share a receive queue: `srq_pingpong`.
//!
//! The exchanges of all pairs are counted together. Each side has two buffers: all messages are
//! received into one, and sent from the other, which nothing writes to.

use std::time::Instant;

use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{Endpoint, connect};
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairTable, WorkRequestFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::args::MAX_PAIRS;
use super::{
    IdleTimeout, PingPongBuffers, PingPongPlan, RECEIVE, ReceiveRefill, SEND, exchange, report, single,
    start_poll, wire,
};
use crate::program::{Failure, note, say};

/// The buffer for receiving; the next one is for sending.
const IN: u32 = 0;
const OUT: u32 = 1;

/// Runs all of it, from opening the device to printing the speed.
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
    if plan.check {
        buffers.mark(OUT);
    }
    let channel = plan.events.then(|| context.create_comp_channel()).transpose()?;
    let mut builder = context.create_cq_builder();
    if let Some(channel) = &channel {
        builder.setup_comp_channel(channel);
    }
    let cq = builder.setup_cqe(plan.rx_depth + plan.sharing).build_generic()?;
    let srq = pd.create_srq_builder().setup_max_wr(plan.rx_depth).build()?;
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_srq(&srq).setup_max_send_wr(1);
    let mut members = (0..plan.sharing).map(|_| builder.build_generic()).collect::<Result<Vec<_>, _>>()?;

    let local: Vec<_> = members.iter().map(|qp| Endpoint::new(qp, &path, super::first_psn())).collect();
    for endpoint in &local {
        say(format_args!("  local address:  {}", wire::describe(endpoint)))?;
    }
    let mut ping_pong = SrqPingPong {
        cq,
        channel,
        srq,
        members: QueuePairTable::new(),
        buffers: &buffers,
        iters: plan.iters,
        posted: 0,
        sent: 0,
        received: 0,
        receives: ReceiveRefill::shared(plan.rx_depth, plan.sharing),
        idle: IdleTimeout::new(plan.timeout),
    };
    // Before any pair can receive.
    ping_pong.post_receives()?;
    let options = single::options(plan);
    let mut connect_to = |remote: &[Endpoint]| -> Result<(), Failure> {
        for ((qp, local), remote) in members.iter_mut().zip(&local).zip(remote) {
            let connection = connect(qp, &path, local, remote, &options)?;
            note(format_args!("connected: {connection}"));
        }
        Ok(())
    };
    let remote = match &plan.host {
        Some(host) => {
            let remote = exchange::call_all(host, plan.port, &padded(&local))?;
            connect_to(&remote)?;
            remote
        }
        None => exchange::answer_all(plan.port, &padded(&local), connect_to)?,
    };
    for endpoint in &remote[..local.len()] {
        say(format_args!("  remote address: {}", wire::describe(endpoint)))?;
    }
    let opens = plan.host.is_some();
    for qp in members {
        ping_pong.members.insert(qp.qp_number(), SharedQp { qp, is_due: opens, is_sending: false });
    }

    let start = Instant::now();
    ping_pong.run(&local)?;
    report::speed(plan.size, plan.iters, start.elapsed())?;
    // The C program fills its messages differently, and the last received message may be one of its
    // first.
    if plan.check { report::validity(&buffers.wrong_marks(IN)) } else { Ok(()) }
}

/// The C program always exchanges its maximum number of addresses; those without a queue pair are
/// zero.
fn padded(local: &[Endpoint]) -> Vec<Endpoint> {
    let nobody = Endpoint { qp_number: 0, packet_seq_num: 0, lid: 0, gid: None, ..local[0].clone() };
    let mut all = local.to_vec();
    all.resize(local.len().max(MAX_PAIRS as usize), nobody);
    all
}

/// One of the queue pairs.
struct SharedQp {
    qp: GenericQueuePair,
    /// A received message is not answered yet, or the first message is to be sent.
    is_due: bool,
    /// The last send has not completed yet.
    is_sending: bool,
}

/// One side of the exchange.
struct SrqPingPong<'ball> {
    cq: GenericCompletionQueue,
    /// The channel to sleep on; `None` polls.
    channel: Option<CompletionChannel>,
    srq: SharedReceiveQueue,
    /// By queue pair number, as in completions.
    members: QueuePairTable<SharedQp>,
    buffers: &'ball PingPongBuffers,
    iters: u32,
    posted: u32,
    sent: u32,
    received: u32,
    receives: ReceiveRefill,
    idle: IdleTimeout,
}

impl SrqPingPong<'_> {
    fn run(&mut self, all: &[Endpoint]) -> Result<(), Failure> {
        for endpoint in all {
            self.send_if_due(endpoint.qp_number)?;
        }
        while self.sent < self.iters || self.received < self.iters {
            if let Some(number) = self.poll()? {
                self.idle.completed();
                self.post_receives()?;
                self.send_if_due(number)?;
            } else if let Some(channel) = &mut self.channel {
                self.idle.sleep(channel)?;
            } else {
                self.idle.poll_was_empty()?;
            }
        }
        Ok(())
    }

    /// Takes a completion, and returns the number of its queue pair.
    fn poll(&mut self) -> Result<Option<u32>, Failure> {
        let mut poller = start_poll(&mut self.cq, self.channel.is_some())?;
        let Some(wc) = poller.next() else {
            poller.finish().map_err(Failure::work)?;
            return Ok(None);
        };
        let number = wc.qp_num().unwrap_or(u32::MAX);
        if wc.status() != WorkCompletionStatus::Success {
            return Err(report::failed(&wc, self.members.get(number).map(|member| member.qp.control())));
        }
        let Some(member) = self.members.get_mut(number) else {
            return Err(Failure::work(format_args!("completion of unknown queue pair {number:#08x}")));
        };
        match wc.wr_id() {
            SEND => {
                member.is_sending = false;
                self.sent += 1;
            }
            RECEIVE => {
                member.is_due = true;
                self.received += 1;
                self.receives.taken();
            }
            other => return Err(report::unknown(other)),
        }
        Ok(Some(number))
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        let mut guard = self.srq.start_post_recv();
        for _ in self.receives.refill() {
            let (addr, length) = self.buffers.receive_target(IN);
            // SAFETY: the buffers outlive the queues, and nothing holds a reference to them.
            unsafe { guard.construct_wr(RECEIVE).setup_sge(self.buffers.lkey(), addr, length) };
        }
        guard.post().map_err(Failure::work)
    }

    fn send_if_due(&mut self, number: u32) -> Result<(), Failure> {
        let Some(member) = self.members.get_mut(number) else { return Ok(()) };
        if !member.is_due || member.is_sending || self.posted == self.iters {
            return Ok(());
        }
        (member.is_due, member.is_sending) = (false, true);
        self.posted += 1;
        let mut guard = member.qp.start_post_send();
        let send = guard.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: the buffers outlive the queue pair, and nothing writes to the send buffer.
        unsafe { send.setup_sge(self.buffers.lkey(), self.buffers.addr(OUT), self.buffers.size()) };
        guard.post().map_err(Failure::work)
    }
}
