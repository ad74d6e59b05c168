//! Verbs of work requests, and the payloads that they carry.
//!
//! # Safety
//!
//! The memory that a request names belongs to the [`TestChannel`](super::Channel), whose queue pairs go before it, and with them
//! every outstanding request. Nobody writes to a message that is being sent: bandwidth tests do not write at all, and latency
//! tests write the last byte of a message only after the completion of the one before has been polled. No Rust reference to
//! the memory exists at all (`buffers`). A mix's reads bring bytes to where its writes send from: the device alone touches
//! those. An extended queue has a place for each request: no more are outstanding than it was made for
//! ([`Chain`](super::Chain)). Memory that the processor does not reach is refused where a library would copy to it
//! (`memory::scatter`).

#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt::Debug;
use std::mem::MaybeUninit;

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::queue_pair::{
    Borrows, LocalBufferHandle, PostSendGuard, ReadBufferHandle, ScatterGatherEntry, WorkRequestHandle,
};

use stride_base::plan::{MIX_PERIOD, MOST_ENTRIES, Mix};

/// Where a message lies on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageLocation {
    /// In this side's memory.
    pub(super) local: u64,
    /// In the peer's.
    pub(super) remote: u64,
    /// The key to the peer's.
    pub(super) rkey: u32,
    /// The peer's queue pair, which datagrams name, or its shared receive queue, which requests of an extended connection name.
    pub(super) queue: u32,
}

/// How the messages of a verb differ from each other, and how the peer notices them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbTraits {
    /// Messages at the same location differ in nothing, so that a list of them can be posted again.
    pub(super) repeats: bool,
    /// The peer notices a message by its last byte alone.
    pub(super) is_marked: bool,
    /// Each message takes one of the peer's receives.
    pub(super) takes_receives: bool,
}

/// An operation of a queue pair. Each is a type, so that a post function compiles to straight code.
pub(super) trait Verb: Copy + Debug {
    const TRAITS: VerbTraits;

    /// Builds the request of a message of this number at this location.
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        payload: &Payload<'_>,
        request: WorkRequestHandle<'_, G>,
        location: MessageLocation,
        number: u64,
    );
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// In one piece of registered memory.
    Entry(Extent),
    /// In several.
    Pieces(MessagePieces),
    /// In the request, into which they are copied.
    Inline(&'a [Cell<u8>]),
}

impl Payload<'_> {
    /// Gives a request that sends the message at this address.
    #[inline(always)]
    fn send(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, address: u64) {
        match self {
            // SAFETY: the memory outlives the queue pair, and nobody writes to the message until its completion (head of
            // this file). The device refuses what lies outside of the region.
            Self::Entry(extent) => unsafe { request.setup_sge(extent.lkey(), address, extent.size()) },
            // SAFETY: the same.
            Self::Pieces(pieces) => pieces.list(address, |list| unsafe { request.setup_sge_list(list) }),
            Self::Inline(bytes) => {
                // SAFETY: a cell has the layout of its byte. The slice lives for this call alone, which copies the bytes;
                // they are marked between calls, by the thread that posts: cells are not shared with others.
                request.setup_inline_data(unsafe { &*(std::ptr::from_ref(*bytes) as *const [u8]) });
            }
        }
    }

    /// Gives a request that brings the message to this address.
    #[inline(always)]
    fn fetch(&self, request: ReadBufferHandle<'_, impl PostSendGuard>, address: u64) {
        match self {
            // SAFETY: the memory outlives the queue pair, and nobody here reads or writes it until the completion (head of
            // this file). The device refuses what lies outside of the region.
            Self::Entry(extent) => unsafe { request.setup_sge(extent.lkey(), address, extent.size()) },
            // SAFETY: the same.
            Self::Pieces(pieces) => pieces.list(address, |list| unsafe { request.setup_sge_list(list) }),
            Self::Inline(_) => unreachable!("the peer's bytes are copied into no request"),
        }
    }
}

/// How long a message is, and the key to it, in one word as the device reads them: a request has them by one store.
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

/// How a message lies in pieces, one behind the other: all of one length, but for the last, which has the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePieces {
    lkey: u32,
    count: u32,
    length: u32,
    last: u32,
}

impl MessagePieces {
    /// A message of this size in so many, or as many as it has bytes.
    pub(super) fn new(lkey: u32, size: u32, count: u32) -> Self {
        let count = count.min(size).clamp(1, MOST_ENTRIES);
        let length = size / count;
        Self { lkey, count, length, last: size - length * (count - 1) }
    }

    /// Gives the list of those of the message at this address.
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
        // SAFETY: so many were written just now, and a written one is as an entry is.
        give(unsafe { std::slice::from_raw_parts(entries.as_ptr().cast(), count as usize) })
    }
}

/// What datagrams of a test come with.
pub(super) const QKEY: u32 = 0x1111_1111;

/// RDMA write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write;

/// RDMA write whose immediate data is the message's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteImm;

/// Send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Send;

/// Send whose immediate data is the message's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendImm;

/// Send of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendTo<'a>(pub(super) &'a AddressHandle);

/// Send of a datagram whose immediate data is the message's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendImmTo<'a>(pub(super) &'a AddressHandle);

/// RDMA read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read;

/// Atomic fetch and add, of 1 as perftest has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchAdd;

/// Atomic compare and swap.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompareSwap {
    pub(super) compare: u64,
    pub(super) swap: u64,
}

const MARKED: VerbTraits = VerbTraits { repeats: true, is_marked: true, takes_receives: false };
const RECEIVED: VerbTraits = VerbTraits { repeats: true, is_marked: false, takes_receives: true };
const NUMBERED: VerbTraits = VerbTraits { repeats: false, is_marked: false, takes_receives: true };
const UNNOTICED: VerbTraits = VerbTraits { repeats: true, is_marked: false, takes_receives: false };

/// Implements verbs that are one call each: their traits, and the method of [`Payload`] that ends the call.
macro_rules! verbs {
    ($($Verb:ty, $TRAITS:ident, $payload:ident:
        |$this:ident, $request:ident, $location:ident, $number:ident| $call:expr;)*) => {
        $(impl Verb for $Verb {
            const TRAITS: VerbTraits = $TRAITS;

            #[inline(always)]
            fn build<'queue, G: Borrows<'queue>>(
                &'queue $this,
                payload: &Payload<'_>,
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

/// Reads and writes, chosen by each message's number. Reads change the byte that would mark a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadsAndWrites {
    is_read: [bool; MIX_PERIOD as usize],
}

impl ReadsAndWrites {
    /// As many of each as the mix says.
    pub(super) fn new(mix: Mix) -> Self {
        Self { is_read: std::array::from_fn(|number| mix.is_read(number as u64)) }
    }
}

impl Verb for ReadsAndWrites {
    const TRAITS: VerbTraits = VerbTraits { repeats: false, ..UNNOTICED };

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        payload: &Payload<'_>,
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

/// The same of an extended connection, for a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToQueue<V>(pub(super) V);

impl<V: Verb> Verb for ToQueue<V> {
    const TRAITS: VerbTraits = V::TRAITS;

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        payload: &Payload<'_>,
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
