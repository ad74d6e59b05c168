//! Implicit regions (the whole address space on demand), reached from another process on every data
//! path.

use std::ptr;

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::kit::{QpAddress, TestDevice, dereg, lib, rkey, until};
use crate::partner::{LEN, PATIENCE, RECEIVES, TestEndpoint};
use crate::regions::traffic;
use crate::role::{self, ChildRole, say, told};

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
const READ: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
/// No process can map this address.
const NOWHERE: u64 = 4096;
/// Bytes that fit into the receiver's slot, and bytes that do not.
const LENGTHS: [usize; 3] = [8, 300, LEN];

pub(crate) fn trials() -> Vec<Trial> {
    let paths = ["auto", "vm", "call"].map(|path| {
        Trial::test(format!("implicit::a_region_is_reached_by_the_path_{path}"), move || {
            ["write", "read", "receive", "from", "into"].iter().try_for_each(|missing| {
                role::run(&format!("implicit {path} {missing}"), &[("SOFT_RNIC_PATH", path)])
            })
        })
    });
    paths.into()
}

fn register_all(device: TestDevice) -> *mut ibv_mr {
    use ibv_access_flags as A;
    let access = A::IBV_ACCESS_ON_DEMAND.0
        | A::IBV_ACCESS_LOCAL_WRITE.0
        | A::IBV_ACCESS_REMOTE_WRITE.0
        | A::IBV_ACCESS_REMOTE_READ.0;
    // SAFETY: the domain is live. Requests name memory of the endpoints, or none.
    let mr =
        unsafe { verbs::ibv_reg_mr(lib(), device.pd, ptr::null_mut(), usize::MAX, access.cast_signed()) };
    assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
    mr
}

fn sge(mr: *mut ibv_mr, addr: u64, len: usize) -> ibv_sge {
    // SAFETY: the region is live.
    ibv_sge { addr, length: len as u32, lkey: unsafe { (*mr).lkey } }
}

/// The owner role: posts receives at the addresses that it is told, and reports them.
pub(crate) fn owner() {
    let side = TestEndpoint::new();
    let all = register_all(side.device);
    say(&QpAddress { rkey: rkey(all), ..side.address() }.to_string());
    let to: QpAddress = told().expect("a line").parse().expect("an address");
    side.connect(&to);
    say("ready");
    while let Some(line) = told() {
        if let Some(byte) = line.strip_prefix("differs ") {
            say(&format!("{:?}", side.memory.differs(byte.parse().expect("a byte"))));
            continue;
        }
        let address = if line == "nowhere" { NOWHERE } else { side.memory.base.addr() as u64 };
        side.memory.fill(0);
        assert_eq!(side.qp.receive(9, sge(all, address, LEN)), 0);
        say("posted");
        let wc = until("a message", PATIENCE, || side.cq.poll().filter(|wc| wc.wr_id == 9));
        let there = (0..LEN).take_while(|at| side.memory.byte(*at) != 0).count();
        say(&format!("{} {there}", wc.status.0));
    }
    assert_eq!(dereg(all), 0);
    side.close();
}

pub(crate) fn play(arguments: &[String]) {
    let [path, missing] = arguments else { panic!("{arguments:?}") };
    let mut partner = ChildRole::start("implicit-owner", &[("SOFT_RNIC_PATH", path)]);
    let side = TestEndpoint::new();
    let all = register_all(side.device);
    let there: QpAddress = partner.hear().parse().expect("an address");
    partner.tell(&side.address().to_string());
    side.connect(&there);
    assert_eq!(partner.hear(), "ready");
    let here = side.memory.base.addr() as u64;
    let run = |opcode, address, len, to: &QpAddress| {
        assert_eq!(side.qp.post(7, opcode, sge(all, address, len), to, ptr::null_mut()), 0);
        until("the request", PATIENCE, || side.cq.poll().filter(|wc| wc.wr_id == 7)).status
    };
    // Use up the receives that the partner began with.
    (0..RECEIVES).for_each(|_| assert_eq!(run(SEND, here, LEN, &there), SUCCESS));
    for byte in 1..=5 {
        side.memory.fill(byte);
        assert_eq!(run(WRITE, here, LEN, &there), SUCCESS);
        partner.tell(&format!("differs {byte}"));
        assert_eq!(partner.hear(), "None");
        side.memory.fill(0);
        assert_eq!(run(READ, here, LEN, &there), SUCCESS);
        assert_eq!(side.memory.differs(byte), None);
        for len in LENGTHS {
            partner.tell("here");
            assert_eq!(partner.hear(), "posted");
            assert_eq!(run(SEND, here, len, &there), SUCCESS);
            assert_eq!(partner.hear(), format!("0 {len}"));
        }
    }
    let went = traffic();
    match path.as_str() {
        "call" => assert!(went.call.messages >= 15 && went.vm.messages == 0, "{went:?}"),
        _ => assert!(went.vm.messages >= 15 && went.call.messages == 0, "{went:?}"),
    }
    let nowhere = QpAddress { addr: NOWHERE, ..there };
    let (local, remote) = (ibv_wc_status::IBV_WC_LOC_PROT_ERR, ibv_wc_status::IBV_WC_REM_OP_ERR);
    match missing.as_str() {
        "write" => assert_eq!(run(WRITE, here, LEN, &nowhere), remote),
        "read" => assert_eq!(run(READ, here, LEN, &nowhere), remote),
        "from" => assert_eq!(run(WRITE, NOWHERE, LEN, &there), local),
        "into" => assert_eq!(run(READ, NOWHERE, LEN, &there), local),
        _ => {
            partner.tell("nowhere");
            assert_eq!(partner.hear(), "posted");
            assert_eq!(run(SEND, here, LEN, &there), remote);
            assert_eq!(partner.hear(), format!("{} 0", local.0));
        }
    }
    drop(partner);
    assert_eq!(dereg(all), 0);
    side.close();
}
