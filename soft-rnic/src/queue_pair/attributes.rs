//! The queue pair attributes that `ibv_modify_qp` sets and `ibv_query_qp` returns.

use rdma_mummy_sys::types::{ibv_ah_attr, ibv_qp_attr, ibv_qp_attr_mask};

use crate::objects::memory_region::without_optional;

#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttributes {
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) access: u32,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    /// How often the queue pair has entered RTR. It distinguishes one connection from the next.
    pub(crate) connection: u32,
}

/// Copies the attributes that a mask names, after their values were checked.
macro_rules! take {
    ($mask:ident, $from:ident, $to:ident: $($bit:ident => $field:ident = $value:expr),* $(,)?) => {$(
        if $mask & ibv_qp_attr_mask::$bit.0 != 0 {
            $to.$field = $value;
        }
    )*};
}

impl QpAttributes {
    /// Sets the attributes that the mask names.
    pub(crate) fn set(&mut self, attr: &ibv_qp_attr, mask: u32) {
        take!(mask, attr, self:
            IBV_QP_PATH_MTU => path_mtu = attr.path_mtu.0,
            IBV_QP_PATH_MIG_STATE => path_mig_state = attr.path_mig_state.0,
            IBV_QP_QKEY => qkey = attr.qkey,
            IBV_QP_RQ_PSN => rq_psn = attr.rq_psn & 0xff_ffff,
            IBV_QP_SQ_PSN => sq_psn = attr.sq_psn & 0xff_ffff,
            IBV_QP_DEST_QPN => dest_qp_num = attr.dest_qp_num,
            IBV_QP_ACCESS_FLAGS => access = without_optional(attr.qp_access_flags),
            IBV_QP_AV => ah_attr = attr.ah_attr,
            IBV_QP_ALT_PATH => alt_ah_attr = attr.alt_ah_attr,
            IBV_QP_ALT_PATH => alt_pkey_index = attr.alt_pkey_index,
            IBV_QP_ALT_PATH => alt_port_num = attr.alt_port_num,
            IBV_QP_ALT_PATH => alt_timeout = attr.alt_timeout,
            IBV_QP_PKEY_INDEX => pkey_index = attr.pkey_index,
            IBV_QP_MAX_QP_RD_ATOMIC => max_rd_atomic = attr.max_rd_atomic,
            IBV_QP_MAX_DEST_RD_ATOMIC => max_dest_rd_atomic = attr.max_dest_rd_atomic,
            IBV_QP_MIN_RNR_TIMER => min_rnr_timer = attr.min_rnr_timer,
            IBV_QP_PORT => port_num = attr.port_num,
            IBV_QP_TIMEOUT => timeout = attr.timeout,
            IBV_QP_RETRY_CNT => retry_cnt = attr.retry_cnt,
            IBV_QP_RNR_RETRY => rnr_retry = attr.rnr_retry,
        );
    }

    /// Fills in the attributes. The caller adds states and capabilities.
    pub(crate) fn get(&self, attr: &mut ibv_qp_attr) {
        attr.path_mtu.0 = self.path_mtu;
        attr.path_mig_state.0 = self.path_mig_state;
        attr.qkey = self.qkey;
        attr.rq_psn = self.rq_psn;
        attr.sq_psn = self.sq_psn;
        attr.dest_qp_num = self.dest_qp_num;
        attr.qp_access_flags = self.access;
        attr.ah_attr = self.ah_attr;
        attr.alt_ah_attr = self.alt_ah_attr;
        attr.pkey_index = self.pkey_index;
        attr.alt_pkey_index = self.alt_pkey_index;
        attr.max_rd_atomic = self.max_rd_atomic;
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.port_num = self.port_num;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_cnt;
        attr.rnr_retry = self.rnr_retry;
        attr.alt_port_num = self.alt_port_num;
        attr.alt_timeout = self.alt_timeout;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_access_is_not_kept() {
        let attr = ibv_qp_attr { qp_access_flags: 0x3ff0_000f, ..ibv_qp_attr::default() };
        let mut attributes = QpAttributes::default();
        attributes.set(&attr, ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0);
        assert_eq!(attributes.access, 15);
    }
}
