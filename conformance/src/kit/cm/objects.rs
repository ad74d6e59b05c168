//! The objects of an identifier: its device's context, its queue pair, its shared receive queue.

use rdma_mummy_sys::types::*;

use super::super::handle::errno;
use super::super::{Cq, Device, Node, NodeOptions, Pd, Qp, QpInit, Srq};
use super::{CmId, check, number};

/// The classic attributes of a queue pair that the library creates.
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
    /// The context that the library opened for it.
    pub(crate) fn device(&self) -> Device {
        assert!(self.has_verbs(), "the identifier has no device");
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        let context = unsafe { (*self.raw()).verbs };
        Device::of_cm(self, context)
    }

    /// The number of its queue pair.
    pub(crate) fn qp_num(&self) -> u32 {
        assert!(self.has_qp(), "the identifier has no queue pair");
        // SAFETY: `RawHandle` checks that the identifier lives. Its queue pair lives, too (asserted
        // above). Both have these fields in every release.
        unsafe { (*(*self.raw()).qp).qp_num }
    }

    /// Whether the library created completion queues for it.
    pub(crate) fn has_queues(&self) -> bool {
        // SAFETY: `RawHandle` checks that the identifier lives. It has these fields in every
        // release.
        unsafe { !(*self.raw()).send_cq.is_null() && !(*self.raw()).recv_cq.is_null() }
    }

    /// Creates its queue pair with `rdma_create_qp`, or with `rdma_create_qp_ex` if `extended`.
    /// Without `pd` the library uses its default domain.
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
            // SAFETY: `RawHandle` checks that identifier, domain and queues live, the attributes
            // are local variables.
            (check(unsafe { (self.lib().rdma_create_qp_ex)(self.raw(), &raw mut attr) }), attr.cap)
        } else {
            let create = self.lib().rdma_create_qp;
            // SAFETY: `RawHandle` checks that identifier, domain and queues live; the attributes
            // are local.
            (check(unsafe { create(self.raw(), domain, &raw mut classic) }), classic.cap)
        };
        result?;
        if pd.is_some() {
            self.has_had_a_domain();
        }
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        let raw = unsafe { (*self.raw()).qp };
        Qp::of_cm(self, &device, raw, granted, pd.cloned(), init)
    }

    /// Destroys its queue pair; called by the drop of [`Qp`] only.
    pub(in super::super) fn destroy_qp(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the identifier lives. So does its queue pair, because its
        // owner calls this once.
        unsafe { (self.lib().rdma_destroy_qp)(self.raw()) };
        if self.has_qp() { libc::EBUSY } else { 0 }
    }

    /// Creates a node whose queue pair the library creates and changes.
    pub(crate) fn node(&self, options: &NodeOptions) -> Node {
        let device = self.device();
        let pd = device.pd();
        let make = |pd: &Pd, init: &QpInit| self.create_qp(Some(pd), init, false);
        Node::made(&device, pd, options, None, None, make)
    }

    /// Creates a node whose queue pair the identifier does not know.
    pub(crate) fn own_node(&self, options: &NodeOptions) -> Node {
        let device = self.device();
        Node::new(&device, options)
    }

    /// Creates a shared receive queue with `rdma_create_srq`, in the library's domain unless `pd`
    /// is given.
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
        // SAFETY: `RawHandle` checks that identifier and domain live, the attributes are local
        // variables.
        check(unsafe { (self.lib().rdma_create_srq)(self.raw(), domain, &raw mut attr) })?;
        // SAFETY: `RawHandle` checks that the identifier lives. It has this field in every release.
        Srq::of_cm(self, &device, unsafe { (*self.raw()).srq }, attr.attr, pd.cloned())
    }

    /// The result of `rdma_create_srq_ex` with this `comp_mask`; a created queue is destroyed
    /// again.
    pub(crate) fn srq_without_type(&self, comp_mask: u32) -> i32 {
        let mut attr = ibv_srq_init_attr_ex {
            attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
            comp_mask,
            ..Default::default()
        };
        // SAFETY: `RawHandle` checks that the identifier lives, the attributes are local variables.
        let error = number(unsafe { (self.lib().rdma_create_srq_ex)(self.raw(), &raw mut attr) });
        if error == 0 {
            // SAFETY: the identifier has a shared receive queue, which the call above created.
            unsafe { (self.lib().rdma_destroy_srq)(self.raw()) };
        }
        error
    }

    /// Destroys its shared receive queue; called by the drop of [`Srq`] only.
    pub(in super::super) fn destroy_srq(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the identifier lives. So does its shared receive queue,
        // because its owner calls this once.
        unsafe {
            (self.lib().rdma_destroy_srq)(self.raw());
            if (*self.raw()).srq.is_null() { 0 } else { errno().max(1) }
        }
    }
}
