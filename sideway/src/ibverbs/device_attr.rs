//! Device attributes: limits and optional features of a device.
//!
//! [`DeviceContext::query_device`](super::device_context::DeviceContext::query_device) queries all
//! attributes that the library knows. Attributes that an older library does not know read as
//! absent: 0, no flag, no capability.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! let attr = context.query_device()?;
//! println!("{} queue pairs of {} requests", attr.max_qp(), attr.max_qp_wr());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;

use rdma_mummy_sys::types::{
    IBV_DEVICE_CC_DMA_BOUNCE, IBV_DEVICE_PCI_WRITE_END_PADDING, IBV_DEVICE_RAW_SCATTER_FCS,
    ibv_device_attr_ex, ibv_device_cap_flags as C, ibv_odp_general_caps as G,
    ibv_odp_transport_cap_bits as T, ibv_pci_atomic_op_size as P, ibv_raw_packet_caps as R,
    ibv_rx_hash_fields as H, ibv_rx_hash_function_flags as F, ibv_tm_cap_flags as M,
};
use rdma_mummy_sys::verbs;

use super::check;
use super::device_context::DeviceContext;
use super::types::{Guid, QueuePairType};
use crate::error::Error;

impl DeviceContext {
    /// Queries limits and features of the device (`ibv_query_device_ex`, or its predecessor in an
    /// old library).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    ///
    /// # References
    ///
    /// `man ibv_query_device_ex`
    pub fn query_device(&self) -> Result<DeviceAttr, Error> {
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: the context is open; no input is given and `attr` is a valid place.
        let result = unsafe {
            let (verbs, context) = (self.provider().verbs(), self.as_raw().as_ptr());
            verbs::ibv_query_device_ex(verbs, context, core::ptr::null(), &raw mut attr)
        };
        check(result).map_err(|source| Error::os("ibv_query_device", source))?;
        Ok(DeviceAttr { attr })
    }
}

/// The attributes of a device (`ibv_device_attr_ex`).
///
/// The getters have the names of the C fields. Limits are as the device reports them.
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    attr: ibv_device_attr_ex,
}

impl DeviceAttr {
    /// The C struct, for fields that have no getter.
    pub fn raw(&self) -> &ibv_device_attr_ex {
        &self.attr
    }

    /// The firmware's version.
    pub fn fw_ver(&self) -> String {
        let bytes = self.attr.orig_attr.fw_ver.map(|c| c as u8);
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// The GUID that identifies the adapter as a whole, not one port.
    pub fn node_guid(&self) -> Guid {
        Guid::from_be(self.attr.orig_attr.node_guid)
    }

    /// The GUID of the system that contains the node.
    pub fn sys_image_guid(&self) -> Guid {
        Guid::from_be(self.attr.orig_attr.sys_image_guid)
    }

    /// The scope within which atomics are atomic.
    pub fn atomic_cap(&self) -> AtomicCapability {
        AtomicCapability::from_raw(self.attr.orig_attr.atomic_cap.0)
    }

    /// Optional features (`ibv_device_cap_flags`), one bit each; the extended form, if the library
    /// supports it.
    pub fn device_cap_flags(&self) -> u64 {
        u64::from(self.attr.orig_attr.device_cap_flags) | self.attr.device_cap_flags_ex
    }

    /// The bits of [`device_cap_flags`](Self::device_cap_flags), by name.
    pub fn capability_flags(&self) -> DeviceCapabilityFlags {
        DeviceCapabilityFlags::from_bits_retain(self.device_cap_flags())
    }

    /// On-demand paging: the operations that work on memory that is not pinned (`odp_caps`,
    /// `xrc_odp_caps`).
    pub fn odp_caps(&self) -> OnDemandPagingCapabilities {
        let caps = &self.attr.odp_caps;
        let transport = OnDemandPagingTransport::from_bits_retain;
        OnDemandPagingCapabilities {
            general: OnDemandPagingGeneral::from_bits_retain(caps.general_caps),
            rc: transport(caps.per_transport_caps.rc_odp_caps),
            uc: transport(caps.per_transport_caps.uc_odp_caps),
            ud: transport(caps.per_transport_caps.ud_odp_caps),
            xrc: transport(self.attr.xrc_odp_caps),
        }
    }

    /// Segmentation offload of datagram and raw packet queue pairs (`tso_caps`), which this crate
    /// does not wrap.
    pub fn tso_caps(&self) -> SegmentationOffloadCapabilities {
        let caps = &self.attr.tso_caps;
        let supported_qpts = QueuePairTypes(caps.supported_qpts);
        SegmentationOffloadCapabilities { max_tso: caps.max_tso, supported_qpts }
    }

    /// Receive-side scaling (`rss_caps`), which this crate does not wrap.
    pub fn rss_caps(&self) -> ReceiveSideScalingCapabilities {
        let caps = &self.attr.rss_caps;
        ReceiveSideScalingCapabilities {
            supported_qpts: QueuePairTypes(caps.supported_qpts),
            max_rwq_indirection_tables: caps.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: caps.max_rwq_indirection_table_size,
            rx_hash_fields: ReceiveHashFields::from_bits_retain(caps.rx_hash_fields_mask),
            rx_hash_functions: ReceiveHashFunctions::from_bits_retain(caps.rx_hash_function),
        }
    }

    /// The maximum number of receive work queues, which this crate does not wrap.
    pub fn max_wq_type_rq(&self) -> u32 {
        self.attr.max_wq_type_rq
    }

    /// Limits of the rate at which a queue pair sends (`packet_pacing_caps`).
    pub fn packet_pacing_caps(&self) -> PacketPacingCapabilities {
        let caps = &self.attr.packet_pacing_caps;
        PacketPacingCapabilities {
            qp_rate_limit_min: caps.qp_rate_limit_min,
            qp_rate_limit_max: caps.qp_rate_limit_max,
            supported_qpts: QueuePairTypes(caps.supported_qpts),
        }
    }

    /// Features of raw packet queue pairs, which this crate does not wrap.
    pub fn raw_packet_caps(&self) -> RawPacketCapabilities {
        RawPacketCapabilities::from_bits_retain(self.attr.raw_packet_caps)
    }

    /// Tag matching of shared receive queues (`tm_caps`).
    pub fn tm_caps(&self) -> TagMatchingCapabilities {
        let caps = &self.attr.tm_caps;
        TagMatchingCapabilities {
            max_rndv_hdr_size: caps.max_rndv_hdr_size,
            max_num_tags: caps.max_num_tags,
            flags: TagMatchingFlags::from_bits_retain(caps.flags),
            max_ops: caps.max_ops,
            max_sge: caps.max_sge,
        }
    }

    /// Moderation of completion queues: the largest count, and the longest period in microseconds;
    /// 0 without moderation.
    pub fn cq_mod_caps(&self) -> (u16, u16) {
        (self.attr.cq_mod_caps.max_cq_count, self.attr.cq_mod_caps.max_cq_period)
    }

    /// Atomics on the bus (`pci_atomic_caps`): the operand sizes of each operation.
    pub fn pci_atomic_caps(&self) -> PciAtomicCapabilities {
        let caps = &self.attr.pci_atomic_caps;
        PciAtomicCapabilities {
            fetch_add: PciAtomicSizes::from_bits_retain(caps.fetch_add),
            swap: PciAtomicSizes::from_bits_retain(caps.swap),
            compare_swap: PciAtomicSizes::from_bits_retain(caps.compare_swap),
        }
    }

    /// The number of physical ports, also for devices with more than 255. Libraries before
    /// rdma-core 34 report only [`phys_port_cnt`](Self::phys_port_cnt).
    pub fn phys_port_cnt_ex(&self) -> u32 {
        match self.attr.phys_port_cnt_ex {
            0 => self.phys_port_cnt().into(),
            count => count,
        }
    }

    /// The valid bits of a completion timestamp; 0 if the device has no timestamps.
    pub fn completion_timestamp_mask(&self) -> u64 {
        self.attr.completion_timestamp_mask
    }

    /// The frequency of the device's clock, in kHz; 0 if the device does not state it.
    pub fn hca_core_clock(&self) -> u64 {
        self.attr.hca_core_clock
    }

    /// The size of the device's own memory, in bytes.
    pub fn max_dm_size(&self) -> u64 {
        self.attr.max_dm_size
    }

    /// The size of the largest memory region, in bytes.
    pub fn max_mr_size(&self) -> u64 {
        self.attr.orig_attr.max_mr_size
    }

    /// The supported page sizes of memory regions, one bit for each power of two.
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

    /// The maximum number of queue pairs.
    pub fn max_qp(&self) -> i32 {
        self.attr.orig_attr.max_qp
    }

    /// The maximum number of work requests in one queue of a queue pair.
    pub fn max_qp_wr(&self) -> i32 {
        self.attr.orig_attr.max_qp_wr
    }

    /// The maximum number of scatter/gather entries that a work request can have.
    pub fn max_sge(&self) -> i32 {
        self.attr.orig_attr.max_sge
    }

    /// The maximum number of scatter/gather entries that an RDMA READ can have.
    pub fn max_sge_rd(&self) -> i32 {
        self.attr.orig_attr.max_sge_rd
    }

    /// The maximum number of completion queues.
    pub fn max_cq(&self) -> i32 {
        self.attr.orig_attr.max_cq
    }

    /// The maximum number of entries that a completion queue can have.
    pub fn max_cqe(&self) -> i32 {
        self.attr.orig_attr.max_cqe
    }

    /// The maximum number of memory regions.
    pub fn max_mr(&self) -> i32 {
        self.attr.orig_attr.max_mr
    }

    /// The maximum number of protection domains.
    pub fn max_pd(&self) -> i32 {
        self.attr.orig_attr.max_pd
    }

    /// The maximum number of RDMA READs and atomics that a queue pair can serve at a time.
    pub fn max_qp_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_qp_rd_atom
    }

    /// The maximum number of RDMA READs and atomics that an end-to-end context can serve at a time.
    pub fn max_ee_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_ee_rd_atom
    }

    /// The maximum number of RDMA READs and atomics that the device can serve at a time.
    pub fn max_res_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_res_rd_atom
    }

    /// The maximum number of RDMA READs and atomics that a queue pair can have outstanding.
    pub fn max_qp_init_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_qp_init_rd_atom
    }

    /// The maximum number of RDMA READs and atomics that an end-to-end context can have
    /// outstanding.
    pub fn max_ee_init_rd_atom(&self) -> i32 {
        self.attr.orig_attr.max_ee_init_rd_atom
    }

    /// The maximum number of end-to-end contexts.
    pub fn max_ee(&self) -> i32 {
        self.attr.orig_attr.max_ee
    }

    /// The maximum number of reliable datagram domains.
    pub fn max_rdd(&self) -> i32 {
        self.attr.orig_attr.max_rdd
    }

    /// The maximum number of memory windows.
    pub fn max_mw(&self) -> i32 {
        self.attr.orig_attr.max_mw
    }

    /// The maximum number of raw IPv6 queue pairs.
    pub fn max_raw_ipv6_qp(&self) -> i32 {
        self.attr.orig_attr.max_raw_ipv6_qp
    }

    /// The maximum number of raw Ethertype queue pairs.
    pub fn max_raw_ethy_qp(&self) -> i32 {
        self.attr.orig_attr.max_raw_ethy_qp
    }

    /// The maximum number of multicast groups.
    pub fn max_mcast_grp(&self) -> i32 {
        self.attr.orig_attr.max_mcast_grp
    }

    /// The maximum number of queue pairs in one multicast group.
    pub fn max_mcast_qp_attach(&self) -> i32 {
        self.attr.orig_attr.max_mcast_qp_attach
    }

    /// The maximum number of queue pair memberships in all multicast groups.
    pub fn max_total_mcast_qp_attach(&self) -> i32 {
        self.attr.orig_attr.max_total_mcast_qp_attach
    }

    /// The maximum number of address handles.
    pub fn max_ah(&self) -> i32 {
        self.attr.orig_attr.max_ah
    }

    /// The maximum number of fast memory regions.
    pub fn max_fmr(&self) -> i32 {
        self.attr.orig_attr.max_fmr
    }

    /// The maximum number of times that a fast memory region can be remapped.
    pub fn max_map_per_fmr(&self) -> i32 {
        self.attr.orig_attr.max_map_per_fmr
    }

    /// The maximum number of shared receive queues.
    pub fn max_srq(&self) -> i32 {
        self.attr.orig_attr.max_srq
    }

    /// The maximum number of work requests that a shared receive queue can hold.
    pub fn max_srq_wr(&self) -> i32 {
        self.attr.orig_attr.max_srq_wr
    }

    /// The maximum number of scatter/gather entries that a shared receive request can have.
    pub fn max_srq_sge(&self) -> i32 {
        self.attr.orig_attr.max_srq_sge
    }

    /// The maximum number of partition keys.
    pub fn max_pkeys(&self) -> u16 {
        self.attr.orig_attr.max_pkeys
    }

    /// The longest time that the device takes to acknowledge, as an exponent (4.096 us x 2^n).
    pub fn local_ca_ack_delay(&self) -> u8 {
        self.attr.orig_attr.local_ca_ack_delay
    }

    /// The number of physical ports, at most 255.
    pub fn phys_port_cnt(&self) -> u8 {
        self.attr.orig_attr.phys_port_cnt
    }
}

/// The getters whose names in sideway 0.4 are not those of the C fields.
impl DeviceAttr {
    /// [`fw_ver`](Self::fw_ver).
    #[deprecated(note = "use `fw_ver`, the name of the C field")]
    pub fn firmware_version(&self) -> String {
        self.fw_ver()
    }

    /// [`hw_ver`](Self::hw_ver).
    #[deprecated(note = "use `hw_ver`, the name of the C field")]
    pub fn hardware_version(&self) -> u32 {
        self.hw_ver()
    }

    /// [`atomic_cap`](Self::atomic_cap).
    #[deprecated(note = "use `atomic_cap`, the name of the C field")]
    pub fn atomic_capability(&self) -> AtomicCapability {
        self.atomic_cap()
    }

    /// [`max_res_rd_atom`](Self::max_res_rd_atom).
    #[deprecated(note = "use `max_res_rd_atom`, the name of the C field")]
    pub fn max_res_rd_atomic(&self) -> i32 {
        self.max_res_rd_atom()
    }
}

impl fmt::Debug for DeviceAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceAttr").field(&self.attr.orig_attr).finish()
    }
}

c_enum! {
    /// The scope within which atomics are atomic (`ibv_atomic_cap`).
    pub struct AtomicCapability(u32) {
        /// The device has no atomics.
        None = 0,
        /// Atomic with respect to other operations of this device.
        Hca = 1,
        /// Atomic with respect to other operations of this device and to the processors.
        Glob = 2,
    }
}

display_as_debug!(AtomicCapability);

c_flags! {
    /// Optional features of a device (`ibv_device_cap_flags`, and the flags of the extended
    /// attributes).
    pub struct DeviceCapabilityFlags(u64) {
        /// The size of a queue can be changed after its creation.
        ResizeMaxWr = C::IBV_DEVICE_RESIZE_MAX_WR.0,
        /// The device counts packets with a wrong partition key.
        BadPkeyCounter = C::IBV_DEVICE_BAD_PKEY_CNTR.0,
        /// The device counts packets with a wrong Q_Key.
        BadQkeyCounter = C::IBV_DEVICE_BAD_QKEY_CNTR.0,
        /// Raw packets can be multicast.
        RawMulticast = C::IBV_DEVICE_RAW_MULTI.0,
        /// Connections can migrate to an alternate path automatically.
        AutomaticPathMigration = C::IBV_DEVICE_AUTO_PATH_MIG.0,
        /// A queue pair's port can be changed in the state SQD.
        ChangePhysicalPort = C::IBV_DEVICE_CHANGE_PHY_PORT.0,
        /// The device enforces the port of a datagram's address vector.
        UdAddressVectorPortEnforce = C::IBV_DEVICE_UD_AV_PORT_ENFORCE.0,
        /// `ibv_modify_qp` accepts the assumed current state (`IBV_QP_CUR_STATE`).
        CurrentQpStateModify = C::IBV_DEVICE_CURR_QP_STATE_MOD.0,
        /// Ports can be shut down.
        ShutdownPort = C::IBV_DEVICE_SHUTDOWN_PORT.0,
        /// Ports report the type of their initialisation.
        InitType = C::IBV_DEVICE_INIT_TYPE.0,
        /// The device sends an event when a port becomes active.
        PortActiveEvent = C::IBV_DEVICE_PORT_ACTIVE_EVENT.0,
        /// The device reports the GUID of the system.
        SystemImageGuid = C::IBV_DEVICE_SYS_IMAGE_GUID.0,
        /// Responders send an RNR NAK if no receive is posted.
        RcRnrNakGeneration = C::IBV_DEVICE_RC_RNR_NAK_GEN.0,
        /// Shared receive queues can be resized.
        SrqResize = C::IBV_DEVICE_SRQ_RESIZE.0,
        /// A completion queue can delay its event until a given number of completions.
        NNotifyCq = C::IBV_DEVICE_N_NOTIFY_CQ.0,
        /// The device has memory windows.
        MemoryWindow = C::IBV_DEVICE_MEM_WINDOW.0,
        /// The device computes and checks the checksums of datagrams.
        UdIpChecksum = C::IBV_DEVICE_UD_IP_CSUM.0,
        /// The device has XRC queue pairs.
        Xrc = C::IBV_DEVICE_XRC.0,
        /// Memory management extensions: local invalidate, send with invalidate, and related
        /// operations.
        MemoryManagementExtensions = C::IBV_DEVICE_MEM_MGT_EXTENSIONS.0,
        /// Memory windows of type 2A.
        MemoryWindowType2A = C::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0,
        /// Memory windows of type 2B.
        MemoryWindowType2B = C::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0,
        /// The device computes and checks the checksums of connections' packets.
        RcIpChecksum = C::IBV_DEVICE_RC_IP_CSUM.0,
        /// The device computes and checks the checksums of raw packets.
        RawIpChecksum = C::IBV_DEVICE_RAW_IP_CSUM.0,
        /// The device can steer flows.
        ManagedFlowSteering = C::IBV_DEVICE_MANAGED_FLOW_STEERING.0,
        /// The frame check sequence of raw packets can be received.
        RawScatterFcs = IBV_DEVICE_RAW_SCATTER_FCS,
        /// The device can pad its writes on the bus to whole cache lines.
        PciWriteEndPadding = IBV_DEVICE_PCI_WRITE_END_PADDING,
        /// In a confidential guest, the device's memory accesses go through bounce buffers.
        ConfidentialDmaBounce = IBV_DEVICE_CC_DMA_BOUNCE,
        /// Flush to global visibility (the kernel's `IB_UVERBS_DEVICE_FLUSH_GLOBAL`; the next two
        /// are kernel flags as well).
        FlushGlobal = 1_u64 << 38,
        /// Flush to persistence.
        FlushPersistent = 1_u64 << 39,
        /// RDMA ATOMIC WRITE of 8 bytes.
        AtomicWrite = 1_u64 << 40,
    }
}

c_flags! {
    /// On-demand paging in general (`ibv_odp_general_caps`).
    pub struct OnDemandPagingGeneral(u64) {
        /// The device supports on-demand paging.
        Support = G::IBV_ODP_SUPPORT.0,
        /// The whole address space can be registered as one implicit region. A device
        /// may set the bit although it supports local access alone;
        /// [`reg_mr_implicit`](crate::ibverbs::protection_domain::ProtectionDomain::reg_mr_implicit)
        /// then refuses remote permissions.
        SupportImplicit = G::IBV_ODP_SUPPORT_IMPLICIT.0,
    }
}

c_flags! {
    /// Operations that work on memory that is not pinned (`ibv_odp_transport_cap_bits`).
    pub struct OnDemandPagingTransport(u32) {
        /// SEND from memory that is not pinned (`IBV_ODP_SUPPORT_SEND`).
        Send = T::IBV_ODP_SUPPORT_SEND.0,
        /// Receive.
        Recv = T::IBV_ODP_SUPPORT_RECV.0,
        /// RDMA WRITE.
        Write = T::IBV_ODP_SUPPORT_WRITE.0,
        /// RDMA READ.
        Read = T::IBV_ODP_SUPPORT_READ.0,
        /// Compare-and-swap and fetch-and-add (`IBV_ODP_SUPPORT_ATOMIC`).
        Atomic = T::IBV_ODP_SUPPORT_ATOMIC.0,
        /// Receive through a shared receive queue.
        SrqRecv = T::IBV_ODP_SUPPORT_SRQ_RECV.0,
        /// RDMA FLUSH (`IBV_ODP_SUPPORT_FLUSH`).
        Flush = T::IBV_ODP_SUPPORT_FLUSH.0,
        /// RDMA ATOMIC WRITE of 8 bytes (`IBV_ODP_SUPPORT_ATOMIC_WRITE`).
        AtomicWrite = T::IBV_ODP_SUPPORT_ATOMIC_WRITE.0,
    }
}

/// On-demand paging of each transport (`ibv_odp_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnDemandPagingCapabilities {
    /// General support.
    pub general: OnDemandPagingGeneral,
    /// Operations on reliable connections.
    pub rc: OnDemandPagingTransport,
    /// Operations on unreliable connections.
    pub uc: OnDemandPagingTransport,
    /// Operations with datagrams.
    pub ud: OnDemandPagingTransport,
    /// Operations on extended reliable connections.
    pub xrc: OnDemandPagingTransport,
}

/// A set of queue pair types, as devices report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairTypes(u32);

impl QueuePairTypes {
    /// Whether the set contains a type.
    pub const fn contains(self, qp_type: QueuePairType) -> bool {
        qp_type.raw() < u32::BITS && self.0 & 1 << qp_type.raw() != 0
    }

    /// The set as bits: bit `n` stands for the type with the number `n`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Segmentation offload (`ibv_tso_caps`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentationOffloadCapabilities {
    /// The longest payload that the device can segment, in bytes; 0 without support.
    pub max_tso: u32,
    /// The supported queue pair types.
    pub supported_qpts: QueuePairTypes,
}

c_flags! {
    /// Packet fields that the receive hash can cover (`ibv_rx_hash_fields`).
    pub struct ReceiveHashFields(u64) {
        /// The sender's IPv4 address.
        SrcIpv4 = H::IBV_RX_HASH_SRC_IPV4.0,
        /// The receiver's IPv4 address.
        DstIpv4 = H::IBV_RX_HASH_DST_IPV4.0,
        /// The sender's IPv6 address.
        SrcIpv6 = H::IBV_RX_HASH_SRC_IPV6.0,
        /// The receiver's IPv6 address.
        DstIpv6 = H::IBV_RX_HASH_DST_IPV6.0,
        /// The sender's TCP port.
        SrcPortTcp = H::IBV_RX_HASH_SRC_PORT_TCP.0,
        /// The receiver's TCP port.
        DstPortTcp = H::IBV_RX_HASH_DST_PORT_TCP.0,
        /// The sender's UDP port.
        SrcPortUdp = H::IBV_RX_HASH_SRC_PORT_UDP.0,
        /// The receiver's UDP port.
        DstPortUdp = H::IBV_RX_HASH_DST_PORT_UDP.0,
        /// The security parameter index of IPsec.
        IpsecSpi = H::IBV_RX_HASH_IPSEC_SPI.0,
        /// The fields of the inner packet of a tunnel.
        Inner = H::IBV_RX_HASH_INNER.0,
    }
}

c_flags! {
    /// Functions that hash received packets (`ibv_rx_hash_function_flags`).
    pub struct ReceiveHashFunctions(u8) {
        /// The Toeplitz hash, with a key from the program (`IBV_RX_HASH_FUNC_TOEPLITZ`).
        Toeplitz = F::IBV_RX_HASH_FUNC_TOEPLITZ.0,
    }
}

/// Receive-side scaling (`ibv_rss_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveSideScalingCapabilities {
    /// The supported queue pair types.
    pub supported_qpts: QueuePairTypes,
    /// The maximum number of tables of work queues.
    pub max_rwq_indirection_tables: u32,
    /// The maximum number of entries of such a table.
    pub max_rwq_indirection_table_size: u32,
    /// The fields that the hash can cover.
    pub rx_hash_fields: ReceiveHashFields,
    /// The supported hash functions.
    pub rx_hash_functions: ReceiveHashFunctions,
}

/// Packet pacing (`ibv_packet_pacing_caps`), in kb/s; all 0 without support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketPacingCapabilities {
    /// The lowest rate.
    pub qp_rate_limit_min: u32,
    /// The highest rate.
    pub qp_rate_limit_max: u32,
    /// The supported queue pair types.
    pub supported_qpts: QueuePairTypes,
}

c_flags! {
    /// Features of raw packet queue pairs (`ibv_raw_packet_caps`).
    pub struct RawPacketCapabilities(u32) {
        /// The device can remove VLAN tags.
        CvlanStripping = R::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING.0,
        /// The frame check sequence can be received.
        ScatterFcs = R::IBV_RAW_PACKET_CAP_SCATTER_FCS.0,
        /// The device computes and checks checksums.
        IpChecksum = R::IBV_RAW_PACKET_CAP_IP_CSUM.0,
        /// Packets can wait until a receive is posted.
        DelayDrop = R::IBV_RAW_PACKET_CAP_DELAY_DROP.0,
    }
}

c_flags! {
    /// Queue pair types with tag matching (`ibv_tm_cap_flags`).
    pub struct TagMatchingFlags(u32) {
        /// RC pairs match tags (`IBV_TM_CAP_RC`).
        ReliableConnection = M::IBV_TM_CAP_RC.0,
    }
}

/// Limits of tag matching (`ibv_tm_caps`); all 0 without support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagMatchingCapabilities {
    /// The longest header of a rendezvous message, in bytes.
    pub max_rndv_hdr_size: u32,
    /// The maximum number of tags that a list can have.
    pub max_num_tags: u32,
    /// The queue pair types with tag matching.
    pub flags: TagMatchingFlags,
    /// The maximum number of outstanding operations.
    pub max_ops: u32,
    /// The maximum number of entries that an operation can have.
    pub max_sge: u32,
}

c_flags! {
    /// Operand sizes of atomics on the bus (`ibv_pci_atomic_op_size`).
    pub struct PciAtomicSizes(u16) {
        /// Four bytes.
        Bytes4 = P::IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP.0,
        /// Eight bytes.
        Bytes8 = P::IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP.0,
        /// Sixteen bytes.
        Bytes16 = P::IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP.0,
    }
}

/// Operand sizes of each atomic operation on the bus (`ibv_pci_atomic_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciAtomicCapabilities {
    /// Operand sizes of fetch-and-add.
    pub fetch_add: PciAtomicSizes,
    /// Operand sizes of an unconditional swap.
    pub swap: PciAtomicSizes,
    /// Operand sizes of compare-and-swap.
    pub compare_swap: PciAtomicSizes,
}

impl PciAtomicCapabilities {
    /// The field [`fetch_add`](field@Self::fetch_add).
    #[deprecated(note = "use the field `fetch_add`")]
    pub fn fetch_add(&self) -> PciAtomicSizes {
        self.fetch_add
    }

    /// The field [`swap`](field@Self::swap).
    #[deprecated(note = "use the field `swap`")]
    pub fn swap(&self) -> PciAtomicSizes {
        self.swap
    }

    /// The field [`compare_swap`](field@Self::compare_swap).
    #[deprecated(note = "use the field `compare_swap`")]
    pub fn compare_swap(&self) -> PciAtomicSizes {
        self.compare_swap
    }
}
