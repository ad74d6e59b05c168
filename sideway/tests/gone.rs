//! Tests of a device that is removed while in use: errors contain its name, and nothing hangs.
//!
//! This is a separate program, because the device is gone for the whole process.

use std::thread;
use std::time::Duration;

use sideway::ibverbs::completion::Notify;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::event::{AsyncElement, AsyncEventType};
use sideway::soft::faults;
use sideway::{ErrorKind, ProviderChoice};

/// The maximum time until an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn whoever_waits_or_asks_hears_that_the_device_is_gone() {
    alone!(whoever_waits_or_asks_hears_that_the_device_is_gone);
    let list = DeviceList::from_provider(ProviderChoice::Soft.select().unwrap().provider()).unwrap();
    let context = list.first().unwrap().open().unwrap();
    let object = format!("device {}", context.name());
    let gone = (ErrorKind::DeviceGone, Some(&*object));
    let events = context.async_events().unwrap();
    let mut channel = context.create_comp_channel().unwrap();
    let mut patient = context.create_comp_channel().unwrap();
    let mut builder = context.create_cq_builder();
    let mut extended = builder.setup_comp_channel(&channel).build_ex().unwrap();
    let mut basic = builder.build().unwrap();
    let mut bare = context.create_cq_builder().build_generic().unwrap();
    assert!(extended.arm(Notify::Any).unwrap().next().is_none());

    let armed = thread::spawn(move || channel.wait());
    let unused = thread::spawn(move || patient.wait_timeout(PATIENCE));
    faults::device_fatal(0).unwrap();
    // The armed queue may have sent an event first.
    for error in armed.join().unwrap().err().into_iter().chain([unused.join().unwrap().unwrap_err()]) {
        assert_eq!((error.kind(), error.object()), gone, "{error}");
    }

    let event = events.wait_timeout(PATIENCE).unwrap().expect("it is announced");
    assert_eq!((event.event_type(), event.element()), (AsyncEventType::DeviceFatal, AsyncElement::Device));
    let error = events.wait().unwrap_err();
    assert_eq!((error.kind(), error.object()), gone, "{error}");

    for error in [extended.arm(Notify::Any).unwrap_err(), basic.arm(Notify::Solicited).unwrap_err()] {
        assert_eq!((error.kind(), error.object()), gone, "{error}");
    }
    let mut poller = bare.start_poll().unwrap();
    assert!(poller.next().is_none());
    assert_eq!(poller.finish().unwrap_err().result, libc::EIO);
    assert!(context.create_comp_channel().unwrap_err().errno() == Some(libc::EIO));
    assert!(extended.resize(10).is_err());
    faults::clear();
}
