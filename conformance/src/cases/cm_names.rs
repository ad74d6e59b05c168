//! Events written by the program, and asynchronous name resolution (`man rdma_write_cm_event`, `man
//! rdma_resolve_addrinfo`, `man rdma_query_addrinfo`).

use std::thread;
use std::time::Duration;

use libc::{EAI_NONAME, EINVAL};
use rdma_mummy_sys::types::{RAI_DNS, RAI_NUMERICHOST, RAI_SA};

use crate::kit::{CmDevice, Hints, Kind, Outcome, Skip, Space, Suite, TestDevice, TestTarget};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        an_event_of_one_s_own_says_what_it_was_given,
        an_event_of_one_s_own_wakes_who_waits,
        an_event_of_one_s_own_goes_with_its_identifier,
        events_of_the_library_are_not_written,
        an_address_is_found_in_the_background,
        a_name_that_is_not_found_is_an_event,
        there_is_no_answer_before_a_question,
        names_and_the_subnet_are_not_asked_both,
    );
}

fn cm_device(dut: &TestDevice) -> Result<CmDevice, Skip> {
    let cm_device = CmDevice::of(dut)?;
    if cm_device.cm.has_names() {
        Ok(cm_device)
    } else {
        Err(Skip("the library is older than this verb".to_owned()))
    }
}

const USER: Kind = Kind::RDMA_CM_EVENT_USER;
const ARGUMENT: u64 = 0x5566_7788_aabb_ccdd;

/// "status: The status value reported in the rdma_cm_event. arg: A user-specified value reported in
/// the rdma_cm_event."
fn an_event_of_one_s_own_says_what_it_was_given(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    for (status, argument) in [(0, 0), (-7, ARGUMENT), (i32::MAX, u64::MAX)] {
        end.id.write_event(USER, status, argument).unwrap();
        let seen = end.channel.event().copy_and_ack();
        assert!(seen.is_for(&end.id));
        // The argument stands in the field that is a pointer in other events.
        assert_eq!((seen.kind, seen.status, seen.context as u64), (USER, status, argument));
    }
    Ok(())
}

/// "Applications may use this for internal signaling purposes, such as waking a thread blocked on
/// the event channel."
fn an_event_of_one_s_own_wakes_who_waits(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_UDP);
    let channel = end.channel.clone();
    let waiter = thread::spawn(move || channel.take().map(|event| event.copy_and_ack().kind));
    thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    end.id.write_event(USER, 0, 1).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(USER));
    Ok(())
}

fn an_event_of_one_s_own_goes_with_its_identifier(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let channel = cm_device.channel();
    let [gone, left] = [(); 2].map(|()| channel.id(Space::RDMA_PS_TCP, 0).unwrap());
    gone.write_event(USER, 0, 1).unwrap();
    left.write_event(USER, 0, 2).unwrap();
    gone.destroy().unwrap();
    let seen = channel.event().copy_and_ack();
    assert!(seen.is_for(&left) && channel.is_quiet(), "{seen:?}");
    Ok(())
}

/// "Valid user events are: RDMA_CM_EVENT_USER."
fn events_of_the_library_are_not_written(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    for kind in [Kind::RDMA_CM_EVENT_ESTABLISHED, Kind::RDMA_CM_EVENT_CONNECT_REQUEST, Kind(99)] {
        assert_eq!(end.id.write_event(kind, 0, 0), Err(EINVAL), "{kind:?}");
    }
    assert!(end.channel.is_quiet());
    Ok(())
}

fn an_address_is_found_in_the_background(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    for flags in [RAI_NUMERICHOST, RAI_NUMERICHOST | RAI_DNS] {
        let hints = Hints { flags, space: Some(Space::RDMA_PS_TCP), ..Hints::default() };
        end.id.resolve_info(Some("127.0.0.1"), Some("7174"), Some(&hints)).unwrap();
        end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDRINFO_RESOLVED);
        let found = end.id.query_info().unwrap();
        assert_eq!(found.destination(), Some(([127, 0, 0, 1], 7174).into()));
        assert_eq!(found.space(), Space::RDMA_PS_TCP);
    }
    Ok(())
}

/// "The result of the resolution, whether successful or failed, will be reported as an event on the
/// related event channel."
fn a_name_that_is_not_found_is_an_event(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    let hints = Hints { flags: RAI_NUMERICHOST, ..Hints::default() };
    match end.id.resolve_info(Some("no.number"), None, Some(&hints)) {
        // librdmacm looks it up in the call, and leaves the code of `getaddrinfo` in errno.
        Err(EAI_NONAME) if dut.target == TestTarget::System => return Ok(()),
        asked => asked.unwrap(),
    }
    let seen = end.channel.event().copy_and_ack();
    assert_eq!(seen.kind, Kind::RDMA_CM_EVENT_ADDRINFO_ERROR, "{seen:?}");
    assert_ne!(seen.status, 0);
    Ok(())
}

fn there_is_no_answer_before_a_question(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    assert!(end.id.query_info().is_err());
    Ok(())
}

/// "These 2 flags are mutual-exclusive". An address of the subnet administration needs an
/// InfiniBand port, to which the identifier is not bound.
fn names_and_the_subnet_are_not_asked_both(dut: &TestDevice) -> Outcome {
    let cm_device = cm_device(dut)?;
    let end = cm_device.create_id(Space::RDMA_PS_TCP);
    for flags in [RAI_DNS | RAI_SA, RAI_SA] {
        let hints = Hints { flags, ..Hints::default() };
        assert!(end.id.resolve_info(None, Some("7174"), Some(&hints)).is_err(), "{flags}");
    }
    assert!(end.channel.is_quiet(), "no event will be generated");
    Ok(())
}
