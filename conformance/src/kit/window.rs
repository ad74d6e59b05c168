//! Memory windows.

use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::handle::RawHandle;
use super::{Mr, Pd, Qp};

/// A memory window.
#[derive(Clone, Debug)]
pub(crate) struct Mw(Arc<MwInner>);

#[derive(Debug)]
struct MwInner {
    raw: RawHandle<ibv_mw>,
    _pd: Pd,
}

impl Drop for MwInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the window lives.
        self.raw.drop(|mw| unsafe { verbs::ibv_dealloc_mw(mw) });
    }
}

/// The key whose low byte, which the program chooses, has the next value.
pub(crate) fn next_key(rkey: u32) -> u32 {
    verbs::ibv_inc_rkey(rkey)
}

/// A range of a region to bind a window to, or none.
#[derive(Clone, Debug)]
pub(crate) struct BindRange {
    mr: Option<Arc<RawHandle<ibv_mr>>>,
    addr: u64,
    length: u64,
    access: u32,
}

impl BindRange {
    /// `len` bytes of a region; they may lie beyond its end.
    pub(crate) fn of(mr: &Mr, offset: usize, len: usize, access: u32) -> Self {
        Self { mr: Some(mr.shared()), addr: mr.addr(offset), length: len as u64, access }
    }

    /// The same range at another address.
    pub(crate) fn from(self, addr: u64) -> Self {
        Self { addr, ..self }
    }

    pub(crate) fn none() -> Self {
        Self { mr: None, addr: 0, length: 0, access: 0 }
    }

    pub(super) fn info(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.mr.as_ref().map_or(std::ptr::null_mut(), |mr| mr.get()),
            addr: self.addr,
            length: self.length,
            mw_access_flags: self.access,
        }
    }
}

impl Mw {
    pub(crate) fn new(pd: &Pd, mw_type: ibv_mw_type) -> Result<Self, i32> {
        // SAFETY: `RawHandle` checks that the domain lives.
        let raw = RawHandle::new("a memory window", unsafe { verbs::ibv_alloc_mw(pd.raw(), mw_type) })?;
        Ok(Self(Arc::new(MwInner { raw, _pd: pd.clone() })))
    }

    pub(super) fn raw(&self) -> *mut ibv_mw {
        self.0.raw.get()
    }

    /// The key in the library's struct.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: `RawHandle` checks that the window lives. It has this field in every release.
        unsafe { (*self.raw()).rkey }
    }

    /// Stores the key that a posted bind has given the window. SoftRoCE's next bind names the
    /// window by the stored key.
    pub(crate) fn set_rkey(&self, rkey: u32) {
        // SAFETY: `RawHandle` checks that the window lives. The program may write this field, and
        // only this thread does at the moment.
        unsafe { (*self.raw()).rkey = rkey };
    }

    pub(crate) fn mw_type(&self) -> ibv_mw_type {
        // SAFETY: `RawHandle` checks that the window lives. It has this field in every release.
        unsafe { (*self.raw()).type_ }
    }

    pub(crate) fn dealloc(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the window lives. The device stops using it, or refuses.
        self.0.raw.end(|mw| unsafe { verbs::ibv_dealloc_mw(mw) })
    }

    /// `ibv_bind_mw`, signaled.
    pub(crate) fn bind(&self, qp: &Qp, id: u64, part: &BindRange) -> i32 {
        let send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut bind = ibv_mw_bind { wr_id: id, send_flags, bind_info: part.info() };
        // SAFETY: `RawHandle` checks that pair, window and region live.
        unsafe { verbs::ibv_bind_mw(qp.raw(), self.raw(), &raw mut bind) }
    }
}
