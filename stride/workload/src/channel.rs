//! Connected queue pairs and both sides' memory, and what is done with them.

use std::cell::Cell;

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue};
use sideway::ibverbs::queue_pair::{GenericQueuePair, GenericSendQueue, QueuePair};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::Completions;
use super::completion::TypedCompletionQueue;
use super::post::{ReceivePoster, ReceiveState, ReceiveTarget, SendPoster, Tag, VerbPoster};
use super::request::{
    CompareSwap, Extent, FetchAdd, MessageLocation, MessagePieces, Payload, Read, ReadsAndWrites, Send,
    SendImm, SendImmTo, SendTo, ToQueue, Verb, Write, WriteImm,
};
use super::xrc::XrcReceivers;
use stride_base::buffers::{BufferLayout, Cycle, Flag};
use stride_base::error::Error;
use stride_base::memory::TestMemory;
use stride_base::plan::{Measure, TestOperation, TestPlan};

/// A queue pair of a channel.
#[derive(Debug)]
pub(super) struct ConnectedPair {
    pub(super) queue_pair: GenericQueuePair,
    /// The first message's.
    pub(super) location: MessageLocation,
}

/// The queue pairs of a side.
#[derive(Debug)]
pub(super) struct ConnectedPairs {
    pub(super) pairs: Vec<ConnectedPair>,
    /// What the peer's send to, if connections are extended.
    pub(super) targets: Option<XrcReceivers>,
    /// What they take their receives from, if they share it.
    pub(super) srq: Option<SharedReceiveQueue>,
    /// Where datagrams go: all to one port.
    pub(super) address: Option<AddressHandle>,
}

/// Where all queue pairs of a channel complete: what they send, and what they receive if they do.
#[derive(Debug)]
pub(super) struct CompletionQueues<C> {
    pub(super) sent: TypedCompletionQueue<C>,
    pub(super) received: Option<TypedCompletionQueue<C>>,
}

/// The same, of either flavour.
#[derive(Debug)]
pub(super) enum GenericCompletionQueues {
    Basic(CompletionQueues<BasicCompletionQueue>),
    Extended(CompletionQueues<ExtendedCompletionQueue>),
}

/// Connected queue pairs, their completions, and both sides' memory.
#[derive(Debug)]
pub(super) struct TestChannel {
    // Before the memory: see the head of `request`.
    pairs: Vec<ConnectedPair>,
    targets: Option<XrcReceivers>,
    /// What they take their receives from, if they share it.
    srq: Option<SharedReceiveQueue>,
    /// Where datagrams go: all to one port.
    address: Option<AddressHandle>,
    ends: GenericCompletionQueues,
    memory: TestMemory,
    layout: BufferLayout,
    operation: TestOperation,
    /// Of a request that sends or reads.
    entries: u32,
    receives: Vec<ReceiveState>,
    /// perftest's operands, unless their effect is looked at.
    swap: CompareSwap,
    size: u32,
    /// The message, if it is copied into the work request.
    inline: Option<Vec<u8>>,
    inline_size: u32,
}

/// What sends a test's messages.
#[derive(Debug)]
pub(super) struct Sender<'a, C> {
    /// One for each queue pair.
    pub(super) posters: Vec<Box<dyn SendPoster + 'a>>,
    pub(super) completions: &'a mut C,
    /// The last byte of the first message that the peer writes here.
    pub(super) arrival: Flag<'a>,
}

/// What receives the peer's.
#[derive(Debug)]
pub(super) struct Receiver<'a, C> {
    pub(super) posters: Vec<ReceivePoster<'a>>,
    pub(super) completions: &'a mut C,
}

/// A loop that moves messages over a channel.
///
/// It is compiled for each flavour of completion queues. The post function is chosen once, before the loop: [`SendPoster`].
pub(super) trait MeasuredLoop {
    /// What comes of it.
    type Outcome;

    /// Runs it.
    fn run<C: Completions>(
        self,
        sender: Sender<'_, C>,
        receiver: Option<Receiver<'_, C>>,
    ) -> Result<Self::Outcome, Error>;
}

impl TestChannel {
    /// A channel for messages of no bytes yet; messages of up to `inline_size` are copied into the request.
    pub(super) fn new(
        ConnectedPairs { pairs, targets, srq, address }: ConnectedPairs,
        ends: GenericCompletionQueues,
        memory: TestMemory,
        layout: BufferLayout,
        test: &TestPlan,
        inline_size: u32,
    ) -> Self {
        Self {
            pairs,
            targets,
            srq,
            address,
            ends,
            memory,
            layout,
            operation: test.operation,
            entries: test.entries(),
            receives: Vec::new(),
            swap: CompareSwap { compare: 0, swap: 0 },
            size: 0,
            inline: None,
            inline_size,
        }
    }

    /// Makes messages this long from now on. `byte` says each byte of those that are copied into the request.
    pub(super) fn resize(&mut self, size: u32, byte: impl FnMut(u64) -> u8) {
        self.size = size;
        let inline = size > 0 && size <= self.inline_size;
        self.inline = inline.then(|| (0..u64::from(size)).map(byte).collect());
    }

    /// The memory.
    pub(super) fn memory(&self) -> &TestMemory {
        &self.memory
    }

    /// Has a compare and swap expect and put these numbers.
    pub(super) fn set_swap(&mut self, compare: u64, swap: u64) {
        self.swap = CompareSwap { compare, swap };
    }

    /// How many messages of the last size were received.
    pub(super) fn taken(&self) -> u64 {
        self.receives.iter().map(|receives| receives.taken).sum()
    }

    /// The byte at an offset in this side's memory.
    pub(super) fn flag(&self, offset: u64) -> Flag<'_> {
        self.memory.flag(offset)
    }

    /// Posts the first receives of a test that takes them. What is left of those before, where messages were lost or a test
    /// ended in time, is used first: all receives are alike then.
    pub(super) fn prepare_receives(&mut self, test: &TestPlan) -> Result<(), Error> {
        let (lkey, start) = (self.memory.lkey(), self.memory.address());
        let (cycle, length) = receives(test, self.layout, self.size.into());
        let left: Vec<_> = self.receives.iter().map(|before| before.posted - before.taken).collect();
        self.receives.clear();
        for index in 0..test.receive_queues() as usize {
            let left = left.get(index).copied().unwrap_or(0);
            self.receives.push(ReceiveState {
                lkey,
                address: start + self.layout.receive_offset(index),
                length: length as u32,
                cycle,
                awaited: test.messages_received(),
                list: test.recv_post_list.into(),
                next_list: test.recv_post_list.into(),
                posted: left,
                taken: 0,
                tag: Tag::of_pair(index),
            });
            let receives = &mut self.receives[index];
            let first = u64::from(test.receive_depth()).saturating_sub(left);
            let queue = match &mut self.srq {
                Some(queue) => ReceiveTarget::Shared(queue),
                None => ReceiveTarget::Own(self.pairs[index].queue_pair.split().1),
            };
            ReceivePoster { queue, receives }.post(first)?;
        }
        Ok(())
    }

    /// Runs a loop, with the functions that this channel posts and polls with.
    pub(super) fn run<L: MeasuredLoop>(&mut self, measured: L) -> Result<L::Outcome, Error> {
        let Self { pairs, targets, srq, address, ends, memory, layout, receives, inline, .. } = self;
        let message = Message {
            operation: self.operation,
            to: match (address, targets) {
                (Some(address), _) => To::Address(address),
                (None, Some(_)) => To::Queue,
                (None, None) => To::Peer,
            },
            swap: self.swap,
            payload: match inline {
                Some(bytes) if !self.operation.fetches() => {
                    Payload::Inline(Cell::from_mut(&mut bytes[..]).as_slice_of_cells())
                }
                _ if self.entries > 1 => {
                    Payload::Pieces(MessagePieces::new(memory.lkey(), self.size, self.entries))
                }
                _ => Payload::Entry(Extent::new(memory.lkey(), self.size)),
            },
            last: memory.flag(u64::from(self.size) - 1),
        };
        let mut receives = receives.iter_mut();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for (index, ConnectedPair { queue_pair, location }) in pairs.iter_mut().enumerate() {
            let (send, queue) = queue_pair.split();
            senders.push(message.poster(send, *location, Tag::of_pair(index)));
            if srq.is_none() {
                let queue = ReceiveTarget::Own(queue);
                receivers.extend(receives.next().map(|receives| ReceivePoster { queue, receives }));
            }
        }
        if let Some(queue) = srq {
            let queue = ReceiveTarget::Shared(queue);
            receivers.extend(receives.next().map(|receives| ReceivePoster { queue, receives }));
        }
        let arrival = memory.flag(layout.receive_offset(0) + u64::from(self.size) - 1);
        match ends {
            GenericCompletionQueues::Basic(queues) => queues.run(senders, receivers, arrival, measured),
            GenericCompletionQueues::Extended(queues) => queues.run(senders, receivers, arrival, measured),
        }
    }
}

impl<C> CompletionQueues<C>
where
    TypedCompletionQueue<C>: Completions,
{
    fn run<'a, L: MeasuredLoop>(
        &'a mut self,
        senders: Vec<Box<dyn SendPoster + 'a>>,
        receivers: Vec<ReceivePoster<'a>>,
        arrival: Flag<'a>,
        measured: L,
    ) -> Result<L::Outcome, Error> {
        let Self { sent, received } = self;
        let receiver = received.as_mut().map(|completions| Receiver { posters: receivers, completions });
        measured.run(Sender { posters: senders, completions: sent, arrival }, receiver)
    }
}

/// How receives move through the memory, and how long they are: as the messages of this size, or of any where receives may
/// be left of those before. Messages of a latency test all come to one place, as perftest's do.
pub(super) fn receives(test: &TestPlan, layout: BufferLayout, size: u64) -> (Cycle, u64) {
    let size =
        if test.connection.is_reliable() && !test.ends_in_time() { size } else { test.sizes.largest() };
    let length = size + test.connection.header();
    let cycle = layout.cycle(length);
    (if matches!(test.measure, Measure::Latency(_)) { cycle.still() } else { cycle }, length)
}

/// Where messages go.
#[derive(Clone, Copy)]
enum To<'a> {
    /// To the connected peer.
    Peer,
    /// To this address, as datagrams.
    Address(&'a AddressHandle),
    /// To a shared receive queue of the peer's.
    Queue,
}

/// What a channel's messages are.
#[derive(Clone, Copy)]
struct Message<'a> {
    operation: TestOperation,
    to: To<'a>,
    swap: CompareSwap,
    payload: Payload<'a>,
    /// The last byte of the first message in registered memory.
    last: Flag<'a>,
}

impl<'a> Message<'a> {
    /// Chooses the post function of a queue pair.
    fn poster(
        self,
        queue: &'a mut GenericSendQueue,
        location: MessageLocation,
        tag: Tag,
    ) -> Box<dyn SendPoster + 'a> {
        let post = Post { queue, location, tag, payload: self.payload, last: self.last };
        match (self.operation, self.to) {
            (TestOperation::Send, To::Address(address)) => post.with(SendTo(address)),
            (TestOperation::SendImm, To::Address(address)) => post.with(SendImmTo(address)),
            (TestOperation::Write, to) => post.over(Write, to),
            (TestOperation::WriteImm, to) => post.over(WriteImm, to),
            (TestOperation::Send, to) => post.over(Send, to),
            (TestOperation::SendImm, to) => post.over(SendImm, to),
            (TestOperation::Read, to) => post.over(Read, to),
            (TestOperation::Mix(mix), to) => post.over(ReadsAndWrites::new(mix), to),
            (TestOperation::FetchAdd, to) => post.over(FetchAdd, to),
            (TestOperation::CompareSwap, to) => post.over(self.swap, to),
            (TestOperation::Messages(_) | TestOperation::Tcp, _) => unreachable!("they have no queue pairs"),
        }
    }
}

/// All of a post function but the verb.
struct Post<'a> {
    queue: &'a mut GenericSendQueue,
    location: MessageLocation,
    tag: Tag,
    payload: Payload<'a>,
    last: Flag<'a>,
}

impl<'a> Post<'a> {
    /// To the connected peer, or to its shared receive queue.
    fn over(self, verb: impl Verb + 'a, to: To<'_>) -> Box<dyn SendPoster + 'a> {
        match to {
            To::Queue => self.with(ToQueue(verb)),
            To::Peer | To::Address(_) => self.with(verb),
        }
    }

    fn with(self, verb: impl Verb + 'a) -> Box<dyn SendPoster + 'a> {
        let Self { queue, location, tag, payload, last } = self;
        match queue {
            GenericSendQueue::Basic(queue) => {
                Box::new(VerbPoster { queue, location, tag, verb, payload, last })
            }
            GenericSendQueue::Extended(queue) => {
                Box::new(VerbPoster { queue, location, tag, verb, payload, last })
            }
        }
    }
}
