//! What `soft_rnic::status::unanswered` says after a request that nobody acknowledged: one case for
//! each reason, with a real process at the other end.

use libtest_mimic::Trial;
use rdma_mummy_sys::types::*;
use rustix::process::Signal;
use soft_rnic::status::{Unanswered, unanswered};

use crate::kit::QpAddress;
use crate::partner::TestEndpoint;
use crate::rights::{self, NOBODY};
use crate::role::{self, ChildRole};

pub(crate) fn trials() -> Vec<Trial> {
    let case = |reason: &'static str| {
        let lacks = if reason == "another_user" { rights::not_root } else { || None };
        rights::trial_unless(format!("unanswered::{reason}_is_named"), lacks, move || {
            // By other paths a stopped process needs no time to be written to.
            let path = if reason == "a_stopped_process" { "call" } else { "auto" };
            role::run(&format!("unanswered {reason}"), &[("SOFT_RNIC_PATH", path)])
        })
    };
    ["another_user", "another_fabric", "a_stopped_process", "a_dead_process", "a_queue_pair_that_is_gone"]
        .map(case)
        .into()
}

/// Sends to a partner that does not acknowledge, for the reason that the argument names.
pub(crate) fn play(reason: &str) {
    let other = role::fabric();
    let (partner, variables) = match reason {
        "another_user" => ("partner nobody", vec![]),
        "another_fabric" => ("partner", vec![("SOFT_RNIC_FABRIC", other.as_str())]),
        _ => ("partner", vec![]),
    };
    let mut partner = ChildRole::start(partner, &variables);
    let side = TestEndpoint::new();
    let told: QpAddress = partner.hear().parse().expect("an address");
    partner.tell(&side.address().to_string());
    assert_eq!(partner.hear(), "ready");
    let (qp_num, pid) = (told.qpn, partner.child.id());
    let gone = QpAddress { qpn: qp_num + 1, ..told };
    let to = if reason == "a_queue_pair_that_is_gone" { gone } else { told };
    side.connect(&to);
    match reason {
        "a_stopped_process" => {
            partner.signal(Signal::STOP);
            partner.wait_stopped();
        }
        "a_dead_process" => {
            partner.signal(Signal::KILL);
            partner.wait_dead();
        }
        _ => {}
    }
    assert_eq!(side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to), ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    let own = std::env::var("SOFT_RNIC_FABRIC").expect("every role has one");
    let found = unanswered(side.qp.number()).expect("it is connected");
    match (reason, &found) {
        ("another_user", Unanswered::OtherUser { qp_num: number, user: NOBODY, own: 0 }) => {
            assert_eq!(*number, qp_num);
        }
        ("another_fabric", Unanswered::OtherFabric { qp_num: number, fabric, own: said }) => {
            assert_eq!((*number, fabric, said), (qp_num, &other, &own));
        }
        ("a_stopped_process", Unanswered::Stopped { qp_num: number, pid: found }) => {
            assert_eq!((*number, *found), (qp_num, pid));
        }
        ("a_dead_process", Unanswered::Nobody { qp_num: number }) => assert_eq!(*number, qp_num),
        ("a_queue_pair_that_is_gone", Unanswered::Reachable { qp_num: number, pid: found }) => {
            assert_eq!((*number, *found), (qp_num + 1, Some(pid)));
        }
        _ => panic!("{reason}: {found}"),
    }
    assert_eq!(unanswered(side.qp.number() + 1), None, "no queue pair of this process");
    side.close();
}
