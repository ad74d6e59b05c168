//! A message to and fro over a reliable connection: `ibv_rc_pingpong`, with its
//! flags, its lines and its way to exchange addresses, so that either side can
//! be the C program.
//!
//! ```text
//! server$ cargo run --example rc_pingpong
//! client$ cargo run --example rc_pingpong -- SERVER
//! ```
//!
//! This is the short way: one completion queue for everything,
//! [`LocalPath::choose`] for the address and [`connect`] for the queue pair.
//! `rc_pingpong_split` goes the same way step by step.

use std::process::ExitCode;
use std::time::Instant;

use rdma_examples::devices;
use rdma_examples::pingpong::{
    self, Args, Ball, Patience, Plan, RECEIVE, Rally, Receives, SEND, exchange, report, start_poll, wire,
};
use rdma_examples::program::{self, Failure, note, say};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};

fn main() -> ExitCode {
    program::run(rc_pingpong)
}

fn rc_pingpong() -> Result<(), Failure> {
    let plan = Plan::try_from(program::arguments::<Args>()?)?;
    let list = devices::list()?;
    let context = devices::one(&list, plan.ib_dev.as_deref())?.open()?;
    let path = LocalPath::choose(&context, plan.ib_port, plan.gid_index)?;
    plan.check(&context, &path)?;
    note(format_args!("{}, port {}: {}", context.name(), path.port_num(), path.reason()));

    let pd = context.alloc_pd()?;
    // Before the queue pair, so that it goes after it: the device writes to it as long as there is one.
    let ball = Ball::new(&pd, plan.size)?;
    let channel = plan.events.then(|| context.create_comp_channel()).transpose()?;
    let mut builder = context.create_cq_builder();
    if let Some(channel) = &channel {
        builder.setup_comp_channel(channel);
    }
    let cq = builder.setup_cqe(plan.rx_depth + 1).build_generic()?;
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(1).setup_max_recv_wr(plan.rx_depth);
    let qp = if plan.extended_only { builder.build_ex()?.into() } else { builder.build_generic()? };

    let local = Endpoint::new(&qp, &path, pingpong::first_psn());
    say(format_args!("  local address:  {}", wire::describe(&local)))?;

    let mut player = Player {
        cq,
        channel,
        qp,
        ball: &ball,
        rally: Rally::new(plan.iters, plan.host.is_some()),
        receives: Receives::new(plan.rx_depth),
        patience: Patience::new(plan.timeout),
    };
    // Peers have no business in the memory; and as C does, the MTU is not negotiated.
    let options = ConnectOptions {
        access_flags: AccessFlags::empty(),
        mtu: Some(plan.mtu),
        service_level: plan.service_level,
        ..ConnectOptions::default()
    };
    // The server has its receives posted before the client hears of it, and the client before it sends:
    // no message ever finds none.
    let get_ready = |player: &mut Player<'_>, remote: &Endpoint| {
        let connection = connect(&mut player.qp, &path, &local, remote, &options)?;
        note(format_args!("connected: {connection}"));
        player.post_receives()
    };
    let remote = match &plan.host {
        Some(host) => {
            let remote = exchange::call(host, plan.port, &local)?;
            get_ready(&mut player, &remote)?;
            remote
        }
        None => exchange::answer(plan.port, &local, |remote| get_ready(&mut player, remote))?,
    };
    say(format_args!("  remote address: {}", wire::describe(&remote)))?;
    if plan.check && plan.host.is_some() {
        ball.mark(player.rally.latest());
    }

    let start = Instant::now();
    player.play()?;
    report::speed(plan.size, plan.iters, start.elapsed())?;
    if plan.check { report::validity(&ball.wrong_pages(player.rally.latest())) } else { Ok(()) }
}

/// One side of the game.
struct Player<'ball> {
    cq: GenericCompletionQueue,
    /// Where to sleep, if the program does not poll all the time.
    channel: Option<CompletionChannel>,
    qp: GenericQueuePair,
    ball: &'ball Ball,
    rally: Rally,
    receives: Receives,
    patience: Patience,
}

impl Player<'_> {
    fn play(&mut self) -> Result<(), Failure> {
        self.send_if_due()?;
        while !self.rally.is_over() {
            if self.poll()? {
                self.patience.reward();
                self.post_receives()?;
                self.send_if_due()?;
            } else if let Some(channel) = &mut self.channel {
                self.patience.sleep(channel)?;
            } else {
                self.patience.try_once_more()?;
            }
        }
        Ok(())
    }

    /// Takes what has completed; false if nothing has.
    fn poll(&mut self) -> Result<bool, Failure> {
        let mut poller = start_poll(&mut self.cq, self.channel.is_some())?;
        let mut any = false;
        while let Some(wc) = poller.next() {
            if wc.status() != WorkCompletionStatus::Success {
                return Err(report::failed(&wc));
            }
            match wc.wr_id() {
                SEND => self.rally.sent(),
                RECEIVE => {
                    self.rally.received();
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
            // SAFETY: the ball outlives the queue pair, and makes no reference to its memory.
            unsafe {
                guard.construct_wr(RECEIVE).setup_sge(
                    self.ball.lkey(),
                    self.ball.addr(turn),
                    self.ball.size(),
                );
            }
        }
        guard.post().map_err(Failure::work)
    }

    fn send_if_due(&mut self) -> Result<(), Failure> {
        let Some(turn) = self.rally.take_turn() else { return Ok(()) };
        let mut guard = self.qp.start_post_send();
        let send = guard.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: the ball outlives the queue pair. Nobody writes to this message until the send has
        // completed: the next one comes in beside it, and the one after that is sent only in answer to our
        // next send, which waits for this one.
        unsafe { send.setup_sge(self.ball.lkey(), self.ball.addr(turn), self.ball.size()) };
        guard.post().map_err(Failure::work)
    }
}
