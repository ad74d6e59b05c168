// By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit.

//! Types and constants.

use libc::{
    FILE, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, pthread_cond_t,
    pthread_mutex_t, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
    socklen_t, ssize_t, timespec, timeval, in_addr, in6_addr,
};
#[repr(C, align(4))]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_ctrl_seg {
    pub opmod_idx_opcode: __be32,
    pub qpn_ds: __be32,
    pub signature: u8,
    pub dci_stream_channel_id: [u8; 2],
    pub fm_ce_se: u8,
    pub imm: __be32,
}
#[repr(C)]
#[derive(Default)]
pub struct __IncompleteArrayField<T>(::core::marker::PhantomData<T>, [T; 0]);
impl<T> __IncompleteArrayField<T> {
    #[inline]
    pub const fn new() -> Self {
        __IncompleteArrayField(::core::marker::PhantomData, [])
    }
    #[inline]
    pub fn as_ptr(&self) -> *const T {
        self as *const _ as *const T
    }
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self as *mut _ as *mut T
    }
    #[inline]
    pub unsafe fn as_slice(&self, len: usize) -> &[T] {
        ::core::slice::from_raw_parts(self.as_ptr(), len)
    }
    #[inline]
    pub unsafe fn as_mut_slice(&mut self, len: usize) -> &mut [T] {
        ::core::slice::from_raw_parts_mut(self.as_mut_ptr(), len)
    }
}
impl<T> ::core::fmt::Debug for __IncompleteArrayField<T> {
    fn fmt(&self, fmt: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        fmt.write_str("__IncompleteArrayField")
    }
}
pub const IBV_ACCESS_OPTIONAL_FIRST: u32 = 1048576;
pub const IBV_DEVICE_RAW_SCATTER_FCS: u64 = 17179869184;
pub const IBV_DEVICE_PCI_WRITE_END_PADDING: u64 = 68719476736;
pub const IBV_DEVICE_CC_DMA_BOUNCE: u64 = 2199023255552;
pub const MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED: u32 = 2147483648;
pub const IBV_PATH_RECORD_REVERSIBLE: u32 = 128;
pub const IBV_PATH_FLAG_GMP: u32 = 1;
pub const IBV_PATH_FLAG_PRIMARY: u32 = 2;
pub const IBV_PATH_FLAG_ALTERNATE: u32 = 4;
pub const IBV_PATH_FLAG_OUTBOUND: u32 = 8;
pub const IBV_PATH_FLAG_INBOUND: u32 = 16;
pub const IBV_PATH_FLAG_INBOUND_REVERSE: u32 = 32;
pub const IBV_PATH_FLAG_BIDIRECTIONAL: u32 = 40;
pub const RDMA_IB_IP_PS_MASK: u64 = 18446744073709486080;
pub const RDMA_IB_IP_PORT_MASK: u64 = 65535;
pub const RDMA_IB_IP_PS_TCP: u64 = 17170432;
pub const RDMA_IB_IP_PS_UDP: u64 = 17891328;
pub const RDMA_IB_PS_IB: u64 = 20905984;
pub const RDMA_UDP_QKEY: u32 = 19088743;
pub const RAI_PASSIVE: u32 = 1;
pub const RAI_NUMERICHOST: u32 = 2;
pub const RAI_NOROUTE: u32 = 4;
pub const RAI_FAMILY: u32 = 8;
pub const RAI_SA: u32 = 16;
pub const RAI_DNS: u32 = 32;
pub const SOL_RDMA: u32 = 65536;
pub type __uint64_t = ::core::ffi::c_ulong;
pub type __off_t = ::core::ffi::c_long;
pub type __off64_t = ::core::ffi::c_long;
pub type __time_t = ::core::ffi::c_long;
pub type __suseconds_t = ::core::ffi::c_long;
pub type __syscall_slong_t = ::core::ffi::c_long;
pub type __socklen_t = ::core::ffi::c_uint;
pub type __u8 = ::core::ffi::c_uchar;
pub type __u16 = ::core::ffi::c_ushort;
pub type __u32 = ::core::ffi::c_uint;
pub type __u64 = ::core::ffi::c_ulonglong;
pub type __be16 = __u16;
pub type __be32 = __u32;
pub type __be64 = __u64;
impl ib_uverbs_access_flags {
    pub const IB_UVERBS_ACCESS_LOCAL_WRITE: ib_uverbs_access_flags = ib_uverbs_access_flags(
        1,
    );
    pub const IB_UVERBS_ACCESS_REMOTE_WRITE: ib_uverbs_access_flags = ib_uverbs_access_flags(
        2,
    );
    pub const IB_UVERBS_ACCESS_REMOTE_READ: ib_uverbs_access_flags = ib_uverbs_access_flags(
        4,
    );
    pub const IB_UVERBS_ACCESS_REMOTE_ATOMIC: ib_uverbs_access_flags = ib_uverbs_access_flags(
        8,
    );
    pub const IB_UVERBS_ACCESS_MW_BIND: ib_uverbs_access_flags = ib_uverbs_access_flags(
        16,
    );
    pub const IB_UVERBS_ACCESS_ZERO_BASED: ib_uverbs_access_flags = ib_uverbs_access_flags(
        32,
    );
    pub const IB_UVERBS_ACCESS_ON_DEMAND: ib_uverbs_access_flags = ib_uverbs_access_flags(
        64,
    );
    pub const IB_UVERBS_ACCESS_HUGETLB: ib_uverbs_access_flags = ib_uverbs_access_flags(
        128,
    );
    pub const IB_UVERBS_ACCESS_FLUSH_GLOBAL: ib_uverbs_access_flags = ib_uverbs_access_flags(
        256,
    );
    pub const IB_UVERBS_ACCESS_FLUSH_PERSISTENT: ib_uverbs_access_flags = ib_uverbs_access_flags(
        512,
    );
    pub const IB_UVERBS_ACCESS_RELAXED_ORDERING: ib_uverbs_access_flags = ib_uverbs_access_flags(
        1048576,
    );
    pub const IB_UVERBS_ACCESS_OPTIONAL_RANGE: ib_uverbs_access_flags = ib_uverbs_access_flags(
        1072693248,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_access_flags(pub ::core::ffi::c_uint);
impl ib_uverbs_query_port_flags {
    pub const IB_UVERBS_QPF_GRH_REQUIRED: ib_uverbs_query_port_flags = ib_uverbs_query_port_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_query_port_flags(pub ::core::ffi::c_uint);
impl ib_uverbs_flow_action_esp_keymat {
    pub const IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM: ib_uverbs_flow_action_esp_keymat = ib_uverbs_flow_action_esp_keymat(
        0,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_flow_action_esp_keymat(pub ::core::ffi::c_uint);
impl ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo {
    pub const IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ: ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo = ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo(
        0,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ib_uverbs_flow_action_esp_keymat_aes_gcm {
    pub iv: __u64,
    pub iv_algo: __u32,
    pub salt: __u32,
    pub icv_len: __u32,
    pub key_len: __u32,
    pub aes_key: [__u32; 8usize],
}
impl ib_uverbs_flow_action_esp_replay {
    pub const IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE: ib_uverbs_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay(
        0,
    );
    pub const IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP: ib_uverbs_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_flow_action_esp_replay(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ib_uverbs_flow_action_esp_replay_bmp {
    pub size: __u32,
}
impl ib_uverbs_flow_action_esp_flags {
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
        0,
    );
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
        1,
    );
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
        0,
    );
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
        2,
    );
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
        0,
    );
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
        4,
    );
    pub const IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
        8,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_flow_action_esp_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ib_uverbs_flow_action_esp_encap {
    pub __bindgen_anon_1: ib_uverbs_flow_action_esp_encap__bindgen_ty_1,
    pub __bindgen_anon_2: ib_uverbs_flow_action_esp_encap__bindgen_ty_2,
    pub len: __u16,
    pub type_: __u16,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ib_uverbs_flow_action_esp_encap__bindgen_ty_1 {
    pub val_ptr: *mut ::core::ffi::c_void,
    pub val_ptr_data_u64: __u64,
}
impl Default for ib_uverbs_flow_action_esp_encap__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ib_uverbs_flow_action_esp_encap__bindgen_ty_2 {
    pub next_ptr: *mut ib_uverbs_flow_action_esp_encap,
    pub next_ptr_data_u64: __u64,
}
impl Default for ib_uverbs_flow_action_esp_encap__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ib_uverbs_flow_action_esp_encap {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ib_uverbs_flow_action_esp {
    pub spi: __u32,
    pub seq: __u32,
    pub tfc_pad: __u32,
    pub flags: __u32,
    pub hard_limit_pkts: __u64,
}
impl ib_uverbs_advise_mr_advice {
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
        0,
    );
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
        1,
    );
    pub const IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_advise_mr_advice(pub ::core::ffi::c_uint);
impl ib_uverbs_advise_mr_flag {
    pub const IB_UVERBS_ADVISE_MR_FLAG_FLUSH: ib_uverbs_advise_mr_flag = ib_uverbs_advise_mr_flag(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ib_uverbs_advise_mr_flag(pub ::core::ffi::c_uint);
impl rdma_driver_id {
    pub const RDMA_DRIVER_UNKNOWN: rdma_driver_id = rdma_driver_id(0);
    pub const RDMA_DRIVER_MLX5: rdma_driver_id = rdma_driver_id(1);
    pub const RDMA_DRIVER_MLX4: rdma_driver_id = rdma_driver_id(2);
    pub const RDMA_DRIVER_CXGB3: rdma_driver_id = rdma_driver_id(3);
    pub const RDMA_DRIVER_CXGB4: rdma_driver_id = rdma_driver_id(4);
    pub const RDMA_DRIVER_MTHCA: rdma_driver_id = rdma_driver_id(5);
    pub const RDMA_DRIVER_BNXT_RE: rdma_driver_id = rdma_driver_id(6);
    pub const RDMA_DRIVER_OCRDMA: rdma_driver_id = rdma_driver_id(7);
    pub const RDMA_DRIVER_NES: rdma_driver_id = rdma_driver_id(8);
    pub const RDMA_DRIVER_I40IW: rdma_driver_id = rdma_driver_id(9);
    pub const RDMA_DRIVER_IRDMA: rdma_driver_id = rdma_driver_id(9);
    pub const RDMA_DRIVER_VMW_PVRDMA: rdma_driver_id = rdma_driver_id(10);
    pub const RDMA_DRIVER_QEDR: rdma_driver_id = rdma_driver_id(11);
    pub const RDMA_DRIVER_HNS: rdma_driver_id = rdma_driver_id(12);
    pub const RDMA_DRIVER_USNIC: rdma_driver_id = rdma_driver_id(13);
    pub const RDMA_DRIVER_RXE: rdma_driver_id = rdma_driver_id(14);
    pub const RDMA_DRIVER_HFI1: rdma_driver_id = rdma_driver_id(15);
    pub const RDMA_DRIVER_QIB: rdma_driver_id = rdma_driver_id(16);
    pub const RDMA_DRIVER_EFA: rdma_driver_id = rdma_driver_id(17);
    pub const RDMA_DRIVER_SIW: rdma_driver_id = rdma_driver_id(18);
    pub const RDMA_DRIVER_ERDMA: rdma_driver_id = rdma_driver_id(19);
    pub const RDMA_DRIVER_MANA: rdma_driver_id = rdma_driver_id(20);
    pub const RDMA_DRIVER_IONIC: rdma_driver_id = rdma_driver_id(21);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct rdma_driver_id(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_gid {
    pub raw: [u8; 16usize],
    pub global: ibv_gid__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_gid__bindgen_ty_1 {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
impl Default for ibv_gid {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_gid_type {
    pub const IBV_GID_TYPE_IB: ibv_gid_type = ibv_gid_type(0);
    pub const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = ibv_gid_type(1);
    pub const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = ibv_gid_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_gid_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
impl Default for ibv_gid_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_node_type {
    pub const IBV_NODE_UNKNOWN: ibv_node_type = ibv_node_type(-1);
    pub const IBV_NODE_CA: ibv_node_type = ibv_node_type(1);
    pub const IBV_NODE_SWITCH: ibv_node_type = ibv_node_type(2);
    pub const IBV_NODE_ROUTER: ibv_node_type = ibv_node_type(3);
    pub const IBV_NODE_RNIC: ibv_node_type = ibv_node_type(4);
    pub const IBV_NODE_USNIC: ibv_node_type = ibv_node_type(5);
    pub const IBV_NODE_USNIC_UDP: ibv_node_type = ibv_node_type(6);
    pub const IBV_NODE_UNSPECIFIED: ibv_node_type = ibv_node_type(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_node_type(pub ::core::ffi::c_int);
impl ibv_transport_type {
    pub const IBV_TRANSPORT_UNKNOWN: ibv_transport_type = ibv_transport_type(-1);
    pub const IBV_TRANSPORT_IB: ibv_transport_type = ibv_transport_type(0);
    pub const IBV_TRANSPORT_IWARP: ibv_transport_type = ibv_transport_type(1);
    pub const IBV_TRANSPORT_USNIC: ibv_transport_type = ibv_transport_type(2);
    pub const IBV_TRANSPORT_USNIC_UDP: ibv_transport_type = ibv_transport_type(3);
    pub const IBV_TRANSPORT_UNSPECIFIED: ibv_transport_type = ibv_transport_type(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_transport_type(pub ::core::ffi::c_int);
impl ibv_device_cap_flags {
    pub const IBV_DEVICE_RESIZE_MAX_WR: ibv_device_cap_flags = ibv_device_cap_flags(1);
    pub const IBV_DEVICE_BAD_PKEY_CNTR: ibv_device_cap_flags = ibv_device_cap_flags(2);
    pub const IBV_DEVICE_BAD_QKEY_CNTR: ibv_device_cap_flags = ibv_device_cap_flags(4);
    pub const IBV_DEVICE_RAW_MULTI: ibv_device_cap_flags = ibv_device_cap_flags(8);
    pub const IBV_DEVICE_AUTO_PATH_MIG: ibv_device_cap_flags = ibv_device_cap_flags(16);
    pub const IBV_DEVICE_CHANGE_PHY_PORT: ibv_device_cap_flags = ibv_device_cap_flags(
        32,
    );
    pub const IBV_DEVICE_UD_AV_PORT_ENFORCE: ibv_device_cap_flags = ibv_device_cap_flags(
        64,
    );
    pub const IBV_DEVICE_CURR_QP_STATE_MOD: ibv_device_cap_flags = ibv_device_cap_flags(
        128,
    );
    pub const IBV_DEVICE_SHUTDOWN_PORT: ibv_device_cap_flags = ibv_device_cap_flags(256);
    pub const IBV_DEVICE_INIT_TYPE: ibv_device_cap_flags = ibv_device_cap_flags(512);
    pub const IBV_DEVICE_PORT_ACTIVE_EVENT: ibv_device_cap_flags = ibv_device_cap_flags(
        1024,
    );
    pub const IBV_DEVICE_SYS_IMAGE_GUID: ibv_device_cap_flags = ibv_device_cap_flags(
        2048,
    );
    pub const IBV_DEVICE_RC_RNR_NAK_GEN: ibv_device_cap_flags = ibv_device_cap_flags(
        4096,
    );
    pub const IBV_DEVICE_SRQ_RESIZE: ibv_device_cap_flags = ibv_device_cap_flags(8192);
    pub const IBV_DEVICE_N_NOTIFY_CQ: ibv_device_cap_flags = ibv_device_cap_flags(16384);
    pub const IBV_DEVICE_MEM_WINDOW: ibv_device_cap_flags = ibv_device_cap_flags(131072);
    pub const IBV_DEVICE_UD_IP_CSUM: ibv_device_cap_flags = ibv_device_cap_flags(262144);
    pub const IBV_DEVICE_XRC: ibv_device_cap_flags = ibv_device_cap_flags(1048576);
    pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: ibv_device_cap_flags = ibv_device_cap_flags(
        2097152,
    );
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: ibv_device_cap_flags = ibv_device_cap_flags(
        8388608,
    );
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: ibv_device_cap_flags = ibv_device_cap_flags(
        16777216,
    );
    pub const IBV_DEVICE_RC_IP_CSUM: ibv_device_cap_flags = ibv_device_cap_flags(
        33554432,
    );
    pub const IBV_DEVICE_RAW_IP_CSUM: ibv_device_cap_flags = ibv_device_cap_flags(
        67108864,
    );
    pub const IBV_DEVICE_MANAGED_FLOW_STEERING: ibv_device_cap_flags = ibv_device_cap_flags(
        536870912,
    );
}
impl ::core::ops::BitOr<ibv_device_cap_flags> for ibv_device_cap_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_device_cap_flags(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_device_cap_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_device_cap_flags) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_device_cap_flags> for ibv_device_cap_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_device_cap_flags(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_device_cap_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_device_cap_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_device_cap_flags(pub ::core::ffi::c_uint);
impl ibv_fork_status {
    pub const IBV_FORK_DISABLED: ibv_fork_status = ibv_fork_status(0);
    pub const IBV_FORK_ENABLED: ibv_fork_status = ibv_fork_status(1);
    pub const IBV_FORK_UNNEEDED: ibv_fork_status = ibv_fork_status(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_fork_status(pub ::core::ffi::c_uint);
impl ibv_atomic_cap {
    pub const IBV_ATOMIC_NONE: ibv_atomic_cap = ibv_atomic_cap(0);
    pub const IBV_ATOMIC_HCA: ibv_atomic_cap = ibv_atomic_cap(1);
    pub const IBV_ATOMIC_GLOB: ibv_atomic_cap = ibv_atomic_cap(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_atomic_cap(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}
impl ibv_dm_mask {
    pub const IBV_DM_MASK_HANDLE: ibv_dm_mask = ibv_dm_mask(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_dm_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: ::core::option::Option<
        unsafe extern "C" fn(
            dm: *mut ibv_dm,
            dm_offset: u64,
            host_addr: *const ::core::ffi::c_void,
            length: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub memcpy_from_dm: ::core::option::Option<
        unsafe extern "C" fn(
            host_addr: *mut ::core::ffi::c_void,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub comp_mask: u32,
    pub handle: u32,
}
impl Default for ibv_dm {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr {
    pub fw_ver: [::core::ffi::c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: ::core::ffi::c_int,
    pub max_qp_wr: ::core::ffi::c_int,
    pub device_cap_flags: ::core::ffi::c_uint,
    pub max_sge: ::core::ffi::c_int,
    pub max_sge_rd: ::core::ffi::c_int,
    pub max_cq: ::core::ffi::c_int,
    pub max_cqe: ::core::ffi::c_int,
    pub max_mr: ::core::ffi::c_int,
    pub max_pd: ::core::ffi::c_int,
    pub max_qp_rd_atom: ::core::ffi::c_int,
    pub max_ee_rd_atom: ::core::ffi::c_int,
    pub max_res_rd_atom: ::core::ffi::c_int,
    pub max_qp_init_rd_atom: ::core::ffi::c_int,
    pub max_ee_init_rd_atom: ::core::ffi::c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: ::core::ffi::c_int,
    pub max_rdd: ::core::ffi::c_int,
    pub max_mw: ::core::ffi::c_int,
    pub max_raw_ipv6_qp: ::core::ffi::c_int,
    pub max_raw_ethy_qp: ::core::ffi::c_int,
    pub max_mcast_grp: ::core::ffi::c_int,
    pub max_mcast_qp_attach: ::core::ffi::c_int,
    pub max_total_mcast_qp_attach: ::core::ffi::c_int,
    pub max_ah: ::core::ffi::c_int,
    pub max_fmr: ::core::ffi::c_int,
    pub max_map_per_fmr: ::core::ffi::c_int,
    pub max_srq: ::core::ffi::c_int,
    pub max_srq_wr: ::core::ffi::c_int,
    pub max_srq_sge: ::core::ffi::c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
impl Default for ibv_device_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}
impl ibv_odp_general_caps {
    pub const IBV_ODP_SUPPORT: ibv_odp_general_caps = ibv_odp_general_caps(1);
    pub const IBV_ODP_SUPPORT_IMPLICIT: ibv_odp_general_caps = ibv_odp_general_caps(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_odp_general_caps(pub ::core::ffi::c_uint);
impl ibv_odp_transport_cap_bits {
    pub const IBV_ODP_SUPPORT_SEND: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        1,
    );
    pub const IBV_ODP_SUPPORT_RECV: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        2,
    );
    pub const IBV_ODP_SUPPORT_WRITE: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        4,
    );
    pub const IBV_ODP_SUPPORT_READ: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        8,
    );
    pub const IBV_ODP_SUPPORT_ATOMIC: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        16,
    );
    pub const IBV_ODP_SUPPORT_SRQ_RECV: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        32,
    );
    pub const IBV_ODP_SUPPORT_FLUSH: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        64,
    );
    pub const IBV_ODP_SUPPORT_ATOMIC_WRITE: ibv_odp_transport_cap_bits = ibv_odp_transport_cap_bits(
        128,
    );
}
impl ::core::ops::BitOr<ibv_odp_transport_cap_bits> for ibv_odp_transport_cap_bits {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_odp_transport_cap_bits(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_odp_transport_cap_bits {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_odp_transport_cap_bits) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_odp_transport_cap_bits> for ibv_odp_transport_cap_bits {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_odp_transport_cap_bits(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_odp_transport_cap_bits {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_odp_transport_cap_bits) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_odp_transport_cap_bits(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_caps__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_odp_caps__bindgen_ty_1 {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}
impl ibv_rx_hash_function_flags {
    pub const IBV_RX_HASH_FUNC_TOEPLITZ: ibv_rx_hash_function_flags = ibv_rx_hash_function_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_rx_hash_function_flags(pub ::core::ffi::c_uint);
impl ibv_rx_hash_fields {
    pub const IBV_RX_HASH_SRC_IPV4: ibv_rx_hash_fields = ibv_rx_hash_fields(1);
    pub const IBV_RX_HASH_DST_IPV4: ibv_rx_hash_fields = ibv_rx_hash_fields(2);
    pub const IBV_RX_HASH_SRC_IPV6: ibv_rx_hash_fields = ibv_rx_hash_fields(4);
    pub const IBV_RX_HASH_DST_IPV6: ibv_rx_hash_fields = ibv_rx_hash_fields(8);
    pub const IBV_RX_HASH_SRC_PORT_TCP: ibv_rx_hash_fields = ibv_rx_hash_fields(16);
    pub const IBV_RX_HASH_DST_PORT_TCP: ibv_rx_hash_fields = ibv_rx_hash_fields(32);
    pub const IBV_RX_HASH_SRC_PORT_UDP: ibv_rx_hash_fields = ibv_rx_hash_fields(64);
    pub const IBV_RX_HASH_DST_PORT_UDP: ibv_rx_hash_fields = ibv_rx_hash_fields(128);
    pub const IBV_RX_HASH_IPSEC_SPI: ibv_rx_hash_fields = ibv_rx_hash_fields(256);
    pub const IBV_RX_HASH_INNER: ibv_rx_hash_fields = ibv_rx_hash_fields(2147483648);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_rx_hash_fields(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
impl ibv_raw_packet_caps {
    pub const IBV_RAW_PACKET_CAP_CVLAN_STRIPPING: ibv_raw_packet_caps = ibv_raw_packet_caps(
        1,
    );
    pub const IBV_RAW_PACKET_CAP_SCATTER_FCS: ibv_raw_packet_caps = ibv_raw_packet_caps(
        2,
    );
    pub const IBV_RAW_PACKET_CAP_IP_CSUM: ibv_raw_packet_caps = ibv_raw_packet_caps(4);
    pub const IBV_RAW_PACKET_CAP_DELAY_DROP: ibv_raw_packet_caps = ibv_raw_packet_caps(
        8,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_raw_packet_caps(pub ::core::ffi::c_uint);
impl ibv_tm_cap_flags {
    pub const IBV_TM_CAP_RC: ibv_tm_cap_flags = ibv_tm_cap_flags(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_tm_cap_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}
impl ibv_pci_atomic_op_size {
    pub const IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = ibv_pci_atomic_op_size(
        1,
    );
    pub const IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = ibv_pci_atomic_op_size(
        2,
    );
    pub const IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = ibv_pci_atomic_op_size(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_pci_atomic_op_size(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
impl Default for ibv_device_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_mtu {
    pub const IBV_MTU_256: ibv_mtu = ibv_mtu(1);
    pub const IBV_MTU_512: ibv_mtu = ibv_mtu(2);
    pub const IBV_MTU_1024: ibv_mtu = ibv_mtu(3);
    pub const IBV_MTU_2048: ibv_mtu = ibv_mtu(4);
    pub const IBV_MTU_4096: ibv_mtu = ibv_mtu(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mtu(pub ::core::ffi::c_uint);
impl ibv_port_state {
    pub const IBV_PORT_NOP: ibv_port_state = ibv_port_state(0);
    pub const IBV_PORT_DOWN: ibv_port_state = ibv_port_state(1);
    pub const IBV_PORT_INIT: ibv_port_state = ibv_port_state(2);
    pub const IBV_PORT_ARMED: ibv_port_state = ibv_port_state(3);
    pub const IBV_PORT_ACTIVE: ibv_port_state = ibv_port_state(4);
    pub const IBV_PORT_ACTIVE_DEFER: ibv_port_state = ibv_port_state(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_port_state(pub ::core::ffi::c_uint);
pub const IBV_LINK_LAYER_UNSPECIFIED: _bindgen_ty_13 = 0;
pub const IBV_LINK_LAYER_INFINIBAND: _bindgen_ty_13 = 1;
pub const IBV_LINK_LAYER_ETHERNET: _bindgen_ty_13 = 2;
pub type _bindgen_ty_13 = ::core::ffi::c_uint;
impl ibv_port_cap_flags {
    pub const IBV_PORT_SM: ibv_port_cap_flags = ibv_port_cap_flags(2);
    pub const IBV_PORT_NOTICE_SUP: ibv_port_cap_flags = ibv_port_cap_flags(4);
    pub const IBV_PORT_TRAP_SUP: ibv_port_cap_flags = ibv_port_cap_flags(8);
    pub const IBV_PORT_OPT_IPD_SUP: ibv_port_cap_flags = ibv_port_cap_flags(16);
    pub const IBV_PORT_AUTO_MIGR_SUP: ibv_port_cap_flags = ibv_port_cap_flags(32);
    pub const IBV_PORT_SL_MAP_SUP: ibv_port_cap_flags = ibv_port_cap_flags(64);
    pub const IBV_PORT_MKEY_NVRAM: ibv_port_cap_flags = ibv_port_cap_flags(128);
    pub const IBV_PORT_PKEY_NVRAM: ibv_port_cap_flags = ibv_port_cap_flags(256);
    pub const IBV_PORT_LED_INFO_SUP: ibv_port_cap_flags = ibv_port_cap_flags(512);
    pub const IBV_PORT_SYS_IMAGE_GUID_SUP: ibv_port_cap_flags = ibv_port_cap_flags(2048);
    pub const IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP: ibv_port_cap_flags = ibv_port_cap_flags(
        4096,
    );
    pub const IBV_PORT_EXTENDED_SPEEDS_SUP: ibv_port_cap_flags = ibv_port_cap_flags(
        16384,
    );
    pub const IBV_PORT_CAP_MASK2_SUP: ibv_port_cap_flags = ibv_port_cap_flags(32768);
    pub const IBV_PORT_CM_SUP: ibv_port_cap_flags = ibv_port_cap_flags(65536);
    pub const IBV_PORT_SNMP_TUNNEL_SUP: ibv_port_cap_flags = ibv_port_cap_flags(131072);
    pub const IBV_PORT_REINIT_SUP: ibv_port_cap_flags = ibv_port_cap_flags(262144);
    pub const IBV_PORT_DEVICE_MGMT_SUP: ibv_port_cap_flags = ibv_port_cap_flags(524288);
    pub const IBV_PORT_VENDOR_CLASS_SUP: ibv_port_cap_flags = ibv_port_cap_flags(
        1048576,
    );
    pub const IBV_PORT_DR_NOTICE_SUP: ibv_port_cap_flags = ibv_port_cap_flags(2097152);
    pub const IBV_PORT_CAP_MASK_NOTICE_SUP: ibv_port_cap_flags = ibv_port_cap_flags(
        4194304,
    );
    pub const IBV_PORT_BOOT_MGMT_SUP: ibv_port_cap_flags = ibv_port_cap_flags(8388608);
    pub const IBV_PORT_LINK_LATENCY_SUP: ibv_port_cap_flags = ibv_port_cap_flags(
        16777216,
    );
    pub const IBV_PORT_CLIENT_REG_SUP: ibv_port_cap_flags = ibv_port_cap_flags(33554432);
    pub const IBV_PORT_IP_BASED_GIDS: ibv_port_cap_flags = ibv_port_cap_flags(67108864);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_port_cap_flags(pub ::core::ffi::c_uint);
impl ibv_port_cap_flags2 {
    pub const IBV_PORT_SET_NODE_DESC_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(1);
    pub const IBV_PORT_INFO_EXT_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(2);
    pub const IBV_PORT_VIRT_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(4);
    pub const IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(
        8,
    );
    pub const IBV_PORT_LINK_WIDTH_2X_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(16);
    pub const IBV_PORT_LINK_SPEED_HDR_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(32);
    pub const IBV_PORT_LINK_SPEED_NDR_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(
        1024,
    );
    pub const IBV_PORT_LINK_SPEED_XDR_SUP: ibv_port_cap_flags2 = ibv_port_cap_flags2(
        4096,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_port_cap_flags2(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: ::core::ffi::c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}
impl Default for ibv_port_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_event_type {
    pub const IBV_EVENT_CQ_ERR: ibv_event_type = ibv_event_type(0);
    pub const IBV_EVENT_QP_FATAL: ibv_event_type = ibv_event_type(1);
    pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = ibv_event_type(2);
    pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = ibv_event_type(3);
    pub const IBV_EVENT_COMM_EST: ibv_event_type = ibv_event_type(4);
    pub const IBV_EVENT_SQ_DRAINED: ibv_event_type = ibv_event_type(5);
    pub const IBV_EVENT_PATH_MIG: ibv_event_type = ibv_event_type(6);
    pub const IBV_EVENT_PATH_MIG_ERR: ibv_event_type = ibv_event_type(7);
    pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = ibv_event_type(8);
    pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = ibv_event_type(9);
    pub const IBV_EVENT_PORT_ERR: ibv_event_type = ibv_event_type(10);
    pub const IBV_EVENT_LID_CHANGE: ibv_event_type = ibv_event_type(11);
    pub const IBV_EVENT_PKEY_CHANGE: ibv_event_type = ibv_event_type(12);
    pub const IBV_EVENT_SM_CHANGE: ibv_event_type = ibv_event_type(13);
    pub const IBV_EVENT_SRQ_ERR: ibv_event_type = ibv_event_type(14);
    pub const IBV_EVENT_SRQ_LIMIT_REACHED: ibv_event_type = ibv_event_type(15);
    pub const IBV_EVENT_QP_LAST_WQE_REACHED: ibv_event_type = ibv_event_type(16);
    pub const IBV_EVENT_CLIENT_REREGISTER: ibv_event_type = ibv_event_type(17);
    pub const IBV_EVENT_GID_CHANGE: ibv_event_type = ibv_event_type(18);
    pub const IBV_EVENT_WQ_FATAL: ibv_event_type = ibv_event_type(19);
    pub const IBV_EVENT_DEVICE_SPEED_CHANGE: ibv_event_type = ibv_event_type(20);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_event_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_async_event {
    pub element: ibv_async_event__bindgen_ty_1,
    pub event_type: ibv_event_type,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_async_event__bindgen_ty_1 {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: ::core::ffi::c_int,
}
impl Default for ibv_async_event__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_async_event {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_wc_status {
    pub const IBV_WC_SUCCESS: ibv_wc_status = ibv_wc_status(0);
    pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = ibv_wc_status(1);
    pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = ibv_wc_status(2);
    pub const IBV_WC_LOC_EEC_OP_ERR: ibv_wc_status = ibv_wc_status(3);
    pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = ibv_wc_status(4);
    pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = ibv_wc_status(5);
    pub const IBV_WC_MW_BIND_ERR: ibv_wc_status = ibv_wc_status(6);
    pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = ibv_wc_status(7);
    pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = ibv_wc_status(8);
    pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = ibv_wc_status(9);
    pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = ibv_wc_status(10);
    pub const IBV_WC_REM_OP_ERR: ibv_wc_status = ibv_wc_status(11);
    pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(12);
    pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = ibv_wc_status(13);
    pub const IBV_WC_LOC_RDD_VIOL_ERR: ibv_wc_status = ibv_wc_status(14);
    pub const IBV_WC_REM_INV_RD_REQ_ERR: ibv_wc_status = ibv_wc_status(15);
    pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = ibv_wc_status(16);
    pub const IBV_WC_INV_EECN_ERR: ibv_wc_status = ibv_wc_status(17);
    pub const IBV_WC_INV_EEC_STATE_ERR: ibv_wc_status = ibv_wc_status(18);
    pub const IBV_WC_FATAL_ERR: ibv_wc_status = ibv_wc_status(19);
    pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = ibv_wc_status(20);
    pub const IBV_WC_GENERAL_ERR: ibv_wc_status = ibv_wc_status(21);
    pub const IBV_WC_TM_ERR: ibv_wc_status = ibv_wc_status(22);
    pub const IBV_WC_TM_RNDV_INCOMPLETE: ibv_wc_status = ibv_wc_status(23);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_status(pub ::core::ffi::c_uint);
impl ibv_wc_opcode {
    pub const IBV_WC_SEND: ibv_wc_opcode = ibv_wc_opcode(0);
    pub const IBV_WC_RDMA_WRITE: ibv_wc_opcode = ibv_wc_opcode(1);
    pub const IBV_WC_RDMA_READ: ibv_wc_opcode = ibv_wc_opcode(2);
    pub const IBV_WC_COMP_SWAP: ibv_wc_opcode = ibv_wc_opcode(3);
    pub const IBV_WC_FETCH_ADD: ibv_wc_opcode = ibv_wc_opcode(4);
    pub const IBV_WC_BIND_MW: ibv_wc_opcode = ibv_wc_opcode(5);
    pub const IBV_WC_LOCAL_INV: ibv_wc_opcode = ibv_wc_opcode(6);
    pub const IBV_WC_TSO: ibv_wc_opcode = ibv_wc_opcode(7);
    pub const IBV_WC_FLUSH: ibv_wc_opcode = ibv_wc_opcode(8);
    pub const IBV_WC_ATOMIC_WRITE: ibv_wc_opcode = ibv_wc_opcode(9);
    pub const IBV_WC_RECV: ibv_wc_opcode = ibv_wc_opcode(128);
    pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = ibv_wc_opcode(129);
    pub const IBV_WC_TM_ADD: ibv_wc_opcode = ibv_wc_opcode(130);
    pub const IBV_WC_TM_DEL: ibv_wc_opcode = ibv_wc_opcode(131);
    pub const IBV_WC_TM_SYNC: ibv_wc_opcode = ibv_wc_opcode(132);
    pub const IBV_WC_TM_RECV: ibv_wc_opcode = ibv_wc_opcode(133);
    pub const IBV_WC_TM_NO_TAG: ibv_wc_opcode = ibv_wc_opcode(134);
    pub const IBV_WC_DRIVER1: ibv_wc_opcode = ibv_wc_opcode(135);
    pub const IBV_WC_DRIVER2: ibv_wc_opcode = ibv_wc_opcode(136);
    pub const IBV_WC_DRIVER3: ibv_wc_opcode = ibv_wc_opcode(137);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_opcode(pub ::core::ffi::c_uint);
pub const IBV_WC_IP_CSUM_OK_SHIFT: _bindgen_ty_14 = 2;
pub type _bindgen_ty_14 = ::core::ffi::c_uint;
impl ibv_create_cq_wc_flags {
    pub const IBV_WC_EX_WITH_BYTE_LEN: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(
        1,
    );
    pub const IBV_WC_EX_WITH_IMM: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(2);
    pub const IBV_WC_EX_WITH_QP_NUM: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(4);
    pub const IBV_WC_EX_WITH_SRC_QP: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(8);
    pub const IBV_WC_EX_WITH_SLID: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(16);
    pub const IBV_WC_EX_WITH_SL: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(32);
    pub const IBV_WC_EX_WITH_DLID_PATH_BITS: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(
        64,
    );
    pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(
        128,
    );
    pub const IBV_WC_EX_WITH_CVLAN: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(256);
    pub const IBV_WC_EX_WITH_FLOW_TAG: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(
        512,
    );
    pub const IBV_WC_EX_WITH_TM_INFO: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(
        1024,
    );
    pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: ibv_create_cq_wc_flags = ibv_create_cq_wc_flags(
        2048,
    );
}
impl ::core::ops::BitOr<ibv_create_cq_wc_flags> for ibv_create_cq_wc_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_create_cq_wc_flags(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_create_cq_wc_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_create_cq_wc_flags) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_create_cq_wc_flags> for ibv_create_cq_wc_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_create_cq_wc_flags(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_create_cq_wc_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_create_cq_wc_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_create_cq_wc_flags(pub ::core::ffi::c_uint);
pub const IBV_WC_STANDARD_FLAGS: _bindgen_ty_15 = 127;
pub type _bindgen_ty_15 = ::core::ffi::c_uint;
pub const IBV_CREATE_CQ_SUP_WC_FLAGS: _bindgen_ty_16 = 4095;
pub type _bindgen_ty_16 = ::core::ffi::c_uint;
impl ibv_wc_flags {
    pub const IBV_WC_GRH: ibv_wc_flags = ibv_wc_flags(1);
    pub const IBV_WC_WITH_IMM: ibv_wc_flags = ibv_wc_flags(2);
    pub const IBV_WC_IP_CSUM_OK: ibv_wc_flags = ibv_wc_flags(4);
    pub const IBV_WC_WITH_INV: ibv_wc_flags = ibv_wc_flags(8);
    pub const IBV_WC_TM_SYNC_REQ: ibv_wc_flags = ibv_wc_flags(16);
    pub const IBV_WC_TM_MATCH: ibv_wc_flags = ibv_wc_flags(32);
    pub const IBV_WC_TM_DATA_VALID: ibv_wc_flags = ibv_wc_flags(64);
}
impl ::core::ops::BitOr<ibv_wc_flags> for ibv_wc_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_wc_flags(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_wc_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_wc_flags) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_wc_flags> for ibv_wc_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_wc_flags(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_wc_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_wc_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wc_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub __bindgen_anon_1: ibv_wc__bindgen_ty_1,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: ::core::ffi::c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_wc__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
impl Default for ibv_wc__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_wc {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_access_flags {
    pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = ibv_access_flags(1);
    pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = ibv_access_flags(2);
    pub const IBV_ACCESS_REMOTE_READ: ibv_access_flags = ibv_access_flags(4);
    pub const IBV_ACCESS_REMOTE_ATOMIC: ibv_access_flags = ibv_access_flags(8);
    pub const IBV_ACCESS_MW_BIND: ibv_access_flags = ibv_access_flags(16);
    pub const IBV_ACCESS_ZERO_BASED: ibv_access_flags = ibv_access_flags(32);
    pub const IBV_ACCESS_ON_DEMAND: ibv_access_flags = ibv_access_flags(64);
    pub const IBV_ACCESS_HUGETLB: ibv_access_flags = ibv_access_flags(128);
    pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = ibv_access_flags(256);
    pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = ibv_access_flags(512);
    pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = ibv_access_flags(1048576);
}
impl ::core::ops::BitOr<ibv_access_flags> for ibv_access_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_access_flags(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_access_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_access_flags) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_access_flags> for ibv_access_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_access_flags(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_access_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_access_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_access_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: ::core::ffi::c_uint,
}
impl Default for ibv_mw_bind_info {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_dmah {
    pub context: *mut ibv_context,
}
impl Default for ibv_dmah {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct ibv_buf {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}
impl Default for ibv_pd {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}
impl Default for ibv_td {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_xrcd_init_attr_mask {
    pub const IBV_XRCD_INIT_ATTR_FD: ibv_xrcd_init_attr_mask = ibv_xrcd_init_attr_mask(
        1,
    );
    pub const IBV_XRCD_INIT_ATTR_OFLAGS: ibv_xrcd_init_attr_mask = ibv_xrcd_init_attr_mask(
        2,
    );
    pub const IBV_XRCD_INIT_ATTR_RESERVED: ibv_xrcd_init_attr_mask = ibv_xrcd_init_attr_mask(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_xrcd_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: ::core::ffi::c_int,
    pub oflags: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}
impl Default for ibv_xrcd {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_rereg_mr_flags {
    pub const IBV_REREG_MR_CHANGE_TRANSLATION: ibv_rereg_mr_flags = ibv_rereg_mr_flags(
        1,
    );
    pub const IBV_REREG_MR_CHANGE_PD: ibv_rereg_mr_flags = ibv_rereg_mr_flags(2);
    pub const IBV_REREG_MR_CHANGE_ACCESS: ibv_rereg_mr_flags = ibv_rereg_mr_flags(4);
    pub const IBV_REREG_MR_FLAGS_SUPPORTED: ibv_rereg_mr_flags = ibv_rereg_mr_flags(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_rereg_mr_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut ::core::ffi::c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
impl Default for ibv_mr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_mr_init_attr_mask {
    pub const IBV_REG_MR_MASK_IOVA: ibv_mr_init_attr_mask = ibv_mr_init_attr_mask(1);
    pub const IBV_REG_MR_MASK_ADDR: ibv_mr_init_attr_mask = ibv_mr_init_attr_mask(2);
    pub const IBV_REG_MR_MASK_FD: ibv_mr_init_attr_mask = ibv_mr_init_attr_mask(4);
    pub const IBV_REG_MR_MASK_FD_OFFSET: ibv_mr_init_attr_mask = ibv_mr_init_attr_mask(
        8,
    );
    pub const IBV_REG_MR_MASK_DMAH: ibv_mr_init_attr_mask = ibv_mr_init_attr_mask(16);
    pub const IBV_REG_MR_MASK_BUF: ibv_mr_init_attr_mask = ibv_mr_init_attr_mask(32);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mr_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: ::core::ffi::c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut ::core::ffi::c_void,
    pub fd: ::core::ffi::c_int,
    pub fd_offset: u64,
    pub dmah: *mut ibv_dmah,
    pub buf: *mut ibv_buf,
}
impl Default for ibv_mr_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_mw_type {
    pub const IBV_MW_TYPE_1: ibv_mw_type = ibv_mw_type(1);
    pub const IBV_MW_TYPE_2: ibv_mw_type = ibv_mw_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mw_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type,
}
impl Default for ibv_mw {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
impl Default for ibv_global_route {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_grh {
    pub version_tclass_flow: __be32,
    pub paylen: __be16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}
impl Default for ibv_grh {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_rate {
    pub const IBV_RATE_MAX: ibv_rate = ibv_rate(0);
    pub const IBV_RATE_2_5_GBPS: ibv_rate = ibv_rate(2);
    pub const IBV_RATE_5_GBPS: ibv_rate = ibv_rate(5);
    pub const IBV_RATE_10_GBPS: ibv_rate = ibv_rate(3);
    pub const IBV_RATE_20_GBPS: ibv_rate = ibv_rate(6);
    pub const IBV_RATE_30_GBPS: ibv_rate = ibv_rate(4);
    pub const IBV_RATE_40_GBPS: ibv_rate = ibv_rate(7);
    pub const IBV_RATE_60_GBPS: ibv_rate = ibv_rate(8);
    pub const IBV_RATE_80_GBPS: ibv_rate = ibv_rate(9);
    pub const IBV_RATE_120_GBPS: ibv_rate = ibv_rate(10);
    pub const IBV_RATE_14_GBPS: ibv_rate = ibv_rate(11);
    pub const IBV_RATE_56_GBPS: ibv_rate = ibv_rate(12);
    pub const IBV_RATE_112_GBPS: ibv_rate = ibv_rate(13);
    pub const IBV_RATE_168_GBPS: ibv_rate = ibv_rate(14);
    pub const IBV_RATE_25_GBPS: ibv_rate = ibv_rate(15);
    pub const IBV_RATE_100_GBPS: ibv_rate = ibv_rate(16);
    pub const IBV_RATE_200_GBPS: ibv_rate = ibv_rate(17);
    pub const IBV_RATE_300_GBPS: ibv_rate = ibv_rate(18);
    pub const IBV_RATE_28_GBPS: ibv_rate = ibv_rate(19);
    pub const IBV_RATE_50_GBPS: ibv_rate = ibv_rate(20);
    pub const IBV_RATE_400_GBPS: ibv_rate = ibv_rate(21);
    pub const IBV_RATE_600_GBPS: ibv_rate = ibv_rate(22);
    pub const IBV_RATE_800_GBPS: ibv_rate = ibv_rate(23);
    pub const IBV_RATE_1200_GBPS: ibv_rate = ibv_rate(24);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_rate(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
impl Default for ibv_ah_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_srq_attr_mask {
    pub const IBV_SRQ_MAX_WR: ibv_srq_attr_mask = ibv_srq_attr_mask(1);
    pub const IBV_SRQ_LIMIT: ibv_srq_attr_mask = ibv_srq_attr_mask(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_srq_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut ::core::ffi::c_void,
    pub attr: ibv_srq_attr,
}
impl Default for ibv_srq_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_srq_type {
    pub const IBV_SRQT_BASIC: ibv_srq_type = ibv_srq_type(0);
    pub const IBV_SRQT_XRC: ibv_srq_type = ibv_srq_type(1);
    pub const IBV_SRQT_TM: ibv_srq_type = ibv_srq_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_srq_type(pub ::core::ffi::c_uint);
impl ibv_srq_init_attr_mask {
    pub const IBV_SRQ_INIT_ATTR_TYPE: ibv_srq_init_attr_mask = ibv_srq_init_attr_mask(1);
    pub const IBV_SRQ_INIT_ATTR_PD: ibv_srq_init_attr_mask = ibv_srq_init_attr_mask(2);
    pub const IBV_SRQ_INIT_ATTR_XRCD: ibv_srq_init_attr_mask = ibv_srq_init_attr_mask(4);
    pub const IBV_SRQ_INIT_ATTR_CQ: ibv_srq_init_attr_mask = ibv_srq_init_attr_mask(8);
    pub const IBV_SRQ_INIT_ATTR_TM: ibv_srq_init_attr_mask = ibv_srq_init_attr_mask(16);
    pub const IBV_SRQ_INIT_ATTR_RESERVED: ibv_srq_init_attr_mask = ibv_srq_init_attr_mask(
        32,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_srq_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tm_cap {
    pub max_num_tags: u32,
    pub max_ops: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut ::core::ffi::c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: ibv_srq_type,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: ibv_tm_cap,
}
impl Default for ibv_srq_init_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_wq_type {
    pub const IBV_WQT_RQ: ibv_wq_type = ibv_wq_type(0);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wq_type(pub ::core::ffi::c_uint);
impl ibv_wq_init_attr_mask {
    pub const IBV_WQ_INIT_ATTR_FLAGS: ibv_wq_init_attr_mask = ibv_wq_init_attr_mask(1);
    pub const IBV_WQ_INIT_ATTR_RESERVED: ibv_wq_init_attr_mask = ibv_wq_init_attr_mask(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wq_init_attr_mask(pub ::core::ffi::c_uint);
impl ibv_wq_flags {
    pub const IBV_WQ_FLAGS_CVLAN_STRIPPING: ibv_wq_flags = ibv_wq_flags(1);
    pub const IBV_WQ_FLAGS_SCATTER_FCS: ibv_wq_flags = ibv_wq_flags(2);
    pub const IBV_WQ_FLAGS_DELAY_DROP: ibv_wq_flags = ibv_wq_flags(4);
    pub const IBV_WQ_FLAGS_PCI_WRITE_END_PADDING: ibv_wq_flags = ibv_wq_flags(8);
    pub const IBV_WQ_FLAGS_RESERVED: ibv_wq_flags = ibv_wq_flags(16);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wq_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut ::core::ffi::c_void,
    pub wq_type: ibv_wq_type,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}
impl Default for ibv_wq_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_wq_state {
    pub const IBV_WQS_RESET: ibv_wq_state = ibv_wq_state(0);
    pub const IBV_WQS_RDY: ibv_wq_state = ibv_wq_state(1);
    pub const IBV_WQS_ERR: ibv_wq_state = ibv_wq_state(2);
    pub const IBV_WQS_UNKNOWN: ibv_wq_state = ibv_wq_state(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wq_state(pub ::core::ffi::c_uint);
impl ibv_wq_attr_mask {
    pub const IBV_WQ_ATTR_STATE: ibv_wq_attr_mask = ibv_wq_attr_mask(1);
    pub const IBV_WQ_ATTR_CURR_STATE: ibv_wq_attr_mask = ibv_wq_attr_mask(2);
    pub const IBV_WQ_ATTR_FLAGS: ibv_wq_attr_mask = ibv_wq_attr_mask(4);
    pub const IBV_WQ_ATTR_RESERVED: ibv_wq_attr_mask = ibv_wq_attr_mask(8);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wq_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: ibv_wq_state,
    pub curr_wq_state: ibv_wq_state,
    pub flags: u32,
    pub flags_mask: u32,
}
impl Default for ibv_wq_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: ::core::ffi::c_int,
    pub ind_tbl_num: ::core::ffi::c_int,
    pub comp_mask: u32,
}
impl Default for ibv_rwq_ind_table {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_ind_table_init_attr_mask {
    pub const IBV_CREATE_IND_TABLE_RESERVED: ibv_ind_table_init_attr_mask = ibv_ind_table_init_attr_mask(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_ind_table_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}
impl Default for ibv_rwq_ind_table_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_qp_type {
    pub const IBV_QPT_RC: ibv_qp_type = ibv_qp_type(2);
    pub const IBV_QPT_UC: ibv_qp_type = ibv_qp_type(3);
    pub const IBV_QPT_UD: ibv_qp_type = ibv_qp_type(4);
    pub const IBV_QPT_RAW_PACKET: ibv_qp_type = ibv_qp_type(8);
    pub const IBV_QPT_XRC_SEND: ibv_qp_type = ibv_qp_type(9);
    pub const IBV_QPT_XRC_RECV: ibv_qp_type = ibv_qp_type(10);
    pub const IBV_QPT_DRIVER: ibv_qp_type = ibv_qp_type(255);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut ::core::ffi::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: ::core::ffi::c_int,
}
impl Default for ibv_qp_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_qp_init_attr_mask {
    pub const IBV_QP_INIT_ATTR_PD: ibv_qp_init_attr_mask = ibv_qp_init_attr_mask(1);
    pub const IBV_QP_INIT_ATTR_XRCD: ibv_qp_init_attr_mask = ibv_qp_init_attr_mask(2);
    pub const IBV_QP_INIT_ATTR_CREATE_FLAGS: ibv_qp_init_attr_mask = ibv_qp_init_attr_mask(
        4,
    );
    pub const IBV_QP_INIT_ATTR_MAX_TSO_HEADER: ibv_qp_init_attr_mask = ibv_qp_init_attr_mask(
        8,
    );
    pub const IBV_QP_INIT_ATTR_IND_TABLE: ibv_qp_init_attr_mask = ibv_qp_init_attr_mask(
        16,
    );
    pub const IBV_QP_INIT_ATTR_RX_HASH: ibv_qp_init_attr_mask = ibv_qp_init_attr_mask(
        32,
    );
    pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: ibv_qp_init_attr_mask = ibv_qp_init_attr_mask(
        64,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_init_attr_mask(pub ::core::ffi::c_uint);
impl ibv_qp_create_flags {
    pub const IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: ibv_qp_create_flags = ibv_qp_create_flags(
        2,
    );
    pub const IBV_QP_CREATE_SCATTER_FCS: ibv_qp_create_flags = ibv_qp_create_flags(256);
    pub const IBV_QP_CREATE_CVLAN_STRIPPING: ibv_qp_create_flags = ibv_qp_create_flags(
        512,
    );
    pub const IBV_QP_CREATE_SOURCE_QPN: ibv_qp_create_flags = ibv_qp_create_flags(1024);
    pub const IBV_QP_CREATE_PCI_WRITE_END_PADDING: ibv_qp_create_flags = ibv_qp_create_flags(
        2048,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_create_flags(pub ::core::ffi::c_uint);
impl ibv_qp_create_send_ops_flags {
    pub const IBV_QP_EX_WITH_RDMA_WRITE: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        1,
    );
    pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        2,
    );
    pub const IBV_QP_EX_WITH_SEND: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        4,
    );
    pub const IBV_QP_EX_WITH_SEND_WITH_IMM: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        8,
    );
    pub const IBV_QP_EX_WITH_RDMA_READ: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        16,
    );
    pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        32,
    );
    pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        64,
    );
    pub const IBV_QP_EX_WITH_LOCAL_INV: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        128,
    );
    pub const IBV_QP_EX_WITH_BIND_MW: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        256,
    );
    pub const IBV_QP_EX_WITH_SEND_WITH_INV: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        512,
    );
    pub const IBV_QP_EX_WITH_TSO: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        1024,
    );
    pub const IBV_QP_EX_WITH_FLUSH: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        2048,
    );
    pub const IBV_QP_EX_WITH_ATOMIC_WRITE: ibv_qp_create_send_ops_flags = ibv_qp_create_send_ops_flags(
        4096,
    );
}
impl ::core::ops::BitOr<ibv_qp_create_send_ops_flags> for ibv_qp_create_send_ops_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_qp_create_send_ops_flags(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_qp_create_send_ops_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_qp_create_send_ops_flags) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_qp_create_send_ops_flags> for ibv_qp_create_send_ops_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_qp_create_send_ops_flags(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_qp_create_send_ops_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_qp_create_send_ops_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_create_send_ops_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}
impl Default for ibv_rx_hash_conf {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut ::core::ffi::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: ::core::ffi::c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
impl Default for ibv_qp_init_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_qp_open_attr_mask {
    pub const IBV_QP_OPEN_ATTR_NUM: ibv_qp_open_attr_mask = ibv_qp_open_attr_mask(1);
    pub const IBV_QP_OPEN_ATTR_XRCD: ibv_qp_open_attr_mask = ibv_qp_open_attr_mask(2);
    pub const IBV_QP_OPEN_ATTR_CONTEXT: ibv_qp_open_attr_mask = ibv_qp_open_attr_mask(4);
    pub const IBV_QP_OPEN_ATTR_TYPE: ibv_qp_open_attr_mask = ibv_qp_open_attr_mask(8);
    pub const IBV_QP_OPEN_ATTR_RESERVED: ibv_qp_open_attr_mask = ibv_qp_open_attr_mask(
        16,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_open_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut ::core::ffi::c_void,
    pub qp_type: ibv_qp_type,
}
impl Default for ibv_qp_open_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_qp_attr_mask {
    pub const IBV_QP_STATE: ibv_qp_attr_mask = ibv_qp_attr_mask(1);
    pub const IBV_QP_CUR_STATE: ibv_qp_attr_mask = ibv_qp_attr_mask(2);
    pub const IBV_QP_EN_SQD_ASYNC_NOTIFY: ibv_qp_attr_mask = ibv_qp_attr_mask(4);
    pub const IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = ibv_qp_attr_mask(8);
    pub const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = ibv_qp_attr_mask(16);
    pub const IBV_QP_PORT: ibv_qp_attr_mask = ibv_qp_attr_mask(32);
    pub const IBV_QP_QKEY: ibv_qp_attr_mask = ibv_qp_attr_mask(64);
    pub const IBV_QP_AV: ibv_qp_attr_mask = ibv_qp_attr_mask(128);
    pub const IBV_QP_PATH_MTU: ibv_qp_attr_mask = ibv_qp_attr_mask(256);
    pub const IBV_QP_TIMEOUT: ibv_qp_attr_mask = ibv_qp_attr_mask(512);
    pub const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = ibv_qp_attr_mask(1024);
    pub const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = ibv_qp_attr_mask(2048);
    pub const IBV_QP_RQ_PSN: ibv_qp_attr_mask = ibv_qp_attr_mask(4096);
    pub const IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = ibv_qp_attr_mask(8192);
    pub const IBV_QP_ALT_PATH: ibv_qp_attr_mask = ibv_qp_attr_mask(16384);
    pub const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = ibv_qp_attr_mask(32768);
    pub const IBV_QP_SQ_PSN: ibv_qp_attr_mask = ibv_qp_attr_mask(65536);
    pub const IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = ibv_qp_attr_mask(131072);
    pub const IBV_QP_PATH_MIG_STATE: ibv_qp_attr_mask = ibv_qp_attr_mask(262144);
    pub const IBV_QP_CAP: ibv_qp_attr_mask = ibv_qp_attr_mask(524288);
    pub const IBV_QP_DEST_QPN: ibv_qp_attr_mask = ibv_qp_attr_mask(1048576);
    pub const IBV_QP_RATE_LIMIT: ibv_qp_attr_mask = ibv_qp_attr_mask(33554432);
}
impl ::core::ops::BitOr<ibv_qp_attr_mask> for ibv_qp_attr_mask {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_qp_attr_mask(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_qp_attr_mask {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_qp_attr_mask) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_qp_attr_mask> for ibv_qp_attr_mask {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_qp_attr_mask(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_qp_attr_mask {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_qp_attr_mask) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_attr_mask(pub ::core::ffi::c_uint);
impl ibv_query_qp_data_in_order_flags {
    pub const IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: ibv_query_qp_data_in_order_flags = ibv_query_qp_data_in_order_flags(
        1,
    );
    pub const IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY: ibv_query_qp_data_in_order_flags = ibv_query_qp_data_in_order_flags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_query_qp_data_in_order_flags(pub ::core::ffi::c_uint);
impl ibv_query_qp_data_in_order_caps {
    pub const IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG: ibv_query_qp_data_in_order_caps = ibv_query_qp_data_in_order_caps(
        1,
    );
    pub const IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES: ibv_query_qp_data_in_order_caps = ibv_query_qp_data_in_order_caps(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_query_qp_data_in_order_caps(pub ::core::ffi::c_uint);
impl ibv_qp_state {
    pub const IBV_QPS_RESET: ibv_qp_state = ibv_qp_state(0);
    pub const IBV_QPS_INIT: ibv_qp_state = ibv_qp_state(1);
    pub const IBV_QPS_RTR: ibv_qp_state = ibv_qp_state(2);
    pub const IBV_QPS_RTS: ibv_qp_state = ibv_qp_state(3);
    pub const IBV_QPS_SQD: ibv_qp_state = ibv_qp_state(4);
    pub const IBV_QPS_SQE: ibv_qp_state = ibv_qp_state(5);
    pub const IBV_QPS_ERR: ibv_qp_state = ibv_qp_state(6);
    pub const IBV_QPS_UNKNOWN: ibv_qp_state = ibv_qp_state(7);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_state(pub ::core::ffi::c_uint);
impl ibv_mig_state {
    pub const IBV_MIG_MIGRATED: ibv_mig_state = ibv_mig_state(0);
    pub const IBV_MIG_REARM: ibv_mig_state = ibv_mig_state(1);
    pub const IBV_MIG_ARMED: ibv_mig_state = ibv_mig_state(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_mig_state(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: ::core::ffi::c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
impl Default for ibv_qp_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_rate_limit_attr {
    pub rate_limit: u32,
    pub max_burst_sz: u32,
    pub typical_pkt_sz: u16,
    pub comp_mask: u32,
}
impl ibv_wr_opcode {
    pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = ibv_wr_opcode(0);
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = ibv_wr_opcode(1);
    pub const IBV_WR_SEND: ibv_wr_opcode = ibv_wr_opcode(2);
    pub const IBV_WR_SEND_WITH_IMM: ibv_wr_opcode = ibv_wr_opcode(3);
    pub const IBV_WR_RDMA_READ: ibv_wr_opcode = ibv_wr_opcode(4);
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_opcode = ibv_wr_opcode(5);
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_opcode = ibv_wr_opcode(6);
    pub const IBV_WR_LOCAL_INV: ibv_wr_opcode = ibv_wr_opcode(7);
    pub const IBV_WR_BIND_MW: ibv_wr_opcode = ibv_wr_opcode(8);
    pub const IBV_WR_SEND_WITH_INV: ibv_wr_opcode = ibv_wr_opcode(9);
    pub const IBV_WR_TSO: ibv_wr_opcode = ibv_wr_opcode(10);
    pub const IBV_WR_DRIVER1: ibv_wr_opcode = ibv_wr_opcode(11);
    pub const IBV_WR_FLUSH: ibv_wr_opcode = ibv_wr_opcode(14);
    pub const IBV_WR_ATOMIC_WRITE: ibv_wr_opcode = ibv_wr_opcode(15);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_wr_opcode(pub ::core::ffi::c_uint);
impl ibv_send_flags {
    pub const IBV_SEND_FENCE: ibv_send_flags = ibv_send_flags(1);
    pub const IBV_SEND_SIGNALED: ibv_send_flags = ibv_send_flags(2);
    pub const IBV_SEND_SOLICITED: ibv_send_flags = ibv_send_flags(4);
    pub const IBV_SEND_INLINE: ibv_send_flags = ibv_send_flags(8);
    pub const IBV_SEND_IP_CSUM: ibv_send_flags = ibv_send_flags(16);
}
impl ::core::ops::BitOr<ibv_send_flags> for ibv_send_flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        ibv_send_flags(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for ibv_send_flags {
    #[inline]
    fn bitor_assign(&mut self, rhs: ibv_send_flags) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<ibv_send_flags> for ibv_send_flags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        ibv_send_flags(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for ibv_send_flags {
    #[inline]
    fn bitand_assign(&mut self, rhs: ibv_send_flags) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_send_flags(pub ::core::ffi::c_uint);
impl ibv_placement_type {
    pub const IBV_FLUSH_GLOBAL: ibv_placement_type = ibv_placement_type(1);
    pub const IBV_FLUSH_PERSISTENT: ibv_placement_type = ibv_placement_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_placement_type(pub ::core::ffi::c_uint);
impl ibv_selectivity_level {
    pub const IBV_FLUSH_RANGE: ibv_selectivity_level = ibv_selectivity_level(0);
    pub const IBV_FLUSH_MR: ibv_selectivity_level = ibv_selectivity_level(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_selectivity_level(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_data_buf {
    pub addr: *mut ::core::ffi::c_void,
    pub length: usize,
}
impl Default for ibv_data_buf {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_fd_arr {
    pub arr: *mut ::core::ffi::c_int,
    pub count: u32,
}
impl Default for ibv_fd_arr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::core::ffi::c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: ::core::ffi::c_uint,
    pub __bindgen_anon_1: ibv_send_wr__bindgen_ty_1,
    pub wr: ibv_send_wr__bindgen_ty_2,
    pub qp_type: ibv_send_wr__bindgen_ty_3,
    pub __bindgen_anon_2: ibv_send_wr__bindgen_ty_4,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidate_rkey: u32,
}
impl Default for ibv_send_wr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_2 {
    pub rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    pub atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    pub ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    pub remote_addr: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
impl Default for ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_send_wr__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_3 {
    pub xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
    pub remote_srqn: u32,
}
impl Default for ibv_send_wr__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_4 {
    pub bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    pub tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
impl Default for ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    pub hdr: *mut ::core::ffi::c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
impl Default for ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_send_wr__bindgen_ty_4 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_send_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::core::ffi::c_int,
}
impl Default for ibv_recv_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_ops_wr_opcode {
    pub const IBV_WR_TAG_ADD: ibv_ops_wr_opcode = ibv_ops_wr_opcode(0);
    pub const IBV_WR_TAG_DEL: ibv_ops_wr_opcode = ibv_ops_wr_opcode(1);
    pub const IBV_WR_TAG_SYNC: ibv_ops_wr_opcode = ibv_ops_wr_opcode(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_ops_wr_opcode(pub ::core::ffi::c_uint);
impl ibv_ops_flags {
    pub const IBV_OPS_SIGNALED: ibv_ops_flags = ibv_ops_flags(1);
    pub const IBV_OPS_TM_SYNC: ibv_ops_flags = ibv_ops_flags(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_ops_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ops_wr {
    pub wr_id: u64,
    pub next: *mut ibv_ops_wr,
    pub opcode: ibv_ops_wr_opcode,
    pub flags: ::core::ffi::c_int,
    pub tm: ibv_ops_wr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ops_wr__bindgen_ty_1 {
    pub unexpected_cnt: u32,
    pub handle: u32,
    pub add: ibv_ops_wr__bindgen_ty_1__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ops_wr__bindgen_ty_1__bindgen_ty_1 {
    pub recv_wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::core::ffi::c_int,
    pub tag: u64,
    pub mask: u64,
}
impl Default for ibv_ops_wr__bindgen_ty_1__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_ops_wr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_ops_wr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: ::core::ffi::c_uint,
    pub bind_info: ibv_mw_bind_info,
}
impl Default for ibv_mw_bind {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut ::core::ffi::c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
impl Default for ibv_srq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wq {
    pub context: *mut ibv_context,
    pub wq_context: *mut ::core::ffi::c_void,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: ibv_wq_state,
    pub wq_type: ibv_wq_type,
    pub post_recv: ::core::option::Option<
        unsafe extern "C" fn(
            current: *mut ibv_wq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> ::core::ffi::c_int,
    >,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
    pub comp_mask: u32,
}
impl Default for ibv_wq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut ::core::ffi::c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state,
    pub qp_type: ibv_qp_type,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
impl Default for ibv_qp {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: ::core::ffi::c_uint,
    pub wr_atomic_cmp_swp: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            compare: u64,
            swap: u64,
        ),
    >,
    pub wr_atomic_fetch_add: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64),
    >,
    pub wr_bind_mw: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            mw: *mut ibv_mw,
            rkey: u32,
            bind_info: *const ibv_mw_bind_info,
        ),
    >,
    pub wr_local_inv: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32),
    >,
    pub wr_rdma_read: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64),
    >,
    pub wr_rdma_write: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64),
    >,
    pub wr_rdma_write_imm: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            imm_data: __be32,
        ),
    >,
    pub wr_send: ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_send_imm: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: __be32),
    >,
    pub wr_send_inv: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32),
    >,
    pub wr_send_tso: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            hdr: *mut ::core::ffi::c_void,
            hdr_sz: u16,
            mss: u16,
        ),
    >,
    pub wr_set_ud_addr: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            ah: *mut ibv_ah,
            remote_qpn: u32,
            remote_qkey: u32,
        ),
    >,
    pub wr_set_xrc_srqn: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, remote_srqn: u32),
    >,
    pub wr_set_inline_data: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            addr: *mut ::core::ffi::c_void,
            length: usize,
        ),
    >,
    pub wr_set_inline_data_list: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            num_buf: usize,
            buf_list: *const ibv_data_buf,
        ),
    >,
    pub wr_set_sge: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32),
    >,
    pub wr_set_sge_list: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge),
    >,
    pub wr_start: ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_complete: ::core::option::Option<
        unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> ::core::ffi::c_int,
    >,
    pub wr_abort: ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    pub wr_atomic_write: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            atomic_wr: *const ::core::ffi::c_void,
        ),
    >,
    pub wr_flush: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            len: usize,
            type_: u8,
            level: u8,
        ),
    >,
}
impl Default for ibv_qp_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: ::core::ffi::c_int,
    pub refcnt: ::core::ffi::c_int,
}
impl Default for ibv_comp_channel {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut ::core::ffi::c_void,
    pub handle: u32,
    pub cqe: ::core::ffi::c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
impl Default for ibv_cq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_: u32,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut ::core::ffi::c_void,
    pub handle: u32,
    pub cqe: ::core::ffi::c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: ibv_wc_status,
    pub wr_id: u64,
    pub start_poll: ::core::option::Option<
        unsafe extern "C" fn(
            current: *mut ibv_cq_ex,
            attr: *mut ibv_poll_cq_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub next_poll: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ::core::ffi::c_int,
    >,
    pub end_poll: ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
    pub read_opcode: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode,
    >,
    pub read_vendor_err: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32,
    >,
    pub read_byte_len: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32,
    >,
    pub read_imm_data: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> __be32,
    >,
    pub read_qp_num: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32,
    >,
    pub read_src_qp: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32,
    >,
    pub read_wc_flags: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ::core::ffi::c_uint,
    >,
    pub read_slid: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32,
    >,
    pub read_sl: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8,
    >,
    pub read_dlid_path_bits: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8,
    >,
    pub read_completion_ts: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64,
    >,
    pub read_cvlan: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16,
    >,
    pub read_flow_tag: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32,
    >,
    pub read_tm_info: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info),
    >,
    pub read_completion_wallclock_ns: ::core::option::Option<
        unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64,
    >,
}
impl Default for ibv_cq_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_cq_attr_mask {
    pub const IBV_CQ_ATTR_MODERATE: ibv_cq_attr_mask = ibv_cq_attr_mask(1);
    pub const IBV_CQ_ATTR_RESERVED: ibv_cq_attr_mask = ibv_cq_attr_mask(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_cq_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
impl Default for ibv_ah {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_flow_flags {
    pub const IBV_FLOW_ATTR_FLAGS_DONT_TRAP: ibv_flow_flags = ibv_flow_flags(2);
    pub const IBV_FLOW_ATTR_FLAGS_EGRESS: ibv_flow_flags = ibv_flow_flags(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_flow_flags(pub ::core::ffi::c_uint);
impl ibv_flow_attr_type {
    pub const IBV_FLOW_ATTR_NORMAL: ibv_flow_attr_type = ibv_flow_attr_type(0);
    pub const IBV_FLOW_ATTR_ALL_DEFAULT: ibv_flow_attr_type = ibv_flow_attr_type(1);
    pub const IBV_FLOW_ATTR_MC_DEFAULT: ibv_flow_attr_type = ibv_flow_attr_type(2);
    pub const IBV_FLOW_ATTR_SNIFFER: ibv_flow_attr_type = ibv_flow_attr_type(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_flow_attr_type(pub ::core::ffi::c_uint);
impl ibv_flow_spec_type {
    pub const IBV_FLOW_SPEC_ETH: ibv_flow_spec_type = ibv_flow_spec_type(32);
    pub const IBV_FLOW_SPEC_IPV4: ibv_flow_spec_type = ibv_flow_spec_type(48);
    pub const IBV_FLOW_SPEC_IPV6: ibv_flow_spec_type = ibv_flow_spec_type(49);
    pub const IBV_FLOW_SPEC_IPV4_EXT: ibv_flow_spec_type = ibv_flow_spec_type(50);
    pub const IBV_FLOW_SPEC_ESP: ibv_flow_spec_type = ibv_flow_spec_type(52);
    pub const IBV_FLOW_SPEC_TCP: ibv_flow_spec_type = ibv_flow_spec_type(64);
    pub const IBV_FLOW_SPEC_UDP: ibv_flow_spec_type = ibv_flow_spec_type(65);
    pub const IBV_FLOW_SPEC_VXLAN_TUNNEL: ibv_flow_spec_type = ibv_flow_spec_type(80);
    pub const IBV_FLOW_SPEC_GRE: ibv_flow_spec_type = ibv_flow_spec_type(81);
    pub const IBV_FLOW_SPEC_MPLS: ibv_flow_spec_type = ibv_flow_spec_type(96);
    pub const IBV_FLOW_SPEC_INNER: ibv_flow_spec_type = ibv_flow_spec_type(256);
    pub const IBV_FLOW_SPEC_ACTION_TAG: ibv_flow_spec_type = ibv_flow_spec_type(4096);
    pub const IBV_FLOW_SPEC_ACTION_DROP: ibv_flow_spec_type = ibv_flow_spec_type(4097);
    pub const IBV_FLOW_SPEC_ACTION_HANDLE: ibv_flow_spec_type = ibv_flow_spec_type(4098);
    pub const IBV_FLOW_SPEC_ACTION_COUNT: ibv_flow_spec_type = ibv_flow_spec_type(4099);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_flow_spec_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_eth_filter {
    pub dst_mac: [u8; 6usize],
    pub src_mac: [u8; 6usize],
    pub ether_type: u16,
    pub vlan_tag: u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_eth {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_eth_filter,
    pub mask: ibv_flow_eth_filter,
}
impl Default for ibv_flow_spec_eth {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_ipv4_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_ipv4 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv4_filter,
    pub mask: ibv_flow_ipv4_filter,
}
impl Default for ibv_flow_spec_ipv4 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_ipv4_ext_filter {
    pub src_ip: u32,
    pub dst_ip: u32,
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub flags: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_ipv4_ext {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv4_ext_filter,
    pub mask: ibv_flow_ipv4_ext_filter,
}
impl Default for ibv_flow_spec_ipv4_ext {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_ipv6_filter {
    pub src_ip: [u8; 16usize],
    pub dst_ip: [u8; 16usize],
    pub flow_label: u32,
    pub next_hdr: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_ipv6 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_ipv6_filter,
    pub mask: ibv_flow_ipv6_filter,
}
impl Default for ibv_flow_spec_ipv6 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_esp_filter {
    pub spi: u32,
    pub seq: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_esp {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_esp_filter,
    pub mask: ibv_flow_esp_filter,
}
impl Default for ibv_flow_spec_esp {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_tcp_udp_filter {
    pub dst_port: u16,
    pub src_port: u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_tcp_udp {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_tcp_udp_filter,
    pub mask: ibv_flow_tcp_udp_filter,
}
impl Default for ibv_flow_spec_tcp_udp {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_gre_filter {
    pub c_ks_res0_ver: u16,
    pub protocol: u16,
    pub key: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_gre {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_gre_filter,
    pub mask: ibv_flow_gre_filter,
}
impl Default for ibv_flow_spec_gre {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_mpls_filter {
    pub label: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_mpls {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_mpls_filter,
    pub mask: ibv_flow_mpls_filter,
}
impl Default for ibv_flow_spec_mpls {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_flow_tunnel_filter {
    pub tunnel_id: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_tunnel {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub val: ibv_flow_tunnel_filter,
    pub mask: ibv_flow_tunnel_filter,
}
impl Default for ibv_flow_spec_tunnel {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_action_tag {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub tag_id: u32,
}
impl Default for ibv_flow_spec_action_tag {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_action_drop {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
}
impl Default for ibv_flow_spec_action_drop {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_action_handle {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub action: *const ibv_flow_action,
}
impl Default for ibv_flow_spec_action_handle {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec_counter_action {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
    pub counters: *mut ibv_counters,
}
impl Default for ibv_flow_spec_counter_action {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_flow_spec {
    pub __bindgen_anon_1: ibv_flow_spec__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_flow_spec__bindgen_ty_1 {
    pub hdr: ibv_flow_spec__bindgen_ty_1__bindgen_ty_1,
    pub eth: ibv_flow_spec_eth,
    pub ipv4: ibv_flow_spec_ipv4,
    pub tcp_udp: ibv_flow_spec_tcp_udp,
    pub ipv4_ext: ibv_flow_spec_ipv4_ext,
    pub ipv6: ibv_flow_spec_ipv6,
    pub esp: ibv_flow_spec_esp,
    pub tunnel: ibv_flow_spec_tunnel,
    pub gre: ibv_flow_spec_gre,
    pub mpls: ibv_flow_spec_mpls,
    pub flow_tag: ibv_flow_spec_action_tag,
    pub drop: ibv_flow_spec_action_drop,
    pub handle: ibv_flow_spec_action_handle,
    pub flow_count: ibv_flow_spec_counter_action,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_spec__bindgen_ty_1__bindgen_ty_1 {
    pub type_: ibv_flow_spec_type,
    pub size: u16,
}
impl Default for ibv_flow_spec__bindgen_ty_1__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_flow_spec__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for ibv_flow_spec {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    pub type_: ibv_flow_attr_type,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}
impl Default for ibv_flow_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}
impl Default for ibv_flow {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_action {
    pub context: *mut ibv_context,
}
impl Default for ibv_flow_action {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_flow_action_esp_mask {
    pub const IBV_FLOW_ACTION_ESP_MASK_ESN: ibv_flow_action_esp_mask = ibv_flow_action_esp_mask(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_flow_action_esp_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_flow_action_esp_attr {
    pub esp_attr: *mut ib_uverbs_flow_action_esp,
    pub keymat_proto: ib_uverbs_flow_action_esp_keymat,
    pub keymat_len: u16,
    pub keymat_ptr: *mut ::core::ffi::c_void,
    pub replay_proto: ib_uverbs_flow_action_esp_replay,
    pub replay_len: u16,
    pub replay_ptr: *mut ::core::ffi::c_void,
    pub esp_encap: *mut ib_uverbs_flow_action_esp_encap,
    pub comp_mask: u32,
    pub esn: u32,
}
impl Default for ibv_flow_action_esp_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ibv_device_ops {
    pub _dummy1: ::core::option::Option<
        unsafe extern "C" fn(
            device: *mut ibv_device,
            cmd_fd: ::core::ffi::c_int,
        ) -> *mut ibv_context,
    >,
    pub _dummy2: ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context)>,
}
pub const IBV_SYSFS_NAME_MAX: _bindgen_ty_17 = 64;
pub const IBV_SYSFS_PATH_MAX: _bindgen_ty_17 = 256;
pub type _bindgen_ty_17 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [::core::ffi::c_char; 64usize],
    pub dev_name: [::core::ffi::c_char; 64usize],
    pub dev_path: [::core::ffi::c_char; 256usize],
    pub ibdev_path: [::core::ffi::c_char; 256usize],
}
impl Default for ibv_device {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct _compat_ibv_port_attr {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_context_ops {
    pub _compat_query_device: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            device_attr: *mut ibv_device_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub _compat_query_port: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub _compat_alloc_pd: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_dealloc_pd: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_reg_mr: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_rereg_mr: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_dereg_mr: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub alloc_mw: ::core::option::Option<
        unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw,
    >,
    pub bind_mw: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            mw: *mut ibv_mw,
            mw_bind: *mut ibv_mw_bind,
        ) -> ::core::ffi::c_int,
    >,
    pub dealloc_mw: ::core::option::Option<
        unsafe extern "C" fn(mw: *mut ibv_mw) -> ::core::ffi::c_int,
    >,
    pub _compat_create_cq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub poll_cq: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            num_entries: ::core::ffi::c_int,
            wc: *mut ibv_wc,
        ) -> ::core::ffi::c_int,
    >,
    pub req_notify_cq: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            solicited_only: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
    >,
    pub _compat_cq_event: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_resize_cq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_destroy_cq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_create_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_modify_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_query_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_destroy_srq: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub post_srq_recv: ::core::option::Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            recv_wr: *mut ibv_recv_wr,
            bad_recv_wr: *mut *mut ibv_recv_wr,
        ) -> ::core::ffi::c_int,
    >,
    pub _compat_create_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_query_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_modify_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_destroy_qp: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub post_send: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> ::core::ffi::c_int,
    >,
    pub post_recv: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> ::core::ffi::c_int,
    >,
    pub _compat_create_ah: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_destroy_ah: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_attach_mcast: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_detach_mcast: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
    pub _compat_async_event: ::core::option::Option<
        unsafe extern "C" fn() -> *mut ::core::ffi::c_void,
    >,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: ::core::ffi::c_int,
    pub async_fd: ::core::ffi::c_int,
    pub num_comp_vectors: ::core::ffi::c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut ::core::ffi::c_void,
}
impl Default for ibv_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_cq_init_attr_mask {
    pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: ibv_cq_init_attr_mask = ibv_cq_init_attr_mask(
        1,
    );
    pub const IBV_CQ_INIT_ATTR_MASK_PD: ibv_cq_init_attr_mask = ibv_cq_init_attr_mask(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_cq_init_attr_mask(pub ::core::ffi::c_uint);
impl ibv_create_cq_attr_flags {
    pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: ibv_create_cq_attr_flags = ibv_create_cq_attr_flags(
        1,
    );
    pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: ibv_create_cq_attr_flags = ibv_create_cq_attr_flags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_create_cq_attr_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut ::core::ffi::c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
impl Default for ibv_cq_init_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_qp_attach_comp_cntr_op {
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_SEND: ibv_qp_attach_comp_cntr_op = ibv_qp_attach_comp_cntr_op(
        1,
    );
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_RECV: ibv_qp_attach_comp_cntr_op = ibv_qp_attach_comp_cntr_op(
        2,
    );
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: ibv_qp_attach_comp_cntr_op = ibv_qp_attach_comp_cntr_op(
        4,
    );
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ: ibv_qp_attach_comp_cntr_op = ibv_qp_attach_comp_cntr_op(
        8,
    );
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: ibv_qp_attach_comp_cntr_op = ibv_qp_attach_comp_cntr_op(
        16,
    );
    pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE: ibv_qp_attach_comp_cntr_op = ibv_qp_attach_comp_cntr_op(
        32,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_qp_attach_comp_cntr_op(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}
impl Default for ibv_comp_cntr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_comp_cntr_type {
    pub const IBV_COMP_CNTR_TYPE_WRS: ibv_comp_cntr_type = ibv_comp_cntr_type(0);
    pub const IBV_COMP_CNTR_TYPE_BYTES: ibv_comp_cntr_type = ibv_comp_cntr_type(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_comp_cntr_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub type_: ibv_comp_cntr_type,
    pub flags: u32,
}
impl Default for ibv_comp_cntr_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}
impl ibv_parent_domain_init_attr_mask {
    pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: ibv_parent_domain_init_attr_mask = ibv_parent_domain_init_attr_mask(
        1,
    );
    pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: ibv_parent_domain_init_attr_mask = ibv_parent_domain_init_attr_mask(
        2,
    );
    pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: ibv_parent_domain_init_attr_mask = ibv_parent_domain_init_attr_mask(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_parent_domain_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut ::core::ffi::c_void,
            size: usize,
            alignment: usize,
            resource_type: u64,
        ) -> *mut ::core::ffi::c_void,
    >,
    pub free: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            pd_context: *mut ::core::ffi::c_void,
            ptr: *mut ::core::ffi::c_void,
            resource_type: u64,
        ),
    >,
    pub pd_context: *mut ::core::ffi::c_void,
}
impl Default for ibv_parent_domain_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_tph_mem_type {
    pub const IBV_TPH_MEM_TYPE_VM: ibv_tph_mem_type = ibv_tph_mem_type(0);
    pub const IBV_TPH_MEM_TYPE_PM: ibv_tph_mem_type = ibv_tph_mem_type(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_tph_mem_type(pub ::core::ffi::c_uint);
impl ibv_dmah_init_attr_mask {
    pub const IBV_DMAH_INIT_ATTR_MASK_CPU_ID: ibv_dmah_init_attr_mask = ibv_dmah_init_attr_mask(
        1,
    );
    pub const IBV_DMAH_INIT_ATTR_MASK_PH: ibv_dmah_init_attr_mask = ibv_dmah_init_attr_mask(
        2,
    );
    pub const IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: ibv_dmah_init_attr_mask = ibv_dmah_init_attr_mask(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_dmah_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_dmah_init_attr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}
impl Default for ibv_counters {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_counter_description {
    pub const IBV_COUNTER_PACKETS: ibv_counter_description = ibv_counter_description(0);
    pub const IBV_COUNTER_BYTES: ibv_counter_description = ibv_counter_description(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_counter_description(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: ibv_counter_description,
    pub index: u32,
    pub comp_mask: u32,
}
impl Default for ibv_counter_attach_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_read_counters_flags {
    pub const IBV_READ_COUNTERS_ATTR_PREFER_CACHED: ibv_read_counters_flags = ibv_read_counters_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_read_counters_flags(pub ::core::ffi::c_uint);
impl ibv_values_mask {
    pub const IBV_VALUES_MASK_RAW_CLOCK: ibv_values_mask = ibv_values_mask(1);
    pub const IBV_VALUES_MASK_RESERVED: ibv_values_mask = ibv_values_mask(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_values_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: timespec,
}
impl Default for ibv_values_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct verbs_context {
    pub free_buf: ::core::option::Option<unsafe extern "C" fn(buf: *mut ibv_buf)>,
    pub alloc_buf: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            size: usize,
            buf: *mut *mut ibv_buf,
        ) -> *mut ::core::ffi::c_void,
    >,
    pub dm_export_dmabuf_fd: ::core::option::Option<
        unsafe extern "C" fn(dm: *mut ibv_dm) -> ::core::ffi::c_int,
    >,
    pub reg_mr_ex: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            mr_init_attr: *mut ibv_mr_init_attr,
        ) -> *mut ibv_mr,
    >,
    pub dealloc_dmah: ::core::option::Option<
        unsafe extern "C" fn(dmah: *mut ibv_dmah) -> ::core::ffi::c_int,
    >,
    pub alloc_dmah: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_dmah_init_attr,
        ) -> *mut ibv_dmah,
    >,
    pub query_port: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut ibv_port_attr,
            port_attr_len: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub advise_mr: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            advice: ib_uverbs_advise_mr_advice,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sges: u32,
        ) -> ::core::ffi::c_int,
    >,
    pub alloc_null_mr: ::core::option::Option<
        unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr,
    >,
    pub read_counters: ::core::option::Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            counters_value: *mut u64,
            ncounters: u32,
            flags: u32,
        ) -> ::core::ffi::c_int,
    >,
    pub attach_counters_point_flow: ::core::option::Option<
        unsafe extern "C" fn(
            counters: *mut ibv_counters,
            attr: *mut ibv_counter_attach_attr,
            flow: *mut ibv_flow,
        ) -> ::core::ffi::c_int,
    >,
    pub create_counters: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_counters_init_attr,
        ) -> *mut ibv_counters,
    >,
    pub destroy_counters: ::core::option::Option<
        unsafe extern "C" fn(counters: *mut ibv_counters) -> ::core::ffi::c_int,
    >,
    pub reg_dm_mr: ::core::option::Option<
        unsafe extern "C" fn(
            pd: *mut ibv_pd,
            dm: *mut ibv_dm,
            dm_offset: u64,
            length: usize,
            access: ::core::ffi::c_uint,
        ) -> *mut ibv_mr,
    >,
    pub alloc_dm: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_alloc_dm_attr,
        ) -> *mut ibv_dm,
    >,
    pub free_dm: ::core::option::Option<
        unsafe extern "C" fn(dm: *mut ibv_dm) -> ::core::ffi::c_int,
    >,
    pub modify_flow_action_esp: ::core::option::Option<
        unsafe extern "C" fn(
            action: *mut ibv_flow_action,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub destroy_flow_action: ::core::option::Option<
        unsafe extern "C" fn(action: *mut ibv_flow_action) -> ::core::ffi::c_int,
    >,
    pub create_flow_action_esp: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_flow_action_esp_attr,
        ) -> *mut ibv_flow_action,
    >,
    pub modify_qp_rate_limit: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_rate_limit_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub alloc_parent_domain: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_parent_domain_init_attr,
        ) -> *mut ibv_pd,
    >,
    pub dealloc_td: ::core::option::Option<
        unsafe extern "C" fn(td: *mut ibv_td) -> ::core::ffi::c_int,
    >,
    pub alloc_td: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_td_init_attr,
        ) -> *mut ibv_td,
    >,
    pub modify_cq: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            attr: *mut ibv_modify_cq_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub post_srq_ops: ::core::option::Option<
        unsafe extern "C" fn(
            srq: *mut ibv_srq,
            op: *mut ibv_ops_wr,
            bad_op: *mut *mut ibv_ops_wr,
        ) -> ::core::ffi::c_int,
    >,
    pub destroy_rwq_ind_table: ::core::option::Option<
        unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> ::core::ffi::c_int,
    >,
    pub create_rwq_ind_table: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_rwq_ind_table_init_attr,
        ) -> *mut ibv_rwq_ind_table,
    >,
    pub destroy_wq: ::core::option::Option<
        unsafe extern "C" fn(wq: *mut ibv_wq) -> ::core::ffi::c_int,
    >,
    pub modify_wq: ::core::option::Option<
        unsafe extern "C" fn(
            wq: *mut ibv_wq,
            wq_attr: *mut ibv_wq_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub create_wq: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            wq_init_attr: *mut ibv_wq_init_attr,
        ) -> *mut ibv_wq,
    >,
    pub query_rt_values: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            values: *mut ibv_values_ex,
        ) -> ::core::ffi::c_int,
    >,
    pub create_cq_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            init_attr: *mut ibv_cq_init_attr_ex,
        ) -> *mut ibv_cq_ex,
    >,
    pub priv_: *mut verbs_ex_private,
    pub query_device_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            input: *const ibv_query_device_ex_input,
            attr: *mut ibv_device_attr_ex,
            attr_size: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub ibv_destroy_flow: ::core::option::Option<
        unsafe extern "C" fn(flow: *mut ibv_flow) -> ::core::ffi::c_int,
    >,
    pub ABI_placeholder2: ::core::option::Option<unsafe extern "C" fn()>,
    pub ibv_create_flow: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            flow_attr: *mut ibv_flow_attr,
        ) -> *mut ibv_flow,
    >,
    pub ABI_placeholder1: ::core::option::Option<unsafe extern "C" fn()>,
    pub open_qp: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            attr: *mut ibv_qp_open_attr,
        ) -> *mut ibv_qp,
    >,
    pub create_qp_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
        ) -> *mut ibv_qp,
    >,
    pub get_srq_num: ::core::option::Option<
        unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> ::core::ffi::c_int,
    >,
    pub create_srq_ex: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
        ) -> *mut ibv_srq,
    >,
    pub open_xrcd: ::core::option::Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            xrcd_init_attr: *mut ibv_xrcd_init_attr,
        ) -> *mut ibv_xrcd,
    >,
    pub close_xrcd: ::core::option::Option<
        unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> ::core::ffi::c_int,
    >,
    pub _ABI_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
impl Default for verbs_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl ibv_rereg_mr_err_code {
    pub const IBV_REREG_MR_ERR_INPUT: ibv_rereg_mr_err_code = ibv_rereg_mr_err_code(-1);
    pub const IBV_REREG_MR_ERR_DONT_FORK_NEW: ibv_rereg_mr_err_code = ibv_rereg_mr_err_code(
        -2,
    );
    pub const IBV_REREG_MR_ERR_DO_FORK_OLD: ibv_rereg_mr_err_code = ibv_rereg_mr_err_code(
        -3,
    );
    pub const IBV_REREG_MR_ERR_CMD: ibv_rereg_mr_err_code = ibv_rereg_mr_err_code(-4);
    pub const IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: ibv_rereg_mr_err_code = ibv_rereg_mr_err_code(
        -5,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_rereg_mr_err_code(pub ::core::ffi::c_int);
impl ibv_tmh_op {
    pub const IBV_TMH_NO_TAG: ibv_tmh_op = ibv_tmh_op(0);
    pub const IBV_TMH_RNDV: ibv_tmh_op = ibv_tmh_op(1);
    pub const IBV_TMH_FIN: ibv_tmh_op = ibv_tmh_op(2);
    pub const IBV_TMH_EAGER: ibv_tmh_op = ibv_tmh_op(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ibv_tmh_op(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_tmh {
    pub opcode: u8,
    pub reserved: [u8; 3usize],
    pub app_ctx: __be32,
    pub tag: __be64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct ibv_rvh {
    pub va: __be64,
    pub rkey: __be32,
    pub len: __be32,
}
impl mlx5_ib_uapi_flow_action_flags {
    pub const MLX5_IB_UAPI_FLOW_ACTION_FLAGS_REQUIRE_METADATA: mlx5_ib_uapi_flow_action_flags = mlx5_ib_uapi_flow_action_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_flow_action_flags(pub ::core::ffi::c_uint);
impl mlx5_ib_uapi_flow_table_type {
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
        0,
    );
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_TX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
        1,
    );
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_FDB: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
        2,
    );
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_RX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
        3,
    );
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
        4,
    );
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_RX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
        5,
    );
    pub const MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_TX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
        6,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_flow_table_type(pub ::core::ffi::c_uint);
impl mlx5_ib_uapi_flow_action_packet_reformat_type {
    pub const MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TUNNEL_TO_L2: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
        0,
    );
    pub const MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L2_TUNNEL: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
        1,
    );
    pub const MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L3_TUNNEL_TO_L2: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
        2,
    );
    pub const MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L3_TUNNEL: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
        3,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_flow_action_packet_reformat_type(pub ::core::ffi::c_uint);
impl mlx5_ib_uapi_reg_dmabuf_flags {
    pub const MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT: mlx5_ib_uapi_reg_dmabuf_flags = mlx5_ib_uapi_reg_dmabuf_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_reg_dmabuf_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default)]
pub struct mlx5_ib_uapi_devx_async_cmd_hdr {
    pub wr_id: __u64,
    pub out_data: __IncompleteArrayField<__u8>,
}
impl mlx5_ib_uapi_dm_type {
    pub const MLX5_IB_UAPI_DM_TYPE_MEMIC: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(0);
    pub const MLX5_IB_UAPI_DM_TYPE_STEERING_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(
        1,
    );
    pub const MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(
        2,
    );
    pub const MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_PATTERN_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(
        3,
    );
    pub const MLX5_IB_UAPI_DM_TYPE_ENCAP_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_dm_type(pub ::core::ffi::c_uint);
impl mlx5_ib_uapi_devx_create_event_channel_flags {
    pub const MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA: mlx5_ib_uapi_devx_create_event_channel_flags = mlx5_ib_uapi_devx_create_event_channel_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_devx_create_event_channel_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default)]
pub struct mlx5_ib_uapi_devx_async_event_hdr {
    pub cookie: __u64,
    pub out_data: __IncompleteArrayField<__u8>,
}
impl mlx5_ib_uapi_pp_alloc_flags {
    pub const MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX: mlx5_ib_uapi_pp_alloc_flags = mlx5_ib_uapi_pp_alloc_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_pp_alloc_flags(pub ::core::ffi::c_uint);
impl mlx5_ib_uapi_uar_alloc_type {
    pub const MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF: mlx5_ib_uapi_uar_alloc_type = mlx5_ib_uapi_uar_alloc_type(
        0,
    );
    pub const MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC: mlx5_ib_uapi_uar_alloc_type = mlx5_ib_uapi_uar_alloc_type(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_uar_alloc_type(pub ::core::ffi::c_uint);
impl mlx5_ib_uapi_query_port_flags {
    pub const MLX5_IB_UAPI_QUERY_PORT_VPORT: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
        1,
    );
    pub const MLX5_IB_UAPI_QUERY_PORT_VPORT_VHCA_ID: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
        2,
    );
    pub const MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_RX: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
        4,
    );
    pub const MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_TX: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
        8,
    );
    pub const MLX5_IB_UAPI_QUERY_PORT_VPORT_REG_C0: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
        16,
    );
    pub const MLX5_IB_UAPI_QUERY_PORT_ESW_OWNER_VHCA_ID: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
        32,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_query_port_flags(pub ::core::ffi::c_uint);
impl mlx5_ib_uapi_var_alloc_flags {
    pub const MLX5_IB_UAPI_VAR_ALLOC_FLAG_TLP: mlx5_ib_uapi_var_alloc_flags = mlx5_ib_uapi_var_alloc_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5_ib_uapi_var_alloc_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_ib_uapi_reg {
    pub value: __u32,
    pub mask: __u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_ib_uapi_query_port {
    pub flags: __u64,
    pub vport: __u16,
    pub vport_vhca_id: __u16,
    pub esw_owner_vhca_id: __u16,
    pub rsvd0: __u16,
    pub vport_steering_icm_rx: __u64,
    pub vport_steering_icm_tx: __u64,
    pub reg_c0: mlx5_ib_uapi_reg,
}
pub const MLX5_RCV_DBR: _bindgen_ty_18 = 0;
pub const MLX5_SND_DBR: _bindgen_ty_18 = 1;
pub type _bindgen_ty_18 = ::core::ffi::c_uint;
impl mlx5dv_context_comp_mask {
    pub const MLX5DV_CONTEXT_MASK_CQE_COMPRESION: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        1,
    );
    pub const MLX5DV_CONTEXT_MASK_SWP: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        2,
    );
    pub const MLX5DV_CONTEXT_MASK_STRIDING_RQ: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        4,
    );
    pub const MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        8,
    );
    pub const MLX5DV_CONTEXT_MASK_DYN_BFREGS: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        16,
    );
    pub const MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        32,
    );
    pub const MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        64,
    );
    pub const MLX5DV_CONTEXT_MASK_DC_ODP_CAPS: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        128,
    );
    pub const MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        256,
    );
    pub const MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        512,
    );
    pub const MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        1024,
    );
    pub const MLX5DV_CONTEXT_MASK_DCI_STREAMS: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        2048,
    );
    pub const MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        4096,
    );
    pub const MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        8192,
    );
    pub const MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        16384,
    );
    pub const MLX5DV_CONTEXT_MASK_REG_C0: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        32768,
    );
    pub const MLX5DV_CONTEXT_MASK_OOO_RECV_WRS: mlx5dv_context_comp_mask = mlx5dv_context_comp_mask(
        65536,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_context_comp_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_cqe_comp_caps {
    pub max_num: u32,
    pub supported_format: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_sw_parsing_caps {
    pub sw_parsing_offloads: u32,
    pub supported_qpts: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_striding_rq_caps {
    pub min_single_stride_log_num_of_bytes: u32,
    pub max_single_stride_log_num_of_bytes: u32,
    pub min_single_wqe_log_num_of_strides: u32,
    pub max_single_wqe_log_num_of_strides: u32,
    pub supported_qpts: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_dci_streams_caps {
    pub max_log_num_concurent: u8,
    pub max_log_num_errored: u8,
}
impl mlx5dv_tunnel_offloads {
    pub const MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN: mlx5dv_tunnel_offloads = mlx5dv_tunnel_offloads(
        1,
    );
    pub const MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE: mlx5dv_tunnel_offloads = mlx5dv_tunnel_offloads(
        2,
    );
    pub const MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GENEVE: mlx5dv_tunnel_offloads = mlx5dv_tunnel_offloads(
        4,
    );
    pub const MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_CW_MPLS_OVER_GRE: mlx5dv_tunnel_offloads = mlx5dv_tunnel_offloads(
        8,
    );
    pub const MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_CW_MPLS_OVER_UDP: mlx5dv_tunnel_offloads = mlx5dv_tunnel_offloads(
        16,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_tunnel_offloads(pub ::core::ffi::c_uint);
impl mlx5dv_flow_action_cap_flags {
    pub const MLX5DV_FLOW_ACTION_FLAGS_ESP_AES_GCM: mlx5dv_flow_action_cap_flags = mlx5dv_flow_action_cap_flags(
        1,
    );
    pub const MLX5DV_FLOW_ACTION_FLAGS_ESP_AES_GCM_REQ_METADATA: mlx5dv_flow_action_cap_flags = mlx5dv_flow_action_cap_flags(
        2,
    );
    pub const MLX5DV_FLOW_ACTION_FLAGS_ESP_AES_GCM_SPI_STEERING: mlx5dv_flow_action_cap_flags = mlx5dv_flow_action_cap_flags(
        4,
    );
    pub const MLX5DV_FLOW_ACTION_FLAGS_ESP_AES_GCM_FULL_OFFLOAD: mlx5dv_flow_action_cap_flags = mlx5dv_flow_action_cap_flags(
        8,
    );
    pub const MLX5DV_FLOW_ACTION_FLAGS_ESP_AES_GCM_TX_IV_IS_ESN: mlx5dv_flow_action_cap_flags = mlx5dv_flow_action_cap_flags(
        16,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_flow_action_cap_flags(pub ::core::ffi::c_uint);
impl mlx5dv_sig_type {
    pub const MLX5DV_SIG_TYPE_T10DIF: mlx5dv_sig_type = mlx5dv_sig_type(0);
    pub const MLX5DV_SIG_TYPE_CRC: mlx5dv_sig_type = mlx5dv_sig_type(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_type(pub ::core::ffi::c_uint);
impl mlx5dv_sig_prot_caps {
    pub const MLX5DV_SIG_PROT_CAP_T10DIF: mlx5dv_sig_prot_caps = mlx5dv_sig_prot_caps(1);
    pub const MLX5DV_SIG_PROT_CAP_CRC: mlx5dv_sig_prot_caps = mlx5dv_sig_prot_caps(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_prot_caps(pub ::core::ffi::c_uint);
impl mlx5dv_sig_t10dif_bg_type {
    pub const MLX5DV_SIG_T10DIF_CRC: mlx5dv_sig_t10dif_bg_type = mlx5dv_sig_t10dif_bg_type(
        0,
    );
    pub const MLX5DV_SIG_T10DIF_CSUM: mlx5dv_sig_t10dif_bg_type = mlx5dv_sig_t10dif_bg_type(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_t10dif_bg_type(pub ::core::ffi::c_uint);
impl mlx5dv_sig_t10dif_bg_caps {
    pub const MLX5DV_SIG_T10DIF_BG_CAP_CRC: mlx5dv_sig_t10dif_bg_caps = mlx5dv_sig_t10dif_bg_caps(
        1,
    );
    pub const MLX5DV_SIG_T10DIF_BG_CAP_CSUM: mlx5dv_sig_t10dif_bg_caps = mlx5dv_sig_t10dif_bg_caps(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_t10dif_bg_caps(pub ::core::ffi::c_uint);
impl mlx5dv_sig_crc_type {
    pub const MLX5DV_SIG_CRC_TYPE_CRC32: mlx5dv_sig_crc_type = mlx5dv_sig_crc_type(0);
    pub const MLX5DV_SIG_CRC_TYPE_CRC32C: mlx5dv_sig_crc_type = mlx5dv_sig_crc_type(1);
    pub const MLX5DV_SIG_CRC_TYPE_CRC64_XP10: mlx5dv_sig_crc_type = mlx5dv_sig_crc_type(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_crc_type(pub ::core::ffi::c_uint);
impl mlx5dv_sig_crc_type_caps {
    pub const MLX5DV_SIG_CRC_TYPE_CAP_CRC32: mlx5dv_sig_crc_type_caps = mlx5dv_sig_crc_type_caps(
        1,
    );
    pub const MLX5DV_SIG_CRC_TYPE_CAP_CRC32C: mlx5dv_sig_crc_type_caps = mlx5dv_sig_crc_type_caps(
        2,
    );
    pub const MLX5DV_SIG_CRC_TYPE_CAP_CRC64_XP10: mlx5dv_sig_crc_type_caps = mlx5dv_sig_crc_type_caps(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_crc_type_caps(pub ::core::ffi::c_uint);
impl mlx5dv_block_size {
    pub const MLX5DV_BLOCK_SIZE_512: mlx5dv_block_size = mlx5dv_block_size(0);
    pub const MLX5DV_BLOCK_SIZE_520: mlx5dv_block_size = mlx5dv_block_size(1);
    pub const MLX5DV_BLOCK_SIZE_4048: mlx5dv_block_size = mlx5dv_block_size(2);
    pub const MLX5DV_BLOCK_SIZE_4096: mlx5dv_block_size = mlx5dv_block_size(3);
    pub const MLX5DV_BLOCK_SIZE_4160: mlx5dv_block_size = mlx5dv_block_size(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_block_size(pub ::core::ffi::c_uint);
impl mlx5dv_block_size_caps {
    pub const MLX5DV_BLOCK_SIZE_CAP_512: mlx5dv_block_size_caps = mlx5dv_block_size_caps(
        1,
    );
    pub const MLX5DV_BLOCK_SIZE_CAP_520: mlx5dv_block_size_caps = mlx5dv_block_size_caps(
        2,
    );
    pub const MLX5DV_BLOCK_SIZE_CAP_4048: mlx5dv_block_size_caps = mlx5dv_block_size_caps(
        4,
    );
    pub const MLX5DV_BLOCK_SIZE_CAP_4096: mlx5dv_block_size_caps = mlx5dv_block_size_caps(
        8,
    );
    pub const MLX5DV_BLOCK_SIZE_CAP_4160: mlx5dv_block_size_caps = mlx5dv_block_size_caps(
        16,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_block_size_caps(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_sig_caps {
    pub block_size: u64,
    pub block_prot: u32,
    pub t10dif_bg: u16,
    pub crc_type: u16,
}
impl mlx5dv_crypto_engines_caps {
    pub const MLX5DV_CRYPTO_ENGINES_CAP_AES_XTS: mlx5dv_crypto_engines_caps = mlx5dv_crypto_engines_caps(
        1,
    );
    pub const MLX5DV_CRYPTO_ENGINES_CAP_AES_XTS_SINGLE_BLOCK: mlx5dv_crypto_engines_caps = mlx5dv_crypto_engines_caps(
        2,
    );
    pub const MLX5DV_CRYPTO_ENGINES_CAP_AES_XTS_MULTI_BLOCK: mlx5dv_crypto_engines_caps = mlx5dv_crypto_engines_caps(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_crypto_engines_caps(pub ::core::ffi::c_uint);
impl mlx5dv_crypto_wrapped_import_method_caps {
    pub const MLX5DV_CRYPTO_WRAPPED_IMPORT_METHOD_CAP_AES_XTS: mlx5dv_crypto_wrapped_import_method_caps = mlx5dv_crypto_wrapped_import_method_caps(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_crypto_wrapped_import_method_caps(pub ::core::ffi::c_uint);
impl mlx5dv_crypto_caps_flags {
    pub const MLX5DV_CRYPTO_CAPS_CRYPTO: mlx5dv_crypto_caps_flags = mlx5dv_crypto_caps_flags(
        1,
    );
    pub const MLX5DV_CRYPTO_CAPS_WRAPPED_CRYPTO_OPERATIONAL: mlx5dv_crypto_caps_flags = mlx5dv_crypto_caps_flags(
        2,
    );
    pub const MLX5DV_CRYPTO_CAPS_WRAPPED_CRYPTO_GOING_TO_COMMISSIONING: mlx5dv_crypto_caps_flags = mlx5dv_crypto_caps_flags(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_crypto_caps_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_crypto_caps {
    pub failed_selftests: u16,
    pub crypto_engines: u8,
    pub wrapped_import_method: u8,
    pub log_max_num_deks: u8,
    pub flags: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_ooo_recv_wrs_caps {
    pub max_rc: u32,
    pub max_xrc: u32,
    pub max_dct: u32,
    pub max_ud: u32,
    pub max_uc: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_context {
    pub version: u8,
    pub flags: u64,
    pub comp_mask: u64,
    pub cqe_comp_caps: mlx5dv_cqe_comp_caps,
    pub sw_parsing_caps: mlx5dv_sw_parsing_caps,
    pub striding_rq_caps: mlx5dv_striding_rq_caps,
    pub tunnel_offloads_caps: u32,
    pub max_dynamic_bfregs: u32,
    pub max_clock_info_update_nsec: u64,
    pub flow_action_flags: u32,
    pub dc_odp_caps: u32,
    pub hca_core_clock: *mut ::core::ffi::c_void,
    pub num_lag_ports: u8,
    pub sig_caps: mlx5dv_sig_caps,
    pub dci_streams_caps: mlx5dv_dci_streams_caps,
    pub max_wr_memcpy_length: usize,
    pub crypto_caps: mlx5dv_crypto_caps,
    pub max_dc_rd_atom: u64,
    pub max_dc_init_rd_atom: u64,
    pub reg_c0: mlx5_ib_uapi_reg,
    pub ooo_recv_wrs_caps: mlx5dv_ooo_recv_wrs_caps,
}
impl Default for mlx5dv_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_context_flags {
    pub const MLX5DV_CONTEXT_FLAGS_CQE_V1: mlx5dv_context_flags = mlx5dv_context_flags(
        1,
    );
    pub const MLX5DV_CONTEXT_FLAGS_OBSOLETE: mlx5dv_context_flags = mlx5dv_context_flags(
        2,
    );
    pub const MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED: mlx5dv_context_flags = mlx5dv_context_flags(
        4,
    );
    pub const MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW: mlx5dv_context_flags = mlx5dv_context_flags(
        8,
    );
    pub const MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP: mlx5dv_context_flags = mlx5dv_context_flags(
        16,
    );
    pub const MLX5DV_CONTEXT_FLAGS_CQE_128B_PAD: mlx5dv_context_flags = mlx5dv_context_flags(
        32,
    );
    pub const MLX5DV_CONTEXT_FLAGS_PACKET_BASED_CREDIT_MODE: mlx5dv_context_flags = mlx5dv_context_flags(
        64,
    );
    pub const MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS: mlx5dv_context_flags = mlx5dv_context_flags(
        128,
    );
    pub const MLX5DV_CONTEXT_FLAGS_BLUEFLAME: mlx5dv_context_flags = mlx5dv_context_flags(
        256,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_context_flags(pub ::core::ffi::c_uint);
impl mlx5dv_cq_init_attr_mask {
    pub const MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE: mlx5dv_cq_init_attr_mask = mlx5dv_cq_init_attr_mask(
        1,
    );
    pub const MLX5DV_CQ_INIT_ATTR_MASK_FLAGS: mlx5dv_cq_init_attr_mask = mlx5dv_cq_init_attr_mask(
        2,
    );
    pub const MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE: mlx5dv_cq_init_attr_mask = mlx5dv_cq_init_attr_mask(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_cq_init_attr_mask(pub ::core::ffi::c_uint);
impl mlx5dv_cq_init_attr_flags {
    pub const MLX5DV_CQ_INIT_ATTR_FLAGS_CQE_PAD: mlx5dv_cq_init_attr_flags = mlx5dv_cq_init_attr_flags(
        1,
    );
    pub const MLX5DV_CQ_INIT_ATTR_FLAGS_RESERVED: mlx5dv_cq_init_attr_flags = mlx5dv_cq_init_attr_flags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_cq_init_attr_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_cq_init_attr {
    pub comp_mask: u64,
    pub cqe_comp_res_format: u8,
    pub flags: u32,
    pub cqe_size: u16,
}
impl mlx5dv_qp_create_flags {
    pub const MLX5DV_QP_CREATE_TUNNEL_OFFLOADS: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        1,
    );
    pub const MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_UC: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        2,
    );
    pub const MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_MC: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        4,
    );
    pub const MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        8,
    );
    pub const MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        16,
    );
    pub const MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        32,
    );
    pub const MLX5DV_QP_CREATE_SIG_PIPELINING: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        64,
    );
    pub const MLX5DV_QP_CREATE_OOO_DP: mlx5dv_qp_create_flags = mlx5dv_qp_create_flags(
        128,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_qp_create_flags(pub ::core::ffi::c_uint);
impl mlx5dv_mkey_init_attr_flags {
    pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT: mlx5dv_mkey_init_attr_flags = mlx5dv_mkey_init_attr_flags(
        1,
    );
    pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE: mlx5dv_mkey_init_attr_flags = mlx5dv_mkey_init_attr_flags(
        2,
    );
    pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_CRYPTO: mlx5dv_mkey_init_attr_flags = mlx5dv_mkey_init_attr_flags(
        4,
    );
    pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_UPDATE_TAG: mlx5dv_mkey_init_attr_flags = mlx5dv_mkey_init_attr_flags(
        8,
    );
    pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE: mlx5dv_mkey_init_attr_flags = mlx5dv_mkey_init_attr_flags(
        16,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_mkey_init_attr_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_mkey_init_attr {
    pub pd: *mut ibv_pd,
    pub create_flags: u32,
    pub max_entries: u16,
}
impl Default for mlx5dv_mkey_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_mkey {
    pub lkey: u32,
    pub rkey: u32,
}
impl mlx5dv_qp_init_attr_mask {
    pub const MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS: mlx5dv_qp_init_attr_mask = mlx5dv_qp_init_attr_mask(
        1,
    );
    pub const MLX5DV_QP_INIT_ATTR_MASK_DC: mlx5dv_qp_init_attr_mask = mlx5dv_qp_init_attr_mask(
        2,
    );
    pub const MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS: mlx5dv_qp_init_attr_mask = mlx5dv_qp_init_attr_mask(
        4,
    );
    pub const MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS: mlx5dv_qp_init_attr_mask = mlx5dv_qp_init_attr_mask(
        8,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_qp_init_attr_mask(pub ::core::ffi::c_uint);
impl mlx5dv_dc_type {
    pub const MLX5DV_DCTYPE_DCT: mlx5dv_dc_type = mlx5dv_dc_type(1);
    pub const MLX5DV_DCTYPE_DCI: mlx5dv_dc_type = mlx5dv_dc_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dc_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_dci_streams {
    pub log_num_concurent: u8,
    pub log_num_errored: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_dc_init_attr {
    pub dc_type: mlx5dv_dc_type,
    pub __bindgen_anon_1: mlx5dv_dc_init_attr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5dv_dc_init_attr__bindgen_ty_1 {
    pub dct_access_key: u64,
    pub dci_streams: mlx5dv_dci_streams,
}
impl Default for mlx5dv_dc_init_attr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_dc_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_qp_create_send_ops_flags {
    pub const MLX5DV_QP_EX_WITH_MR_INTERLEAVED: mlx5dv_qp_create_send_ops_flags = mlx5dv_qp_create_send_ops_flags(
        1,
    );
    pub const MLX5DV_QP_EX_WITH_MR_LIST: mlx5dv_qp_create_send_ops_flags = mlx5dv_qp_create_send_ops_flags(
        2,
    );
    pub const MLX5DV_QP_EX_WITH_MKEY_CONFIGURE: mlx5dv_qp_create_send_ops_flags = mlx5dv_qp_create_send_ops_flags(
        4,
    );
    pub const MLX5DV_QP_EX_WITH_RAW_WQE: mlx5dv_qp_create_send_ops_flags = mlx5dv_qp_create_send_ops_flags(
        8,
    );
    pub const MLX5DV_QP_EX_WITH_MEMCPY: mlx5dv_qp_create_send_ops_flags = mlx5dv_qp_create_send_ops_flags(
        16,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_qp_create_send_ops_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_qp_init_attr {
    pub comp_mask: u64,
    pub create_flags: u32,
    pub dc_init_attr: mlx5dv_dc_init_attr,
    pub send_ops_flags: u64,
}
impl Default for mlx5dv_qp_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_mr_interleaved {
    pub addr: u64,
    pub bytes_count: u32,
    pub bytes_skip: u32,
    pub lkey: u32,
}
impl mlx5dv_sig_t10dif_flags {
    pub const MLX5DV_SIG_T10DIF_FLAG_REF_REMAP: mlx5dv_sig_t10dif_flags = mlx5dv_sig_t10dif_flags(
        1,
    );
    pub const MLX5DV_SIG_T10DIF_FLAG_APP_ESCAPE: mlx5dv_sig_t10dif_flags = mlx5dv_sig_t10dif_flags(
        2,
    );
    pub const MLX5DV_SIG_T10DIF_FLAG_APP_REF_ESCAPE: mlx5dv_sig_t10dif_flags = mlx5dv_sig_t10dif_flags(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_t10dif_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_sig_t10dif {
    pub bg_type: mlx5dv_sig_t10dif_bg_type,
    pub bg: u16,
    pub app_tag: u16,
    pub ref_tag: u32,
    pub flags: u16,
}
impl Default for mlx5dv_sig_t10dif {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_sig_crc {
    pub type_: mlx5dv_sig_crc_type,
    pub seed: u64,
}
impl Default for mlx5dv_sig_crc {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_sig_block_domain {
    pub sig_type: mlx5dv_sig_type,
    pub sig: mlx5dv_sig_block_domain__bindgen_ty_1,
    pub block_size: mlx5dv_block_size,
    pub comp_mask: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5dv_sig_block_domain__bindgen_ty_1 {
    pub dif: *const mlx5dv_sig_t10dif,
    pub crc: *const mlx5dv_sig_crc,
}
impl Default for mlx5dv_sig_block_domain__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_sig_block_domain {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_sig_mask {
    pub const MLX5DV_SIG_MASK_T10DIF_GUARD: mlx5dv_sig_mask = mlx5dv_sig_mask(192);
    pub const MLX5DV_SIG_MASK_T10DIF_APPTAG: mlx5dv_sig_mask = mlx5dv_sig_mask(48);
    pub const MLX5DV_SIG_MASK_T10DIF_REFTAG: mlx5dv_sig_mask = mlx5dv_sig_mask(15);
    pub const MLX5DV_SIG_MASK_CRC32: mlx5dv_sig_mask = mlx5dv_sig_mask(240);
    pub const MLX5DV_SIG_MASK_CRC32C: mlx5dv_sig_mask = mlx5dv_sig_mask(240);
    pub const MLX5DV_SIG_MASK_CRC64_XP10: mlx5dv_sig_mask = mlx5dv_sig_mask(255);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_mask(pub ::core::ffi::c_uint);
impl mlx5dv_sig_block_attr_flags {
    pub const MLX5DV_SIG_BLOCK_ATTR_FLAG_COPY_MASK: mlx5dv_sig_block_attr_flags = mlx5dv_sig_block_attr_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sig_block_attr_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_sig_block_attr {
    pub mem: *const mlx5dv_sig_block_domain,
    pub wire: *const mlx5dv_sig_block_domain,
    pub flags: u32,
    pub check_mask: u8,
    pub copy_mask: u8,
    pub comp_mask: u64,
}
impl Default for mlx5dv_sig_block_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_crypto_standard {
    pub const MLX5DV_CRYPTO_STANDARD_AES_XTS: mlx5dv_crypto_standard = mlx5dv_crypto_standard(
        0,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_crypto_standard(pub ::core::ffi::c_uint);
impl mlx5dv_signature_crypto_order {
    pub const MLX5DV_SIGNATURE_CRYPTO_ORDER_SIGNATURE_AFTER_CRYPTO_ON_TX: mlx5dv_signature_crypto_order = mlx5dv_signature_crypto_order(
        0,
    );
    pub const MLX5DV_SIGNATURE_CRYPTO_ORDER_SIGNATURE_BEFORE_CRYPTO_ON_TX: mlx5dv_signature_crypto_order = mlx5dv_signature_crypto_order(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_signature_crypto_order(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_crypto_attr {
    pub crypto_standard: mlx5dv_crypto_standard,
    pub encrypt_on_tx: bool,
    pub signature_crypto_order: mlx5dv_signature_crypto_order,
    pub data_unit_size: mlx5dv_block_size,
    pub initial_tweak: [::core::ffi::c_char; 16usize],
    pub dek: *mut mlx5dv_dek,
    pub keytag: [::core::ffi::c_char; 8usize],
    pub comp_mask: u64,
}
impl Default for mlx5dv_crypto_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_mkey_conf_flags {
    pub const MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR: mlx5dv_mkey_conf_flags = mlx5dv_mkey_conf_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_mkey_conf_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_mkey_conf_attr {
    pub conf_flags: u32,
    pub comp_mask: u64,
}
impl mlx5dv_wc_opcode {
    pub const MLX5DV_WC_UMR: mlx5dv_wc_opcode = mlx5dv_wc_opcode(135);
    pub const MLX5DV_WC_RAW_WQE: mlx5dv_wc_opcode = mlx5dv_wc_opcode(136);
    pub const MLX5DV_WC_MEMCPY: mlx5dv_wc_opcode = mlx5dv_wc_opcode(137);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_wc_opcode(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_qp_ex {
    pub comp_mask: u64,
    pub wr_set_dc_addr: ::core::option::Option<
        unsafe extern "C" fn(
            mqp: *mut mlx5dv_qp_ex,
            ah: *mut ibv_ah,
            remote_dctn: u32,
            remote_dc_key: u64,
        ),
    >,
    pub wr_mr_interleaved: ::core::option::Option<
        unsafe extern "C" fn(
            mqp: *mut mlx5dv_qp_ex,
            mkey: *mut mlx5dv_mkey,
            access_flags: u32,
            repeat_count: u32,
            num_interleaved: u16,
            data: *mut mlx5dv_mr_interleaved,
        ),
    >,
    pub wr_mr_list: ::core::option::Option<
        unsafe extern "C" fn(
            mqp: *mut mlx5dv_qp_ex,
            mkey: *mut mlx5dv_mkey,
            access_flags: u32,
            num_sges: u16,
            sge: *mut ibv_sge,
        ),
    >,
    pub wr_mkey_configure: ::core::option::Option<
        unsafe extern "C" fn(
            mqp: *mut mlx5dv_qp_ex,
            mkey: *mut mlx5dv_mkey,
            num_setters: u8,
            attr: *mut mlx5dv_mkey_conf_attr,
        ),
    >,
    pub wr_set_mkey_access_flags: ::core::option::Option<
        unsafe extern "C" fn(mqp: *mut mlx5dv_qp_ex, access_flags: u32),
    >,
    pub wr_set_mkey_layout_list: ::core::option::Option<
        unsafe extern "C" fn(mqp: *mut mlx5dv_qp_ex, num_sges: u16, sge: *const ibv_sge),
    >,
    pub wr_set_mkey_layout_interleaved: ::core::option::Option<
        unsafe extern "C" fn(
            mqp: *mut mlx5dv_qp_ex,
            repeat_count: u32,
            num_interleaved: u16,
            data: *const mlx5dv_mr_interleaved,
        ),
    >,
    pub wr_set_mkey_sig_block: ::core::option::Option<
        unsafe extern "C" fn(mqp: *mut mlx5dv_qp_ex, attr: *const mlx5dv_sig_block_attr),
    >,
    pub wr_raw_wqe: ::core::option::Option<
        unsafe extern "C" fn(mqp: *mut mlx5dv_qp_ex, wqe: *const ::core::ffi::c_void),
    >,
    pub wr_set_dc_addr_stream: ::core::option::Option<
        unsafe extern "C" fn(
            mqp: *mut mlx5dv_qp_ex,
            ah: *mut ibv_ah,
            remote_dctn: u32,
            remote_dc_key: u64,
            stream_id: u16,
        ),
    >,
    pub wr_memcpy: ::core::option::Option<
        unsafe extern "C" fn(
            mqp: *mut mlx5dv_qp_ex,
            dest_lkey: u32,
            dest_addr: u64,
            src_lkey: u32,
            src_addr: u64,
            length: usize,
        ),
    >,
    pub wr_set_mkey_crypto: ::core::option::Option<
        unsafe extern "C" fn(mqp: *mut mlx5dv_qp_ex, attr: *const mlx5dv_crypto_attr),
    >,
}
impl mlx5dv_mkey_err_type {
    pub const MLX5DV_MKEY_NO_ERR: mlx5dv_mkey_err_type = mlx5dv_mkey_err_type(0);
    pub const MLX5DV_MKEY_SIG_BLOCK_BAD_GUARD: mlx5dv_mkey_err_type = mlx5dv_mkey_err_type(
        1,
    );
    pub const MLX5DV_MKEY_SIG_BLOCK_BAD_REFTAG: mlx5dv_mkey_err_type = mlx5dv_mkey_err_type(
        2,
    );
    pub const MLX5DV_MKEY_SIG_BLOCK_BAD_APPTAG: mlx5dv_mkey_err_type = mlx5dv_mkey_err_type(
        3,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_mkey_err_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_sig_err {
    pub actual_value: u64,
    pub expected_value: u64,
    pub offset: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_mkey_err {
    pub err_type: mlx5dv_mkey_err_type,
    pub err: mlx5dv_mkey_err__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5dv_mkey_err__bindgen_ty_1 {
    pub sig: mlx5dv_sig_err,
}
impl Default for mlx5dv_mkey_err__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_mkey_err {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_crypto_login_obj {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_crypto_login_attr {
    pub credential_id: u32,
    pub import_kek_id: u32,
    pub credential: [::core::ffi::c_char; 48usize],
    pub comp_mask: u64,
}
impl Default for mlx5dv_crypto_login_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_crypto_login_attr_ex {
    pub credential_id: u32,
    pub import_kek_id: u32,
    pub credential: *const ::core::ffi::c_void,
    pub credential_len: usize,
    pub comp_mask: u64,
}
impl Default for mlx5dv_crypto_login_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_crypto_login_state {
    pub const MLX5DV_CRYPTO_LOGIN_STATE_VALID: mlx5dv_crypto_login_state = mlx5dv_crypto_login_state(
        0,
    );
    pub const MLX5DV_CRYPTO_LOGIN_STATE_NO_LOGIN: mlx5dv_crypto_login_state = mlx5dv_crypto_login_state(
        1,
    );
    pub const MLX5DV_CRYPTO_LOGIN_STATE_INVALID: mlx5dv_crypto_login_state = mlx5dv_crypto_login_state(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_crypto_login_state(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_crypto_login_query_attr {
    pub state: mlx5dv_crypto_login_state,
    pub comp_mask: u64,
}
impl Default for mlx5dv_crypto_login_query_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_crypto_key_size {
    pub const MLX5DV_CRYPTO_KEY_SIZE_128: mlx5dv_crypto_key_size = mlx5dv_crypto_key_size(
        0,
    );
    pub const MLX5DV_CRYPTO_KEY_SIZE_256: mlx5dv_crypto_key_size = mlx5dv_crypto_key_size(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_crypto_key_size(pub ::core::ffi::c_uint);
impl mlx5dv_crypto_key_purpose {
    pub const MLX5DV_CRYPTO_KEY_PURPOSE_AES_XTS: mlx5dv_crypto_key_purpose = mlx5dv_crypto_key_purpose(
        0,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_crypto_key_purpose(pub ::core::ffi::c_uint);
impl mlx5dv_dek_state {
    pub const MLX5DV_DEK_STATE_READY: mlx5dv_dek_state = mlx5dv_dek_state(0);
    pub const MLX5DV_DEK_STATE_ERROR: mlx5dv_dek_state = mlx5dv_dek_state(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dek_state(pub ::core::ffi::c_uint);
impl mlx5dv_dek_init_attr_mask {
    pub const MLX5DV_DEK_INIT_ATTR_CRYPTO_LOGIN: mlx5dv_dek_init_attr_mask = mlx5dv_dek_init_attr_mask(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dek_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_dek_init_attr {
    pub key_size: mlx5dv_crypto_key_size,
    pub has_keytag: bool,
    pub key_purpose: mlx5dv_crypto_key_purpose,
    pub pd: *mut ibv_pd,
    pub opaque: [::core::ffi::c_char; 8usize],
    pub key: [::core::ffi::c_char; 128usize],
    pub comp_mask: u64,
    pub crypto_login: *mut mlx5dv_crypto_login_obj,
}
impl Default for mlx5dv_dek_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_dek_attr {
    pub state: mlx5dv_dek_state,
    pub opaque: [::core::ffi::c_char; 8usize],
    pub comp_mask: u64,
}
impl Default for mlx5dv_dek_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_dek {
    _unused: [u8; 0],
}
impl mlx5dv_flow_action_esp_mask {
    pub const MLX5DV_FLOW_ACTION_ESP_MASK_FLAGS: mlx5dv_flow_action_esp_mask = mlx5dv_flow_action_esp_mask(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_flow_action_esp_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_flow_action_esp {
    pub comp_mask: u64,
    pub action_flags: u32,
}
#[repr(C)]
#[derive(Debug, Default)]
pub struct mlx5dv_flow_match_parameters {
    pub match_sz: usize,
    pub match_buf: __IncompleteArrayField<u64>,
}
impl mlx5dv_flow_matcher_attr_mask {
    pub const MLX5DV_FLOW_MATCHER_MASK_FT_TYPE: mlx5dv_flow_matcher_attr_mask = mlx5dv_flow_matcher_attr_mask(
        1,
    );
    pub const MLX5DV_FLOW_MATCHER_MASK_IB_PORT: mlx5dv_flow_matcher_attr_mask = mlx5dv_flow_matcher_attr_mask(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_flow_matcher_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_flow_matcher_attr {
    pub type_: ibv_flow_attr_type,
    pub flags: u32,
    pub priority: u16,
    pub match_criteria_enable: u8,
    pub match_mask: *mut mlx5dv_flow_match_parameters,
    pub comp_mask: u64,
    pub ft_type: mlx5_ib_uapi_flow_table_type,
    pub ib_port: u32,
}
impl Default for mlx5dv_flow_matcher_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_flow_matcher {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_steering_anchor_attr {
    pub ft_type: mlx5_ib_uapi_flow_table_type,
    pub priority: u16,
    pub comp_mask: u64,
}
impl Default for mlx5dv_steering_anchor_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_steering_anchor {
    pub id: u32,
}
impl mlx5dv_flow_action_type {
    pub const MLX5DV_FLOW_ACTION_DEST_IBV_QP: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        0,
    );
    pub const MLX5DV_FLOW_ACTION_DROP: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        1,
    );
    pub const MLX5DV_FLOW_ACTION_IBV_COUNTER: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        2,
    );
    pub const MLX5DV_FLOW_ACTION_IBV_FLOW_ACTION: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        3,
    );
    pub const MLX5DV_FLOW_ACTION_TAG: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        4,
    );
    pub const MLX5DV_FLOW_ACTION_DEST_DEVX: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        5,
    );
    pub const MLX5DV_FLOW_ACTION_COUNTERS_DEVX: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        6,
    );
    pub const MLX5DV_FLOW_ACTION_DEFAULT_MISS: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        7,
    );
    pub const MLX5DV_FLOW_ACTION_COUNTERS_DEVX_WITH_OFFSET: mlx5dv_flow_action_type = mlx5dv_flow_action_type(
        8,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_flow_action_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_flow_action_attr {
    pub type_: mlx5dv_flow_action_type,
    pub __bindgen_anon_1: mlx5dv_flow_action_attr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5dv_flow_action_attr__bindgen_ty_1 {
    pub qp: *mut ibv_qp,
    pub counter: *mut ibv_counters,
    pub action: *mut ibv_flow_action,
    pub tag_value: u32,
    pub obj: *mut mlx5dv_devx_obj,
    pub bulk_obj: mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1 {
    pub obj: *mut mlx5dv_devx_obj,
    pub offset: u32,
}
impl Default for mlx5dv_flow_action_attr__bindgen_ty_1__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_flow_action_attr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_flow_action_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_qp_comp_mask {
    pub const MLX5DV_QP_MASK_UAR_MMAP_OFFSET: mlx5dv_qp_comp_mask = mlx5dv_qp_comp_mask(
        1,
    );
    pub const MLX5DV_QP_MASK_RAW_QP_HANDLES: mlx5dv_qp_comp_mask = mlx5dv_qp_comp_mask(
        2,
    );
    pub const MLX5DV_QP_MASK_RAW_QP_TIR_ADDR: mlx5dv_qp_comp_mask = mlx5dv_qp_comp_mask(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_qp_comp_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_qp {
    pub dbrec: *mut __be32,
    pub sq: mlx5dv_qp__bindgen_ty_1,
    pub rq: mlx5dv_qp__bindgen_ty_2,
    pub bf: mlx5dv_qp__bindgen_ty_3,
    pub comp_mask: u64,
    pub uar_mmap_offset: off_t,
    pub tirn: u32,
    pub tisn: u32,
    pub rqn: u32,
    pub sqn: u32,
    pub tir_icm_addr: u64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_qp__bindgen_ty_1 {
    pub buf: *mut ::core::ffi::c_void,
    pub wqe_cnt: u32,
    pub stride: u32,
}
impl Default for mlx5dv_qp__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_qp__bindgen_ty_2 {
    pub buf: *mut ::core::ffi::c_void,
    pub wqe_cnt: u32,
    pub stride: u32,
}
impl Default for mlx5dv_qp__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_qp__bindgen_ty_3 {
    pub reg: *mut ::core::ffi::c_void,
    pub size: u32,
}
impl Default for mlx5dv_qp__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_qp {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_cq {
    pub buf: *mut ::core::ffi::c_void,
    pub dbrec: *mut __be32,
    pub cqe_cnt: u32,
    pub cqe_size: u32,
    pub cq_uar: *mut ::core::ffi::c_void,
    pub cqn: u32,
    pub comp_mask: u64,
}
impl Default for mlx5dv_cq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_srq_comp_mask {
    pub const MLX5DV_SRQ_MASK_SRQN: mlx5dv_srq_comp_mask = mlx5dv_srq_comp_mask(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_srq_comp_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_srq {
    pub buf: *mut ::core::ffi::c_void,
    pub dbrec: *mut __be32,
    pub stride: u32,
    pub head: u32,
    pub tail: u32,
    pub comp_mask: u64,
    pub srqn: u32,
}
impl Default for mlx5dv_srq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_rwq {
    pub buf: *mut ::core::ffi::c_void,
    pub dbrec: *mut __be32,
    pub wqe_cnt: u32,
    pub stride: u32,
    pub comp_mask: u64,
}
impl Default for mlx5dv_rwq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_alloc_dm_attr {
    pub type_: mlx5_ib_uapi_dm_type,
    pub comp_mask: u64,
}
impl Default for mlx5dv_alloc_dm_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_dm_comp_mask {
    pub const MLX5DV_DM_MASK_REMOTE_VA: mlx5dv_dm_comp_mask = mlx5dv_dm_comp_mask(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dm_comp_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_dm {
    pub buf: *mut ::core::ffi::c_void,
    pub length: u64,
    pub comp_mask: u64,
    pub remote_va: u64,
}
impl Default for mlx5dv_dm {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_ah {
    pub av: *mut mlx5_wqe_av,
    pub comp_mask: u64,
}
impl Default for mlx5dv_ah {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_pd {
    pub pdn: u32,
    pub comp_mask: u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_devx {
    pub handle: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj {
    pub qp: mlx5dv_obj__bindgen_ty_1,
    pub cq: mlx5dv_obj__bindgen_ty_2,
    pub srq: mlx5dv_obj__bindgen_ty_3,
    pub rwq: mlx5dv_obj__bindgen_ty_4,
    pub dm: mlx5dv_obj__bindgen_ty_5,
    pub ah: mlx5dv_obj__bindgen_ty_6,
    pub pd: mlx5dv_obj__bindgen_ty_7,
    pub devx: mlx5dv_obj__bindgen_ty_8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_1 {
    pub in_: *mut ibv_qp,
    pub out: *mut mlx5dv_qp,
}
impl Default for mlx5dv_obj__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_2 {
    pub in_: *mut ibv_cq,
    pub out: *mut mlx5dv_cq,
}
impl Default for mlx5dv_obj__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_3 {
    pub in_: *mut ibv_srq,
    pub out: *mut mlx5dv_srq,
}
impl Default for mlx5dv_obj__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_4 {
    pub in_: *mut ibv_wq,
    pub out: *mut mlx5dv_rwq,
}
impl Default for mlx5dv_obj__bindgen_ty_4 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_5 {
    pub in_: *mut ibv_dm,
    pub out: *mut mlx5dv_dm,
}
impl Default for mlx5dv_obj__bindgen_ty_5 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_6 {
    pub in_: *mut ibv_ah,
    pub out: *mut mlx5dv_ah,
}
impl Default for mlx5dv_obj__bindgen_ty_6 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_7 {
    pub in_: *mut ibv_pd,
    pub out: *mut mlx5dv_pd,
}
impl Default for mlx5dv_obj__bindgen_ty_7 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_obj__bindgen_ty_8 {
    pub in_: *mut mlx5dv_devx_obj,
    pub out: *mut mlx5dv_devx,
}
impl Default for mlx5dv_obj__bindgen_ty_8 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_obj {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_obj_type {
    pub const MLX5DV_OBJ_QP: mlx5dv_obj_type = mlx5dv_obj_type(1);
    pub const MLX5DV_OBJ_CQ: mlx5dv_obj_type = mlx5dv_obj_type(2);
    pub const MLX5DV_OBJ_SRQ: mlx5dv_obj_type = mlx5dv_obj_type(4);
    pub const MLX5DV_OBJ_RWQ: mlx5dv_obj_type = mlx5dv_obj_type(8);
    pub const MLX5DV_OBJ_DM: mlx5dv_obj_type = mlx5dv_obj_type(16);
    pub const MLX5DV_OBJ_AH: mlx5dv_obj_type = mlx5dv_obj_type(32);
    pub const MLX5DV_OBJ_PD: mlx5dv_obj_type = mlx5dv_obj_type(64);
    pub const MLX5DV_OBJ_DEVX: mlx5dv_obj_type = mlx5dv_obj_type(128);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_obj_type(pub ::core::ffi::c_uint);
impl mlx5dv_wq_init_attr_mask {
    pub const MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ: mlx5dv_wq_init_attr_mask = mlx5dv_wq_init_attr_mask(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_wq_init_attr_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_striding_rq_init_attr {
    pub single_stride_log_num_of_bytes: u32,
    pub single_wqe_log_num_of_strides: u32,
    pub two_byte_shift_en: u8,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_wq_init_attr {
    pub comp_mask: u64,
    pub striding_rq_attrs: mlx5dv_striding_rq_init_attr,
}
pub const MLX5_OPCODE_NOP: _bindgen_ty_19 = 0;
pub const MLX5_OPCODE_SEND_INVAL: _bindgen_ty_19 = 1;
pub const MLX5_OPCODE_RDMA_WRITE: _bindgen_ty_19 = 8;
pub const MLX5_OPCODE_RDMA_WRITE_IMM: _bindgen_ty_19 = 9;
pub const MLX5_OPCODE_SEND: _bindgen_ty_19 = 10;
pub const MLX5_OPCODE_SEND_IMM: _bindgen_ty_19 = 11;
pub const MLX5_OPCODE_TSO: _bindgen_ty_19 = 14;
pub const MLX5_OPCODE_RDMA_READ: _bindgen_ty_19 = 16;
pub const MLX5_OPCODE_ATOMIC_CS: _bindgen_ty_19 = 17;
pub const MLX5_OPCODE_ATOMIC_FA: _bindgen_ty_19 = 18;
pub const MLX5_OPCODE_ATOMIC_MASKED_CS: _bindgen_ty_19 = 20;
pub const MLX5_OPCODE_ATOMIC_MASKED_FA: _bindgen_ty_19 = 21;
pub const MLX5_OPCODE_FMR: _bindgen_ty_19 = 25;
pub const MLX5_OPCODE_LOCAL_INVAL: _bindgen_ty_19 = 27;
pub const MLX5_OPCODE_CONFIG_CMD: _bindgen_ty_19 = 31;
pub const MLX5_OPCODE_SET_PSV: _bindgen_ty_19 = 32;
pub const MLX5_OPCODE_UMR: _bindgen_ty_19 = 37;
pub const MLX5_OPCODE_TAG_MATCHING: _bindgen_ty_19 = 40;
pub const MLX5_OPCODE_FLOW_TBL_ACCESS: _bindgen_ty_19 = 44;
pub const MLX5_OPCODE_MMO: _bindgen_ty_19 = 47;
pub type _bindgen_ty_19 = ::core::ffi::c_uint;
pub const MLX5_INLINE_SCATTER_32: _bindgen_ty_20 = 4;
pub const MLX5_INLINE_SCATTER_64: _bindgen_ty_20 = 8;
pub type _bindgen_ty_20 = ::core::ffi::c_uint;
pub const MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR: _bindgen_ty_21 = 1;
pub const MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR: _bindgen_ty_21 = 2;
pub const MLX5_CQE_SYNDROME_LOCAL_PROT_ERR: _bindgen_ty_21 = 4;
pub const MLX5_CQE_SYNDROME_WR_FLUSH_ERR: _bindgen_ty_21 = 5;
pub const MLX5_CQE_SYNDROME_MW_BIND_ERR: _bindgen_ty_21 = 6;
pub const MLX5_CQE_SYNDROME_BAD_RESP_ERR: _bindgen_ty_21 = 16;
pub const MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR: _bindgen_ty_21 = 17;
pub const MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR: _bindgen_ty_21 = 18;
pub const MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR: _bindgen_ty_21 = 19;
pub const MLX5_CQE_SYNDROME_REMOTE_OP_ERR: _bindgen_ty_21 = 20;
pub const MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR: _bindgen_ty_21 = 21;
pub const MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR: _bindgen_ty_21 = 22;
pub const MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR: _bindgen_ty_21 = 34;
pub type _bindgen_ty_21 = ::core::ffi::c_uint;
pub const MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT: _bindgen_ty_22 = 147;
pub type _bindgen_ty_22 = ::core::ffi::c_uint;
pub const MLX5_CQE_L2_OK: _bindgen_ty_23 = 1;
pub const MLX5_CQE_L3_OK: _bindgen_ty_23 = 2;
pub const MLX5_CQE_L4_OK: _bindgen_ty_23 = 4;
pub type _bindgen_ty_23 = ::core::ffi::c_uint;
pub const MLX5_CQE_L3_HDR_TYPE_NONE: _bindgen_ty_24 = 0;
pub const MLX5_CQE_L3_HDR_TYPE_IPV6: _bindgen_ty_24 = 1;
pub const MLX5_CQE_L3_HDR_TYPE_IPV4: _bindgen_ty_24 = 2;
pub type _bindgen_ty_24 = ::core::ffi::c_uint;
pub const MLX5_CQE_OWNER_MASK: _bindgen_ty_25 = 1;
pub const MLX5_CQE_REQ: _bindgen_ty_25 = 0;
pub const MLX5_CQE_RESP_WR_IMM: _bindgen_ty_25 = 1;
pub const MLX5_CQE_RESP_SEND: _bindgen_ty_25 = 2;
pub const MLX5_CQE_RESP_SEND_IMM: _bindgen_ty_25 = 3;
pub const MLX5_CQE_RESP_SEND_INV: _bindgen_ty_25 = 4;
pub const MLX5_CQE_RESIZE_CQ: _bindgen_ty_25 = 5;
pub const MLX5_CQE_NO_PACKET: _bindgen_ty_25 = 6;
pub const MLX5_CQE_SIG_ERR: _bindgen_ty_25 = 12;
pub const MLX5_CQE_REQ_ERR: _bindgen_ty_25 = 13;
pub const MLX5_CQE_RESP_ERR: _bindgen_ty_25 = 14;
pub const MLX5_CQE_INVALID: _bindgen_ty_25 = 15;
pub type _bindgen_ty_25 = ::core::ffi::c_uint;
pub const MLX5_CQ_DOORBELL: _bindgen_ty_26 = 32;
pub type _bindgen_ty_26 = ::core::ffi::c_uint;
pub const MLX5_CQ_DB_REQ_NOT_SOL: _bindgen_ty_27 = 16777216;
pub const MLX5_CQ_DB_REQ_NOT: _bindgen_ty_27 = 0;
pub type _bindgen_ty_27 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_err_cqe {
    pub rsvd0: [u8; 32usize],
    pub srqn: u32,
    pub rsvd1: [u8; 18usize],
    pub vendor_err_synd: u8,
    pub syndrome: u8,
    pub s_wqe_opcode_qpn: u32,
    pub wqe_counter: u16,
    pub signature: u8,
    pub op_own: u8,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_tm_cqe {
    pub success: __be32,
    pub hw_phase_cnt: __be16,
    pub rsvd0: [u8; 12usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5_cqe64 {
    pub __bindgen_anon_1: mlx5_cqe64__bindgen_ty_1,
    pub srqn_uidx: __be32,
    pub imm_inval_pkey: __be32,
    pub app: u8,
    pub app_op: u8,
    pub app_info: __be16,
    pub byte_cnt: __be32,
    pub timestamp: __be64,
    pub sop_drop_qpn: __be32,
    pub wqe_counter: __be16,
    pub signature: u8,
    pub op_own: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5_cqe64__bindgen_ty_1 {
    pub __bindgen_anon_1: mlx5_cqe64__bindgen_ty_1__bindgen_ty_1,
    pub tm_cqe: mlx5_tm_cqe,
    pub tmh: ibv_tmh,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_cqe64__bindgen_ty_1__bindgen_ty_1 {
    pub rsvd0: [u8; 2usize],
    pub wqe_id: __be16,
    pub rsvd4: [u8; 13usize],
    pub ml_path: u8,
    pub rsvd20: [u8; 4usize],
    pub slid: __be16,
    pub flags_rqpn: __be32,
    pub hds_ip_ext: u8,
    pub l4_hdr_type_etc: u8,
    pub vlan_info: __be16,
}
impl Default for mlx5_cqe64__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5_cqe64 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const MLX5_TMC_SUCCESS: _bindgen_ty_28 = 2147483648;
pub type _bindgen_ty_28 = ::core::ffi::c_uint;
impl mlx5dv_cqe_comp_res_format {
    pub const MLX5DV_CQE_RES_FORMAT_HASH: mlx5dv_cqe_comp_res_format = mlx5dv_cqe_comp_res_format(
        1,
    );
    pub const MLX5DV_CQE_RES_FORMAT_CSUM: mlx5dv_cqe_comp_res_format = mlx5dv_cqe_comp_res_format(
        2,
    );
    pub const MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX: mlx5dv_cqe_comp_res_format = mlx5dv_cqe_comp_res_format(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_cqe_comp_res_format(pub ::core::ffi::c_uint);
impl mlx5dv_sw_parsing_offloads {
    pub const MLX5DV_SW_PARSING: mlx5dv_sw_parsing_offloads = mlx5dv_sw_parsing_offloads(
        1,
    );
    pub const MLX5DV_SW_PARSING_CSUM: mlx5dv_sw_parsing_offloads = mlx5dv_sw_parsing_offloads(
        2,
    );
    pub const MLX5DV_SW_PARSING_LSO: mlx5dv_sw_parsing_offloads = mlx5dv_sw_parsing_offloads(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sw_parsing_offloads(pub ::core::ffi::c_uint);
pub const MLX5_INVALID_LKEY: _bindgen_ty_29 = 256;
pub type _bindgen_ty_29 = ::core::ffi::c_uint;
pub const MLX5_EXTENDED_UD_AV: _bindgen_ty_30 = 2147483648;
pub type _bindgen_ty_30 = ::core::ffi::c_uint;
pub const MLX5_WQE_CTRL_CQ_UPDATE: _bindgen_ty_31 = 8;
pub const MLX5_WQE_CTRL_SOLICITED: _bindgen_ty_31 = 2;
pub const MLX5_WQE_CTRL_FENCE: _bindgen_ty_31 = 128;
pub const MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE: _bindgen_ty_31 = 32;
pub type _bindgen_ty_31 = ::core::ffi::c_uint;
pub const MLX5_SEND_WQE_BB: _bindgen_ty_32 = 64;
pub const MLX5_SEND_WQE_SHIFT: _bindgen_ty_32 = 6;
pub type _bindgen_ty_32 = ::core::ffi::c_uint;
pub const MLX5_INLINE_SEG: _bindgen_ty_33 = 2147483648;
pub type _bindgen_ty_33 = ::core::ffi::c_uint;
pub const MLX5_ETH_WQE_L3_CSUM: _bindgen_ty_34 = 64;
pub const MLX5_ETH_WQE_L4_CSUM: _bindgen_ty_34 = 128;
pub type _bindgen_ty_34 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_srq_next_seg {
    pub rsvd0: [u8; 2usize],
    pub next_wqe_index: __be16,
    pub signature: u8,
    pub rsvd1: [u8; 11usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_data_seg {
    pub byte_count: __be32,
    pub lkey: __be32,
    pub addr: __be64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_mprq_wqe {
    pub nseg: mlx5_wqe_srq_next_seg,
    pub dseg: mlx5_wqe_data_seg,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5_wqe_av {
    pub key: mlx5_wqe_av__bindgen_ty_1,
    pub dqp_dct: __be32,
    pub stat_rate_sl: u8,
    pub fl_mlid: u8,
    pub rlid: __be16,
    pub reserved0: [u8; 4usize],
    pub rmac: [u8; 6usize],
    pub tclass: u8,
    pub hop_limit: u8,
    pub grh_gid_fl: __be32,
    pub rgid: [u8; 16usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5_wqe_av__bindgen_ty_1 {
    pub qkey: mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1,
    pub dc_key: __be64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_av__bindgen_ty_1__bindgen_ty_1 {
    pub qkey: __be32,
    pub reserved: __be32,
}
impl Default for mlx5_wqe_av__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5_wqe_av {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5_wqe_datagram_seg {
    pub av: mlx5_wqe_av,
}
impl Default for mlx5_wqe_datagram_seg {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_raddr_seg {
    pub raddr: __be64,
    pub rkey: __be32,
    pub reserved: __be32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_atomic_seg {
    pub swap_add: __be64,
    pub compare: __be64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_inl_data_seg {
    pub byte_count: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_eth_seg {
    pub rsvd0: __be32,
    pub cs_flags: u8,
    pub rsvd1: u8,
    pub mss: __be16,
    pub rsvd2: __be32,
    pub inline_hdr_sz: __be16,
    pub inline_hdr_start: [u8; 2usize],
    pub inline_hdr: [u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_tm_seg {
    pub opcode: u8,
    pub flags: u8,
    pub index: __be16,
    pub rsvd0: [u8; 2usize],
    pub sw_cnt: __be16,
    pub rsvd1: [u8; 8usize],
    pub append_tag: __be64,
    pub append_mask: __be64,
}
pub const MLX5_WQE_UMR_CTRL_FLAG_INLINE: _bindgen_ty_35 = 128;
pub const MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE: _bindgen_ty_35 = 32;
pub const MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET: _bindgen_ty_35 = 16;
pub const MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN: _bindgen_ty_35 = 8;
pub type _bindgen_ty_35 = ::core::ffi::c_uint;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN: _bindgen_ty_36 = 1;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR: _bindgen_ty_36 = 64;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_SIG_ERR: _bindgen_ty_36 = 512;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_BSF_ENABLE: _bindgen_ty_36 = 4096;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY: _bindgen_ty_36 = 8192;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN: _bindgen_ty_36 = 16384;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE: _bindgen_ty_36 = 262144;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ: _bindgen_ty_36 = 524288;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE: _bindgen_ty_36 = 1048576;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC: _bindgen_ty_36 = 2097152;
pub const MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE: _bindgen_ty_36 = 536870912;
pub type _bindgen_ty_36 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5_wqe_umr_ctrl_seg {
    pub flags: u8,
    pub rsvd0: [u8; 3usize],
    pub klm_octowords: __be16,
    pub __bindgen_anon_1: mlx5_wqe_umr_ctrl_seg__bindgen_ty_1,
    pub mkey_mask: __be64,
    pub rsvd1: [u8; 32usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5_wqe_umr_ctrl_seg__bindgen_ty_1 {
    pub translation_offset: __be16,
    pub bsf_octowords: __be16,
}
impl Default for mlx5_wqe_umr_ctrl_seg__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5_wqe_umr_ctrl_seg {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_umr_klm_seg {
    pub byte_count: __be32,
    pub mkey: __be32,
    pub address: __be64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5_wqe_umr_inline_seg {
    pub klm: mlx5_wqe_umr_klm_seg,
}
impl Default for mlx5_wqe_umr_inline_seg {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5_wqe_umr_repeat_ent_seg {
    pub stride: __be16,
    pub byte_count: __be16,
    pub memkey: __be32,
    pub va: __be64,
}
#[repr(C)]
#[derive(Debug, Default)]
pub struct mlx5_wqe_umr_repeat_block_seg {
    pub byte_count: __be32,
    pub op: __be32,
    pub repeat_count: __be32,
    pub reserved: __be16,
    pub num_ent: __be16,
    pub entries: __IncompleteArrayField<mlx5_wqe_umr_repeat_ent_seg>,
}
pub const MLX5_WQE_MKEY_CONTEXT_FREE: _bindgen_ty_37 = 64;
pub type _bindgen_ty_37 = ::core::ffi::c_uint;
pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_ATOMIC: _bindgen_ty_38 = 64;
pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE: _bindgen_ty_38 = 32;
pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_READ: _bindgen_ty_38 = 16;
pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE: _bindgen_ty_38 = 8;
pub const MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_READ: _bindgen_ty_38 = 4;
pub type _bindgen_ty_38 = ::core::ffi::c_uint;
#[repr(C)]
pub struct mlx5_wqe_mkey_context_seg {
    pub free: u8,
    pub reserved1: u8,
    pub access_flags: u8,
    pub sf: u8,
    pub qpn_mkey: __be32,
    pub reserved2: __be32,
    pub flags_pd: __be32,
    pub start_addr: __be64,
    pub len: __be64,
    pub bsf_octword_size: __be32,
    pub reserved3: [__be32; 4usize],
    pub translations_octword_size: __be32,
    pub reserved4: [u8; 3usize],
    pub log_page_size: u8,
    pub reserved: __be32,
    pub inseg: __IncompleteArrayField<mlx5_wqe_umr_inline_seg>,
}
impl Default for mlx5_wqe_mkey_context_seg {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_set_ctx_attr_type {
    pub const MLX5DV_CTX_ATTR_BUF_ALLOCATORS: mlx5dv_set_ctx_attr_type = mlx5dv_set_ctx_attr_type(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_set_ctx_attr_type(pub ::core::ffi::c_uint);
pub const MLX5_MMAP_GET_REGULAR_PAGES_CMD: _bindgen_ty_39 = 0;
pub const MLX5_MMAP_GET_NC_PAGES_CMD: _bindgen_ty_39 = 3;
pub type _bindgen_ty_39 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_ctx_allocators {
    pub alloc: ::core::option::Option<
        unsafe extern "C" fn(
            size: usize,
            priv_data: *mut ::core::ffi::c_void,
        ) -> *mut ::core::ffi::c_void,
    >,
    pub free: ::core::option::Option<
        unsafe extern "C" fn(
            ptr: *mut ::core::ffi::c_void,
            priv_data: *mut ::core::ffi::c_void,
        ),
    >,
    pub data: *mut ::core::ffi::c_void,
}
impl Default for mlx5dv_ctx_allocators {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_clock_info {
    pub nsec: u64,
    pub last_cycles: u64,
    pub frac: u64,
    pub mult: u32,
    pub shift: u32,
    pub mask: u64,
}
impl mlx5dv_context_attr_flags {
    pub const MLX5DV_CONTEXT_FLAGS_DEVX: mlx5dv_context_attr_flags = mlx5dv_context_attr_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_context_attr_flags(pub ::core::ffi::c_uint);
impl mlx5dv_context_attr_comp_mask {
    pub const MLX5DV_CONTEXT_ATTR_MASK_FD_ARRAY: mlx5dv_context_attr_comp_mask = mlx5dv_context_attr_comp_mask(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_context_attr_comp_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_context_attr {
    pub flags: u32,
    pub comp_mask: u64,
    pub fds: *mut ibv_fd_arr,
}
impl Default for mlx5dv_context_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_vfio_context_attr_flags {
    pub const MLX5DV_VFIO_CTX_FLAGS_INIT_LINK_DOWN: mlx5dv_vfio_context_attr_flags = mlx5dv_vfio_context_attr_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_vfio_context_attr_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_vfio_context_attr {
    pub pci_name: *const ::core::ffi::c_char,
    pub flags: u32,
    pub comp_mask: u64,
}
impl Default for mlx5dv_vfio_context_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_devx_obj {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_devx_umem {
    pub umem_id: u32,
}
impl mlx5dv_devx_umem_in_mask {
    pub const MLX5DV_UMEM_MASK_DMABUF: mlx5dv_devx_umem_in_mask = mlx5dv_devx_umem_in_mask(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_devx_umem_in_mask(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_devx_umem_in {
    pub addr: *mut ::core::ffi::c_void,
    pub size: usize,
    pub access: u32,
    pub pgsz_bitmap: u64,
    pub comp_mask: u64,
    pub dmabuf_fd: ::core::ffi::c_int,
}
impl Default for mlx5dv_devx_umem_in {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_devx_uar {
    pub reg_addr: *mut ::core::ffi::c_void,
    pub base_addr: *mut ::core::ffi::c_void,
    pub page_id: u32,
    pub mmap_off: off_t,
    pub comp_mask: u64,
}
impl Default for mlx5dv_devx_uar {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_var {
    pub page_id: u32,
    pub length: u32,
    pub mmap_off: off_t,
    pub comp_mask: u64,
}
impl Default for mlx5dv_var {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_export_sizes {
    pub var_attrs_size: u32,
    pub devx_umem_attrs_size: u32,
    pub devx_obj_attrs_size: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_devx_cmd_comp {
    pub fd: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_devx_event_channel {
    pub fd: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_dr_domain {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_dr_table {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_dr_matcher {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_dr_rule {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_dr_action {
    _unused: [u8; 0],
}
impl mlx5dv_dr_domain_type {
    pub const MLX5DV_DR_DOMAIN_TYPE_NIC_RX: mlx5dv_dr_domain_type = mlx5dv_dr_domain_type(
        0,
    );
    pub const MLX5DV_DR_DOMAIN_TYPE_NIC_TX: mlx5dv_dr_domain_type = mlx5dv_dr_domain_type(
        1,
    );
    pub const MLX5DV_DR_DOMAIN_TYPE_FDB: mlx5dv_dr_domain_type = mlx5dv_dr_domain_type(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_domain_type(pub ::core::ffi::c_uint);
impl mlx5dv_dr_domain_sync_flags {
    pub const MLX5DV_DR_DOMAIN_SYNC_FLAGS_SW: mlx5dv_dr_domain_sync_flags = mlx5dv_dr_domain_sync_flags(
        1,
    );
    pub const MLX5DV_DR_DOMAIN_SYNC_FLAGS_HW: mlx5dv_dr_domain_sync_flags = mlx5dv_dr_domain_sync_flags(
        2,
    );
    pub const MLX5DV_DR_DOMAIN_SYNC_FLAGS_MEM: mlx5dv_dr_domain_sync_flags = mlx5dv_dr_domain_sync_flags(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_domain_sync_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_dr_flow_meter_attr {
    pub next_table: *mut mlx5dv_dr_table,
    pub active: u8,
    pub reg_c_index: u8,
    pub flow_meter_parameter_sz: usize,
    pub flow_meter_parameter: *mut ::core::ffi::c_void,
}
impl Default for mlx5dv_dr_flow_meter_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_dr_flow_sampler_attr {
    pub sample_ratio: u32,
    pub default_next_table: *mut mlx5dv_dr_table,
    pub num_sample_actions: u32,
    pub sample_actions: *mut *mut mlx5dv_dr_action,
    pub action: __be64,
}
impl Default for mlx5dv_dr_flow_sampler_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_dr_matcher_layout_flags {
    pub const MLX5DV_DR_MATCHER_LAYOUT_RESIZABLE: mlx5dv_dr_matcher_layout_flags = mlx5dv_dr_matcher_layout_flags(
        1,
    );
    pub const MLX5DV_DR_MATCHER_LAYOUT_NUM_RULE: mlx5dv_dr_matcher_layout_flags = mlx5dv_dr_matcher_layout_flags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_matcher_layout_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_dr_matcher_layout {
    pub flags: u32,
    pub log_num_of_rules_hint: u32,
}
impl mlx5dv_dr_action_flags {
    pub const MLX5DV_DR_ACTION_FLAGS_ROOT_LEVEL: mlx5dv_dr_action_flags = mlx5dv_dr_action_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_action_flags(pub ::core::ffi::c_uint);
impl mlx5dv_dr_action_dest_type {
    pub const MLX5DV_DR_ACTION_DEST: mlx5dv_dr_action_dest_type = mlx5dv_dr_action_dest_type(
        0,
    );
    pub const MLX5DV_DR_ACTION_DEST_REFORMAT: mlx5dv_dr_action_dest_type = mlx5dv_dr_action_dest_type(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_action_dest_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_dr_action_dest_reformat {
    pub reformat: *mut mlx5dv_dr_action,
    pub dest: *mut mlx5dv_dr_action,
}
impl Default for mlx5dv_dr_action_dest_reformat {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct mlx5dv_dr_action_dest_attr {
    pub type_: mlx5dv_dr_action_dest_type,
    pub __bindgen_anon_1: mlx5dv_dr_action_dest_attr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union mlx5dv_dr_action_dest_attr__bindgen_ty_1 {
    pub dest: *mut mlx5dv_dr_action,
    pub dest_reformat: *mut mlx5dv_dr_action_dest_reformat,
}
impl Default for mlx5dv_dr_action_dest_attr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for mlx5dv_dr_action_dest_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl mlx5dv_dr_action_aso_first_hit_flags {
    pub const MLX5DV_DR_ACTION_FLAGS_ASO_FIRST_HIT_SET: mlx5dv_dr_action_aso_first_hit_flags = mlx5dv_dr_action_aso_first_hit_flags(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_action_aso_first_hit_flags(pub ::core::ffi::c_uint);
impl mlx5dv_dr_action_aso_flow_meter_flags {
    pub const MLX5DV_DR_ACTION_FLAGS_ASO_FLOW_METER_RED: mlx5dv_dr_action_aso_flow_meter_flags = mlx5dv_dr_action_aso_flow_meter_flags(
        1,
    );
    pub const MLX5DV_DR_ACTION_FLAGS_ASO_FLOW_METER_YELLOW: mlx5dv_dr_action_aso_flow_meter_flags = mlx5dv_dr_action_aso_flow_meter_flags(
        2,
    );
    pub const MLX5DV_DR_ACTION_FLAGS_ASO_FLOW_METER_GREEN: mlx5dv_dr_action_aso_flow_meter_flags = mlx5dv_dr_action_aso_flow_meter_flags(
        4,
    );
    pub const MLX5DV_DR_ACTION_FLAGS_ASO_FLOW_METER_UNDEFINED: mlx5dv_dr_action_aso_flow_meter_flags = mlx5dv_dr_action_aso_flow_meter_flags(
        8,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_action_aso_flow_meter_flags(pub ::core::ffi::c_uint);
impl mlx5dv_dr_action_aso_ct_flags {
    pub const MLX5DV_DR_ACTION_FLAGS_ASO_CT_DIRECTION_INITIATOR: mlx5dv_dr_action_aso_ct_flags = mlx5dv_dr_action_aso_ct_flags(
        1,
    );
    pub const MLX5DV_DR_ACTION_FLAGS_ASO_CT_DIRECTION_RESPONDER: mlx5dv_dr_action_aso_ct_flags = mlx5dv_dr_action_aso_ct_flags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_dr_action_aso_ct_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_pp {
    pub index: u16,
}
impl mlx5dv_sched_elem_attr_flags {
    pub const MLX5DV_SCHED_ELEM_ATTR_FLAGS_BW_SHARE: mlx5dv_sched_elem_attr_flags = mlx5dv_sched_elem_attr_flags(
        1,
    );
    pub const MLX5DV_SCHED_ELEM_ATTR_FLAGS_MAX_AVG_BW: mlx5dv_sched_elem_attr_flags = mlx5dv_sched_elem_attr_flags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct mlx5dv_sched_elem_attr_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_sched_attr {
    pub parent: *mut mlx5dv_sched_node,
    pub flags: u32,
    pub bw_share: u32,
    pub max_avg_bw: u32,
    pub comp_mask: u64,
}
impl Default for mlx5dv_sched_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_sched_node {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct mlx5dv_sched_leaf {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct mlx5dv_devx_msi_vector {
    pub vector: ::core::ffi::c_int,
    pub fd: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mlx5dv_devx_eq {
    pub vaddr: *mut ::core::ffi::c_void,
}
impl Default for mlx5dv_devx_eq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: _bindgen_ty_40 = 1;
pub const EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: _bindgen_ty_40 = 2;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: _bindgen_ty_40 = 4;
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: _bindgen_ty_40 = 8;
pub const EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV: _bindgen_ty_40 = 16;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF: _bindgen_ty_40 = 32;
pub const EFADV_DEVICE_ATTR_CAPS_COMP_CNTR: _bindgen_ty_40 = 64;
pub type _bindgen_ty_40 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6usize],
}
pub const EFADV_SQ_DEPTH_ATTR_INLINE_WRITE: _bindgen_ty_41 = 1;
pub type _bindgen_ty_41 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_sq_depth_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub max_send_sge: u32,
    pub max_rdma_sge: u32,
    pub max_inline_data: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_rq_depth_attr {
    pub comp_mask: u64,
    pub max_recv_sge: u32,
}
pub const EFADV_QP_DRIVER_TYPE_SRD: _bindgen_ty_42 = 0;
pub type _bindgen_ty_42 = ::core::ffi::c_uint;
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: _bindgen_ty_43 = 1;
pub const EFADV_QP_FLAGS_INLINE_WRITE: _bindgen_ty_43 = 2;
pub type _bindgen_ty_43 = ::core::ffi::c_uint;
pub const EFADV_WR_EX_WITH_PROCESSING_HINTS: _bindgen_ty_44 = 1;
pub type _bindgen_ty_44 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
    pub wr_flags: u64,
}
pub const EFADV_WQ_CAPS_64_BIT_REQ_ID: _bindgen_ty_45 = 1;
pub type _bindgen_ty_45 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct efadv_wq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
    pub max_batch: u32,
    pub caps: u16,
    pub reserved: [u8; 2usize],
}
impl Default for efadv_wq_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl efadv_wr_processing_hint {
    pub const EFADV_WR_PROCESSING_HINT_BURST_PPS_SENSITIVE: efadv_wr_processing_hint = efadv_wr_processing_hint(
        1,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct efadv_wr_processing_hint(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_qp {
    pub comp_mask: u64,
    pub wr_set_processing_hints: ::core::option::Option<
        unsafe extern "C" fn(efadv_qp: *mut efadv_qp, hints: u32),
    >,
}
pub const EFADV_WC_EX_WITH_SGID: _bindgen_ty_46 = 1;
pub const EFADV_WC_EX_WITH_IS_UNSOLICITED: _bindgen_ty_46 = 2;
pub type _bindgen_ty_46 = ::core::ffi::c_uint;
pub const EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF: _bindgen_ty_47 = 1;
pub type _bindgen_ty_47 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
    pub flags: u64,
    pub ext_mem_dmabuf: efadv_cq_init_attr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct efadv_cq_init_attr__bindgen_ty_1 {
    pub buffer: *mut u8,
    pub length: u64,
    pub offset: u64,
    pub fd: i32,
    pub reserved: [u8; 4usize],
}
impl Default for efadv_cq_init_attr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for efadv_cq_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct efadv_cq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
}
impl Default for efadv_cq_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_cq {
    pub comp_mask: u64,
    pub wc_read_sgid: ::core::option::Option<
        unsafe extern "C" fn(
            efadv_cq: *mut efadv_cq,
            sgid: *mut ibv_gid,
        ) -> ::core::ffi::c_int,
    >,
    pub wc_is_unsolicited: ::core::option::Option<
        unsafe extern "C" fn(efadv_cq: *mut efadv_cq) -> bool,
    >,
}
pub const EFADV_MEMORY_LOCATION_VA: _bindgen_ty_48 = 0;
pub const EFADV_MEMORY_LOCATION_DMABUF: _bindgen_ty_48 = 1;
pub type _bindgen_ty_48 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct efadv_memory_location {
    pub ptr: *mut u8,
    pub dmabuf: efadv_memory_location__bindgen_ty_1,
    pub type_: u8,
    pub reserved: [u8; 7usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_memory_location__bindgen_ty_1 {
    pub offset: u64,
    pub fd: i32,
    pub reserved: u32,
}
impl Default for efadv_memory_location {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM: _bindgen_ty_49 = 1;
pub const EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM: _bindgen_ty_49 = 2;
pub type _bindgen_ty_49 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct efadv_comp_cntr_init_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub reserved: u32,
    pub comp_cntr_ext_mem: efadv_memory_location,
    pub err_cntr_ext_mem: efadv_memory_location,
}
impl Default for efadv_comp_cntr_init_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const EFADV_MR_ATTR_VALIDITY_RECV_IC_ID: _bindgen_ty_50 = 1;
pub const EFADV_MR_ATTR_VALIDITY_RDMA_READ_IC_ID: _bindgen_ty_50 = 2;
pub const EFADV_MR_ATTR_VALIDITY_RDMA_RECV_IC_ID: _bindgen_ty_50 = 4;
pub type _bindgen_ty_50 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct efadv_mr_attr {
    pub comp_mask: u64,
    pub ic_id_validity: u16,
    pub recv_ic_id: u16,
    pub rdma_read_ic_id: u16,
    pub rdma_recv_ic_id: u16,
}
pub type in_addr_t = u32;
pub type in_port_t = u16;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: __be16,
    pub slid: __be16,
    pub raw_traffic: ::core::ffi::c_int,
    pub flow_label: __be32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: ::core::ffi::c_int,
    pub numb_path: u8,
    pub pkey: __be16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
impl Default for ibv_sa_path_rec {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_sa_mcmember_rec {
    pub mgid: ibv_gid,
    pub port_gid: ibv_gid,
    pub qkey: u32,
    pub mlid: u16,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub traffic_class: u8,
    pub pkey: u16,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub sl: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub scope: u8,
    pub join_state: u8,
    pub proxy_join: ::core::ffi::c_int,
}
impl Default for ibv_sa_mcmember_rec {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_sa_service_rec {
    pub id: u64,
    pub gid: ibv_gid,
    pub pkey: u16,
    pub lease: u32,
    pub key: [u8; 16usize],
    pub name: [u8; 64usize],
    pub data8: [u8; 16usize],
    pub data16: [u16; 8usize],
    pub data32: [u32; 4usize],
    pub data64: [u64; 2usize],
}
impl Default for ibv_sa_service_rec {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_path_record {
    pub service_id: __be64,
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: __be16,
    pub slid: __be16,
    pub flowlabel_hoplimit: __be32,
    pub tclass: u8,
    pub reversible_numpath: u8,
    pub pkey: __be16,
    pub qosclass_sl: __be16,
    pub mtu: u8,
    pub rate: u8,
    pub packetlifetime: u8,
    pub preference: u8,
    pub reserved: [u8; 6usize],
}
impl Default for ibv_path_record {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_path_data {
    pub flags: u32,
    pub reserved: u32,
    pub path: ibv_path_record,
}
impl Default for ibv_path_data {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl rdma_cm_event_type {
    pub const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = rdma_cm_event_type(0);
    pub const RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = rdma_cm_event_type(1);
    pub const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = rdma_cm_event_type(2);
    pub const RDMA_CM_EVENT_ROUTE_ERROR: rdma_cm_event_type = rdma_cm_event_type(3);
    pub const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = rdma_cm_event_type(4);
    pub const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = rdma_cm_event_type(5);
    pub const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = rdma_cm_event_type(6);
    pub const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = rdma_cm_event_type(7);
    pub const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = rdma_cm_event_type(8);
    pub const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = rdma_cm_event_type(9);
    pub const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = rdma_cm_event_type(10);
    pub const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = rdma_cm_event_type(11);
    pub const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = rdma_cm_event_type(12);
    pub const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = rdma_cm_event_type(13);
    pub const RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = rdma_cm_event_type(14);
    pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = rdma_cm_event_type(15);
    pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: rdma_cm_event_type = rdma_cm_event_type(
        16,
    );
    pub const RDMA_CM_EVENT_ADDRINFO_ERROR: rdma_cm_event_type = rdma_cm_event_type(17);
    pub const RDMA_CM_EVENT_USER: rdma_cm_event_type = rdma_cm_event_type(18);
    pub const RDMA_CM_EVENT_INTERNAL: rdma_cm_event_type = rdma_cm_event_type(19);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct rdma_cm_event_type(pub ::core::ffi::c_uint);
impl rdma_port_space {
    pub const RDMA_PS_IPOIB: rdma_port_space = rdma_port_space(2);
    pub const RDMA_PS_TCP: rdma_port_space = rdma_port_space(262);
    pub const RDMA_PS_UDP: rdma_port_space = rdma_port_space(273);
    pub const RDMA_PS_IB: rdma_port_space = rdma_port_space(319);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct rdma_port_space(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: __be16,
}
impl Default for rdma_ib_addr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_addr {
    pub __bindgen_anon_1: rdma_addr__bindgen_ty_1,
    pub __bindgen_anon_2: rdma_addr__bindgen_ty_2,
    pub addr: rdma_addr__bindgen_ty_3,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_addr__bindgen_ty_1 {
    pub src_addr: sockaddr,
    pub src_sin: sockaddr_in,
    pub src_sin6: sockaddr_in6,
    pub src_storage: sockaddr_storage,
}
impl Default for rdma_addr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_addr__bindgen_ty_2 {
    pub dst_addr: sockaddr,
    pub dst_sin: sockaddr_in,
    pub dst_sin6: sockaddr_in6,
    pub dst_storage: sockaddr_storage,
}
impl Default for rdma_addr__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_addr__bindgen_ty_3 {
    pub ibaddr: rdma_ib_addr,
}
impl Default for rdma_addr__bindgen_ty_3 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for rdma_addr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: ::core::ffi::c_int,
}
impl Default for rdma_route {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct rdma_event_channel {
    pub fd: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut ::core::ffi::c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}
impl Default for rdma_cm_id {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const RDMA_MAX_RESP_RES: _bindgen_ty_57 = 255;
pub const RDMA_MAX_INIT_DEPTH: _bindgen_ty_57 = 255;
pub type _bindgen_ty_57 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct rdma_conn_param {
    pub private_data: *const ::core::ffi::c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
impl Default for rdma_conn_param {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_ud_param {
    pub private_data: *const ::core::ffi::c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
impl Default for rdma_ud_param {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: ::core::ffi::c_int,
    pub param: rdma_cm_event__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union rdma_cm_event__bindgen_ty_1 {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}
impl Default for rdma_cm_event__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for rdma_cm_event {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct rdma_addrinfo {
    pub ai_flags: ::core::ffi::c_int,
    pub ai_family: ::core::ffi::c_int,
    pub ai_qp_type: ::core::ffi::c_int,
    pub ai_port_space: ::core::ffi::c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut ::core::ffi::c_char,
    pub ai_dst_canonname: *mut ::core::ffi::c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut ::core::ffi::c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut ::core::ffi::c_void,
    pub ai_next: *mut rdma_addrinfo,
}
impl Default for rdma_addrinfo {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl rdma_cm_join_mc_attr_mask {
    pub const RDMA_CM_JOIN_MC_ATTR_ADDRESS: rdma_cm_join_mc_attr_mask = rdma_cm_join_mc_attr_mask(
        1,
    );
    pub const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: rdma_cm_join_mc_attr_mask = rdma_cm_join_mc_attr_mask(
        2,
    );
    pub const RDMA_CM_JOIN_MC_ATTR_RESERVED: rdma_cm_join_mc_attr_mask = rdma_cm_join_mc_attr_mask(
        4,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct rdma_cm_join_mc_attr_mask(pub ::core::ffi::c_uint);
impl rdma_cm_mc_join_flags {
    pub const RDMA_MC_JOIN_FLAG_FULLMEMBER: rdma_cm_mc_join_flags = rdma_cm_mc_join_flags(
        0,
    );
    pub const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: rdma_cm_mc_join_flags = rdma_cm_mc_join_flags(
        1,
    );
    pub const RDMA_MC_JOIN_FLAG_RESERVED: rdma_cm_mc_join_flags = rdma_cm_mc_join_flags(
        2,
    );
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct rdma_cm_mc_join_flags(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}
impl Default for rdma_cm_join_mc_attr_ex {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const RDMA_OPTION_ID: _bindgen_ty_58 = 0;
pub const RDMA_OPTION_IB: _bindgen_ty_58 = 1;
pub type _bindgen_ty_58 = ::core::ffi::c_uint;
pub const RDMA_OPTION_ID_TOS: _bindgen_ty_59 = 0;
pub const RDMA_OPTION_ID_REUSEADDR: _bindgen_ty_59 = 1;
pub const RDMA_OPTION_ID_AFONLY: _bindgen_ty_59 = 2;
pub const RDMA_OPTION_ID_ACK_TIMEOUT: _bindgen_ty_59 = 3;
pub type _bindgen_ty_59 = ::core::ffi::c_uint;
pub const RDMA_OPTION_IB_PATH: _bindgen_ty_60 = 1;
pub type _bindgen_ty_60 = ::core::ffi::c_uint;
pub const RDMA_SQSIZE: _bindgen_ty_62 = 0;
pub const RDMA_RQSIZE: _bindgen_ty_62 = 1;
pub const RDMA_INLINE: _bindgen_ty_62 = 2;
pub const RDMA_IOMAPSIZE: _bindgen_ty_62 = 3;
pub const RDMA_ROUTE: _bindgen_ty_62 = 4;
pub type _bindgen_ty_62 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct verbs_ex_private {
    pub _address: u8,
}
pub type ibv_flow_action_esp_keymat = ib_uverbs_flow_action_esp_keymat;
pub const IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM: ib_uverbs_flow_action_esp_keymat = ib_uverbs_flow_action_esp_keymat(
    0,
);
pub type ibv_flow_action_esp_keymat_aes_gcm_iv_algo = ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo;
pub const IBV_FLOW_ACTION_IV_ALGO_SEQ: ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo = ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo(
    0,
);
pub type ibv_flow_action_esp_keymat_aes_gcm = ib_uverbs_flow_action_esp_keymat_aes_gcm;
pub type ibv_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay;
pub const IBV_FLOW_ACTION_ESP_REPLAY_NONE: ib_uverbs_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay(
    0,
);
pub const IBV_FLOW_ACTION_ESP_REPLAY_BMP: ib_uverbs_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay(
    1,
);
pub type ibv_flow_action_esp_replay_bmp = ib_uverbs_flow_action_esp_replay_bmp;
pub type ibv_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags;
pub const IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
    0,
);
pub const IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
    1,
);
pub const IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
    0,
);
pub const IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
    2,
);
pub const IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
    0,
);
pub const IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
    4,
);
pub const IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW: ib_uverbs_flow_action_esp_flags = ib_uverbs_flow_action_esp_flags(
    8,
);
pub type ibv_flow_action_esp_encap = ib_uverbs_flow_action_esp_encap;
pub type ibv_flow_action_esp = ib_uverbs_flow_action_esp;
pub type ibv_advise_mr_advice = ib_uverbs_advise_mr_advice;
pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
    0,
);
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
    1,
);
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ib_uverbs_advise_mr_advice = ib_uverbs_advise_mr_advice(
    2,
);
pub const IBV_ADVISE_MR_FLAG_FLUSH: ib_uverbs_advise_mr_flag = ib_uverbs_advise_mr_flag(
    1,
);
pub const IBV_QPF_GRH_REQUIRED: ib_uverbs_query_port_flags = ib_uverbs_query_port_flags(
    1,
);
pub const IBV_ACCESS_OPTIONAL_RANGE: ib_uverbs_access_flags = ib_uverbs_access_flags(
    1072693248,
);
pub type mlx5dv_flow_action_flags = mlx5_ib_uapi_flow_action_flags;
pub const MLX5DV_FLOW_ACTION_FLAGS_REQUIRE_METADATA: mlx5_ib_uapi_flow_action_flags = mlx5_ib_uapi_flow_action_flags(
    1,
);
pub type mlx5dv_flow_table_type = mlx5_ib_uapi_flow_table_type;
pub const MLX5DV_FLOW_TABLE_TYPE_NIC_RX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
    0,
);
pub const MLX5DV_FLOW_TABLE_TYPE_NIC_TX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
    1,
);
pub const MLX5DV_FLOW_TABLE_TYPE_FDB: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
    2,
);
pub const MLX5DV_FLOW_TABLE_TYPE_RDMA_RX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
    3,
);
pub const MLX5DV_FLOW_TABLE_TYPE_RDMA_TX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
    4,
);
pub const MLX5DV_FLOW_TABLE_TYPE_RDMA_TRANSPORT_RX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
    5,
);
pub const MLX5DV_FLOW_TABLE_TYPE_RDMA_TRANSPORT_TX: mlx5_ib_uapi_flow_table_type = mlx5_ib_uapi_flow_table_type(
    6,
);
pub type mlx5dv_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type;
pub const MLX5DV_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TUNNEL_TO_L2: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
    0,
);
pub const MLX5DV_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L2_TUNNEL: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
    1,
);
pub const MLX5DV_FLOW_ACTION_PACKET_REFORMAT_TYPE_L3_TUNNEL_TO_L2: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
    2,
);
pub const MLX5DV_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L3_TUNNEL: mlx5_ib_uapi_flow_action_packet_reformat_type = mlx5_ib_uapi_flow_action_packet_reformat_type(
    3,
);
pub type mlx5dv_devx_async_cmd_hdr = mlx5_ib_uapi_devx_async_cmd_hdr;
pub type mlx5dv_devx_async_event_hdr = mlx5_ib_uapi_devx_async_event_hdr;
pub type mlx5dv_alloc_dm_type = mlx5_ib_uapi_dm_type;
pub const MLX5DV_DM_TYPE_MEMIC: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(0);
pub const MLX5DV_DM_TYPE_STEERING_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(1);
pub const MLX5DV_DM_TYPE_HEADER_MODIFY_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(
    2,
);
pub const MLX5DV_DM_TYPE_HEADER_MODIFY_PATTERN_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(
    3,
);
pub const MLX5DV_DM_TYPE_ENCAP_SW_ICM: mlx5_ib_uapi_dm_type = mlx5_ib_uapi_dm_type(4);
pub type mlx5dv_devx_create_event_channel_flags = mlx5_ib_uapi_devx_create_event_channel_flags;
pub const MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA: mlx5_ib_uapi_devx_create_event_channel_flags = mlx5_ib_uapi_devx_create_event_channel_flags(
    1,
);
pub const MLX5DV_PP_ALLOC_FLAGS_DEDICATED_INDEX: mlx5_ib_uapi_pp_alloc_flags = mlx5_ib_uapi_pp_alloc_flags(
    1,
);
pub const MLX5DV_UAR_ALLOC_TYPE_BF: mlx5_ib_uapi_uar_alloc_type = mlx5_ib_uapi_uar_alloc_type(
    0,
);
pub const MLX5DV_UAR_ALLOC_TYPE_NC: mlx5_ib_uapi_uar_alloc_type = mlx5_ib_uapi_uar_alloc_type(
    1,
);
pub const MLX5DV_QUERY_PORT_VPORT: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
    1,
);
pub const MLX5DV_QUERY_PORT_VPORT_VHCA_ID: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
    2,
);
pub const MLX5DV_QUERY_PORT_VPORT_STEERING_ICM_RX: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
    4,
);
pub const MLX5DV_QUERY_PORT_VPORT_STEERING_ICM_TX: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
    8,
);
pub const MLX5DV_QUERY_PORT_VPORT_REG_C0: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
    16,
);
pub const MLX5DV_QUERY_PORT_ESW_OWNER_VHCA_ID: mlx5_ib_uapi_query_port_flags = mlx5_ib_uapi_query_port_flags(
    32,
);
pub type mlx5dv_port = mlx5_ib_uapi_query_port;
pub type mlx5dv_reg = mlx5_ib_uapi_reg;
pub const MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT: mlx5_ib_uapi_reg_dmabuf_flags = mlx5_ib_uapi_reg_dmabuf_flags(
    1,
);
pub const MLX5DV_VAR_ALLOC_FLAG_TLP: mlx5_ib_uapi_var_alloc_flags = mlx5_ib_uapi_var_alloc_flags(
    1,
);
