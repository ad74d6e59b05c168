//! The queues that many connections of one thread share: a completion queue with its channel, a
//! shared receive queue, and memory for messages.

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

/// The message in both directions: two numbers in this host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientMessage {
    /// The client's number, which the answer repeats.
    pub client: u64,
    /// In an answer, the number of messages that the server has answered.
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

/// The result of a request.
#[derive(Clone, Copy, Debug)]
pub enum MessageCompletion {
    /// This message was received.
    Received(ClientMessage),
    /// A message was sent.
    Sent,
    /// A message was not sent, because the connection is closed.
    Flushed,
}

/// A connection's queue pair, and the caller's data for it.
#[derive(Debug)]
pub struct ConnectedQp<T> {
    /// The queue pair.
    pub qp: GenericQueuePair,
    /// The number of outstanding sends.
    pub sending: u32,
    /// The caller's data.
    pub data: T,
}

/// The connections and their shared queues.
#[derive(Debug)]
pub struct SharedQueues<T> {
    /// By queue pair number, as in completions. Declared before the queues, so that it is dropped
    /// first.
    pub connections: QueuePairTable<ConnectedQp<T>>,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    srq: SharedReceiveQueue,
    pd: ProtectionDomain,
    pool: Pool,
}

impl<T> SharedQueues<T> {
    /// Creates queues for `most` connections at a time, each with one message in either direction.
    ///
    /// # Errors
    ///
    /// A device resource is exhausted.
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
        // Armed from the start, so that the first completion causes an event.
        queues.poll()?;
        Ok(queues)
    }

    /// The device's context.
    pub fn context(&self) -> &DeviceContext {
        self.pd.context()
    }

    /// Creates a queue pair for another connection.
    ///
    /// # Errors
    ///
    /// The device has no more queue pairs.
    pub fn create_qp(&self) -> Result<GenericQueuePair, Failure> {
        let mut builder = self.pd.create_qp_builder();
        builder.setup_send_cq(&self.cq).setup_recv_cq(&self.cq).setup_srq(&self.srq);
        Ok(builder.setup_max_send_wr(1).setup_max_recv_wr(0).build_generic()?)
    }

    /// Adds a connection, and returns the number of its queue pair.
    pub fn add(&mut self, qp: GenericQueuePair, data: T) -> u32 {
        let number = qp.qp_number();
        self.connections.insert(number, ConnectedQp { qp, sending: 0, data });
        number
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// The connection does not exist, or its queue is full.
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

    /// Takes the channel's event, if any, and all completions with their queue pair numbers.
    ///
    /// # Errors
    ///
    /// A request failed for another reason than the end of its connection.
    pub fn take_completions(&mut self) -> Result<Vec<(u32, MessageCompletion)>, Failure> {
        self.channel.try_next().map_err(Failure::work)?;
        self.poll()
    }

    /// Arms the queue and takes all its completions.
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
        self.pool.take().ok_or_else(|| Failure::work("no slice is free"))
    }

    fn receive(&mut self, slice: Slice) -> Result<(), Failure> {
        let mut list = self.pool.attach_recv(self.srq.start_post_recv())?;
        list.construct_wr(RECEIVE).setup_slice(slice);
        list.post().map_err(Failure::work)
    }
}

impl<T> AsFd for SharedQueues<T> {
    /// Readable if [`take_completions`](SharedQueues::take_completions) has something to take.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// The result of a completion. A received message comes with its slice, for the next receive.
fn completed(
    pool: &Pool,
    wc: &GenericWorkCompletion<'_>,
) -> Result<(MessageCompletion, Option<Slice>), Failure> {
    let returned = pool.reclaim(wc).ok_or_else(|| report::unknown(wc.wr_id()))?;
    match (wc.status(), returned.wr_id) {
        (WorkCompletionStatus::Success, RECEIVE) => {
            let bytes = wc.byte_len().unwrap_or(0);
            if bytes as usize != ClientMessage::BYTES {
                return Err(Failure::work(format_args!("received a message of {bytes} bytes")));
            }
            Ok((MessageCompletion::Received(ClientMessage::read(&returned.slice)?), Some(returned.slice)))
        }
        (WorkCompletionStatus::Success, _) => Ok((MessageCompletion::Sent, None)),
        // The peer disconnected or died, which the connection manager reports as well.
        (_, SEND) => Ok((MessageCompletion::Flushed, None)),
        _ => Err(report::failed(wc, None)),
    }
}

fn unknown(number: u32) -> Failure {
    Failure::work(format_args!("unknown queue pair {number:#08x}"))
}
