//! Posting with `ibv_post_send`.

use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_ah, ibv_mw, ibv_mw_bind_info, ibv_qp_state, ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_wr_opcode,
};

use super::Qp;
use super::send_queue::{DatagramDestination, PostErrno, SendQueueProducer, SendRequestHeader};
use crate::config::Mode;
use crate::objects::address_handle::ah_of;
use crate::objects::memory_window::mw_of;

/// Whether a queue pair of this type may post the operation. An XRC target has a send queue of
/// length 0.
pub(crate) fn type_has(qp_type: ibv_qp_type, opcode: ibv_wr_opcode) -> bool {
    use ibv_wr_opcode as O;
    match opcode {
        O::IBV_WR_SEND | O::IBV_WR_SEND_WITH_IMM => true,
        O::IBV_WR_RDMA_WRITE | O::IBV_WR_RDMA_WRITE_WITH_IMM => qp_type != ibv_qp_type::IBV_QPT_UD,
        O::IBV_WR_SEND_WITH_INV | O::IBV_WR_BIND_MW | O::IBV_WR_LOCAL_INV => {
            matches!(qp_type, ibv_qp_type::IBV_QPT_RC | ibv_qp_type::IBV_QPT_UC)
        }
        O::IBV_WR_RDMA_READ | O::IBV_WR_ATOMIC_CMP_AND_SWP | O::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            matches!(qp_type, ibv_qp_type::IBV_QPT_RC | ibv_qp_type::IBV_QPT_XRC_SEND)
        }
        O::IBV_WR_ATOMIC_WRITE | O::IBV_WR_FLUSH => qp_type == ibv_qp_type::IBV_QPT_RC,
        _ => false,
    }
}

/// Whether a request returns data, so that it needs memory for them. Inline data cannot be that
/// memory.
pub(crate) fn brings_back(opcode: ibv_wr_opcode) -> bool {
    matches!(
        opcode,
        ibv_wr_opcode::IBV_WR_RDMA_READ
            | ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP
            | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
    )
}

/// Whether a request changes a memory window of this process and goes to no peer.
pub(crate) fn is_of_window(opcode: ibv_wr_opcode) -> bool {
    matches!(opcode, ibv_wr_opcode::IBV_WR_BIND_MW | ibv_wr_opcode::IBV_WR_LOCAL_INV)
}

/// Encodes a bind request in the fields of a request that moves data. Returns the window's serial
/// number with its new key, the address, and the length with the region's key and the access flags.
///
/// # Safety
///
/// `mw` is null or a live window of this device; the region of `info` is null or live, and `info`
/// valid.
pub(super) unsafe fn bind_fields(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<([u32; 2], u64, [u64; 2]), PostErrno> {
    if mw.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller guarantees that `mw` is live (not null, as checked above) and the region
    // null or live.
    let (serial, lkey) = unsafe {
        (mw_of(mw).serial(), if info.mr.is_null() { 0 } else { (&raw const (*info.mr).lkey).read() })
    };
    let operands = [info.length, u64::from(lkey) << 32 | u64::from(info.mw_access_flags)];
    Ok(([serial, rkey], info.addr, operands))
}

/// The operands of an atomic write whose value is in its entry or inline.
pub(crate) const VALUE_IN_MEMORY: [u64; 2] = [0, 0];
/// The second operand of an atomic write whose first operand is the value.
pub(crate) const VALUE_GIVEN: u64 = 1;

impl Qp {
    /// Whether this process may post requests in the current state.
    #[inline]
    pub(super) fn check_postable(&self) -> Result<(), PostErrno> {
        self.context.check_process()?;
        self.check_state()
    }

    /// Whether requests may be posted in the current state.
    #[inline]
    pub(super) fn check_state(&self) -> Result<(), PostErrno> {
        match self.state() {
            ibv_qp_state::IBV_QPS_RESET | ibv_qp_state::IBV_QPS_INIT | ibv_qp_state::IBV_QPS_RTR => {
                Err(self.refusal())
            }
            _ => Ok(()),
        }
    }

    /// The error for posting in the wrong state.
    #[cold]
    pub(super) fn refusal(&self) -> PostErrno {
        if self.context.has_failed() { libc::EIO } else { libc::EINVAL }
    }

    /// Executes the posted requests now, or schedules them in deferred mode.
    #[inline]
    pub(super) fn posted(self: &Arc<Self>) {
        match self.rnic.config().mode {
            Mode::Inline => self.run(u32::MAX),
            Mode::Deferred => self.schedule_progress(),
        }
    }

    /// Executes `ibv_post_send`.
    ///
    /// # Errors
    ///
    /// An errno, with the request that was refused. The requests before it are posted.
    ///
    /// # Safety
    ///
    /// `wr` is a valid list of requests, whose inline data are readable.
    pub(crate) unsafe fn post_sends(
        self: &Arc<Self>,
        mut wr: *mut ibv_send_wr,
    ) -> Result<(), (PostErrno, *mut ibv_send_wr)> {
        self.check_postable().map_err(|error| (error, wr))?;
        let mut result = Ok(());
        {
            let _posting = self.posting();
            // SAFETY: every poster of this queue holds the builder's lock, as this one does.
            let mut poster = unsafe { self.send_queue.poster(self.caps.max_send_wr) };
            while !wr.is_null() {
                // SAFETY: the caller guarantees a valid list of requests with readable inline data.
                if let Err(error) = unsafe { self.add(&mut poster, wr) } {
                    result = Err((error, wr));
                    break;
                }
                // SAFETY: the caller guarantees a valid list of requests.
                wr = unsafe { (*wr).next };
            }
            poster.commit();
        }
        self.posted();
        result
    }

    /// Adds one request, whole or not at all.
    ///
    /// # Safety
    ///
    /// As [`post_sends`](Self::post_sends).
    unsafe fn add(
        &self,
        poster: &mut SendQueueProducer<'_>,
        wr: *const ibv_send_wr,
    ) -> Result<(), PostErrno> {
        // SAFETY: the caller guarantees a valid request. Its opcode and the type of the queue pair
        // decide which union fields are valid.
        unsafe {
            let opcode = (*wr).opcode;
            if !type_has(self.qp_type, opcode) {
                return Err(libc::EINVAL);
            }
            let send_flags = (*wr).send_flags;
            let (mut operands, mut to, mut remote_addr, mut rkey) = (None, None, 0, 0);
            match opcode {
                ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let atomic = (*wr).wr.atomic;
                    (remote_addr, rkey) = (atomic.remote_addr, atomic.rkey);
                    operands = Some([atomic.compare_add, atomic.swap]);
                }
                // The classic struct has no fields for the range and kind of a FLUSH.
                ibv_wr_opcode::IBV_WR_FLUSH => return Err(libc::EINVAL),
                ibv_wr_opcode::IBV_WR_BIND_MW | ibv_wr_opcode::IBV_WR_LOCAL_INV => {
                    return self.add_of_window(poster, wr);
                }
                ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => {
                    let rdma = (*wr).wr.rdma;
                    (remote_addr, rkey) = (rdma.remote_addr, rdma.rkey);
                    operands = Some(VALUE_IN_MEMORY);
                }
                _ if self.qp_type == ibv_qp_type::IBV_QPT_UD => {
                    let ud = (*wr).wr.ud;
                    to = Some(destination(ud.ah, ud.remote_qpn, ud.remote_qkey).ok_or(libc::EINVAL)?);
                }
                _ => {
                    let rdma = (*wr).wr.rdma;
                    (remote_addr, rkey) = (rdma.remote_addr, rdma.rkey);
                }
            }
            let inline = send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0;
            let count = usize::try_from((*wr).num_sge).map_err(|_| libc::EINVAL)?;
            if inline && brings_back(opcode) {
                return Err(libc::EINVAL);
            }
            let (wr_id, imm_data) = ((*wr).wr_id, (*wr).__bindgen_anon_1.imm_data);
            let request =
                poster.add(SendRequestHeader { wr_id, opcode, send_flags, imm_data, rkey, remote_addr })?;
            if let Some(operands) = operands {
                request.operands = operands;
            }
            if self.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND {
                request.to = (*wr).qp_type.xrc.remote_srqn;
            }
            if let Some(destination) = to
                && let Err(refusal) = poster.set_destination(destination)
            {
                poster.drop_last();
                return Err(refusal);
            }
            let result = if inline {
                (0..count).try_for_each(|index| {
                    let entry = (*wr).sg_list.add(index).read();
                    let bytes = core::ptr::with_exposed_provenance::<u8>(entry.addr as usize);
                    poster.append_inline(bytes, entry.length as usize)
                })
            } else {
                poster.set_entries((*wr).sg_list, count)
            };
            if result.is_err() {
                poster.drop_last();
            }
            result
        }
    }
}

impl Qp {
    /// Adds a request that changes a window and has no payload.
    ///
    /// # Safety
    ///
    /// As [`post_sends`](Self::post_sends).
    #[cold]
    unsafe fn add_of_window(
        &self,
        poster: &mut SendQueueProducer<'_>,
        wr: *const ibv_send_wr,
    ) -> Result<(), PostErrno> {
        // SAFETY: the caller guarantees a valid request, whose opcode decides which union fields
        // are valid.
        let (wr_id, opcode, send_flags, fields) = unsafe {
            let fields = if (*wr).opcode == ibv_wr_opcode::IBV_WR_BIND_MW {
                let bind = (*wr).__bindgen_anon_2.bind_mw;
                bind_fields(bind.mw, bind.rkey, &bind.bind_info)?
            } else {
                ([(*wr).__bindgen_anon_1.invalidate_rkey, 0], 0, [0; 2])
            };
            ((*wr).wr_id, (*wr).opcode, (*wr).send_flags, fields)
        };
        let ([imm_data, rkey], remote_addr, operands) = fields;
        let request =
            poster.add(SendRequestHeader { wr_id, opcode, send_flags, imm_data, rkey, remote_addr })?;
        request.operands = operands;
        Ok(())
    }
}

/// The destination of a datagram.
///
/// # Safety
///
/// `ah` is null or a live address handle of this device.
pub(super) unsafe fn destination(
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) -> Option<DatagramDestination> {
    if ah.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees that `ah`, which is not null here, is a live address handle.
    let handle = unsafe { ah_of(ah) };
    let address = handle.address();
    Some(DatagramDestination {
        pd: handle.pd(),
        route: handle.route(),
        service_level: address.service_level,
        traffic_class: address.traffic_class,
        hop_limit: address.hop_limit,
        flow_label: address.flow_label,
        remote_qpn: remote_qpn & 0xff_ffff,
        remote_qkey,
    })
}
