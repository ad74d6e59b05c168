use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::objects::completion::Cqe;
use crate::verbs::completion_queue::cq_of;
use crate::verbs::testing::{OpenedDevice, errno, table};

fn cqe(wr_id: u64) -> Cqe {
    Cqe {
        wr_id,
        opcode: ibv_wc_opcode::IBV_WC_RECV.0,
        vendor_err: 1,
        byte_len: 2,
        imm_data: 3u32.to_be(),
        qp_num: 4,
        src_qp: 5,
        wc_flags: ibv_wc_flags::IBV_WC_WITH_IMM.0,
        pkey_index: 0,
        sl: 6,
        dlid_path_bits: 7,
        slid: 8,
        ..Cqe::default()
    }
}

fn poll(cq: *mut ibv_cq, room: i32) -> Vec<u64> {
    let mut wc = vec![ibv_wc::default(); room.max(0) as usize];
    // SAFETY: the queue is live, and there is room.
    let count = unsafe { verbs::ibv_poll_cq(cq, room, wc.as_mut_ptr()) };
    wc[..count as usize].iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn completions_come_out_in_order() {
    let opened = OpenedDevice::new(0);
    let cq = opened.cq(5, ptr::null_mut());
    // SAFETY: the queue is live until it is destroyed.
    unsafe {
        assert_eq!(((*cq).cqe, (*cq).context, (*cq).channel), (5, opened.0, ptr::null_mut()));
        assert_eq!(poll(cq, 4), []);
        (0..5).for_each(|number| cq_of(cq).push(cqe(number), false));
        assert_eq!(poll(cq, 0), []);
        assert_eq!(poll(cq, -1), []);
        assert_eq!(poll(cq, 2), [0, 1]);
        cq_of(cq).push(cqe(5), false);
        assert_eq!(poll(cq, 16), [2, 3, 4, 5]);
        cq_of(cq).push(cqe(6), false);
        let mut wc = ibv_wc::default();
        assert_eq!(verbs::ibv_poll_cq(cq, 1, &raw mut wc), 1);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (6, ibv_wc_status(0), ibv_wc_opcode::IBV_WC_RECV));
        assert_eq!((wc.vendor_err, wc.byte_len, u32::from_be(wc.__bindgen_anon_1.imm_data)), (1, 2, 3));
        assert_eq!((wc.qp_num, wc.src_qp, wc.sl, wc.dlid_path_bits, wc.slid), (4, 5, 6, 7, 8));
        assert_eq!((table().ibv_destroy_cq)(cq), 0);
    }
}

#[test]
fn sizes_and_vectors_are_checked() {
    let opened = OpenedDevice::new(0);
    let create = table().ibv_create_cq;
    // SAFETY: the context is open.
    unsafe {
        let vectors = (*opened.0).num_comp_vectors;
        assert!(vectors >= 1);
        for (cqe, vector) in [(0, 0), (-1, 0), ((1 << 22) + 1, 0), (4, -1), (4, vectors)] {
            assert!(create(opened.0, cqe, ptr::null_mut(), ptr::null_mut(), vector).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        let last = create(opened.0, 4, ptr::null_mut(), ptr::null_mut(), vectors - 1);
        assert_eq!((table().ibv_destroy_cq)(last), 0);
    }
}

#[test]
fn queue_shrinks_to_the_completions_it_holds() {
    let opened = OpenedDevice::new(0);
    let cq = opened.cq(4, ptr::null_mut());
    let resize = table().ibv_resize_cq;
    // SAFETY: the queue is live until it is destroyed.
    unsafe {
        (0..4).for_each(|number| cq_of(cq).push(cqe(number), false));
        for refused in [0, -1, 3, (1 << 22) + 1] {
            assert_eq!(resize(cq, refused), libc::EINVAL);
            assert_eq!((*cq).cqe, 4);
        }
        assert_eq!(resize(cq, 6), 0);
        (4..6).for_each(|number| cq_of(cq).push(cqe(number), false));
        assert_eq!(poll(cq, 4), [0, 1, 2, 3]);
        assert_eq!((resize(cq, 2), (*cq).cqe), (0, 2));
        assert_eq!(poll(cq, 4), [4, 5]);
        let mut moderation = ibv_modify_cq_attr { attr_mask: 1, ..ibv_modify_cq_attr::default() };
        assert_eq!(verbs::ibv_modify_cq(cq, &raw mut moderation), 0);
        moderation.attr_mask = 2;
        assert_eq!(verbs::ibv_modify_cq(cq, &raw mut moderation), libc::EINVAL);
        assert_eq!((table().ibv_destroy_cq)(cq), 0);
    }
}

#[test]
fn completions_of_a_queue_pair_can_be_purged() {
    let opened = OpenedDevice::new(0);
    let cq = opened.cq(8, ptr::null_mut());
    // SAFETY: the queue is live until it is destroyed.
    unsafe {
        for (wr_id, qp_num) in [(1, 10), (2, 11), (3, 10), (4, 12)] {
            cq_of(cq).push(Cqe { qp_num, ..cqe(wr_id) }, false);
        }
        cq_of(cq).purge(10);
        assert_eq!(poll(cq, 8), [2, 4]);
        assert_eq!((table().ibv_destroy_cq)(cq), 0);
    }
}

fn create_ex(opened: &OpenedDevice, change: impl FnOnce(&mut ibv_cq_init_attr_ex)) -> *mut ibv_cq_ex {
    let mut attr = ibv_cq_init_attr_ex { cqe: 4, ..ibv_cq_init_attr_ex::default() };
    change(&mut attr);
    // SAFETY: the context is open.
    unsafe { verbs::ibv_create_cq_ex(opened.0, &raw mut attr) }
}

fn start(cq: *mut ibv_cq_ex) -> i32 {
    let mut attr = ibv_poll_cq_attr::default();
    // SAFETY: the queue is live.
    unsafe { verbs::ibv_start_poll(cq, &raw mut attr) }
}

const STANDARD: u64 = 0x7f;
const TIMESTAMP: u64 = 0x80;
const WALLCLOCK: u64 = 0x800;

#[test]
fn extended_poll_visits_every_completion() {
    let opened = OpenedDevice::new(0);
    for flags in [0, 1] {
        let cq = create_ex(&opened, |attr| {
            attr.wc_flags = STANDARD | TIMESTAMP;
            attr.comp_mask = 1;
            attr.flags = flags;
        });
        // SAFETY: the queue is live until it is destroyed, and a poll is ended before the next begins.
        unsafe {
            let state = cq_of(cq.cast());
            assert_eq!(start(cq), libc::ENOENT);
            state.push(cqe(1), false);
            state.push(Cqe { status: 5, ..cqe(2) }, false);
            assert_eq!(start(cq), 0);
            assert_eq!(((*cq).wr_id, (*cq).status), (1, ibv_wc_status(0)));
            assert_eq!(verbs::ibv_wc_read_opcode(cq), ibv_wc_opcode::IBV_WC_RECV);
            assert_eq!((verbs::ibv_wc_read_vendor_err(cq), verbs::ibv_wc_read_byte_len(cq)), (1, 2));
            assert_eq!(u32::from_be(verbs::ibv_wc_read_imm_data(cq)), 3);
            assert_eq!((verbs::ibv_wc_read_qp_num(cq), verbs::ibv_wc_read_src_qp(cq)), (4, 5));
            assert_eq!((verbs::ibv_wc_read_sl(cq), verbs::ibv_wc_read_dlid_path_bits(cq)), (6, 7));
            assert_eq!((verbs::ibv_wc_read_slid(cq), verbs::ibv_wc_read_wc_flags(cq)), (8, 2));
            let first = verbs::ibv_wc_read_completion_ts(cq);
            // Completions may arrive during a poll.
            state.push(cqe(3), false);
            assert_eq!(verbs::ibv_next_poll(cq), 0);
            assert_eq!(((*cq).wr_id, (*cq).status), (2, ibv_wc_status(5)));
            assert!(first > 0 && verbs::ibv_wc_read_completion_ts(cq) >= first);
            verbs::ibv_end_poll(cq);
            // Each way of polling continues where the other one stopped.
            state.push(cqe(4), false);
            assert_eq!(poll(cq.cast(), 1), [3]);
            assert_eq!((start(cq), (*cq).wr_id), (0, 4));
            assert_eq!(verbs::ibv_next_poll(cq), libc::ENOENT);
            verbs::ibv_end_poll(cq);
            let mut wrong = ibv_poll_cq_attr { comp_mask: 1 };
            assert_eq!(verbs::ibv_start_poll(cq, &raw mut wrong), libc::EINVAL);
            assert_eq!((table().ibv_destroy_cq)(cq.cast()), 0);
        }
    }
}

#[test]
fn only_requested_fields_have_readers() {
    let opened = OpenedDevice::new(0);
    let cq = create_ex(&opened, |attr| attr.wc_flags = 1 | WALLCLOCK);
    // SAFETY: the queue is live until it is destroyed.
    unsafe {
        assert!((*cq).read_byte_len.is_some() && (*cq).read_completion_wallclock_ns.is_some());
        assert!((*cq).read_opcode.is_some() && (*cq).read_wc_flags.is_some());
        assert!((*cq).read_imm_data.is_none() && (*cq).read_qp_num.is_none());
        assert!((*cq).read_src_qp.is_none() && (*cq).read_slid.is_none() && (*cq).read_sl.is_none());
        assert!((*cq).read_dlid_path_bits.is_none() && (*cq).read_completion_ts.is_none());
        assert!((*cq).read_cvlan.is_none() && (*cq).read_flow_tag.is_none());
        cq_of(cq.cast()).push(cqe(1), false);
        assert_eq!(start(cq), 0);
        #[cfg(not(miri))]
        {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            let wallclock = verbs::ibv_wc_read_completion_wallclock_ns(cq);
            let hour = 3_600_000_000_000;
            assert!(wallclock.abs_diff(now.as_nanos() as u64) < hour, "{wallclock} is not a time of day");
        }
        verbs::ibv_end_poll(cq);
        assert_eq!((table().ibv_destroy_cq)(cq.cast()), 0);
    }
}

#[test]
fn unsupported_operations_are_refused() {
    let opened = OpenedDevice::new(0);
    type Change = fn(&mut ibv_cq_init_attr_ex);
    let changes: [(Change, i32); 6] = [
        (|attr| attr.wc_flags = 1 << 8, libc::EOPNOTSUPP),
        (|attr| attr.wc_flags = 1 << 40, libc::EOPNOTSUPP),
        (|attr| (attr.comp_mask, attr.flags) = (1, 4), libc::EOPNOTSUPP),
        (|attr| attr.comp_mask = 2, libc::EOPNOTSUPP),
        (|attr| attr.comp_mask = 4, libc::EINVAL),
        (|attr| attr.cqe = 0, libc::EINVAL),
    ];
    for (change, error) in changes {
        assert!(create_ex(&opened, change).is_null());
        assert_eq!(errno(), error);
    }
}

#[test]
fn full_queue_may_lose_its_oldest_completions() {
    let opened = OpenedDevice::new(0);
    let cq = create_ex(&opened, |attr| (attr.comp_mask, attr.flags) = (1, 2));
    // SAFETY: the queue is live until it is destroyed.
    unsafe {
        (0..6).for_each(|number| cq_of(cq.cast()).push(cqe(number), false));
        assert_eq!(poll(cq.cast(), 8), [2, 3, 4, 5]);
        assert_eq!((table().ibv_destroy_cq)(cq.cast()), 0);
    }
}

#[test]
fn concurrent_pushes_and_polls_keep_the_order() {
    let opened = OpenedDevice::new(0);
    let cq = opened.cq(1 << 10, ptr::null_mut());
    let each = if cfg!(miri) { 20 } else { 5000 };
    // SAFETY: the queue is live until it is destroyed.
    let state = unsafe { cq_of(cq) };
    let taken = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for pusher in 0..2u64 {
            scope.spawn(move || {
                for number in 0..each {
                    let mine = Cqe { qp_num: pusher as u32, ..cqe(number) };
                    // The test must not overrun the queue.
                    while state.waiting() > 512 {
                        std::thread::yield_now();
                    }
                    state.push(mine, false);
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while taken.lock().unwrap().len() < 2 * each as usize {
                    let mut found = Vec::new();
                    // The lock covers the poll and the record, so that no other poller records in
                    // between.
                    let mut all = taken.lock().unwrap();
                    state.poll(7, &mut |cqe| found.push((cqe.qp_num, cqe.wr_id)));
                    all.extend(found);
                    drop(all);
                    std::thread::yield_now();
                }
            });
        }
    });
    let taken = taken.into_inner().unwrap();
    for pusher in 0..2 {
        let of_one: Vec<_> =
            taken.iter().filter(|(from, _)| *from == pusher).map(|(_, number)| *number).collect();
        assert_eq!(of_one, (0..each).collect::<Vec<_>>());
    }
    // SAFETY: all threads that used the queue have ended.
    assert_eq!(unsafe { (table().ibv_destroy_cq)(cq) }, 0);
}
