//! Counters in a server's memory that many clients change with atomics, without work by the server.
//!
//! ```text
//! $ cargo run --example atomic_counters
//! 4 clients added 1000 times each: the counter is at 4000
//! 400 tickets were drawn, each of them once; 117 times another client was faster
//! ```
//!
//! - FETCH_ADD never fails: every addition of every client counts.
//! - COMPARE_SWAP is for updates that depend on the value. A client draws the ticket that it
//!   expects to be next. If another client was faster, the result is the current value, with which
//!   it tries again.
//!
//! Each client is a thread with its own open device, so that the threads share the server's memory
//! only; a client could run on another host as well. The server's thread only reads the memory at
//! the end.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_examples::devices::{self, DeviceArg};
use rdma_examples::pingpong::{first_psn, report};
use rdma_examples::program::{self, Failure, note, say};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device_attr::AtomicCapability;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::memory::{Pool, PoolBuilder};

/// Counts by FETCH_ADD, and draws tickets by COMPARE_SWAP.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    device: DeviceArg,

    /// The number of clients.
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,

    /// The number of additions by each client.
    #[arg(short = 'n', long, default_value_t = 1000)]
    additions: u64,

    /// The number of tickets that each client draws.
    #[arg(short, long, default_value_t = 100)]
    tickets: u64,
}

/// Offsets in the server's memory, in bytes. Atomics need multiples of 8.
const COUNTER: usize = 0;
const NEXT_TICKET: usize = 8;

/// The time limit of an atomic operation.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    program::run(atomic_counters)
}

fn atomic_counters() -> Result<(), Failure> {
    let Arguments { device, clients, additions, tickets } = program::arguments()?;
    let list = devices::list()?;
    let device = devices::one(&list, device.ib_dev.as_deref())?;
    let context = device.open()?;
    if context.query_device()?.atomic_cap() == AtomicCapability::None {
        return Err(Failure::setup(format_args!("{} has no atomics", context.name())));
    }
    let path = LocalPath::choose(&context, 1, None)?;
    note(format_args!("{}, port {}: {}", context.name(), path.port_num(), path.reason()));

    // The server: memory that clients may change, and a queue pair for each client. Nothing polls
    // the server's completion queue.
    let pd = context.alloc_pd()?;
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteAtomic;
    let pool = pd.create_pool_builder().setup_access(access).setup_slices(16, 1).build()?;
    let mut counters = pool.take().ok_or_else(|| Failure::setup("a new pool is empty"))?;
    counters.fill(0);
    let cq = context.create_cq_builder().build_generic()?;
    let mut pairs = Vec::new();
    let mut ready = Vec::new();
    for _ in 0..clients {
        let (mut client, pool) = AtomicClient::new(&device.open()?)?;
        let mut ours = pair(&pd, &cq)?;
        let (near, far) = (Endpoint::new(&ours, &path, first_psn()), client.endpoint(&path));
        let options = ConnectOptions { access_flags: access, ..ConnectOptions::default() };
        connect(&mut ours, &path, &near, &far, &options)?;
        connect(&mut client.qp, &path, &far, &near, &options)?;
        pairs.push(ours);
        ready.push((client, pool));
    }

    let (rkey, addr) = (pool.rkey(), counters.addr());
    let [counter, next_ticket] = [COUNTER, NEXT_TICKET].map(|at| RemoteWord { rkey, addr: addr + at as u64 });
    let work = |mut client: AtomicClient, pool: PoolBuilder| -> Result<(Vec<u64>, u64), Failure> {
        // A pool must be built on the thread that uses it.
        let pool = pool.build().map_err(Failure::work)?;
        for _ in 0..additions {
            client.fetch_add(&pool, counter, 1)?;
        }
        client.draw(&pool, next_ticket, tickets)
    };
    let results: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> =
            ready.into_iter().map(|(client, pool)| scope.spawn(move || work(client, pool))).collect();
        running
            .into_iter()
            .map(|client| client.join().map_err(|_| Failure::work("a client panicked"))?)
            .collect()
    });

    let (mut drawn, mut retries) = (Vec::new(), 0);
    for result in results {
        let (tickets, again) = result?;
        drawn.extend(tickets);
        retries += again;
    }
    let sum: u64 = counters.read(COUNTER)?;
    if sum != clients * additions {
        return Err(Failure::work(format_args!(
            "{clients} clients added {additions} each, but the counter is at {sum}"
        )));
    }
    drawn.sort_unstable();
    if !drawn.iter().copied().eq(0..clients * tickets) {
        return Err(Failure::work(format_args!("tickets are missing or were drawn twice: {drawn:?}")));
    }
    say(format_args!("{clients} clients added {additions} times each: the counter is at {sum}"))?;
    say(format_args!(
        "{} tickets were drawn, each of them once; {retries} times another client was faster",
        drawn.len()
    ))
}

/// A 64-bit word of the server's memory.
#[derive(Clone, Copy)]
struct RemoteWord {
    rkey: u32,
    addr: u64,
}

/// A connection to the server. It can be sent to another thread, which then builds the pool.
struct AtomicClient {
    cq: GenericCompletionQueue,
    qp: GenericQueuePair,
}

fn pair(pd: &ProtectionDomain, cq: &GenericCompletionQueue) -> Result<GenericQueuePair, Failure> {
    Ok(pd.create_qp_builder().setup_send_cq(cq).setup_recv_cq(cq).build_generic()?)
}

impl AtomicClient {
    fn new(context: &DeviceContext) -> Result<(Self, PoolBuilder), Failure> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq_builder().build_generic()?;
        let mut pool = pd.create_pool_builder();
        pool.setup_slices(8, 1);
        Ok((Self { qp: pair(&pd, &cq)?, cq }, pool))
    }

    fn endpoint(&self, path: &LocalPath) -> Endpoint {
        Endpoint::new(&self.qp, path, first_psn())
    }

    /// Adds to a word and returns its old value.
    fn fetch_add(&mut self, pool: &Pool, word: RemoteWord, add: u64) -> Result<u64, Failure> {
        let room = pool.take().ok_or_else(|| Failure::work("no slice is free"))?;
        let mut list = pool.attach(self.qp.start_post_send())?;
        let request = list.construct_wr(0, WorkRequestFlags::Signaled);
        request.setup_atomic_fetch_add(word.rkey, word.addr, add).setup_slice(room);
        list.post().map_err(Failure::work)?;
        self.answer(pool)
    }

    /// Writes `swap` if the word equals `compare`; returns its old value.
    fn compare_swap(
        &mut self,
        pool: &Pool,
        word: RemoteWord,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Failure> {
        let room = pool.take().ok_or_else(|| Failure::work("no slice is free"))?;
        let mut list = pool.attach(self.qp.start_post_send())?;
        let request = list.construct_wr(0, WorkRequestFlags::Signaled);
        request.setup_atomic_compare_swap(word.rkey, word.addr, compare, swap).setup_slice(room);
        list.post().map_err(Failure::work)?;
        self.answer(pool)
    }

    /// Draws `tickets` tickets. Also returns how often another client was faster.
    fn draw(&mut self, pool: &Pool, next: RemoteWord, tickets: u64) -> Result<(Vec<u64>, u64), Failure> {
        let (mut drawn, mut believed, mut retries) = (Vec::new(), 0, 0);
        while (drawn.len() as u64) < tickets {
            let found = self.compare_swap(pool, next, believed, believed + 1)?;
            if found == believed {
                drawn.push(found);
                believed += 1;
            } else {
                believed = found;
                retries += 1;
            }
        }
        Ok((drawn, retries))
    }

    /// Waits for the outstanding request and returns its result, in this host's byte order.
    fn answer(&mut self, pool: &Pool) -> Result<u64, Failure> {
        let start = Instant::now();
        while start.elapsed() < WAIT_LIMIT {
            let mut poller = self.cq.start_poll().map_err(Failure::work)?;
            if let Some(wc) = poller.next() {
                if wc.status() != WorkCompletionStatus::Success {
                    return Err(report::failed(&wc, Some(self.qp.control())));
                }
                let returned = pool.reclaim(&wc).ok_or_else(|| report::unknown(wc.wr_id()))?;
                return Ok(returned.slice.read(0)?);
            }
            poller.finish().map_err(Failure::work)?;
        }
        Err(Failure::work("an atomic does not complete"))
    }
}
