//! A queue pair with its queues and memory, and pairs of them.

use rdma_mummy_sys::types::*;

use super::lids::is_group;
use super::memory::ALL;
use super::{Ah, Buf, Cq, Device, Flavour, Mr, Pd, Qp, QpChange, QpInit, Recv, Srq, Wc, Wr};
use super::{Skip, TestDevice, lid_of};

/// The access flags that allow everything, for memory and queue pairs.
pub(crate) const EVERYTHING: u32 = ALL;

/// The bits of access flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
pub(crate) const OPTIONAL_BITS: [u32; 10] = [20, 21, 22, 23, 24, 25, 26, 27, 28, 29];

/// The Q_Key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1122_3344;

/// How two nodes are created and connected.
#[derive(Clone, Debug)]
pub(crate) struct NodeOptions {
    pub(crate) qp_type: ibv_qp_type,
    pub(crate) flavour: Flavour,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) sig_all: bool,
    pub(crate) cqe: i32,
    pub(crate) bytes: usize,
    /// Access flags of the memory region.
    pub(crate) region: u32,
    /// Access flags of the queue pair.
    pub(crate) access: u32,
    pub(crate) mtu: ibv_mtu,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// Outstanding reads and atomics as requester; the next field is the same as responder.
    pub(crate) rd_atomic: u8,
    pub(crate) dest_rd_atomic: u8,
    pub(crate) psn: u32,
    pub(crate) qkey: u32,
    /// Operations of an extended pair in addition to the usual ones of its type.
    pub(crate) more_ops: ibv_qp_create_send_ops_flags,
    /// `ibv_qp_create_flags`
    pub(crate) create_flags: u32,
}

impl NodeOptions {
    pub(crate) fn new(qp_type: ibv_qp_type, flavour: Flavour) -> Self {
        Self {
            qp_type,
            flavour,
            cap: ibv_qp_cap {
                max_send_wr: 32,
                max_recv_wr: 32,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 0,
            },
            sig_all: false,
            cqe: 128,
            bytes: 1 << 16,
            region: ALL,
            access: ALL,
            mtu: ibv_mtu::IBV_MTU_1024,
            // 0.27 s, because SoftRoCE in an emulated machine is slow.
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.64 ms.
            min_rnr_timer: 12,
            rd_atomic: 4,
            dest_rd_atomic: 4,
            psn: 0x0012_3456,
            qkey: QKEY,
            more_ops: ibv_qp_create_send_ops_flags(0),
            create_flags: 0,
        }
    }

    pub(crate) fn rc(flavour: Flavour) -> Self {
        Self::new(ibv_qp_type::IBV_QPT_RC, flavour)
    }

    pub(crate) fn uc(flavour: Flavour) -> Self {
        Self::new(ibv_qp_type::IBV_QPT_UC, flavour)
    }

    pub(crate) fn ud(flavour: Flavour) -> Self {
        Self::new(ibv_qp_type::IBV_QPT_UD, flavour)
    }

    /// Shortens the time until [`ibv_wc_status::IBV_WC_RETRY_EXC_ERR`].
    pub(crate) fn impatient(mut self) -> Self {
        (self.timeout, self.retry_cnt) = (14, 1);
        self
    }

    pub(crate) fn set(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// The address of a queue pair, which the peer needs to connect to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpAddress {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) gid: [u8; 16],
}

/// The location of the second node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerLocation {
    SameContext,
    OtherContext,
    OtherDevice,
}

/// A queue pair with its completion queues and its memory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
    pub(crate) gid: ([u8; 16], u8),
    pub(crate) options: NodeOptions,
}

/// The attributes of a path to this GID. On an InfiniBand link only groups need a global route.
pub(crate) fn ah_attr(device: &Device, to: [u8; 16]) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    if let Some(lid) = lid_of(to) {
        (attr.dlid, attr.is_global) = (lid, is_group(to).into());
    }
    attr.grh = ibv_global_route {
        dgid: ibv_gid { raw: to },
        sgid_index: device.find_gid().unwrap().1,
        hop_limit: 64,
        ..Default::default()
    };
    attr
}

impl Node {
    /// Creates a node in RESET.
    pub(crate) fn new(device: &Device, options: &NodeOptions) -> Self {
        Self::with_queues(device, options, None, None)
    }

    /// Creates a node in RESET in this domain.
    pub(crate) fn within(device: &Device, pd: &Pd, options: &NodeOptions) -> Self {
        Self::build(device, pd.clone(), options, None, None)
    }

    /// Creates a node in RESET; it takes its receive requests from a shared queue, if one is given.
    pub(crate) fn with_queues(
        device: &Device,
        options: &NodeOptions,
        shared: Option<(&Pd, &Srq)>,
        recv_cq: Option<&Cq>,
    ) -> Self {
        let pd = shared.map_or_else(|| device.pd(), |(pd, _)| pd.clone());
        Self::build(device, pd, options, shared.map(|(_, srq)| srq), recv_cq)
    }

    fn build(
        device: &Device,
        pd: Pd,
        options: &NodeOptions,
        srq: Option<&Srq>,
        recv_cq: Option<&Cq>,
    ) -> Self {
        Self::made(device, pd, options, srq, recv_cq, Qp::new)
    }

    /// Creates a node whose queue pair `make` creates.
    pub(super) fn made(
        device: &Device,
        pd: Pd,
        options: &NodeOptions,
        srq: Option<&Srq>,
        recv_cq: Option<&Cq>,
        make: impl FnOnce(&Pd, &QpInit) -> Result<Qp, i32>,
    ) -> Self {
        let send_cq = Cq::of(device, options.cqe, options.flavour, None);
        let recv_cq = recv_cq.cloned().unwrap_or_else(|| Cq::of(device, options.cqe, options.flavour, None));
        let mut cap = options.cap;
        if srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let init = QpInit {
            cap,
            srq: srq.cloned(),
            sig_all: options.sig_all,
            flavour: options.flavour,
            more_ops: options.more_ops,
            create_flags: options.create_flags,
            ..QpInit::new(options.qp_type, &send_cq, &recv_cq)
        };
        let qp = make(&pd, &init).unwrap();
        let mr = pd.reg(&Buf::new(options.bytes), options.region).unwrap();
        let gid = device.find_gid().unwrap();
        Self { qp, send_cq, recv_cq, mr, pd, device: device.clone(), gid, options: options.clone() }
    }

    /// The address that the peer needs.
    pub(crate) fn peer(&self) -> QpAddress {
        QpAddress { qpn: self.qp.num(), psn: self.options.psn, gid: self.gid.0 }
    }

    pub(crate) fn to_init(&self) -> QpChange {
        let change = QpChange::to(ibv_qp_state::IBV_QPS_INIT)
            .with(ibv_qp_attr_mask::IBV_QP_PKEY_INDEX, |attr| attr.pkey_index = 0)
            .with(ibv_qp_attr_mask::IBV_QP_PORT, |attr| attr.port_num = 1);
        if self.options.qp_type == ibv_qp_type::IBV_QPT_UD {
            return change.with(ibv_qp_attr_mask::IBV_QP_QKEY, |attr| attr.qkey = self.options.qkey);
        }
        // An unreliable connection permits remote writes only.
        let allowed = if self.options.qp_type == ibv_qp_type::IBV_QPT_UC { 3 } else { u32::MAX };
        change.with(ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS, |attr| {
            attr.qp_access_flags = self.options.access & allowed;
        })
    }

    pub(crate) fn to_rtr(&self, peer: &QpAddress) -> QpChange {
        let change = QpChange::to(ibv_qp_state::IBV_QPS_RTR);
        if self.options.qp_type == ibv_qp_type::IBV_QPT_UD {
            return change;
        }
        let change = change
            .with(ibv_qp_attr_mask::IBV_QP_AV, |attr| attr.ah_attr = ah_attr(&self.device, peer.gid))
            .with(ibv_qp_attr_mask::IBV_QP_PATH_MTU, |attr| attr.path_mtu = self.options.mtu)
            .with(ibv_qp_attr_mask::IBV_QP_DEST_QPN, |attr| attr.dest_qp_num = peer.qpn)
            .with(ibv_qp_attr_mask::IBV_QP_RQ_PSN, |attr| attr.rq_psn = peer.psn);
        if self.options.qp_type == ibv_qp_type::IBV_QPT_UC {
            return change;
        }
        change
            .with(ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC, |attr| {
                attr.max_dest_rd_atomic = self.options.dest_rd_atomic;
            })
            .with(ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER, |attr| {
                attr.min_rnr_timer = self.options.min_rnr_timer;
            })
    }

    pub(crate) fn to_rts(&self) -> QpChange {
        let change = QpChange::to(ibv_qp_state::IBV_QPS_RTS)
            .with(ibv_qp_attr_mask::IBV_QP_SQ_PSN, |attr| attr.sq_psn = self.options.psn);
        if self.options.qp_type != ibv_qp_type::IBV_QPT_RC {
            return change;
        }
        change
            .with(ibv_qp_attr_mask::IBV_QP_TIMEOUT, |attr| attr.timeout = self.options.timeout)
            .with(ibv_qp_attr_mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = self.options.retry_cnt)
            .with(ibv_qp_attr_mask::IBV_QP_RNR_RETRY, |attr| attr.rnr_retry = self.options.rnr_retry)
            .with(ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC, |attr| {
                attr.max_rd_atomic = self.options.rd_atomic
            })
    }

    pub(crate) fn init(&self) {
        assert_eq!(self.qp.modify(self.to_init()), 0, "RESET to INIT");
    }

    /// Changes INIT to RTR.
    pub(crate) fn rtr(&self, peer: &QpAddress) {
        assert_eq!(self.qp.modify(self.to_rtr(peer)), 0, "INIT to RTR");
    }

    pub(crate) fn rts(&self) {
        assert_eq!(self.qp.modify(self.to_rts()), 0, "RTR to RTS");
    }

    /// Changes RESET to RTS.
    pub(crate) fn connect(&self, peer: &QpAddress) {
        self.init();
        self.rtr(peer);
        self.rts();
    }

    /// Changes the state without further attributes, for example to ERR or RESET.
    pub(crate) fn go(&self, state: ibv_qp_state) {
        assert_eq!(self.qp.modify(QpChange::to(state)), 0, "to {state:?}");
    }

    /// Posts one request.
    pub(crate) fn post(&self, request: Wr) {
        self.qp.post(&[request]).unwrap();
    }

    /// Posts one request and waits for its success.
    pub(crate) fn done(&self, request: Wr) -> Wc {
        let id = request.id;
        self.post(request);
        let wc = self.send_cq.ok();
        assert_eq!(wc.id, id);
        wc
    }

    /// Posts one request and waits for its failure, which leaves the pair in ERR.
    pub(crate) fn fails(&self, request: Wr) -> ibv_wc_status {
        let id = request.id;
        self.post(request);
        let wc = self.send_cq.one();
        assert_eq!(wc.id, id);
        assert_ne!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "{wc:?}");
        assert_eq!(wc.qp_num, self.qp.num(), "{wc:?}");
        assert!(self.qp.reaches(ibv_qp_state::IBV_QPS_ERR), "a failed pair is in ERR");
        wc.status
    }

    /// Posts a receive request for part of the node's memory.
    pub(crate) fn recv(&self, id: u64, offset: usize, len: usize) {
        self.qp.recv(Recv::new(id).sge(self.mr.at(offset, len)));
    }

    /// Creates an address handle for a node.
    pub(crate) fn ah(&self, to: &Self) -> Ah {
        Ah::new(&self.pd, ah_attr(&self.device, to.gid.0)).unwrap()
    }
}

/// Two connected nodes on one device, each with its own context.
pub(crate) fn pair(dut: &TestDevice, options: &NodeOptions) -> (Node, Node) {
    pair_at(dut, PeerLocation::OtherContext, options).unwrap_or_else(|Skip(reason)| panic!("{reason}"))
}

/// Two connected nodes.
pub(crate) fn pair_at(
    dut: &TestDevice,
    place: PeerLocation,
    options: &NodeOptions,
) -> Result<(Node, Node), Skip> {
    let first = dut.open();
    let second = match place {
        PeerLocation::SameContext => first.clone(),
        PeerLocation::OtherContext => dut.open(),
        PeerLocation::OtherDevice => dut.open_peer()?,
    };
    Ok(connected([&first, &second], [options, options]))
}

/// Two connected nodes with different options.
pub(crate) fn unlike_pair(dut: &TestDevice, options: [&NodeOptions; 2]) -> (Node, Node) {
    connected([&dut.open(), &dut.open()], options)
}

fn connected(devices: [&Device; 2], options: [&NodeOptions; 2]) -> (Node, Node) {
    let a = Node::new(devices[0], options[0]);
    let b = Node::new(devices[1], &NodeOptions { psn: options[1].psn ^ 0x0054_3210, ..options[1].clone() });
    a.connect(&b.peer());
    b.connect(&a.peer());
    (a, b)
}

/// The bytes of an entry's GID.
pub(crate) fn gid_of(entry: &ibv_gid_entry) -> [u8; 16] {
    // SAFETY: any bytes are a valid GID.
    unsafe { entry.gid.raw }
}

/// The bytes of a GID.
pub(crate) fn raw_gid(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: any bytes are a valid GID.
    unsafe { gid.raw }
}
