//! `ibv_modify_qp` and `ibv_query_qp`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rdma_mummy_sys::types::{
    ibv_mig_state, ibv_mtu, ibv_port_state, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state,
    ibv_qp_type,
};

use super::attributes::QpAttributes;
use super::{Qp, SendAttributes, transition};
use crate::objects::address_handle::{Route, check_route};
use crate::shared::entry::SlotsDescriptor;
use crate::shared::entry::gid_words;
use crate::shared::generation::GenerationSnapshot;

/// How long the transition to RTR waits for the connection to the peer's process.
const WAY: Duration = Duration::from_millis(100);

impl Qp {
    /// Executes `ibv_modify_qp`.
    ///
    /// # Errors
    ///
    /// An errno: `EINVAL` if the transition, the mask or a value is invalid, `EOPNOTSUPP` for
    /// attributes that this device does not have. `EBUSY` if a peer that does not run still touches
    /// the memory.
    pub(crate) fn modify(self: &Arc<Self>, attr: &ibv_qp_attr, mask: u32) -> Result<(), i32> {
        self.context.check_process()?;
        let mask = transition::without_ignored(self.qp_type, mask);
        {
            let mut attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
            let actual = self.state();
            let has = |bit: ibv_qp_attr_mask| mask & bit.0 != 0;
            let from = if has(ibv_qp_attr_mask::IBV_QP_CUR_STATE) { attr.cur_qp_state } else { actual };
            let to = if has(ibv_qp_attr_mask::IBV_QP_STATE) { attr.qp_state } else { from };
            // Attributes for features that the device does not report.
            const ABSENT: u32 = ibv_qp_attr_mask::IBV_QP_CAP.0 | ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0;
            if mask & ABSENT != 0 {
                return Err(libc::EOPNOTSUPP);
            }
            if from != actual || !transition::is_allowed(self.qp_type, from, to, mask) {
                return Err(libc::EINVAL);
            }
            self.check_values(attr, mask)?;
            match to {
                ibv_qp_state::IBV_QPS_RESET => return self.reset(&mut attributes),
                ibv_qp_state::IBV_QPS_ERR => self.set_failed(),
                _ => self.advance(&mut attributes, attr, mask, from, to)?,
            }
        }
        match self.state() {
            // The attributes are unlocked here, because `fail` may look at other queue pairs.
            ibv_qp_state::IBV_QPS_ERR => self.fail(),
            ibv_qp_state::IBV_QPS_RTS | ibv_qp_state::IBV_QPS_SQD => self.run(u32::MAX),
            ibv_qp_state::IBV_QPS_RTR if self.qp_type != ibv_qp_type::IBV_QPT_UD => {
                // Makes the connection early, so that the first message finds it. If that takes
                // longer, the message waits.
                let dest = self.sending.lock().attributes.dest_qpn;
                let _ = self.rnic.node().wait_for_process(dest, WAY);
            }
            _ => {}
        }
        Ok(())
    }

    /// Rejects values that are invalid in every state.
    fn check_values(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), i32> {
        let has = |bit: ibv_qp_attr_mask| mask & bit.0 != 0;
        let device = self.context.device();
        let limits = self.rnic.limits();
        let port = |number: u8| device.port(number.into()).ok_or(libc::EINVAL);
        let valid = |holds: bool| if holds { Ok(()) } else { Err(libc::EINVAL) };
        if has(ibv_qp_attr_mask::IBV_QP_PORT) {
            port(attr.port_num)?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_PKEY_INDEX) {
            valid(usize::from(attr.pkey_index) < device.pkeys().len())?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_AV) {
            check_route(&self.context, &attr.ah_attr)?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_PATH_MTU) {
            valid((ibv_mtu::IBV_MTU_256.0..=ibv_mtu::IBV_MTU_4096.0).contains(&attr.path_mtu.0))?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC) {
            valid(u32::from(attr.max_rd_atomic) <= limits.max_qp_rd_atom)?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC) {
            valid(u32::from(attr.max_dest_rd_atomic) <= limits.max_qp_rd_atom)?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_TIMEOUT) {
            valid(attr.timeout <= 31)?;
        }
        // No alternate path and no path migration exists. On Ethernet the kernel refuses them, too.
        if has(ibv_qp_attr_mask::IBV_QP_ALT_PATH) {
            return Err(libc::EOPNOTSUPP);
        }
        if has(ibv_qp_attr_mask::IBV_QP_PATH_MIG_STATE) {
            match attr.path_mig_state {
                ibv_mig_state::IBV_MIG_MIGRATED => {}
                ibv_mig_state::IBV_MIG_REARM | ibv_mig_state::IBV_MIG_ARMED => return Err(libc::EOPNOTSUPP),
                _ => return Err(libc::EINVAL),
            }
        }
        if has(ibv_qp_attr_mask::IBV_QP_RETRY_CNT) {
            valid(attr.retry_cnt <= 7)?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_RNR_RETRY) {
            valid(attr.rnr_retry <= 7)?;
        }
        if has(ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER) {
            valid(attr.min_rnr_timer <= 31)?;
        }
        Ok(())
    }

    fn advance(
        &self,
        attributes: &mut QpAttributes,
        attr: &ibv_qp_attr,
        mask: u32,
        from: ibv_qp_state,
        to: ibv_qp_state,
    ) -> Result<(), i32> {
        let mut changed = *attributes;
        changed.set(attr, mask);
        let ready = from == ibv_qp_state::IBV_QPS_INIT && to == ibv_qp_state::IBV_QPS_RTR;
        if ready {
            changed.connection = changed.connection.wrapping_add(1);
            self.progress_words().set_expected_psn(changed.rq_psn);
        }
        // Changing attributes in SQD does not alter the request for the event.
        if from != ibv_qp_state::IBV_QPS_SQD || to != ibv_qp_state::IBV_QPS_SQD {
            self.draining.store(
                to == ibv_qp_state::IBV_QPS_SQD
                    && mask & ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0 != 0
                    && attr.en_sqd_async_notify != 0,
                Ordering::Release,
            );
        }
        {
            let mut sending = self.sending.lock();
            sending.attributes = self.send_attributes(&changed);
            if from == ibv_qp_state::IBV_QPS_RTR && to == ibv_qp_state::IBV_QPS_RTS {
                sending.psn = changed.sq_psn;
            }
            let path = ibv_qp_attr_mask::IBV_QP_AV | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX;
            if mask & path.0 != 0
                && let Some(peer) = &mut sending.peer
            {
                // The peer is looked up again, and the connection continues.
                peer.snapshot = GenerationSnapshot::NONE;
            }
        }
        // If the queue pair has failed since, the error state wins.
        if !self.change_state(to, |state| state == from) {
            return Err(libc::EINVAL);
        }
        *attributes = changed;
        let sent = self.send_attributes(&changed);
        // Lock the queue before the descriptor, because a poll holds the queue while it locks the
        // descriptor.
        let slots =
            self.receiving.own().map_or_else(SlotsDescriptor::default, |queue| queue.lock().descriptor());
        let port = self.context.device().port(changed.port_num.into());
        let link_up = port.is_none_or(|port| port.state() == ibv_port_state::IBV_PORT_ACTIVE);
        self.publish(|descriptor| {
            descriptor.qpn = self.number.qpn;
            descriptor.dest_qpn = changed.dest_qp_num;
            descriptor.pd = self.pd.number();
            descriptor.access = changed.access;
            descriptor.qp_type = self.qp_type.0 as u8;
            descriptor.device = self.context.device().number;
            descriptor.port = changed.port_num;
            descriptor.pkey_index = changed.pkey_index as u8;
            descriptor.path_mtu = changed.path_mtu as u8;
            descriptor.min_rnr_timer = changed.min_rnr_timer;
            descriptor.max_dest_rd_atomic = changed.max_dest_rd_atomic;
            descriptor.qkey = changed.qkey;
            descriptor.recv_cq = self.recv_cq.index();
            descriptor.source = self.source();
            descriptor.connection = changed.connection;
            descriptor.link_up = link_up;
            descriptor.local_gid = sent.local_gid;
            descriptor.remote_gid = sent.remote_gid;
            descriptor.xrcd = self.xrcd.as_ref().map_or([0; 2], |xrcd| xrcd.id());
            self.receiving.show(descriptor, slots);
        });
        Ok(())
    }

    fn send_attributes(&self, attributes: &QpAttributes) -> SendAttributes {
        let route = Route::of(self.context.device(), &attributes.ah_attr);
        SendAttributes {
            dest_qpn: attributes.dest_qp_num,
            remote_gid: gid_words(route.destination),
            local_gid: gid_words(route.source),
            dest_lid: route.dest_lid,
            pkey_index: attributes.pkey_index as u8,
            path_mtu: 128 << attributes.path_mtu.min(5),
            timeout: attributes.timeout,
            retry_cnt: attributes.retry_cnt,
            rnr_retry: attributes.rnr_retry,
            max_rd_atomic: attributes.max_rd_atomic,
            qkey: attributes.qkey,
        }
    }

    /// Returns to RESET: discards posted requests and completions, and hides the queue pair from
    /// peers.
    fn reset(&self, attributes: &mut QpAttributes) -> Result<(), i32> {
        self.withdraw()?;
        let posting = self.stop_posting()?;
        self.begin_incarnation();
        self.forget_requests(posting);
        self.forget_receives();
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.purge(self.number.qpn);
        }
        self.progress_words().take_notices();
        self.progress_words().set_cursor(0);
        *attributes = QpAttributes { connection: attributes.connection, ..QpAttributes::default() };
        Ok(())
    }

    /// Executes `ibv_query_qp`.
    ///
    /// # Errors
    ///
    /// `EIO` in a forked child.
    pub(crate) fn query(&self, attr: &mut ibv_qp_attr, init: &mut ibv_qp_init_attr) -> Result<(), i32> {
        self.context.check_process()?;
        let attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        *attr = ibv_qp_attr::default();
        attributes.get(attr);
        attr.qp_state = self.state();
        attr.cur_qp_state = self.state();
        attr.cap = self.caps;
        attr.sq_draining = u8::from(self.state() == ibv_qp_state::IBV_QPS_SQD && !self.send_queue.is_empty());
        if self.state() == ibv_qp_state::IBV_QPS_RTS {
            attr.sq_psn = self.sending.lock().psn;
        }
        init.cap = self.caps;
        init.qp_type = self.qp_type;
        init.sq_sig_all = self.sq_sig_all.into();
        init.send_cq = self.send_cq.handle();
        init.recv_cq = self.recv_cq.handle();
        init.srq = self.receiving.shared().map_or(core::ptr::null_mut(), |srq| srq.handle());
        Ok(())
    }
}
