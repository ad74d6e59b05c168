//! Connected queue pairs and both sides' memory, and what is done with them.

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue};
use sideway::ibverbs::queue_pair::{
    BasicSendQueue, ExtendedSendQueue, GenericQueuePair, GenericSendQueue, QueuePair, ReceiveQueue,
};
use sideway::ibverbs::srq::SharedReceiveQueue;

use super::Completions;
use super::completion::TypedCompletionQueue;
use super::post::{ListQueue, ReceivePoster, ReceiveState, ReceiveTarget, SendPoster, Tag};
use super::request::{
    CompareSwap, Extent, FetchAdd, Fetches, Gathered, Incoming, Inline, MessageLocation, MessagePieces,
    Mixed, Outgoing, Read, Registered, Request, Scatters, Send, SendImm, SendImmTo, SendTo, Sends, ToQueue,
    Write, WriteImm,
};
use super::xrc::XrcReceivers;
use crate::buffers::{BufferLayout, Cycle, Flag};
use crate::error::Error;
use crate::memory::TestMemory;
use crate::plan::{Measure, Mix, TestOperation, TestPlan};

/// A queue pair of a channel.
#[derive(Debug)]
pub(super) struct ConnectedPair {
    pub(super) queue_pair: GenericQueuePair,
    /// Where the first message lies.
    pub(super) place: MessageLocation,
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
pub(super) struct Sender<'a, Q, C, R> {
    pub(super) outboxes: Vec<SendPoster<'a, Q>>,
    pub(super) request: R,
    pub(super) completions: &'a mut C,
    /// The last byte of the first message that the peer writes here.
    pub(super) arrival: Flag<'a>,
}

/// What receives the peer's.
#[derive(Debug)]
pub(super) struct Receiver<'a, C, R> {
    pub(super) inboxes: Vec<ReceivePoster<'a, R>>,
    pub(super) completions: &'a mut C,
}

/// What is done with a channel, whichever calls it posts and polls with, and wherever its messages come from.
///
/// All of that is asked once, before the loop that is measured: what it does for each message is compiled for that.
pub(super) trait MeasuredLoop {
    /// What comes of it.
    type Outcome;

    /// Does it.
    fn run<Q: ListQueue, C: Completions, R: Request>(
        self,
        sender: Sender<'_, Q, C, R>,
        receiver: Option<Receiver<'_, C, impl ReceiveTarget>>,
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
            match &mut self.srq {
                Some(queue) => ReceivePoster { queue, receives }.post(first)?,
                None => {
                    ReceivePoster { queue: self.pairs[index].queue_pair.split().1, receives }.post(first)?
                }
            }
        }
        Ok(())
    }

    /// Does a job, with the calls that this channel posts and polls with.
    pub(super) fn run<J: MeasuredLoop>(&mut self, job: J) -> Result<J::Outcome, Error> {
        let Self {
            pairs,
            targets,
            srq,
            address,
            ends,
            memory,
            layout,
            operation,
            entries,
            receives,
            swap,
            size,
            inline,
            ..
        } = self;
        let (mut basic, mut extended, mut own) = (Vec::new(), Vec::new(), Vec::new());
        let mut receives = receives.iter_mut();
        for (index, ConnectedPair { queue_pair, place }) in pairs.iter_mut().enumerate() {
            let (place, tag) = (*place, Tag::of_pair(index));
            let (send, queue) = queue_pair.split();
            match send {
                GenericSendQueue::Basic(queue) => basic.push(SendPoster { queue, place, tag }),
                GenericSendQueue::Extended(queue) => extended.push(SendPoster { queue, place, tag }),
            }
            if srq.is_none() {
                own.extend(receives.next().map(|receives| ReceivePoster { queue, receives }));
            }
        }
        let arrival = memory.flag(layout.receive_offset(0) + u64::from(*size) - 1);
        let bytes = Bytes {
            operation: *operation,
            entries: *entries,
            to: match (address, targets) {
                (Some(address), _) => To::Address(address),
                (None, Some(_)) => To::Queue,
                (None, None) => To::Peer,
            },
            memory,
            swap: *swap,
            size: *size,
            inline: inline.as_deref_mut(),
        };
        let senders = Senders { basic, extended };
        match srq {
            None => bytes.choose(senders, own, arrival, ends, job),
            Some(queue) => {
                let shared = receives.next().map(|receives| ReceivePoster { queue, receives });
                bytes.choose(senders, shared.into_iter().collect(), arrival, ends, job)
            }
        }
    }
}

/// What sends, of either flavour: all queue pairs of a channel are of one.
struct Senders<'a> {
    basic: Vec<SendPoster<'a, BasicSendQueue>>,
    extended: Vec<SendPoster<'a, ExtendedSendQueue>>,
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
struct Bytes<'a> {
    operation: TestOperation,
    entries: u32,
    to: To<'a>,
    memory: &'a TestMemory,
    swap: CompareSwap,
    size: u32,
    inline: Option<&'a mut [u8]>,
}

impl Bytes<'_> {
    fn choose<'a, R: ReceiveTarget, J: MeasuredLoop>(
        self,
        senders: Senders<'a>,
        inboxes: Vec<ReceivePoster<'a, R>>,
        arrival: Flag<'a>,
        ends: &'a mut GenericCompletionQueues,
        job: J,
    ) -> Result<J::Outcome, Error> {
        let Senders { basic, extended } = senders;
        match (ends, extended.is_empty()) {
            (GenericCompletionQueues::Basic(ends), true) => self.run(basic, inboxes, arrival, ends, job),
            (GenericCompletionQueues::Basic(ends), false) => self.run(extended, inboxes, arrival, ends, job),
            (GenericCompletionQueues::Extended(ends), true) => self.run(basic, inboxes, arrival, ends, job),
            (GenericCompletionQueues::Extended(ends), false) => {
                self.run(extended, inboxes, arrival, ends, job)
            }
        }
    }

    fn run<'a, Q: ListQueue, C, R: ReceiveTarget, J: MeasuredLoop>(
        self,
        outboxes: Vec<SendPoster<'a, Q>>,
        inboxes: Vec<ReceivePoster<'a, R>>,
        arrival: Flag<'a>,
        ends: &'a mut CompletionQueues<C>,
        job: J,
    ) -> Result<J::Outcome, Error>
    where
        TypedCompletionQueue<C>: Completions,
    {
        let CompletionQueues { sent, received } = ends;
        let receiver = received.as_mut().map(|completions| Receiver { inboxes, completions });
        let parts = Parts { outboxes, completions: sent, arrival, receiver, job };
        match (self.operation, self.to) {
            (TestOperation::Write, To::Queue) => self.send(ToQueue(Write), parts.sending()),
            (TestOperation::Write, _) => self.send(Write, parts.sending()),
            (TestOperation::WriteImm, To::Queue) => self.send(ToQueue(WriteImm), parts),
            (TestOperation::WriteImm, _) => self.send(WriteImm, parts),
            (TestOperation::Send, To::Peer) => self.send(Send, parts),
            (TestOperation::SendImm, To::Peer) => self.send(SendImm, parts),
            (TestOperation::Send, To::Queue) => self.send(ToQueue(Send), parts),
            (TestOperation::SendImm, To::Queue) => self.send(ToQueue(SendImm), parts),
            (TestOperation::Send, To::Address(address)) => self.send(SendTo(address), parts),
            (TestOperation::SendImm, To::Address(address)) => self.send(SendImmTo(address), parts),
            (TestOperation::Read, to) if self.entries > 1 => self.scatter(to, parts.sending()),
            (TestOperation::Read, to) => self.fetch(Read, to, parts.sending()),
            (TestOperation::Mix(mix), To::Queue) => {
                self.mix(mix, ToQueue(Read), ToQueue(Write), parts.sending())
            }
            (TestOperation::Mix(mix), _) => self.mix(mix, Read, Write, parts.sending()),
            (TestOperation::FetchAdd, to) => self.fetch(FetchAdd, to, parts.sending()),
            (TestOperation::CompareSwap, to) => self.fetch(self.swap, to, parts.sending()),
            (TestOperation::Messages(_) | TestOperation::Tcp, _) => unreachable!("they have no queue pairs"),
        }
    }

    fn fetch<Q: ListQueue, C: Completions, R: ReceiveTarget, J: MeasuredLoop>(
        &self,
        verb: impl Incoming,
        to: To<'_>,
        parts: Parts<'_, Q, C, R, J>,
    ) -> Result<J::Outcome, Error> {
        let extent = Extent::new(self.memory.lkey(), self.size);
        match to {
            To::Queue => parts.run(Fetches { verb: ToQueue(verb), extent }),
            _ => parts.run(Fetches { verb, extent }),
        }
    }

    fn mix<Q: ListQueue, C: Completions, R: ReceiveTarget, J: MeasuredLoop>(
        &self,
        mix: Mix,
        read: impl Incoming,
        write: impl Outgoing,
        parts: Parts<'_, Q, C, R, J>,
    ) -> Result<J::Outcome, Error> {
        let extent = Extent::new(self.memory.lkey(), self.size);
        let last = self.memory.flag(u64::from(self.size) - 1);
        if self.entries > 1 {
            let pieces = MessagePieces::new(self.memory.lkey(), self.size, self.entries);
            let write = Sends { verb: write, payload: Gathered { pieces, last } };
            return parts.run(Mixed::new(mix, Scatters { verb: read, pieces }, write));
        }
        let write = Sends { verb: write, payload: Registered { extent, last } };
        parts.run(Mixed::new(mix, Fetches { verb: read, extent }, write))
    }

    fn scatter<Q: ListQueue, C: Completions, R: ReceiveTarget, J: MeasuredLoop>(
        &self,
        to: To<'_>,
        parts: Parts<'_, Q, C, R, J>,
    ) -> Result<J::Outcome, Error> {
        let pieces = MessagePieces::new(self.memory.lkey(), self.size, self.entries);
        match to {
            To::Queue => parts.run(Scatters { verb: ToQueue(Read), pieces }),
            _ => parts.run(Scatters { verb: Read, pieces }),
        }
    }

    fn send<Q: ListQueue, C: Completions, R: ReceiveTarget, J: MeasuredLoop>(
        self,
        verb: impl Outgoing,
        parts: Parts<'_, Q, C, R, J>,
    ) -> Result<J::Outcome, Error> {
        match self.inline {
            Some(bytes) => parts.run(Sends { verb, payload: Inline(bytes) }),
            None if self.entries > 1 => {
                let pieces = MessagePieces::new(self.memory.lkey(), self.size, self.entries);
                let last = self.memory.flag(u64::from(self.size) - 1);
                parts.run(Sends { verb, payload: Gathered { pieces, last } })
            }
            None => {
                let last = self.memory.flag(u64::from(self.size) - 1);
                parts.run(Sends {
                    verb,
                    payload: Registered { extent: Extent::new(self.memory.lkey(), self.size), last },
                })
            }
        }
    }
}

/// All that a job needs but the request.
struct Parts<'a, Q, C, R, J> {
    outboxes: Vec<SendPoster<'a, Q>>,
    completions: &'a mut C,
    arrival: Flag<'a>,
    receiver: Option<Receiver<'a, C, R>>,
    job: J,
}

impl<'a, Q, C, R, J> Parts<'a, Q, C, R, J> {
    /// The same of an operation that takes no receives, so that whatever would receive is one to the compiler.
    fn sending(self) -> Parts<'a, Q, C, ReceiveQueue, J> {
        let Self { outboxes, completions, arrival, receiver: _, job } = self;
        Parts { outboxes, completions, arrival, receiver: None, job }
    }
}

impl<Q: ListQueue, C: Completions, R: ReceiveTarget, J: MeasuredLoop> Parts<'_, Q, C, R, J> {
    fn run(self, request: impl Request) -> Result<J::Outcome, Error> {
        let Self { outboxes, completions, arrival, receiver, job } = self;
        job.run(Sender { outboxes, request, completions, arrival }, receiver)
    }
}
