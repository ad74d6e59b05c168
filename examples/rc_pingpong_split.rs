//! `rc_pingpong` step by step: it performs each step of [`connect`] by itself, and splits the queue
//! pair into its sending and its receiving half.
//!
//! - [`ModifySteps`] has the states of a queue pair and the attributes of each. `modify` reports an
//!   attribute that is wrong, missing or superfluous. To see that, replace `setup_min_rnr_timer`
//!   with `setup_port` in [`ModifySteps::to_ready_to_receive`].
//! - [`SendHalf`] has the sending half and the completion queue of sends, [`RecvHalf`] the
//!   receiving half and the completion queue of receives. They share nothing and could run on two
//!   threads. Ping and pong only wait for each other, so that one thread suffices here.
//!
//! It has the flags, lines and exchange of addresses of `ibv_rc_pingpong`.
//!
//! [`connect`]: sideway::ibverbs::connect::connect

use std::process::ExitCode;
use std::time::Instant;

use rdma_examples::pingpong::{
    self, Args, IdleTimeout, PingPongBuffers, PingPongPlan, RECEIVE, ReceiveRefill, SEND, Turns, exchange,
    report, start_poll, wire,
};
use rdma_examples::program::{self, Failure, say};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{Endpoint, LocalPath};
use sideway::ibverbs::port::LinkLayer;
use sideway::ibverbs::queue_pair::{
    GenericSendQueue, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairControl, QueuePairState,
    ReceiveQueue, SendQueue, WorkRequestFlags,
};

fn main() -> ExitCode {
    program::run(rc_pingpong_split)
}

fn rc_pingpong_split() -> Result<(), Failure> {
    let plan = PingPongPlan::try_from(program::arguments::<Args>()?)?;
    let (context, path) = plan.open()?;

    let pd = context.alloc_pd()?;
    // Declared before the queue pair, so that it is dropped after it: the device writes to the
    // buffers as long as the queue pair exists.
    let buffers = PingPongBuffers::new(&pd, plan.size)?;
    // One channel for both queues.
    let channel = plan.events.then(|| context.create_comp_channel()).transpose()?;
    let mut builder = context.create_cq_builder();
    if let Some(channel) = &channel {
        builder.setup_comp_channel(channel);
    }
    let send_cq = builder.setup_cqe(1).build_generic()?;
    let recv_cq = builder.setup_cqe(plan.rx_depth).build_generic()?;
    let mut builder = pd.create_qp_builder();
    builder
        .setup_send_cq(&send_cq)
        .setup_recv_cq(&recv_cq)
        .setup_max_send_wr(1)
        .setup_max_recv_wr(plan.rx_depth);
    let mut qp = if plan.extended_only { builder.build_ex()?.into() } else { builder.build_generic()? };

    let local = Endpoint::new(&qp, &path, pingpong::first_psn());
    // Changing the state needs neither half, and the control handle can be cloned. But nothing may
    // be posted during the change. A whole queue pair guarantees that; here the program must.
    let steps = ModifySteps { control: qp.control().clone(), plan: &plan, path: &path, local: &local };
    let (send_queue, recv_queue) = qp.split();
    let mut sender = SendHalf { queue: send_queue, cq: send_cq, buffers: &buffers };
    let mut receiver = RecvHalf {
        queue: recv_queue,
        cq: recv_cq,
        buffers: &buffers,
        receives: ReceiveRefill::new(plan.rx_depth),
    };

    steps.to_init()?;
    // The queue pair accepts receives from now on, and the peer cannot send yet.
    receiver.post()?;
    say(format_args!("  local address:  {}", wire::describe(&local)))?;

    let remote = match &plan.host {
        Some(host) => {
            let remote = exchange::call(host, plan.port, &local)?;
            steps.to_ready(&remote)?;
            remote
        }
        // The client sends as soon as it has the server's address, so that the server must be ready
        // before.
        None => exchange::answer(plan.port, &local, |remote| steps.to_ready(remote))?,
    };
    say(format_args!("  remote address: {}", wire::describe(&remote)))?;

    let opens = plan.host.is_some();
    let mut turns = Turns::new(plan.iters, opens);
    if plan.check && opens {
        buffers.mark(turns.latest());
    }
    let start = Instant::now();
    run(&mut sender, &mut receiver, &mut turns, IdleTimeout::new(plan.timeout), channel)?;
    report::speed(plan.size, plan.iters, start.elapsed())?;
    if plan.check { report::validity(&buffers.wrong_pages(turns.latest())) } else { Ok(()) }
}

/// Runs both halves in turn until all messages were sent and received.
fn run(
    sender: &mut SendHalf<'_>,
    receiver: &mut RecvHalf<'_>,
    turns: &mut Turns,
    mut idle: IdleTimeout,
    mut channel: Option<CompletionChannel>,
) -> Result<(), Failure> {
    let sleeps = channel.is_some();
    while !turns.is_over() {
        if let Some(turn) = turns.take_turn() {
            sender.send(turn)?;
        }
        let sent = sender.poll(turns, sleeps)?;
        let received = receiver.poll(turns, sleeps)?;
        if sent || received {
            idle.completed();
            receiver.post()?;
        } else if let Some(channel) = &mut channel {
            idle.sleep(channel)?;
        } else {
            idle.poll_was_empty()?;
        }
    }
    Ok(())
}

/// The state changes of the queue pair from reset to ready-to-send.
struct ModifySteps<'a> {
    control: QueuePairControl,
    plan: &'a PingPongPlan,
    path: &'a LocalPath,
    local: &'a Endpoint,
}

impl ModifySteps<'_> {
    /// Receives can be posted in this state. The peer may only send, because it needs no access to
    /// the memory.
    fn to_init(&self) -> Result<(), Failure> {
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(self.path.port_num())
            .setup_access_flags(AccessFlags::empty());
        self.modify(&attr, "INIT")
    }

    /// Makes the queue pair ready for both directions.
    fn to_ready(&self, remote: &Endpoint) -> Result<(), Failure> {
        self.to_ready_to_receive(remote)?;
        self.to_ready_to_send()
    }

    /// In this state the queue pair receives.
    fn to_ready_to_receive(&self, remote: &Endpoint) -> Result<(), Failure> {
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(self.plan.mtu.unwrap_or(self.path.mtu()))
            .setup_dest_qp_num(remote.qp_number)
            .setup_rq_psn(remote.packet_seq_num)
            .setup_max_dest_read_atomic(1)
            .setup_min_rnr_timer(12);

        // The address vector.
        let mut ah_attr = AddressHandleAttribute::new();
        ah_attr
            .setup_dest_lid(remote.lid)
            .setup_port(self.path.port_num())
            .setup_service_level(self.plan.service_level);
        // RoCE addresses peers by GID; on InfiniBand both sides may choose.
        if remote.gid.is_none() && self.path.link_layer() == LinkLayer::Ethernet {
            return Err(Failure::setup(
                "the peer has no GID, which RoCE needs: give it an index (-g, `show_gids`)",
            ));
        }
        if let (Some(gid), Some(index)) = (remote.gid, self.path.gid_index()) {
            ah_attr.setup_grh_dest_gid(&gid).setup_grh_src_gid_index(index).setup_grh_hop_limit(64);
        }
        attr.setup_address_vector(&ah_attr);
        self.modify(&attr, "RTR")
    }

    /// In this state the queue pair sends.
    fn to_ready_to_send(&self) -> Result<(), Failure> {
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(self.local.packet_seq_num)
            .setup_timeout(14)
            .setup_retry_cnt(7)
            .setup_rnr_retry(7)
            .setup_max_read_atomic(1);
        self.modify(&attr, "RTS")
    }

    /// One change. A program can act on the error's value, and its text tells a person what to do.
    fn modify(&self, attr: &QueuePairAttribute, state: &str) -> Result<(), Failure> {
        // SAFETY: this program has one thread, which posts nothing until the call returns, and no
        // post guard is open.
        unsafe { self.control.modify(attr) }.map_err(|error| {
            Failure::setup(format_args!("Failed to modify QP to {state}: {error:?}\n{error}"))
        })
    }
}

/// The sending half of the queue pair.
struct SendHalf<'a> {
    queue: &'a mut GenericSendQueue,
    cq: GenericCompletionQueue,
    buffers: &'a PingPongBuffers,
}

impl SendHalf<'_> {
    fn send(&mut self, turn: u32) -> Result<(), Failure> {
        let mut guard = self.queue.start_post_send();
        let send = guard.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: the buffers outlive the queue pair. Nothing writes to this message until the send
        // has completed: the next message arrives in the other buffer. The one after that is sent
        // only in answer to our next send, which waits for this one.
        unsafe { send.setup_sge(self.buffers.lkey(), self.buffers.addr(turn), self.buffers.size()) };
        guard.post().map_err(Failure::work)
    }

    /// Takes all completions; false if none was found.
    fn poll(&mut self, turns: &mut Turns, sleeps: bool) -> Result<bool, Failure> {
        poll(&mut self.cq, self.queue.control(), sleeps, SEND, || turns.sent())
    }
}

/// The receiving half of the queue pair.
struct RecvHalf<'a> {
    queue: &'a mut ReceiveQueue,
    cq: GenericCompletionQueue,
    buffers: &'a PingPongBuffers,
    receives: ReceiveRefill,
}

impl RecvHalf<'_> {
    /// Refills the receive queue if it is almost empty.
    fn post(&mut self) -> Result<(), Failure> {
        let mut guard = self.queue.start_post_recv();
        for turn in self.receives.refill() {
            // SAFETY: the buffers outlive the queue pair, and nothing holds a reference to them.
            unsafe {
                guard.construct_wr(RECEIVE).setup_sge(
                    self.buffers.lkey(),
                    self.buffers.addr(turn),
                    self.buffers.size(),
                );
            }
        }
        guard.post().map_err(Failure::work)
    }

    /// Takes all completions; false if none was found.
    fn poll(&mut self, turns: &mut Turns, sleeps: bool) -> Result<bool, Failure> {
        poll(&mut self.cq, self.queue.control(), sleeps, RECEIVE, || {
            turns.received();
            self.receives.taken();
        })
    }
}

/// Takes all completions of one kind; false if none was found.
fn poll(
    cq: &mut GenericCompletionQueue,
    qp: &QueuePairControl,
    sleeps: bool,
    wr_id: u64,
    mut completed: impl FnMut(),
) -> Result<bool, Failure> {
    let mut poller = start_poll(cq, sleeps)?;
    let mut any = false;
    while let Some(wc) = poller.next() {
        if wc.status() != WorkCompletionStatus::Success {
            return Err(report::failed(&wc, Some(qp)));
        }
        if wc.wr_id() != wr_id {
            return Err(report::unknown(wc.wr_id()));
        }
        completed();
        any = true;
    }
    poller.finish().map_err(Failure::work)?;
    Ok(any)
}
