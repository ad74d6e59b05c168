//! Events of a program's own, and names that are looked for in the background (`man rdma_write_cm_event`,
//! `man rdma_resolve_addrinfo`, `man rdma_query_addrinfo`).

use std::thread;
use std::time::Duration;

use libc::EINVAL;
use rdma_mummy_sys::types::{RAI_DNS, RAI_NUMERICHOST, RAI_SA};

use crate::harness::{Outcome, Rig, Skip, Suite};
use crate::kit::{Hints, Kind, Site, Space};

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

fn site(rig: &Rig) -> Result<Site, Skip> {
    let site = Site::of(rig)?;
    if site.cm.has_names() { Ok(site) } else { Err(Skip("the library is older than this verb".to_owned())) }
}

const USER: Kind = Kind::RDMA_CM_EVENT_USER;
const ARGUMENT: u64 = 0x5566_7788_aabb_ccdd;

/// "status: The status value reported in the rdma_cm_event. arg: A user-specified value reported in the rdma_cm_event."
fn an_event_of_one_s_own_says_what_it_was_given(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let side = site.side(Space::RDMA_PS_TCP);
    for (status, argument) in [(0, 0), (-7, ARGUMENT), (i32::MAX, u64::MAX)] {
        side.id.write_event(USER, status, argument).unwrap();
        let seen = side.channel.event().seen();
        assert!(seen.is_for(&side.id));
        // The argument is where of other events a pointer is.
        assert_eq!((seen.kind, seen.status, seen.context as u64), (USER, status, argument));
    }
    Ok(())
}

/// "Applications may use this for internal signaling purposes, such as waking a thread blocked on the event channel."
fn an_event_of_one_s_own_wakes_who_waits(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let side = site.side(Space::RDMA_PS_UDP);
    let channel = side.channel.clone();
    let waiter = thread::spawn(move || channel.take().map(|event| event.seen().kind));
    thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    side.id.write_event(USER, 0, 1).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(USER));
    Ok(())
}

fn an_event_of_one_s_own_goes_with_its_identifier(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let channel = site.channel();
    let [gone, left] = [(); 2].map(|()| channel.id(Space::RDMA_PS_TCP, 0).unwrap());
    gone.write_event(USER, 0, 1).unwrap();
    left.write_event(USER, 0, 2).unwrap();
    gone.destroy().unwrap();
    let seen = channel.event().seen();
    assert!(seen.is_for(&left) && channel.is_quiet(), "{seen:?}");
    Ok(())
}

/// "Valid user events are: RDMA_CM_EVENT_USER."
fn events_of_the_library_are_not_written(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let side = site.side(Space::RDMA_PS_TCP);
    for kind in [Kind::RDMA_CM_EVENT_ESTABLISHED, Kind::RDMA_CM_EVENT_CONNECT_REQUEST, Kind(99)] {
        assert_eq!(side.id.write_event(kind, 0, 0), Err(EINVAL), "{kind:?}");
    }
    assert!(side.channel.is_quiet());
    Ok(())
}

fn an_address_is_found_in_the_background(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let side = site.side(Space::RDMA_PS_TCP);
    for flags in [RAI_NUMERICHOST, RAI_NUMERICHOST | RAI_DNS] {
        let hints = Hints { flags, space: Some(Space::RDMA_PS_TCP), ..Hints::default() };
        side.id.resolve_info(Some("127.0.0.1"), Some("7174"), Some(&hints)).unwrap();
        side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDRINFO_RESOLVED);
        let found = side.id.query_info().unwrap();
        assert_eq!(found.destination(), Some(([127, 0, 0, 1], 7174).into()));
        assert_eq!(found.space(), Space::RDMA_PS_TCP);
    }
    Ok(())
}

/// "The result of the resolution, whether successful or failed, will be reported as an event on the related event channel."
fn a_name_that_is_not_found_is_an_event(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let side = site.side(Space::RDMA_PS_TCP);
    let hints = Hints { flags: RAI_NUMERICHOST, ..Hints::default() };
    side.id.resolve_info(Some("no.number"), None, Some(&hints)).unwrap();
    let seen = side.channel.event().seen();
    assert_eq!(seen.kind, Kind::RDMA_CM_EVENT_ADDRINFO_ERROR, "{seen:?}");
    assert_ne!(seen.status, 0);
    Ok(())
}

fn there_is_no_answer_before_a_question(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let side = site.side(Space::RDMA_PS_TCP);
    assert!(side.id.query_info().is_err());
    Ok(())
}

/// "These 2 flags are mutual-exclusive". An address of the subnet's administration needs a port of InfiniBand, which the identifier
/// is not bound to.
fn names_and_the_subnet_are_not_asked_both(rig: &Rig) -> Outcome {
    let site = site(rig)?;
    let side = site.side(Space::RDMA_PS_TCP);
    for flags in [RAI_DNS | RAI_SA, RAI_SA] {
        let hints = Hints { flags, ..Hints::default() };
        assert!(side.id.resolve_info(None, Some("7174"), Some(&hints)).is_err(), "{flags}");
    }
    assert!(side.channel.is_quiet(), "no event will be generated");
    Ok(())
}
