//! Verbs that most devices refuse, each called once with valid arguments; and the library's own
//! tables of names and rates.

use std::ffi::CStr;
use std::ptr::null_mut;

use libc::EOPNOTSUPP;
use rdma_mummy_sys::Provider;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::handle::errno;
use super::{Cq, Device, Pd, Qp, Srq};

/// A library that lacks a function is older than the verb.
const NO_SUCH_FUNCTION: &str = "the library is older than this verb";

/// The error number of a call, 0 for success; or the reason why it was not possible.
pub(crate) type CallResult = Result<i32, &'static str>;

fn of_pointer<T>(made: *mut T) -> i32 {
    if made.is_null() { errno() } else { 0 }
}

impl Device {
    /// `ibv_alloc_dmah`.
    pub(crate) fn alloc_dmah(&self) -> CallResult {
        let alloc = self.lib().ibv_alloc_dmah().map_err(|_| NO_SUCH_FUNCTION)?;
        let mut attr = ibv_dmah_init_attr::default();
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        Ok(of_pointer(unsafe { alloc(self.raw(), &raw mut attr) }))
    }

    /// `ibv_query_comp_cntr_caps` and `ibv_create_comp_cntr`.
    pub(crate) fn completion_counters(&self) -> Result<[i32; 2], &'static str> {
        let create = self.lib().ibv_create_comp_cntr().map_err(|_| NO_SUCH_FUNCTION)?;
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: `RawHandle` checks that the context lives, the result is a local variable.
        let asked = unsafe { verbs::ibv_query_comp_cntr_caps(self.lib(), self.raw(), &raw mut caps) };
        let mut attr = ibv_comp_cntr_init_attr::default();
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        Ok([asked, of_pointer(unsafe { create(self.raw(), &raw mut attr) })])
    }

    /// `ibv_create_rwq_ind_table` with no queue.
    pub(crate) fn indirection_table(&self) -> i32 {
        let mut attr = ibv_rwq_ind_table_init_attr::default();
        // SAFETY: `RawHandle` checks that the context lives. The attributes name no queue.
        of_pointer(unsafe { verbs::ibv_create_rwq_ind_table(self.raw(), &raw mut attr) })
    }

    /// `ibv_create_flow_action_esp` with empty attributes.
    pub(crate) fn flow_action(&self) -> i32 {
        let mut attr = ibv_flow_action_esp_attr::default();
        // SAFETY: `RawHandle` checks that the context lives. All pointers in the attributes are
        // null.
        of_pointer(unsafe { verbs::ibv_create_flow_action_esp(self.raw(), &raw mut attr) })
    }
}

impl Pd {
    /// `ibv_create_wq`.
    pub(crate) fn work_queue(&self, cq: &Cq) -> i32 {
        let mut attr = ibv_wq_init_attr {
            wq_type: ibv_wq_type::IBV_WQT_RQ,
            max_wr: 1,
            max_sge: 1,
            pd: self.raw(),
            cq: cq.raw(),
            ..Default::default()
        };
        // SAFETY: `RawHandle` checks that domain, queue and context live.
        of_pointer(unsafe { verbs::ibv_create_wq(self.device().raw(), &raw mut attr) })
    }

    /// Allocates `size` bytes with `ibv_alloc_buf` and registers all of them twice: with
    /// `ibv_reg_buf_mr`, and with `ibv_reg_mr_ex` at the address `iova`. Then frees everything. The
    /// result has the keys, or the error number of the call that failed.
    pub(crate) fn own_buffer(&self, size: usize, iova: u64) -> Result<Result<[u32; 2], i32>, &'static str> {
        let lib = self.device().lib();
        let alloc = lib.ibv_alloc_buf().map_err(|_| NO_SUCH_FUNCTION)?;
        let free = lib.ibv_free_buf().map_err(|_| NO_SUCH_FUNCTION)?;
        let of_buffer = lib.ibv_reg_buf_mr().map_err(|_| NO_SUCH_FUNCTION)?;
        let extended = lib.ibv_reg_mr_ex().map_err(|_| NO_SUCH_FUNCTION)?;
        let mut buf = null_mut();
        // SAFETY: `RawHandle` checks that the domain lives, the handle is a local variable.
        let addr = unsafe { alloc(self.raw(), size, &raw mut buf) };
        if addr.is_null() {
            return Ok(Err(errno()));
        }
        use ibv_mr_init_attr_mask as M;
        let mask = M::IBV_REG_MR_MASK_ADDR.0 | M::IBV_REG_MR_MASK_BUF.0 | M::IBV_REG_MR_MASK_IOVA.0;
        let (length, comp_mask) = (size, u64::from(mask));
        let mut attr =
            ibv_mr_init_attr { length, access: 1, comp_mask, iova, addr, buf, ..Default::default() };
        // SAFETY: the library returned this memory with the buffer, and both outlive the regions.
        let regions =
            unsafe { [of_buffer(self.raw(), buf, addr, size, 1), extended(self.raw(), &raw mut attr)] };
        let failed = errno();
        let mut keys = [0; 2];
        for (region, key) in regions.into_iter().zip(&mut keys).filter(|(region, _)| !region.is_null()) {
            // SAFETY: the calls above created the region, and nothing uses it afterwards.
            unsafe {
                *key = (*region).lkey;
                (lib.ibv_dereg_mr)(region);
            }
        }
        // SAFETY: all regions of the buffer are deregistered.
        unsafe { free(buf) };
        Ok(if regions.iter().any(|region| region.is_null()) { Err(failed) } else { Ok(keys) })
    }
}

impl Qp {
    /// `ibv_query_qp_data_in_order` for sends.
    pub(crate) fn data_in_order(&self) -> CallResult {
        let query = self.device().lib().ibv_query_qp_data_in_order().map_err(|_| NO_SUCH_FUNCTION)?;
        // SAFETY: `RawHandle` checks that the pair lives.
        Ok(unsafe { query(self.raw(), ibv_wr_opcode::IBV_WR_SEND, 1) })
    }
}

impl Srq {
    /// `ibv_post_srq_ops` with an empty tag list, on a queue without tags.
    pub(crate) fn tag(&self) -> i32 {
        let mut op = ibv_ops_wr { opcode: ibv_ops_wr_opcode::IBV_WR_TAG_SYNC, ..Default::default() };
        let mut bad = null_mut();
        // SAFETY: `RawHandle` checks that the queue lives, the request is a local variable.
        unsafe { verbs::ibv_post_srq_ops(self.raw(), &raw mut op, &raw mut bad) }
    }
}

/// A rate's multiple of 2.5 Gb/s and the rate of that multiple; its speed in Mb/s and the rate of
/// that speed.
pub(crate) fn rate(provider: Provider, rate: ibv_rate) -> (i32, ibv_rate, i32, ibv_rate) {
    let lib = provider.verbs();
    // SAFETY: the functions take numbers, and any number is a valid argument.
    unsafe {
        let (mult, mbps) = ((lib.ibv_rate_to_mult)(rate), (lib.ibv_rate_to_mbps)(rate));
        (mult, (lib.mult_to_ibv_rate)(mult), mbps, (lib.mbps_to_ibv_rate)(mbps))
    }
}

/// The library's name for a port state.
pub(crate) fn port_state_name(provider: Provider, state: ibv_port_state) -> String {
    // SAFETY: any number is a valid argument. The result is a string that lives as long as the
    // library.
    unsafe { CStr::from_ptr((provider.verbs().ibv_port_state_str)(state)) }.to_str().unwrap().to_owned()
}

/// The library's name for an opcode.
pub(crate) fn operation_name(provider: Provider, opcode: ibv_wr_opcode) -> Result<String, &'static str> {
    let name = provider.verbs().ibv_wr_opcode_str().map_err(|_| NO_SUCH_FUNCTION)?;
    // SAFETY: any number is a valid argument. The result is a string that lives as long as the
    // library.
    Ok(unsafe { CStr::from_ptr(name(opcode)) }.to_str().unwrap().to_owned())
}

/// Whether an error number says that the device does not support the call.
pub(crate) fn is_absent(error: i32) -> bool {
    [EOPNOTSUPP, libc::ENOSYS, libc::ENOTSUP].contains(&error)
}
