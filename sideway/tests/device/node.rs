//! Test helpers: one side of a connection (`Node`), and two connected sides (`Pair`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io::IoSlice;
use std::time::{Duration, Instant};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    ModifyQueuePairError, PostRecvError, PostSendError, PostSendGuard, QueuePairAttribute, QueuePairType,
    ScatterGatherEntry, SendOperationFlags, WorkRequestFlags,
};

use crate::harness::TestDevice;
use crate::support::flavour::{Completion, CqFlavour, QpFlavour};

/// The maximum time until a completion arrives.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const SIGNALED: WorkRequestFlags = WorkRequestFlags::Signaled;

/// The options with which two nodes are made and connected.
#[derive(Clone, Debug)]
pub(crate) struct NodeOptions {
    pub(crate) qp_type: QueuePairType,
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    pub(crate) send_sge: u32,
    pub(crate) recv_sge: u32,
    pub(crate) inline: u32,
    pub(crate) cqe: u32,
    pub(crate) batch: u32,
    pub(crate) operations: Option<SendOperationFlags>,
    pub(crate) signal_all: bool,
    pub(crate) bytes: usize,
    pub(crate) region: AccessFlags,
    pub(crate) connect: ConnectOptions,
}

impl Default for NodeOptions {
    fn default() -> Self {
        let all = AccessFlags::LocalWrite
            | AccessFlags::RemoteWrite
            | AccessFlags::RemoteRead
            | AccessFlags::RemoteAtomic;
        Self {
            qp_type: QueuePairType::ReliableConnection,
            send_wr: 32,
            recv_wr: 32,
            // Some devices' extended pairs support neither more entries nor inline data.
            send_sge: 1,
            recv_sge: 4,
            inline: 0,
            cqe: 128,
            batch: 16,
            operations: None,
            signal_all: false,
            bytes: 1 << 16,
            region: all,
            connect: ConnectOptions { access_flags: all, ..ConnectOptions::default() },
        }
    }
}

impl NodeOptions {
    pub(crate) fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut options = Self::default();
        change(&mut options);
        options
    }
}

/// Memory that a device may write to at any time. No reference to its bytes is ever made.
pub(crate) struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: it owns the memory, which is accessed through raw pointers only.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        assert_ne!(bytes, 0);
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, layout }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn set(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        // SAFETY: the assertion keeps the range within the memory.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.layout.size());
        // SAFETY: the assertion keeps the range within the memory. The reads are volatile because a
        // device may have written.
        (0..len).map(|n| unsafe { self.start.add(offset + n).read_volatile() }).collect()
    }

    pub(crate) fn get_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// A byte pattern that depends on `seed`.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(seed)).collect()
}

/// An address in a node's memory, for use by the other node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteBuffer {
    pub(crate) rkey: u32,
    pub(crate) addr: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Send,
    SendImm(u32),
    Write(RemoteBuffer),
    WriteImm(RemoteBuffer, u32),
    Read(RemoteBuffer),
    CompareSwap(RemoteBuffer, u64, u64),
    FetchAdd(RemoteBuffer, u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    None,
    /// Offset and length.
    At(usize, usize),
    List(&'a [(usize, usize)]),
    Entry(ScatterGatherEntry),
    Inline(&'a [u8]),
    InlineList(&'a [&'a [u8]]),
}

/// A work request to send.
pub(crate) type Request<'a> = (u64, WorkRequestFlags, Op, Data<'a>);

/// A queue pair with its queues and its memory. The fields are dropped in this order: the pair
/// first, the memory last.
pub(crate) struct Node<Q, C> {
    pub(crate) qp: Q,
    pub(crate) send_cq: C,
    pub(crate) recv_cq: C,
    pub(crate) mr: MemoryRegion,
    pub(crate) pd: ProtectionDomain,
    pub(crate) context: DeviceContext,
    pub(crate) path: LocalPath,
    pub(crate) memory: Memory,
}

impl<Q: QpFlavour, C: CqFlavour> Node<Q, C> {
    pub(crate) fn new(context: &DeviceContext, port: u8, options: &NodeOptions) -> Self {
        let pd = context.alloc_pd().unwrap();
        let mut builder = context.create_cq_builder();
        builder.setup_cqe(options.cqe).setup_poll_batch(options.batch);
        let (send_cq, recv_cq) = (C::make(&builder).unwrap(), C::make(&builder).unwrap());
        let mut builder = pd.create_qp_builder();
        builder
            .setup_qp_type(options.qp_type)
            .setup_send_cq(&send_cq)
            .setup_recv_cq(&recv_cq)
            .setup_max_send_wr(options.send_wr)
            .setup_max_recv_wr(options.recv_wr)
            .setup_max_send_sge(options.send_sge)
            .setup_max_recv_sge(options.recv_sge)
            .setup_max_inline_data(options.inline)
            .setup_sq_sig_all(options.signal_all);
        if let Some(operations) = options.operations {
            builder.setup_send_ops_flags(operations);
        }
        let qp = Q::make(&builder).unwrap();
        let memory = Memory::new(options.bytes);
        // SAFETY: the memory lives as long as the region (both are fields), and no reference to it
        // is made.
        let mr = unsafe { pd.reg_mr(memory.start(), options.bytes, options.region).unwrap() };
        let path = LocalPath::choose(context, port, None).unwrap();
        Self { qp, send_cq, recv_cq, mr, pd, context: context.clone(), path, memory }
    }

    pub(crate) fn endpoint(&self, psn: u32) -> Endpoint {
        Endpoint::new(&self.qp, &self.path, psn)
    }

    /// The remote address and key of an offset in this node's memory.
    pub(crate) fn remote(&self, offset: usize) -> RemoteBuffer {
        RemoteBuffer { rkey: self.mr.rkey(), addr: self.mr.get_ptr() as u64 + offset as u64 }
    }

    pub(crate) fn entry(&self, offset: usize, len: usize) -> ScatterGatherEntry {
        ScatterGatherEntry::new(self.mr.lkey(), self.mr.get_ptr() as u64 + offset as u64, len as u32)
    }

    /// Modifies the pair through a shared reference.
    pub(crate) fn modify(&self, attr: &QueuePairAttribute) -> Result<(), ModifyQueuePairError> {
        // SAFETY: a test modifies and posts in one thread, and has no open list here.
        unsafe { self.qp.control().modify(attr) }
    }

    pub(crate) fn post(&mut self, requests: &[Request<'_>]) -> Result<(), PostSendError> {
        let entries = |list: &[(usize, usize)]| list.iter().map(|(at, len)| self.entry(*at, *len)).collect();
        let lists: Vec<Vec<ScatterGatherEntry>> = requests
            .iter()
            .map(|(_, _, _, data)| match *data {
                Data::List(list) => entries(list),
                Data::Entry(entry) => vec![entry],
                _ => Vec::new(),
            })
            .collect();
        let mut guard = self.qp.start_post_send();
        for ((wr_id, flags, op, data), list) in requests.iter().zip(&lists) {
            let handle = guard.construct_wr(*wr_id, *flags);
            macro_rules! entries {
                ($handle:expr) => {
                    match *data {
                        // SAFETY: the node's memory outlives its pair, and no reference to it is
                        // made.
                        Data::At(offset, len) => unsafe {
                            let addr = self.mr.get_ptr() as u64 + offset as u64;
                            $handle.setup_sge(self.mr.lkey(), addr, len as u32);
                        },
                        // SAFETY: the node's memory outlives its pair, and no reference to it is
                        // made.
                        Data::List(_) | Data::Entry(_) => unsafe { $handle.setup_sge_list(list) },
                        _ => {
                            let _no_buffer = $handle;
                        }
                    }
                };
            }
            let handle = match *op {
                Op::Send => handle.setup_send(),
                Op::SendImm(imm) => handle.setup_send_imm(imm),
                Op::Write(at) => handle.setup_write(at.rkey, at.addr),
                Op::WriteImm(at, imm) => handle.setup_write_imm(at.rkey, at.addr, imm),
                Op::Read(at) => {
                    entries!(handle.setup_read(at.rkey, at.addr));
                    continue;
                }
                Op::CompareSwap(at, old, new) => {
                    entries!(handle.setup_atomic_compare_swap(at.rkey, at.addr, old, new));
                    continue;
                }
                Op::FetchAdd(at, add) => {
                    entries!(handle.setup_atomic_fetch_add(at.rkey, at.addr, add));
                    continue;
                }
            };
            match *data {
                Data::Inline(bytes) => handle.setup_inline_data(bytes),
                Data::InlineList(pieces) => {
                    let pieces: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                    handle.setup_inline_data_list(&pieces);
                }
                _ => entries!(handle),
            }
        }
        guard.post()
    }

    /// Posts receives, each with its number and pieces of the memory.
    pub(crate) fn receive(&mut self, receives: &[(u64, &[(usize, usize)])]) -> Result<(), PostRecvError> {
        let lists: Vec<Vec<_>> = receives
            .iter()
            .map(|(_, list)| list.iter().map(|(at, len)| self.entry(*at, *len)).collect())
            .collect();
        let mut guard = self.qp.start_post_recv();
        for ((wr_id, _), list) in receives.iter().zip(&lists) {
            let handle = guard.construct_wr(*wr_id);
            match list.as_slice() {
                [] => {}
                // SAFETY: the node's memory outlives its pair, and no reference to it is made.
                list => unsafe { handle.setup_sge_list(list) },
            }
        }
        guard.post()
    }

    /// Waits for exactly `count` completions of this node's sends.
    pub(crate) fn sent(&mut self, count: usize) -> Vec<Completion> {
        wait(&mut self.send_cq, count)
    }

    /// Waits for exactly `count` completions of this node's receives.
    pub(crate) fn received(&mut self, count: usize) -> Vec<Completion> {
        wait(&mut self.recv_cq, count)
    }

    /// Posts one request and waits for its success.
    pub(crate) fn run(&mut self, op: Op, data: Data<'_>) -> Completion {
        self.post(&[(4711, SIGNALED, op, data)]).unwrap();
        let completion = self.sent(1)[0];
        assert_eq!((completion.wr_id, completion.status), (4711, WorkCompletionStatus::Success));
        completion
    }
}

/// Polls until `count` completions have come; fails if fewer or more come.
pub(crate) fn wait<C: CqFlavour>(cq: &mut C, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while found.len() < count {
        let before = found.len();
        cq.poll(&mut |wc| found.push(wc)).unwrap();
        assert!(
            found.len() > before || Instant::now() < deadline,
            "{count} completions expected, these came: {found:?}"
        );
        if found.len() == before {
            std::thread::yield_now();
        }
    }
    assert_eq!(found.len(), count, "{found:?}");
    found
}

/// Waits for the next completion, without checking for further ones.
pub(crate) fn next<C: CqFlavour>(cq: &mut C) -> Completion {
    let deadline = Instant::now() + PATIENCE;
    let mut found = None;
    while cq.poll_up_to(1, &mut |wc| found = Some(wc)).unwrap() == 0 {
        assert!(Instant::now() < deadline, "no completion comes");
        std::thread::yield_now();
    }
    found.unwrap()
}

/// Two connected nodes.
pub(crate) struct Pair<Q, C> {
    pub(crate) a: Node<Q, C>,
    pub(crate) b: Node<Q, C>,
}

impl<Q: QpFlavour, C: CqFlavour> Pair<Q, C> {
    pub(crate) fn new(test_device: &TestDevice) -> Self {
        Self::with(test_device, |_| {})
    }

    pub(crate) fn with(test_device: &TestDevice, change: impl FnOnce(&mut NodeOptions)) -> Self {
        let options = NodeOptions::with(change);
        let context = test_device.open();
        Self::connect(
            Node::new(&context, test_device.port, &options),
            Node::new(&context, test_device.port, &options),
            &options.connect,
        )
    }

    pub(crate) fn connect(mut a: Node<Q, C>, mut b: Node<Q, C>, options: &ConnectOptions) -> Self {
        let (ours, theirs) = (a.endpoint(0x123), b.endpoint(0xabcdef));
        connect(&mut a.qp, &a.path, &ours, &theirs, options).unwrap();
        connect(&mut b.qp, &b.path, &theirs, &ours, options).unwrap();
        Self { a, b }
    }
}

/// A connected pair, for tests that do not depend on the kinds of queues.
pub(crate) type AnyPair = Pair<
    sideway::ibverbs::queue_pair::GenericQueuePair,
    sideway::ibverbs::completion::GenericCompletionQueue,
>;

/// A completion queue, for tests that do not depend on its kind.
pub(crate) type AnyCq = sideway::ibverbs::completion::GenericCompletionQueue;
