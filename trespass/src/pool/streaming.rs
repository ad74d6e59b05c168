//! Streaming copies, for memory that another core reads next.
//!
//! Over a software device the peer's processor reads the data, and its caches then hold the lines.
//! Writing there again by ordinary stores costs a message between the cores for each line, one
//! after the other: 30 ns each on some processors, 2 GB/s. Streaming stores need no answer, and are
//! more than ten times as fast. A hardware device leaves no such lines.

/// Copies all of `from`, and orders it before later stores.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// A cache line: storing the whole line at once spares the processor from reading it first.
    const LINE: usize = 64;
    const PIECE: usize = size_of::<__m128i>();

    assert_eq!(to.len(), from.len(), "as much as there is room for");
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let ((to_head, to), (from_head, from)) = (to.split_at_mut(head), from.split_at(head));
    to_head.copy_from_slice(from_head);
    let (lines, rest) = to.as_chunks_mut::<LINE>();
    let (from_lines, from_rest) = from.as_chunks::<LINE>();
    for (line, from) in lines.iter_mut().zip(from_lines) {
        for at in (0..LINE).step_by(PIECE) {
            // SAFETY: a line consists of four pieces on both sides; the destination's begins at a
            // multiple of a line's size, after the head.
            unsafe {
                let piece = _mm_loadu_si128(from.as_ptr().add(at).cast());
                _mm_stream_si128(line.as_mut_ptr().add(at).cast(), piece);
            }
        }
    }
    rest.copy_from_slice(from_rest);
    // Streaming stores are not ordered by themselves. SAFETY: every x86-64 processor has the
    // instruction.
    unsafe { _mm_sfence() };
}

/// Copies all of `from`.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_writes_exactly_its_range() {
        let from: Vec<u8> = (0..400u16).map(|n| n as u8 | 1).collect();
        for (at, len) in (0..70).flat_map(|at| [0, 1, 15, 63, 64, 65, 128, 300].map(|len| (at, len))) {
            let mut to = vec![0; 400];
            copy(&mut to[at..at + len], &from[7..7 + len]);
            let expected: Vec<u8> = [&vec![0; at][..], &from[7..7 + len], &vec![0; 400 - at - len]].concat();
            assert_eq!(to, expected, "{len} bytes at {at}");
        }
    }
}
