//! Shared receive queues.

use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::handle::RawHandle;
use super::{CmId, Cq, Device, Pd, Recv, Xrcd};

/// A shared receive queue.
#[derive(Clone, Debug)]
pub(crate) struct Srq(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    raw: RawHandle<ibv_srq>,
    granted: ibv_srq_attr,
    device: Device,
    _pd: Option<Pd>,
    _xrc: (Option<Xrcd>, Option<Cq>),
    /// Set for a queue that librdmacm created and destroys.
    of_cm: Option<CmId>,
}

/// The attributes of a queue that `ibv_create_srq_ex` creates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SrqInit<'a> {
    pub(crate) srq_type: Option<ibv_srq_type>,
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) xrcd: Option<&'a Xrcd>,
    pub(crate) cq: Option<&'a Cq>,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Bits in addition to those of the other fields.
    pub(crate) comp_mask: u32,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        self.raw.drop(|srq| match &self.of_cm {
            Some(id) => id.destroy_srq(),
            // SAFETY: `RawHandle` checks that the queue lives. No queue pair that uses it does,
            // because each holds a reference to it.
            None => unsafe { (self.device.lib().ibv_destroy_srq)(srq) },
        });
    }
}

impl Srq {
    pub(crate) fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self, i32> {
        let mut init =
            ibv_srq_init_attr { attr: ibv_srq_attr { max_wr, max_sge, srq_limit: 0 }, ..Default::default() };
        // SAFETY: `RawHandle` checks that the domain lives, the attributes are local variables.
        let srq = unsafe { (pd.device().lib().ibv_create_srq)(pd.raw(), &raw mut init) };
        let raw = RawHandle::new("a shared receive queue", srq)?;
        Ok(Self(Arc::new(SrqInner {
            raw,
            granted: init.attr,
            device: pd.device().clone(),
            _pd: Some(pd.clone()),
            _xrc: (None, None),
            of_cm: None,
        })))
    }

    /// Takes over a queue that librdmacm has just created for an identifier.
    pub(super) fn of_cm(
        id: &CmId,
        device: &Device,
        srq: *mut ibv_srq,
        granted: ibv_srq_attr,
        pd: Option<Pd>,
    ) -> Result<Self, i32> {
        Ok(Self(Arc::new(SrqInner {
            raw: RawHandle::new("a shared receive queue of an identifier", srq)?,
            granted,
            device: device.clone(),
            _pd: pd,
            _xrc: (None, None),
            of_cm: Some(id.clone()),
        })))
    }

    /// Creates a queue with `ibv_create_srq_ex`.
    pub(crate) fn extended(device: &Device, init: SrqInit<'_>) -> Result<Self, i32> {
        use ibv_srq_init_attr_mask as Mask;
        let bit = |there: bool, bit: Mask| if there { bit.0 } else { 0 };
        let mut attr = ibv_srq_init_attr_ex {
            attr: ibv_srq_attr { max_wr: init.max_wr, max_sge: init.max_sge, srq_limit: 0 },
            comp_mask: init.comp_mask
                | bit(init.srq_type.is_some(), Mask::IBV_SRQ_INIT_ATTR_TYPE)
                | bit(init.pd.is_some(), Mask::IBV_SRQ_INIT_ATTR_PD)
                | bit(init.xrcd.is_some(), Mask::IBV_SRQ_INIT_ATTR_XRCD)
                | bit(init.cq.is_some(), Mask::IBV_SRQ_INIT_ATTR_CQ),
            srq_type: init.srq_type.unwrap_or(ibv_srq_type::IBV_SRQT_BASIC),
            pd: init.pd.map_or(std::ptr::null_mut(), Pd::raw),
            xrcd: init.xrcd.map_or(std::ptr::null_mut(), Xrcd::raw),
            cq: init.cq.map_or(std::ptr::null_mut(), Cq::raw),
            ..Default::default()
        };
        // SAFETY: `RawHandle` checks that context, domains and queue live, the attributes are local
        // variables.
        let srq = unsafe { verbs::ibv_create_srq_ex(device.lib(), device.raw(), &raw mut attr) };
        Ok(Self(Arc::new(SrqInner {
            raw: RawHandle::new("a shared receive queue", srq)?,
            granted: attr.attr,
            device: device.clone(),
            _pd: init.pd.cloned(),
            _xrc: (init.xrcd.cloned(), init.cq.cloned()),
            of_cm: None,
        })))
    }

    /// The number by which peers name an XRC queue, or the error number.
    pub(crate) fn number(&self) -> Result<u32, i32> {
        let mut number = 0;
        // SAFETY: `RawHandle` checks that the queue lives, the result is a local variable.
        match unsafe { verbs::ibv_get_srq_num(self.raw(), &raw mut number) } {
            0 => Ok(number),
            error => Err(error),
        }
    }

    /// The capacities that the device granted.
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
        // SAFETY: `RawHandle` checks that the queue lives. The library refuses while a queue pair
        // uses it.
        self.0.raw.end(|srq| unsafe { (self.0.device.lib().ibv_destroy_srq)(srq) })
    }

    pub(crate) fn modify(&self, mut attr: ibv_srq_attr, mask: u32) -> i32 {
        // SAFETY: `RawHandle` checks that the queue lives, the attributes are local variables.
        unsafe { (self.0.device.lib().ibv_modify_srq)(self.raw(), &raw mut attr, mask as i32) }
    }

    /// Requests an event when fewer requests than this are left.
    pub(crate) fn set_limit(&self, srq_limit: u32) -> i32 {
        self.modify(ibv_srq_attr { srq_limit, ..Default::default() }, ibv_srq_attr_mask::IBV_SRQ_LIMIT.0)
    }

    pub(crate) fn query(&self) -> Result<ibv_srq_attr, i32> {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: `RawHandle` checks that the queue lives, the attributes are local variables.
        match unsafe { (self.0.device.lib().ibv_query_srq)(self.raw(), &raw mut attr) } {
            0 => Ok(attr),
            error => Err(error),
        }
    }

    /// Posts requests. The error has the error number and the index of the refused request.
    pub(crate) fn recv(&self, requests: &[Recv]) -> Result<(), (i32, usize)> {
        // SAFETY: `RawHandle` checks that the queue lives, and every context has the operation.
        // `Recv::post` keeps the list alive during the call.
        Recv::post(requests, |first, bad| unsafe { verbs::ibv_post_srq_recv(self.raw(), first, bad) })
    }
}
