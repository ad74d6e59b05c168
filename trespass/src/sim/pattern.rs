//! The test pattern: each byte follows from its stream and its position, so that a receiver can
//! check it without the sent data.
//!
//! Every stream reads one table of random bytes round and round, and begins at a different place.
//! The table's length is a prime, so no power of two, sum of frames or sum of blocks leads back to
//! the same bytes. Therefore lost, repeated, moved or foreign bytes differ.

use super::rng::SimRng;
use std::ops::Range;
use std::sync::LazyLock;

const LENGTH: usize = 1_048_573;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = SimRng::new(0);
    let words = (0..LENGTH.div_ceil(8)).flat_map(|_| rng.number().to_le_bytes());
    words.take(LENGTH).collect()
});

/// Identifies one stream of bytes: a direction of a stream, or one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TestPattern(u64);

impl TestPattern {
    pub(super) fn new(seed: u64, direction: usize, message: u64) -> Self {
        Self(mix(mix(mix(seed).wrapping_add(direction as u64)).wrapping_add(message)) % LENGTH as u64)
    }

    /// Writes the bytes that begin at position `at`.
    pub(super) fn fill(self, at: u64, bytes: &mut [u8]) {
        for (range, expected) in self.parts(at, bytes.len()) {
            bytes[range].copy_from_slice(expected);
        }
    }

    /// The first position with a wrong byte.
    pub(super) fn first_difference(self, at: u64, bytes: &[u8]) -> Option<u64> {
        for (range, expected) in self.parts(at, bytes.len()) {
            let start = range.start;
            let got = &bytes[range];
            if got != expected {
                let inside = got.iter().zip(expected).position(|(got, expected)| got != expected);
                return Some(at + (start + inside.unwrap_or(0)) as u64);
            }
        }
        None
    }

    /// The `len` bytes from position `at`, as pieces of the table.
    fn parts(self, at: u64, len: usize) -> impl Iterator<Item = (Range<usize>, &'static [u8])> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let start = ((self.0 + at + done as u64) % LENGTH as u64) as usize;
            let part = (len - done).min(LENGTH - start);
            done += part;
            (part > 0).then(|| (done - part..done, &TABLE[start..start + part]))
        })
    }
}

/// The finalizer of splitmix64: it maps neighbouring values to unrelated ones.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[test]
fn a_changed_byte_is_found() {
    let pattern = TestPattern::new(1, 0, 7);
    let mut bytes = vec![0; 3 * LENGTH];
    pattern.fill(13, &mut bytes);
    assert_eq!(pattern.first_difference(13, &bytes), None);
    assert_eq!(pattern.first_difference(13 + 8, &bytes[8..]), None);
    assert_ne!(pattern.first_difference(14, &bytes), None);
    bytes[2 * LENGTH + 5] ^= 1;
    assert_eq!(pattern.first_difference(13, &bytes), Some(13 + 2 * LENGTH as u64 + 5));
}
