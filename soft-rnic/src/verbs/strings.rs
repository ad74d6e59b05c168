//! The string functions of libibverbs (`ibv_wc_status_str` and others).

use std::ffi::{CStr, c_char};

use rdma_mummy_sys::types::*;

fn word(words: &[&'static CStr], value: u32) -> *const c_char {
    let known = usize::try_from(value).ok().and_then(|value| words.get(value));
    known.copied().unwrap_or(c"unknown").as_ptr()
}

pub(super) unsafe extern "C" fn wc_status_str(status: ibv_wc_status) -> *const c_char {
    const WORDS: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(&WORDS, status.0)
}

pub(super) unsafe extern "C" fn node_type_str(node_type: ibv_node_type) -> *const c_char {
    const WORDS: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(&WORDS, node_type.0 as u32)
}

pub(super) unsafe extern "C" fn port_state_str(state: ibv_port_state) -> *const c_char {
    const WORDS: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    word(&WORDS, state.0)
}

pub(super) unsafe extern "C" fn event_type_str(event: ibv_event_type) -> *const c_char {
    const WORDS: [&CStr; 21] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    word(&WORDS, event.0)
}

pub(super) unsafe extern "C" fn wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    use ibv_wr_opcode as Op;
    let word = match opcode {
        Op::IBV_WR_RDMA_WRITE => c"rdma-write",
        Op::IBV_WR_RDMA_WRITE_WITH_IMM => c"rdma-write-with-imm",
        Op::IBV_WR_SEND => c"send",
        Op::IBV_WR_SEND_WITH_IMM => c"send-with-imm",
        Op::IBV_WR_RDMA_READ => c"rdma-read",
        Op::IBV_WR_ATOMIC_CMP_AND_SWP => c"atomic-cmp-and-swp",
        Op::IBV_WR_ATOMIC_FETCH_AND_ADD => c"atomic-fetch-and-add",
        Op::IBV_WR_LOCAL_INV => c"local-inv",
        Op::IBV_WR_BIND_MW => c"bind-mw",
        Op::IBV_WR_SEND_WITH_INV => c"send-with-inv",
        Op::IBV_WR_TSO => c"tso",
        Op::IBV_WR_DRIVER1 => c"driver1",
        Op::IBV_WR_FLUSH => c"flush",
        Op::IBV_WR_ATOMIC_WRITE => c"atomic-write",
        _ => c"unknown",
    };
    word.as_ptr()
}
