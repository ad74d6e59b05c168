//! What belongs to an identifier: its device's context, its queue pair, its shared receive queue.

use rdma_mummy_sys::types::*;

use super::super::handle::errno;
use super::super::{Cq, Device, Node, NodeOptions, Pd, Qp, QpInit, Srq};
use super::{CmId, check, number};

/// The classic attributes of a queue pair that the library makes.
pub(super) fn init_attr(init: &QpInit) -> ibv_qp_init_attr {
    let cq = |cq: &Option<Cq>| cq.as_ref().map_or(std::ptr::null_mut(), Cq::raw);
    ibv_qp_init_attr {
        send_cq: cq(&init.send_cq),
        recv_cq: cq(&init.recv_cq),
        srq: init.srq.as_ref().map_or(std::ptr::null_mut(), Srq::raw),
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sig_all.into(),
        ..Default::default()
    }
}

impl CmId {
    /// The context that the library has opened for it.
    pub(crate) fn device(&self) -> Device {
        assert!(self.has_verbs(), "the identifier has no device");
        // SAFETY: it lives and has this field in every release.
        let context = unsafe { (*self.raw()).verbs };
        Device::of_cm(self, context)
    }

    /// The number of the queue pair that it has.
    pub(crate) fn qp_num(&self) -> u32 {
        assert!(self.has_qp(), "the identifier has no queue pair");
        // SAFETY: it lives, and so does its queue pair; both have these fields in every release.
        unsafe { (*(*self.raw()).qp).qp_num }
    }

    /// Whether the library made completion queues for it.
    pub(crate) fn has_queues(&self) -> bool {
        // SAFETY: it lives and has these fields in every release.
        unsafe { !(*self.raw()).send_cq.is_null() && !(*self.raw()).recv_cq.is_null() }
    }

    /// Makes its queue pair by `rdma_create_qp`, in a domain or in the library's own; or by `rdma_create_qp_ex`, if `extended`.
    pub(crate) fn create_qp(&self, pd: Option<&Pd>, init: &QpInit, extended: bool) -> Result<Qp, i32> {
        let device = self.device();
        if pd.is_none() {
            self.may_use_the_library_s_domain();
        }
        let domain = pd.map_or(std::ptr::null_mut(), Pd::raw);
        let mut classic = init_attr(init);
        let (result, granted) = if extended {
            let mut attr = ibv_qp_init_attr_ex {
                send_cq: classic.send_cq,
                recv_cq: classic.recv_cq,
                srq: classic.srq,
                cap: classic.cap,
                qp_type: classic.qp_type,
                sq_sig_all: classic.sq_sig_all,
                comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
                pd: domain,
                ..Default::default()
            };
            // SAFETY: identifier, domain and queues live, the attributes are this function's own.
            (check(unsafe { (self.lib().rdma_create_qp_ex)(self.raw(), &raw mut attr) }), attr.cap)
        } else {
            let create = self.lib().rdma_create_qp;
            // SAFETY: likewise.
            (check(unsafe { create(self.raw(), domain, &raw mut classic) }), classic.cap)
        };
        result?;
        if pd.is_some() {
            self.has_had_a_domain();
        }
        // SAFETY: it lives and has this field in every release.
        let raw = unsafe { (*self.raw()).qp };
        Qp::of_cm(self, &device, raw, granted, pd.cloned(), init)
    }

    /// Destroys its queue pair, for [`Qp`].
    pub(in super::super) fn destroy_qp(&self) -> i32 {
        // SAFETY: it lives, and so does its queue pair, whose owner calls this once.
        unsafe { (self.lib().rdma_destroy_qp)(self.raw()) };
        if self.has_qp() { libc::EBUSY } else { 0 }
    }

    /// A node whose queue pair the library makes and moves.
    pub(crate) fn node(&self, options: &NodeOptions) -> Node {
        let device = self.device();
        let pd = device.pd();
        let make = |pd: &Pd, init: &QpInit| self.create_qp(Some(pd), init, false);
        Node::made(&device, pd, options, None, None, make)
    }

    /// A node whose queue pair it does not know.
    pub(crate) fn own_node(&self, options: &NodeOptions) -> Node {
        let device = self.device();
        Node::new(&device, options)
    }

    /// A shared receive queue by `rdma_create_srq`, in a domain or in the library's own.
    pub(crate) fn create_srq(&self, pd: Option<&Pd>, max_wr: u32) -> Result<Srq, i32> {
        let device = self.device();
        let mut attr = ibv_srq_init_attr {
            attr: ibv_srq_attr { max_wr, max_sge: 1, srq_limit: 0 },
            ..Default::default()
        };
        if pd.is_none() {
            self.may_use_the_library_s_domain();
        }
        let domain = pd.map_or(std::ptr::null_mut(), Pd::raw);
        // SAFETY: identifier and domain live, the attributes are this function's own.
        check(unsafe { (self.lib().rdma_create_srq)(self.raw(), domain, &raw mut attr) })?;
        // SAFETY: it lives and has this field in every release.
        Srq::of_cm(self, &device, unsafe { (*self.raw()).srq }, attr.attr, pd.cloned())
    }

    /// What `rdma_create_srq_ex` says to this `comp_mask`, without a queue.
    pub(crate) fn srq_without_type(&self, comp_mask: u32) -> i32 {
        let mut attr = ibv_srq_init_attr_ex {
            attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
            comp_mask,
            ..Default::default()
        };
        // SAFETY: it lives, the attributes are this function's own.
        let error = number(unsafe { (self.lib().rdma_create_srq_ex)(self.raw(), &raw mut attr) });
        if error == 0 {
            // SAFETY: it has a shared receive queue, which was just made.
            unsafe { (self.lib().rdma_destroy_srq)(self.raw()) };
        }
        error
    }

    /// Destroys its shared receive queue, for [`Srq`].
    pub(in super::super) fn destroy_srq(&self) -> i32 {
        // SAFETY: it lives, and so does its shared receive queue, whose owner calls this once.
        unsafe {
            (self.lib().rdma_destroy_srq)(self.raw());
            if (*self.raw()).srq.is_null() { 0 } else { errno().max(1) }
        }
    }
}
