//! What many connections of one thread share: a completion queue and its channel, a receive queue, and memory for messages.

use std::os::fd::{AsFd, BorrowedFd};

use sideway::ibverbs::completion::{
    CompletionChannel, GenericCompletionQueue, GenericWorkCompletion, Notify, WorkCompletionStatus,
};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, QueuePairTable, WorkRequestFlags,
};
use sideway::ibverbs::srq::SharedReceiveQueue;
use sideway::memory::{Pool, Slice};

use crate::pingpong::{RECEIVE, SEND, report};
use crate::program::Failure;

/// What goes from one side to the other: two numbers, in this host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientMessage {
    /// The client's number, which the answer has as well.
    pub client: u64,
    /// Of an answer, how many messages the server has answered.
    pub count: u64,
}

impl ClientMessage {
    const BYTES: usize = 16;

    fn read(slice: &Slice) -> Result<Self, Failure> {
        Ok(Self { client: slice.read(0)?, count: slice.read(8)? })
    }

    fn write(self, slice: &mut Slice) -> Result<(), Failure> {
        slice.write(0, self.client)?;
        Ok(slice.write(8, self.count)?)
    }
}

/// What has become of a message.
#[derive(Clone, Copy, Debug)]
pub enum MessageCompletion {
    /// This one came in.
    Received(ClientMessage),
    /// One went out.
    Sent,
    /// One went nowhere, as the connection is gone.
    Flushed,
}

/// A connection's queue pair, and whatever else belongs to it.
#[derive(Debug)]
pub struct ConnectedQp<T> {
    /// The queue pair.
    pub qp: GenericQueuePair,
    /// Messages that are on their way out.
    pub sending: u32,
    /// The rest.
    pub data: T,
}

/// What the connections share, and the connections.
#[derive(Debug)]
pub struct SharedQueues<T> {
    /// By the number that completions have. They go before their queues.
    pub connections: QueuePairTable<ConnectedQp<T>>,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    srq: SharedReceiveQueue,
    pd: ProtectionDomain,
    pool: Pool,
}

impl<T> SharedQueues<T> {
    /// For so many connections at a time, of which each has a message on its way in and one on its way out.
    ///
    /// # Errors
    ///
    /// The device has no more of something.
    pub fn new(context: &DeviceContext, most: u32) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq =
            context.create_cq_builder().setup_cqe(2 * most).setup_comp_channel(&channel).build_generic()?;
        let srq = pd.create_srq_builder().setup_max_wr(most).build()?;
        let pool = pd.create_pool_builder().setup_slices(ClientMessage::BYTES, 2 * most as usize).build()?;
        let mut queues = Self { connections: QueuePairTable::new(), cq, channel, srq, pd, pool };
        for _ in 0..most {
            let slice = queues.take()?;
            queues.receive(slice)?;
        }
        // Armed from the beginning, so that the first completion makes an event.
        queues.poll()?;
        Ok(queues)
    }

    /// The device.
    pub fn context(&self) -> &DeviceContext {
        self.pd.context()
    }

    /// A queue pair for another connection.
    ///
    /// # Errors
    ///
    /// The device has no more of them.
    pub fn create_qp(&self) -> Result<GenericQueuePair, Failure> {
        let mut builder = self.pd.create_qp_builder();
        builder.setup_send_cq(&self.cq).setup_recv_cq(&self.cq).setup_srq(&self.srq);
        Ok(builder.setup_max_send_wr(1).setup_max_recv_wr(0).build_generic()?)
    }

    /// Adds a connection; the number of its queue pair.
    pub fn add(&mut self, qp: GenericQueuePair, data: T) -> u32 {
        let number = qp.qp_number();
        self.connections.insert(number, ConnectedQp { qp, sending: 0, data });
        number
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// There is no such connection, or its queue is full.
    pub fn send(&mut self, number: u32, message: ClientMessage) -> Result<(), Failure> {
        let mut slice = self.take()?;
        message.write(&mut slice)?;
        let connected = self.connections.get_mut(number).ok_or_else(|| unknown(number))?;
        let mut list = self.pool.attach(connected.qp.start_post_send())?;
        list.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
        list.post().map_err(Failure::work)?;
        connected.sending += 1;
        Ok(())
    }

    /// Takes the event that the channel has, if it has one; then what has completed, and of which queue pair.
    ///
    /// # Errors
    ///
    /// Something failed other than by a connection's end.
    pub fn take_completions(&mut self) -> Result<Vec<(u32, MessageCompletion)>, Failure> {
        self.channel.try_next().map_err(Failure::work)?;
        self.poll()
    }

    /// Arms the queue, and takes all that is in it.
    fn poll(&mut self) -> Result<Vec<(u32, MessageCompletion)>, Failure> {
        let mut done = Vec::new();
        let mut slices = Vec::new();
        let mut poller = self.cq.arm(Notify::Any).map_err(Failure::work)?;
        while let Some(wc) = poller.next() {
            let (completion, slice) = completed(&self.pool, &wc)?;
            let number = wc.qp_num().unwrap_or(u32::MAX);
            slices.extend(slice);
            if let (Some(connected), MessageCompletion::Sent | MessageCompletion::Flushed) =
                (self.connections.get_mut(number), completion)
            {
                connected.sending -= 1;
            }
            done.push((number, completion));
        }
        poller.finish().map_err(Failure::work)?;
        for slice in slices {
            self.receive(slice)?;
        }
        Ok(done)
    }

    fn take(&self) -> Result<Slice, Failure> {
        self.pool.take().ok_or_else(|| Failure::work("no slice is free, though they were counted"))
    }

    fn receive(&mut self, slice: Slice) -> Result<(), Failure> {
        let mut list = self.pool.attach_recv(self.srq.start_post_recv())?;
        list.construct_wr(RECEIVE).setup_slice(slice);
        list.post().map_err(Failure::work)
    }
}

impl<T> AsFd for SharedQueues<T> {
    /// Readable when there is something to [take](Hub::wake).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A message that came in, with its slice to receive another into; or one that went out.
fn completed(
    pool: &Pool,
    wc: &GenericWorkCompletion<'_>,
) -> Result<(MessageCompletion, Option<Slice>), Failure> {
    let returned = pool.reclaim(wc).ok_or_else(|| report::unknown(wc.wr_id()))?;
    match (wc.status(), returned.wr_id) {
        (WorkCompletionStatus::Success, RECEIVE) => {
            let bytes = wc.byte_len().unwrap_or(0);
            if bytes as usize != ClientMessage::BYTES {
                return Err(Failure::work(format_args!("a message of {bytes} bytes came")));
            }
            Ok((MessageCompletion::Received(ClientMessage::read(&returned.slice)?), Some(returned.slice)))
        }
        (WorkCompletionStatus::Success, _) => Ok((MessageCompletion::Sent, None)),
        // The peer hung up, or died: the connection manager tells of it.
        (_, SEND) => Ok((MessageCompletion::Flushed, None)),
        _ => Err(report::failed(wc)),
    }
}

fn unknown(number: u32) -> Failure {
    Failure::work(format_args!("there is no queue pair {number:#08x}"))
}
