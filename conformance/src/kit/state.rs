//! Nodes with a queue pair in a given state, and the changes that lead there.

use libc::EINVAL;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;

use super::TestDevice;
use super::{Flavour, Node, NodeOptions, QpChange, WAIT_LIMIT, poll_until};

/// The types that every device supports.
pub(crate) const TYPES: [Type; 3] = [Type::IBV_QPT_RC, Type::IBV_QPT_UC, Type::IBV_QPT_UD];

/// All states that `ibv_modify_qp` can set.
pub(crate) const STATES: [State; 6] = [
    State::IBV_QPS_RESET,
    State::IBV_QPS_INIT,
    State::IBV_QPS_RTR,
    State::IBV_QPS_RTS,
    State::IBV_QPS_SQD,
    State::IBV_QPS_ERR,
];

/// A node of this type, in RESET.
pub(crate) fn node(dut: &TestDevice, qp_type: Type) -> Node {
    Node::new(&dut.open(), &NodeOptions::new(qp_type, Flavour::Classic))
}

/// A node in this state, connected to itself.
pub(crate) fn node_in(dut: &TestDevice, qp_type: Type, state: State) -> Node {
    let node = node(dut, qp_type);
    let path = [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS];
    let steps = match state {
        State::IBV_QPS_RESET => 0,
        State::IBV_QPS_INIT | State::IBV_QPS_ERR => 1,
        State::IBV_QPS_RTR => 2,
        _ => 3,
    };
    for step in &path[..steps] {
        assert_eq!(node.qp.modify(node.change_to(*step)), 0, "{step:?}");
    }
    if [State::IBV_QPS_ERR, State::IBV_QPS_SQD].contains(&state) {
        node.go(state);
    }
    if state == State::IBV_QPS_SQD {
        node.drained();
    }
    node
}

impl Node {
    /// The usual change to one of the states from INIT to RTS.
    pub(crate) fn change_to(&self, state: State) -> QpChange {
        match state {
            State::IBV_QPS_INIT => self.to_init(),
            State::IBV_QPS_RTR => self.to_rtr(&self.peer()),
            State::IBV_QPS_RTS => self.to_rts(),
            other => QpChange::to(other),
        }
    }

    /// Waits until the send queue is drained.
    pub(crate) fn drained(&self) {
        let mask = Mask::IBV_QP_STATE.0;
        let drained =
            poll_until(WAIT_LIMIT, || (self.qp.query(mask).unwrap().0.sq_draining == 0).then_some(()));
        assert!(drained.is_some(), "the send queue does not drain");
    }

    /// Asserts that this change fails with `EINVAL` and leaves the state as it was.
    pub(crate) fn refuses(&self, change: QpChange, what: &str) {
        let before = self.qp.state();
        assert_eq!(self.qp.modify(change), EINVAL, "{what}");
        assert_eq!(self.qp.state(), before, "{what}");
    }
}
