//! Polling completion queues.

use core::ffi::{c_int, c_uint};
use core::mem::offset_of;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{cq_ex_op, verbs};

use super::fake::*;
use super::word::*;

struct_cases! {
    CQ_CASES, ibv_cq_ex of verbs, shorter by |release| release.cq_ex;
    ibv_start_poll(attr: *mut ibv_poll_cq_attr) -> c_int = start_poll;
    ibv_next_poll() -> c_int = next_poll;
    ibv_end_poll() = end_poll;
    ibv_wc_read_opcode() -> ibv_wc_opcode = read_opcode;
    ibv_wc_read_vendor_err() -> u32 = read_vendor_err;
    ibv_wc_read_byte_len() -> u32 = read_byte_len;
    ibv_wc_read_imm_data() -> __be32 = read_imm_data;
    ibv_wc_read_invalidated_rkey() -> u32 = read_imm_data;
    ibv_wc_read_qp_num() -> u32 = read_qp_num;
    ibv_wc_read_src_qp() -> u32 = read_src_qp;
    ibv_wc_read_wc_flags() -> c_uint = read_wc_flags;
    ibv_wc_read_slid() -> u32 = read_slid;
    ibv_wc_read_sl() -> u8 = read_sl;
    ibv_wc_read_dlid_path_bits() -> u8 = read_dlid_path_bits;
    ibv_wc_read_completion_ts() -> u64 = read_completion_ts;
    ibv_wc_read_completion_wallclock_ns() -> u64 = read_completion_wallclock_ns;
    ibv_wc_read_cvlan() -> u16 = read_cvlan;
    ibv_wc_read_flow_tag() -> u32 = read_flow_tag;
    ibv_wc_read_tm_info(info: *mut ibv_wc_tm_info) = read_tm_info;
}

classic_cases! {
    ibv_poll_cq(cq: ibv_cq, n: c_int, wc: *mut ibv_wc) = poll_cq;
    ibv_req_notify_cq(cq: ibv_cq, solicited: c_int) = req_notify_cq;
}

tests! {
    fn ibv_cq_ex_to_cq() {
        let fake = Fake::<ibv_cq_ex>::new();
        assert_eq!(verbs::ibv_cq_ex_to_cq(fake.ptr()).addr(), fake.ptr().addr());
        assert_eq!(offset_of!(ibv_cq_ex, async_events_completed), offset_of!(ibv_cq, async_events_completed));
    }
}

/// The flags of the late readers, oldest first.
const LATE: [u64; 5] = [1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11];

/// Which of the late readers exist in a queue that ends with the n-th of them and was created with
/// `flags`.
fn late_readers(n: usize, flags: u64) -> [bool; 5] {
    let offsets = [
        offset_of!(ibv_cq_ex, read_completion_ts),
        offset_of!(ibv_cq_ex, read_cvlan),
        offset_of!(ibv_cq_ex, read_flow_tag),
        offset_of!(ibv_cq_ex, read_tm_info),
        offset_of!(ibv_cq_ex, read_completion_wallclock_ns),
    ];
    let end = n.checked_sub(1).map_or(offset_of!(ibv_cq_ex, read_dlid_path_bits), |n| offsets[n]);
    let fake = Fake::<ibv_cq_ex>::ending_with(end);
    for offset in &offsets[..n] {
        // Any function serves, because none is called.
        let reader = recorder!(read_completion_ts(cq: *mut ibv_cq_ex) -> u64);
        fake.field(*offset, |cq| &cq.read_completion_ts).write(Some(reader));
    }
    let cq = fake.ptr();
    // SAFETY: the queue is live, and long enough for the flags.
    unsafe {
        assert!(cq_ex_op!(cq, start_poll, flags).is_none(), "an old operation that is empty");
        [
            cq_ex_op!(cq, read_completion_ts, flags).is_some(),
            cq_ex_op!(cq, read_cvlan, flags).is_some(),
            cq_ex_op!(cq, read_flow_tag, flags).is_some(),
            cq_ex_op!(cq, read_tm_info, flags).is_some(),
            cq_ex_op!(cq, read_completion_wallclock_ns, flags).is_some(),
        ]
    }
}

#[test]
fn a_reader_is_looked_for_only_where_the_flags_say_it_is() {
    assert_eq!(late_readers(0, 0), [false; 5]);
    assert_eq!(late_readers(0, 0x7f), [false; 5], "the standard flags");
    for n in 1..=5 {
        // The n-th flag means that the struct reaches to the n-th reader.
        let expected: [bool; 5] = core::array::from_fn(|reader| reader < n);
        assert_eq!(late_readers(n, LATE[n - 1]), expected);
        assert_eq!(late_readers(n, LATE[n - 1] | 0x7f), expected);
    }
}
