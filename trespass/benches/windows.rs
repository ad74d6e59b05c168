//! One-sided operations of `trespass::window` over soft0, compared with the same verbs posted by
//! sideway, in turns of one run between the same two processes.
//!
//! ```sh
//! cargo bench -p trespass --bench windows
//! ```
//!
//! `TRESPASS_BENCH_ROUNDS` sets the number of rounds, and `TRESPASS_BENCH_ROWS` has words of the rows
//! to measure, such as `fetch_add`.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Instant;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, SendOperationFlags, WorkRequestFlags,
};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};
use trespass::window::{Access, Protection, WindowConfig, WindowKey, Windows};
use trespass::{Block, Builder};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The bytes of the owner's memory.
const LEN: usize = 1 << 20;
/// Operations under way at a time.
const DEPTH: usize = 16;
const ROUNDS: usize = 15;
const ROUNDS_ASKED: &str = "TRESPASS_BENCH_ROUNDS";
const ROWS_ASKED: &str = "TRESPASS_BENCH_ROWS";
const ROLE: &str = "TRESPASS_BENCH_ROLE";

#[derive(Clone, Copy)]
enum Verb {
    Put,
    Get,
    FetchAdd,
}

impl Verb {
    fn name(self, depth: usize) -> &'static str {
        match self {
            Self::Put if depth == 1 => "put, latency",
            Self::Put => "put",
            Self::Get => "get",
            Self::FetchAdd => "fetch_add, latency",
        }
    }
}

fn rounds() -> Result<usize> {
    match std::env::var(ROUNDS_ASKED) {
        Ok(asked) => Ok(asked.parse::<usize>()?.max(1)),
        Err(_) => Ok(ROUNDS),
    }
}

/// Rows: an operation, its length, those under way, and those of a turn.
const ROWS: [(Verb, usize, usize, usize); 6] = [
    (Verb::Put, 64 << 10, DEPTH, 4000),
    (Verb::Put, LEN, DEPTH, 300),
    (Verb::Get, 64 << 10, DEPTH, 4000),
    (Verb::Get, LEN, DEPTH, 300),
    (Verb::Put, 64, 1, 40_000),
    (Verb::FetchAdd, 8, 1, 40_000),
];

fn main() -> Result<()> {
    match std::env::var(ROLE).ok().as_deref() {
        Some("owner") => owner(),
        Some(addr) => client(addr),
        None => both(),
    }
}

/// Runs the owner and the client in two processes, over a device that only they see.
fn both() -> Result<()> {
    let run = |role: &str| {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, role).env("SIDEWAY_PROVIDER", "soft").env("TRESPASS_TRANSPORT", "rdma");
        command.env("SOFT_RNIC_FABRIC", format!("bench.{}", std::process::id()));
        Ok::<_, std::io::Error>(command)
    };
    let mut owner = run("owner")?.stdout(Stdio::piped()).spawn()?;
    let mut addr = String::new();
    let output = owner.stdout.take().ok_or("the owner has no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut addr)?;
    let done = run(addr.trim())?.status()?;
    owner.wait()?;
    if done.success() { Ok(()) } else { Err("the client failed".into()) }
}

fn owner() -> Result<()> {
    let listener = Builder::new().bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let windows = Windows::over(listener.accept()?.0, &WindowConfig::new().protection(Protection::Domain))?;
    let window = windows.offer(windows.buffer(LEN)?, LEN, Access::ALL, None).map_err(|(error, _)| error)?;
    let mut verbs = VerbsEnd::new(LEN)?;
    windows.send_message(&window.key().to_bytes())?;
    windows.send_message(&verbs.describe())?;
    verbs.connect(&windows.next_message()?)?;
    windows.send_message(b"connected")?;
    windows.serve()?;
    Ok(())
}

fn client(addr: &str) -> Result<()> {
    let windows = Windows::connect(addr)?;
    let key = WindowKey::from_bytes(&windows.next_message()?)?;
    let mut verbs = VerbsEnd::new(DEPTH * LEN)?;
    let peer = windows.next_message()?;
    windows.send_message(&verbs.describe())?;
    verbs.connect(&peer)?;
    windows.next_message()?;
    let (wanted, rounds_asked) = (std::env::var(ROWS_ASKED).unwrap_or_default(), rounds()?);
    println!("| operation | bytes | under way | verbs | window | unit | times | verbs against themselves |");
    println!("| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |");
    for (verb, len, depth, count) in ROWS {
        if !verb.name(depth).contains(&wanted) {
            continue;
        }
        let mut blocks: Vec<Block> =
            (0..depth).map(|_| windows.buffer(len.max(8))).collect::<std::io::Result<_>>()?;
        let mut rounds = Vec::new();
        for round in 0..=rounds_asked {
            let turns = [
                verbs.measure(verb, len, depth, count)?,
                measure(&windows, &key, verb, len, &mut blocks, count)?,
                verbs.measure(verb, len, depth, count)?,
            ];
            // The first one opens the path.
            if round > 0 {
                rounds.push(turns);
            }
        }
        print_row(verb, len, depth, count, &rounds);
    }
    Ok(())
}

fn print_row(verb: Verb, len: usize, depth: usize, count: usize, rounds: &[[f64; 3]]) {
    let median = |value: &dyn Fn(&[f64; 3]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let times = median(&|[first, ours, again]| (first * again).sqrt() / ours);
    let noise = median(&|[first, _, again]| first / again);
    let name = verb.name(depth);
    let unit = if depth == 1 { "ns" } else { "Gb/s" };
    let figure = |seconds: f64| match unit {
        "ns" => seconds / count as f64 * 1e9,
        _ => (len * count * 8) as f64 / seconds / 1e9,
    };
    println!(
        "| {name} | {len} | {depth} | {:.1} | {:.1} | {unit} | {times:.2} | {noise:.2} |",
        figure(median(&|[first, _, again]| (first * again).sqrt())),
        figure(median(&|[_, ours, _]| *ours)),
    );
}

/// The seconds of `count` operations on the window.
fn measure(
    windows: &Windows,
    key: &WindowKey,
    verb: Verb,
    len: usize,
    blocks: &mut Vec<Block>,
    count: usize,
) -> Result<f64> {
    let begun = Instant::now();
    let offset = |at: usize| (at * len % LEN) as u64;
    match verb {
        Verb::FetchAdd => {
            for _ in 0..count {
                windows.fetch_add(key, 0, 1)?;
            }
        }
        Verb::Put if blocks.len() == 1 => {
            let bytes = vec![1; len];
            for _ in 0..count {
                windows.put(key, 0, &bytes)?;
            }
        }
        Verb::Put | Verb::Get => {
            let mut pending = std::collections::VecDeque::new();
            for at in 0..count {
                let block = match blocks.pop() {
                    Some(block) => block,
                    None => wait(&mut pending)?,
                };
                let begun = match verb {
                    Verb::Get => windows.start_get_block(key, offset(at), block, len),
                    _ => windows.start_put_block(key, offset(at), block, len),
                };
                pending.push_back(begun.map_err(|(error, _)| error)?);
            }
            while !pending.is_empty() {
                let block = wait(&mut pending)?;
                blocks.push(block);
            }
        }
    }
    Ok(begun.elapsed().as_secs_f64())
}

fn wait(pending: &mut std::collections::VecDeque<trespass::window::PendingBlock>) -> Result<Block> {
    let first = pending.pop_front().ok_or("nothing is under way")?;
    Ok(first.wait().map_err(|(error, _)| error)?)
}

/// A queue pair with memory for what it sends and what its peer reaches.
struct VerbsEnd {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    memory: RegisteredBuffer,
    path: LocalPath,
    own: Endpoint,
    peer: (u64, u32),
}

impl VerbsEnd {
    fn new(len: usize) -> Result<Self> {
        let context = DeviceList::new()?.first()?.open()?;
        let (domain, path) = (context.alloc_pd()?, LocalPath::choose(&context, 1, None)?);
        let cq = context.create_cq_builder().setup_cqe(DEPTH as u32 + 1).build_generic()?;
        let memory =
            domain.reg_buffer(Buffer::new(BufferKind::for_device(&context), len)?, Self::access())?;
        let mut builder = domain.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(DEPTH as u32);
        builder.setup_max_inline_data(64).setup_send_ops_flags(
            SendOperationFlags::Write | SendOperationFlags::Read | SendOperationFlags::AtomicFetchAndAdd,
        );
        let qp = builder.build_generic()?;
        let own = Endpoint::new(&qp, &path, std::process::id());
        Ok(Self { qp, cq, memory, path, own, peer: (0, 0) })
    }

    fn access() -> AccessFlags {
        AccessFlags::LocalWrite
            | AccessFlags::RemoteWrite
            | AccessFlags::RemoteRead
            | AccessFlags::RemoteAtomic
    }

    fn describe(&self) -> Vec<u8> {
        let Endpoint { qp_number, packet_seq_num, lid, gid, mtu, ethernet } = &self.own;
        let mut bytes = Vec::new();
        bytes.extend(qp_number.to_le_bytes());
        bytes.extend(packet_seq_num.to_le_bytes());
        bytes.extend(u32::from(*lid).to_le_bytes());
        bytes.extend(mtu.to_le_bytes());
        bytes.extend(u32::from(*ethernet).to_le_bytes());
        bytes.extend(self.memory.rkey().to_le_bytes());
        bytes.extend((self.memory.as_ptr().addr() as u64).to_le_bytes());
        bytes.extend(gid.unwrap_or(Gid::ZERO).raw);
        bytes
    }

    fn connect(&mut self, peer: &[u8]) -> Result<()> {
        let word = |at: usize| peer[at..at + 4].try_into().map(u32::from_le_bytes);
        let gid = Gid { raw: peer[32..48].try_into()? };
        let remote = Endpoint {
            qp_number: word(0)?,
            packet_seq_num: word(4)?,
            lid: word(8)? as u16,
            mtu: word(12)?,
            ethernet: word(16)? != 0,
            gid: (gid != Gid::ZERO).then_some(gid),
        };
        self.peer = (u64::from_le_bytes(peer[24..32].try_into()?), word(20)?);
        let options = ConnectOptions {
            access_flags: Self::access(),
            max_read_atomic: DEPTH as u8,
            max_dest_read_atomic: DEPTH as u8,
            ..ConnectOptions::default()
        };
        connect(&mut self.qp, &self.path, &self.own, &remote, &options)?;
        Ok(())
    }

    /// The seconds of `count` operations, of which each has a completion.
    fn measure(&mut self, verb: Verb, len: usize, depth: usize, count: usize) -> Result<f64> {
        let (address, lkey) = (self.memory.as_ptr().addr() as u64, self.memory.lkey());
        let (remote, rkey) = self.peer;
        let bytes = vec![1; len.min(64)];
        let (mut posted, mut done) = (0, 0);
        let begun = Instant::now();
        while done < count {
            while posted < count && posted - done < depth {
                let local = address + (posted % depth * len) as u64;
                let remote = remote + (posted * len % LEN) as u64;
                let mut list = self.qp.start_post_send();
                let work = list.construct_wr(posted as u64, WorkRequestFlags::Signaled);
                match verb {
                    Verb::Put if depth == 1 => work.setup_write(rkey, remote).setup_inline_data(&bytes),
                    Verb::Put => {
                        let write = work.setup_write(rkey, remote);
                        // SAFETY: the range lies in the memory, which lives as long as the queue pair, and
                        // nobody writes to it.
                        unsafe { write.setup_sge(lkey, local, len as u32) };
                    }
                    Verb::Get => {
                        let read = work.setup_read(rkey, remote);
                        // SAFETY: the range lies in the memory, which lives as long as the queue pair, and
                        // nobody refers to its bytes.
                        unsafe { read.setup_sge(lkey, local, len as u32) };
                    }
                    Verb::FetchAdd => {
                        let add = work.setup_atomic_fetch_add(rkey, self.peer.0, 1);
                        // SAFETY: the range lies in the memory, which lives as long as the queue pair, and
                        // nobody refers to its bytes.
                        unsafe { add.setup_sge(lkey, local, 8) };
                    }
                }
                list.post()?;
                posted += 1;
            }
            let mut poller = self.cq.start_poll()?;
            while let Some(completion) = poller.next() {
                if completion.status() != WorkCompletionStatus::Success {
                    return Err(format!("a request failed: {}", completion.status()).into());
                }
                done += 1;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}
