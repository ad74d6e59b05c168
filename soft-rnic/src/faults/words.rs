//! The vocabulary of fault rules: operations, steps, calls, CM messages.

use std::fmt;

use rdma_mummy_sys::types::{ibv_qp_type, ibv_wc_status, ibv_wr_opcode};

/// Defines an enumeration whose values have words.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $Name:ident { $($(#[$doc:meta])* $Value:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $Name { $($(#[$doc])* $Value,)* }

        impl $Name {
            pub(super) const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$Value),)*];
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$Value => $word,)* })
            }
        }
    };
}

words! {
    /// An event that a rule applies to: a posted request of some operation, or a completed receive.
    pub enum Opcode {
        /// `IBV_WR_SEND`
        Send = "send",
        /// `IBV_WR_SEND_WITH_IMM`
        SendWithImm = "send_with_imm",
        /// `IBV_WR_RDMA_WRITE`
        RdmaWrite = "rdma_write",
        /// `IBV_WR_RDMA_WRITE_WITH_IMM`
        RdmaWriteWithImm = "rdma_write_with_imm",
        /// `IBV_WR_RDMA_READ`
        RdmaRead = "rdma_read",
        /// `IBV_WR_ATOMIC_CMP_AND_SWP`
        AtomicCmpAndSwp = "atomic_cmp_and_swp",
        /// `IBV_WR_ATOMIC_FETCH_AND_ADD`
        AtomicFetchAndAdd = "atomic_fetch_and_add",
        /// `IBV_WR_SEND_WITH_INV`
        SendWithInv = "send_with_inv",
        /// `IBV_WR_LOCAL_INV`
        LocalInv = "local_inv",
        /// `IBV_WR_BIND_MW`
        BindMw = "bind_mw",
        /// `IBV_WR_ATOMIC_WRITE`
        AtomicWrite = "atomic_write",
        /// `IBV_WR_FLUSH`
        Flush = "flush",
        /// The completion of a receive, when it is polled.
        Recv = "recv",
    }
}

impl Opcode {
    pub(crate) fn of_request(opcode: ibv_wr_opcode) -> Self {
        match opcode {
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => Self::SendWithImm,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => Self::RdmaWrite,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => Self::RdmaWriteWithImm,
            ibv_wr_opcode::IBV_WR_RDMA_READ => Self::RdmaRead,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Self::AtomicCmpAndSwp,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Self::AtomicFetchAndAdd,
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV => Self::SendWithInv,
            ibv_wr_opcode::IBV_WR_LOCAL_INV => Self::LocalInv,
            ibv_wr_opcode::IBV_WR_BIND_MW => Self::BindMw,
            ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => Self::AtomicWrite,
            ibv_wr_opcode::IBV_WR_FLUSH => Self::Flush,
            _ => Self::Send,
        }
    }

    /// Whether the operation consumes a receive of the peer.
    pub(super) fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::SendWithInv | Self::RdmaWriteWithImm)
    }
}

words! {
    /// A step in the life of a message at which its sender's process can end, stop or pause.
    pub enum Step {
        /// The sender has read the receiver's description of its memory; it has published no
        /// hazard.
        BeforeMark = "before_mark",
        /// The hazard is published. The message needs a receive, and none is claimed yet.
        BeforeClaim = "before_claim",
        /// A receive is claimed; its memory is not looked up yet.
        Claimed = "claimed",
        /// All keys are checked and the hazard is published; no byte is copied.
        BeforeCopy = "before_copy",
        /// Half of the bytes are copied.
        MidCopy = "mid_copy",
        /// All bytes are copied; the receive is not marked as filled.
        BeforeFinish = "before_finish",
        /// The receive is marked as filled; its completion queue has no entry yet.
        BeforeAnnounce = "before_announce",
        /// The completion queue has the entry; its owner, who may sleep, is not woken.
        BeforeDoorbell = "before_doorbell",
    }
}

words! {
    /// A verb that a rule can make fail.
    pub enum Call {
        /// `ibv_open_device`
        OpenDevice = "open_device",
        /// `ibv_query_device`, `ibv_query_device_ex`
        QueryDevice = "query_device",
        /// `ibv_query_port`
        QueryPort = "query_port",
        /// `ibv_query_gid`, `ibv_query_gid_ex` and `ibv_query_gid_table`
        QueryGid = "query_gid",
        /// `ibv_alloc_pd`
        AllocPd = "alloc_pd",
        /// `ibv_dealloc_pd`
        DeallocPd = "dealloc_pd",
        /// `ibv_alloc_td`
        AllocTd = "alloc_td",
        /// `ibv_dealloc_td`
        DeallocTd = "dealloc_td",
        /// `ibv_reg_mr` and its kin
        RegMr = "reg_mr",
        /// `ibv_rereg_mr`
        ReregMr = "rereg_mr",
        /// `ibv_dereg_mr`
        DeregMr = "dereg_mr",
        /// `ibv_alloc_mw`
        AllocMw = "alloc_mw",
        /// `ibv_dealloc_mw`
        DeallocMw = "dealloc_mw",
        /// `ibv_bind_mw`
        BindMw = "bind_mw",
        /// `ibv_alloc_buf`
        AllocBuf = "alloc_buf",
        /// `ibv_advise_mr`
        AdviseMr = "advise_mr",
        /// `ibv_alloc_dm`
        AllocDm = "alloc_dm",
        /// `ibv_memcpy_to_dm`, `ibv_memcpy_from_dm`
        MemcpyDm = "memcpy_dm",
        /// `ibv_free_dm`
        FreeDm = "free_dm",
        /// `ibv_create_comp_channel`
        CreateCompChannel = "create_comp_channel",
        /// `ibv_destroy_comp_channel`
        DestroyCompChannel = "destroy_comp_channel",
        /// `ibv_create_cq`, `ibv_create_cq_ex`
        CreateCq = "create_cq",
        /// `ibv_resize_cq`
        ResizeCq = "resize_cq",
        /// `ibv_modify_cq`
        ModifyCq = "modify_cq",
        /// `ibv_req_notify_cq`
        ReqNotifyCq = "req_notify_cq",
        /// `ibv_destroy_cq`
        DestroyCq = "destroy_cq",
        /// `ibv_create_qp`, `ibv_create_qp_ex`
        CreateQp = "create_qp",
        /// `ibv_modify_qp`
        ModifyQp = "modify_qp",
        /// `ibv_query_qp`
        QueryQp = "query_qp",
        /// `ibv_destroy_qp`
        DestroyQp = "destroy_qp",
        /// `ibv_create_srq`, `ibv_create_srq_ex`
        CreateSrq = "create_srq",
        /// `ibv_modify_srq`
        ModifySrq = "modify_srq",
        /// `ibv_query_srq`
        QuerySrq = "query_srq",
        /// `ibv_post_srq_recv`
        PostSrqRecv = "post_srq_recv",
        /// `ibv_destroy_srq`
        DestroySrq = "destroy_srq",
        /// `ibv_open_xrcd`
        OpenXrcd = "open_xrcd",
        /// `ibv_close_xrcd`
        CloseXrcd = "close_xrcd",
        /// `ibv_open_qp`
        OpenQp = "open_qp",
        /// `ibv_create_ah`
        CreateAh = "create_ah",
        /// `ibv_destroy_ah`
        DestroyAh = "destroy_ah",
        /// `ibv_attach_mcast`
        AttachMcast = "attach_mcast",
        /// `ibv_detach_mcast`
        DetachMcast = "detach_mcast",
        /// `ibv_query_ece`
        QueryEce = "query_ece",
        /// `ibv_set_ece`
        SetEce = "set_ece",
        /// `ibv_import_device`
        ImportDevice = "import_device",
        /// `ibv_import_pd`
        ImportPd = "import_pd",
        /// `ibv_import_mr`
        ImportMr = "import_mr",
        /// `ibv_import_dm`
        ImportDm = "import_dm",
    }
}

impl Call {
    /// Whether the call destroys an object, which `RDMAV_ALLOW_DISASSOC_DESTROY` concerns
    /// (`ibv_open_device(3)`).
    pub(crate) fn destroys(self) -> bool {
        matches!(
            self,
            Self::DeallocPd
                | Self::DeallocTd
                | Self::DeregMr
                | Self::DeallocMw
                | Self::FreeDm
                | Self::DestroyCompChannel
                | Self::DestroyCq
                | Self::DestroyQp
                | Self::DestroySrq
                | Self::CloseXrcd
                | Self::DestroyAh
                | Self::DetachMcast
        )
    }
}

words! {
    /// A message of the connection manager (InfiniBand specification, chapter 12).
    pub enum CmMessage {
        /// A client requests a connection.
        Req = "req",
        /// The receiver of a request or reply acknowledges it and needs more time.
        Mra = "mra",
        /// The server accepts a request.
        Rep = "rep",
        /// The client is ready to use the connection.
        Rtu = "rtu",
        /// A request or a reply is rejected.
        Rej = "rej",
        /// One side requests the end of the connection.
        Dreq = "dreq",
        /// The other side confirms the end of the connection.
        Drep = "drep",
        /// A client asks for a datagram service.
        SidrReq = "sidr_req",
        /// The server answers with the queue pair of the service, or with the reason for refusing.
        SidrRep = "sidr_rep",
    }
}

impl CmMessage {
    /// Whether the other side can answer with a rejection.
    pub(super) fn can_be_rejected(self) -> bool {
        matches!(self, Self::Req | Self::Rep | Self::Rtu | Self::SidrReq)
    }
}

/// Names of the types of queue pairs.
pub(super) const QP_TYPES: &[(&str, ibv_qp_type)] = &[
    ("rc", ibv_qp_type::IBV_QPT_RC),
    ("uc", ibv_qp_type::IBV_QPT_UC),
    ("ud", ibv_qp_type::IBV_QPT_UD),
    ("xrc_send", ibv_qp_type::IBV_QPT_XRC_SEND),
    ("xrc_recv", ibv_qp_type::IBV_QPT_XRC_RECV),
];

macro_rules! statuses {
    ($($word:literal => $status:ident,)*) => {
        /// Names of the completion statuses.
        pub(super) const STATUSES: &[(&str, ibv_wc_status)] = &[$(($word, ibv_wc_status::$status),)*];
    };
}

statuses! {
    "success" => IBV_WC_SUCCESS,
    "loc_len_err" => IBV_WC_LOC_LEN_ERR,
    "loc_qp_op_err" => IBV_WC_LOC_QP_OP_ERR,
    "loc_eec_op_err" => IBV_WC_LOC_EEC_OP_ERR,
    "loc_prot_err" => IBV_WC_LOC_PROT_ERR,
    "wr_flush_err" => IBV_WC_WR_FLUSH_ERR,
    "mw_bind_err" => IBV_WC_MW_BIND_ERR,
    "bad_resp_err" => IBV_WC_BAD_RESP_ERR,
    "loc_access_err" => IBV_WC_LOC_ACCESS_ERR,
    "rem_inv_req_err" => IBV_WC_REM_INV_REQ_ERR,
    "rem_access_err" => IBV_WC_REM_ACCESS_ERR,
    "rem_op_err" => IBV_WC_REM_OP_ERR,
    "retry_exc_err" => IBV_WC_RETRY_EXC_ERR,
    "rnr_retry_exc_err" => IBV_WC_RNR_RETRY_EXC_ERR,
    "loc_rdd_viol_err" => IBV_WC_LOC_RDD_VIOL_ERR,
    "rem_inv_rd_req_err" => IBV_WC_REM_INV_RD_REQ_ERR,
    "rem_abort_err" => IBV_WC_REM_ABORT_ERR,
    "inv_eecn_err" => IBV_WC_INV_EECN_ERR,
    "inv_eec_state_err" => IBV_WC_INV_EEC_STATE_ERR,
    "fatal_err" => IBV_WC_FATAL_ERR,
    "resp_timeout_err" => IBV_WC_RESP_TIMEOUT_ERR,
    "general_err" => IBV_WC_GENERAL_ERR,
    "tm_err" => IBV_WC_TM_ERR,
    "tm_rndv_incomplete" => IBV_WC_TM_RNDV_INCOMPLETE,
}

macro_rules! errnos {
    ($($name:ident)*) => {
        /// Names of the errors that verbs return, and that a system short of resources returns.
        pub(super) const ERRNOS: &[(&str, i32)] = &[$((stringify!($name), libc::$name),)*];
    };
}

errnos! {
    EPERM ENOENT EINTR EIO ENXIO EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL ENFILE EMFILE ENOSPC EPROTO
    EOPNOTSUPP ENODATA ENOSYS ETIMEDOUT EHOSTUNREACH
}

/// Units of a rate, in bits per second, the largest first.
pub(super) const RATE_UNITS: &[(&str, u64)] =
    &[("Gb/s", 1_000_000_000), ("Mb/s", 1_000_000), ("kb/s", 1000), ("b/s", 1)];

/// Looks up the word of a value.
pub(super) fn word_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> Option<&'static str> {
    words.iter().find(|(_, known)| known == value).map(|(word, _)| *word)
}
