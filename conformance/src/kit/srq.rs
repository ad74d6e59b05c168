//! Shared receive queues.

use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::raw::Raw;
use super::{Pd, Recv};

/// A shared receive queue.
#[derive(Clone, Debug)]
pub(crate) struct Srq(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    raw: Raw<ibv_srq>,
    granted: ibv_srq_attr,
    pd: Pd,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: it lives, and no queue pair that uses it does: those hold a reference to it.
        self.raw.drop(|srq| unsafe { (self.pd.device().lib().ibv_destroy_srq)(srq) });
    }
}

impl Srq {
    pub(crate) fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self, i32> {
        let mut init =
            ibv_srq_init_attr { attr: ibv_srq_attr { max_wr, max_sge, srq_limit: 0 }, ..Default::default() };
        // SAFETY: the domain lives, the attributes are this function's own.
        let srq = unsafe { (pd.device().lib().ibv_create_srq)(pd.raw(), &raw mut init) };
        let raw = Raw::new("a shared receive queue", srq)?;
        Ok(Self(Arc::new(SrqInner { raw, granted: init.attr, pd: pd.clone() })))
    }

    /// What the device made of the wishes.
    pub(crate) fn granted(&self) -> ibv_srq_attr {
        self.0.granted
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.0.raw.get()
    }

    pub(crate) fn address(&self) -> usize {
        self.raw().addr()
    }

    pub(crate) fn destroy(&self) -> i32 {
        // SAFETY: it lives; the library refuses while a queue pair uses it.
        self.0.raw.end(|srq| unsafe { (self.0.pd.device().lib().ibv_destroy_srq)(srq) })
    }

    pub(crate) fn modify(&self, mut attr: ibv_srq_attr, mask: u32) -> i32 {
        // SAFETY: it lives, the attributes are this function's own.
        unsafe { (self.0.pd.device().lib().ibv_modify_srq)(self.raw(), &raw mut attr, mask as i32) }
    }

    /// Asks for an event when fewer requests than this are left.
    pub(crate) fn set_limit(&self, srq_limit: u32) -> i32 {
        self.modify(ibv_srq_attr { srq_limit, ..Default::default() }, ibv_srq_attr_mask::IBV_SRQ_LIMIT.0)
    }

    pub(crate) fn query(&self) -> Result<ibv_srq_attr, i32> {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: it lives, the attributes are this function's own.
        match unsafe { (self.0.pd.device().lib().ibv_query_srq)(self.raw(), &raw mut attr) } {
            0 => Ok(attr),
            error => Err(error),
        }
    }

    /// Posts requests; where one is refused, the error number and which.
    pub(crate) fn recv(&self, requests: &[Recv]) -> Result<(), (i32, usize)> {
        // SAFETY: it lives, and every context has the operation; the list lives during the call.
        Recv::post(requests, |first, bad| unsafe { verbs::ibv_post_srq_recv(self.raw(), first, bad) })
    }
}
