//! A queue pair with its completion queue and memory.

use std::sync::atomic::AtomicU8;

use anyhow::{Result, bail};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{ExtendedCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, SendOperationFlags, WorkRequestFlags,
};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

/// The size of each half of the memory: the first half is sent from, and the second receives.
pub(crate) const HALF: usize = 2 << 20;
/// The depth of the queues.
const DEPTH: u32 = 256;

pub(crate) struct TestNode {
    context: DeviceContext,
    pd: ProtectionDomain,
    path: LocalPath,
    pub(crate) cq: ExtendedCompletionQueue,
    pub(crate) qp: ExtendedQueuePair,
    pub(crate) memory: RegisteredBuffer,
    posted: u64,
}

impl TestNode {
    pub(crate) fn new(kind: BufferKind) -> Result<Self> {
        let context = DeviceList::new()?.first()?.open()?;
        let pd = context.alloc_pd()?;
        Self::make(context, pd, kind)
    }

    /// A second node on the same device and protection domain.
    pub(crate) fn of(node: &Self) -> Result<Self> {
        Self::make(node.context.clone(), node.pd.clone(), BufferKind::Private)
    }

    fn make(context: DeviceContext, pd: ProtectionDomain, kind: BufferKind) -> Result<Self> {
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let memory = pd.reg_buffer(Buffer::new(kind, 2 * HALF)?, access)?;
        // SAFETY: within the buffer, which nothing else uses yet. The write maps every page.
        unsafe { memory.as_ptr().write_bytes(0x5a, memory.len()) };
        let cq = context.create_cq_builder().setup_cqe(2 * DEPTH).build_ex()?;
        let mut builder = pd.create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(DEPTH).setup_max_recv_wr(DEPTH);
        builder.setup_max_inline_data(64);
        builder.setup_send_ops_flags(SendOperationFlags::Write | SendOperationFlags::Send);
        let (qp, path) = (builder.build_ex()?, LocalPath::choose(&context, 1, None)?);
        Ok(Self { context, pd, path, cq, qp, memory, posted: 0 })
    }

    /// An address in the memory.
    pub(crate) fn at(&self, offset: usize) -> u64 {
        (self.memory.as_ptr().addr() + offset) as u64
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new(&self.qp, &self.path, self.qp.qp_number())
    }

    pub(crate) fn connect(&mut self, there: &Endpoint) -> Result<()> {
        let here = self.endpoint();
        connect(&mut self.qp, &self.path, &here, there, &ConnectOptions::default())?;
        Ok(())
    }

    pub(crate) fn connect_both(&mut self, other: &mut Self) -> Result<()> {
        self.connect(&other.endpoint())?;
        other.connect(&self.endpoint())
    }

    /// Posts a write from the first half of the memory.
    #[inline]
    pub(crate) fn write(&mut self, rkey: u32, there: u64, bytes: u32, signaled: bool) -> Result<()> {
        let flags = if signaled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
        let (lkey, here) = (self.memory.lkey(), self.at(0));
        self.posted += 1;
        let mut list = self.qp.start_post_send();
        let request = list.construct_wr(self.posted, flags);
        // SAFETY: the memory lives as long as the node. Nothing writes to its first half while a
        // request is outstanding, and the callers keep the number of requests below the queue's
        // depth.
        unsafe { request.setup_write(rkey, there).setup_sge(lkey, here, bytes) };
        Ok(list.post()?)
    }

    /// Posts an inline write, or an inline send without a target.
    #[inline]
    pub(crate) fn post_inline(&mut self, to: Option<(u32, u64)>, data: &[u8]) -> Result<()> {
        self.posted += 1;
        let mut list = self.qp.start_post_send();
        let request = list.construct_wr(self.posted, WorkRequestFlags::Signaled);
        match to {
            Some((rkey, there)) => request.setup_write(rkey, there),
            None => request.setup_send(),
        }
        .setup_inline_data(data);
        Ok(list.post()?)
    }

    /// Posts a receive into the second half.
    pub(crate) fn receive(&mut self) -> Result<()> {
        let (lkey, here) = (self.memory.lkey(), self.at(HALF));
        let mut list = self.qp.start_post_recv();
        // SAFETY: the memory lives as long as the node, and nothing holds a reference to it.
        unsafe { list.construct_wr(0).setup_sge(lkey, here, 64) };
        Ok(list.post()?)
    }

    /// Waits for `count` completions.
    #[inline]
    pub(crate) fn complete(&mut self, count: u32) -> Result<()> {
        let mut seen = 0;
        while seen < count {
            let mut poller = self.cq.start_poll()?;
            while let Some(wc) = poller.next() {
                if wc.status() != WorkCompletionStatus::Success {
                    bail!("{wc:?}");
                }
                seen += 1;
                if seen == count {
                    break;
                }
            }
        }
        Ok(())
    }

    /// A byte of the memory that the peer writes.
    pub(crate) fn flag(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.memory.len());
        // SAFETY: within the memory, which lives as long as `self`. The peer writes the byte with
        // one store.
        unsafe { AtomicU8::from_ptr(self.memory.as_ptr().add(offset)) }
    }
}
