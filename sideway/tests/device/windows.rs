//! Tests of memory windows, invalidation, atomic write and flush on a device.

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    GenericCompletionQueue, WorkCompletionFlags, WorkCompletionOperationType as Opcode,
    WorkCompletionStatus as Status,
};
use sideway::ibverbs::device_attr::DeviceCapabilityFlags as Capability;
use sideway::ibverbs::memory_window::{MemoryWindow, MemoryWindowBindInfo, MemoryWindowType};
use sideway::ibverbs::queue_pair::{
    FlushPlacement, FlushSelectivity, GenericQueuePair, PostSendError, PostSendGuard, QueuePair,
    SendOperationFlags, WorkRequestOperationType,
};

use crate::harness::{Outcome, Skip, Suite, TestDevice};
use crate::node::{AnyPair, Data, NodeOptions, Op, PATIENCE, Pair, RemoteBuffer, SIGNALED, pattern};
use crate::support::errors::assert_error;
use crate::support::flavour::QpFlavour;

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        a_window_of_type_2_is_bound_and_invalidated,
        a_window_of_type_1_is_bound_and_unbound,
        a_leaked_list_does_not_keep_a_window_from_being_bound,
        a_message_invalidates_a_window,
        an_atomic_write_is_posted,
        operations_a_pair_was_not_created_with_are_refused,
    );
    cases!(suite:
        a_region_with_a_bound_window_comes_back,
        a_window_is_bound_as_its_type_says,
        a_window_binds_only_to_objects_of_its_device_and_domain,
        a_binding_that_the_device_refuses_fails,
        a_range_is_flushed,
        a_window_that_there_is_not_is_unsupported,
    );
}

type Cq = GenericCompletionQueue;

const TYPE_1: MemoryWindowType = MemoryWindowType::Type1;
const TYPE_2: MemoryWindowType = MemoryWindowType::Type2;
const WRITE: AccessFlags = AccessFlags::RemoteWrite;

fn capabilities(test_device: &TestDevice) -> Capability {
    Capability::from_bits_retain(test_device.open().query_device().unwrap().device_cap_flags())
}

fn has(test_device: &TestDevice, capability: Capability, what: &str) -> Outcome {
    if !capabilities(test_device).intersects(capability) {
        skip!("the device has no {what}");
    }
    Ok(())
}

fn pair<Q: QpFlavour>(test_device: &TestDevice) -> Result<Pair<Q, Cq>, Skip> {
    has(test_device, Capability::MemoryWindowType2A | Capability::MemoryWindowType2B, "memory windows")?;
    Ok(Pair::with(test_device, |options| {
        options.region |= AccessFlags::MemoryWindowBind;
        let usual = SendOperationFlags::Send | SendOperationFlags::Write | SendOperationFlags::Read;
        options.operations = Some(usual | SendOperationFlags::of_windows());
    }))
}

/// Waits for a completion. Returns its fields, with the invalidated key.
fn completion(cq: &mut Cq) -> (u64, Status, Option<Opcode>, Option<u32>) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let mut poller = cq.start_poll().unwrap();
        if let Some(wc) = poller.next() {
            let flagged = wc.wc_flags().contains(WorkCompletionFlags::WithInvalidate);
            assert_eq!(flagged, wc.invalidated_rkey().is_some());
            let opcode = (wc.status() == Status::Success).then(|| wc.opcode());
            return (wc.wr_id(), wc.status(), opcode, wc.invalidated_rkey());
        }
        drop(poller);
        assert!(std::time::Instant::now() < deadline, "no completion comes");
        std::thread::yield_now();
    }
}

fn bind_2<Q: QpFlavour>(pair: &mut Pair<Q, Cq>, window: &mut MemoryWindow, offset: usize, len: u64) -> u32 {
    let rkey = window.next_rkey();
    let addr = pair.b.mr.get_ptr() as u64 + offset as u64;
    let info = MemoryWindowBindInfo::new(&pair.b.mr, addr, len, WRITE);
    let mut guard = pair.b.qp.start_post_send();
    guard.construct_wr(5, SIGNALED).setup_bind_mw(window, rkey, info);
    guard.post().unwrap();
    assert_eq!(completion(&mut pair.b.send_cq), (5, Status::Success, Some(Opcode::BindMemoryWindow), None));
    assert_eq!(window.rkey(), rkey);
    rkey
}

fn writes<Q: QpFlavour>(pair: &mut Pair<Q, Cq>, rkey: u32, offset: usize, seed: u8) {
    pair.a.memory.set(0, &pattern(seed, 64));
    let to = RemoteBuffer { rkey, ..pair.b.remote(offset) };
    pair.a.run(Op::Write(to), Data::At(0, 64));
    assert_eq!(pair.b.memory.get(offset, 64), pattern(seed, 64));
}

fn is_refused<Q: QpFlavour>(pair: &mut Pair<Q, Cq>, rkey: u32, offset: usize) {
    let to = RemoteBuffer { rkey, ..pair.b.remote(offset) };
    pair.a.post(&[(9, SIGNALED, Op::Write(to), Data::At(0, 64))]).unwrap();
    assert_eq!(pair.a.sent(1)[0].status, Status::RemoteAccessError);
}

fn a_window_of_type_2_is_bound_and_invalidated<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<Q>(test_device)?;
    let mut window = pair.b.pd.alloc_mw(TYPE_2).unwrap();
    assert_eq!(window.window_type(), TYPE_2);
    let first = bind_2(&mut pair, &mut window, 4096, 4096);
    writes(&mut pair, first, 4096, 1);
    let mut guard = pair.b.qp.start_post_send();
    guard.construct_wr(6, SIGNALED).setup_local_inv(first);
    guard.post().unwrap();
    assert_eq!(completion(&mut pair.b.send_cq), (6, Status::Success, Some(Opcode::LocalInvalidate), None));
    let second = bind_2(&mut pair, &mut window, 8192, 64);
    assert_ne!(first, second);
    writes(&mut pair, second, 8192, 2);
    is_refused(&mut pair, first, 4096);
    window.close().unwrap();
    Ok(())
}

fn bind_1<Q: QpFlavour>(pair: &mut Pair<Q, Cq>, window: &mut MemoryWindow, len: Option<u64>) {
    let (queue, _) = pair.b.qp.split();
    let addr = pair.b.mr.get_ptr() as u64;
    match len {
        Some(len) => {
            let info = MemoryWindowBindInfo::new(&pair.b.mr, addr, len, WRITE);
            window.bind(queue, 7, SIGNALED, info).unwrap();
        }
        None => window.unbind(queue, 7, SIGNALED, &pair.b.mr).unwrap(),
    }
    assert_eq!(completion(&mut pair.b.send_cq), (7, Status::Success, Some(Opcode::BindMemoryWindow), None));
}

fn a_window_of_type_1_is_bound_and_unbound<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<Q>(test_device)?;
    let mut window = pair.b.pd.alloc_mw(TYPE_1).unwrap();
    let made_with = window.rkey();
    bind_1(&mut pair, &mut window, Some(4096));
    let first = window.rkey();
    assert_ne!(first, made_with);
    writes(&mut pair, first, 100, 3);
    bind_1(&mut pair, &mut window, Some(8192));
    let second = window.rkey();
    assert_ne!(first, second);
    writes(&mut pair, second, 8000, 4);
    bind_1(&mut pair, &mut window, None);
    is_refused(&mut pair, second, 100);
    Ok(())
}

/// A list whose guard was leaked may hold its library's lock.
fn a_leaked_list_does_not_keep_a_window_from_being_bound<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<Q>(test_device)?;
    let mut window = pair.b.pd.alloc_mw(TYPE_1).unwrap();
    std::mem::forget(pair.b.qp.start_post_send());
    bind_1(&mut pair, &mut window, Some(4096));
    let rkey = window.rkey();
    writes(&mut pair, rkey, 0, 5);
    Ok(())
}

fn a_message_invalidates_a_window<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<Q>(test_device)?;
    let mut window = pair.b.pd.alloc_mw(TYPE_2).unwrap();
    let rkey = bind_2(&mut pair, &mut window, 0, 4096);
    pair.b.receive(&[(3, &[(8192, 64)])]).unwrap();
    pair.a.memory.set(0, &pattern(6, 48));
    let (lkey, addr) = (pair.a.mr.lkey(), pair.a.mr.get_ptr() as u64);
    let mut guard = pair.a.qp.start_post_send();
    // SAFETY: the node's memory outlives its pair, and no reference to it is made.
    unsafe { guard.construct_wr(4, SIGNALED).setup_send_inv(rkey).setup_sge(lkey, addr, 48) };
    guard.post().unwrap();
    assert_eq!(completion(&mut pair.a.send_cq), (4, Status::Success, Some(Opcode::Send), None));
    // SoftRoCE's library passes the kernel's value on, which does not match the flag of an
    // invalidated key.
    let told = (!test_device.is_softroce()).then_some(rkey);
    assert_eq!(completion(&mut pair.b.recv_cq), (3, Status::Success, Some(Opcode::Receive), told));
    assert_eq!(pair.b.memory.get(8192, 48), pattern(6, 48));
    is_refused(&mut pair, rkey, 0);
    Ok(())
}

fn an_atomic_write_is_posted<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    has(test_device, Capability::AtomicWrite, "atomic write")?;
    // It posts no classic atomic write.
    if test_device.is_softroce() && !std::any::type_name::<Q>().ends_with("::ExtendedQueuePair") {
        skip!("SoftRoCE's library posts no classic atomic write");
    }
    let mut pair = Pair::<Q, Cq>::with(test_device, |options| {
        options.operations = Some(SendOperationFlags::AtomicWrite);
        options.inline = 8;
    });
    let to = pair.b.remote(64);
    let mut guard = pair.a.qp.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_atomic_write(to.rkey, to.addr, 0x0102_0304_0506_0708);
    guard.construct_wr(2, SIGNALED).setup_atomic_write(to.rkey, to.addr + 8, u64::MAX);
    guard.post().unwrap();
    for wr_id in [1, 2] {
        assert_eq!(
            completion(&mut pair.a.send_cq),
            (wr_id, Status::Success, Some(Opcode::AtomicWrite), None)
        );
    }
    assert_eq!((pair.b.memory.get_u64(64), pair.b.memory.get_u64(72)), (0x0102_0304_0506_0708, u64::MAX));
    Ok(())
}

fn operations_a_pair_was_not_created_with_are_refused<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    use WorkRequestOperationType as Type;
    let mut pair = Pair::<Q, Cq>::new(test_device);
    let to = pair.b.remote(0);
    for wanted in [Type::LocalInvalidate, Type::AtomicWrite, Type::Flush, Type::SendWithInvalidate] {
        let mut guard = pair.a.qp.start_post_send();
        drop(guard.construct_wr(0, SIGNALED).setup_write(to.rkey, to.addr));
        let handle = guard.construct_wr(1, SIGNALED);
        match wanted {
            Type::LocalInvalidate => handle.setup_local_inv(1),
            Type::AtomicWrite => handle.setup_atomic_write(to.rkey, to.addr, 1),
            Type::Flush => {
                let (placement, all) = (FlushPlacement::Global, FlushSelectivity::MemoryRegion);
                handle.setup_flush(to.rkey, to.addr, 8, placement, all);
            }
            _ => drop(handle.setup_send_inv(1)),
        }
        let error = guard.post().unwrap_err();
        assert_eq!(error, PostSendError::UnsupportedOperation { index: 1, operation: wanted });
    }
    // No request of the list was posted.
    pair.a.run(Op::Write(to), Data::At(0, 8));
    Ok(())
}

fn a_region_with_a_bound_window_comes_back(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<GenericQueuePair>(test_device)?;
    let memory = crate::node::Memory::new(4096);
    let access = AccessFlags::LocalWrite | AccessFlags::MemoryWindowBind;
    // SAFETY: the memory outlives the region, which is closed first, and no reference to it is
    // made.
    let region = unsafe { pair.b.pd.reg_mr(memory.start(), 4096, access).unwrap() };
    let mut window = pair.b.pd.alloc_mw(TYPE_1).unwrap();
    let (queue, _) = pair.b.qp.split();
    let info = MemoryWindowBindInfo::new(&region, memory.start() as u64, 4096, WRITE);
    window.bind(queue, 1, SIGNALED, info).unwrap();
    assert_eq!(completion(&mut pair.b.send_cq).1, Status::Success);
    let region = region.close().unwrap_err().object;
    window.close().unwrap();
    region.close().unwrap();
    Ok(())
}

fn a_window_is_bound_as_its_type_says(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<GenericQueuePair>(test_device)?;
    let mut one = pair.b.pd.alloc_mw(TYPE_1).unwrap();
    let mut two = pair.b.pd.alloc_mw(TYPE_2).unwrap();
    let (queue, _) = pair.b.qp.split();
    let error = two.unbind(queue, 1, SIGNALED, &pair.b.mr).unwrap_err();
    assert_error(&error, ErrorKind::InvalidArgument, &[("window_type", &TYPE_2)]);
    let rkey = one.next_rkey();
    let info = MemoryWindowBindInfo::new(&pair.b.mr, pair.b.mr.get_ptr() as u64, 64, WRITE);
    let mut guard = pair.b.qp.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_bind_mw(&mut one, rkey, info);
    assert_eq!(guard.post(), Err(PostSendError::WindowOfType1 { index: 0 }));
    Ok(())
}

fn a_window_binds_only_to_objects_of_its_device_and_domain(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<GenericQueuePair>(test_device)?;
    let other = test_device.open().alloc_pd().unwrap();
    let mut window = other.alloc_mw(TYPE_2).unwrap();
    let info = MemoryWindowBindInfo::new(&pair.b.mr, pair.b.mr.get_ptr() as u64, 64, WRITE);
    let mut guard = pair.b.qp.start_post_send();
    let rkey = window.next_rkey();
    guard.construct_wr(1, SIGNALED).setup_bind_mw(&mut window, rkey, info);
    assert_eq!(guard.post(), Err(PostSendError::OtherContext { index: 0 }));
    let mut window = other.alloc_mw(TYPE_1).unwrap();
    let error = window.bind(pair.b.qp.split().0, 1, SIGNALED, info).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherContext, "{error:?}");
    // For another domain of the same device, the library reports the error.
    let domain = pair.b.context.alloc_pd().unwrap();
    let mut window = domain.alloc_mw(TYPE_1).unwrap();
    let error = window.bind(pair.b.qp.split().0, 1, SIGNALED, info).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherDomain, "{error:?}");
    Ok(())
}

fn a_binding_that_the_device_refuses_fails(test_device: &TestDevice) -> Outcome {
    let mut pair = pair::<GenericQueuePair>(test_device)?;
    let mut window = pair.b.pd.alloc_mw(TYPE_2).unwrap();
    let (addr, len) = (pair.b.mr.get_ptr() as u64, pair.b.mr.region_len() as u64 + 1);
    let info = MemoryWindowBindInfo::new(&pair.b.mr, addr, len, WRITE);
    let rkey = window.next_rkey();
    let mut guard = pair.b.qp.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_bind_mw(&mut window, rkey, info);
    guard.post().unwrap();
    let (wr_id, status, ..) = completion(&mut pair.b.send_cq);
    let expected = if test_device.is_softroce() {
        Status::WorkRequestFlushedError
    } else {
        Status::MemoryWindowBindError
    };
    assert!(wr_id == 1 && [Status::MemoryWindowBindError, expected].contains(&status), "{status}");
    Ok(())
}

fn a_range_is_flushed(test_device: &TestDevice) -> Outcome {
    has(test_device, Capability::FlushGlobal, "flush")?;
    let mut pair = AnyPair::with(test_device, |options: &mut NodeOptions| {
        options.operations = Some(SendOperationFlags::Flush | SendOperationFlags::Write);
        options.region |= AccessFlags::FlushGlobal;
        options.connect.access_flags |= AccessFlags::FlushGlobal;
    });
    let to = pair.b.remote(0);
    for selectivity in [FlushSelectivity::Range, FlushSelectivity::MemoryRegion] {
        let mut guard = pair.a.qp.start_post_send();
        guard.construct_wr(1, SIGNALED).setup_flush(
            to.rkey,
            to.addr,
            64,
            FlushPlacement::Global,
            selectivity,
        );
        guard.post().unwrap();
        assert_eq!(completion(&mut pair.a.send_cq), (1, Status::Success, Some(Opcode::Flush), None));
    }
    Ok(())
}

fn a_window_that_there_is_not_is_unsupported(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    for window_type in [TYPE_1, TYPE_2, MemoryWindowType::from_raw(7)] {
        match pd.alloc_mw(window_type) {
            Ok(window) => window.close().unwrap(),
            Err(error) if error.unsupported().is_some() => {
                assert_eq!(error.verb(), "ibv_alloc_mw");
                assert!(!capabilities(test_device).contains(Capability::MemoryWindow));
            }
            Err(error) => assert_eq!(window_type.name(), None, "{error}"),
        }
    }
    Ok(())
}
