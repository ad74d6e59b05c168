//! Options of identifiers (`man rdma_set_option`), and of enhanced connection establishment (`man
//! rdma_get_remote_ece`).

use libc::{EINVAL, ENOSYS};
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::{
    RDMA_OPTION_IB, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, ibv_ece,
};

use crate::kit::{CmDevice, CmId, Kind, Outcome, Param, Space, Suite, TestDevice};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        options_have_their_size,
        unknown_options_are_refused,
        the_quality_of_service_is_in_the_path,
        the_acknowledgement_s_time_is_the_pair_s,
        datagrams_are_not_acknowledged,
        an_address_is_shared_before_it_listens,
        a_family_is_chosen_before_an_address_is_resolved,
        an_identifier_moves_with_its_options,
        options_of_a_request_arrive,
        options_of_an_answer_arrive,
        options_without_a_vendor_are_refused,
        options_of_a_pair_are_the_library_s_own,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;
const ID: u32 = RDMA_OPTION_ID;

const VENDOR: u32 = 0x00_1234;

fn set_int(id: &CmId, name: u32, value: i32) -> Result<(), i32> {
    id.set_option(ID, name, &value.to_ne_bytes())
}

/// "The expected optlen is size of uint8_t", or "of int".
fn options_have_their_size(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    for (name, right, wrong) in [
        (RDMA_OPTION_ID_TOS, 1, [0, 4]),
        (RDMA_OPTION_ID_REUSEADDR, 4, [1, 8]),
        (RDMA_OPTION_ID_AFONLY, 4, [1, 8]),
        (RDMA_OPTION_ID_ACK_TIMEOUT, 1, [0, 4]),
    ] {
        let value = [1_u8, 0, 0, 0, 0, 0, 0, 0];
        for len in wrong {
            assert_eq!(end.id.set_option(ID, name, &value[..len]), Err(EINVAL), "option {name}, {len} bytes");
        }
        assert_eq!(end.id.set_option(ID, name, &value[..right]), Ok(()), "option {name}");
    }
    Ok(())
}

fn unknown_options_are_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    for (level, name) in [(ID, 99), (RDMA_OPTION_IB, 99), (7, RDMA_OPTION_ID_TOS)] {
        assert_eq!(end.id.set_option(level, name, &[1]), Err(ENOSYS), "level {level}, option {name}");
    }
    Ok(())
}

/// "Specify the quality of service provided by a connection": the traffic class of its packets.
fn the_quality_of_service_is_in_the_path(dut: &TestDevice) -> Outcome {
    const TOS: u8 = 0x28;
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.create_id(TCP);
    client.id.set_option(ID, RDMA_OPTION_ID_TOS, &[TOS]).unwrap();
    client.resolve(cm_device.at(listener.id.src_port()));
    assert_eq!(client.id.path().unwrap().traffic_class, TOS);
    client.id.connect(Some(&Param::nowhere())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    server.accept(Some(&Param::nowhere())).unwrap();
    client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    for id in [&client.id, &server] {
        let (attr, _) = id.qp_attr(State::IBV_QPS_RTR).unwrap();
        assert_eq!(attr.ah_attr.grh.traffic_class, TOS);
    }
    Ok(())
}

/// "Set QP ACK timeout. The value calculated according to the formula 4.096 * 2^(ack_timeout)
/// usec."
fn the_acknowledgement_s_time_is_the_pair_s(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.create_id(TCP);
    client.id.set_option(ID, RDMA_OPTION_ID_ACK_TIMEOUT, &[15]).unwrap();
    client.resolve(cm_device.at(listener.id.src_port()));
    client.id.connect(Some(&Param::nowhere())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    server.accept(Some(&Param::nowhere())).unwrap();
    client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(client.id.qp_attr(State::IBV_QPS_RTS).unwrap().0.timeout, 15);
    Ok(())
}

fn datagrams_are_not_acknowledged(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_UDP);
    assert_eq!(end.id.set_option(ID, RDMA_OPTION_ID_ACK_TIMEOUT, &[15]), Err(EINVAL));
    Ok(())
}

fn an_address_is_shared_before_it_listens(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.listener(TCP);
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_REUSEADDR, 1), Err(EINVAL), "listening");
    let end = cm_device.create_id(TCP);
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_REUSEADDR, 1), Ok(()), "new");
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_REUSEADDR, 0), Ok(()), "new");
    end.id.bind(cm_device.at(0)).unwrap();
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_REUSEADDR, 1), Ok(()), "bound: from now on");
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_REUSEADDR, 0), Err(EINVAL), "bound: not any more");
    Ok(())
}

fn a_family_is_chosen_before_an_address_is_resolved(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_AFONLY, 1), Ok(()), "new");
    end.id.bind(cm_device.at(0)).unwrap();
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_AFONLY, 0), Ok(()), "bound");
    end.resolve(cm_device.at(7471));
    assert_eq!(set_int(&end.id, RDMA_OPTION_ID_AFONLY, 1), Err(EINVAL), "resolved");
    Ok(())
}

fn an_identifier_moves_with_its_options(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.set_option(ID, RDMA_OPTION_ID_TOS, &[0x10]).unwrap();
    let other = cm_device.channel();
    end.id.migrate(Some(&other)).unwrap();
    end.id.resolve_addr(None, cm_device.at(7471), 2000).unwrap();
    other.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    end.id.resolve_route(2000).unwrap();
    other.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(end.id.path().unwrap().traffic_class, 0x10);
    Ok(())
}

/// `man rdma_get_remote_ece`: "... this function should be called by the user to get the remote ECE
/// parameters, to allow local users to prepare them before responding."
fn options_of_a_request_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    client.id.set_local_ece(ibv_ece { vendor_id: VENDOR, options: 0x55, comp_mask: 0 }).unwrap();
    client.id.connect(Some(&Param::nowhere())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    let ece = server.remote_ece().unwrap();
    assert_eq!((ece.vendor_id, ece.options, ece.comp_mask), (VENDOR, 0x55, 0));
    Ok(())
}

fn options_of_an_answer_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    client.id.set_local_ece(ibv_ece { vendor_id: VENDOR, options: 0x55, comp_mask: 0 }).unwrap();
    client.id.connect(Some(&Param::nowhere())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    server.set_local_ece(ibv_ece { vendor_id: VENDOR, options: 0x11, comp_mask: 0 }).unwrap();
    server.accept(Some(&Param::nowhere())).unwrap();
    client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    let ece = client.id.remote_ece().unwrap();
    assert_eq!((ece.vendor_id, ece.options), (VENDOR, 0x11));
    // A request without options has none in its event.
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    client.id.connect(Some(&Param::nowhere())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    let ece = server.remote_ece().unwrap();
    assert_eq!((ece.vendor_id, ece.options), (0, 0));
    Ok(())
}

fn options_without_a_vendor_are_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    let good = ibv_ece { vendor_id: VENDOR, options: 1, comp_mask: 0 };
    for ece in [ibv_ece { vendor_id: 0, ..good }, ibv_ece { comp_mask: 1, ..good }] {
        assert_eq!(end.id.set_local_ece(ece), Err(EINVAL), "{ece:?}");
    }
    assert_eq!(end.id.set_local_ece(good), Ok(()));
    Ok(())
}

/// `man rdma_set_local_ece`: for programs that create the queue pair without librdmacm.
fn options_of_a_pair_are_the_library_s_own(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let _node = end.id.node(&CmDevice::options());
    let ece = ibv_ece { vendor_id: VENDOR, options: 1, comp_mask: 0 };
    assert_eq!(end.id.set_local_ece(ece), Err(EINVAL));
    assert_eq!(end.id.remote_ece().err(), Some(EINVAL));
    Ok(())
}
