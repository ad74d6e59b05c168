//! Memory windows between processes: a peer writes through a window, and then invalidates its key.

use std::ptr;
use std::time::Duration;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::kit::{QpAddress, TestCq, TestDevice, TestMemory, TestQp, Timing, dereg};
use crate::role::{self, ChildRole, say, told};

const SLACK: Duration = Duration::from_secs(20);
const TIMING: Timing = Timing { timeout: 16, retry_cnt: 3 };
/// The length of the window, and of a write, in bytes.
const LEN: usize = 100_000;
const VALUE: u64 = 0x0123_4567_89ab_cdef;
/// The offset of the atomic write.
const AT: usize = 4096;

pub(crate) fn trials() -> Vec<Trial> {
    ["direct", "vm", "call"]
        .into_iter()
        .flat_map(|path| ["right", "wrong"].map(|key| (path, key)))
        .map(|(path, key)| {
            Trial::test(format!("windows::a_peer_invalidates_a_{key}_key_by_{path}"), move || {
                let setting = if path == "direct" { "auto" } else { path };
                role::run(&format!("window-owner {path} {key}"), &[("SOFT_RNIC_PATH", setting)])
            })
        })
        .collect()
}

fn post(qp: TestQp, mut wr: ibv_send_wr) {
    wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is live, and the request and its memory live during the call at least.
    assert_eq!(unsafe { verbs::ibv_post_send(qp.0, &raw mut wr, &raw mut bad) }, 0);
}

fn status(cq: TestCq) -> u32 {
    cq.one("a completion", SLACK).status.0
}

/// The owner role: has a window that a peer uses.
pub(crate) fn owner(arguments: &[String]) {
    let [path, key] = arguments else { panic!("two arguments") };
    let device = TestDevice::open();
    let memory = if path == "direct" { TestMemory::shareable(device, LEN) } else { TestMemory::private(LEN) };
    let inbox = TestMemory::private(4096);
    memory.fill(0);
    let (mr, inbox_mr) = (memory.register(device), inbox.register(device));
    let cq = device.cq(16, ptr::null_mut());
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 8);
    qp.init();
    for id in 0..2 {
        assert_eq!(qp.receive(id, inbox.sge(inbox_mr, 0, 4096)), 0);
    }
    // SAFETY: the domain is live.
    let mw = unsafe { verbs::ibv_alloc_mw(device.pd, ibv_mw_type::IBV_MW_TYPE_2) };
    assert!(!mw.is_null(), "ibv_alloc_mw: {}", std::io::Error::last_os_error());
    // SAFETY: the window is live.
    let rkey = verbs::ibv_inc_rkey(unsafe { (*mw).rkey });
    // SAFETY: a GID is plain bytes.
    let gid = unsafe { device.gid().raw };

    let mut peer = ChildRole::start("window-peer", &[]);
    let address = QpAddress { qpn: qp.number(), gid, addr: memory.base.addr() as u64, rkey };
    peer.tell(&format!("{key} {address}"));
    qp.connect(&peer.hear().parse().expect("an address"), TIMING);
    let bind_info = ibv_mw_bind_info {
        mr,
        addr: address.addr,
        length: LEN as u64,
        mw_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
    };
    let mut wr = ibv_send_wr { opcode: ibv_wr_opcode::IBV_WR_BIND_MW, ..Default::default() };
    wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info };
    post(qp, wr);
    assert_eq!(status(cq), 0, "the window is bound");
    peer.tell("go");
    let statuses = peer.hear();

    let wc = cq.one("the one before", SLACK);
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (0, ibv_wc_status::IBV_WC_SUCCESS, 300));
    let wc = cq.one("the message", SLACK);
    assert_eq!(wc.wr_id, 1);
    if key == "right" {
        let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR.0;
        assert_eq!(statuses, format!("0 0 0 {refused}"), "after its key is gone, the peer is refused");
        assert_eq!((wc.status, wc.byte_len), (ibv_wc_status::IBV_WC_SUCCESS, 64));
        assert_ne!(wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0, 0);
        // SAFETY: the flag tells that the union holds a key.
        assert_eq!(unsafe { wc.__bindgen_anon_1.invalidated_rkey }, rkey);
    } else {
        assert!(statuses.starts_with("0 0 ") && !statuses.starts_with("0 0 0"), "{statuses}");
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
    }
    assert_eq!(memory.byte(0), 0x5a);
    let value: Vec<u8> = (AT..AT + 8).map(|at| memory.byte(at)).collect();
    assert_eq!(value, VALUE.to_ne_bytes(), "the atomic write is there");
    assert_eq!(memory.part_differs(AT + 8, LEN - AT - 8, 0x5a), None, "the write is there");
    // An unbound window holds no region.
    assert_eq!(dereg(mr), if key == "right" { 0 } else { libc::EBUSY });
    peer.finish();
    // SAFETY: the window is live, and nobody uses it afterwards.
    assert_eq!(unsafe { verbs::ibv_dealloc_mw(mw) }, 0);
    if key == "wrong" {
        assert_eq!(dereg(mr), 0);
    }
    assert_eq!(qp.destroy(), 0);
    assert_eq!(dereg(inbox_mr), 0);
    cq.destroy();
    memory.free();
    inbox.free();
    device.close();
}

/// The peer role: writes through the window, invalidates its key, and tries to write again.
pub(crate) fn peer() {
    let line = told().expect("a line");
    let [key, address] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("two words") };
    let to: QpAddress = address.parse().expect("an address");
    let device = TestDevice::open();
    let memory = TestMemory::private(LEN);
    memory.fill(0x5a);
    let (mr, cq) = (memory.register(device), device.cq(16, ptr::null_mut()));
    let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, ptr::null_mut(), 8);
    qp.init();
    // SAFETY: a GID is plain bytes.
    let gid = unsafe { device.gid().raw };
    say(&QpAddress { qpn: qp.number(), gid, ..QpAddress::default() }.to_string());
    assert_eq!(told().as_deref(), Some("go"));
    qp.connect(&to, TIMING);

    let write = |opcode, sge: ibv_sge, at: u64| {
        let mut list = [sge];
        let (sg_list, num_sge) = (list.as_mut_ptr(), 1);
        let mut wr = ibv_send_wr { opcode, sg_list, num_sge, ..Default::default() };
        wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: to.addr + at, rkey: to.rkey };
        post(qp, wr);
        status(cq)
    };
    let mut statuses = vec![write(ibv_wr_opcode::IBV_WR_RDMA_WRITE, memory.sge(mr, 0, LEN), 0)];
    for (at, byte) in VALUE.to_ne_bytes().into_iter().enumerate() {
        memory.set(at, byte);
    }
    let value = memory.sge(mr, 0, 8);
    statuses.push(write(ibv_wr_opcode::IBV_WR_ATOMIC_WRITE, value, AT as u64));

    // One list: two writes through the window, a message that the system copies, and the message
    // that invalidates the key.
    use ibv_wr_opcode as O;
    let mut entries = [(8, 100), (200, 5000), (0, 300), (0, 64)].map(|(at, len)| memory.sge(mr, at, len));
    let opcodes = [O::IBV_WR_RDMA_WRITE, O::IBV_WR_RDMA_WRITE, O::IBV_WR_SEND, O::IBV_WR_SEND_WITH_INV];
    let mut list = opcodes.map(|opcode| ibv_send_wr { opcode, num_sge: 1, ..Default::default() });
    for (wr, entry) in list.iter_mut().zip(&mut entries) {
        let remote_addr = to.addr + AT as u64 + 8;
        wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey: to.rkey };
        (wr.sg_list, wr.send_flags) = (ptr::from_mut(entry), ibv_send_flags::IBV_SEND_SIGNALED.0);
    }
    list[3].__bindgen_anon_1.invalidate_rkey = if key == "right" { to.rkey } else { to.rkey ^ 0x55 };
    for number in 0..3 {
        list[number].next = &raw mut list[number + 1];
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is live, and the requests and their memory live during the call at
    // least.
    assert_eq!(unsafe { verbs::ibv_post_send(qp.0, list.as_mut_ptr(), &raw mut bad) }, 0);
    (0..3).for_each(|number| assert_eq!(status(cq), 0, "request {number} of the list"));
    statuses.push(status(cq));
    statuses.push(write(ibv_wr_opcode::IBV_WR_RDMA_WRITE, memory.sge(mr, 0, LEN), 0));
    say(&statuses.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    assert_eq!(told(), None);
}
