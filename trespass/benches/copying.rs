//! Compares the C library's copy with trespass's when the destination lies a few bytes further in
//! its page than the source. The unit is the time of a copy to the same place in a page.

use std::hint::black_box;
use std::time::Instant;

#[path = "../src/protocol/copying.rs"]
#[allow(unused_imports, reason = "its tests are the library's")]
mod copying;

const LEN: usize = 64 << 10;
const PAGE: usize = 4096;

fn main() {
    let (from, mut to) = (vec![1_u8; LEN], vec![0_u8; LEN + 2 * PAGE]);
    let same = from.as_ptr().addr().wrapping_sub(to.as_ptr().addr()) % PAGE;
    // Keeps the best of many turns, because other processes use the processor too.
    let mut seconds = |ahead: usize, copy: fn(&mut [u8], &[u8])| {
        let to = &mut to[same + ahead..][..LEN];
        let turn = |_| {
            let began = Instant::now();
            (0..8).for_each(|_| copy(black_box(&mut *to), black_box(&from)));
            began.elapsed().as_secs_f64()
        };
        (0..50).map(turn).fold(f64::INFINITY, f64::min)
    };
    let library = |to: &mut [u8], from: &[u8]| to.copy_from_slice(from);
    let plain = seconds(0, library);
    println!("64 KiB, times as long as to the same place in a page:");
    for ahead in [1, 8, 15, 16, 63, 64, 2048] {
        let (theirs, ours) = (seconds(ahead, library) / plain, seconds(ahead, copying::copy) / plain);
        println!("{ahead:>5} bytes further: {theirs:.1} by the C library, {ours:.1} by trespass");
    }
}
