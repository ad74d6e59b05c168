//! Which pieces of a pool's memory are free, taken, or with a device. It knows nothing of devices, and touches no memory.
//!
//! A *piece* is a part of a slot that is taken and posted as a whole; it is named by its place in the table. Every slot is a
//! piece, of the same place; a slot that is cut borrows further places for its other pieces until all of them are back.
//!
//! A piece is always in one of three hands: a list of free ones, a [`Slice`](super::Slice), or the device's. What is with the
//! device is named by its *ticket*, the number that its work request has in place of the program's own.
//!
//! # Tickets
//!
//! | bits | |
//! | --- | --- |
//! | 40 to 63 | how often the piece has been posted |
//! | 24 to 39 | the pool; never 0, so that no small number is a ticket |
//! | 23 | the piece is not with the device |
//! | 0 to 22 | the piece |
//!
//! The table holds each piece's ticket. A number is that of a piece that is with the device if, and only if, it is in the table
//! at its own place: with bit 23 it would name a place that no table has. So a look-up is two comparisons, each ticket is
//! given back once, and a number that is no ticket, or is an old one, is found out.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// No piece: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// How many places a table can have.
pub(super) const MAX_PIECES: usize = 1 << 23;

/// How many sizes of slots there can be.
pub(super) const MAX_SIZES: usize = 8;

const PLACE: u64 = (1 << 24) - 1;
const AT_HOME: u64 = 1 << 23;
const POOL_SHIFT: u32 = 24;
const ONCE: u64 = 1 << 40;

/// A bit of [`Piece::cut`].
const CUT: u32 = 1 << 31;

/// A bit of what [`Piece::list`] has of a request.
const RECEIVE: u32 = 1 << 31;

pub(super) struct Table {
    pieces: Box<[Piece]>,
    sizes: [Size; MAX_SIZES],
    /// Places that no piece has.
    spare: Cell<u32>,
}

/// Slots of one size, those of one smaller before them.
struct Size {
    bytes: u32,
    /// The first one that is free.
    free: Cell<u32>,
}

/// A line of the processor's cache, so that each is touched alone.
#[repr(align(64))]
struct Piece {
    ticket: Cell<u64>,
    /// What the program gave for a number.
    wr_id: Cell<u64>,
    start: Cell<*mut u8>,
    len: Cell<u32>,
    capacity: Cell<u32>,
    /// The next one of a list of free ones, or of the same work request.
    next: Cell<u32>,
    /// Of the first piece of a work request: that of the one before it in the list that was built with it, and its own place
    /// there, or [`RECEIVE`].
    list: Cell<(u32, u32)>,
    /// The slot that it is of, and which of the sizes that has.
    slot: Cell<u32>,
    size: Cell<u32>,
    /// Of a slot: of how many pieces that are not free, with [`CUT`] once it has been cut.
    cut: Cell<u32>,
}

/// A work request that has come back.
pub(super) struct Arrival {
    pub(super) wr_id: u64,
    /// Its pieces after the first.
    pub(super) rest: u32,
    pub(super) is_receive: bool,
}

impl Table {
    /// A table of slots of these sizes, smaller ones first, of which `start_of` tells where each lies; and as many places
    /// more. There are at most [`MAX_SIZES`], and [`MAX_PIECES`].
    pub(super) fn new(
        sizes: &[(u32, u32)],
        spare: u32,
        mut start_of: impl FnMut(usize, u32) -> *mut u8,
    ) -> Self {
        let pool = new_pool();
        let mut pieces = Vec::new();
        let mut all: [Size; MAX_SIZES] = std::array::from_fn(|_| Size { bytes: 0, free: Cell::new(NONE) });
        for (at, &(bytes, count)) in sizes.iter().enumerate() {
            let first = pieces.len() as u32;
            all[at] = Size { bytes, free: Cell::new(if count == 0 { NONE } else { first }) };
            pieces.extend((0..count).map(|n| {
                let next = if n + 1 == count { NONE } else { first + n + 1 };
                Piece::new(pool, first + n, start_of(at, n), bytes, at as u32, next)
            }));
        }
        let first = pieces.len() as u32;
        pieces.extend((0..spare).map(|n| {
            let next = if n + 1 == spare { NONE } else { first + n + 1 };
            Piece::new(pool, first + n, std::ptr::null_mut(), 0, 0, next)
        }));
        let spare = Cell::new(if spare == 0 { NONE } else { first });
        Self { pieces: pieces.into_boxed_slice(), sizes: all, spare }
    }

    #[inline]
    fn piece(&self, piece: u32) -> &Piece {
        &self.pieces[piece as usize]
    }

    #[inline]
    pub(super) fn start(&self, piece: u32) -> *mut u8 {
        self.piece(piece).start.get()
    }

    #[inline]
    pub(super) fn len(&self, piece: u32) -> u32 {
        self.piece(piece).len.get()
    }

    #[inline]
    pub(super) fn capacity(&self, piece: u32) -> u32 {
        self.piece(piece).capacity.get()
    }

    /// `len` is at most the piece's capacity.
    #[inline]
    pub(super) fn set_len(&self, piece: u32, len: u32) {
        self.piece(piece).len.set(len);
    }

    /// Takes the smallest free slot of at least so many bytes.
    #[inline]
    pub(super) fn take(&self, bytes: u32) -> Option<u32> {
        for size in &self.sizes {
            let slot = size.free.get();
            if slot != NONE && bytes <= size.bytes {
                size.free.set(self.piece(slot).next.get());
                return Some(slot);
            }
        }
        None
    }

    /// Gives a piece back that was taken, and is not with the device.
    #[inline]
    pub(super) fn give_back(&self, piece: u32) {
        let place = self.piece(piece);
        if place.cut.get() != 1 {
            return self.give_part_back(piece);
        }
        place.len.set(place.capacity.get());
        self.push(piece, place);
    }

    #[inline]
    fn push(&self, slot: u32, place: &Piece) {
        let free = &self.sizes[place.size.get() as usize % MAX_SIZES].free;
        place.next.set(free.replace(slot));
    }

    /// The same of a piece of a slot that was cut.
    #[cold]
    fn give_part_back(&self, piece: u32) {
        let slot = self.piece(piece).slot.get();
        if piece != slot {
            self.piece(piece).next.set(self.spare.replace(piece));
        }
        let place = self.piece(slot);
        let left = place.cut.get() - 1;
        place.cut.set(left);
        if left == CUT {
            let bytes = self.sizes[place.size.get() as usize].bytes;
            place.capacity.set(bytes);
            place.len.set(bytes);
            place.cut.set(1);
            self.push(slot, place);
        }
    }

    /// Cuts a piece in two, the first of `mid` bytes; the other one is the result. `None` if there is no place for it.
    pub(super) fn cut(&self, piece: u32, mid: u32) -> Option<u32> {
        let other = self.spare.get();
        let place = self.pieces.get(other as usize)?;
        self.spare.set(place.next.get());
        let first = self.piece(piece);
        place.start.set(first.start.get().wrapping_add(mid as usize));
        place.len.set(first.len.get() - mid);
        place.capacity.set(first.capacity.get() - mid);
        place.slot.set(first.slot.get());
        // No slot has this place, so it is never taken for a whole one.
        place.cut.set(0);
        first.len.set(mid);
        first.capacity.set(mid);
        let slot = self.piece(first.slot.get());
        slot.cut.set((slot.cut.get() + 1) | CUT);
        Some(other)
    }

    /// Hands a piece to the device, with those that [`chain`](Self::chain) has put behind it from `rest` on: its ticket. It
    /// comes in a list behind `before`, as its request number `index`.
    #[inline]
    pub(super) fn depart(
        &self,
        piece: u32,
        rest: u32,
        wr_id: u64,
        before: u32,
        index: u32,
        is_receive: bool,
    ) -> u64 {
        let place = self.piece(piece);
        let ticket = place.ticket.get() - AT_HOME;
        place.ticket.set(ticket);
        place.wr_id.set(wr_id);
        place.next.set(rest);
        place.list.set((before, index | if is_receive { RECEIVE } else { 0 }));
        ticket
    }

    /// Puts a piece before others of the same request.
    #[inline]
    pub(super) fn chain(&self, piece: u32, rest: u32) {
        self.piece(piece).next.set(rest);
    }

    /// The piece behind one of the same request, or [`NONE`].
    #[inline]
    pub(super) fn behind(&self, piece: u32) -> u32 {
        self.piece(piece).next.get()
    }

    /// Takes a piece, and those behind it, back from the device, if the number is its ticket.
    #[inline]
    pub(super) fn arrive(&self, ticket: u64) -> Option<(u32, Arrival)> {
        let piece = (ticket & PLACE) as u32;
        let place = self.pieces.get(piece as usize)?;
        if place.ticket.get() != ticket {
            return None;
        }
        place.ticket.set(ticket.wrapping_add(ONCE + AT_HOME));
        let is_receive = place.list.get().1 & RECEIVE != 0;
        Some((piece, Arrival { wr_id: place.wr_id.get(), rest: place.next.get(), is_receive }))
    }

    /// Gives back what was handed to the device in a list of `count` requests with pieces, of which `last` is the last, and
    /// whose requests from number `posted` on the device did not get.
    #[cold]
    pub(super) fn recall(&self, last: u32, count: u32, posted: u32) {
        let mut piece = last;
        // As many as there were: a list whose pieces came back while it was built may have been linked anew.
        for _ in 0..count {
            let Some(place) = self.pieces.get(piece as usize) else { return };
            let (before, index) = place.list.get();
            if index & !RECEIVE >= posted {
                self.retake(place.ticket.get());
            }
            piece = before;
        }
    }

    /// Gives back all that is with the device and has a number of the program's that is given up; how many requests.
    pub(super) fn abandon(&self, mut is_given_up: impl FnMut(u64) -> bool) -> usize {
        let with_device = self.pieces.iter().filter(|piece| piece.ticket.get() & AT_HOME == 0);
        with_device.filter(|piece| is_given_up(piece.wr_id.get()) && self.retake(piece.ticket.get())).count()
    }

    /// Gives back what has this ticket, if the device has it.
    fn retake(&self, ticket: u64) -> bool {
        let Some((mut piece, Arrival { rest: mut behind, .. })) = self.arrive(ticket) else { return false };
        loop {
            self.give_back(piece);
            if behind == NONE {
                return true;
            }
            (piece, behind) = (behind, self.behind(behind));
        }
    }

    /// How many slots are free.
    pub(super) fn free(&self) -> usize {
        let of = |size: &Size| {
            std::iter::successors(Some(size.free.get()), |slot| Some(self.behind(*slot)))
                .take_while(|slot| *slot != NONE)
                .count()
        };
        self.sizes.iter().map(of).sum()
    }

    /// How many work requests the device has.
    pub(super) fn with_device(&self) -> usize {
        self.pieces.iter().filter(|piece| piece.ticket.get() & AT_HOME == 0).count()
    }
}

impl Piece {
    fn new(pool: u64, piece: u32, start: *mut u8, bytes: u32, size: u32, next: u32) -> Self {
        Self {
            ticket: Cell::new(pool << POOL_SHIFT | AT_HOME | u64::from(piece)),
            wr_id: Cell::new(0),
            start: Cell::new(start),
            len: Cell::new(bytes),
            capacity: Cell::new(bytes),
            next: Cell::new(next),
            list: Cell::new((NONE, 0)),
            slot: Cell::new(piece),
            size: Cell::new(size),
            cut: Cell::new(1),
        }
    }
}

/// What tells the tickets of one pool from another's: of 16 bits, and not 0.
fn new_pool() -> u64 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    u64::from(LAST.fetch_add(1, Ordering::Relaxed) % 0xffff) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(sizes: &[(u32, u32)], spare: u32) -> Table {
        let mut end = 0;
        Table::new(sizes, spare, |at, _| {
            let start = std::ptr::without_provenance_mut(end + 1);
            end += sizes[at].0 as usize;
            start
        })
    }

    fn post(table: &Table, piece: u32, wr_id: u64) -> u64 {
        table.depart(piece, NONE, wr_id, NONE, 0, false)
    }

    #[test]
    fn the_smallest_slot_that_is_free_and_fits_is_taken() {
        let table = table(&[(64, 2), (256, 1)], 0);
        assert_eq!(table.free(), 3);
        assert_eq!([table.take(1), table.take(65), table.take(65)], [Some(0), Some(2), None]);
        assert_eq!([table.take(64), table.take(0)], [Some(1), None]);
        assert_eq!((table.free(), table.len(0), table.len(2)), (0, 64, 256));
        table.give_back(2);
        assert_eq!(table.take(0), Some(2), "a larger one, where there is no other");
        table.set_len(2, 7);
        table.give_back(2);
        assert_eq!((table.take(256), table.len(2)), (Some(2), 256));
        assert_eq!(table.take(257), None);
    }

    #[test]
    fn a_ticket_is_given_back_once() {
        let table = table(&[(64, 2)], 0);
        let (one, two) = (table.take(1).unwrap(), table.take(1).unwrap());
        let tickets = [post(&table, one, 7), post(&table, two, 8)];
        assert_eq!(table.with_device(), 2);
        let (piece, arrival) = table.arrive(tickets[1]).unwrap();
        assert_eq!((piece, arrival.wr_id, arrival.rest, arrival.is_receive), (two, 8, NONE, false));
        assert!(table.arrive(tickets[1]).is_none());
        // The same piece has another one the next time.
        let again = post(&table, two, 9);
        assert_ne!(again, tickets[1]);
        assert!(table.arrive(tickets[1]).is_none());
        assert_eq!(table.arrive(again).unwrap().1.wr_id, 9);
        assert_eq!(table.arrive(tickets[0]).unwrap().0, one);
        assert_eq!(table.with_device(), 0);
    }

    #[test]
    fn what_is_no_ticket_is_found_out() {
        let (table, other) = (table(&[(64, 1)], 1), table(&[(64, 1)], 0));
        let piece = table.take(1).unwrap();
        let home = table.piece(piece).ticket.get();
        for number in [0, 1, 2, 1 << 24, home, u64::MAX] {
            assert!(table.arrive(number).is_none(), "{number:#x}");
        }
        let ticket = post(&table, piece, 0);
        for number in [0, home, ticket + 1, ticket ^ ONCE, ticket ^ 1 << POOL_SHIFT, ticket | AT_HOME] {
            assert!(table.arrive(number).is_none(), "{number:#x}");
        }
        other.take(1).unwrap();
        post(&other, 0, 0);
        assert!(other.arrive(ticket).is_none(), "another pool's");
        assert!(table.arrive(ticket).is_some());
    }

    #[test]
    fn a_number_that_wraps_stays_the_pools_own() {
        let table = table(&[(64, 1)], 0);
        let piece = table.take(1).unwrap();
        let place = table.piece(piece);
        place.ticket.set(place.ticket.get() | !(ONCE - 1));
        let before = place.ticket.get();
        let last = post(&table, piece, 1);
        assert!(table.arrive(last).is_some());
        assert_eq!(place.ticket.get(), before & (ONCE - 1));
        assert!(table.arrive(last).is_none());
        assert!(table.arrive(post(&table, piece, 1)).is_some());
    }

    #[test]
    fn a_slot_that_was_cut_is_whole_again_when_all_of_it_is_back() {
        // Every order in which three pieces come back.
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let table = table(&[(100, 1)], 2);
            let a = table.take(1).unwrap();
            let b = table.cut(a, 30).unwrap();
            let c = table.cut(b, 50).unwrap();
            assert_eq!(table.cut(a, 1), None, "there is no place for a fourth");
            let pieces = [a, b, c];
            assert_eq!(pieces.map(|piece| table.start(piece).addr()), [1, 31, 81]);
            assert_eq!(pieces.map(|piece| table.len(piece)), [30, 50, 20]);
            assert_eq!(pieces.map(|piece| table.capacity(piece)), [30, 50, 20]);
            for (n, &which) in order.iter().enumerate() {
                assert_eq!(table.free(), 0, "{n} of {order:?}");
                table.give_back(pieces[which]);
            }
            assert_eq!((table.free(), table.take(100)), (1, Some(a)));
            assert_eq!((table.len(a), table.capacity(a)), (100, 100));
            assert!(table.cut(a, 0).is_some_and(|b| table.cut(b, 100).is_some()), "the places are back");
        }
    }

    #[test]
    fn a_list_that_was_not_posted_comes_back_from_where_it_broke_off() {
        let table = table(&[(8, 6)], 0);
        let mut last = NONE;
        let mut tickets = Vec::new();
        // Request number 1 has three pieces, 2 is somebody else's.
        for (index, rest) in [(0, 0), (1, 2), (3, 0)] {
            let rest = (0..rest).fold(NONE, |behind, _| {
                let piece = table.take(1).unwrap();
                table.chain(piece, behind);
                piece
            });
            let piece = table.take(1).unwrap();
            tickets.push(table.depart(piece, rest, index, last, index as u32, index == 0));
            last = piece;
        }
        assert_eq!((table.free(), table.with_device()), (1, 3));
        table.recall(last, 3, 2);
        assert_eq!((table.free(), table.with_device()), (2, 2));
        assert!(table.arrive(tickets[2]).is_none());
        table.recall(last, 3, 1);
        assert_eq!((table.free(), table.with_device()), (5, 1), "and what came back before is left alone");
        let (piece, arrival) = table.arrive(tickets[0]).unwrap();
        assert!(arrival.is_receive);
        table.give_back(piece);
        assert_eq!(table.free(), 6);
    }

    #[test]
    fn lists_whose_pieces_came_back_meanwhile_end() {
        let table = table(&[(8, 2)], 0);
        let (a, b) = (table.take(1).unwrap(), table.take(1).unwrap());
        table.depart(a, NONE, 0, NONE, 0, false);
        table.depart(b, NONE, 0, a, 1, false);
        assert_eq!(table.abandon(|_| true), 2);
        assert_eq!((table.take(1), table.take(1)), (Some(b), Some(a)));
        // Now each comes behind the other.
        table.depart(a, NONE, 0, b, 2, false);
        table.recall(a, 3, 0);
        assert_eq!((table.free(), table.with_device()), (1, 0));
    }

    #[test]
    fn what_is_given_up_comes_back() {
        let table = table(&[(8, 4)], 0);
        for wr_id in 0..4 {
            let piece = table.take(1).unwrap();
            post(&table, piece, wr_id);
        }
        assert_eq!(table.abandon(|wr_id| wr_id % 2 == 1), 2);
        assert_eq!((table.free(), table.with_device()), (2, 2));
        assert_eq!(table.abandon(|_| true), 2);
        assert_eq!((table.free(), table.abandon(|_| true)), (4, 0));
    }

    #[test]
    fn pools_are_never_number_0() {
        for _ in 0..if cfg!(miri) { 10 } else { 70_000 } {
            assert!((1..=0xffff).contains(&new_pool()));
        }
    }
}
