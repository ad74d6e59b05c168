//! An operation in pieces, each of which fits a message.

use std::ops::Range;

use super::error::WindowError;
use super::key::WindowKey;
use super::message::{MOST_BYTES, MOST_RANGES, Operation, WindowRange, WindowRequest};

/// What one message moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) ranges: Vec<WindowRange>,
    /// The bytes of the buffer.
    pub(super) bytes: Range<usize>,
}

impl Piece {
    pub(super) fn request(&self, key: &WindowKey, operation: Operation) -> WindowRequest {
        let WindowKey { region, generation, .. } = *key;
        WindowRequest { operation, region, generation, ranges: self.ranges.clone() }
    }
}

/// The ranges of an operation.
#[derive(Clone)]
enum RangeList<'a> {
    Listed(&'a [(u64, u64)]),
    /// Ranges of one length at equal distances.
    Strided {
        offset: u64,
        stride: u64,
        len: u64,
        count: u64,
    },
}

impl Iterator for RangeList<'_> {
    type Item = WindowRange;

    fn next(&mut self) -> Option<WindowRange> {
        match self {
            Self::Listed(ranges) => {
                let ((offset, len), rest) = ranges.split_first()?;
                *ranges = rest;
                Some(WindowRange { offset: *offset, len: *len })
            }
            Self::Strided { offset, stride, len, count } => {
                *count = count.checked_sub(1)?;
                let range = WindowRange { offset: *offset, len: *len };
                // Behind the last range there is none, and `check` refuses others that are too far.
                *offset = offset.saturating_add(*stride);
                Some(range)
            }
        }
    }
}

/// The messages of an operation.
#[derive(Clone)]
pub(super) struct Pieces<'a> {
    ranges: RangeList<'a>,
    /// The rest of a range that did not fit a message.
    rest: Option<WindowRange>,
    /// The bytes of the buffer before the next piece.
    done: usize,
}

impl<'a> Pieces<'a> {
    /// Ranges, each an offset and a length, that have as many bytes as the buffer.
    pub(super) fn of_ranges(ranges: &'a [(u64, u64)], bytes: usize) -> Result<Self, WindowError> {
        let pieces = ranges.iter().fold(0_u64, |sum, (_, len)| sum.saturating_add(*len));
        if pieces != bytes as u64 {
            return Err(WindowError::Pieces { pieces, bytes: bytes as u64 });
        }
        Ok(Self { ranges: RangeList::Listed(ranges), rest: None, done: 0 })
    }

    /// One range.
    pub(super) fn of_one(offset: u64, len: usize) -> Self {
        let ranges = RangeList::Strided { offset, stride: 0, len: len as u64, count: 1 };
        Self { ranges, rest: None, done: 0 }
    }

    /// Ranges of `len` bytes that are `stride` apart, as many as the buffer has bytes for.
    pub(super) fn of_stride(offset: u64, stride: u64, len: usize, bytes: usize) -> Result<Self, WindowError> {
        if bytes > 0 && (len == 0 || !bytes.is_multiple_of(len)) {
            let pieces = bytes.checked_div(len).map_or(0, |count| count * len) as u64;
            return Err(WindowError::Pieces { pieces, bytes: bytes as u64 });
        }
        let ranges = RangeList::Strided {
            offset,
            stride,
            len: len as u64,
            count: bytes.checked_div(len).unwrap_or(0) as u64,
        };
        Ok(Self { ranges, rest: None, done: 0 })
    }

    /// Whether all ranges lie in the window.
    pub(super) fn check(&self, key: &WindowKey) -> Result<(), WindowError> {
        match self.ranges.clone().find(|range| !key.contains(range.offset, range.len)) {
            Some(WindowRange { offset, len }) => Err(WindowError::Range { offset, len, window: key.len }),
            None => Ok(()),
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let (mut piece, mut room) = (Piece { ranges: Vec::new(), bytes: self.done..self.done }, MOST_BYTES);
        while room > 0 && piece.ranges.len() < MOST_RANGES {
            let Some(WindowRange { offset, len }) = self.rest.take().or_else(|| self.ranges.next()) else {
                break;
            };
            let now = len.min(room as u64);
            if now < len {
                self.rest = Some(WindowRange { offset: offset + now, len: len - now });
            }
            if now > 0 {
                piece.ranges.push(WindowRange { offset, len: now });
            }
            room -= now as usize;
            piece.bytes.end += now as usize;
        }
        self.done = piece.bytes.end;
        (!piece.ranges.is_empty()).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: Pieces<'_>) -> Vec<Piece> {
        pieces.collect()
    }

    #[test]
    fn a_long_range_is_cut() {
        let len = 2 * MOST_BYTES + 5;
        let cut = all(Pieces::of_ranges(&[(7, len as u64)], len).unwrap());
        let ends: Vec<_> = cut.iter().map(|piece| (piece.ranges[0].offset, piece.bytes.clone())).collect();
        let most = MOST_BYTES as u64;
        assert_eq!(ends[0], (7, 0..MOST_BYTES));
        assert_eq!(ends[1], (7 + most, MOST_BYTES..2 * MOST_BYTES));
        assert_eq!(ends[2], (7 + 2 * most, 2 * MOST_BYTES..len));
        assert_eq!(ends.len(), 3);
    }

    #[test]
    fn short_ranges_share_a_message() {
        let ranges = vec![(3, 1); MOST_RANGES + 1];
        let shared = all(Pieces::of_ranges(&ranges, ranges.len()).unwrap());
        assert_eq!(shared.iter().map(|piece| piece.ranges.len()).collect::<Vec<_>>(), [MOST_RANGES, 1]);
        let strided = all(Pieces::of_stride(10, 100, 4, 12).unwrap());
        let offsets: Vec<_> = strided[0].ranges.iter().map(|range| (range.offset, range.len)).collect();
        assert_eq!(offsets, [(10, 4), (110, 4), (210, 4)]);
    }

    #[test]
    fn ranges_must_have_the_bytes_of_the_buffer() {
        let refused = |pieces: Result<Pieces<'_>, WindowError>| match pieces.err() {
            Some(WindowError::Pieces { pieces, bytes }) => (pieces, bytes),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Pieces::of_ranges(&[(0, 4), (8, u64::MAX)], 8)), (u64::MAX, 8));
        assert_eq!(refused(Pieces::of_stride(0, 8, 3, 8)), (6, 8));
        assert_eq!(refused(Pieces::of_stride(0, 8, 0, 8)), (0, 8));
        assert!(all(Pieces::of_stride(0, 8, 0, 0).unwrap()).is_empty());
    }

    proptest! {
        #[test]
        fn pieces_move_each_byte_once(
            ranges in proptest::collection::vec((0_u64..1 << 40, 0_u64..600_000), 0..8),
        ) {
            let total: u64 = ranges.iter().map(|(_, len)| *len).sum();
            let mut moved: Vec<(u64, u64)> = Vec::new();
            let mut done = 0;
            for piece in Pieces::of_ranges(&ranges, total as usize).unwrap() {
                prop_assert_eq!(piece.bytes.start, done);
                let len: u64 = piece.ranges.iter().map(|range| range.len).sum();
                prop_assert!(len <= MOST_BYTES as u64 && len == piece.bytes.len() as u64);
                done = piece.bytes.end;
                for WindowRange { offset, len } in piece.ranges {
                    match moved.last_mut() {
                        Some((last, until)) if *last + *until == offset => *until += len,
                        _ => moved.push((offset, len)),
                    }
                }
            }
            prop_assert_eq!(done as u64, total);
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for (offset, len) in ranges.into_iter().filter(|(_, len)| *len > 0) {
                match expected.last_mut() {
                    Some((last, until)) if *last + *until == offset => *until += len,
                    _ => expected.push((offset, len)),
                }
            }
            prop_assert_eq!(moved, expected);
        }
    }
}
