//! A copy routine that avoids slow `rep movsb` alignments.
//!
//! The C library copies long data by one instruction (`rep movsb`). Some processors (AMD's Zen 3
//! and 4) run it many times slower if the destination lies a few bytes behind the source, modulo
//! the page size of 4 KiB. Bytes behind a message's length, or in a program's buffer, lie there by
//! chance. Short copies use other instructions, which this does not affect. `cargo bench -p
//! trespass --bench copying` prints the ratio for this machine.

/// The largest length that the C library copies with other instructions, whichever vectors it uses.
const SHORT: usize = 2048;
/// The distance within which the instruction is slow. The effect was seen up to 15 bytes.
const NEAR: usize = 64;
const PAGE: usize = 4096;

/// Copies all of `from`, which is as long as `to`.
#[inline]
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    let ahead = to.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) % PAGE;
    if from.len() > SHORT && (1..NEAR).contains(&ahead) {
        in_pieces(to, from);
    } else {
        to.copy_from_slice(from);
    }
}

#[inline(never)]
fn in_pieces(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "as much as there is room for");
    to.chunks_mut(SHORT).zip(from.chunks(SHORT)).for_each(|(to, from)| to.copy_from_slice(from));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_complete_at_any_alignment() {
        let from: Vec<u8> = (0..4 * PAGE).map(|at| (at / 7) as u8).collect();
        let mut to = vec![0; from.len() + PAGE];
        // Every relative position within a page, and every length around a piece's.
        let (step, near) = if cfg!(miri) { (1009, 3) } else { (37, 2 * NEAR) };
        for ahead in (0..PAGE).step_by(step).chain(0..near) {
            for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 2 * SHORT, 2 * SHORT + 1, from.len()] {
                to.fill(0xee);
                copy(&mut to[ahead..ahead + len], &from[..len]);
                assert_eq!(to[ahead..ahead + len], from[..len], "{len} bytes, {ahead} ahead");
                assert!(to[ahead + len..].iter().take(64).all(|byte| *byte == 0xee), "and no more");
            }
        }
    }
}
