//! Tests of all kinds of regions, of device memory, and of changes of regions.

use std::os::fd::{AsFd, OwnedFd};

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::device_attr::{OnDemandPagingGeneral, OnDemandPagingTransport};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::device_memory::DeviceMemory;
use sideway::ibverbs::memory_region::{
    AdviseMemoryRegionFlags, MemoryRegion, MemoryRegionAdvice, MemoryRegionChange, NullMemoryRegion,
    RegisterMemoryRegionError, ReregisterMemoryRegionError,
};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{QueuePair, ScatterGatherEntry};

use crate::harness::{Outcome, Skip, Suite, TestDevice};
use crate::node::{AnyPair, Data, Memory, Op, RemoteBuffer, pattern};
use crate::support::errors::assert_error;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        addresses_may_be_chosen,
        a_region_is_changed,
        a_region_that_was_not_changed_is_as_before,
        a_failed_change_leaves_what_can_be_closed,
        nothing_is_sent_and_received,
        device_memory_is_copied_registered_and_reached,
        device_memory_is_as_long_as_anything_of_it,
        device_memory_is_imported,
        more_device_memory_than_there_is_is_an_error,
        part_of_a_dma_buf_is_reached,
        registering_a_file_that_is_no_dma_buf_fails,
        memory_on_demand_is_prefetched,
        all_of_the_address_space_is_registered_or_refused_by_name,
        borrowed_memory_is_reached_and_given_back,
        memory_that_may_not_be_written_is_an_error,
        flags_of_the_memory_are_taken,
        no_region_leaves_anything,
    );
}

fn everything() -> AccessFlags {
    AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead | AccessFlags::RemoteAtomic
}

fn remote(mr: &MemoryRegion, offset: u64) -> RemoteBuffer {
    RemoteBuffer { rkey: mr.rkey(), addr: mr.iova() + offset }
}

fn entry(mr: &MemoryRegion, offset: u64, len: u32) -> ScatterGatherEntry {
    ScatterGatherEntry::new(mr.lkey(), mr.iova() + offset, len)
}

/// The completion status of a WRITE of 8 bytes.
fn write_ends(pair: &mut AnyPair, to: RemoteBuffer) -> WorkCompletionStatus {
    pair.a.post(&[(1, crate::node::SIGNALED, Op::Write(to), Data::At(0, 8))]).unwrap();
    pair.a.sent(1)[0].status
}

fn addresses_may_be_chosen(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let memory = Memory::new(8192);
    let iova = 0x4000_0000_0000;
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let mr = unsafe { pair.b.pd.reg_mr_iova(memory.start(), 8192, iova, everything()) }.unwrap();
    assert_eq!((mr.iova(), mr.get_ptr(), mr.region_len()), (iova, memory.start(), 8192));
    pair.a.memory.set(0, &pattern(1, 3000));
    pair.a.run(Op::Write(RemoteBuffer { rkey: mr.rkey(), addr: iova + 100 }), Data::At(0, 3000));
    assert_eq!(memory.get(100, 3000), pattern(1, 3000));
    // The node that owns the region uses the same address.
    let from = pair.a.remote(0);
    pair.a.memory.set(0, &pattern(2, 3000));
    pair.b.run(Op::Read(from), Data::Entry(entry(&mr, 4000, 3000)));
    assert_eq!(memory.get(4000, 3000), pattern(2, 3000));
    drop(mr);
    Ok(())
}

/// Changes a region of node `b`, if the device supports it.
fn change(
    test_device: &TestDevice,
    pair: &AnyPair,
    memory: &Memory,
    setup: impl FnOnce(&mut MemoryRegionChange),
) -> Result<MemoryRegion, Skip> {
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let mr = unsafe { pair.b.pd.reg_mr(memory.start(), 4096, everything()) }.unwrap();
    let mut change = MemoryRegionChange::new();
    setup(&mut change);
    // SAFETY: the memory outlives the region, and so does the new memory. No reference to either is
    // made.
    match unsafe { mr.rereg_mr(&change) } {
        Ok(mr) => Ok(mr),
        Err(ReregisterMemoryRegionError::Unsupported { region, source }) => {
            region.close().unwrap();
            skip!("{}: {source}", test_device.name)
        }
        Err(error) => panic!("{error}"),
    }
}

fn a_region_is_changed(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let (old, new) = (Memory::new(4096), Memory::new(8192));
    let mr = change(test_device, &pair, &old, |change| {
        change.setup_translation(new.start(), 8192);
    })?;
    assert_eq!((mr.get_ptr(), mr.region_len(), mr.access()), (new.start(), 8192, everything()));
    pair.a.memory.set(0, &[3; 64]);
    pair.a.run(Op::Write(remote(&mr, 8128)), Data::At(0, 64));
    assert_eq!((new.get(8128, 64), old.get(0, 64)), (vec![3; 64], vec![0; 64]));
    mr.close().unwrap();
    // Changes the permissions.
    let reading = AccessFlags::LocalWrite | AccessFlags::RemoteRead;
    let mr = change(test_device, &pair, &old, |change| {
        change.setup_access(reading);
    })?;
    assert_eq!((mr.get_ptr(), mr.access()), (old.start(), reading));
    pair.a.run(Op::Read(remote(&mr, 0)), Data::At(0, 64));
    assert_eq!(write_ends(&mut pair, remote(&mr, 0)), WorkCompletionStatus::RemoteAccessError);
    drop(mr);
    // Changes the domain, which the region keeps alive.
    let mut pair = AnyPair::new(test_device);
    let other = pair.b.context.alloc_pd().unwrap();
    let mr = change(test_device, &pair, &old, |change| {
        change.setup_pd(&other);
    })?;
    assert_eq!(mr.pd().as_raw(), other.as_raw());
    drop(other);
    assert_eq!(write_ends(&mut pair, remote(&mr, 0)), WorkCompletionStatus::RemoteAccessError);
    Ok(())
}

fn a_region_that_was_not_changed_is_as_before(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let memory = Memory::new(4096);
    // SAFETY: the memory outlives the region, and no reference to it is made.
    unsafe {
        let mr = pair.b.pd.reg_mr(memory.start(), 4096, everything()).unwrap();
        let error = mr.rereg_mr(&MemoryRegionChange::new()).unwrap_err();
        let ReregisterMemoryRegionError::Unchanged { region, .. } = error else { panic!("{error}") };
        let mut foreign = MemoryRegionChange::new();
        foreign.setup_pd(&test_device.open().alloc_pd().unwrap());
        let error = region.rereg_mr(&foreign).unwrap_err();
        let ReregisterMemoryRegionError::OtherContext { region } = error else { panic!("{error}") };
        // The library rejects this change itself.
        let mut nowhere = MemoryRegionChange::new();
        nowhere.setup_translation(std::ptr::null_mut(), 0);
        let error = region.rereg_mr(&nowhere).unwrap_err();
        let ReregisterMemoryRegionError::Unchanged { region, .. } = error else { panic!("{error}") };
        pair.a.run(Op::Write(remote(&region, 0)), Data::At(0, 64));
    }
    Ok(())
}

fn a_failed_change_leaves_what_can_be_closed(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(4096);
    for close in [true, false] {
        // SAFETY: the memory outlives the region, and no reference to it is made.
        let mr = unsafe { pd.reg_mr(memory.start(), 4096, AccessFlags::LocalWrite) }.unwrap();
        let mut change = MemoryRegionChange::new();
        // Remote write access requires local write access.
        change.setup_access(AccessFlags::RemoteWrite);
        // SAFETY: the memory outlives the region, and no reference to it is made.
        let region = match unsafe { mr.rereg_mr(&change) }.unwrap_err() {
            ReregisterMemoryRegionError::Unusable { region, source } => {
                assert!(source.raw_os_error().is_some());
                region
            }
            ReregisterMemoryRegionError::Unsupported { region, .. } => region,
            error => panic!("{error}"),
        };
        assert_eq!(region.pd().as_raw(), pd.as_raw());
        assert!(region.other_pd().is_none());
        if close {
            region.close().unwrap();
        }
    }
    Ok(())
}

fn null(test_device: &TestDevice, pd: &ProtectionDomain) -> Result<NullMemoryRegion, Skip> {
    match pd.alloc_null_mr() {
        Ok(null) => Ok(null),
        Err(error) if error.unsupported().is_some() => skip!("{}: {error}", test_device.name),
        Err(error) => panic!("{error}"),
    }
}

fn nothing_is_sent_and_received(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let (ours, theirs) = (null(test_device, &pair.a.pd)?, null(test_device, &pair.b.pd)?);
    pair.b.memory.set(0, &[1; 2000]);
    let to = pair.b.remote(0);
    pair.a.run(Op::Write(to), Data::Entry(ScatterGatherEntry::new(ours.lkey(), 0x77, 1999)));
    assert_eq!(pair.b.memory.get(0, 2000), [vec![0; 1999], vec![1]].concat());
    for len in [8, 5000] {
        let mut guard = pair.b.qp.start_post_recv();
        // SAFETY: the region has no memory.
        unsafe { guard.construct_wr(5).setup_sge(theirs.lkey(), 0, 1 << 20) };
        guard.post().unwrap();
        pair.a.run(Op::Send, Data::At(0, len));
        let received = pair.b.received(1)[0];
        assert_eq!((received.status, received.byte_len), (WorkCompletionStatus::Success, Some(len as u32)));
    }
    assert_eq!(theirs.pd().as_raw(), pair.b.pd.as_raw());
    theirs.close().unwrap();
    Ok(())
}

fn device_memory(
    test_device: &TestDevice,
    context: &DeviceContext,
    length: usize,
) -> Result<DeviceMemory, Skip> {
    match context.alloc_dm(length, 3) {
        Ok(memory) => Ok(memory),
        Err(error) if error.unsupported().is_some() => skip!("{}: {error}", test_device.name),
        Err(error) => panic!("{error}"),
    }
}

fn device_memory_is_copied_registered_and_reached(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let dm = device_memory(test_device, &pair.b.context, 4096)?;
    let mr = pair.b.pd.reg_dm_mr(&dm, 1024, 3072, everything()).unwrap();
    assert_eq!((mr.iova(), mr.region_len()), (0, 3072));
    pair.a.memory.set(0, &pattern(1, 2000));
    pair.a.run(Op::Write(RemoteBuffer { rkey: mr.rkey(), addr: 1000 }), Data::At(0, 2000));
    let mut bytes = vec![0; 2000];
    dm.memcpy_from_dm(&mut bytes, 2024).unwrap();
    assert_eq!(bytes, pattern(1, 2000));
    dm.memcpy_to_dm(1024, &8_u64.to_ne_bytes()).unwrap();
    pair.a.run(Op::FetchAdd(remote(&mr, 0), 2), Data::At(64, 8));
    assert_eq!(pair.a.memory.get_u64(64), 8);
    // Uses it as local memory.
    let from = pair.a.remote(64);
    pair.b.run(Op::Read(from), Data::Entry(entry(&mr, 8, 8)));
    dm.memcpy_from_dm(&mut bytes[..16], 1024).unwrap();
    assert_eq!(bytes[..16], [10_u64.to_ne_bytes(), 8_u64.to_ne_bytes()].concat());
    assert_eq!(
        write_ends(&mut pair, RemoteBuffer { rkey: mr.rkey(), addr: 3065 }),
        WorkCompletionStatus::RemoteAccessError
    );
    Ok(())
}

fn device_memory_is_as_long_as_anything_of_it(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let dm = device_memory(test_device, &pair.b.context, 4096)?;
    let again = dm.clone();
    let mr = pair.b.pd.reg_dm_mr(&dm, 0, 4096, everything()).unwrap();
    drop(dm);
    pair.a.run(Op::Write(remote(&mr, 0)), Data::At(0, 64));
    again.memcpy_to_dm(0, &[1; 8]).unwrap();
    drop((again, pair));
    mr.close().unwrap();
    Ok(())
}

fn device_memory_is_imported(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let dm = device_memory(test_device, &context, 64)?;
    let (Some(descriptor), Some(handle)) = (context.command_fd(), dm.handle()) else {
        skip!("{} cannot be imported", test_device.name)
    };
    let descriptor = descriptor.try_clone_to_owned().unwrap();
    let Ok(imported) = DeviceContext::import(context.provider(), descriptor) else {
        skip!("{} cannot be imported", test_device.name)
    };
    // SAFETY: the memory has 64 bytes and outlives the import.
    let again = unsafe { imported.import_dm(handle, 64) }.unwrap();
    again.memcpy_to_dm(32, &[5; 32]).unwrap();
    let mut bytes = [0; 64];
    dm.memcpy_from_dm(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..], [[0; 32], [5; 32]].concat());
    assert!(again.is_imported() && !dm.is_imported());
    let region = imported.alloc_pd().unwrap().reg_dm_mr(&again, 0, 64, everything()).unwrap();
    drop((again, imported));
    drop(region);
    // SAFETY: no memory has this number, so the import fails.
    assert!(unsafe { context.import_dm(0x7fff_ffff, 64) }.is_err());
    dm.memcpy_to_dm(0, &[1; 64]).unwrap();
    Ok(())
}

fn more_device_memory_than_there_is_is_an_error(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    drop(device_memory(test_device, &context, 64)?);
    let most = context.query_device().unwrap().max_dm_size();
    for (length, align) in [(most as usize + 1, 0), (usize::MAX, 0), (64, 62)] {
        let error = context.alloc_dm(length, align).unwrap_err();
        assert_error(&error, ErrorKind::Os, &[("length", &length), ("log_align_req", &align)]);
    }
    Ok(())
}

/// A file that a software device accepts as a dma-buf.
fn sealed_file(len: u64) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

fn part_of_a_dma_buf_is_reached(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    if !pair.a.context.is_soft() {
        skip!("a real dma-buf is needed");
    }
    let file = sealed_file(16384);
    let iova = 0x1_2345_6000 + 10;
    let mr = pair.b.pd.reg_dmabuf_mr(file.as_fd(), 4106, 9000, iova, everything()).unwrap();
    pair.a.memory.set(0, &pattern(1, 8990));
    pair.a.run(Op::Write(RemoteBuffer { rkey: mr.rkey(), addr: iova + 10 }), Data::At(0, 8990));
    let mut bytes = vec![0; 8990];
    rustix::io::pread(&file, &mut bytes, 4116).unwrap();
    assert_eq!(bytes, pattern(1, 8990));
    // The region keeps the memory without the descriptor.
    drop(file);
    pair.a.memory.set(0, &[0; 100]);
    pair.a.run(Op::Read(remote(&mr, 10)), Data::At(0, 100));
    assert_eq!(pair.a.memory.get(0, 100), pattern(1, 100));
    Ok(())
}

fn registering_a_file_that_is_no_dma_buf_fails(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    match pd.reg_dmabuf_mr(file.as_fd(), 0, 4096, 0, everything()).unwrap_err() {
        RegisterMemoryRegionError::Unsupported(error) => {
            assert!(error.to_string().contains("regions of dma-bufs"), "{error}");
            Ok(())
        }
        RegisterMemoryRegionError::Ibverbs { len: 4096, source, .. } => {
            assert_eq!(source.raw_os_error(), Some(libc::EINVAL));
            Ok(())
        }
        error => panic!("{error}"),
    }
}

fn memory_on_demand_is_prefetched(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let caps = pair.b.context.query_device().unwrap().odp_caps();
    let memory = Memory::new(1 << 16);
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::OnDemand;
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let mr = match unsafe { pair.b.pd.reg_mr(memory.start(), 1 << 16, access) } {
        Ok(mr) => mr,
        Err(error) => {
            assert!(!caps.general.contains(OnDemandPagingGeneral::Support), "{error}");
            skip!("{}: {error}", test_device.name)
        }
    };
    assert!(caps.general.contains(OnDemandPagingGeneral::Support));
    let pd = &pair.b.pd;
    let flush = AdviseMemoryRegionFlags::Flush;
    for advice in
        [MemoryRegionAdvice::Prefetch, MemoryRegionAdvice::PrefetchWrite, MemoryRegionAdvice::PrefetchNoFault]
    {
        pd.advise_mr(advice, flush, &[(&mr, 0..1 << 16), (&mr, 5..6)]).unwrap();
        pd.advise_mr(advice, AdviseMemoryRegionFlags::empty(), &[(&mr, 0..100)]).unwrap();
    }
    let error = pd.advise_mr(MemoryRegionAdvice::Prefetch, flush, &[(&mr, 1..65537)]).unwrap_err();
    assert_error(&error, ErrorKind::OutOfBounds, &[("index", &0)]);
    let error = pd.advise_mr(MemoryRegionAdvice::from_raw(99), flush, &[(&mr, 0..1)]).unwrap_err();
    assert!(error.to_string().contains("Unknown(99)"), "{error}");
    let error = pd.advise_mr(MemoryRegionAdvice::Prefetch, flush, &[(&pair.b.mr, 0..64)]).unwrap_err();
    assert_error(&error, ErrorKind::InvalidArgument, &[("index", &0)]);
    // SoftRoCE copies to the beginnings of pages.
    assert!(caps.rc.contains(OnDemandPagingTransport::Write), "{caps:?}");
    pair.a.memory.set(0, &[6; 64]);
    pair.a.run(Op::Write(remote(&mr, 8192)), Data::At(0, 64));
    assert_eq!(memory.get(8191, 66), [vec![0], vec![6; 64], vec![0]].concat());
    Ok(())
}

fn all_of_the_address_space_is_registered_or_refused_by_name(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let general = context.query_device().unwrap().odp_caps().general;
    // SAFETY: no request names the region.
    match unsafe { pd.reg_mr_implicit(AccessFlags::LocalWrite) } {
        Ok(mr) => {
            assert!(general.contains(OnDemandPagingGeneral::SupportImplicit));
            assert_eq!(mr.region_len(), usize::MAX);
        }
        Err(RegisterMemoryRegionError::Unsupported(error)) => {
            assert!(error.to_string().contains("all the address space"), "{error}");
        }
        Err(error) => assert!(!general.contains(OnDemandPagingGeneral::SupportImplicit), "{error}"),
    }
    Ok(())
}

fn borrowed_memory_is_reached_and_given_back(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let mut bytes = vec![0; 5000];
    pair.b.memory.set(0, &pattern(3, 5000));
    let from = pair.b.remote(0);
    let pd = pair.a.pd.clone();
    let key = pd.reg_mr_scoped(&mut bytes, AccessFlags::LocalWrite, |mr| {
        pair.a.run(Op::Read(from), Data::Entry(entry(mr, 0, 5000)));
        mr.lkey()
    });
    assert_eq!(bytes, pattern(3, 5000));
    // The key is invalid now, so nothing is written.
    let stale = ScatterGatherEntry::new(key.unwrap(), bytes.as_ptr().addr() as u64, 8);
    pair.b.memory.set(0, &[0xff; 8]);
    pair.a.post(&[(1, crate::node::SIGNALED, Op::Read(from), Data::Entry(stale))]).unwrap();
    assert_ne!(pair.a.sent(1)[0].status, WorkCompletionStatus::Success);
    assert_eq!(bytes[..8], pattern(3, 8));
    // No device accepts this permission alone.
    let error = pd.reg_mr_scoped(&mut bytes, AccessFlags::RemoteWrite, |_| unreachable!()).unwrap_err();
    assert!(error.to_string().contains("5000 bytes"), "{error}");
    Ok(())
}

fn memory_that_may_not_be_written_is_an_error(test_device: &TestDevice) -> Outcome {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let pd = test_device.open().alloc_pd().unwrap();
    // SAFETY: this is a new mapping without references, which is unmapped after its last region is
    // gone.
    unsafe {
        let memory = mmap_anonymous(std::ptr::null_mut(), 8192, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
        drop(pd.reg_mr(memory.cast(), 8192, AccessFlags::RemoteRead).unwrap());
        let error = pd.reg_mr(memory.cast(), 8192, AccessFlags::LocalWrite).unwrap_err();
        let RegisterMemoryRegionError::Ibverbs { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(libc::EFAULT));
        munmap(memory, 8192).unwrap();
    }
    Ok(())
}

fn flags_of_the_memory_are_taken(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    if !pair.b.context.is_soft() {
        skip!("what huge pages and offsets mean is the device's");
    }
    let memory = Memory::new(8192);
    let register = |access: AccessFlags| {
        // SAFETY: the memory outlives the region, and no reference to it is made. It is not on huge
        // pages, which does not matter to a device that copies.
        unsafe { pair.b.pd.reg_mr(memory.start(), 8192, everything() | access) }.unwrap()
    };
    drop(register(AccessFlags::HugeTlb | AccessFlags::OnDemand));
    drop(register(AccessFlags::RelaxedOrdering));
    let mr = register(AccessFlags::ZeroBased);
    assert_eq!(mr.iova(), 0);
    pair.a.memory.set(0, &[8; 8]);
    pair.a.run(Op::Write(RemoteBuffer { rkey: mr.rkey(), addr: 4000 }), Data::At(0, 8));
    assert_eq!(memory.get(4000, 8), [8; 8]);
    Ok(())
}

/// The numbers of regions and of open descriptors.
#[cfg(feature = "soft")]
fn counts() -> (u64, usize) {
    let regions = sideway::soft::statistics().map_or(0, |statistics| u64::from(statistics.regions.count));
    (regions, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

#[cfg(not(feature = "soft"))]
fn counts() -> (u64, usize) {
    (0, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

fn no_region_leaves_anything(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let pd = context.alloc_pd().unwrap();
    let memory = Memory::new(4096);
    let round = || {
        // SAFETY: the memory outlives the regions, and no reference to it is made.
        let mr = unsafe { pd.reg_mr(memory.start(), 4096, everything()) }.unwrap();
        let mut change = MemoryRegionChange::new();
        change.setup_access(AccessFlags::LocalWrite);
        // SAFETY: the memory outlives the regions, and no reference to it is made.
        drop(unsafe { mr.rereg_mr(&change) });
        let mut wrong = MemoryRegionChange::new();
        wrong.setup_access(AccessFlags::RemoteWrite);
        // SAFETY: the memory outlives the regions, and no reference to it is made.
        drop(unsafe { pd.reg_mr(memory.start(), 4096, everything()).unwrap().rereg_mr(&wrong) });
        drop(pd.alloc_null_mr());
        if let Ok(dm) = context.alloc_dm(8192, 0) {
            drop(pd.reg_dm_mr(&dm, 0, 8192, everything()).unwrap());
        }
        drop(pd.reg_dmabuf_mr(sealed_file(4096).as_fd(), 0, 4096, 0, everything()));
        drop(pd.reg_dmabuf_mr(sealed_file(4096).as_fd(), 4096, 4096, 0, everything()));
        pd.reg_mr_scoped(&mut [0; 64], AccessFlags::LocalWrite, |_| ()).unwrap();
    };
    round();
    let before = counts();
    (0..50).for_each(|_| round());
    assert_eq!(counts(), before);
    Ok(())
}
