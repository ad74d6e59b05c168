//! A test channel: connected queue pairs, their completion queues, and both sides' memory.

use std::borrow::Cow;

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue};
use sideway::ibverbs::queue_pair::{GenericQueuePair, GenericSendQueue, QueuePair};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::Completions;
use super::completion::TypedCompletionQueue;
use super::post::{ReceivePoster, ReceiveState, ReceiveTarget, SendPoster, Tag, VerbPoster};
use super::request::{
    AnyVerb, CompareSwap, Extent, FetchAdd, Inline, MessageLocation, MessagePieces, Payload, Read,
    ReadsAndWrites, Send, SendImm, SendImmTo, SendTo, ToQueue, Verb, Write, WriteImm,
};
use super::xrc::XrcReceivers;
use stride_base::buffers::{BufferLayout, Cycle, Flag};
use stride_base::error::{Error, ExplainedCompletionError};
use stride_base::memory::TestMemory;
use stride_base::plan::{Measure, TestOperation, TestPlan};

/// A connected queue pair.
#[derive(Debug)]
pub(super) struct TestPair {
    pub(super) queue_pair: GenericQueuePair,
    /// The first message's location.
    pub(super) location: MessageLocation,
}

/// The queue pairs of a side.
#[derive(Debug)]
pub(super) struct ConnectedSide {
    pub(super) pairs: Vec<TestPair>,
    /// The targets of the peer's requests, if connections are extended.
    pub(super) targets: Option<XrcReceivers>,
    /// The shared receive queue, if the queue pairs use one.
    pub(super) srq: Option<SharedReceiveQueue>,
    /// The address of datagrams, which all go to one port.
    pub(super) address: Option<AddressHandle>,
}

/// The completion queues of all queue pairs: for sends, and for receives if the test has any.
#[derive(Debug)]
pub(super) struct CompletionQueues<C> {
    pub(super) sent: TypedCompletionQueue<C>,
    pub(super) received: Option<TypedCompletionQueue<C>>,
}

/// Completion queues of either flavour.
#[derive(Debug)]
pub(super) enum GenericCompletionQueues {
    Basic(CompletionQueues<BasicCompletionQueue>),
    Extended(CompletionQueues<ExtendedCompletionQueue>),
}

/// Connected queue pairs, their completion queues, and both sides' memory.
#[derive(Debug)]
pub(super) struct TestChannel {
    // Fields drop in order: queue pairs go before their memory (head of `request`).
    pairs: Vec<TestPair>,
    targets: Option<XrcReceivers>,
    /// The shared receive queue, if the queue pairs use one.
    srq: Option<SharedReceiveQueue>,
    /// The address of datagrams, which all go to one port.
    address: Option<AddressHandle>,
    ends: GenericCompletionQueues,
    memory: TestMemory,
    layout: BufferLayout,
    operation: TestOperation,
    /// Scatter-gather entries of a request.
    entries: u32,
    receives: Vec<ReceiveState>,
    /// perftest's operands, unless the test validates the effect.
    swap: CompareSwap,
    size: u32,
    /// The message, if it is sent inline.
    inline: Option<Vec<u8>>,
    inline_size: u32,
}

/// The sending part of a channel.
#[derive(Debug)]
pub(super) struct Sender<'a, C> {
    /// One for each queue pair.
    pub(super) posters: Vec<Box<dyn SendPoster + 'a>>,
    pub(super) completions: &'a mut C,
    /// The last byte of the first message that the peer writes here.
    pub(super) arrival: Flag<'a>,
}

/// The receiving part of a channel.
#[derive(Debug)]
pub(super) struct Receiver<'a, C> {
    pub(super) posters: Vec<ReceivePoster<'a>>,
    pub(super) completions: &'a mut C,
}

/// A loop that moves messages over a channel.
///
/// It is compiled for each flavour of completion queues. The post function is chosen once, before
/// the loop: [`SendPoster`].
pub(super) trait MeasuredLoop {
    /// The loop's result.
    type Outcome;

    fn run<C: Completions>(
        self,
        sender: Sender<'_, C>,
        receiver: Option<Receiver<'_, C>>,
    ) -> Result<Self::Outcome, Error>;
}

impl TestChannel {
    /// Makes a channel for empty messages; messages of up to `inline_size` bytes will be sent
    /// inline.
    pub(super) fn new(
        ConnectedSide { pairs, targets, srq, address }: ConnectedSide,
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

    /// Sets the message size. `byte` gives each byte of messages that are sent inline.
    pub(super) fn resize(&mut self, size: u32, byte: impl FnMut(u64) -> u8) {
        self.size = size;
        let inline = size > 0 && size <= self.inline_size;
        self.inline = inline.then(|| (0..u64::from(size)).map(byte).collect());
    }

    /// The registered memory.
    pub(super) fn memory(&self) -> &TestMemory {
        &self.memory
    }

    /// Sets the operands of compare and swap.
    pub(super) fn set_swap(&mut self, compare: u64, swap: u64) {
        self.swap = CompareSwap { compare, swap };
    }

    /// The number of messages received of the current size.
    pub(super) fn taken(&self) -> u64 {
        self.receives.iter().map(|receives| receives.taken).sum()
    }

    /// The byte at an offset in this side's memory.
    pub(super) fn flag(&self, offset: u64) -> Flag<'_> {
        self.memory.flag(offset)
    }

    /// Posts the first receives of a test that consumes them. Receives that remain after lost
    /// messages or a timed test are used first, because all receives are alike then.
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

    /// Runs a loop with the post and poll functions of this channel.
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
            payload: match inline.as_mut().and_then(|bytes| Inline::new(bytes)) {
                Some(inline) if !self.operation.fetches() => AnyPayload::Inline(inline),
                _ if self.entries > 1 => {
                    AnyPayload::Pieces(MessagePieces::new(memory.lkey(), self.size, self.entries))
                }
                _ => AnyPayload::Extent(Extent::new(memory.lkey(), self.size)),
            },
            last: memory.flag(u64::from(self.size) - 1),
        };
        let mut receives = receives.iter_mut();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for (index, TestPair { queue_pair, location }) in pairs.iter_mut().enumerate() {
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
        let ended = match ends {
            GenericCompletionQueues::Basic(queues) => queues.run(senders, receivers, arrival, measured),
            GenericCompletionQueues::Extended(queues) => queues.run(senders, receivers, arrival, measured),
        };
        ended.map_err(|error| explained(error, pairs))
    }
}

/// Adds the cause that the failed message's queue pair knows.
#[cold]
fn explained(error: Error, pairs: &[TestPair]) -> Error {
    match error {
        Error::Completion(error) => {
            let hint = pairs.get(error.pair).and_then(|pair| pair.queue_pair.control().hint(error.status));
            match hint.map(Cow::into_owned) {
                Some(hint) => Error::Explained(Box::new(ExplainedCompletionError { error, hint })),
                None => Error::Completion(error),
            }
        }
        other => other,
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

/// The path of receives through the memory, and their length. The length covers this size only, or
/// every size if receives may remain from earlier ones. Messages of a latency test all arrive at
/// one location, like perftest's.
pub(super) fn receives(test: &TestPlan, layout: BufferLayout, size: u64) -> (Cycle, u64) {
    let size =
        if test.connection.is_reliable() && !test.ends_in_time() { size } else { test.sizes.largest() };
    let length = size + test.connection.header();
    let cycle = layout.cycle(length);
    (if matches!(test.measure, Measure::Latency(_)) { cycle.still() } else { cycle }, length)
}

/// The destination of messages.
#[derive(Clone, Copy)]
enum To<'a> {
    /// The connected peer.
    Peer,
    /// This address, for datagrams.
    Address(&'a AddressHandle),
    /// A shared receive queue of the peer.
    Queue,
}

/// The content and destination of a channel's messages.
#[derive(Clone, Copy)]
struct Message<'a> {
    operation: TestOperation,
    to: To<'a>,
    swap: CompareSwap,
    payload: AnyPayload<'a>,
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
        let post = Post { queue, location, tag, last: self.last };
        let verb = self.verb();
        match (self.to, self.payload) {
            (To::Queue, AnyPayload::Extent(extent)) => post.with(ToQueue(verb), extent),
            (To::Queue, AnyPayload::Pieces(pieces)) => post.with(ToQueue(verb), pieces),
            (To::Queue, AnyPayload::Inline(inline)) => post.with(ToQueue(verb), inline),
            (_, AnyPayload::Pieces(pieces)) => post.with(verb, pieces),
            (_, AnyPayload::Inline(inline)) => match verb {
                AnyVerb::Write(verb) => post.with(verb, inline),
                AnyVerb::WriteImm(verb) => post.with(verb, inline),
                AnyVerb::Send(verb) => post.with(verb, inline),
                AnyVerb::SendImm(verb) => post.with(verb, inline),
                AnyVerb::SendTo(verb) => post.with(verb, inline),
                AnyVerb::SendImmTo(verb) => post.with(verb, inline),
                AnyVerb::Read(_)
                | AnyVerb::FetchAdd(_)
                | AnyVerb::CompareSwap(_)
                | AnyVerb::ReadsAndWrites(_) => post.with(verb, inline),
            },
            (_, AnyPayload::Extent(extent)) => match verb {
                AnyVerb::Write(verb) => post.with(verb, extent),
                AnyVerb::WriteImm(verb) => post.with(verb, extent),
                AnyVerb::Send(verb) => post.with(verb, extent),
                AnyVerb::SendImm(verb) => post.with(verb, extent),
                AnyVerb::SendTo(verb) => post.with(verb, extent),
                AnyVerb::SendImmTo(verb) => post.with(verb, extent),
                AnyVerb::Read(verb) => post.with(verb, extent),
                AnyVerb::FetchAdd(verb) => post.with(verb, extent),
                AnyVerb::CompareSwap(verb) => post.with(verb, extent),
                AnyVerb::ReadsAndWrites(verb) => post.with(verb, extent),
            },
        }
    }

    fn verb(self) -> AnyVerb<'a> {
        match (self.operation, self.to) {
            (TestOperation::Send, To::Address(address)) => AnyVerb::SendTo(SendTo(address)),
            (TestOperation::SendImm, To::Address(address)) => AnyVerb::SendImmTo(SendImmTo(address)),
            (TestOperation::Write, _) => AnyVerb::Write(Write),
            (TestOperation::WriteImm, _) => AnyVerb::WriteImm(WriteImm),
            (TestOperation::Send, _) => AnyVerb::Send(Send),
            (TestOperation::SendImm, _) => AnyVerb::SendImm(SendImm),
            (TestOperation::Read, _) => AnyVerb::Read(Read),
            (TestOperation::Mix(mix), _) => AnyVerb::ReadsAndWrites(ReadsAndWrites::new(mix)),
            (TestOperation::FetchAdd, _) => AnyVerb::FetchAdd(FetchAdd),
            (TestOperation::CompareSwap, _) => AnyVerb::CompareSwap(self.swap),
            (TestOperation::Messages(_) | TestOperation::Tcp, _) => unreachable!("they have no queue pairs"),
        }
    }
}

/// The payload of a channel's messages.
#[derive(Clone, Copy)]
enum AnyPayload<'a> {
    Extent(Extent),
    Pieces(MessagePieces),
    Inline(Inline<'a>),
}

/// The parameters of a post function, without the verb and the payload.
struct Post<'a> {
    queue: &'a mut GenericSendQueue,
    location: MessageLocation,
    tag: Tag,
    last: Flag<'a>,
}

impl<'a> Post<'a> {
    fn with(self, verb: impl Verb + 'a, payload: impl Payload + 'a) -> Box<dyn SendPoster + 'a> {
        let Self { queue, location, tag, last } = self;
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
