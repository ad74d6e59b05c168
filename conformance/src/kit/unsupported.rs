//! Verbs that most devices refuse, each called once with nothing wrong in its arguments; and what a library knows by heart.

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

/// What comes of a call: the error number, or why there was none.
pub(crate) type CallResult = Result<i32, &'static str>;

fn of_pointer<T>(made: *mut T) -> i32 {
    if made.is_null() { errno() } else { 0 }
}

impl Device {
    /// `ibv_alloc_dmah`.
    pub(crate) fn alloc_dmah(&self) -> CallResult {
        let alloc = self.lib().ibv_alloc_dmah().map_err(|_| NO_SUCH_FUNCTION)?;
        let mut attr = ibv_dmah_init_attr::default();
        // SAFETY: the context lives, the attributes are this function's own.
        Ok(of_pointer(unsafe { alloc(self.raw(), &raw mut attr) }))
    }

    /// `ibv_query_comp_cntr_caps` and `ibv_create_comp_cntr`.
    pub(crate) fn completion_counters(&self) -> Result<[i32; 2], &'static str> {
        let create = self.lib().ibv_create_comp_cntr().map_err(|_| NO_SUCH_FUNCTION)?;
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: the context lives, the result is this function's own.
        let asked = unsafe { verbs::ibv_query_comp_cntr_caps(self.lib(), self.raw(), &raw mut caps) };
        let mut attr = ibv_comp_cntr_init_attr::default();
        // SAFETY: the context lives, the attributes are this function's own.
        Ok([asked, of_pointer(unsafe { create(self.raw(), &raw mut attr) })])
    }

    /// `ibv_create_rwq_ind_table`, of no queue.
    pub(crate) fn indirection_table(&self) -> i32 {
        let mut attr = ibv_rwq_ind_table_init_attr::default();
        // SAFETY: the context lives; no queue is named.
        of_pointer(unsafe { verbs::ibv_create_rwq_ind_table(self.raw(), &raw mut attr) })
    }

    /// `ibv_create_flow_action_esp`, of nothing.
    pub(crate) fn flow_action(&self) -> i32 {
        let mut attr = ibv_flow_action_esp_attr::default();
        // SAFETY: the context lives; what the attributes lead to is null.
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
        // SAFETY: domain, queue and context live.
        of_pointer(unsafe { verbs::ibv_create_wq(self.device().raw(), &raw mut attr) })
    }

    /// `ibv_alloc_buf` of so many bytes, registers all of them with `ibv_reg_buf_mr` and, with an address of their own, with
    /// `ibv_reg_mr_ex`, and frees everything. The keys; the error number of the call that failed.
    pub(crate) fn own_buffer(&self, size: usize, iova: u64) -> Result<Result<[u32; 2], i32>, &'static str> {
        let lib = self.device().lib();
        let alloc = lib.ibv_alloc_buf().map_err(|_| NO_SUCH_FUNCTION)?;
        let free = lib.ibv_free_buf().map_err(|_| NO_SUCH_FUNCTION)?;
        let of_buffer = lib.ibv_reg_buf_mr().map_err(|_| NO_SUCH_FUNCTION)?;
        let extended = lib.ibv_reg_mr_ex().map_err(|_| NO_SUCH_FUNCTION)?;
        let mut buf = null_mut();
        // SAFETY: the domain lives, the handle is this function's own.
        let addr = unsafe { alloc(self.raw(), size, &raw mut buf) };
        if addr.is_null() {
            return Ok(Err(errno()));
        }
        use ibv_mr_init_attr_mask as M;
        let mask = M::IBV_REG_MR_MASK_ADDR.0 | M::IBV_REG_MR_MASK_BUF.0 | M::IBV_REG_MR_MASK_IOVA.0;
        let (length, comp_mask) = (size, u64::from(mask));
        let mut attr =
            ibv_mr_init_attr { length, access: 1, comp_mask, iova, addr, buf, ..Default::default() };
        // SAFETY: the buffer has this memory, and lives until the regions are gone.
        let regions =
            unsafe { [of_buffer(self.raw(), buf, addr, size, 1), extended(self.raw(), &raw mut attr)] };
        let failed = errno();
        let mut keys = [0; 2];
        for (region, key) in regions.into_iter().zip(&mut keys).filter(|(region, _)| !region.is_null()) {
            // SAFETY: it was just made, and is not used again.
            unsafe {
                *key = (*region).lkey;
                (lib.ibv_dereg_mr)(region);
            }
        }
        // SAFETY: no region has it any more.
        unsafe { free(buf) };
        Ok(if regions.iter().any(|region| region.is_null()) { Err(failed) } else { Ok(keys) })
    }
}

impl Qp {
    /// `ibv_query_qp_data_in_order` of sends.
    pub(crate) fn data_in_order(&self) -> CallResult {
        let query = self.device().lib().ibv_query_qp_data_in_order().map_err(|_| NO_SUCH_FUNCTION)?;
        // SAFETY: the pair lives.
        Ok(unsafe { query(self.raw(), ibv_wr_opcode::IBV_WR_SEND, 1) })
    }
}

impl Srq {
    /// `ibv_post_srq_ops` of an empty tag list, on a queue without tags.
    pub(crate) fn tag(&self) -> i32 {
        let mut op = ibv_ops_wr { opcode: ibv_ops_wr_opcode::IBV_WR_TAG_SYNC, ..Default::default() };
        let mut bad = null_mut();
        // SAFETY: the queue lives, the request is this function's own.
        unsafe { verbs::ibv_post_srq_ops(self.raw(), &raw mut op, &raw mut bad) }
    }
}

/// A rate's multiple of 2.5 Gb/s, and the rate of that; its Mb/s, and the rate of those.
pub(crate) fn rate(provider: Provider, rate: ibv_rate) -> (i32, ibv_rate, i32, ibv_rate) {
    let lib = provider.verbs();
    // SAFETY: functions of numbers, any of which may be asked about.
    unsafe {
        let (mult, mbps) = ((lib.ibv_rate_to_mult)(rate), (lib.ibv_rate_to_mbps)(rate));
        (mult, (lib.mult_to_ibv_rate)(mult), mbps, (lib.mbps_to_ibv_rate)(mbps))
    }
}

/// What the library calls a port's state.
pub(crate) fn port_state_name(provider: Provider, state: ibv_port_state) -> String {
    // SAFETY: any number may be asked about; the answer is a string that lives as long as the library.
    unsafe { CStr::from_ptr((provider.verbs().ibv_port_state_str)(state)) }.to_str().unwrap().to_owned()
}

/// What the library calls an operation.
pub(crate) fn operation_name(provider: Provider, opcode: ibv_wr_opcode) -> Result<String, &'static str> {
    let name = provider.verbs().ibv_wr_opcode_str().map_err(|_| NO_SUCH_FUNCTION)?;
    // SAFETY: any number may be asked about; the answer is a string that lives as long as the library.
    Ok(unsafe { CStr::from_ptr(name(opcode)) }.to_str().unwrap().to_owned())
}

/// Whether an error number says that the device has not got something.
pub(crate) fn is_absent(error: i32) -> bool {
    [EOPNOTSUPP, libc::ENOSYS, libc::ENOTSUP].contains(&error)
}
