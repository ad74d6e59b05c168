//! Verbs that most devices refuse with an error; and the library's own tables of names and rates.

use std::collections::HashSet;

use rdma_mummy_sys::types::{ibv_port_state, ibv_rate as Rate, ibv_wr_opcode};

use crate::kit::{
    Flavour, Node, NodeOptions, Outcome, Srq, Suite, TestDevice, is_absent, operation_name, port_state_name,
    rate,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_device_without_work_queues_refuses_them,
        a_device_without_flow_actions_refuses_them,
        a_device_without_completion_counters_refuses_them,
        a_device_without_dma_handles_refuses_them,
        a_shared_queue_without_tags_refuses_them,
        a_pair_says_which_data_comes_in_order,
        memory_of_the_device_s_choice_is_registered,
        rates_and_their_multiples_lead_to_each_other,
        an_unknown_rate_has_no_speed,
        port_states_have_names,
        operations_have_names,
    );
}

/// Skips the case if the device supports the object.
macro_rules! refused {
    ($error:expr, $what:literal) => {
        match $error {
            0 => skip!(concat!("the device has ", $what)),
            error => assert!(is_absent(error), "{error}"),
        }
    };
}

/// `man ibv_create_wq`, `man ibv_create_rwq_ind_table`: an error number on failure. A device
/// without them returns `EOPNOTSUPP`, or the kernel's `ENOSYS`.
fn a_device_without_work_queues_refuses_them(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &NodeOptions::rc(Flavour::Classic));
    refused!(node.pd.work_queue(&node.recv_cq), "work queues");
    refused!(node.device.indirection_table(), "indirection tables");
    Ok(())
}

/// `man ibv_flow_action_esp`: an error number on failure.
fn a_device_without_flow_actions_refuses_them(dut: &TestDevice) -> Outcome {
    refused!(dut.open().flow_action(), "flow actions");
    Ok(())
}

/// `man ibv_create_comp_cntr`: an error number on failure.
fn a_device_without_completion_counters_refuses_them(dut: &TestDevice) -> Outcome {
    match dut.open().completion_counters() {
        Err(why) => skip!("{why}"),
        Ok([asked, created]) => {
            refused!(asked, "completion counters");
            refused!(created, "completion counters");
        }
    }
    Ok(())
}

/// `man ibv_alloc_dmah`: an error number on failure.
fn a_device_without_dma_handles_refuses_them(dut: &TestDevice) -> Outcome {
    match dut.open().alloc_dmah() {
        Err(why) => skip!("{why}"),
        Ok(error) => refused!(error, "DMA handles"),
    }
    Ok(())
}

/// `man ibv_post_srq_ops`: an error number on failure.
fn a_shared_queue_without_tags_refuses_them(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    refused!(Srq::new(&pd, 1, 1).unwrap().tag(), "tag matching");
    Ok(())
}

/// `man ibv_query_qp_data_in_order`: 0, or flags of the guarantees.
fn a_pair_says_which_data_comes_in_order(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &NodeOptions::rc(Flavour::Classic));
    match node.qp.data_in_order() {
        Err(why) => skip!("{why}"),
        Ok(flags) => assert!((0..=3).contains(&flags), "{flags}"),
    }
    Ok(())
}

/// `man ibv_alloc_buf`, `man ibv_reg_buf_mr`, `man ibv_reg_mr_ex`: the memory lives until the
/// buffer is freed, and can be registered.
fn memory_of_the_device_s_choice_is_registered(dut: &TestDevice) -> Outcome {
    match dut.open().pd().own_buffer(10_000, 0x1000_0000) {
        Err(why) => skip!("{why}"),
        Ok(Ok([first, second])) => assert_ne!(first, second),
        Ok(Err(error)) if is_absent(error) => skip!("the device has no memory of its own choice"),
        Ok(Err(error)) => panic!("{error}"),
    }
    Ok(())
}

/// `man ibv_rate_to_mult`, `man ibv_rate_to_mbps`: each conversion can be reversed.
fn rates_and_their_multiples_lead_to_each_other(dut: &TestDevice) -> Outcome {
    let known = [
        (Rate::IBV_RATE_2_5_GBPS, 1, 2500),
        (Rate::IBV_RATE_10_GBPS, 4, 10_000),
        (Rate::IBV_RATE_40_GBPS, 16, 40_000),
    ];
    for (asked, mult, mbps) in known {
        assert_eq!(rate(dut.provider, asked), (mult, asked, mbps, asked));
    }
    Ok(())
}

/// The same pages: -1 for an unknown rate, and `IBV_RATE_MAX` for an unknown number.
fn an_unknown_rate_has_no_speed(dut: &TestDevice) -> Outcome {
    assert_eq!(rate(dut.provider, Rate(1000)), (-1, Rate::IBV_RATE_MAX, -1, Rate::IBV_RATE_MAX));
    Ok(())
}

/// `man ibv_event_type_str`: a name for each state, and one for unknown values.
fn port_states_have_names(dut: &TestDevice) -> Outcome {
    let name = |state| port_state_name(dut.provider, ibv_port_state(state));
    let names: HashSet<_> = (0..=ibv_port_state::IBV_PORT_ACTIVE_DEFER.0).map(name).collect();
    assert_eq!(names.len(), ibv_port_state::IBV_PORT_ACTIVE_DEFER.0 as usize + 1, "{names:?}");
    assert!(!name(1000).is_empty());
    Ok(())
}

/// `man ibv_wr_opcode_str`: a name for each opcode, and one for unknown values.
fn operations_have_names(dut: &TestDevice) -> Outcome {
    let name = |opcode| operation_name(dut.provider, ibv_wr_opcode(opcode));
    if let Err(why) = name(0) {
        skip!("{why}");
    }
    let names: HashSet<_> =
        (0..=ibv_wr_opcode::IBV_WR_DRIVER1.0).map(|opcode| name(opcode).unwrap()).collect();
    assert_eq!(names.len(), ibv_wr_opcode::IBV_WR_DRIVER1.0 as usize + 1, "{names:?}");
    assert!(!name(1000).unwrap().is_empty());
    Ok(())
}
