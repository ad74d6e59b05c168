//! Random sequences of safe calls must never violate the rules of the C interface.

use std::io::IoSlice;

use sideway::ibverbs::queue_pair::{
    LocalBufferHandle, PostSendGuard, QueuePair, ReadBufferHandle, ScatterGatherEntry, SendOperationFlags,
    WorkRequestFlags,
};

use super::FakeSetup;
use super::support::fake::{Fake, Faults};
use super::support::flavour::{CqFlavour, QpFlavour};

/// A small random number generator (splitmix64), with the same sequence in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn buffer<G: PostSendGuard>(handle: LocalBufferHandle<'_, G>, random: &mut Random) {
    let entry = ScatterGatherEntry::new(1, 2, 3);
    let entries = [entry; 4];
    let bytes = [1u8; 20];
    let pieces =
        [IoSlice::new(&bytes[..3]), IoSlice::new(&[]), IoSlice::new(&bytes[..5]), IoSlice::new(&bytes)];
    match random.below(8) {
        0 | 1 => {}
        // SAFETY: the fake device touches no memory.
        2 => unsafe { handle.setup_sge(1, 2, 3) },
        // SAFETY: the fake device touches no memory.
        3 => unsafe { handle.setup_sge_list(&entries[..random.below(4) as usize]) },
        4 => handle.setup_inline_data(&bytes[..random.below(20) as usize]),
        5 => handle.setup_inline_data_list(&pieces[..random.below(5) as usize]),
        _ => handle.setup_inline_data(&[]),
    }
}

fn filled<G: PostSendGuard>(handle: ReadBufferHandle<'_, G>, random: &mut Random) {
    let entries = [ScatterGatherEntry::new(1, 2, 3); 4];
    match random.below(4) {
        0 => {}
        // SAFETY: the fake device touches no memory.
        1 => unsafe { handle.setup_sge(1, 2, 3) },
        // SAFETY: the fake device touches no memory.
        _ => unsafe { handle.setup_sge_list(&entries[..random.below(4) as usize]) },
    }
}

fn list<Q: QueuePair>(qp: &mut Q, random: &mut Random) {
    let mut guard = qp.start_post_send();
    for _ in 0..random.below(6) {
        let flags = WorkRequestFlags::from_bits_retain(random.below(64) as u32);
        let handle = guard.construct_wr(random.below(1000), flags);
        match random.below(10) {
            0 => {}
            1 => buffer(handle.setup_send(), random),
            2 => buffer(handle.setup_send_imm(1), random),
            3 => buffer(handle.setup_write_imm(1, 2, 3), random),
            4 => filled(handle.setup_read(1, 2), random),
            5 => filled(handle.setup_atomic_compare_swap(1, 2, 3, 4), random),
            6 => filled(handle.setup_atomic_fetch_add(1, 2, 3), random),
            _ => buffer(handle.setup_write(1, 2), random),
        }
    }
    match random.below(8) {
        0 => drop(guard),
        1 => std::mem::forget(guard),
        _ => drop(guard.post()),
    }
}

fn receives<Q: QueuePair>(qp: &mut Q, random: &mut Random) {
    let entries = [ScatterGatherEntry::new(1, 2, 3); 4];
    let mut guard = qp.start_post_recv();
    for _ in 0..random.below(5) {
        let handle = guard.construct_wr(random.below(1000));
        match random.below(4) {
            // SAFETY: the fake device touches no memory.
            1 => unsafe { handle.setup_sge(1, 2, 3) },
            // SAFETY: the fake device touches no memory.
            2 => unsafe { handle.setup_sge_list(&entries[..random.below(5) as usize]) },
            _ => {}
        }
    }
    if random.below(4) > 0 {
        let _ = guard.post();
    }
}

fn sequence<Q: QpFlavour, C: CqFlavour>(seed: u64, about: impl FnOnce(&mut Faults)) {
    let fake = Fake::lying(about);
    let random = &mut Random(seed);
    let ops = SendOperationFlags::from_bits_retain(random.below(1 << 11)) - SendOperationFlags::of_windows();
    let mut setup =
        FakeSetup::<Q, C>::with(&fake, |cq| cq.setup_poll_batch(2), |qp| qp.setup_send_ops_flags(ops));
    for _ in 0..if cfg!(miri) { 4 } else { 40 } {
        match random.below(5) {
            0 => receives(&mut setup.qp, random),
            1 => setup.cq.leak_poller(random.below(4) as usize),
            2 => drop(setup.cq.poll_up_to(random.below(4) as usize, &mut |_| {})),
            _ => list(&mut setup.qp, random),
        }
    }
}

fn all_flavours(seed: u64, about: fn(&mut Faults)) {
    fn with_cq<C: CqFlavour>(seed: u64, about: fn(&mut Faults)) {
        fn with_both<Q: QpFlavour, C: CqFlavour>(seed: u64, about: fn(&mut Faults)) {
            sequence::<Q, C>(seed, about);
        }
        use sideway::ibverbs::queue_pair::{BasicQueuePair, ExtendedQueuePair, GenericQueuePair};
        with_both::<BasicQueuePair, C>(seed, about);
        with_both::<ExtendedQueuePair, C>(seed, about);
        with_both::<GenericQueuePair, C>(seed, about);
    }
    for_each_cq!(with_cq(seed, about));
}

#[test]
fn any_sequence_keeps_the_rules() {
    let lies: [fn(&mut Faults); 7] = [
        |_| {},
        |l| l.vendor_id = 0xff_ffff,
        |l| l.wr_complete = libc::ENOMEM,
        |l| l.next_poll = Some((2, libc::EIO)),
        |l| l.missing = &["wr_rdma_write", "wr_set_inline_data"],
        |l| l.completion = Some([9, 200, u32::MAX]),
        |l| l.granted = Some(1),
    ];
    for seed in 0..if cfg!(miri) { 1 } else { 60 } {
        for about in lies {
            all_flavours(seed, about);
        }
    }
}
