//! Programs for sideway 0.4 from the public registry, and what each shape of it has become here
//! (`docs/migrating.md`, "From sideway 0.4").
//!
//! `migration/published/` has programs as they are for that release; they are text, not compiled.
//! `migration/programs/` has the same programs for this crate, as modules of this test.

use std::thread;

use sideway::ibverbs::completion::{
    CompletionQueue, GenericCompletionQueue, WorkCompletionFields, WorkCompletionOperationType,
    WorkCompletionStatus,
};
use sideway::ibverbs::device::{Device, DeviceInfo, Guid, TransportType};
use sideway::ibverbs::device_attr::{
    AtomicCapability, DeviceAttr, DeviceCapabilityFlags, PciAtomicCapabilities, PciAtomicSizes,
};
use sideway::ibverbs::port::{LinkLayer, Mtu, PhysicalState, PortAttr, PortSpeed, PortState, PortWidth};
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, GenericQueuePair, ModifyQueuePairError, PostSendGuard, QueuePair, QueuePairAttribute,
    QueuePairState, ScatterGatherEntry, SetInlineData, SetScatterGatherEntry, WorkRequestFlags,
};
use sideway::rdmacm::{
    ConnectionParameter, Event, EventChannel, EventStatus, EventType, Identifier, PortSpace,
};
use sideway::{Error, ErrorKind};

use crate::support::fake::{Fake, Faults};

// The programs keep the imports and the names of that release.
#[cfg(feature = "soft")]
#[allow(deprecated, unused_imports, clippy::undocumented_unsafe_blocks, reason = "as for sideway 0.4")]
mod programs {
    pub(super) mod cm_time;
    pub(super) mod devices;
    pub(super) mod rc_pingpong;
}

/// The most lines that a program may need to change.
const FEW: usize = 5;

/// Each program: its name, and its text for the published release and for this one.
macro_rules! texts {
    ($($name:literal),*) => {
        [$((
            $name,
            include_str!(concat!("migration/published/", $name, ".rs")),
            include_str!(concat!("migration/programs/", $name, ".rs")),
        )),*]
    };
}

const TEXTS: [(&str, &str, &str); 3] = texts!["devices", "rc_pingpong", "cm_time"];

/// How many lines of a text a reader has to change, remove or add to get another.
fn changed_lines(before: &str, after: &str) -> usize {
    let (before, after): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    // The lengths of the longest common subsequences of what follows a place in each text.
    let mut common = vec![vec![0; after.len() + 1]; before.len() + 1];
    for (b, old) in before.iter().enumerate().rev() {
        for (a, new) in after.iter().enumerate().rev() {
            common[b][a] =
                if old == new { common[b + 1][a + 1] + 1 } else { common[b + 1][a].max(common[b][a + 1]) };
        }
    }
    before.len().max(after.len()) - common[0][0]
}

#[test]
fn changed_lines_are_counted() {
    let before = "one\ntwo\nthree\n";
    for (after, expected) in [
        (before, 0),
        ("one\n2\nthree\n", 1),
        ("one\nthree\n", 1),
        ("one\ntwo\nthree\nfour\n", 1),
        ("1\ntwo\n3\n", 2),
        ("", 3),
    ] {
        assert_eq!(changed_lines(before, after), expected, "{after:?}");
    }
}

#[test]
fn programs_change_in_few_lines() {
    for (name, before, after) in TEXTS {
        let changed = changed_lines(before, after);
        println!("{name}: {changed} of {} lines", before.lines().count());
        assert!((1..=FEW).contains(&changed), "{name}: {changed} lines changed");
        assert!(before.lines().count() > 35, "{name} is a program");
    }
}

/// Makes the software devices those of calls that name no provider, as the programs' are.
#[cfg(feature = "soft")]
fn choose_soft() {
    sideway::set_default_provider(sideway::ProviderChoice::Soft.select().unwrap().provider());
}

#[cfg(feature = "soft")]
#[test]
fn the_listing_lists() {
    alone!(the_listing_lists);
    choose_soft();
    let text = programs::devices::run().unwrap();
    for line in ["soft0: InfiniBand (0)", "  port 1: state Active (4)", "    mtu 4096"] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[cfg(feature = "soft")]
#[test]
fn the_ping_pong_plays() {
    alone!(the_ping_pong_plays);
    choose_soft();
    assert_eq!(programs::rc_pingpong::run(10).unwrap(), "10 messages of 64 bytes over soft0");
}

#[cfg(feature = "soft")]
#[test]
fn the_timing_has_every_step() {
    alone!(the_timing_has_every_step);
    choose_soft();
    let text = programs::cm_time::run(([127, 0, 0, 1], 18515).into()).unwrap();
    let steps: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    let [address, route, request, response, established] = steps[..] else { panic!("{text}") };
    assert_eq!([address, route], ["AddressResolved", "RouteResolved"]);
    assert_eq!([request, response, established], ["ConnectRequest", "ConnectResponse", "Established"]);
}

/// Compiles only if the former name is an alias of the type.
macro_rules! assert_aliases {
    ($($former:path = $Type:ty;)*) => {$(
        #[allow(deprecated, unused_qualifications)]
        const _: fn($former) -> $Type = |value| value;
    )*};
}

mod former {
    pub(super) use sideway::ibverbs::{completion, device_context, queue_pair};
    #[allow(deprecated)]
    pub(super) use sideway::rdmacm::communication_manager;
}

assert_aliases! {
    former::device_context::Guid = Guid;
    former::device_context::PortAttr = PortAttr;
    former::device_context::PortState = PortState;
    former::device_context::PhysicalState = PhysicalState;
    former::device_context::LinkLayer = LinkLayer;
    former::device_context::PortWidth = PortWidth;
    former::device_context::PortSpeed = PortSpeed;
    former::device_context::Mtu = Mtu;
    former::device_context::DeviceAttr = DeviceAttr;
    former::device_context::AtomicCapability = AtomicCapability;
    former::device_context::DeviceCapabilityFlags = DeviceCapabilityFlags;
    former::device_context::PciAtomicOperationSize = PciAtomicSizes;
    former::completion::CreateCompletionQueueWorkCompletionFlags = WorkCompletionFields;
    former::queue_pair::ModifyQueuePairErrorKind = ModifyQueuePairError;
    former::communication_manager::ConnectionParameter = ConnectionParameter;
    former::communication_manager::Event = Event;
    former::communication_manager::EventChannel = EventChannel;
    former::communication_manager::EventType = EventType;
    former::communication_manager::GetEventError = Error;
    former::communication_manager::Identifier = Identifier;
    former::communication_manager::PortSpace = PortSpace;
}

/// The constants of a type are reached through its alias, also in patterns.
#[test]
#[allow(deprecated)]
fn former_names_are_aliases() {
    use former::device_context as d;
    assert!(matches!(Mtu::Mtu1024, d::Mtu::Mtu1024));
    assert!(matches!(PortState::Active, d::PortState::Active));
    let flags = former::completion::CreateCompletionQueueWorkCompletionFlags::StandardFlags;
    assert_eq!(flags, WorkCompletionFields::STANDARD);
    assert_eq!(former::communication_manager::EventType::Rejected, EventType::Rejected);
}

#[test]
#[allow(deprecated)]
fn former_getters_return_the_fields() {
    let fake = Fake::lying(|l: &mut Faults| l.garbage_attributes = true);
    let attr = fake.context().query_device().unwrap();
    assert_eq!(attr.firmware_version(), attr.fw_ver());
    assert_eq!((attr.hardware_version(), attr.hw_ver()), (u32::MAX, u32::MAX));
    assert_eq!(attr.atomic_capability(), attr.atomic_cap());
    assert_eq!((attr.max_res_rd_atomic(), attr.max_res_rd_atom()), (-1, -1));
    let pci: PciAtomicCapabilities = attr.pci_atomic_caps();
    assert_eq!((pci.fetch_add(), pci.swap()), (pci.fetch_add, pci.swap));
    assert_eq!(pci.compare_swap(), pci.compare_swap);
}

#[test]
fn device_info_is_of_listed_and_of_open_devices() {
    fn describe(device: &impl DeviceInfo) -> (String, Guid, TransportType) {
        (device.name(), device.guid(), device.transport_type())
    }
    let fake = Fake::new();
    let list = fake.list().unwrap();
    let device = list.get(0).unwrap();
    assert_eq!(describe(&device), describe(&device.open().unwrap()));
    assert_eq!(describe(&device), (device.name(), device.guid(), device.transport_type()));
    assert!(!device.name().is_empty());
}

#[test]
fn a_borrowed_list_is_iterated() {
    let fake = Fake::new();
    let list = fake.list().unwrap();
    let mut names = Vec::new();
    for device in &list {
        names.push(device.name());
    }
    assert_eq!(names.len(), list.len());
    assert_eq!(names, list.iter().map(|device: Device<'_>| device.name()).collect::<Vec<_>>());
    assert_eq!(Some(&names[0]), list.get(0).map(|device| device.name()).as_ref());
    assert!(list.get(list.len()).is_none());
}

#[test]
fn enumerations_become_integers() {
    assert_eq!(u32::from(Mtu::Mtu4096), 5);
    assert_eq!(u32::from(PortState::Active), 4);
    assert_eq!(i32::from(TransportType::Unspecified), -1);
    assert_eq!(u32::from(WorkCompletionStatus::RemoteAccessError), 10);
    assert_eq!(u32::from(WorkCompletionOperationType::Receive), 1 << 7);
    // A value that is not known is kept, and is no panic.
    assert_eq!(u32::from(Mtu::from_raw(77)), 77);
    assert_eq!(format!("{:?}", PortState::from_raw(77)), "Unknown(77)");
}

fn pair(fake: &Fake) -> (ExtendedQueuePair, GenericCompletionQueue) {
    let context = fake.context();
    let cq = context.create_cq_builder().build_generic().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_inline_data(8);
    (builder.build_ex().unwrap(), cq)
}

#[test]
fn buffers_are_set_by_the_traits() {
    fn set(request: impl SetScatterGatherEntry, list: &[ScatterGatherEntry]) {
        // SAFETY: the device is a fake, which accesses no registered memory.
        unsafe { request.setup_sge_list(list) };
    }
    fn inline(request: impl SetInlineData) {
        request.setup_inline_data(b"inline");
    }
    let fake = Fake::new();
    let (mut qp, mut cq) = pair(&fake);
    let entry = [ScatterGatherEntry::new(1, 8, 8)];
    let mut guard = qp.start_post_send();
    set(guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send(), &entry);
    set(guard.construct_wr(2, WorkRequestFlags::Signaled).setup_read(1, 8), &entry);
    inline(guard.construct_wr(3, WorkRequestFlags::Signaled).setup_send());
    guard.post().unwrap();
    let mut guard = qp.start_post_recv();
    set(guard.construct_wr(4), &entry);
    guard.post().unwrap();
    let mut poller = cq.start_poll().unwrap();
    for expected in 1..=4 {
        let wc = poller.next().unwrap();
        assert_eq!((wc.wr_id(), wc.status()), (expected, WorkCompletionStatus::Success));
    }
    assert!(poller.next().is_none());
}

/// What a clone of a queue was for: queue pairs are made where the queue is not.
#[test]
fn a_builder_keeps_its_queues_in_another_thread() {
    let fake = Fake::new();
    let context = fake.context();
    let mut cq = context.create_cq_builder().build_generic().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq);
    let others = builder.clone();
    let made = thread::spawn(move || [others.build_generic().unwrap(), others.build_generic().unwrap()]);
    let mut poller = cq.start_poll().unwrap();
    assert!(poller.next().is_none());
    drop(poller);
    let mut pairs: [GenericQueuePair; 2] = made.join().unwrap();
    for qp in &mut pairs {
        let mut guard = qp.start_post_send();
        let _ = guard.construct_wr(7, WorkRequestFlags::Signaled).setup_send();
        guard.post().unwrap();
    }
    let mut poller = cq.start_poll().unwrap();
    assert_eq!([7, 7], [(); 2].map(|()| poller.next().unwrap().wr_id()));
}

#[test]
fn errors_of_modify_have_the_variants_themselves() {
    let failing = |errno| {
        let fake = Fake::lying(|l: &mut Faults| {
            l.modify_qp = errno;
            l.queried_state = Some(QueuePairState::Reset.raw());
        });
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToSend);
        pair(&fake).0.modify(&attr).unwrap_err()
    };
    use ModifyQueuePairError as E;
    assert!(matches!(failing(libc::EINVAL), E::InvalidTransition { .. }));
    assert!(matches!(failing(libc::ETIMEDOUT), E::ResolveRouteTimedout { .. }));
    assert!(matches!(failing(libc::ENETUNREACH), E::NetworkUnreachable { .. }));
    assert!(matches!(failing(libc::EPERM), E::Ibverbs { .. }));
}

#[test]
fn other_errors_are_one_type() {
    let fake = Fake::lying(|l: &mut Faults| l.query_port = libc::EINVAL);
    let error: Error = fake.context().query_port(9).unwrap_err();
    assert_eq!((error.verb(), error.kind()), ("ibv_query_port", ErrorKind::Os));
    assert_eq!(error.errno(), Some(libc::EINVAL));
    assert!(error.to_string().contains("port_num 9"), "{error}");
}

/// In 0.4, `new` sets everything to zero, so that a lost packet ends the connection.
#[test]
fn new_parameters_are_the_default_ones() {
    assert!(ConnectionParameter::new() == ConnectionParameter::default());
}

#[test]
fn statuses_of_events_are_integers_inside() {
    assert_eq!((EventStatus::from_raw(-110).raw(), EventStatus::from_raw(0).is_success()), (-110, true));
}

#[test]
fn c_objects_have_one_getter() {
    let fake = Fake::new();
    let context = fake.context();
    let pd = context.alloc_pd().unwrap();
    // SAFETY: `pd` keeps the C object alive, and nobody writes to it.
    assert_eq!(unsafe { (*pd.as_raw().as_ptr()).context }, context.as_raw().as_ptr());
    let (qp, cq) = pair(&fake);
    // SAFETY: `qp` keeps the C object alive, and nobody writes to it.
    let queues =
        unsafe { ((*qp.control().as_raw().as_ptr()).send_cq, (*qp.control().as_raw().as_ptr()).recv_cq) };
    assert_eq!(queues, (cq.as_raw().as_ptr(), cq.as_raw().as_ptr()));
}
