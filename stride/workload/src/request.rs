//! Verbs of work requests, and their payloads.
//!
//! # Safety
//!
//! The memory that a request names belongs to the [`TestChannel`](super::Channel), which drops its
//! queue pairs first, and with them every outstanding request. No code writes to a message that is
//! being sent: bandwidth tests do not write at all, and latency tests write the last byte of a
//! message only after they have polled the completion of the one before. No Rust reference to the
//! memory exists (`buffers`). In a mix, reads overwrite the bytes that its writes send, but only
//! the device accesses those. An extended queue has an entry for each request, because no more are
//! outstanding than its capacity ([`Chain`](super::Chain)). If a library would copy to memory that
//! the processor cannot reach, the test is refused (`memory::scatter`).

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt::Debug;
use std::mem::MaybeUninit;

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::queue_pair::{
    Borrows, LocalBufferHandle, PostSendGuard, ReadBufferHandle, ScatterGatherEntry, WorkRequestHandle,
};

use stride_base::buffers::Flag;
use stride_base::plan::{MIX_PERIOD, MOST_ENTRIES, Mix};

/// The location of a message on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageLocation {
    /// Address in this side's memory.
    pub(super) local: u64,
    /// Address in the peer's memory.
    pub(super) remote: u64,
    /// The remote key of the peer's memory.
    pub(super) rkey: u32,
    /// The peer's queue pair, which datagrams name, or its shared receive queue, which requests of
    /// an extended connection name.
    pub(super) queue: u32,
}

/// Properties of a verb's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbTraits {
    /// Messages at the same location are identical, so a list of them can be posted again.
    pub(super) repeats: bool,
    /// The peer notices a message by its last byte alone.
    pub(super) is_marked: bool,
    /// Each message consumes one of the peer's receives.
    pub(super) takes_receives: bool,
}

/// An operation of a queue pair. Most are types, so that a post function compiles to straight code.
pub(super) trait Verb: Copy + Debug {
    /// Whether a latency loop of its own is compiled for it.
    const HAS_LOOP: bool = false;

    fn traits(&self) -> VerbTraits;

    /// Builds the request of a message with this number at this location.
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        payload: &impl Payload,
        request: WorkRequestHandle<'_, G>,
        location: MessageLocation,
        number: u64,
    );
}

/// The source or destination of a message's bytes.
pub(super) trait Payload: Copy + Debug {
    /// Completes a request that sends the message at this address.
    fn send(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, address: u64);

    /// Completes a request that brings the message to this address.
    fn fetch(&self, request: ReadBufferHandle<'_, impl PostSendGuard>, address: u64);

    /// Sets the last byte of the first message; `last` is where it is in registered memory.
    #[inline(always)]
    fn mark(&self, mark: u8, last: Flag<'_>) {
        last.store(mark);
    }
}

/// A message's length and local key in one word, in the device's layout, so that a request takes
/// both by one store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent(u64);

impl Extent {
    pub(super) fn new(lkey: u32, size: u32) -> Self {
        Self(u64::from(size) | u64::from(lkey) << 32)
    }

    #[inline(always)]
    fn lkey(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    fn size(self) -> u32 {
        self.0 as u32
    }
}

/// One piece of registered memory.
impl Payload for Extent {
    #[inline(always)]
    fn send(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, address: u64) {
        // SAFETY: the memory outlives the queue pair, and no code writes to the message until its
        // completion (head of this file). The device refuses addresses outside of the region.
        unsafe { request.setup_sge(self.lkey(), address, self.size()) }
    }

    #[inline(always)]
    fn fetch(&self, request: ReadBufferHandle<'_, impl PostSendGuard>, address: u64) {
        // SAFETY: the memory outlives the queue pair, and no code here accesses it until the
        // completion (head of this file). The device refuses addresses outside of the region.
        unsafe { request.setup_sge(self.lkey(), address, self.size()) }
    }
}

/// A message in consecutive pieces of equal length, except that the last has the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePieces {
    lkey: u32,
    count: u32,
    length: u32,
    last: u32,
}

impl MessagePieces {
    /// Divides a message of this size into `count` pieces, or fewer if it has fewer bytes.
    pub(super) fn new(lkey: u32, size: u32, count: u32) -> Self {
        let count = count.min(size).clamp(1, MOST_ENTRIES);
        let length = size / count;
        Self { lkey, count, length, last: size - length * (count - 1) }
    }

    /// Passes the pieces of the message at this address to `give`.
    #[inline(always)]
    fn list<T>(&self, address: u64, give: impl FnOnce(&[ScatterGatherEntry]) -> T) -> T {
        let Self { lkey, count, length, last } = *self;
        let mut entries = [const { MaybeUninit::uninit() }; MOST_ENTRIES as usize];
        let mut at = address;
        for entry in &mut entries[..count as usize - 1] {
            entry.write(ScatterGatherEntry::new(lkey, at, length));
            at += u64::from(length);
        }
        entries[count as usize - 1].write(ScatterGatherEntry::new(lkey, at, last));
        // SAFETY: the loop above initialised the first `count` entries.
        give(unsafe { std::slice::from_raw_parts(entries.as_ptr().cast(), count as usize) })
    }
}

/// Several pieces of registered memory.
impl Payload for MessagePieces {
    #[inline(always)]
    fn send(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, address: u64) {
        // SAFETY: the memory outlives the queue pair, and no code writes to the message until its
        // completion (head of this file). The device refuses addresses outside of the region.
        self.list(address, |list| unsafe { request.setup_sge_list(list) });
    }

    #[inline(always)]
    fn fetch(&self, request: ReadBufferHandle<'_, impl PostSendGuard>, address: u64) {
        // SAFETY: the memory outlives the queue pair, and no code here accesses it until the
        // completion (head of this file). The device refuses addresses outside of the region.
        self.list(address, |list| unsafe { request.setup_sge_list(list) });
    }
}

/// The request itself (inline data), into which a message is copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inline<'a> {
    bytes: &'a [Cell<u8>],
    last: &'a Cell<u8>,
}

impl<'a> Inline<'a> {
    /// These bytes, if there are any.
    pub(super) fn new(bytes: &'a mut [u8]) -> Option<Self> {
        let bytes = Cell::from_mut(bytes).as_slice_of_cells();
        Some(Self { bytes, last: bytes.last()? })
    }
}

impl Payload for Inline<'_> {
    #[inline(always)]
    fn send(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, _: u64) {
        // SAFETY: a cell has the layout of its byte. The slice lives for this call only, which
        // copies the bytes. The posting thread writes marks between calls, and cells are not shared
        // with other threads.
        request.setup_inline_data(unsafe { &*(std::ptr::from_ref(self.bytes) as *const [u8]) });
    }

    #[cold]
    fn fetch(&self, _: ReadBufferHandle<'_, impl PostSendGuard>, _: u64) {
        unreachable!("the peer's bytes are copied into no request")
    }

    #[inline(always)]
    fn mark(&self, mark: u8, _: Flag<'_>) {
        self.last.set(mark);
    }
}

/// The Q_Key of a test's datagrams.
pub(super) const QKEY: u32 = 0x1111_1111;

/// `IBV_WR_RDMA_WRITE`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write;

/// `IBV_WR_RDMA_WRITE_WITH_IMM`; the immediate data is the message's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteImm;

/// `IBV_WR_SEND`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Send;

/// `IBV_WR_SEND_WITH_IMM`; the immediate data is the message's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendImm;

/// A datagram's `IBV_WR_SEND`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendTo<'a>(pub(super) &'a AddressHandle);

/// A datagram's `IBV_WR_SEND_WITH_IMM`; the immediate data is the message's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendImmTo<'a>(pub(super) &'a AddressHandle);

/// `IBV_WR_RDMA_READ`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read;

/// `IBV_WR_ATOMIC_FETCH_AND_ADD` of 1, like perftest's.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchAdd;

/// `IBV_WR_ATOMIC_CMP_AND_SWP`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompareSwap {
    pub(super) compare: u64,
    pub(super) swap: u64,
}

const MARKED: VerbTraits = VerbTraits { repeats: true, is_marked: true, takes_receives: false };
const RECEIVED: VerbTraits = VerbTraits { repeats: true, is_marked: false, takes_receives: true };
const NUMBERED: VerbTraits = VerbTraits { repeats: false, is_marked: false, takes_receives: true };
const UNNOTICED: VerbTraits = VerbTraits { repeats: true, is_marked: false, takes_receives: false };

/// Implements verbs that are one call each: their traits, and the method of [`Payload`] that ends
/// the call.
macro_rules! verbs {
    ($($Verb:ty, $TRAITS:ident, $payload:ident:
        |$this:ident, $request:ident, $location:ident, $number:ident| $call:expr;)*) => {
        $(impl Verb for $Verb {
            const HAS_LOOP: bool = $TRAITS.is_marked;

            #[inline(always)]
            fn traits(&self) -> VerbTraits {
                $TRAITS
            }

            #[inline(always)]
            fn build<'queue, G: Borrows<'queue>>(
                &'queue $this,
                payload: &impl Payload,
                $request: WorkRequestHandle<'_, G>,
                $location: MessageLocation,
                $number: u64,
            ) {
                payload.$payload($call, $location.local);
            }
        })*
    };
}

verbs! {
    Write, MARKED, send: |self, request, at, _number| request.setup_write(at.rkey, at.remote);
    WriteImm, NUMBERED, send: |self, request, at, number| {
        request.setup_write_imm(at.rkey, at.remote, number as u32)
    };
    Send, RECEIVED, send: |self, request, at, _number| request.setup_send();
    SendImm, NUMBERED, send: |self, request, at, number| request.setup_send_imm(number as u32);
    SendTo<'_>, RECEIVED, send: |self, request, at, _number| {
        request.setup_ud_address(self.0, at.queue, QKEY).setup_send()
    };
    SendImmTo<'_>, NUMBERED, send: |self, request, at, number| {
        request.setup_ud_address(self.0, at.queue, QKEY).setup_send_imm(number as u32)
    };
    Read, UNNOTICED, fetch: |self, request, at, _number| request.setup_read(at.rkey, at.remote);
    FetchAdd, UNNOTICED, fetch: |self, request, at, _number| {
        request.setup_atomic_fetch_add(at.rkey, at.remote, 1)
    };
    CompareSwap, UNNOTICED, fetch: |self, request, at, _number| {
        request.setup_atomic_compare_swap(at.rkey, at.remote, self.compare, self.swap)
    };
}

/// Reads and writes, chosen by each message's number. Reads change the byte that would mark a
/// write.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadsAndWrites {
    is_read: [bool; MIX_PERIOD as usize],
}

impl ReadsAndWrites {
    /// The shares of reads and writes come from the mix.
    pub(super) fn new(mix: Mix) -> Self {
        Self { is_read: std::array::from_fn(|number| mix.is_read(number as u64)) }
    }
}

impl Verb for ReadsAndWrites {
    #[inline(always)]
    fn traits(&self) -> VerbTraits {
        VerbTraits { repeats: false, ..UNNOTICED }
    }

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        payload: &impl Payload,
        request: WorkRequestHandle<'_, G>,
        location: MessageLocation,
        number: u64,
    ) {
        if self.is_read[(number % u64::from(MIX_PERIOD)) as usize] {
            Read.build(payload, request, location, number);
        } else {
            Write.build(payload, request, location, number);
        }
    }
}

/// Any verb, chosen for each message: for extended connections, and for messages in several pieces.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyVerb<'a> {
    Write(Write),
    WriteImm(WriteImm),
    Send(Send),
    SendImm(SendImm),
    SendTo(SendTo<'a>),
    SendImmTo(SendImmTo<'a>),
    Read(Read),
    FetchAdd(FetchAdd),
    CompareSwap(CompareSwap),
    ReadsAndWrites(ReadsAndWrites),
}

/// Calls a method of the verb.
macro_rules! of_any_verb {
    ($verb:expr, $method:ident($($argument:expr),*)) => {
        match $verb {
            AnyVerb::Write(verb) => verb.$method($($argument),*),
            AnyVerb::WriteImm(verb) => verb.$method($($argument),*),
            AnyVerb::Send(verb) => verb.$method($($argument),*),
            AnyVerb::SendImm(verb) => verb.$method($($argument),*),
            AnyVerb::SendTo(verb) => verb.$method($($argument),*),
            AnyVerb::SendImmTo(verb) => verb.$method($($argument),*),
            AnyVerb::Read(verb) => verb.$method($($argument),*),
            AnyVerb::FetchAdd(verb) => verb.$method($($argument),*),
            AnyVerb::CompareSwap(verb) => verb.$method($($argument),*),
            AnyVerb::ReadsAndWrites(verb) => verb.$method($($argument),*),
        }
    };
}

impl Verb for AnyVerb<'_> {
    fn traits(&self) -> VerbTraits {
        of_any_verb!(self, traits())
    }

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        payload: &impl Payload,
        request: WorkRequestHandle<'_, G>,
        location: MessageLocation,
        number: u64,
    ) {
        of_any_verb!(self, build(payload, request, location, number));
    }
}

/// The same over an extended connection, for the peer's shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToQueue<'a>(pub(super) AnyVerb<'a>);

impl Verb for ToQueue<'_> {
    fn traits(&self) -> VerbTraits {
        self.0.traits()
    }

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        payload: &impl Payload,
        request: WorkRequestHandle<'_, G>,
        location: MessageLocation,
        number: u64,
    ) {
        self.0.build(payload, request.setup_xrc_srqn(location.queue), location, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_message() {
        for (size, count, expected) in [
            (10, 1, vec![10]),
            (10, 3, vec![3, 3, 4]),
            (2, 64, vec![1, 1]),
            (64, 64, vec![1; 64]),
            (1, 5, vec![1]),
            (8 << 20, 2, vec![4 << 20; 2]),
        ] {
            let mut at = 0x1000;
            let expected: Vec<_> = expected
                .into_iter()
                .map(|length| {
                    at += u64::from(length);
                    format!("{:?}", ScatterGatherEntry::new(7, at - u64::from(length), length))
                })
                .collect();
            MessagePieces::new(7, size, count).list(0x1000, |list| {
                assert_eq!(list.iter().map(|entry| format!("{entry:?}")).collect::<Vec<_>>(), expected);
            });
        }
    }
}
