//! What a device can do.

use std::fmt;

use rdma_mummy_sys::types::ibv_device_attr_ex;

use super::device::Guid;

/// The attributes of a device (`ibv_device_attr_ex`).
///
/// The getters have the C fields' names; a limit is as the device reports it.
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    attr: ibv_device_attr_ex,
}

impl DeviceAttr {
    pub(crate) fn new(attr: ibv_device_attr_ex) -> Self {
        Self { attr }
    }

    /// The C struct.
    pub fn raw(&self) -> &ibv_device_attr_ex {
        &self.attr
    }

    /// The firmware's version.
    pub fn fw_ver(&self) -> String {
        let bytes = self.attr.orig_attr.fw_ver.map(|c| c as u8);
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// The node GUID.
    pub fn node_guid(&self) -> Guid {
        Guid::from_be(self.attr.orig_attr.node_guid)
    }

    /// The GUID of the system that the node is part of.
    pub fn sys_image_guid(&self) -> Guid {
        Guid::from_be(self.attr.orig_attr.sys_image_guid)
    }

    /// What atomics are atomic to.
    pub fn atomic_cap(&self) -> AtomicCapability {
        AtomicCapability::from_raw(self.attr.orig_attr.atomic_cap.0)
    }

    /// Optional features (`ibv_device_cap_flags`), one bit each, in the extended form where the library has it.
    pub fn device_cap_flags(&self) -> u64 {
        u64::from(self.attr.orig_attr.device_cap_flags) | self.attr.device_cap_flags_ex
    }

    /// The bits of a completion timestamp that count; 0 if there are no timestamps.
    pub fn completion_timestamp_mask(&self) -> u64 {
        self.attr.completion_timestamp_mask
    }

    /// The frequency of the device's clock, in kHz; 0 if it does not say.
    pub fn hca_core_clock(&self) -> u64 {
        self.attr.hca_core_clock
    }

    /// How much memory of its own the device has, in bytes.
    pub fn max_dm_size(&self) -> u64 {
        self.attr.max_dm_size
    }

    /// The largest memory region, in bytes.
    pub fn max_mr_size(&self) -> u64 {
        self.attr.orig_attr.max_mr_size
    }

    /// The page sizes that memory regions may have, one bit each.
    pub fn page_size_cap(&self) -> u64 {
        self.attr.orig_attr.page_size_cap
    }

    /// The vendor's IEEE identifier.
    pub fn vendor_id(&self) -> u32 {
        self.attr.orig_attr.vendor_id
    }

    /// The vendor's part number.
    pub fn vendor_part_id(&self) -> u32 {
        self.attr.orig_attr.vendor_part_id
    }

    /// The hardware's version.
    pub fn hw_ver(&self) -> u32 {
        self.attr.orig_attr.hw_ver
    }

    /// How many queue pairs there can be.
    pub fn max_qp(&self) -> i32 {
        self.attr.orig_attr.max_qp
    }

    /// How many work requests one queue of a queue pair can hold.
    pub fn max_qp_wr(&self) -> i32 {
        self.attr.orig_attr.max_qp_wr
    }

    /// How many scatter/gather entries a work request can have.
    pub fn max_sge(&self) -> i32 {
        self.attr.orig_attr.max_sge
    }

    /// How many scatter/gather entries an RDMA READ can have.
    pub fn max_sge_rd(&self) -> i32 {
        self.attr.orig_attr.max_sge_rd
    }

    /// How many completion queues there can be.
    pub fn max_cq(&self) -> i32 {
        self.attr.orig_attr.max_cq
    }

    /// How many entries a completion queue can have.
    pub fn max_cqe(&self) -> i32 {
        self.attr.orig_attr.max_cqe
    }

    /// How many memory regions there can be.
    pub fn max_mr(&self) -> i32 {
        self.attr.orig_attr.max_mr
    }

    /// How many protection domains there can be.
    pub fn max_pd(&self) -> i32 {
        self.attr.orig_attr.max_pd
    }

    /// How many RDMA READs and atomics a queue pair can answer at a time.
    pub fn max_qp_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_qp_rd_atom
    }

    /// How many RDMA READs and atomics an end-to-end context can answer at a time.
    pub fn max_ee_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_ee_rd_atom
    }

    /// How many RDMA READs and atomics the device can answer at a time.
    pub fn max_res_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_res_rd_atom
    }

    /// How many RDMA READs and atomics a queue pair can have under way.
    pub fn max_qp_init_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_qp_init_rd_atom
    }

    /// How many RDMA READs and atomics an end-to-end context can have under way.
    pub fn max_ee_init_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_ee_init_rd_atom
    }

    /// How many end-to-end contexts there can be.
    pub fn max_ee(&self) -> i32 {
        self.attr.orig_attr.max_ee
    }

    /// How many reliable datagram domains there can be.
    pub fn max_rdd(&self) -> i32 {
        self.attr.orig_attr.max_rdd
    }

    /// How many memory windows there can be.
    pub fn max_mw(&self) -> i32 {
        self.attr.orig_attr.max_mw
    }

    /// How many raw IPv6 queue pairs there can be.
    pub fn max_raw_ipv6_qp(&self) -> i32 {
        self.attr.orig_attr.max_raw_ipv6_qp
    }

    /// How many raw Ethertype queue pairs there can be.
    pub fn max_raw_ethy_qp(&self) -> i32 {
        self.attr.orig_attr.max_raw_ethy_qp
    }

    /// How many multicast groups there can be.
    pub fn max_mcast_grp(&self) -> i32 {
        self.attr.orig_attr.max_mcast_grp
    }

    /// How many queue pairs can join one multicast group.
    pub fn max_mcast_qp_attach(&self) -> i32 {
        self.attr.orig_attr.max_mcast_qp_attach
    }

    /// How many queue pairs can be in multicast groups.
    pub fn max_total_mcast_qp_attach(&self) -> i32 {
        self.attr.orig_attr.max_total_mcast_qp_attach
    }

    /// How many address handles there can be.
    pub fn max_ah(&self) -> i32 {
        self.attr.orig_attr.max_ah
    }

    /// How many fast memory regions there can be.
    pub fn max_fmr(&self) -> i32 {
        self.attr.orig_attr.max_fmr
    }

    /// How often a fast memory region can be mapped anew.
    pub fn max_map_per_fmr(&self) -> i32 {
        self.attr.orig_attr.max_map_per_fmr
    }

    /// How many shared receive queues there can be.
    pub fn max_srq(&self) -> i32 {
        self.attr.orig_attr.max_srq
    }

    /// How many work requests a shared receive queue can hold.
    pub fn max_srq_wr(&self) -> i32 {
        self.attr.orig_attr.max_srq_wr
    }

    /// How many scatter/gather entries a shared receive request can have.
    pub fn max_srq_sge(&self) -> i32 {
        self.attr.orig_attr.max_srq_sge
    }

    /// How many partition keys there can be.
    pub fn max_pkeys(&self) -> u16 {
        self.attr.orig_attr.max_pkeys
    }

    /// How long the device may take to acknowledge, as an exponent (4.096 us x 2^n).
    pub fn local_ca_ack_delay(&self) -> u8 {
        self.attr.orig_attr.local_ca_ack_delay
    }

    /// How many ports there are.
    pub fn phys_port_cnt(&self) -> u8 {
        self.attr.orig_attr.phys_port_cnt
    }
}

impl fmt::Debug for DeviceAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceAttr").field(&self.attr.orig_attr).finish()
    }
}

c_enum! {
    /// What atomics are atomic to (`ibv_atomic_cap`).
    pub struct AtomicCapability(u32) {
        /// There are no atomics.
        None = 0,
        /// Other operations of this device.
        Hca = 1,
        /// Other operations of this device, and the processors.
        Glob = 2,
    }
}

display_as_debug!(AtomicCapability);
