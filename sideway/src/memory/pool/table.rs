//! The table of a pool's pieces: which are free, taken, or with a device. It knows no devices, and
//! accesses no pool memory.
//!
//! A *piece* is a part of a slot that is taken and posted as a whole; its index in the table
//! identifies it. Every slot is a piece with the same index. A slot that is cut borrows further
//! table entries for its other pieces, until all of them are back.
//!
//! A piece always has one of three owners: a free list, a [`Slice`](super::Slice), or the device. A
//! piece with the device is identified by its *ticket*. The work request carries the ticket in
//! place of the program's number.
//!
//! # Tickets
//!
//! | bits | |
//! | --- | --- |
//! | 40 to 63 | the number of times the piece was posted |
//! | 24 to 39 | the pool; never 0, so that no small number is a ticket |
//! | 23 | the piece is not with the device |
//! | 0 to 22 | the piece |
//!
//! The table holds each piece's ticket. A number is the ticket of a piece with the device if, and
//! only if, the table entry at the number's index contains that number. (With bit 23 set, the index
//! would exceed every table.) So a look-up takes two comparisons, each ticket is accepted once, and
//! wrong or old numbers are detected.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The maximum number of entries in a table.
pub(super) const MAX_PIECES: usize = 1 << 23;

/// The maximum number of different slot sizes.
pub(super) const MAX_SIZES: usize = 8;

/// Stands for the request before the first of a list.
pub(crate) const NO_REQUEST: u32 = u32::MAX;

const PLACE: u64 = (1 << 24) - 1;
const AT_HOME: u64 = 1 << 23;
const POOL_SHIFT: u32 = 24;
const ONCE: u64 = 1 << 40;

/// A bit of [`PieceEntry::cut`].
const CUT: u32 = 1 << 31;

/// A bit of [`PieceEntry::index`].
const RECEIVE: u32 = 1 << 31;

pub(super) struct PieceTable {
    /// A leaked box, because pointers into it are kept.
    places: NonNull<[PieceEntry]>,
    sizes: [Size; MAX_SIZES],
    /// The list of entries without a piece.
    spare: Cell<Option<PoolPiece>>,
}

/// The slots of one size; the sizes are in ascending order.
struct Size {
    bytes: u32,
    /// The list of free slots.
    free: Cell<Option<PoolPiece>>,
}

/// A reference to a piece's entry in the table.
///
/// It is valid as long as the table, and only for that table. Its holder keeps the table alive, and
/// passes the piece to no other table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PoolPiece(NonNull<PieceEntry>);

/// The table entry of a piece. It takes one cache line, so that entries do not share lines.
#[repr(align(64))]
struct PieceEntry {
    ticket: Cell<u64>,
    /// The number that the program gave the work request.
    wr_id: Cell<u64>,
    start: Cell<*mut u8>,
    /// The next piece in a free list or in the same work request.
    next: Cell<Option<PoolPiece>>,
    len: Cell<u32>,
    capacity: Cell<u32>,
    /// For the first piece of a work request: the index of the first piece of the previous request
    /// in the same list.
    before: Cell<u32>,
    /// For the first piece of a work request: its number in the list, with [`RECEIVE`] for a
    /// receive.
    index: Cell<u32>,
    /// The slot that the piece is part of; and the index of the slot's size.
    slot: Cell<u32>,
    size: u32,
    /// For a slot: the number of its pieces that are not free, with [`CUT`] once it has been cut.
    /// For other entries: 0.
    cut: Cell<u32>,
}

const _: () = assert!(size_of::<PieceEntry>() == 64);

/// The position of a work request with pieces in its list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// The [index](place_of) of the first piece of the previous request with pieces, or
    /// [`NO_REQUEST`].
    pub(crate) before: u32,
    /// The request's number in the list.
    pub(crate) index: u32,
    pub(crate) is_receive: bool,
}

/// A work request that has come back from the device.
pub(super) struct ReclaimedRequest {
    pub(super) piece: PoolPiece,
    /// The request's next piece.
    pub(super) rest: Option<PoolPiece>,
    pub(super) wr_id: u64,
    pub(super) is_receive: bool,
}

impl PieceTable {
    /// A table of slots of these sizes in ascending order, and `spare` further entries. `start_of`
    /// returns the address of each slot. At most [`MAX_SIZES`] sizes, and [`MAX_PIECES`] entries.
    pub(super) fn new(
        sizes: &[(u32, u32)],
        spare: u32,
        mut start_of: impl FnMut(usize, u32) -> *mut u8,
    ) -> Self {
        let pool = new_pool();
        let mut places = Vec::new();
        for (at, &(bytes, count)) in sizes.iter().enumerate() {
            places.extend((0..count).map(|n| (start_of(at, n), bytes, at as u32, 1)));
        }
        places.extend((0..spare).map(|_| (std::ptr::null_mut(), 0, 0, 0)));
        let places = (0..).zip(places).map(|(n, (start, bytes, size, cut))| PieceEntry {
            ticket: Cell::new(pool << POOL_SHIFT | AT_HOME | u64::from(n)),
            wr_id: Cell::new(0),
            start: Cell::new(start),
            next: Cell::new(None),
            len: Cell::new(bytes),
            capacity: Cell::new(bytes),
            before: Cell::new(NO_REQUEST),
            index: Cell::new(0),
            slot: Cell::new(n),
            size,
            cut: Cell::new(cut),
        });
        let places = NonNull::from(Box::leak(places.collect()));
        let bytes = |at: usize| sizes.get(at).map_or(0, |(bytes, _)| *bytes);
        let sizes = std::array::from_fn(|at| Size { bytes: bytes(at), free: Cell::new(None) });
        let table = Self { places, sizes, spare: Cell::new(None) };
        // In reverse, so that the lists start with the lowest index.
        for number in (0..table.places().len()).rev() {
            let piece = PoolPiece(NonNull::from(&table.places()[number]));
            let place = table.place(piece);
            match place.cut.get() {
                0 => place.next.set(table.spare.replace(Some(piece))),
                _ => table.push(piece, place),
            }
        }
        table
    }

    #[inline]
    fn places(&self) -> &[PieceEntry] {
        // SAFETY: the box was leaked, and lives as long as the table. Nobody has a mutable
        // reference to it.
        unsafe { self.places.as_ref() }
    }

    #[inline]
    fn place(&self, piece: PoolPiece) -> &PieceEntry {
        // SAFETY: a piece is used with its own table only, which is alive.
        unsafe { piece.0.as_ref() }
    }

    #[inline]
    pub(super) fn start(&self, piece: PoolPiece) -> *mut u8 {
        self.place(piece).start.get()
    }

    #[inline]
    pub(super) fn len(&self, piece: PoolPiece) -> u32 {
        self.place(piece).len.get()
    }

    #[inline]
    pub(super) fn capacity(&self, piece: PoolPiece) -> u32 {
        self.place(piece).capacity.get()
    }

    /// Sets a piece's length. `len` must not exceed the piece's capacity.
    #[inline]
    pub(super) fn set_len(&self, piece: PoolPiece, len: u32) {
        self.place(piece).len.set(len);
    }

    /// Takes the smallest free slot of at least `bytes` bytes.
    #[inline]
    pub(super) fn take(&self, bytes: u32) -> Option<PoolPiece> {
        for size in &self.sizes {
            if let Some(slot) = size.free.get()
                && bytes <= size.bytes
            {
                size.free.set(self.place(slot).next.get());
                return Some(slot);
            }
        }
        None
    }

    /// Returns a piece that is taken, and not with the device.
    #[inline]
    pub(super) fn give_back(&self, piece: PoolPiece) {
        let place = self.place(piece);
        if place.cut.get() != 1 {
            return self.give_part_back(piece);
        }
        place.len.set(place.capacity.get());
        self.push(piece, place);
    }

    #[inline]
    fn push(&self, slot: PoolPiece, place: &PieceEntry) {
        let free = &self.sizes[place.size as usize % MAX_SIZES].free;
        place.next.set(free.replace(Some(slot)));
    }

    /// Returns a piece of a slot that was cut.
    #[cold]
    #[inline(never)]
    fn give_part_back(&self, piece: PoolPiece) {
        let part = self.place(piece);
        let slot = &self.places()[part.slot.get() as usize];
        if !std::ptr::eq(part, slot) {
            part.cut.set(0);
            part.next.set(self.spare.replace(Some(piece)));
        }
        let left = slot.cut.get() - 1;
        slot.cut.set(left);
        if left == CUT {
            let bytes = self.sizes[slot.size as usize].bytes;
            slot.capacity.set(bytes);
            slot.len.set(bytes);
            slot.cut.set(1);
            self.push(PoolPiece(NonNull::from(slot)), slot);
        }
    }

    /// Cuts a piece in two; the first part has `mid` bytes, and the other one is returned. `None`
    /// if no table entry is left for it.
    pub(super) fn cut(&self, piece: PoolPiece, mid: u32) -> Option<PoolPiece> {
        let (first, other) = (self.place(piece), self.spare.get()?);
        let place = self.place(other);
        self.spare.set(place.next.get());
        place.start.set(first.start.get().wrapping_add(mid as usize));
        place.len.set(first.len.get() - mid);
        place.capacity.set(first.capacity.get() - mid);
        place.slot.set(first.slot.get());
        first.len.set(mid);
        first.capacity.set(mid);
        let slot = &self.places()[first.slot.get() as usize];
        slot.cut.set((slot.cut.get() + 1) | CUT);
        Some(other)
    }

    /// Passes a piece to the device, with the pieces that [`chain`](Self::chain) has linked from
    /// `rest` on. Returns the ticket.
    #[inline]
    pub(super) fn depart(&self, piece: PoolPiece, rest: Option<PoolPiece>, wr_id: u64, at: Position) -> u64 {
        let place = self.place(piece);
        let ticket = place.ticket.get() - AT_HOME;
        place.ticket.set(ticket);
        place.wr_id.set(wr_id);
        place.next.set(rest);
        place.before.set(at.before);
        place.index.set(at.index | if at.is_receive { RECEIVE } else { 0 });
        ticket
    }

    /// Links a piece before other pieces of the same request.
    #[inline]
    pub(super) fn chain(&self, piece: PoolPiece, rest: Option<PoolPiece>) {
        self.place(piece).next.set(rest);
    }

    /// The next piece of the same request.
    #[inline]
    pub(super) fn behind(&self, piece: PoolPiece) -> Option<PoolPiece> {
        self.place(piece).next.get()
    }

    /// Takes a piece, and those linked to it, back from the device, if `ticket` is its ticket.
    #[inline]
    pub(super) fn arrive(&self, ticket: u64) -> Option<ReclaimedRequest> {
        let place = self.places().get((ticket & PLACE) as usize)?;
        if place.ticket.get() != ticket {
            return None;
        }
        place.ticket.set(ticket.wrapping_add(ONCE + AT_HOME));
        let is_receive = place.index.get() & RECEIVE != 0;
        let piece = PoolPiece(NonNull::from(place));
        Some(ReclaimedRequest { piece, rest: place.next.get(), wr_id: place.wr_id.get(), is_receive })
    }

    /// Returns pieces of a list of `count` requests, of which `last` is the last one with pieces.
    /// It returns the pieces of the requests from number `posted` on, which the device did not get.
    #[cold]
    #[inline(never)]
    pub(super) fn recall(&self, mut last: u32, count: u32, posted: u32) {
        // Bounded by the number of requests: if pieces came back while the list was built, they may
        // be in use again, with other links.
        for _ in 0..count {
            let Some(place) = self.places().get(last as usize) else { return };
            last = place.before.get();
            if place.index.get() & !RECEIVE >= posted {
                self.retake(place.ticket.get());
            }
        }
    }

    /// Returns the pieces of all work requests with the device for whose number `is_given_up`
    /// returns true. Returns the number of these requests.
    pub(super) fn abandon(&self, mut is_given_up: impl FnMut(u64) -> bool) -> usize {
        let given_up = self.with_device().filter(|place| is_given_up(place.wr_id.get()));
        given_up.filter(|place| self.retake(place.ticket.get())).count()
    }

    /// Returns the pieces with this ticket, if the device has them.
    fn retake(&self, ticket: u64) -> bool {
        let Some(ReclaimedRequest { piece, mut rest, .. }) = self.arrive(ticket) else { return false };
        self.give_back(piece);
        while let Some(piece) = rest {
            rest = self.behind(piece);
            self.give_back(piece);
        }
        true
    }

    /// The number of free slots.
    pub(super) fn free(&self) -> usize {
        let free = |size: &Size| std::iter::successors(size.free.get(), |slot| self.behind(*slot)).count();
        self.sizes.iter().map(free).sum()
    }

    /// The number of work requests with the device.
    pub(super) fn in_flight(&self) -> usize {
        self.with_device().count()
    }

    fn with_device(&self) -> impl Iterator<Item = &PieceEntry> {
        self.places().iter().filter(|place| place.ticket.get() & AT_HOME == 0)
    }
}

impl Drop for PieceTable {
    fn drop(&mut self) {
        // SAFETY: `new` leaked this box, and only this line rebuilds it.
        drop(unsafe { Box::from_raw(self.places.as_ptr()) });
    }
}

/// The table index of a ticket's piece.
#[inline]
pub(crate) fn place_of(ticket: u64) -> u32 {
    (ticket & PLACE) as u32
}

/// A number of 16 bits, not 0, that distinguishes the tickets of different pools.
fn new_pool() -> u64 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    u64::from(LAST.fetch_add(1, Ordering::Relaxed) % 0xffff) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(sizes: &[(u32, u32)], spare: u32) -> PieceTable {
        let mut end = 0;
        PieceTable::new(sizes, spare, |at, _| {
            let start = std::ptr::without_provenance_mut(end + 1);
            end += sizes[at].0 as usize;
            start
        })
    }

    const ALONE: Position = Position { before: NO_REQUEST, index: 0, is_receive: false };

    fn post(table: &PieceTable, piece: PoolPiece, wr_id: u64) -> u64 {
        table.depart(piece, None, wr_id, ALONE)
    }

    /// The table index of a piece.
    fn at(table: &PieceTable, piece: Option<PoolPiece>) -> Option<u64> {
        piece.map(|piece| table.place(piece).ticket.get() & (AT_HOME - 1))
    }

    #[test]
    fn the_smallest_slot_that_is_free_and_fits_is_taken() {
        let table = table(&[(64, 2), (256, 1)], 0);
        assert_eq!(table.free(), 3);
        let take = |bytes| at(&table, table.take(bytes));
        let small = table.take(1).unwrap();
        assert_eq!(at(&table, Some(small)), Some(0));
        let large = table.take(65).unwrap();
        assert_eq!((at(&table, Some(large)), take(65), take(64), take(0)), (Some(2), None, Some(1), None));
        assert_eq!((table.free(), table.len(small), table.len(large)), (0, 64, 256));
        table.give_back(large);
        assert_eq!(take(0), Some(2), "a larger one, where there is no other");
        table.set_len(large, 7);
        table.give_back(large);
        assert_eq!((take(256), table.len(large), take(257)), (Some(2), 256, None));
    }

    #[test]
    fn a_ticket_is_given_back_once() {
        let table = table(&[(64, 2)], 0);
        let (one, two) = (table.take(1).unwrap(), table.take(1).unwrap());
        let tickets = [post(&table, one, 7), post(&table, two, 8)];
        assert_eq!(table.in_flight(), 2);
        let arrival = table.arrive(tickets[1]).unwrap();
        assert_eq!((arrival.piece, arrival.wr_id, arrival.rest, arrival.is_receive), (two, 8, None, false));
        assert!(table.arrive(tickets[1]).is_none());
        // The piece gets a different ticket the next time.
        let again = post(&table, two, 9);
        assert_ne!(again, tickets[1]);
        assert!(table.arrive(tickets[1]).is_none());
        assert_eq!(table.arrive(again).unwrap().wr_id, 9);
        assert_eq!(table.arrive(tickets[0]).unwrap().piece, one);
        assert_eq!(table.in_flight(), 0);
    }

    #[test]
    fn rejects_wr_ids_that_are_no_tickets() {
        let (table, other) = (table(&[(64, 1)], 1), table(&[(64, 1)], 0));
        let piece = table.take(1).unwrap();
        let home = table.place(piece).ticket.get();
        for number in [0, 1, 2, 1 << 24, home, u64::MAX] {
            assert!(table.arrive(number).is_none(), "{number:#x}");
        }
        let ticket = post(&table, piece, 0);
        for number in [0, home, ticket + 1, ticket ^ ONCE, ticket ^ 1 << POOL_SHIFT, ticket | AT_HOME] {
            assert!(table.arrive(number).is_none(), "{number:#x}");
        }
        post(&other, other.take(1).unwrap(), 0);
        assert!(other.arrive(ticket).is_none(), "another pool's");
        assert!(table.arrive(ticket).is_some());
    }

    #[test]
    fn a_number_that_wraps_stays_the_pools_own() {
        let table = table(&[(64, 1)], 0);
        let piece = table.take(1).unwrap();
        let place = table.place(piece);
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
        // All orders in which three pieces can come back.
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
        let mut last = NO_REQUEST;
        let mut tickets = Vec::new();
        // Request 1 has three pieces; request 2 has none of this table.
        for (index, rest) in [(0, 0), (1, 2), (3, 0)] {
            let rest = (0..rest).fold(None, |behind, _| {
                let piece = table.take(1).unwrap();
                table.chain(piece, behind);
                Some(piece)
            });
            let at = Position { before: last, index: index as u32, is_receive: index == 0 };
            let ticket = table.depart(table.take(1).unwrap(), rest, index, at);
            last = place_of(ticket);
            tickets.push(ticket);
        }
        assert_eq!((table.free(), table.in_flight()), (1, 3));
        table.recall(last, 4, 2);
        assert_eq!((table.free(), table.in_flight()), (2, 2));
        assert!(table.arrive(tickets[2]).is_none());
        table.recall(last, 4, 1);
        assert_eq!((table.free(), table.in_flight()), (5, 1), "and what came back before is left alone");
        let arrival = table.arrive(tickets[0]).unwrap();
        assert!(arrival.is_receive);
        table.give_back(arrival.piece);
        assert_eq!(table.free(), 6);
    }

    #[test]
    fn lists_whose_pieces_came_back_meanwhile_end() {
        let table = table(&[(8, 2)], 0);
        let (a, b) = (table.take(1).unwrap(), table.take(1).unwrap());
        let depart = |piece, before, index| {
            place_of(table.depart(piece, None, 0, Position { before, index, is_receive: false }))
        };
        let first = depart(a, NO_REQUEST, 0);
        let second = depart(b, first, 1);
        assert_eq!(table.abandon(|_| true), 2);
        assert_eq!((table.take(1), table.take(1)), (Some(b), Some(a)));
        // Now each request is linked to the other.
        let third = depart(a, second, 2);
        table.recall(third, 3, 0);
        assert_eq!((table.free(), table.in_flight()), (1, 0));
    }

    #[test]
    fn dropped_pieces_return_to_the_table() {
        let table = table(&[(8, 4)], 0);
        for wr_id in 0..4 {
            let piece = table.take(1).unwrap();
            post(&table, piece, wr_id);
        }
        assert_eq!(table.abandon(|wr_id| wr_id % 2 == 1), 2);
        assert_eq!((table.free(), table.in_flight()), (2, 2));
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
