//! Attributes of a queue pair: the fields of `ibv_qp_attr` and its mask.

use std::fmt;

use rdma_mummy_sys::types::{
    ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as C, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state,
};

use super::{QueuePairCapability, QueuePairState, QueuePairType};
use crate::ibverbs::AccessFlags;
use crate::ibverbs::address::AddressHandleAttribute;
use crate::ibverbs::port::Mtu;

c_flags! {
    /// The set of valid attributes (`ibv_qp_attr_mask`), each with its C field.
    pub struct QueuePairAttributeMask(u32) {
        /// `qp_state`
        State = C::IBV_QP_STATE.0,
        /// `cur_qp_state`
        CurrentState = C::IBV_QP_CUR_STATE.0,
        /// `en_sqd_async_notify`
        EnableSendQueueDrainedAsyncNotify = C::IBV_QP_EN_SQD_ASYNC_NOTIFY.0,
        /// `qp_access_flags`
        AccessFlags = C::IBV_QP_ACCESS_FLAGS.0,
        /// `pkey_index`
        PartitionKeyIndex = C::IBV_QP_PKEY_INDEX.0,
        /// `port_num`
        Port = C::IBV_QP_PORT.0,
        /// `qkey`
        QueueKey = C::IBV_QP_QKEY.0,
        /// `ah_attr`
        AddressVector = C::IBV_QP_AV.0,
        /// `path_mtu`, the largest payload of a packet (RC, UC)
        PathMtu = C::IBV_QP_PATH_MTU.0,
        /// `timeout`, the wait for an acknowledgement (RC)
        Timeout = C::IBV_QP_TIMEOUT.0,
        /// `retry_cnt`
        RetryCount = C::IBV_QP_RETRY_CNT.0,
        /// `rnr_retry`
        ResponderNotReadyRetryCount = C::IBV_QP_RNR_RETRY.0,
        /// `rq_psn`
        ReceiveQueuePacketSequenceNumber = C::IBV_QP_RQ_PSN.0,
        /// `max_rd_atomic`
        MaxReadAtomic = C::IBV_QP_MAX_QP_RD_ATOMIC.0,
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`
        AlternatePath = C::IBV_QP_ALT_PATH.0,
        /// `min_rnr_timer`
        MinResponderNotReadyTimer = C::IBV_QP_MIN_RNR_TIMER.0,
        /// `sq_psn`
        SendQueuePacketSequenceNumber = C::IBV_QP_SQ_PSN.0,
        /// `max_dest_rd_atomic`
        MaxDestinationReadAtomic = C::IBV_QP_MAX_DEST_RD_ATOMIC.0,
        /// `path_mig_state`
        PathMigrationState = C::IBV_QP_PATH_MIG_STATE.0,
        /// `cap`
        Capabilities = C::IBV_QP_CAP.0,
        /// `dest_qp_num`
        DestinationQueuePairNumber = C::IBV_QP_DEST_QPN.0,
        /// `rate_limit` in kb/s
        RateLimit = C::IBV_QP_RATE_LIMIT.0,
    }
}

/// Attributes to set with [`modify`](super::QueuePair::modify), or read with
/// [`query`](super::QueuePair::query) (`ibv_qp_attr` and its mask).
///
/// A setter adds its attribute to the mask. A getter returns `None` for an attribute that is not in
/// the mask.
#[derive(Clone)]
pub struct QueuePairAttribute {
    pub(crate) attr: ibv_qp_attr,
    pub(crate) mask: QueuePairAttributeMask,
}

impl Default for QueuePairAttribute {
    fn default() -> Self {
        Self::new()
    }
}

impl QueuePairAttribute {
    /// An empty set of attributes.
    pub fn new() -> Self {
        Self { attr: ibv_qp_attr::default(), mask: QueuePairAttributeMask::empty() }
    }

    pub(crate) fn from_parts(attr: ibv_qp_attr, mask: QueuePairAttributeMask) -> Self {
        Self { attr, mask }
    }

    /// The C struct. Only the attributes in [`mask`](Self::mask) are valid.
    pub fn raw(&self) -> &ibv_qp_attr {
        &self.attr
    }

    /// The set of valid attributes.
    pub fn mask(&self) -> QueuePairAttributeMask {
        self.mask
    }

    /// Sets the address vector, the packets' destination. A pair needs it to become ready to
    /// receive (RC, UC).
    pub fn setup_address_vector(&mut self, ah_attr: &AddressHandleAttribute) -> &mut Self {
        self.attr.ah_attr = *ah_attr.raw();
        self.mask |= QueuePairAttributeMask::AddressVector;
        self
    }

    /// The address vector, the packets' destination.
    pub fn address_vector(&self) -> Option<AddressHandleAttribute> {
        self.mask
            .contains(QueuePairAttributeMask::AddressVector)
            .then(|| AddressHandleAttribute::from_raw(self.attr.ah_attr))
    }
}

impl QueuePairAttribute {
    /// Sets the alternate path of a connection, which is used after the path
    /// [migrates](MigrationState).
    pub fn setup_alternate_path(&mut self, path: &AlternatePath) -> &mut Self {
        self.attr.alt_ah_attr = *path.address_vector.raw();
        self.attr.alt_port_num = path.port;
        self.attr.alt_pkey_index = path.pkey_index;
        self.attr.alt_timeout = path.timeout;
        self.mask |= QueuePairAttributeMask::AlternatePath;
        self
    }

    /// The alternate path, if the [`mask`](Self::mask) includes it.
    pub fn alternate_path(&self) -> Option<AlternatePath> {
        self.mask.contains(QueuePairAttributeMask::AlternatePath).then(|| AlternatePath {
            address_vector: AddressHandleAttribute::from_raw(self.attr.alt_ah_attr),
            port: self.attr.alt_port_num,
            pkey_index: self.attr.alt_pkey_index,
            timeout: self.attr.alt_timeout,
        })
    }

    /// Whether the pair is still draining its send queue (`sq_draining`), if a query with
    /// [`State`](QueuePairAttributeMask::State) read it.
    pub fn is_draining(&self) -> Option<bool> {
        self.mask.contains(QueuePairAttributeMask::State).then_some(self.attr.sq_draining != 0)
    }
}

/// An alternate path to the peer (`alt_ah_attr`, `alt_port_num`, `alt_pkey_index`, `alt_timeout`).
#[derive(Clone, Debug)]
pub struct AlternatePath {
    /// The packets' destination.
    pub address_vector: AddressHandleAttribute,
    /// The local port, from 1.
    pub port: u8,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The acknowledgement timeout: 4.096 us x 2^n, n up to 31; 0 means no timeout.
    pub timeout: u8,
}

c_enum! {
    /// The path migration state of a connection (`ibv_mig_state`). Devices without [automatic path
    /// migration](crate::ibverbs::device_attr::DeviceCapabilityFlags::AutomaticPathMigration) never
    /// migrate.
    pub struct MigrationState(u32) {
        /// The connection uses its only path, or has migrated to the alternate path.
        Migrated = ibv_mig_state::IBV_MIG_MIGRATED.0,
        /// The alternate path is to be armed, once the peer agrees.
        Rearm = ibv_mig_state::IBV_MIG_REARM.0,
        /// The device migrates automatically when the path fails.
        Armed = ibv_mig_state::IBV_MIG_ARMED.0,
    }
}

display_as_debug!(MigrationState);

/// Defines setters and getters: attribute, setter, Rust type, mask, field, and the conversions to
/// and from C.
macro_rules! attributes {
    ($(
        $(#[$doc:meta])*
        $name:ident, $setup:ident: $ty:ty, $Mask:ident, $field:ident, $into:expr, $from:expr;
    )*) => {
        impl QueuePairAttribute {
            $(
                $(#[$doc])*
                pub fn $setup(&mut self, $name: $ty) -> &mut Self {
                    self.attr.$field = $into($name);
                    self.mask |= QueuePairAttributeMask::$Mask;
                    self
                }

                $(#[$doc])*
                pub fn $name(&self) -> Option<$ty> {
                    self.mask.contains(QueuePairAttributeMask::$Mask).then(|| $from(self.attr.$field))
                }
            )*
        }

        impl fmt::Debug for QueuePairAttribute {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut output = f.debug_struct("QueuePairAttribute");
                $(if let Some(value) = self.$name() {
                    output.field(stringify!($name), &value);
                })*
                if let Some(value) = self.address_vector() {
                    output.field("address_vector", &value);
                }
                if let Some(value) = self.alternate_path() {
                    output.field("alternate_path", &value);
                }
                output.finish()
            }
        }
    };
}

fn same<T>(value: T) -> T {
    value
}

attributes! {
    /// The state to go to, or the current state after a query.
    state, setup_state: QueuePairState, State, qp_state,
        |s: QueuePairState| ibv_qp_state(s.raw()), |s: ibv_qp_state| QueuePairState::from_raw(s.0);
    /// The state that the pair is assumed to be in before the change.
    current_state, setup_current_state: QueuePairState, CurrentState, cur_qp_state,
        |s: QueuePairState| ibv_qp_state(s.raw()), |s: ibv_qp_state| QueuePairState::from_raw(s.0);
    /// The index of the partition key in the port's table.
    pkey_index, setup_pkey_index: u16, PartitionKeyIndex, pkey_index, same, same;
    /// The local port, from 1.
    port, setup_port: u8, Port, port_num, same, same;
    /// What peers may do to local memory through this pair.
    access_flags, setup_access_flags: AccessFlags, AccessFlags, qp_access_flags,
        |a: AccessFlags| a.bits(), AccessFlags::from_bits_retain;
    /// The queue key (UD).
    qkey, setup_qkey: u32, QueueKey, qkey, same, same;
    /// The path MTU: the largest payload of a packet (RC, UC).
    path_mtu, setup_path_mtu: Mtu, PathMtu, path_mtu, |m: Mtu| ibv_mtu(m.raw()), |m: ibv_mtu| Mtu::from_raw(m.0);
    /// The number of the peer's queue pair.
    dest_qp_num, setup_dest_qp_num: u32, DestinationQueuePairNumber, dest_qp_num, same, same;
    /// The sequence number of the peer's first packet, 24 bits.
    rq_psn, setup_rq_psn: u32, ReceiveQueuePacketSequenceNumber, rq_psn, same, same;
    /// The sequence number of this side's first packet, 24 bits.
    sq_psn, setup_sq_psn: u32, SendQueuePacketSequenceNumber, sq_psn, same, same;
    /// The maximum number of outstanding READs and atomics of this side.
    max_read_atomic, setup_max_read_atomic: u8, MaxReadAtomic, max_rd_atomic, same, same;
    /// The maximum number of the peer's READs and atomics that this side serves at a time.
    max_dest_read_atomic, setup_max_dest_read_atomic: u8, MaxDestinationReadAtomic, max_dest_rd_atomic, same, same;
    /// How long the peer waits before a retry while this side has no receive posted. 0 is 655.36
    /// ms, 1 is 0.01 ms, up to 31 for 491.52 ms (the table is in the manual page of
    /// `ibv_modify_qp`).
    min_rnr_timer, setup_min_rnr_timer: u8, MinResponderNotReadyTimer, min_rnr_timer, same, same;
    /// The acknowledgement timeout: 4.096 us x 2^n; 0 means no timeout.
    timeout, setup_timeout: u8, Timeout, timeout, same, same;
    /// The number of retries without acknowledgement, 0 to 7.
    retry_cnt, setup_retry_cnt: u8, RetryCount, retry_cnt, same, same;
    /// The number of retries while the peer has no receive posted, 0 to 6; 7 means no limit.
    rnr_retry, setup_rnr_retry: u8, ResponderNotReadyRetryCount, rnr_retry, same, same;
    /// Whether the device sends the event
    /// [`SendQueueDrained`](crate::ibverbs::event::AsyncEventType) when a pair in the state
    /// [`SendQueueDrained`](QueuePairState::SendQueueDrained) has finished the requests that it had
    /// started.
    sqd_async_notify, setup_sqd_async_notify: bool, EnableSendQueueDrainedAsyncNotify, en_sqd_async_notify,
        u8::from, |n: u8| n != 0;
    /// The path migration state.
    path_mig_state, setup_path_mig_state: MigrationState, PathMigrationState, path_mig_state,
        |m: MigrationState| ibv_mig_state(m.raw()), |m: ibv_mig_state| MigrationState::from_raw(m.0);
    /// The maximum send rate in kb/s; 0 means no limit. It needs a device with [packet
    /// pacing](crate::ibverbs::device_attr::DeviceAttr::packet_pacing_caps).
    rate_limit, setup_rate_limit: u32, RateLimit, rate_limit, same, same;
    /// The pair's queue sizes. They can be set on devices that resize pairs
    /// ([`ResizeMaxWr`](crate::ibverbs::device_attr::DeviceCapabilityFlags::ResizeMaxWr)), to no
    /// less than at creation. The handles of this crate keep using the sizes at creation.
    capability, setup_capability: QueuePairCapability, Capabilities, cap,
        |c: QueuePairCapability| ibv_qp_cap::from(c), QueuePairCapability::from;
}

/// The attributes with which a queue pair was made, read with [`query`](super::QueuePair::query).
#[derive(Clone, Debug)]
pub struct QueuePairInitAttribute {
    cap: QueuePairCapability,
    qp_type: QueuePairType,
    sq_sig_all: bool,
}

impl QueuePairInitAttribute {
    pub(super) fn new(attr: &ibv_qp_init_attr) -> Self {
        Self {
            cap: attr.cap.into(),
            qp_type: QueuePairType::from_raw(attr.qp_type.0),
            sq_sig_all: attr.sq_sig_all != 0,
        }
    }

    /// The queue sizes.
    pub fn capability(&self) -> QueuePairCapability {
        self.cap
    }

    /// The transport type.
    pub fn qp_type(&self) -> QueuePairType {
        self.qp_type
    }

    /// Whether every work request produces a completion, signaled or not.
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }
}

impl From<ibv_qp_cap> for QueuePairCapability {
    fn from(cap: ibv_qp_cap) -> Self {
        let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
        Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

impl From<QueuePairCapability> for ibv_qp_cap {
    fn from(cap: QueuePairCapability) -> Self {
        let QueuePairCapability { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } =
            cap;
        Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}
