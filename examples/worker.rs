//! A thread for each processor, with separate completion queue, queue pairs and memory, and without
//! locks.
//!
//! ```text
//! $ cargo run --example worker
//! 2 workers keep 64 accounts: 3 producers made 1000 deposits each, and each was answered right; workers slept 31 times
//! ```
//!
//! Each [`AccountWorker`] owns some of the accounts. A producer thread sends a deposit to any
//! worker through a channel. That worker forwards the deposit to the account's owner, as a message
//! over the queue pair between them, and sends the new balance back through a channel. A worker
//! also has a queue pair to itself, so that its own accounts are no special case.
//!
//! A worker polls. After a number of polls without work it sleeps until a completion or a task
//! arrives.
//!
//! The program needs no `unsafe`: the messages are slices of a pool.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use rdma_examples::deposits::{self, ACCOUNTS, Answer, Deposit, Task};
use rdma_examples::devices::DeviceArg;
use rdma_examples::pingpong::{RECEIVE, SEND, first_psn, report, start_poll};
use rdma_examples::program::{self, Failure, note, say};
use rdma_examples::waking_channel::{self, WakingReceiver};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sideway::ibverbs::completion::{
    CompletionChannel, GenericCompletionQueue, GenericWorkCompletion, WorkCompletionStatus,
};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairTable, WorkRequestFlags,
};
use sideway::memory::{Pool, Slice};

/// Keeps accounts with one thread for each processor.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    device: DeviceArg,

    /// The number of workers [default: one for each processor, at most 8]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: Option<u32>,

    /// The number of threads that make deposits.
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    producers: u64,

    /// The number of deposits by each of these threads.
    #[arg(short = 'n', long, default_value_t = 1000)]
    deposits: u64,
}

/// The largest number of unanswered requests to a worker. The receiver has a receive posted for
/// each request, and the sender one for each answer.
const WINDOW: usize = 16;

/// The number of messages on a queue pair in each direction: a window of requests and one of
/// answers.
const DEPTH: usize = 2 * WINDOW;

/// The number of polls before a worker sleeps.
const SPINS: u32 = 2000;

fn main() -> ExitCode {
    program::run(worker)
}

fn worker() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let processors = processors()?;
    let workers = arguments.workers.map_or(processors.len().min(8), |workers| workers as usize);
    let context = arguments.device.open()?;
    let path = LocalPath::choose(&context, 1, None)?;
    note(format_args!("{}, port {}: {}", context.name(), path.port_num(), path.reason()));

    let pd = context.alloc_pd()?;
    let mut made = (0..workers).map(|_| AccountWorker::new(&pd, workers)).collect::<Result<Vec<_>, _>>()?;
    connect_all(&mut made, &path)?;

    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..workers {
        let (sender, receiver) = waking_channel::channel()?;
        senders.push(sender);
        receivers.push(receiver);
    }
    let (kept, made) = thread::scope(|scope| {
        let mut running = Vec::new();
        for (index, (worker, receiver)) in made.into_iter().zip(receivers).enumerate() {
            let processor = processors[index % processors.len()];
            running.push(scope.spawn(move || worker.run(receiver, processor)));
        }
        let producers: Vec<_> = (0..arguments.producers)
            .map(|n| (n, senders.clone()))
            .map(|(n, senders)| scope.spawn(move || deposits::make(n, arguments.deposits, &senders)))
            .collect();
        let answers: Vec<_> = producers.into_iter().map(|producer| producer.join()).collect();
        for sender in senders {
            sender.send(Task::Stop);
        }
        let kept: Vec<_> = running.into_iter().map(|worker| worker.join()).collect();
        (kept, answers)
    });

    // A failed worker causes missing answers, so that its error is reported first.
    let mut sleeps = 0;
    for result in kept {
        sleeps += result.map_err(|_| Failure::work("a worker panicked"))??;
    }
    let mut answers = Vec::new();
    for result in made {
        answers.extend(result.map_err(|_| Failure::work("a producer panicked"))??);
    }
    deposits::check(answers)?;
    say(format_args!(
        "{workers} workers keep {ACCOUNTS} accounts: {} producers made {} deposits each, and each was answered right; \
         workers slept {sleeps} times",
        arguments.producers, arguments.deposits
    ))
}

/// The processors that this process may use.
fn processors() -> Result<Vec<usize>, Failure> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect())
}

/// Connects every worker with every worker, including itself.
fn connect_all(workers: &mut [AccountWorker], path: &LocalPath) -> Result<(), Failure> {
    let endpoint = |pair: &PeerQp| Endpoint::new(&pair.qp, path, first_psn());
    let endpoints: Vec<Vec<_>> =
        workers.iter().map(|worker| worker.unconnected.iter().map(endpoint).collect()).collect();
    for (here, worker) in workers.iter_mut().enumerate() {
        for (there, pair) in worker.unconnected.iter_mut().enumerate() {
            let (local, remote) = (&endpoints[here][there], &endpoints[there][here]);
            connect(&mut pair.qp, path, local, remote, &ConnectOptions::default())?;
        }
    }
    Ok(())
}

/// The objects of one thread, which shares none of them.
struct AccountWorker {
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    pd: ProtectionDomain,
    /// By the number of the other worker.
    unconnected: Vec<PeerQp>,
}

impl AccountWorker {
    fn new(pd: &ProtectionDomain, workers: usize) -> Result<Self, Failure> {
        let channel = pd.context().create_comp_channel()?;
        let completions = u32::try_from(2 * DEPTH * workers)?;
        let mut builder = pd.context().create_cq_builder();
        let cq = builder.setup_cqe(completions).setup_comp_channel(&channel).build_generic()?;
        let depth = u32::try_from(DEPTH)?;
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(depth).setup_max_recv_wr(depth);
        let pair = |_| Ok(PeerQp::new(builder.build_generic()?));
        let unconnected = (0..workers).map(pair).collect::<Result<_, Failure>>()?;
        Ok(Self { cq, channel, pd: pd.clone(), unconnected })
    }

    /// Works until it gets the stop task. Returns how often it slept.
    fn run(self, mut tasks: WakingReceiver<Task>, processor: usize) -> Result<u64, Failure> {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only)?;
        let Self { mut cq, mut channel, pd, unconnected } = self;
        // Created on this thread, so that the memory is near its processor.
        let mut state = WorkerState::new(&pd, unconnected)?;
        let (mut idle, mut sleeps) = (0, 0);
        loop {
            let found = poll(&mut cq, false, &mut state)?;
            let mut task = tasks.take();
            idle = if found || task.is_some() { 0 } else { idle + 1 };
            if idle > SPINS {
                // Armed before the last poll, so that later completions cause an event.
                if !poll(&mut cq, true, &mut state)? {
                    task = tasks.sleep(channel.as_fd())?;
                    channel.try_next().map_err(Failure::work)?;
                    sleeps += 1;
                }
                idle = 0;
            }
            match task {
                Some(Task::Deposit(deposit)) => state.forward(deposit)?,
                Some(Task::Stop) => return Ok(sleeps),
                None => std::hint::spin_loop(),
            }
        }
    }
}

/// Handles all completions; false if none was found.
fn poll(cq: &mut GenericCompletionQueue, arms: bool, state: &mut WorkerState) -> Result<bool, Failure> {
    let mut poller = start_poll(cq, arms)?;
    let mut any = false;
    while let Some(wc) = poller.next() {
        state.completed(&wc)?;
        any = true;
    }
    poller.finish().map_err(Failure::work)?;
    Ok(any)
}

/// The state that a running worker changes.
struct WorkerState {
    /// By queue pair number, as in completions.
    pairs: QueuePairTable<PeerQp>,
    /// Queue pair numbers, by the number of the other worker.
    numbers: Vec<u32>,
    pool: Pool,
    /// The balances of the accounts that this worker owns.
    balances: HashMap<u64, u64>,
}

impl WorkerState {
    fn new(pd: &ProtectionDomain, unconnected: Vec<PeerQp>) -> Result<Self, Failure> {
        let slices = 2 * DEPTH * unconnected.len();
        let pool = pd
            .create_pool_builder()
            .setup_slices(PeerMessage::BYTES, slices)
            .build()
            .map_err(Failure::work)?;
        let (mut pairs, mut numbers) = (QueuePairTable::new(), Vec::new());
        for mut pair in unconnected {
            for _ in 0..DEPTH {
                pair.receive(&pool, take(&pool)?)?;
            }
            numbers.push(pair.qp.qp_number());
            pairs.insert(pair.qp.qp_number(), pair);
        }
        Ok(Self { pairs, numbers, pool, balances: HashMap::new() })
    }

    /// Forwards a deposit to the account's owner.
    fn forward(&mut self, deposit: Deposit) -> Result<(), Failure> {
        let owner = deposit.account as usize % self.numbers.len();
        let pair = find(&mut self.pairs, self.numbers[owner])?;
        pair.questions.push_back(deposit);
        pair.send_what_waits(&self.pool)
    }

    fn completed(&mut self, wc: &GenericWorkCompletion<'_>) -> Result<(), Failure> {
        if wc.status() != WorkCompletionStatus::Success {
            let pair = self.pairs.get(wc.qp_num().unwrap_or(u32::MAX));
            return Err(report::failed(wc, pair.map(|pair| pair.qp.control())));
        }
        let returned = self.pool.reclaim(wc).ok_or_else(|| report::unknown(wc.wr_id()))?;
        let pair = find(&mut self.pairs, wc.qp_num().unwrap_or(u32::MAX))?;
        if returned.wr_id == SEND {
            pair.sending -= 1;
        } else {
            let message = PeerMessage::read(&returned.slice)?;
            // Before the answer, which allows the peer to send its next request.
            pair.receive(&self.pool, returned.slice)?;
            if message.is_answer {
                pair.answered(message)?;
            } else {
                let balance = self.balances.entry(message.account).or_default();
                *balance += message.amount;
                pair.answers.push_back(PeerMessage { is_answer: true, amount: *balance, ..message });
            }
        }
        pair.send_what_waits(&self.pool)
    }
}

fn find(pairs: &mut QueuePairTable<PeerQp>, number: u32) -> Result<&mut PeerQp, Failure> {
    pairs.get_mut(number).ok_or_else(|| Failure::work(format_args!("unknown queue pair {number:#08x}")))
}

fn take(pool: &Pool) -> Result<Slice, Failure> {
    pool.take().ok_or_else(|| Failure::work("no slice is free"))
}

/// The queue pair to another worker, with the messages that wait for it.
struct PeerQp {
    qp: GenericQueuePair,
    sending: usize,
    /// Requests that wait until an earlier one is answered.
    questions: VecDeque<Deposit>,
    /// Sent requests. Answers arrive in the same order, because messages do.
    asked: VecDeque<Deposit>,
    answers: VecDeque<PeerMessage>,
}

impl PeerQp {
    fn new(qp: GenericQueuePair) -> Self {
        let (questions, asked, answers) = Default::default();
        Self { qp, sending: 0, questions, asked, answers }
    }

    fn receive(&mut self, pool: &Pool, slice: Slice) -> Result<(), Failure> {
        let mut list = pool.attach_recv(self.qp.start_post_recv())?;
        list.construct_wr(RECEIVE).setup_slice(slice);
        list.post().map_err(Failure::work)
    }

    /// Sends as many messages as the queue has room for, and as many requests as the peer has
    /// receives.
    fn send_what_waits(&mut self, pool: &Pool) -> Result<(), Failure> {
        while self.sending < DEPTH {
            let message = if let Some(answer) = self.answers.pop_front() {
                answer
            } else if self.asked.len() < WINDOW
                && let Some(deposit) = self.questions.pop_front()
            {
                let Deposit { account, amount, .. } = deposit;
                self.asked.push_back(deposit);
                PeerMessage { is_answer: false, account, amount }
            } else {
                break;
            };
            let mut slice = take(pool)?;
            message.write(&mut slice)?;
            let mut list = pool.attach(self.qp.start_post_send())?;
            list.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
            list.post().map_err(Failure::work)?;
            self.sending += 1;
        }
        Ok(())
    }

    /// Passes an answer on to the producer of the deposit.
    fn answered(&mut self, message: PeerMessage) -> Result<(), Failure> {
        let Some(deposit) = self.asked.pop_front().filter(|deposit| deposit.account == message.account)
        else {
            return Err(Failure::work("an answer without a request"));
        };
        // The producer may have given up.
        let _ = deposit.answer.send(Answer { account: message.account, balance: message.amount });
        Ok(())
    }
}

/// A message between two workers.
#[derive(Clone, Copy)]
struct PeerMessage {
    is_answer: bool,
    account: u64,
    /// In a request the amount, in an answer the balance.
    amount: u64,
}

impl PeerMessage {
    const BYTES: usize = 24;

    fn read(slice: &Slice) -> Result<Self, Failure> {
        Ok(Self { is_answer: slice.read::<u64>(0)? != 0, account: slice.read(8)?, amount: slice.read(16)? })
    }

    fn write(&self, slice: &mut Slice) -> Result<(), Failure> {
        slice.write(0, u64::from(self.is_answer))?;
        slice.write(8, self.account)?;
        Ok(slice.write(16, self.amount)?)
    }
}
