//! The queue pair attributes of a connection (`rdma_init_qp_attr`).

use std::ffi::c_int;

use rdma_mummy_sys::types::{
    ibv_access_flags, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state, ibv_qp_type,
};

use super::datagram::address_handle;
use super::{CmId, CmStateMachine, HOPS, HandshakeState};
use crate::cm::types::{CmPath, IdNumber};

impl CmStateMachine {
    /// See [`ConnectionManager::init_qp_attr`](crate::cm::ConnectionManager::init_qp_attr).
    pub(in crate::cm) fn init_qp_attr(
        &mut self,
        number: IdNumber,
        attr: &mut ibv_qp_attr,
    ) -> Result<c_int, c_int> {
        let (id, path) = self.placed(number)?;
        if attr.qp_state.0 > ibv_qp_state::IBV_QPS_ERR.0 {
            return Err(libc::EINVAL);
        }
        let wants_rtr = attr.qp_state == ibv_qp_state::IBV_QPS_RTR;
        let bits = if id.connection.handshake == HandshakeState::None || id.is_datagram() {
            id.first_attributes(path, attr)?
        } else {
            match attr.qp_state {
                ibv_qp_state::IBV_QPS_INIT => id.init_attributes(path, attr)?,
                ibv_qp_state::IBV_QPS_RTR => id.rtr_attributes(path, attr)?,
                ibv_qp_state::IBV_QPS_RTS => id.rts_attributes(attr)?,
                _ => return Err(libc::EINVAL),
            }
        };
        if wants_rtr {
            attr.rq_psn = id.psn;
        }
        if let Some(timeout) = id.ack_timeout.filter(|_| bits & mask::IBV_QP_TIMEOUT.0 != 0) {
            attr.timeout = timeout;
        }
        Ok(bits as c_int)
    }
}

impl CmId {
    /// The attributes before a connection exists, and for datagrams.
    fn first_attributes(&mut self, path: CmPath, attr: &mut ibv_qp_attr) -> Result<u32, c_int> {
        (attr.pkey_index, attr.port_num) = (0, path.port);
        let bits = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        if self.is_datagram() {
            attr.qkey = self.agree_on_qkey(0)?;
            Ok((bits | mask::IBV_QP_QKEY).0)
        } else {
            attr.qp_access_flags = 0;
            Ok((bits | mask::IBV_QP_ACCESS_FLAGS).0)
        }
    }

    fn init_attributes(&self, path: CmPath, attr: &mut ibv_qp_attr) -> Result<u32, c_int> {
        let connection = &self.connection;
        if matches!(connection.handshake, HandshakeState::Idle | HandshakeState::Timewait) {
            return Err(libc::EINVAL);
        }
        let mut access = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        if connection.responder_resources > 0 {
            access = access
                | ibv_access_flags::IBV_ACCESS_REMOTE_READ
                | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        }
        attr.qp_access_flags = access.0;
        (attr.pkey_index, attr.port_num) = (0, path.port);
        Ok((mask::IBV_QP_STATE | mask::IBV_QP_ACCESS_FLAGS | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT).0)
    }

    /// Whether the peer's queue pair is known.
    fn knows_remote(&self) -> bool {
        use HandshakeState::{Established, RepReceived, RepSent, ReqReceived};
        matches!(self.connection.handshake, ReqReceived | RepSent | RepReceived | Established)
    }

    fn rtr_attributes(&self, path: CmPath, attr: &mut ibv_qp_attr) -> Result<u32, c_int> {
        let dgid = self.dgid.filter(|_| self.knows_remote()).ok_or(libc::EINVAL)?;
        let connection = &self.connection;
        attr.ah_attr = address_handle(path, dgid, connection.traffic_class, HOPS);
        attr.path_mtu = ibv_mtu(connection.mtu.into());
        attr.dest_qp_num = connection.remote_qp_num;
        let mut bits = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN;
        if [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_XRC_RECV].contains(&self.qp_type) {
            (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (connection.responder_resources, 0);
            bits = bits | mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
        }
        Ok(bits.0)
    }

    fn rts_attributes(&self, attr: &mut ibv_qp_attr) -> Result<u32, c_int> {
        let connection = &self.connection;
        if !self.knows_remote() {
            return Err(libc::EINVAL);
        }
        attr.sq_psn = connection.remote_psn;
        let mut bits = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
        if [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_XRC_SEND].contains(&self.qp_type) {
            (attr.retry_cnt, attr.rnr_retry) = (connection.retry_count, connection.rnr_retry_count);
            attr.max_rd_atomic = connection.initiator_depth;
            bits = bits | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        if [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_XRC_SEND, ibv_qp_type::IBV_QPT_XRC_RECV]
            .contains(&self.qp_type)
        {
            attr.timeout = connection.ack_timeout;
            bits |= mask::IBV_QP_TIMEOUT;
        }
        Ok(bits.0)
    }
}
