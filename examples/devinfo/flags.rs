//! Names of flag bits.

use std::fmt::{Display, UpperHex};
use std::ops::{BitAnd, Not};

use sideway::sys::types::{
    IBV_DEVICE_CC_DMA_BOUNCE, IBV_DEVICE_PCI_WRITE_END_PADDING, IBV_DEVICE_RAW_SCATTER_FCS,
    ibv_device_cap_flags as C, ibv_odp_general_caps as G, ibv_odp_transport_cap_bits as T, ibv_qp_type as Q,
    ibv_raw_packet_caps as R, ibv_tm_cap_flags as M,
};

use super::OutputLines;

/// Names of bits, in printing order.
pub(super) type Names<T> = [(T, &'static str)];

/// One line for each set bit that has a name.
pub(super) fn known<T>(lines: &mut OutputLines, value: T, names: &Names<T>)
where
    T: Copy + Default + PartialEq + BitAnd<Output = T>,
{
    for (bit, name) in names {
        if value & *bit != T::default() {
            lines.line(&format!("\t\t\t\t\t{name}"));
        }
    }
}

/// Like [`known`], with one more line for all bits without a name.
pub(super) fn all<T>(lines: &mut OutputLines, value: T, names: &Names<T>)
where
    T: Copy + Default + PartialEq + BitAnd<Output = T> + Not<Output = T> + UpperHex + Display,
{
    known(lines, value, names);
    let unknown = names.iter().fold(value, |rest, (bit, _)| rest & !*bit);
    if unknown != T::default() {
        lines.line(&format!("\t\t\t\t\tUnknown flags: 0x{unknown:X}"));
    }
}

pub(super) const DEVICE: &Names<u32> = &[
    (C::IBV_DEVICE_RESIZE_MAX_WR.0, "RESIZE_MAX_WR"),
    (C::IBV_DEVICE_BAD_PKEY_CNTR.0, "BAD_PKEY_CNTR"),
    (C::IBV_DEVICE_BAD_QKEY_CNTR.0, "BAD_QKEY_CNTR"),
    (C::IBV_DEVICE_RAW_MULTI.0, "RAW_MULTI"),
    (C::IBV_DEVICE_AUTO_PATH_MIG.0, "AUTO_PATH_MIG"),
    (C::IBV_DEVICE_CHANGE_PHY_PORT.0, "CHANGE_PHY_PORT"),
    (C::IBV_DEVICE_UD_AV_PORT_ENFORCE.0, "UD_AV_PORT_ENFORCE"),
    (C::IBV_DEVICE_CURR_QP_STATE_MOD.0, "CURR_QP_STATE_MOD"),
    (C::IBV_DEVICE_SHUTDOWN_PORT.0, "SHUTDOWN_PORT"),
    (C::IBV_DEVICE_INIT_TYPE.0, "INIT_TYPE"),
    (C::IBV_DEVICE_PORT_ACTIVE_EVENT.0, "PORT_ACTIVE_EVENT"),
    (C::IBV_DEVICE_SYS_IMAGE_GUID.0, "SYS_IMAGE_GUID"),
    (C::IBV_DEVICE_RC_RNR_NAK_GEN.0, "RC_RNR_NAK_GEN"),
    (C::IBV_DEVICE_SRQ_RESIZE.0, "SRQ_RESIZE"),
    (C::IBV_DEVICE_N_NOTIFY_CQ.0, "N_NOTIFY_CQ"),
    (C::IBV_DEVICE_MEM_WINDOW.0, "MEM_WINDOW"),
    (C::IBV_DEVICE_UD_IP_CSUM.0, "UD_IP_CSUM"),
    (C::IBV_DEVICE_XRC.0, "XRC"),
    (C::IBV_DEVICE_MEM_MGT_EXTENSIONS.0, "MEM_MGT_EXTENSIONS"),
    (C::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0, "MEM_WINDOW_TYPE_2A"),
    (C::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0, "MEM_WINDOW_TYPE_2B"),
    (C::IBV_DEVICE_RC_IP_CSUM.0, "RC_IP_CSUM"),
    (C::IBV_DEVICE_RAW_IP_CSUM.0, "RAW_IP_CSUM"),
    (C::IBV_DEVICE_MANAGED_FLOW_STEERING.0, "MANAGED_FLOW_STEERING"),
];

/// The upper half of the extended flags; the lower half repeats [`DEVICE`].
pub(super) const DEVICE_EX: &Names<u64> = &[
    (IBV_DEVICE_RAW_SCATTER_FCS, "RAW_SCATTER_FCS"),
    (IBV_DEVICE_PCI_WRITE_END_PADDING, "PCI_WRITE_END_PADDING"),
    (IBV_DEVICE_CC_DMA_BOUNCE, "CC_DMA_BOUNCE"),
];

pub(super) const ON_DEMAND: &Names<u64> = &[
    (G::IBV_ODP_SUPPORT.0 as u64, "ODP_SUPPORT"),
    (G::IBV_ODP_SUPPORT_IMPLICIT.0 as u64, "ODP_SUPPORT_IMPLICIT"),
];

pub(super) const ON_DEMAND_TRANSPORT: &Names<u32> = &[
    (T::IBV_ODP_SUPPORT_SEND.0, "SUPPORT_SEND"),
    (T::IBV_ODP_SUPPORT_RECV.0, "SUPPORT_RECV"),
    (T::IBV_ODP_SUPPORT_WRITE.0, "SUPPORT_WRITE"),
    (T::IBV_ODP_SUPPORT_READ.0, "SUPPORT_READ"),
    (T::IBV_ODP_SUPPORT_ATOMIC.0, "SUPPORT_ATOMIC"),
    (T::IBV_ODP_SUPPORT_SRQ_RECV.0, "SUPPORT_SRQ"),
    (T::IBV_ODP_SUPPORT_FLUSH.0, "SUPPORT_FLUSH"),
    (T::IBV_ODP_SUPPORT_ATOMIC_WRITE.0, "SUPPORT_ATOMIC_WRITE"),
];

pub(super) const RAW_PACKET: &Names<u32> = &[
    (R::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING.0, "C-VLAN stripping offload"),
    (R::IBV_RAW_PACKET_CAP_SCATTER_FCS.0, "Scatter FCS offload"),
    (R::IBV_RAW_PACKET_CAP_IP_CSUM.0, "IP csum offload"),
    (R::IBV_RAW_PACKET_CAP_DELAY_DROP.0, "Delay drop"),
];

pub(super) const TAG_MATCHING: &Names<u32> = &[(M::IBV_TM_CAP_RC.0, "IBV_TM_CAP_RC")];

/// Types of queue pairs, as bits.
pub(super) const QP_TYPES: &Names<u32> =
    &[(1 << Q::IBV_QPT_RAW_PACKET.0, "SUPPORT_RAW_PACKET"), (1 << Q::IBV_QPT_UD.0, "SUPPORT_UD")];

/// Types of queue pairs that support pacing, as bits.
pub(super) const PACED_QP_TYPES: &Names<u32> =
    &[QP_TYPES[0], QP_TYPES[1], (1 << Q::IBV_QPT_RC.0, "SUPPORT_RC")];
