//! Posting and polling allocate nothing, with a real library too.

use sideway::ibverbs::queue_pair::{PostSendGuard, WorkRequestFlags};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::Pair;
use crate::support::counting_allocator::allocations_during;
use crate::support::flavour::{CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    matrix!(suite: posting_and_polling_allocate_nothing);
}

fn posting_and_polling_allocate_nothing<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    const COUNT: u64 = 10_000;
    const LIST: u64 = 8;
    let mut pair = Pair::<Q, C>::new(test_device);
    let (lkey, addr) = (pair.a.mr.lkey(), pair.a.mr.get_ptr() as u64);
    let target = pair.b.remote(0);
    let (qp, cq) = (&mut pair.a.qp, &mut pair.a.send_cq);
    let (count, polled) = allocations_during(|| {
        let mut polled = 0;
        for first in (0..COUNT).step_by(LIST as usize) {
            let mut guard = qp.start_post_send();
            for n in first..first + LIST {
                // One completion for each list.
                let flags = WorkRequestFlags::Signaled.bits() * u32::from(n == first + LIST - 1);
                let handle = guard
                    .construct_wr(n, WorkRequestFlags::from_bits_retain(flags))
                    .setup_write(target.rkey, target.addr);
                // SAFETY: the node's memory outlives its pair, and no reference to it is made.
                unsafe { handle.setup_sge(lkey, addr, 8) };
            }
            guard.post().unwrap();
            let mut done = false;
            while !done {
                cq.poll(&mut |wc| {
                    done = wc.wr_id == first + LIST - 1;
                    polled += 1;
                })
                .unwrap();
            }
        }
        polled
    });
    assert_eq!((count, polled), (0, COUNT / LIST));
    Ok(())
}
