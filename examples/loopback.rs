//! Queue pairs that are connected to themselves, as a source of completions.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    CompletionChannel, CompletionQueueBuilder, GenericCompletionQueue, Notify, WorkCompletionStatus,
};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

use crate::devices::DeviceArg;
use crate::pingpong::report;
use crate::program::Failure;

/// The arguments of the event loop examples.
#[derive(Clone, Debug, clap::Args)]
pub struct LoopbackArgs {
    #[command(flatten)]
    device: DeviceArg,

    /// The number of queue pairs
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub queue_pairs: u32,

    /// The number of writes on each queue pair
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub writes: u32,
}

impl LoopbackArgs {
    /// Opens the named device, or the first one.
    ///
    /// # Errors
    ///
    /// No device has this name, or it cannot be opened.
    pub fn open_device(&self) -> Result<DeviceContext, Failure> {
        self.device.open()
    }
}

/// A queue pair that writes from one half of its memory to the other.
#[derive(Debug)]
pub struct LoopbackQp {
    /// The completion queue of its writes.
    pub cq: GenericCompletionQueue,
    // Declared before the memory, so that it is dropped first.
    qp: GenericQueuePair,
    memory: RegisteredBuffer,
}

impl LoopbackQp {
    const BYTES: u32 = 64;

    /// Creates a queue pair whose completion queue is built by `cq`.
    ///
    /// # Errors
    ///
    /// A device resource is exhausted, or the device has no address.
    pub fn new(
        pd: &ProtectionDomain,
        path: &LocalPath,
        cq: &CompletionQueueBuilder,
    ) -> Result<Self, Failure> {
        let cq = cq.build_generic()?;
        let buffer = Buffer::new(BufferKind::for_device(pd.context()), 2 * Self::BYTES as usize)?;
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let memory = pd.reg_buffer(buffer, access)?;
        let mut qp = pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
        let own = Endpoint::new(&qp, path, crate::pingpong::first_psn());
        let options = ConnectOptions { access_flags: access, ..ConnectOptions::default() };
        connect(&mut qp, path, &own, &own, &options)?;
        Ok(Self { cq, qp, memory })
    }

    /// Posts a write.
    ///
    /// # Errors
    ///
    /// The send queue is full, or the queue pair has failed.
    pub fn write(&mut self, wr_id: u64) -> Result<(), Failure> {
        let here = self.memory.as_ptr().addr() as u64;
        let mut guard = self.qp.start_post_send();
        let write = guard
            .construct_wr(wr_id, WorkRequestFlags::Signaled)
            .setup_write(self.memory.rkey(), here + u64::from(Self::BYTES));
        // SAFETY: the memory outlives the queue pair, and nothing reads it.
        unsafe { write.setup_sge(self.memory.lkey(), here, Self::BYTES) };
        guard.post().map_err(Failure::work)
    }
}

/// Queue pairs on one completion channel. Each performs a number of writes, one after the other.
#[derive(Debug)]
pub struct LoopbackQps {
    qps: Vec<LoopbackQp>,
    left: Vec<u32>,
}

impl LoopbackQps {
    /// Creates `workers` queue pairs. The context of a completion queue is the index of its queue
    /// pair.
    ///
    /// # Errors
    ///
    /// As [`LoopbackQp::new`].
    pub fn new(
        context: &DeviceContext,
        channel: &CompletionChannel,
        qps: u32,
        writes: u32,
    ) -> Result<Self, Failure> {
        let (pd, path) = (context.alloc_pd()?, LocalPath::choose(context, 1, None)?);
        let mut builder = context.create_cq_builder();
        builder.setup_cqe(4).setup_comp_channel(channel);
        let qps = (0..qps)
            .map(|index| LoopbackQp::new(&pd, &path, builder.setup_cq_context(index.into())))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { left: vec![writes; qps.len()], qps })
    }

    /// Arms every completion queue, and posts the first write of each queue pair.
    ///
    /// # Errors
    ///
    /// An operation fails.
    pub fn start(&mut self) -> Result<(), Failure> {
        for index in 0..self.qps.len() {
            self.qps[index].write(0)?;
            self.handle_completions(index as u64)?;
        }
        Ok(())
    }

    /// Handles an event of the completion queue with this context: arms it again, drains it, and
    /// posts the next write.
    ///
    /// # Errors
    ///
    /// A write has failed, or an operation fails.
    pub fn handle_completions(&mut self, cq_context: u64) -> Result<(), Failure> {
        let index = usize::try_from(cq_context)?;
        let (qp, left) = (&mut self.qps[index], &mut self.left[index]);
        let mut done = 0;
        // Arming returns a poller. Completions before the arming cause no event, so that they must
        // be polled now.
        let mut poller = qp.cq.arm(Notify::Any).map_err(Failure::work)?;
        while let Some(wc) = poller.next() {
            if wc.status() != WorkCompletionStatus::Success {
                return Err(report::failed(&wc, Some(qp.qp.control())));
            }
            done += 1;
        }
        poller.finish().map_err(Failure::work)?;
        *left = left.saturating_sub(done);
        if done > 0 && *left > 0 {
            // The queue is armed, so that the completion causes an event, however early it arrives.
            qp.write(0)?;
        }
        Ok(())
    }

    /// Whether all writes are complete.
    pub fn is_done(&self) -> bool {
        self.left.iter().all(|left| *left == 0)
    }
}
