//! Acme's direct verbs over the software device: attributes, traffic, requests, refusals.

mod libacme;

use std::error::Error as _;
use std::sync::LazyLock;

use acme_direct::{Acme, DirectVerbs, SignalQueuePair, SignalRequest};
use sideway::direct::VendorList;
use sideway::ibverbs::completion::WorkCompletionOperationType;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, PostSendError, QueuePairBuilder, SendOperationFlags,
};
use sideway::prelude::*;
use sideway::sys::LoadError;
use sideway::{ErrorKind, Provider};
use test_harness::report_skip;

/// The software devices with libacme: soft0, which is Acme's, and soft1, which is not.
static WITH_ACME: LazyLock<Provider> = LazyLock::new(|| {
    let mut config = sideway::soft::Config::default();
    config.devices = 2;
    sideway::soft::provider_with(config).unwrap();
    libacme::provider(libacme::table())
});

fn open(provider: Provider, device: &str) -> DeviceContext {
    LazyLock::force(&WITH_ACME);
    let devices = DeviceList::from_provider(provider).unwrap();
    devices.iter().find(|other| other.name() == device).unwrap().open().unwrap()
}

/// A context of soft0, and what a pair needs.
struct Acme0 {
    context: DeviceContext,
    direct: DirectVerbs,
    pd: ProtectionDomain,
    cq: GenericCompletionQueue,
}

impl Acme0 {
    fn new() -> Self {
        let context = open(*WITH_ACME, "soft0");
        let direct = DirectVerbs::of(&context).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().setup_cqe(64).build_generic().unwrap();
        Self { context, direct, pd, cq }
    }

    fn description(&self) -> QueuePairBuilder {
        self.pd.create_qp_builder().setup_send_cq(&self.cq).setup_recv_cq(&self.cq).clone()
    }

    fn memory(&self) -> RegisteredBuffer {
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        self.pd.reg_buffer(Buffer::new(BufferKind::Private, 4096).unwrap(), access).unwrap()
    }

    /// Connects a pair to itself.
    fn connect(&self, qp: &mut impl QueuePair) {
        let path = LocalPath::choose(&self.context, 1, None).unwrap();
        let endpoint = Endpoint::new(qp, &path, 1);
        connect(qp, &path, &endpoint, &endpoint, &ConnectOptions::default()).unwrap();
    }

    /// The numbers and operations of the next completions, all successful.
    fn completions(&mut self, count: usize) -> Vec<(u64, WorkCompletionOperationType)> {
        let mut completions = Vec::new();
        while completions.len() < count {
            let mut poller = self.cq.start_poll().unwrap();
            while let Some(wc) = poller.next() {
                assert_eq!(wc.status(), WorkCompletionStatus::Success);
                completions.push((wc.wr_id(), wc.opcode()));
            }
        }
        completions
    }

    /// Their numbers.
    fn completed(&mut self, count: usize) -> Vec<u64> {
        self.completions(count).into_iter().map(|(number, _)| number).collect()
    }
}

/// The 8 bytes at an offset of a memory that no request changes any more.
fn word(memory: &RegisteredBuffer, offset: usize) -> u64 {
    assert!(offset + 8 <= memory.len());
    // SAFETY: the offset is in the memory, and the requests that write to it have completed.
    unsafe { memory.as_ptr().add(offset).cast::<u64>().read_unaligned() }
}

fn put(memory: &RegisteredBuffer, offset: usize, value: u64) {
    assert!(offset + 8 <= memory.len());
    // SAFETY: the offset is in the memory, which no request uses now.
    unsafe { memory.as_ptr().add(offset).cast::<u64>().write_unaligned(value) };
}

fn addr(memory: &RegisteredBuffer, offset: usize) -> u64 {
    memory.as_ptr() as u64 + offset as u64
}

/// A message and a WRITE, as over any queue pair. `memory` has the source at 0, the receive at 64 and
/// the target of the WRITE at 128.
fn exchange<Q: QueuePair>(acme: &mut Acme0, qp: &mut Q, memory: &RegisteredBuffer) {
    put(memory, 0, 0x1234_5678_9abc_def0);
    let mut receives = qp.start_post_recv();
    // SAFETY: the memory lives until the completion has been polled, and nobody uses it.
    unsafe { receives.construct_wr(1).setup_sge(memory.lkey(), addr(memory, 64), 8) };
    receives.post().unwrap();
    let mut guard = qp.start_post_send();
    let send = guard.construct_wr(2, WorkRequestFlags::Signaled).setup_send();
    // SAFETY: as above, and a place is free.
    unsafe { send.setup_sge(memory.lkey(), addr(memory, 0), 8) };
    let write = guard.construct_wr(3, WorkRequestFlags::Signaled);
    let write = write.setup_write(memory.rkey(), addr(memory, 128));
    // SAFETY: as above, and a place is free.
    unsafe { write.setup_sge(memory.lkey(), addr(memory, 0), 8) };
    guard.post().unwrap();
    let mut numbers = acme.completed(3);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!((word(memory, 64), word(memory, 128)), (0x1234_5678_9abc_def0, 0x1234_5678_9abc_def0));
}

#[test]
fn the_device_tells_its_attributes() {
    let attributes = Acme0::new().direct.query_device();
    assert_eq!(attributes.max_pace, libacme::MAX_PACE);
    assert!(attributes.has_signals);
}

/// The vendor's attribute arrives at the vendor's function, beside the description's.
#[test]
fn the_pace_of_a_pair_arrives() {
    let acme = Acme0::new();
    let mut builder = acme.direct.create_pair_builder(acme.description().setup_max_send_wr(33));
    let paced = builder.setup_pace(25_000).build_ex().unwrap();
    assert_eq!(acme.direct.query_pace(&paced).unwrap(), Some(25_000));
    assert!(paced.control().capability().max_send_wr >= 33);
    let other = builder.setup_pace(0).build().unwrap();
    assert_eq!(acme.direct.query_pace(&other).unwrap(), None);
}

#[test]
fn a_pair_of_the_vendors_function_carries_traffic() {
    let mut acme = Acme0::new();
    let (description, memory) = (acme.description(), acme.memory());
    let mut qp = acme.direct.create_pair_builder(&description).setup_pace(1).build_ex().unwrap();
    acme.connect(&mut qp);
    exchange(&mut acme, &mut qp, &memory);
}

/// The vendor's pair is a pair for generic code, and its lists mix both kinds of requests.
#[test]
fn a_signal_arrives_between_other_requests() {
    let mut acme = Acme0::new();
    let (description, memory) = (acme.description(), acme.memory());
    let mut qp = acme.direct.create_pair_builder(&description).build().unwrap();
    acme.connect(&mut qp);
    exchange(&mut acme, &mut qp, &memory);
    put(&memory, 0, 7);
    let mut guard = qp.start_post_send();
    let signaled = WorkRequestFlags::Signaled;
    guard.construct_wr(4, signaled).setup_signal(memory.rkey(), addr(&memory, 256), 42);
    let write = guard.construct_wr(5, signaled).setup_write(memory.rkey(), addr(&memory, 264));
    // SAFETY: the memory lives until the completion has been polled; a place is free.
    unsafe { write.setup_sge(memory.lkey(), addr(&memory, 0), 8) };
    // Without a completion: flags are the handle's.
    guard.construct_wr(6, WorkRequestFlags::empty()).setup_signal(memory.rkey(), addr(&memory, 272), 43);
    guard.construct_wr(7, signaled).setup_signal(memory.rkey(), addr(&memory, 280), 44);
    guard.post().unwrap();
    let write = WorkCompletionOperationType::RdmaWrite;
    assert_eq!(acme.completions(3), [(4, write), (5, write), (7, write)]);
    let words: Vec<u64> = [256, 264, 272, 280].map(|offset| word(&memory, offset)).into();
    assert_eq!(words, [42, 7, 43, 44]);
}

/// Slices of a pool and inline data go through the vendor's guard, too, and the halves are for two
/// threads.
#[test]
fn a_vendors_list_takes_what_every_list_takes() {
    let mut acme = Acme0::new();
    let (description, memory) = (acme.description(), acme.memory());
    let mut qp =
        acme.direct.create_pair_builder(description.clone().setup_max_inline_data(16)).build().unwrap();
    acme.connect(&mut qp);
    let pool = acme.pd.create_pool_builder().setup_slices(8, 1).build().unwrap();
    let mut slice = pool.take().unwrap();
    slice.write(0, 5_u64).unwrap();
    pool.write(&mut qp, 7, slice, memory.region().remote().at(0, 8).unwrap()).unwrap();
    let returned = loop {
        if let Some(wc) = acme.cq.start_poll().unwrap().next() {
            break pool.reclaim(&wc).unwrap();
        }
    };
    assert_eq!((returned.wr_id, word(&memory, 0)), (7, 5));
    let (mut send, receive) = qp.into_split();
    let (rkey, at) = (memory.rkey(), [8, 16].map(|offset| addr(&memory, offset)));
    std::thread::spawn(move || {
        let mut guard = send.start_post_send();
        let request = guard.construct_wr(8, WorkRequestFlags::Signaled);
        request.setup_write(rkey, at[0]).setup_inline_data(&6_u64.to_ne_bytes());
        guard.construct_wr(9, WorkRequestFlags::Signaled).setup_signal(rkey, at[1], 7);
        guard.post().unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(acme.completed(2), [8, 9]);
    assert_eq!((word(&memory, 8), word(&memory, 16)), (6, 7));
    drop(receive);
}

#[test]
fn a_vendors_list_takes_inline_data_of_several_slices() {
    let mut acme = Acme0::new();
    let (description, memory) = (acme.description(), acme.memory());
    let mut qp =
        acme.direct.create_pair_builder(description.clone().setup_max_inline_data(16)).build().unwrap();
    acme.connect(&mut qp);
    let bytes: Vec<u8> = (1..=16).collect();
    let pieces = [&bytes[..3], &[], &bytes[3..10], &bytes[10..]].map(std::io::IoSlice::new);
    let mut guard = qp.start_post_send();
    let request = guard.construct_wr(1, WorkRequestFlags::Signaled);
    request.setup_write(memory.rkey(), addr(&memory, 8)).setup_inline_data_list(&pieces);
    guard.post().unwrap();
    assert_eq!(acme.completed(1), [1]);
    let words = [8, 16].map(|offset| word(&memory, offset).to_ne_bytes());
    assert_eq!(words.concat(), bytes);
    assert_eq!((word(&memory, 0), word(&memory, 24)), (0, 0));
}

/// A request that the vendor's crate refuses fails the list by its index; nothing of it is posted.
#[test]
fn a_refused_signal_fails_its_list() {
    let mut acme = Acme0::new();
    let (description, memory) = (acme.description(), acme.memory());
    let mut qp = acme.direct.create_pair_builder(&description).build().unwrap();
    acme.connect(&mut qp);
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_signal(memory.rkey(), addr(&memory, 0), 1);
    guard.construct_wr(2, WorkRequestFlags::Signaled).setup_signal(memory.rkey(), addr(&memory, 12), 2);
    guard.construct_wr(3, WorkRequestFlags::Signaled).setup_signal(memory.rkey(), addr(&memory, 24), 3);
    let error = guard.post().unwrap_err();
    assert!(matches!(error, PostSendError::OfVendor { index: 1, .. }), "{error}");
    assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
    assert!(error.to_string().starts_with("work request 1: the address of a signal"), "{error}");

    // As many as the queue holds are posted, and a list of one more is not.
    let holds = qp.control().capability().max_send_wr as usize;
    for (count, fits) in [(holds + 1, false), (holds, true)] {
        let mut guard = qp.start_post_send();
        for n in 0..count {
            guard.construct_wr(n as u64, WorkRequestFlags::Signaled).setup_signal(
                memory.rkey(),
                addr(&memory, 64),
                n as u64 + 1,
            );
        }
        match guard.post() {
            Ok(()) => assert!(fits),
            Err(error) => {
                assert!(matches!(error, PostSendError::TooManyWorkRequests { limit } if limit == holds));
                assert!(!fits);
            }
        }
    }
    assert_eq!(acme.completed(holds), (0..holds as u64).collect::<Vec<_>>());
    assert_eq!([0, 24, 64].map(|offset| word(&memory, offset)), [0, 0, holds as u64]);
}

#[test]
fn dropped_and_leaked_lists_are_aborted() {
    let mut acme = Acme0::new();
    let (description, memory) = (acme.description(), acme.memory());
    let mut qp = acme.direct.create_pair_builder(&description).build().unwrap();
    acme.connect(&mut qp);
    for leak in [false, true] {
        let mut guard = qp.start_post_send();
        guard.construct_wr(1, WorkRequestFlags::Signaled).setup_signal(memory.rkey(), addr(&memory, 0), 1);
        if leak {
            std::mem::forget(guard);
        }
    }
    let mut guard = qp.start_post_send();
    guard.construct_wr(2, WorkRequestFlags::Signaled).setup_signal(memory.rkey(), addr(&memory, 8), 2);
    guard.post().unwrap();
    assert_eq!(acme.completed(1), [2]);
    assert_eq!((word(&memory, 0), word(&memory, 8)), (0, 2));
}

/// Operations that the pair was not made for are refused by name, as on every pair.
#[test]
fn an_operation_that_the_pair_lacks_is_refused() {
    let acme = Acme0::new();
    let description = acme.description().setup_send_ops_flags(SendOperationFlags::Send).clone();
    let mut qp = acme.direct.create_pair_builder(&description).build().unwrap();
    let mut guard = qp.start_post_send();
    // The library's own WRITE for signals is not the program's.
    assert_eq!(guard.extended().queue().send_ops_flags(), SendOperationFlags::Send);
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_atomic_fetch_add(1, 8, 1);
    let error = guard.post().unwrap_err();
    assert!(matches!(error, PostSendError::UnsupportedOperation { index: 0, .. }), "{error}");
}

#[test]
fn a_device_of_another_vendor_is_refused() {
    let error = DirectVerbs::of(&open(*WITH_ACME, "soft1")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let unsupported = error.unsupported().unwrap();
    assert_eq!((unsupported.verb, &*unsupported.device), ("acme_query_device", "soft1"));
    assert_eq!(error.to_string(), "device soft1 has no direct verbs of Acme (acme_query_device)");
}

#[test]
fn a_missing_library_is_named_with_the_remedy() {
    // The software devices alone: their provider has no libacme.
    let error = DirectVerbs::of(&open(sideway::soft::provider(), "soft0")).unwrap_err();
    assert_eq!((error.kind(), error.object()), (ErrorKind::Library, Some("device soft0")));
    let text = error.to_string();
    for part in ["soft0", "no direct verbs of Acme", "libacme.so.1", "the system's provider"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let source = error.source().and_then(|source| source.downcast_ref::<LoadError>());
    assert!(matches!(source, Some(LoadError::NotProvided { library: "libacme.so.1", .. })), "{source:?}");

    // The system's provider looks for the file.
    let system = match Provider::system() {
        Ok(system) => system,
        Err(error) => return report_skip("a_missing_library_is_named_with_the_remedy", error),
    };
    let error = system.library::<Acme>().unwrap_err();
    assert!(matches!(error, LoadError::NotFound { library: "libacme.so.1", .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("install its vendor's package") && text.contains("RDMA_MUMMY_LIB_DIR"), "{text}");
}

#[test]
fn a_function_that_an_older_library_lacks_is_named() {
    let old = libacme::provider(Acme { acme_query_qp_pace: None, ..libacme::table() });
    let context = open(old, "soft0");
    let direct = DirectVerbs::of(&context).unwrap();
    let cq = context.create_cq_builder().build_generic().unwrap();
    let description =
        context.alloc_pd().unwrap().create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).clone();
    let qp = direct.create_pair_builder(&description).build().unwrap();
    let error = direct.query_pace(&qp).unwrap_err();
    let missing = error.unsupported().and_then(|unsupported| unsupported.missing.as_deref()).unwrap();
    assert_eq!((missing.name, missing.library), ("acme_query_qp_pace", "libacme.so.1"));
    assert!(error.to_string().contains("added in ACME_1.1"), "{error}");
}

#[test]
fn attributes_that_the_library_refuses_are_named() {
    let acme = Acme0::new();
    let pace = libacme::MAX_PACE + 1;
    let error = acme.direct.create_pair_builder(&acme.description()).setup_pace(pace).build_ex().unwrap_err();
    let CreateQueuePairError::Direct { verb, options, .. } = &error else { panic!("{error}") };
    assert_eq!(*verb, "acme_create_qp");
    assert!(options.contains(&format!("a pace of {pace} Mbit/s")), "{options}");
    // What the device does not have at all is `Unsupported`, as everywhere.
    let datagrams = acme.description().setup_qp_type(QueuePairType::UnreliableDatagram).clone();
    let error = acme.direct.create_pair_builder(&datagrams).build().unwrap_err();
    let CreateQueuePairError::Unsupported(unsupported) = &error else { panic!("{error}") };
    assert!(unsupported.capability.ends_with("and signals"), "{unsupported}");
    assert!(acme.direct.create_pair_builder(&datagrams).build_ex().is_ok());
    // The description is checked before the library is called.
    let error = acme.direct.create_pair_builder(&acme.pd.create_qp_builder()).build().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::MissingCompletionQueue { which: "send" }), "{error}");
}

#[test]
fn objects_of_another_context_are_refused() {
    let (one, other) = (Acme0::new(), Acme0::new());
    let error = one.direct.create_pair_builder(&other.description()).build_ex().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::DescriptionOfOtherContext), "{error}");
    let qp = other.direct.create_pair_builder(&other.description()).build_ex().unwrap();
    assert_eq!(one.direct.query_pace(&qp).unwrap_err().kind(), ErrorKind::OtherContext);
}

/// The pair, its halves and their control are one C object, which is destroyed once.
#[test]
fn a_pair_leaves_nothing_behind() {
    let acme = Acme0::new();
    let description = acme.description();
    let made: Vec<SignalQueuePair> =
        (0..3).map(|_| acme.direct.create_pair_builder(&description).build().unwrap()).collect();
    let serial = |qp: &SignalQueuePair| libacme::serial(qp.control().as_raw().as_ptr()).unwrap();
    let serials: Vec<u64> = made.iter().map(serial).collect();
    let control = made[0].control().clone();
    drop(made);
    assert!(libacme::is_kept(serials[0]) && !libacme::is_kept(serials[1]));
    drop(control);
    assert!(!libacme::is_kept(serials[0]));
}
