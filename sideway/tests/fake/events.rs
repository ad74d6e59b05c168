//! Tests of completion channels, asynchronous events and the clock, for all answers of a library.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use sideway::ErrorKind;
use sideway::ibverbs::clock::ClockConverter;
use sideway::ibverbs::completion::{
    CompletionQueue, CreateCompletionQueueError, ExtendedCompletionQueue, GenericCompletionQueue, Notify,
    TagMatchingInfo, WorkCompletionFields,
};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::event::{AsyncElement, AsyncEventType};
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair};
use sideway::sys::types::*;

use super::control::{ERRNOS, assert_says, lying};
use super::support::fake::{Fake, Faults};
use super::{FakeSetup, SIGNALED};
use crate::support::errors::assert_device_gone;

/// A channel and a queue whose arming fires at once.
fn channel(
    context: &DeviceContext,
) -> (sideway::ibverbs::completion::CompletionChannel, GenericCompletionQueue) {
    let channel = context.create_comp_channel().unwrap();
    let mut builder = context.create_cq_builder();
    let cq = builder.setup_comp_channel(&channel).setup_cq_context(7).build_generic().unwrap();
    (channel, cq)
}

fn fire(cq: &mut GenericCompletionQueue) {
    assert!(cq.arm(Notify::Any).unwrap().next().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn acknowledgements_are_put_off_until_there_are_many_or_the_queue_goes() {
    let (fake, context) = lying(|_| {});
    let (mut channel, mut cq) = channel(&context);
    channel.set_ack_batch(4);
    for n in 1..=10 {
        fire(&mut cq);
        let event = channel.wait().unwrap();
        assert_eq!((event.cq(), event.cq_context()), (cq.id(), 7));
        assert_eq!(fake.world.acknowledgements.load(Relaxed), n / 4);
    }
    // The device detects a queue that is destroyed with unacknowledged events.
    drop(cq);
    assert_eq!(fake.world.acknowledgements.load(Relaxed), 3);
    channel.set_ack_batch(0);
    let mut cq = context.create_cq_builder().setup_comp_channel(&channel).build_ex().unwrap().into();
    fire(&mut cq);
    channel.wait_timeout(Duration::ZERO).unwrap().unwrap();
    assert_eq!(fake.world.acknowledgements.load(Relaxed), 4);
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn an_event_of_a_queue_that_is_not_known_is_acknowledged_and_passed_by() {
    let (fake, context) = lying(|l| l.event_context = Some(4711 << 20));
    let (mut channel, mut cq) = channel(&context);
    fire(&mut cq);
    assert_eq!(channel.try_next().unwrap(), None);
    assert_eq!(channel.wait_timeout(Duration::from_millis(1)).unwrap(), None);
    assert_eq!(fake.world.acknowledgements.load(Relaxed), 1);
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn a_channel_lives_as_long_as_its_queues() {
    let (_fake, context) = lying(|_| {});
    let (channel, mut cq) = channel(&context);
    // The device detects a channel that is destroyed before its queues.
    drop((channel, context));
    fire(&mut cq);
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn channels_can_fail() {
    for expected in ERRNOS {
        let (_fake, context) = lying(|l| l.create_comp_channel = expected);
        assert_says(&context.create_comp_channel().unwrap_err(), expected);
        let (_fake, context) = lying(|l| l.get_cq_event = expected);
        let mut channel = context.create_comp_channel().unwrap();
        if expected == libc::EAGAIN {
            assert!(channel.try_next().unwrap().is_none());
            continue;
        }
        let error = channel.wait().unwrap_err();
        assert_says(&error, expected);
        assert_eq!(error.kind(), ErrorKind::Os, "{error}");
    }
    for gone in [libc::EIO, libc::ENODEV] {
        let (_fake, context) = lying(|l| (l.get_cq_event, l.req_notify_cq) = (gone, gone));
        let (mut channel, mut cq) = channel(&context);
        let error = channel.try_next().unwrap_err();
        assert_device_gone(&error, "fake0");
        let error = cq.arm(Notify::Any).unwrap_err();
        assert_device_gone(&error, "fake0");
    }
}

#[test]
fn an_invalid_descriptor_is_refused() {
    let (_fake, context) = lying(|l| (l.channel_fd, l.async_fd) = (Some(-1), Some(-1)));
    assert_says(&context.create_comp_channel().unwrap_err(), libc::EBADF);
    assert_says(&context.async_events().unwrap_err(), libc::EBADF);
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn a_queue_takes_a_channel_of_its_own_context_only() {
    let (_fake, context) = lying(|_| {});
    let channel = context.create_comp_channel().unwrap();
    let other = Fake::new();
    let mut builder = other.context().create_cq_builder();
    builder.setup_comp_channel(&channel);
    for error in
        [builder.build().unwrap_err(), builder.build_ex().unwrap_err(), builder.build_generic().unwrap_err()]
    {
        assert!(matches!(error, CreateCompletionQueueError::ForeignChannel), "{error}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn arming_can_fail() {
    let (_fake, context) = lying(|_| {});
    let mut cq = context.create_cq_builder().build_generic().unwrap();
    let error = cq.arm(Notify::Any).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoChannel, "{error}");
    for expected in ERRNOS {
        let (_fake, context) = lying(|l| l.req_notify_cq = expected);
        let (_channel, mut cq) = channel(&context);
        let error = cq.arm(Notify::Solicited).unwrap_err();
        if let Some(lacking) = error.unsupported() {
            assert_eq!((lacking.verb, lacking.device.as_str()), ("ibv_req_notify_cq", "fake0"));
            assert!([libc::ENOSYS, libc::EOPNOTSUPP].contains(&expected));
        } else {
            assert_says(&error, expected);
        }
    }
    let (_fake, context) = lying(|l| l.missing = &["req_notify_cq"]);
    let (_channel, mut cq) = channel(&context);
    let error = cq.arm(Notify::Any).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no completion events (ibv_req_notify_cq)");
}

#[test]
fn queues_are_resized_and_moderated_or_not() {
    let (fake, context) = lying(|_| {});
    let mut cq = context.create_cq_builder().setup_cqe(8).build_ex().unwrap();
    // An open poll would hold the library's lock.
    std::mem::forget(cq.start_poll().unwrap());
    cq.resize(100).unwrap();
    assert_eq!(cq.cqe(), 100);
    cq.moderate(16, Duration::from_nanos(9001)).unwrap();
    assert_eq!(fake.world.moderation.load(Relaxed), 16 << 16 | 10);
    let error = cq.moderate(16, Duration::from_micros(65_536)).unwrap_err();
    assert_says(&error, libc::EINVAL);
    assert_says(&cq.resize(u32::MAX).unwrap_err(), libc::EINVAL);
    for expected in ERRNOS {
        let (_fake, context) = lying(|l| (l.resize_cq, l.modify_cq) = (expected, expected));
        let mut cq = context.create_cq_builder().build().unwrap();
        let unsupported = [libc::ENOSYS, libc::EOPNOTSUPP].contains(&expected);
        let error = cq.resize(9).unwrap_err();
        assert_eq!(error.unsupported().is_some(), unsupported);
        assert!(unsupported || error.to_string().contains("max_cqe 1048576"), "{error}");
        let error = cq.moderate(1, Duration::ZERO).unwrap_err();
        assert_eq!(error.unsupported().is_some(), unsupported);
    }
    let (_fake, context) = lying(|l| l.missing = &["modify_cq"]);
    let error = context.create_cq_builder().build().unwrap().moderate(1, Duration::ZERO).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no moderation of completion events (ibv_modify_cq)");
}

#[test]
fn a_classic_queue_does_not_pretend_to_ignore_overruns() {
    let (_fake, context) = lying(|l| l.create_cq_ex = libc::EOPNOTSUPP);
    let mut builder = context.create_cq_builder();
    builder.setup_ignore_overrun(true);
    let error = builder.build_ex().unwrap_err();
    assert!(error.to_string().contains(", ignoring overruns (ibv_create_cq_ex)"), "{error}");
    let error = builder.build_generic().unwrap_err();
    assert!(matches!(error, CreateCompletionQueueError::Unsupported(_)), "{error}");
    assert!(builder.setup_ignore_overrun(false).build_generic().is_ok());
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn asynchronous_events_are_copied_and_acknowledged_whatever_they_are() {
    use ibv_event_type as E;
    let (fake, context) = lying(|_| {});
    let qp = Box::new(ibv_qp { qp_num: 0x1234, ..ibv_qp::default() });
    let wq = Box::new(ibv_wq { wq_num: 0x99, ..ibv_wq::default() });
    let cq = context.create_cq_builder().build().unwrap();
    let qp = (&raw const *qp).expose_provenance();
    let shared = context.alloc_pd().unwrap().create_srq_builder().build().unwrap();
    let srq = shared.as_raw().as_ptr().expose_provenance();
    let wq = (&raw const *wq).expose_provenance();
    let events = [
        (
            E::IBV_EVENT_CQ_ERR.0,
            cq.as_raw().as_ptr().expose_provenance(),
            AsyncElement::CompletionQueue(cq.id()),
        ),
        (E::IBV_EVENT_QP_LAST_WQE_REACHED.0, qp, AsyncElement::QueuePair { qp_num: 0x1234 }),
        (E::IBV_EVENT_SRQ_LIMIT_REACHED.0, srq, AsyncElement::SharedReceiveQueue(shared.id())),
        (E::IBV_EVENT_WQ_FATAL.0, wq, AsyncElement::WorkQueue { wq_num: 0x99 }),
        (E::IBV_EVENT_GID_CHANGE.0, 3, AsyncElement::Port(3)),
        (E::IBV_EVENT_DEVICE_FATAL.0, 0, AsyncElement::Device),
        // The object of an unknown event must not be dereferenced.
        (4711, 8, AsyncElement::Unknown),
    ];
    let handle = context.async_events().unwrap();
    for (kind, address, element) in events {
        fake.world.async_events.lock().unwrap().push_back((kind, address));
        let event = handle.try_next().unwrap().unwrap();
        assert_eq!((event.event_type(), event.element()), (AsyncEventType::from_raw(kind), element));
        assert_eq!(fake.world.async_acknowledged.lock().unwrap().pop(), Some(address));
    }
    assert_eq!(AsyncEventType::from_raw(4711).to_string(), "Unknown(4711)");
    assert!(handle.try_next().unwrap().is_none());
    assert!(handle.wait_timeout(Duration::from_millis(1)).unwrap().is_none());
    let _ = (handle.as_fd(), handle.clone());
}

#[test]
#[cfg_attr(miri, ignore = "descriptors")]
fn asynchronous_events_can_fail() {
    for expected in ERRNOS.into_iter().filter(|number| *number != libc::EAGAIN) {
        let (_fake, context) = lying(|l| l.get_async_event = expected);
        let error = context.async_events().unwrap().wait().unwrap_err();
        assert_says(&error, expected);
        assert_eq!(error.kind(), ErrorKind::Os, "{error}");
    }
    let (_fake, context) = lying(|l| l.get_async_event = libc::EIO);
    let error = context.async_events().unwrap().wait().unwrap_err();
    assert_device_gone(&error, "fake0");
}

#[test]
fn ticks_become_time() {
    // 250 MHz, 48 bits, and near the end of them.
    let last = (1 << 48) - 1;
    let (_fake, context) = lying(|l| l.clock = Some([250_000, last, last - 250]));
    let before = SystemTime::now();
    let clock = ClockConverter::new(&context).unwrap();
    assert_eq!((clock.khz(), context.query_raw_clock().unwrap()), (250_000, last - 250));
    assert_eq!(clock.elapsed(1000, 1250), Duration::from_micros(1));
    // The counter wraps around.
    assert_eq!(clock.elapsed(last - 249, 0), Duration::from_micros(1));
    assert_eq!(clock.elapsed(0, last), Duration::from_nanos(4 * last));
    let now = clock.system_time(last - 250);
    assert!(now >= before && now <= SystemTime::now());
    assert_eq!(clock.system_time(249).duration_since(now).unwrap(), Duration::from_micros(2));
    assert_eq!(now.duration_since(clock.system_time(last - 500)).unwrap(), Duration::from_micros(1));
    assert!(clock.uncertainty() < Duration::from_secs(60));
}

#[test]
fn a_clock_that_cannot_be_read_is_an_error() {
    let unsupported = |about: fn(&mut Faults)| {
        let (_fake, context) = lying(about);
        let error = ClockConverter::new(&context).unwrap_err();
        assert!(error.unsupported().is_some(), "{error}");
        error.to_string()
    };
    assert_eq!(unsupported(|_| {}), "device fake0 has no clock of known frequency (ibv_query_device_ex)");
    let lacking = "device fake0 has no clock that can be read (ibv_query_rt_values_ex)";
    assert_eq!(unsupported(|l| (l.clock, l.missing) = (Some([1, 1, 1]), &["query_rt_values"])), lacking);
    assert_eq!(unsupported(|l| (l.clock, l.query_rt_values) = (Some([1, 1, 1]), libc::ENOSYS)), lacking);
    let (_fake, context) = lying(|_| {});
    // The device reports that it knows none of the requested values.
    assert_eq!(context.query_raw_clock().unwrap_err().to_string(), lacking);
    let (_fake, context) = lying(|l| l.query_rt_values = libc::EPERM);
    assert_says(&context.query_raw_clock().unwrap_err(), libc::EPERM);
}

/// A completion of each kind of queue, with all possible fields.
#[test]
fn completions_carry_what_was_asked_for() {
    let fake = Fake::lying(|l| l.completion = Some([0, 128, ibv_wc_flags::IBV_WC_WITH_INV.0]));
    let mut setup = FakeSetup::<GenericQueuePair, ExtendedCompletionQueue>::with(
        &fake,
        |cq| cq.setup_wc_flags(WorkCompletionFields::all()),
        |qp| qp,
    );
    let post = |qp: &mut GenericQueuePair| {
        let mut guard = qp.start_post_send();
        let send = guard.construct_wr(5, SIGNALED).setup_send();
        // SAFETY: the fake device touches no memory.
        unsafe { send.setup_sge(0, 0, 0) };
        guard.post().unwrap();
    };
    post(&mut setup.qp);
    let mut poller = setup.cq.start_poll().unwrap();
    let wc = poller.next().unwrap();
    assert_eq!((wc.cvlan(), wc.flow_tag()), (Some(3005), Some(4005)));
    assert_eq!(wc.tm_info(), Some(TagMatchingInfo { tag: u64::MAX, private: 5000 }));
    assert_eq!((wc.completion_timestamp(), wc.completion_timestamp_wallclock()), (Some(1005), Some(2005)));
    assert_eq!((wc.invalidated_rkey(), wc.imm_data(), wc.pkey_index()), (Some(0), None, None));
    drop(poller);
    drop(setup);

    let mut setup = FakeSetup::<GenericQueuePair, GenericCompletionQueue>::new(&fake);
    post(&mut setup.qp);
    let mut poller = setup.cq.start_poll().unwrap();
    let wc = poller.next().unwrap();
    assert_eq!((wc.cvlan(), wc.flow_tag(), wc.tm_info()), (None, None, None));
    assert_eq!((wc.completion_timestamp(), wc.completion_timestamp_wallclock()), (None, None));
    assert_eq!(wc.invalidated_rkey(), Some(0));
}
