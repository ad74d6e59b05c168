//! The listening side.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, EventChannel, EventType, Identifier, PortSpace};
use xtask_bench::process::{HOST, end_with_parent, print_line};

/// The verbs objects that the queue pairs of a process share.
pub(crate) struct SharedVerbs {
    pd: ProtectionDomain,
    cq: GenericCompletionQueue,
}

impl SharedVerbs {
    pub(crate) fn new(id: &Identifier) -> Result<Self> {
        let context = id.get_device_context()?;
        Ok(Self { pd: context.alloc_pd()?, cq: context.create_cq_builder().setup_cqe(1).build_generic()? })
    }

    pub(crate) fn create_qp(&self) -> Result<GenericQueuePair> {
        let mut builder = self.pd.create_qp_builder();
        builder.setup_send_cq(&self.cq).setup_recv_cq(&self.cq).setup_max_send_wr(1).setup_max_recv_wr(1);
        Ok(builder.build_generic()?)
    }
}

/// Accepts connections until standard input ends. Prints its port, then `batch` after each `batch`
/// established connections, and `ready` after as many have been closed.
pub(crate) fn serve(batch: u32) -> Result<()> {
    let channel = EventChannel::new()?;
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(SocketAddr::from((HOST, 0)))?;
    listener.listen(1024)?;
    print_line(&listener.local_port().context("a bound identifier has a port")?.to_string())?;
    end_with_parent(std::process::exit);
    let mut verbs = None;
    let mut connections: HashMap<u32, (GenericQueuePair, Identifier)> = HashMap::new();
    let (mut established, mut gone) = (0, 0);
    loop {
        let event = channel.get_cm_event()?;
        match event.event_type() {
            EventType::ConnectRequest => {
                let id = event.into_cm_id();
                if verbs.is_none() {
                    verbs = Some(SharedVerbs::new(&id)?);
                }
                let mut qp = verbs.as_ref().context("the verbs objects were just created")?.create_qp()?;
                id.modify_qp(&mut qp, QueuePairState::Init)?;
                id.modify_qp(&mut qp, QueuePairState::ReadyToReceive)?;
                id.modify_qp(&mut qp, QueuePairState::ReadyToSend)?;
                id.accept(ConnectionParameter::new().setup_queue_pair(qp.control()))?;
                id.setup_user_data(qp.qp_number().into());
                connections.insert(qp.qp_number(), (qp, id));
            }
            EventType::Established => {
                established += 1;
                if established == batch {
                    established = 0;
                    print_line("batch")?;
                }
            }
            EventType::Disconnected => {
                let id = event.into_cm_id();
                id.disconnect()?;
                drop(connections.remove(&u32::try_from(id.user_data())?));
                gone += 1;
                if gone == batch {
                    gone = 0;
                    print_line("ready")?;
                }
            }
            _ => event.error().map_or(Ok(()), Err)?,
        }
    }
}
