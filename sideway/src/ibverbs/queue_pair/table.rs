//! A table from queue pair numbers to a program's own values.

use std::fmt;

/// Maps queue pair [numbers](super::QueuePair::qp_number), as completions report them, to a
/// program's values.
///
/// Servers usually have many queue pairs on one completion queue, so that each completion must lead
/// to the data of its peer. Numbers have 24 bits, and devices choose them freely. So this is a
/// two-level table whose pages are allocated on demand: 16 KiB for each 4096 numbers, and the
/// values in one array. A look-up takes three loads for any number of pairs, without hashing and
/// locking.
///
/// ```
/// use sideway::ibverbs::queue_pair::QueuePairTable;
///
/// let mut peers = QueuePairTable::new();
/// peers.insert(0x11, "alice");
/// peers.insert(0xff_fff0, "bob");
/// // The argument is `wc.qp_num()` of a completion.
/// assert_eq!(peers.get(0x11), Some(&"alice"));
/// assert_eq!(peers.get(0x12), None);
/// assert_eq!(peers.remove(0x11), Some("alice"));
/// ```
///
/// A device may reuse a number after its pair is gone. So poll a pair's last completions and remove
/// it from the table before you drop it.
#[derive(Clone)]
pub struct QueuePairTable<T> {
    /// The pages by the upper half of the number; `None` until a number of the page is inserted.
    pages: Vec<Option<Box<Page>>>,
    /// The numbers and values. A page entry is the index here plus one.
    values: Vec<(u32, T)>,
}

/// A page, by the lower half of the number: the value's index plus one, or 0 for no value.
type Page = [u32; PAGE];

const PAGE_BITS: u32 = 12;
const PAGE: usize = 1 << PAGE_BITS;
const PAGES: usize = 1 << (QueuePairTable::<()>::BITS - PAGE_BITS);

const fn halves(qp_num: u32) -> (usize, usize) {
    ((qp_num >> PAGE_BITS) as usize, qp_num as usize % PAGE)
}

impl<T> QueuePairTable<T> {
    /// The width of a queue pair number in bits.
    pub const BITS: u32 = 24;

    /// An empty table.
    pub const fn new() -> Self {
        Self { pages: Vec::new(), values: Vec::new() }
    }

    /// The number of queue pairs in the table.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    #[inline]
    fn place(&self, qp_num: u32) -> Option<usize> {
        let (page, at) = halves(qp_num);
        let place = self.pages.get(page)?.as_ref()?[at];
        (place as usize).checked_sub(1)
    }

    /// The value of a pair.
    #[inline]
    pub fn get(&self, qp_num: u32) -> Option<&T> {
        self.values.get(self.place(qp_num)?).map(|(_, value)| value)
    }

    /// The value of a pair, mutably.
    #[inline]
    pub fn get_mut(&mut self, qp_num: u32) -> Option<&mut T> {
        let place = self.place(qp_num)?;
        self.values.get_mut(place).map(|(_, value)| value)
    }

    /// Inserts a pair's value, and returns the previous one.
    ///
    /// # Panics
    ///
    /// If the number has more than [24 bits](Self::BITS), which no queue pair number has.
    pub fn insert(&mut self, qp_num: u32, value: T) -> Option<T> {
        if let Some(known) = self.get_mut(qp_num) {
            return Some(std::mem::replace(known, value));
        }
        let (page, at) = halves(qp_num);
        assert!(page < PAGES, "{qp_num:#x} has more than {} bits: it is no queue pair's number", Self::BITS);
        if self.pages.is_empty() {
            self.pages.resize_with(PAGES, || None);
        }
        self.values.push((qp_num, value));
        // The cast is lossless, because the table has at most 2^24 values.
        self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]))[at] = self.values.len() as u32;
        None
    }

    /// Removes a pair, and returns its value.
    pub fn remove(&mut self, qp_num: u32) -> Option<T> {
        let place = self.place(qp_num)?;
        let (_, value) = self.values.swap_remove(place);
        self.note(qp_num, 0);
        // `swap_remove` moved the last value here, so its page entry must be updated.
        if let Some(moved) = self.values.get(place).map(|(number, _)| *number) {
            self.note(moved, place as u32 + 1);
        }
        Some(value)
    }

    fn note(&mut self, qp_num: u32, place: u32) {
        let (page, at) = halves(qp_num);
        if let Some(Some(page)) = self.pages.get_mut(page) {
            page[at] = place;
        }
    }

    /// The numbers and values of all pairs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values.iter().map(|(number, value)| (*number, value))
    }
}

impl<T> Default for QueuePairTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for QueuePairTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_knows_what_a_map_knows() {
        let (mut table, mut map) = (QueuePairTable::new(), HashMap::new());
        // Covers distant, adjacent and repeated numbers: a pseudo-random generator chooses them.
        let mut state = 1_u32;
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        for round in 0..rounds {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = match round % 3 {
                0 => state >> 8,
                1 => state >> 24,
                _ => 0xff_ff00 | state >> 24,
            };
            if state & 0x80 == 0 {
                assert_eq!(table.insert(number, round), map.insert(number, round));
            } else {
                assert_eq!(table.remove(number), map.remove(&number));
            }
            assert_eq!(table.get(number), map.get(&number));
            assert_eq!(table.len(), map.len());
        }
        assert!(!map.is_empty());
        for (number, value) in &map {
            assert_eq!(table.get(*number), Some(value));
            *table.get_mut(*number).unwrap() += 1;
        }
        let all: HashMap<_, _> = table.iter().map(|(number, value)| (number, *value - 1)).collect();
        assert_eq!(all, map);
        for number in map.into_keys() {
            table.remove(number).unwrap();
        }
        assert!(table.is_empty());
    }

    #[test]
    fn numbers_that_are_no_pair_s_have_nothing() {
        let mut table = QueuePairTable::new();
        assert_eq!(table.get(u32::MAX), None::<&()>);
        table.insert(0xff_ffff, ());
        assert_eq!((table.get(u32::MAX), table.get(0x100_0000)), (None, None));
        assert_eq!(table.remove(u32::MAX), None);
        let refused = std::panic::catch_unwind(move || table.insert(0x100_0000, ()));
        assert!(refused.is_err());
    }
}
