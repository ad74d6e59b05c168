//! A ping-pong over RC, with separate completion queues for sends and receives. Both ends are in
//! this process.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{
    CreateCompletionQueueWorkCompletionFlags, GenericCompletionQueue, WorkCompletionStatus,
};
use sideway::ibverbs::device::{Device, DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry,
    WorkRequestFlags,
};

const SIZE: usize = 64;
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
const PORT: u8 = 1;
const GID_INDEX: u8 = 0;
const PSN: u32 = 0x3f2d77;
const PATIENCE: Duration = Duration::from_secs(20);

/// One end of the connection. The queue pair is dropped before the memory.
struct End {
    qp: GenericQueuePair,
    send_cq: GenericCompletionQueue,
    recv_cq: GenericCompletionQueue,
    mr: MemoryRegion,
    buffer: Vec<u8>,
    gid: Gid,
}

impl End {
    fn new(device: Device<'_>) -> Result<Self, Box<dyn Error>> {
        let context = device.open()?;
        let mut cqs = context.create_cq_builder();
        cqs.setup_cqe(16).setup_wc_flags(CreateCompletionQueueWorkCompletionFlags::StandardFlags);
        let send_cq = GenericCompletionQueue::from(cqs.build_ex()?);
        let recv_cq = GenericCompletionQueue::from(cqs.build()?);
        let pd = context.alloc_pd()?;
        let mut buffer = vec![0; SIZE];
        let mr = unsafe { pd.reg_mr(buffer.as_mut_ptr(), SIZE, AccessFlags::LocalWrite)? };
        let mut qps = pd.create_qp_builder();
        qps.setup_send_cq(&send_cq).setup_recv_cq(&recv_cq);
        let mut qp = GenericQueuePair::from(qps.build_ex()?);
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(PORT)
            .setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite);
        qp.modify(&attr)?;
        let gid = context.query_gid(PORT, GID_INDEX.into())?;
        Ok(Self { qp, send_cq, recv_cq, mr, buffer, gid })
    }

    fn connect(&mut self, peer: &Self) -> Result<(), Box<dyn Error>> {
        let mut address = AddressHandleAttribute::new();
        address
            .setup_dest_lid(1)
            .setup_port(PORT)
            .setup_service_level(0)
            .setup_grh_src_gid_index(GID_INDEX)
            .setup_grh_dest_gid(&peer.gid)
            .setup_grh_hop_limit(64);
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(Mtu::Mtu1024)
            .setup_dest_qp_num(peer.qp.qp_number())
            .setup_rq_psn(PSN)
            .setup_max_dest_read_atomic(0)
            .setup_min_rnr_timer(12)
            .setup_address_vector(&address);
        self.qp.modify(&attr)?;
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(PSN)
            .setup_timeout(14)
            .setup_retry_cnt(7)
            .setup_rnr_retry(7)
            .setup_max_read_atomic(0);
        self.qp.modify(&attr)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let mut guard = self.qp.start_post_recv();
        let receive = guard.construct_wr(RECEIVE);
        unsafe { receive.setup_sge(self.mr.lkey(), self.mr.get_ptr() as _, SIZE as u32) };
        Ok(guard.post()?)
    }

    fn send(&mut self, round: u8) -> Result<(), Box<dyn Error>> {
        self.buffer.fill(round);
        let mut guard = self.qp.start_post_send();
        let send = guard.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send();
        unsafe { send.setup_sge(self.mr.lkey(), self.mr.get_ptr() as _, SIZE as u32) };
        Ok(guard.post()?)
    }

    /// Waits for the completion of a request, in whichever queue it is.
    fn wait_for(&mut self, wr_id: u64) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            for cq in [&mut self.send_cq, &mut self.recv_cq] {
                let Ok(mut poller) = cq.start_poll() else { continue };
                while let Some(wc) = poller.next() {
                    if wc.status() != WorkCompletionStatus::Success {
                        return Err(format!("{}: {:?}", wc.wr_id(), wc.status()).into());
                    }
                    if wc.wr_id() == wr_id {
                        return Ok(());
                    }
                }
            }
        }
        Err(format!("request {wr_id} has not completed").into())
    }
}

pub(crate) fn run(rounds: u8) -> Result<String, Box<dyn Error>> {
    let list = DeviceList::new()?;
    let device = list.get(0).ok_or("there is no device")?;
    let (mut one, mut two) = (End::new(device)?, End::new(device)?);
    one.connect(&two)?;
    two.connect(&one)?;
    for round in 1..=rounds {
        two.receive()?;
        one.send(round)?;
        one.wait_for(SEND)?;
        two.wait_for(RECEIVE)?;
        if two.buffer.iter().any(|byte| *byte != round) {
            return Err(format!("round {round} arrived changed").into());
        }
        std::mem::swap(&mut one, &mut two);
    }
    Ok(format!("{rounds} messages of {SIZE} bytes over {}", device.name()))
}
