//! Connected queue pairs and both sides' memory, and what is done with them.

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::completion::{BasicCompletionQueue, ExtendedCompletionQueue};
use sideway::ibverbs::queue_pair::{GenericQueuePair, GenericSendQueue, QueuePair, SendQueue};
use sideway::memory::RegisteredBuffer;

use super::Completions;
use super::completion::OfKind;
use super::post::{Inbox, Outbox, Receives, Tag};
use super::request::{
    CompareSwap, FetchAdd, Fetches, Inline, Outgoing, Place, Read, Registered, Request, Send, SendImm,
    SendImmTo, SendTo, Sends, Write, WriteImm,
};
use crate::buffers::{BufferLayout, Cycle, Flag};
use crate::error::Error;
use crate::plan::{Operation, TestPlan};

/// A queue pair of a channel.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) queue_pair: GenericQueuePair,
    /// Where the first message lies.
    pub(super) place: Place,
}

/// Where all queue pairs of a channel complete: what they send, and what they receive if they do.
#[derive(Debug)]
pub(super) struct Ends<C> {
    pub(super) sent: OfKind<C>,
    pub(super) received: Option<OfKind<C>>,
}

/// The same, of either flavour.
#[derive(Debug)]
pub(super) enum GenericEnds {
    Basic(Ends<BasicCompletionQueue>),
    Extended(Ends<ExtendedCompletionQueue>),
}

/// Connected queue pairs, their completions, and both sides' memory.
#[derive(Debug)]
pub(super) struct Channel {
    // Before the memory: see the head of `request`.
    pairs: Vec<Pair>,
    /// Where datagrams go: all to one port.
    address: Option<AddressHandle>,
    ends: GenericEnds,
    memory: RegisteredBuffer,
    layout: BufferLayout,
    operation: Operation,
    receives: Vec<Receives>,
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
    pub(super) outboxes: Vec<Outbox<'a, Q>>,
    pub(super) request: R,
    pub(super) completions: &'a mut C,
    /// The last byte of the first message that the peer writes here.
    pub(super) arrival: Flag<'a>,
}

/// What receives the peer's.
#[derive(Debug)]
pub(super) struct Receiver<'a, C> {
    pub(super) inboxes: Vec<Inbox<'a>>,
    pub(super) completions: &'a mut C,
}

/// What is done with a channel, whichever calls it posts and polls with, and wherever its messages come from.
///
/// All of that is asked once, before the loop that is measured: what it does for each message is compiled for that.
pub(super) trait Job {
    /// What comes of it.
    type Outcome;

    /// Does it.
    fn run<Q: SendQueue, C: Completions>(
        self,
        sender: Sender<'_, Q, C, impl Request>,
        receiver: Option<Receiver<'_, C>>,
    ) -> Result<Self::Outcome, Error>;
}

impl Channel {
    /// A channel for messages of no bytes yet; messages of up to `inline_size` are copied into the request.
    pub(super) fn new(
        pairs: Vec<Pair>,
        address: Option<AddressHandle>,
        ends: GenericEnds,
        memory: RegisteredBuffer,
        layout: BufferLayout,
        operation: Operation,
        inline_size: u32,
    ) -> Self {
        Self {
            pairs,
            address,
            ends,
            memory,
            layout,
            operation,
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
    pub(super) fn memory(&self) -> &RegisteredBuffer {
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
        Flag::new(self.memory.buffer(), offset)
    }

    /// Posts the first receives of a test that takes them. What is left of those before, where messages were lost or a test
    /// ended in time, is used first: all receives are alike then.
    pub(super) fn prepare_receives(&mut self, test: &TestPlan) -> Result<(), Error> {
        let (lkey, start) = (self.memory.lkey(), self.memory.as_ptr().addr() as u64);
        let (cycle, length) = receives(test, self.layout, self.size.into());
        let left: Vec<_> = self.receives.iter().map(|before| before.posted - before.taken).collect();
        self.receives.clear();
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            let left = left.get(index).copied().unwrap_or(0);
            self.receives.push(Receives {
                lkey,
                address: start + self.layout.receive_offset(index),
                length: length as u32,
                cycle,
                awaited: test.most_messages(),
                list: test.recv_post_list.into(),
                next_list: test.recv_post_list.into(),
                posted: left,
                taken: 0,
                tag: Tag::of_pair(index),
            });
            let receives = &mut self.receives[index];
            let first = u64::from(test.receive_depth()).saturating_sub(left);
            Inbox { queue: pair.queue_pair.split().1, receives }.post(first)?;
        }
        Ok(())
    }

    /// Does a job, with the calls that this channel posts and polls with.
    pub(super) fn run<J: Job>(&mut self, job: J) -> Result<J::Outcome, Error> {
        let Self { pairs, address, ends, memory, layout, operation, receives, swap, size, inline, .. } = self;
        let (mut basic, mut extended, mut inboxes) = (Vec::new(), Vec::new(), Vec::new());
        let mut receives = receives.iter_mut();
        for (index, Pair { queue_pair, place }) in pairs.iter_mut().enumerate() {
            let (place, tag) = (*place, Tag::of_pair(index));
            let (send, queue) = queue_pair.split();
            match send {
                GenericSendQueue::Basic(queue) => basic.push(Outbox { queue, place, tag }),
                GenericSendQueue::Extended(queue) => extended.push(Outbox { queue, place, tag }),
            }
            inboxes.extend(receives.next().map(|receives| Inbox { queue, receives }));
        }
        let arrival = Flag::new(memory.buffer(), layout.receive_offset(0) + u64::from(*size) - 1);
        let bytes = Bytes {
            operation: *operation,
            address: address.as_ref(),
            memory,
            swap: *swap,
            size: *size,
            inline: inline.as_deref_mut(),
        };
        // All pairs are of one flavour.
        match (ends, extended.is_empty()) {
            (GenericEnds::Basic(ends), true) => bytes.run(basic, inboxes, arrival, ends, job),
            (GenericEnds::Basic(ends), false) => bytes.run(extended, inboxes, arrival, ends, job),
            (GenericEnds::Extended(ends), true) => bytes.run(basic, inboxes, arrival, ends, job),
            (GenericEnds::Extended(ends), false) => bytes.run(extended, inboxes, arrival, ends, job),
        }
    }
}

/// How receives move through the memory, and how long they are: as the messages of this size, or of any where receives may
/// be left of those before.
pub(super) fn receives(test: &TestPlan, layout: BufferLayout, size: u64) -> (Cycle, u64) {
    let size =
        if test.connection.is_reliable() && test.duration.is_none() { size } else { test.sizes.largest() };
    let length = size + test.connection.header();
    (layout.cycle(length), length)
}

/// What a channel's messages are.
struct Bytes<'a> {
    operation: Operation,
    /// Where they go, if they are datagrams.
    address: Option<&'a AddressHandle>,
    memory: &'a RegisteredBuffer,
    swap: CompareSwap,
    size: u32,
    inline: Option<&'a mut [u8]>,
}

impl Bytes<'_> {
    fn run<'a, Q: SendQueue, C, J: Job>(
        self,
        outboxes: Vec<Outbox<'a, Q>>,
        inboxes: Vec<Inbox<'a>>,
        arrival: Flag<'a>,
        ends: &'a mut Ends<C>,
        job: J,
    ) -> Result<J::Outcome, Error>
    where
        OfKind<C>: Completions,
    {
        let Ends { sent, received } = ends;
        let receiver = received.as_mut().map(|completions| Receiver { inboxes, completions });
        let parts = Parts { outboxes, completions: sent, arrival, receiver, job };
        let (lkey, size) = (self.memory.lkey(), self.size);
        match (self.operation, self.address) {
            (Operation::Write, _) => self.send(Write, parts),
            (Operation::WriteImm, _) => self.send(WriteImm, parts),
            (Operation::Send, None) => self.send(Send, parts),
            (Operation::SendImm, None) => self.send(SendImm, parts),
            (Operation::Send, Some(address)) => self.send(SendTo(address), parts),
            (Operation::SendImm, Some(address)) => self.send(SendImmTo(address), parts),
            (Operation::Read, _) => parts.run(Fetches { verb: Read, lkey, size }),
            (Operation::FetchAdd, _) => parts.run(Fetches { verb: FetchAdd, lkey, size }),
            (Operation::CompareSwap, _) => parts.run(Fetches { verb: self.swap, lkey, size }),
            (Operation::Messages(_) | Operation::Tcp, _) => unreachable!("they have no queue pairs"),
        }
    }

    fn send<Q: SendQueue, C: Completions, J: Job>(
        self,
        verb: impl Outgoing,
        parts: Parts<'_, Q, C, J>,
    ) -> Result<J::Outcome, Error> {
        match self.inline {
            Some(bytes) => parts.run(Sends { verb, payload: Inline(bytes) }),
            None => {
                let last = Flag::new(self.memory.buffer(), u64::from(self.size) - 1);
                parts.run(Sends {
                    verb,
                    payload: Registered { lkey: self.memory.lkey(), size: self.size, last },
                })
            }
        }
    }
}

/// All that a job needs but the request.
struct Parts<'a, Q, C, J> {
    outboxes: Vec<Outbox<'a, Q>>,
    completions: &'a mut C,
    arrival: Flag<'a>,
    receiver: Option<Receiver<'a, C>>,
    job: J,
}

impl<Q: SendQueue, C: Completions, J: Job> Parts<'_, Q, C, J> {
    fn run(self, request: impl Request) -> Result<J::Outcome, Error> {
        let Self { outboxes, completions, arrival, receiver, job } = self;
        job.run(Sender { outboxes, request, completions, arrival }, receiver)
    }
}
