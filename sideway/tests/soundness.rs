//! Tests of soundness holes that other wrappers have. Each is shown closed by code that must not
//! compile (`soundness/`), or by a run on a device that checks its caller. The numbers come from
//! the project's survey of other wrappers:
//!
//! 1. owners that can be cloned and so destroy twice
//! 2. completions that outlive their poll
//! 3. an empty list that is posted
//! 4. an operation or a reader that is null
//! 5. a device from any pointer, or without its list
//! 6. an address that dangles
//! 7. uninitialised attributes
//! 8. two polls at once
//! 9. contexts closed by those who do not own them
//! 10. an event acknowledged twice
//! 11. private data that is only pointed to
//! 12. memory given to the device by safe code

use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

use crate::support::fake::Fake;
use crate::support::flavour::{CqFlavour, QpFlavour};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    ExtendedPoller, ExtendedWorkCompletion, GenericCompletionQueue, GenericPoller, GenericWorkCompletion,
    WorkCompletionFields,
};
use sideway::ibverbs::memory_region::{MemoryRegion, RegisterMemoryRegionError};
use sideway::ibverbs::queue_pair::{
    BasicPostSendGuard, BasicQueuePair, DatagramHandle, ExtendedPostSendGuard, ExtendedQueuePair,
    GenericPostSendGuard, GenericQueuePair, LocalBufferHandle, PooledPostRecvGuard, PooledPostSendGuard,
    PostRecvGuard, PostSendError, PostSendGuard, QueuePair, QueuePairAttributeMask, RecvWorkRequestHandle,
    SendOperationFlags, WorkRequestFlags, WorkRequestHandle,
};
use sideway::memory::{Buffer, BufferKind, Pool, Returned, Slice, Slices};
use test_harness::report_skip;

/// The compiler's messages change from release to release; the expected ones belong to this
/// release.
const COMPILER: &str = "rustc 1.95.";

#[test]
#[cfg_attr(miri, ignore = "runs the compiler")]
fn unsound_programs_do_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version =
        Command::new(rustc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    if !version.starts_with(COMPILER) {
        let found = if version.is_empty() { "there is no compiler" } else { &version };
        let reason = format!("the expected messages are those of {COMPILER}x; {found}");
        return report_skip("unsound_programs_do_not_compile", reason);
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/soundness/*.rs");
    #[cfg(feature = "mlx5")]
    cases.compile_fail("tests/soundness/mlx5/*.rs");
}

/// Compiles only for types that are not `Send`; for others, the call is ambiguous.
macro_rules! assert_not_send {
    ($($Type:ty),* $(,)?) => {$(
        const _: fn() = || {
            trait Ambiguous<A> {
                fn check() {}
            }
            struct Sent;
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + Send> Ambiguous<Sent> for T {}
            <$Type as Ambiguous<_>>::check();
        };
    )*};
}

// Libraries hold a lock from the start of a poll or a list to its end, and locks belong to threads.
#[cfg(feature = "mlx5")]
assert_not_send!(sideway::mlx5::DcPostSendGuard<'static>, sideway::mlx5::DirectPostSendGuard<'static>);
assert_not_send!(
    ExtendedPoller<'static>,
    GenericPoller<'static>,
    ExtendedWorkCompletion<'static>,
    GenericWorkCompletion<'static>,
    BasicPostSendGuard<'static>,
    ExtendedPostSendGuard<'static>,
    GenericPostSendGuard<'static>,
    PostRecvGuard<'static>,
    WorkRequestHandle<'static, ExtendedPostSendGuard<'static>>,
    DatagramHandle<'static, ExtendedPostSendGuard<'static>>,
    LocalBufferHandle<'static, ExtendedPostSendGuard<'static>>,
    RecvWorkRequestHandle<'static, 'static>,
    PooledPostSendGuard<'static, BasicPostSendGuard<'static>>,
    PooledPostRecvGuard<'static, 'static>,
);

// Types that are counted and linked without atomics.
assert_not_send!(Pool, Slice, Slices, Returned);

fn make<Q: QpFlavour>(fake: &Fake, operations: SendOperationFlags) -> (Q, GenericCompletionQueue) {
    let context = fake.context();
    let cq = context.create_cq_builder().setup_wc_flags(WorkCompletionFields::QpNum).build_generic().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut builder = pd.create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_send_ops_flags(operations);
    (Q::make(&builder).unwrap(), cq)
}

/// Hole 1: handles that can be cloned are counted, and their object is destroyed once.
#[test]
fn hole_01_clones_are_one_object() {
    let fake = Fake::new();
    let context = fake.context();
    let pd = context.alloc_pd().unwrap();
    let (qp, cq) = make::<GenericQueuePair>(&fake, SendOperationFlags::Send);
    let clones = (context.clone(), pd.clone(), qp.control().clone(), qp.control().clone());
    drop((context, pd, qp, cq));
    drop(clones);
    let destroyed = fake.world.destroyed.lock().unwrap().clone();
    let times = |what| destroyed.iter().filter(|d| **d == what).count();
    assert_eq!((times("qp"), times("cq"), times("pd"), times("context")), (1, 1, 2, 2));
}

/// Hole 3: an empty list has no effect, and no invalid array is posted.
#[test]
fn hole_03_an_empty_list_is_not_posted() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let (mut qp, _cq) = make::<Q>(&fake, SendOperationFlags::Send);
        qp.start_post_send().post().unwrap();
        qp.start_post_recv().post().unwrap();
        let mut guard = qp.start_post_send();
        let _ = guard.construct_wr(1, WorkRequestFlags::Signaled);
        guard.post().unwrap();
        assert_eq!((fake.world.posted.load(Relaxed), fake.world.received.load(Relaxed)), (0, 0));
    }
    for_each_qp!(check());
}

/// Hole 4: an operation that the pair was not made for is an error, because its pointer is null on
/// some devices.
#[test]
fn hole_04_a_null_operation_is_not_called() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let (mut qp, _cq) = make::<Q>(&fake, SendOperationFlags::Send);
        let mut guard = qp.start_post_send();
        guard.construct_wr(1, WorkRequestFlags::Signaled).setup_atomic_fetch_add(1, 2, 3);
        assert!(matches!(guard.post(), Err(PostSendError::UnsupportedOperation { index: 0, .. })));
    }
    for_each_qp!(check());
}

/// Hole 4, for completions: a field that the queue was not made with is `None`, because its reader
/// is null on some devices.
#[test]
fn hole_04_a_null_reader_is_not_called() {
    let fake = Fake::new();
    let (mut qp, mut cq) = make::<BasicQueuePair>(&fake, SendOperationFlags::Send);
    let mut guard = qp.start_post_send();
    guard.construct_wr(1, WorkRequestFlags::Signaled).setup_send();
    guard.post().unwrap();
    let mut poller = cq.start_poll().unwrap();
    let wc = poller.next().unwrap();
    assert_eq!(wc.qp_num(), Some(qp.qp_number()));
    assert_eq!((wc.byte_len(), wc.completion_timestamp(), wc.imm_data()), (None, None, None));
}

/// Hole 7: if a library fills in only a part of the attributes, the rest is zero. Miri would detect
/// an uninitialised byte.
#[test]
fn hole_07_attributes_are_initialised() {
    for no_extended_verbs in [true, false] {
        let fake = Fake::lying(|l| l.no_extended_verbs = no_extended_verbs);
        let context = fake.context();
        let port = context.query_port(1).unwrap();
        let device = context.query_device().unwrap();
        assert_eq!((port.raw().port_cap_flags2, port.raw().active_speed_ex), (0, 0));
        assert_eq!((device.completion_timestamp_mask(), device.max_dm_size()), (0, 0));
        assert!(format!("{:?} {:?}", port.raw(), device.raw().orig_attr).contains("ibv_port_attr"));
        let (qp, _cq) = match no_extended_verbs {
            true => continue,
            false => make::<GenericQueuePair>(&fake, SendOperationFlags::Send),
        };
        let everything = QueuePairAttributeMask::from_bits_retain(!0);
        let (attr, init) = qp.query(everything).unwrap();
        assert!(!format!("{attr:?} {init:?}").is_empty());
    }
}

/// Hole 2, at run time: the next poller gets the completions that one poller leaves, and reads them
/// from the queue again.
#[test]
fn hole_02_polls_do_not_overlap() {
    let fake = Fake::new();
    let (mut qp, mut cq) = make::<ExtendedQueuePair>(&fake, SendOperationFlags::Send);
    for n in 0..3 {
        let mut guard = qp.start_post_send();
        guard.construct_wr(n, WorkRequestFlags::Signaled).setup_send();
        guard.post().unwrap();
    }
    for n in 0..3 {
        cq.poll_up_to(1, &mut |wc| assert_eq!(wc.wr_id, n)).unwrap();
    }
}

/// Hole 12, at run time: SoftRoCE takes other bytes of memory on demand than a request names, so
/// safe code gets no such memory there.
#[test]
fn hole_12_softroce_gets_no_memory_on_demand_from_safe_code() {
    let access = AccessFlags::LocalWrite | AccessFlags::OnDemand;
    let check = |error: RegisterMemoryRegionError| {
        assert!(matches!(error, RegisterMemoryRegionError::OnDemandMisplaced { len: 64 }), "{error}");
        assert!(error.to_string().contains("SoftRoCE"), "{error}");
    };
    let fake = Fake::lying(|l| l.vendor_id = 0xff_ffff);
    let pd = fake.pd();
    check(pd.reg_mr_scoped(&mut [0; 64], access, |_| unreachable!()).unwrap_err());
    check(pd.reg_buffer(Buffer::new(BufferKind::Private, 64).unwrap(), access).unwrap_err());
    let of_provider = pd.alloc_buf(128).unwrap();
    check(of_provider.reg_buf_mr(0, 64, access).unwrap_err());
    let mut builder = pd.create_mr_builder();
    check(builder.setup_access(access).build_of_buffer(&of_provider, 0, 64).unwrap_err());
    let pool = pd.create_pool_builder().setup_slices(64, 1).setup_access(access).build().unwrap_err();
    assert!(pool.to_string().contains("SoftRoCE"), "{pool}");
    let ptr = std::ptr::without_provenance_mut(0x1000);
    // SAFETY: the fake device touches no memory.
    unsafe {
        // At other addresses SoftRoCE would use memory of the kernel.
        check(pd.reg_mr_iova(ptr, 64, 0x9000, access).unwrap_err());
        check(builder.setup_iova(0x9000).build(ptr, 64).unwrap_err());
        assert_eq!(pd.reg_mr(ptr, 64, access).unwrap().access(), access);
    }
    let other = Fake::new();
    assert_eq!(other.pd().reg_mr_scoped(&mut [0; 64], access, MemoryRegion::access).unwrap(), access);
}

/// Hole 12, at run time: with `HugeTlb` the kernel rounds a region to huge pages, so safe code gets
/// it only for memory that lies on them.
#[test]
fn hole_12_ordinary_memory_is_not_registered_as_huge_pages() {
    let fake = Fake::new();
    let pd = fake.pd();
    let access = AccessFlags::LocalWrite | AccessFlags::HugeTlb;
    let check = |error: RegisterMemoryRegionError| {
        assert!(matches!(error, RegisterMemoryRegionError::NotOnHugePages { len: 64, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("HugeTlb") && text.contains("BufferKind::HugePages"), "{text}");
    };
    check(pd.reg_mr_scoped(&mut [0; 64], access, |_| unreachable!()).unwrap_err());
    check(pd.reg_buffer(Buffer::new(BufferKind::Private, 64).unwrap(), access).unwrap_err());
    let of_provider = pd.alloc_buf(128).unwrap();
    check(of_provider.reg_buf_mr(0, 64, access).unwrap_err());
    check(pd.create_mr_builder().setup_access(access).build_of_buffer(&of_provider, 0, 64).unwrap_err());
    let pool = pd.create_pool_builder().setup_slices(64, 1).setup_access(access).build().unwrap_err();
    assert!(pool.to_string().contains("HugeTlb"), "{pool}");
    if cfg!(miri) {
        return;
    }
    check(pd.reg_buffer(Buffer::new(BufferKind::Shared, 64).unwrap(), access).unwrap_err());
    match Buffer::new(BufferKind::HUGE_2_MIB, 64) {
        Ok(buffer) => assert_eq!(pd.reg_buffer(buffer, access).unwrap().region().access(), access),
        Err(error) => {
            let test = "hole_12_ordinary_memory_is_not_registered_as_huge_pages";
            report_skip(test, format_args!("its last part: no memory on huge pages is registered: {error}"));
        }
    }
}
