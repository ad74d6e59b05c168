//! The verbs that a connection of trespass needs, without anything else: for each side a completion
//! channel, a completion queue, a queue pair, and its way to ready-to-send.

use std::time::Instant;

use anyhow::Result;
use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, SendOperationFlags};

use crate::connect::Batch;
use crate::cpu;

/// The sizes of a queue pair of trespass with default parameters: receive slots; a send for each slot
/// of the peer, for 16 READs and for two control frames; a header and seven pieces; a short message
/// with its header.
const RECEIVES: u32 = 56;
const SENDS: u32 = 56 + 16 + 2;
const ENTRIES: u32 = 1 + 7;
const INLINE: u32 = 272;
const READS: u8 = 16;

pub(crate) struct Verbs {
    context: DeviceContext,
    pd: ProtectionDomain,
    path: LocalPath,
}

/// One side. The queue pair goes before its completion queue.
struct Side {
    qp: GenericQueuePair,
    _cq: GenericCompletionQueue,
    _channel: CompletionChannel,
}

impl Verbs {
    pub(crate) fn open() -> Result<Self> {
        let context = DeviceList::new()?.first()?.open()?;
        let pd = context.alloc_pd()?;
        let path = LocalPath::choose(&context, 1, None)?;
        Ok(Self { context, pd, path })
    }

    /// Makes and destroys the objects of both sides of a connection, one connection after the other.
    pub(crate) fn one_by_one(&self, count: u32) -> Result<Batch> {
        let (before, start) = (cpu::time(), Instant::now());
        for _ in 0..count {
            drop(self.both_sides()?);
        }
        let each = |nanoseconds: f64| nanoseconds / f64::from(count);
        Ok(Batch { time: each(start.elapsed().as_nanos() as f64), cpu: each(cpu::time() - before) })
    }

    /// The CPU time in nanoseconds to make the objects of both sides of many connections, and then to
    /// destroy them.
    pub(crate) fn all_at_once(&self, count: u32) -> Result<f64> {
        let before = cpu::time();
        let all = (0..count).map(|_| self.both_sides()).collect::<Result<Vec<_>>>()?;
        drop(all);
        Ok(cpu::time() - before)
    }

    fn both_sides(&self) -> Result<[Side; 2]> {
        let (mut one, mut other) = (self.side()?, self.side()?);
        let (here, there) = (Endpoint::new(&one.qp, &self.path, 1), Endpoint::new(&other.qp, &self.path, 2));
        let options = ConnectOptions {
            max_read_atomic: READS,
            max_dest_read_atomic: READS,
            hop_limit: 64,
            ..ConnectOptions::default()
        };
        connect(&mut one.qp, &self.path, &here, &there, &options)?;
        connect(&mut other.qp, &self.path, &there, &here, &options)?;
        Ok([one, other])
    }

    fn side(&self) -> Result<Side> {
        use SendOperationFlags as Operations;
        let channel = self.context.create_comp_channel()?;
        let mut queue = self.context.create_cq_builder();
        let cq = queue.setup_cqe(SENDS + RECEIVES).setup_comp_channel(&channel).build_generic()?;
        let mut pair = self.pd.create_qp_builder();
        pair.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(SENDS).setup_max_recv_wr(RECEIVES);
        pair.setup_max_send_sge(ENTRIES).setup_max_recv_sge(1).setup_max_inline_data(INLINE);
        pair.setup_send_ops_flags(
            Operations::Send | Operations::Write | Operations::Read | Operations::SendWithImmediate,
        );
        let qp = pair.build_generic()?;
        Ok(Side { qp, _cq: cq, _channel: channel })
    }
}
