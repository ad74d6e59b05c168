//! Queue pairs: creation, state changes, queries, posting.

use std::sync::{Arc, Mutex, PoisonError};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::handle::{RawHandle, WAIT_LIMIT, poll_until};
use super::wr::{WrData, index};
use super::{Ah, CmId, Cq, Device, Flavour, Pd, Recv, Srq, Wr, Xrcd};

/// The operations that an extended pair of this type is created with.
fn operations(qp_type: ibv_qp_type, more: ibv_qp_create_send_ops_flags) -> u64 {
    use ibv_qp_create_send_ops_flags as Ops;
    let send = Ops::IBV_QP_EX_WITH_SEND.0 | Ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
    let write = Ops::IBV_QP_EX_WITH_RDMA_WRITE.0 | Ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;
    let both_ways = Ops::IBV_QP_EX_WITH_RDMA_READ.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
    u64::from(
        match qp_type {
            ibv_qp_type::IBV_QPT_RC | ibv_qp_type::IBV_QPT_XRC_SEND => send | write | both_ways,
            ibv_qp_type::IBV_QPT_UC => send | write,
            _ => send,
        } | more.0,
    )
}

/// The attributes of a new queue pair.
#[derive(Clone, Debug)]
pub(crate) struct QpInit {
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) send_cq: Option<Cq>,
    pub(crate) recv_cq: Option<Cq>,
    pub(crate) srq: Option<Srq>,
    /// Of a target pair only, which has no other domain and no queues.
    pub(crate) xrcd: Option<Xrcd>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sig_all: bool,
    pub(crate) flavour: Flavour,
    /// The `send_ops_flags` of an extended pair; `None` stands for all operations of its type.
    pub(crate) ops: Option<u64>,
    /// Operations in addition to the usual ones of its type.
    pub(crate) more_ops: ibv_qp_create_send_ops_flags,
    /// `ibv_qp_create_flags`
    pub(crate) create_flags: u32,
}

impl QpInit {
    /// A small classic pair.
    pub(crate) fn new(qp_type: ibv_qp_type, send_cq: &Cq, recv_cq: &Cq) -> Self {
        Self {
            qp_type,
            send_cq: Some(send_cq.clone()),
            recv_cq: Some(recv_cq.clone()),
            srq: None,
            xrcd: None,
            cap: ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sig_all: false,
            flavour: Flavour::Classic,
            ops: None,
            more_ops: ibv_qp_create_send_ops_flags(0),
            create_flags: 0,
        }
    }
}

/// A queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Qp(Arc<QpInner>);

#[derive(Debug)]
struct QpInner {
    raw: RawHandle<ibv_qp>,
    granted: ibv_qp_cap,
    flavour: Flavour,
    posting: Mutex<()>,
    /// Address handles must live until the requests that use them are complete (`man
    /// ibv_post_send`).
    handles: Mutex<Vec<Ah>>,
    device: Device,
    _domains: (Option<Pd>, Option<Xrcd>),
    _queues: (Option<Cq>, Option<Cq>, Option<Srq>),
    /// Set for a pair that librdmacm created and destroys.
    of_cm: Option<CmId>,
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.raw.drop(|qp| self.destroy(qp));
    }
}

impl QpInner {
    fn destroy(&self, qp: *mut ibv_qp) -> i32 {
        match &self.of_cm {
            Some(id) => id.destroy_qp(),
            // SAFETY: `RawHandle` calls this once, with a live pair.
            None => unsafe { (self.device.lib().ibv_destroy_qp)(qp) },
        }
    }
}

/// The attributes of a change, with their mask.
#[derive(Clone, Copy)]
pub(crate) struct QpChange {
    pub(crate) attr: ibv_qp_attr,
    pub(crate) mask: u32,
}

impl QpChange {
    /// Changes the state only.
    pub(crate) fn to(state: ibv_qp_state) -> Self {
        let attr = ibv_qp_attr { qp_state: state, ..Default::default() };
        Self { attr, mask: ibv_qp_attr_mask::IBV_QP_STATE.0 }
    }

    /// Adds an attribute.
    pub(crate) fn with(mut self, mask: ibv_qp_attr_mask, set: impl FnOnce(&mut ibv_qp_attr)) -> Self {
        set(&mut self.attr);
        self.mask |= mask.0;
        self
    }

    /// Removes an attribute.
    pub(crate) fn without(mut self, mask: ibv_qp_attr_mask) -> Self {
        self.mask &= !mask.0;
        self
    }
}

impl Qp {
    pub(crate) fn new(pd: &Pd, init: &QpInit) -> Result<Self, i32> {
        Self::make(pd.device(), Some(pd), init)
    }

    /// Creates the receiving end of an XRC connection.
    pub(crate) fn target(xrcd: &Xrcd) -> Result<Self, i32> {
        Self::make(
            xrcd.device(),
            None,
            &QpInit {
                qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
                send_cq: None,
                recv_cq: None,
                srq: None,
                xrcd: Some(xrcd.clone()),
                cap: ibv_qp_cap::default(),
                sig_all: false,
                flavour: Flavour::Classic,
                ops: None,
                more_ops: ibv_qp_create_send_ops_flags(0),
                create_flags: 0,
            },
        )
    }

    pub(crate) fn make(device: &Device, pd: Option<&Pd>, init: &QpInit) -> Result<Self, i32> {
        let cq = |cq: &Option<Cq>| cq.as_ref().map_or(std::ptr::null_mut(), Cq::raw);
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: cq(&init.send_cq),
            recv_cq: cq(&init.recv_cq),
            srq: init.srq.as_ref().map_or(std::ptr::null_mut(), Srq::raw),
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sig_all.into(),
            pd: pd.map_or(std::ptr::null_mut(), Pd::raw),
            xrcd: init.xrcd.as_ref().map_or(std::ptr::null_mut(), Xrcd::raw),
            ..Default::default()
        };
        if pd.is_some() {
            attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        }
        if init.xrcd.is_some() {
            attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
        }
        if init.flavour == Flavour::Extended {
            attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            attr.send_ops_flags = init.ops.unwrap_or(operations(init.qp_type, init.more_ops));
        }
        if init.create_flags != 0 {
            attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
            attr.create_flags = init.create_flags;
        }
        // SAFETY: `RawHandle` checks that context, domains and queues live, the attributes are
        // local variables.
        let qp = unsafe { verbs::ibv_create_qp_ex(device.lib(), device.raw(), &raw mut attr) };
        Ok(Self(Arc::new(QpInner {
            raw: RawHandle::new("a queue pair", qp)?,
            granted: attr.cap,
            flavour: init.flavour,
            posting: Mutex::new(()),
            handles: Mutex::default(),
            device: device.clone(),
            _domains: (pd.cloned(), init.xrcd.clone()),
            _queues: (init.send_cq.clone(), init.recv_cq.clone(), init.srq.clone()),
            of_cm: None,
        })))
    }

    /// Takes over a pair that librdmacm has just created for an identifier.
    pub(super) fn of_cm(
        id: &CmId,
        device: &Device,
        qp: *mut ibv_qp,
        granted: ibv_qp_cap,
        pd: Option<Pd>,
        init: &QpInit,
    ) -> Result<Self, i32> {
        Ok(Self(Arc::new(QpInner {
            raw: RawHandle::new("a queue pair of an identifier", qp)?,
            granted,
            flavour: Flavour::Classic,
            posting: Mutex::new(()),
            handles: Mutex::default(),
            device: device.clone(),
            _domains: (pd, None),
            _queues: (init.send_cq.clone(), init.recv_cq.clone(), init.srq.clone()),
            of_cm: Some(id.clone()),
        })))
    }

    /// Opens another handle of a target pair (`ibv_open_qp`).
    pub(crate) fn open(xrcd: &Xrcd, qp_num: u32, qp_type: ibv_qp_type) -> Result<Self, i32> {
        use ibv_qp_open_attr_mask as Mask;
        let mut attr = ibv_qp_open_attr {
            comp_mask: Mask::IBV_QP_OPEN_ATTR_NUM.0
                | Mask::IBV_QP_OPEN_ATTR_XRCD.0
                | Mask::IBV_QP_OPEN_ATTR_TYPE.0,
            qp_num,
            xrcd: xrcd.raw(),
            qp_type,
            ..Default::default()
        };
        let device = xrcd.device();
        // SAFETY: `RawHandle` checks that context and domain live, the attributes are local
        // variables.
        let qp = unsafe { verbs::ibv_open_qp(device.raw(), &raw mut attr) };
        Ok(Self(Arc::new(QpInner {
            raw: RawHandle::new("an opened queue pair", qp)?,
            granted: ibv_qp_cap::default(),
            flavour: Flavour::Classic,
            posting: Mutex::new(()),
            handles: Mutex::default(),
            device: device.clone(),
            _domains: (None, Some(xrcd.clone())),
            _queues: (None, None, None),
            of_cm: None,
        })))
    }

    pub(super) fn device(&self) -> &Device {
        &self.0.device
    }

    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.0.raw.get()
    }

    pub(crate) fn address(&self) -> usize {
        self.raw().addr()
    }

    /// The capacities that the device granted.
    pub(crate) fn granted(&self) -> ibv_qp_cap {
        self.0.granted
    }

    pub(crate) fn num(&self) -> u32 {
        // SAFETY: `RawHandle` checks that the pair lives. It has this field in every release.
        unsafe { (*self.raw()).qp_num }
    }

    /// The state in the library's struct.
    pub(crate) fn cached_state(&self) -> ibv_qp_state {
        // SAFETY: `RawHandle` checks that the pair lives. It has this field in every release.
        unsafe { (*self.raw()).state }
    }

    pub(crate) fn destroy(&self) -> i32 {
        self.0.raw.end(|qp| self.0.destroy(qp))
    }

    /// Gives up ownership: closing the context destroys the pair.
    pub(crate) fn forget(&self) {
        self.0.raw.forget();
    }

    pub(crate) fn modify(&self, mut change: QpChange) -> i32 {
        let lib = self.0.device.lib();
        // SAFETY: `RawHandle` checks that the pair lives, the attributes are local variables.
        unsafe { (lib.ibv_modify_qp)(self.raw(), &raw mut change.attr, change.mask as i32) }
    }

    pub(crate) fn query(&self, mask: u32) -> Result<(ibv_qp_attr, ibv_qp_init_attr), i32> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let lib = self.0.device.lib();
        // SAFETY: `RawHandle` checks that the pair lives, the attributes are local variables.
        match unsafe { (lib.ibv_query_qp)(self.raw(), &raw mut attr, mask as i32, &raw mut init) } {
            0 => Ok((attr, init)),
            error => Err(error),
        }
    }

    /// The state that the device reports.
    pub(crate) fn state(&self) -> ibv_qp_state {
        self.query(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap().0.qp_state
    }

    /// Waits for a state.
    pub(crate) fn reaches(&self, state: ibv_qp_state) -> bool {
        poll_until(WAIT_LIMIT, || (self.state() == state).then_some(())).is_some()
    }

    /// Posts requests in one list, in the pair's own flavour. The error has the error number and
    /// the index of the refused request (none for an extended pair).
    pub(crate) fn post(&self, requests: &[Wr]) -> Result<(), (i32, usize)> {
        let handles = requests.iter().filter_map(|request| request.to.as_ref()).map(|(ah, ..)| ah.clone());
        self.0.handles.lock().unwrap_or_else(PoisonError::into_inner).extend(handles);
        match self.0.flavour {
            Flavour::Classic => self.post_classic(requests),
            Flavour::Extended => self.post_extended(requests),
        }
    }

    /// Posts a receive request.
    pub(crate) fn recv(&self, request: Recv) {
        self.recv_list(&[request]).unwrap();
    }

    /// Posts receive requests. The error has the error number and the index of the refused request.
    pub(crate) fn recv_list(&self, requests: &[Recv]) -> Result<(), (i32, usize)> {
        // SAFETY: `RawHandle` checks that the pair lives, and every context has the operation.
        // `Recv::post` keeps the list alive during the call.
        Recv::post(requests, |first, bad| unsafe { verbs::ibv_post_recv(self.raw(), first, bad) })
    }

    /// Posts with `ibv_post_send`.
    fn post_classic(&self, requests: &[Wr]) -> Result<(), (i32, usize)> {
        let mut lists: Vec<Vec<ibv_sge>> = requests.iter().map(list).collect();
        let mut chain: Vec<ibv_send_wr> = requests.iter().zip(&mut lists).map(classic).collect();
        let first = chain.as_mut_ptr();
        for n in 1..chain.len() {
            // SAFETY: both pointers are to elements of the vector, which nothing else accesses
            // until the call returns.
            unsafe { (*first.add(n - 1)).next = first.add(n) };
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: `RawHandle` checks that the pair lives, and every context has the operation. The
        // lists and inline data outlive the call.
        match unsafe { verbs::ibv_post_send(self.raw(), first, &raw mut bad) } {
            0 => Ok(()),
            error => Err((error, index(first, bad))),
        }
    }

    /// Posts with `ibv_wr_*`.
    fn post_extended(&self, requests: &[Wr]) -> Result<(), (i32, usize)> {
        let _lock = self.0.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let qp = self.extended();
        // SAFETY: an extended pair. No batch is open, because this function holds the lock.
        unsafe { verbs::ibv_wr_start(qp) };
        for request in requests {
            // SAFETY: `ibv_wr_start` above opened the batch, and the pair was created with these
            // operations.
            unsafe { build(qp, request) };
        }
        // SAFETY: `ibv_wr_start` above opened the batch, and every request in it is complete.
        match unsafe { verbs::ibv_wr_complete(qp) } {
            0 => Ok(()),
            error => Err((error, usize::MAX)),
        }
    }

    /// Builds requests and aborts the batch.
    pub(crate) fn post_and_abort(&self, requests: &[Wr]) {
        let _lock = self.0.posting.lock().unwrap_or_else(PoisonError::into_inner);
        let qp = self.extended();
        // SAFETY: an extended pair. No batch is open, because this function holds the lock.
        unsafe { verbs::ibv_wr_start(qp) };
        for request in requests {
            // SAFETY: `ibv_wr_start` above opened the batch, and the pair was created with these
            // operations.
            unsafe { build(qp, request) };
        }
        // SAFETY: `ibv_wr_start` above opened the batch.
        unsafe { verbs::ibv_wr_abort(qp) };
    }

    fn extended(&self) -> *mut ibv_qp_ex {
        assert_eq!(self.0.flavour, Flavour::Extended);
        let convert = self.0.device.lib().ibv_qp_to_qp_ex().unwrap();
        // SAFETY: `RawHandle` checks that the pair lives.
        let qp = unsafe { convert(self.raw()) };
        assert!(!qp.is_null(), "a pair with send_ops_flags is an extended one");
        qp
    }

    /// Whether the library has an extended interface for the pair.
    pub(crate) fn is_extended(&self) -> bool {
        let convert = self.0.device.lib().ibv_qp_to_qp_ex().unwrap();
        // SAFETY: `RawHandle` checks that the pair lives.
        !unsafe { convert(self.raw()) }.is_null()
    }
}

/// The scatter/gather list of a request; inline data becomes one entry without a key.
fn list(request: &Wr) -> Vec<ibv_sge> {
    match &request.data {
        WrData::List(list) => list.iter().map(|sge| sge.raw()).collect(),
        WrData::Inline(bytes) => {
            vec![ibv_sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: bytes.len() as u32,
                lkey: 0,
            }]
        }
    }
}

fn classic((request, list): (&Wr, &mut Vec<ibv_sge>)) -> ibv_send_wr {
    let mut wr = ibv_send_wr {
        wr_id: request.id,
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as i32,
        opcode: request.opcode,
        send_flags: request.flags,
        ..Default::default()
    };
    wr.__bindgen_anon_1.imm_data = match request.opcode {
        // This field carries the key instead of immediate data.
        ibv_wr_opcode::IBV_WR_LOCAL_INV | ibv_wr_opcode::IBV_WR_SEND_WITH_INV => request.imm,
        _ => request.imm.to_be(),
    };
    if let Some(remote_srqn) = request.srqn {
        wr.qp_type.xrc.remote_srqn = remote_srqn;
    }
    if let Some((mw, rkey, part)) = &request.bind {
        let (mw, bind_info) = (mw.raw(), part.info());
        wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey: *rkey, bind_info };
    }
    match (request.opcode, &request.to) {
        (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP | ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, _) => {
            wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr: request.remote.addr,
                compare_add: request.operands.0,
                swap: request.operands.1,
                rkey: request.remote.rkey,
            };
        }
        (_, Some((ah, remote_qpn, remote_qkey))) => {
            wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah: ah.raw(),
                remote_qpn: *remote_qpn,
                remote_qkey: *remote_qkey,
            };
        }
        _ => {
            wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
                remote_addr: request.remote.addr,
                rkey: request.remote.rkey,
            };
        }
    }
    wr
}

/// Adds a request to the open batch.
///
/// # Safety
///
/// - `qp` is a live extended pair with an open batch, and was created with the request's operation.
unsafe fn build(qp: *mut ibv_qp_ex, request: &Wr) {
    let (remote, operands) = (request.remote, request.operands);
    // SAFETY: the pair is live and its batch open (`# Safety`). The two fields are in every
    // release. The calls copy the entries and the inline bytes, which outlive them.
    unsafe {
        (&raw mut (*qp).wr_id).write(request.id);
        (&raw mut (*qp).wr_flags).write(request.flags & !ibv_send_flags::IBV_SEND_INLINE.0);
        match request.opcode {
            ibv_wr_opcode::IBV_WR_SEND => verbs::ibv_wr_send(qp),
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => verbs::ibv_wr_send_imm(qp, request.imm.to_be()),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => verbs::ibv_wr_rdma_write(qp, remote.rkey, remote.addr),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                verbs::ibv_wr_rdma_write_imm(qp, remote.rkey, remote.addr, request.imm.to_be());
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => verbs::ibv_wr_rdma_read(qp, remote.rkey, remote.addr),
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
                verbs::ibv_wr_atomic_cmp_swp(qp, remote.rkey, remote.addr, operands.0, operands.1);
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                verbs::ibv_wr_atomic_fetch_add(qp, remote.rkey, remote.addr, operands.0);
            }
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV => verbs::ibv_wr_send_inv(qp, request.imm),
            ibv_wr_opcode::IBV_WR_LOCAL_INV => return verbs::ibv_wr_local_inv(qp, request.imm),
            ibv_wr_opcode::IBV_WR_BIND_MW => {
                let (mw, rkey, part) = request.bind.as_ref().unwrap();
                let info = part.info();
                return verbs::ibv_wr_bind_mw(qp, mw.raw(), *rkey, &raw const info);
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => {
                let value = (&raw const operands.0).cast();
                return verbs::ibv_wr_atomic_write(qp, remote.rkey, remote.addr, value);
            }
            ibv_wr_opcode::IBV_WR_FLUSH => {
                let (placement, level) = (operands.1 as u8, (operands.1 >> 8) as u8);
                let len = operands.0 as usize;
                return verbs::ibv_wr_flush(qp, remote.rkey, remote.addr, len, placement, level);
            }
            other => panic!("extended pairs have no {other:?} here"),
        }
        match &request.data {
            WrData::List(list) if list.len() == 1 => {
                verbs::ibv_wr_set_sge(qp, list[0].lkey, list[0].addr, list[0].length);
            }
            WrData::List(_) => {
                let list = list(request);
                verbs::ibv_wr_set_sge_list(qp, list.len(), list.as_ptr());
            }
            WrData::Inline(bytes) => {
                verbs::ibv_wr_set_inline_data(qp, bytes.as_ptr().cast_mut().cast(), bytes.len());
            }
        }
        if let Some((ah, qpn, qkey)) = &request.to {
            verbs::ibv_wr_set_ud_addr(qp, ah.raw(), *qpn, *qkey);
        }
        if let Some(srqn) = request.srqn {
            verbs::ibv_wr_set_xrc_srqn(qp, srqn);
        }
    }
}
