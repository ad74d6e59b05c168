//! What work requests say: each operation, with the bytes of each kind.
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

use std::mem::MaybeUninit;

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::queue_pair::{
    Borrows, LocalBufferHandle, PostSendGuard, ReadBufferHandle, ScatterGatherEntry, WorkRequestHandle,
};

use crate::buffers::Flag;
use crate::plan::{MIX_PERIOD, MOST_ENTRIES, Mix};

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

/// What a test's requests say. Which operation and where its bytes are is asked once, before the loop that is measured.
pub(super) trait Request {
    /// Whether messages to the same place differ in nothing, so that a list of them can be posted again.
    const REPEATS: bool;
    /// Whether nothing but its last byte tells the peer that a message is there.
    const IS_MARKED: bool;
    /// Whether each message takes one of the peer's receives.
    const TAKES_RECEIVES: bool;

    /// Says it.
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        request: WorkRequestHandle<'_, G>,
        place: MessageLocation,
        number: u64,
    );

    /// Makes this the last byte of the first message, if it is marked.
    fn mark(&mut self, mark: u8);
}

/// An operation that sends bytes.
pub(super) trait Outgoing {
    /// Whether it says nothing of its own of each message.
    const REPEATS: bool;
    /// Whether nothing but its last byte tells the peer that a message is there.
    const IS_MARKED: bool;

    /// Chooses it.
    fn choose<'guard, 'queue, G: Borrows<'queue>>(
        &'queue self,
        request: WorkRequestHandle<'guard, G>,
        place: MessageLocation,
        number: u64,
    ) -> LocalBufferHandle<'guard, G>;
}

/// An operation that brings bytes here.
pub(super) trait Incoming {
    /// Chooses it.
    fn choose<'guard, G: PostSendGuard>(
        &self,
        request: WorkRequestHandle<'guard, G>,
        place: MessageLocation,
    ) -> ReadBufferHandle<'guard, G>;
}

/// Where the bytes of messages that are sent come from.
pub(super) trait Payload {
    /// Gives a request the message at this address.
    fn give(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, address: u64);
    /// Makes this the last byte of the first message.
    fn mark(&mut self, mark: u8);
}

/// Sends messages.
#[derive(Debug)]
pub(super) struct Sends<V, P> {
    pub(super) verb: V,
    pub(super) payload: P,
}

impl<V: Outgoing, P: Payload> Request for Sends<V, P> {
    const REPEATS: bool = V::REPEATS;
    const IS_MARKED: bool = V::IS_MARKED;
    const TAKES_RECEIVES: bool = !V::IS_MARKED;

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        request: WorkRequestHandle<'_, G>,
        place: MessageLocation,
        number: u64,
    ) {
        self.payload.give(self.verb.choose(request, place, number), place.local);
    }

    #[inline(always)]
    fn mark(&mut self, mark: u8) {
        if V::IS_MARKED {
            self.payload.mark(mark);
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

/// Brings messages here.
#[derive(Debug)]
pub(super) struct Fetches<V> {
    pub(super) verb: V,
    pub(super) extent: Extent,
}

impl<V: Incoming> Request for Fetches<V> {
    const REPEATS: bool = true;
    const IS_MARKED: bool = false;
    const TAKES_RECEIVES: bool = false;

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        request: WorkRequestHandle<'_, G>,
        place: MessageLocation,
        _: u64,
    ) {
        // SAFETY: the memory outlives the queue pair, and nobody here reads or writes it meanwhile (head of this file). The
        // device refuses what lies outside of the region.
        unsafe {
            self.verb.choose(request, place).setup_sge(self.extent.lkey(), place.local, self.extent.size())
        }
    }

    /// The bytes are the peer's.
    #[inline(always)]
    fn mark(&mut self, _: u8) {}
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

/// Brings messages here, into several pieces.
#[derive(Debug)]
pub(super) struct Scatters<V> {
    pub(super) verb: V,
    pub(super) pieces: MessagePieces,
}

impl<V: Incoming> Request for Scatters<V> {
    const REPEATS: bool = true;
    const IS_MARKED: bool = false;
    const TAKES_RECEIVES: bool = false;

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        request: WorkRequestHandle<'_, G>,
        place: MessageLocation,
        _: u64,
    ) {
        let request = self.verb.choose(request, place);
        // SAFETY: as in `Fetches`.
        self.pieces.list(place.local, |list| unsafe { request.setup_sge_list(list) });
    }

    /// The bytes are the peer's.
    #[inline(always)]
    fn mark(&mut self, _: u8) {}
}

/// Reads and writes, of which each message's number says which it is.
#[derive(Debug)]
pub(super) struct Mixed<R, W> {
    read: R,
    write: W,
    is_read: [bool; MIX_PERIOD as usize],
}

impl<R, W> Mixed<R, W> {
    /// As many of each as the mix says.
    pub(super) fn new(mix: Mix, read: R, write: W) -> Self {
        Self { read, write, is_read: std::array::from_fn(|number| mix.is_read(number as u64)) }
    }
}

impl<R: Request, W: Request> Request for Mixed<R, W> {
    const REPEATS: bool = false;
    const IS_MARKED: bool = false;
    const TAKES_RECEIVES: bool = false;

    #[inline(always)]
    fn build<'queue, G: Borrows<'queue>>(
        &'queue self,
        request: WorkRequestHandle<'_, G>,
        place: MessageLocation,
        number: u64,
    ) {
        if self.is_read[(number % u64::from(MIX_PERIOD)) as usize] {
            self.read.build(request, place, number);
        } else {
            self.write.build(request, place, number);
        }
    }

    /// Reads write there, too: the byte is the peer's.
    #[inline(always)]
    fn mark(&mut self, _: u8) {}
}

/// Messages in several pieces of registered memory.
#[derive(Debug)]
pub(super) struct Gathered<'a> {
    pub(super) pieces: MessagePieces,
    /// The last byte of the first message.
    pub(super) last: Flag<'a>,
}

impl Payload for Gathered<'_> {
    #[inline(always)]
    fn give(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, address: u64) {
        // SAFETY: as in `Registered`.
        self.pieces.list(address, |list| unsafe { request.setup_sge_list(list) });
    }

    #[inline(always)]
    fn mark(&mut self, mark: u8) {
        self.last.store(mark);
    }
}

/// A message that is copied into each work request.
#[derive(Debug)]
pub(super) struct Inline<'a>(pub(super) &'a mut [u8]);

impl Payload for Inline<'_> {
    #[inline(always)]
    fn give(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, _: u64) {
        request.setup_inline_data(self.0);
    }

    #[inline(always)]
    fn mark(&mut self, mark: u8) {
        if let Some(last) = self.0.last_mut() {
            *last = mark;
        }
    }
}

/// Messages in registered memory.
#[derive(Debug)]
pub(super) struct Registered<'a> {
    pub(super) extent: Extent,
    /// The last byte of the first message.
    pub(super) last: Flag<'a>,
}

impl Payload for Registered<'_> {
    #[inline(always)]
    fn give(&self, request: LocalBufferHandle<'_, impl PostSendGuard>, address: u64) {
        // SAFETY: the memory outlives the queue pair, and nobody writes to the message meanwhile (head of this file). The
        // device refuses what lies outside of the region.
        unsafe { request.setup_sge(self.extent.lkey(), address, self.extent.size()) }
    }

    #[inline(always)]
    fn mark(&mut self, mark: u8) {
        self.last.store(mark);
    }
}

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

/// The same of an extended connection, for a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToQueue<V>(pub(super) V);

impl<V: Outgoing> Outgoing for ToQueue<V> {
    const REPEATS: bool = V::REPEATS;
    const IS_MARKED: bool = V::IS_MARKED;

    #[inline(always)]
    fn choose<'guard, 'queue, G: Borrows<'queue>>(
        &'queue self,
        request: WorkRequestHandle<'guard, G>,
        place: MessageLocation,
        number: u64,
    ) -> LocalBufferHandle<'guard, G> {
        self.0.choose(request.setup_xrc_srqn(place.queue), place, number)
    }
}

impl<V: Incoming> Incoming for ToQueue<V> {
    #[inline(always)]
    fn choose<'guard, G: PostSendGuard>(
        &self,
        request: WorkRequestHandle<'guard, G>,
        place: MessageLocation,
    ) -> ReadBufferHandle<'guard, G> {
        self.0.choose(request.setup_xrc_srqn(place.queue), place)
    }
}

/// What datagrams of a test come with.
pub(super) const QKEY: u32 = 0x1111_1111;

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

/// Verbs that send, each by one call; whether they repeat, and are marked.
macro_rules! outgoing {
    ($($Verb:ty, $repeats:literal, $is_marked:literal:
        |$this:ident, $request:ident, $place:ident, $number:ident| $call:expr;)*) => {
        $(impl Outgoing for $Verb {
            const REPEATS: bool = $repeats;
            const IS_MARKED: bool = $is_marked;

            #[inline(always)]
            fn choose<'guard, 'queue, G: Borrows<'queue>>(
                &'queue $this,
                $request: WorkRequestHandle<'guard, G>,
                $place: MessageLocation,
                $number: u64,
            ) -> LocalBufferHandle<'guard, G> {
                $call
            }
        })*
    };
}

outgoing! {
    Write, true, true: |self, request, place, _number| request.setup_write(place.rkey, place.remote);
    WriteImm, false, false: |self, request, place, number| {
        request.setup_write_imm(place.rkey, place.remote, number as u32)
    };
    Send, true, false: |self, request, _place, _number| request.setup_send();
    SendImm, false, false: |self, request, _place, number| request.setup_send_imm(number as u32);
    SendTo<'_>, true, false: |self, request, place, _number| {
        request.setup_ud_address(self.0, place.queue, QKEY).setup_send()
    };
    SendImmTo<'_>, false, false: |self, request, place, number| {
        request.setup_ud_address(self.0, place.queue, QKEY).setup_send_imm(number as u32)
    };
}

impl Incoming for Read {
    #[inline(always)]
    fn choose<'guard, G: PostSendGuard>(
        &self,
        request: WorkRequestHandle<'guard, G>,
        place: MessageLocation,
    ) -> ReadBufferHandle<'guard, G> {
        request.setup_read(place.rkey, place.remote)
    }
}

impl Incoming for FetchAdd {
    #[inline(always)]
    fn choose<'guard, G: PostSendGuard>(
        &self,
        request: WorkRequestHandle<'guard, G>,
        place: MessageLocation,
    ) -> ReadBufferHandle<'guard, G> {
        request.setup_atomic_fetch_add(place.rkey, place.remote, 1)
    }
}

impl Incoming for CompareSwap {
    #[inline(always)]
    fn choose<'guard, G: PostSendGuard>(
        &self,
        request: WorkRequestHandle<'guard, G>,
        place: MessageLocation,
    ) -> ReadBufferHandle<'guard, G> {
        request.setup_atomic_compare_swap(place.rkey, place.remote, self.compare, self.swap)
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
