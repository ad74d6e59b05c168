//! Tests of protection domains and memory regions.

use std::collections::HashSet;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::RegisterMemoryRegionError;
use sideway::memory::{Buffer, BufferKind, OutOfSlice};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyPair, Data, Memory, Op, RemoteBuffer, pattern};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_region_says_what_it_is,
        every_useful_permission_is_granted,
        remote_permission_to_write_needs_the_local_one,
        regions_have_keys_of_their_own,
        regions_may_overlap,
        memory_that_is_not_there_is_an_error,
        more_than_the_address_space_is_an_error,
        nothing_at_all_is_an_error_or_a_region,
        a_region_can_be_closed,
        domains_are_independent,
        owned_memory_of_each_kind_is_reached_and_given_back,
    );
}

fn a_region_says_what_it_is(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(12345);
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let mr = unsafe { pd.reg_mr(memory.start().wrapping_add(1), 12344, AccessFlags::LocalWrite).unwrap() };
    assert_eq!((mr.get_ptr(), mr.region_len()), (memory.start().wrapping_add(1), 12344));
    assert_eq!(mr.pd().context(), pd.context());
    Ok(())
}

fn every_useful_permission_is_granted(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(4096);
    let remote = [AccessFlags::RemoteWrite, AccessFlags::RemoteRead, AccessFlags::RemoteAtomic];
    for bits in 0..1 << remote.len() {
        let mut access = AccessFlags::LocalWrite;
        for (n, flag) in remote.iter().enumerate() {
            access.set(*flag, bits & 1 << n != 0);
        }
        // SAFETY: the memory outlives the region, and no reference to it is made.
        drop(unsafe { pd.reg_mr(memory.start(), 4096, access).unwrap() });
    }
    // SAFETY: the memory outlives the region, and no reference to it is made.
    drop(unsafe { pd.reg_mr(memory.start(), 4096, AccessFlags::empty()).unwrap() });
    // SAFETY: the memory outlives the region, and no reference to it is made.
    drop(unsafe { pd.reg_mr(memory.start(), 4096, AccessFlags::RemoteRead).unwrap() });
    // A hint, which devices that do not know it must ignore.
    let relaxed = AccessFlags::LocalWrite | AccessFlags::RelaxedOrdering;
    // SAFETY: the memory outlives the region, and no reference to it is made.
    drop(unsafe { pd.reg_mr(memory.start(), 4096, relaxed).unwrap() });
    Ok(())
}

fn remote_permission_to_write_needs_the_local_one(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(4096);
    for access in [AccessFlags::RemoteWrite, AccessFlags::RemoteAtomic] {
        // SAFETY: the memory outlives the region, and no reference to it is made.
        let error = unsafe { pd.reg_mr(memory.start(), 4096, access) }.unwrap_err();
        let RegisterMemoryRegionError::Ibverbs { len: 4096, access: said, source } = &error else {
            panic!("{error}")
        };
        assert_eq!((*said, source.raw_os_error()), (access, Some(libc::EINVAL)));
        assert!(error.to_string().contains(&format!("{access:?}")), "{error}");
    }
    Ok(())
}

fn regions_have_keys_of_their_own(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(64 * 4096);
    let all = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    let regions: Vec<_> = (0..64)
        // SAFETY: the memory outlives the regions, and no reference to it is made.
        .map(|n| unsafe { pd.reg_mr(memory.start().wrapping_add(n * 4096), 4096, all).unwrap() })
        .collect();
    let keys: HashSet<_> = regions.iter().map(|mr| mr.lkey()).collect();
    assert_eq!(keys.len(), 64);
    let keys: HashSet<_> = regions.iter().map(|mr| mr.rkey()).collect();
    assert_eq!(keys.len(), 64);
    Ok(())
}

fn regions_may_overlap(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(8192);
    // SAFETY: the memory outlives the regions, and no reference to it is made.
    let one = unsafe { pd.reg_mr(memory.start(), 8192, AccessFlags::LocalWrite).unwrap() };
    // SAFETY: the memory outlives the regions, and no reference to it is made.
    let two = unsafe { pd.reg_mr(memory.start().wrapping_add(100), 5000, AccessFlags::RemoteRead).unwrap() };
    assert_ne!(one.lkey(), two.lkey());
    drop(one);
    two.close().unwrap();
    Ok(())
}

fn memory_that_is_not_there_is_an_error(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    // SAFETY: the device rejects memory that is not mapped, so nothing is registered.
    let error = unsafe { pd.reg_mr(std::ptr::null_mut(), 4096, AccessFlags::LocalWrite) }.unwrap_err();
    assert!(error.to_string().contains("4096 bytes"), "{error}");
    Ok(())
}

fn more_than_the_address_space_is_an_error(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(4096);
    for len in [1 << 46, usize::MAX / 2, usize::MAX] {
        // SAFETY: the device rejects memory that is not mapped, so nothing is registered.
        let error = unsafe { pd.reg_mr(memory.start(), len, AccessFlags::LocalWrite) }.unwrap_err();
        assert!(error.to_string().contains(&len.to_string()), "{error}");
    }
    Ok(())
}

fn nothing_at_all_is_an_error_or_a_region(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(4096);
    // SAFETY: no bytes are registered.
    match unsafe { pd.reg_mr(memory.start(), 0, AccessFlags::LocalWrite) } {
        Ok(mr) => {
            assert_eq!(mr.region_len(), 0);
            mr.close().unwrap();
        }
        Err(error) => assert!(error.to_string().contains("0 bytes"), "{error}"),
    }
    Ok(())
}

fn a_region_can_be_closed(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let memory = Memory::new(4096);
    for _ in 0..10 {
        // SAFETY: the memory outlives the region, and no reference to it is made.
        let mr = unsafe { pd.reg_mr(memory.start(), 4096, AccessFlags::LocalWrite).unwrap() };
        mr.close().unwrap();
    }
    Ok(())
}

fn domains_are_independent(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let domains: Vec<_> = (0..16).map(|_| context.alloc_pd().unwrap()).collect();
    let memory = Memory::new(4096);
    for pd in &domains {
        // SAFETY: the memory outlives the region, and no reference to it is made.
        let mr = unsafe { pd.reg_mr(memory.start(), 4096, AccessFlags::LocalWrite).unwrap() };
        assert_eq!(mr.pd().as_raw(), pd.as_raw());
    }
    Ok(())
}

fn owned_memory_of_each_kind_is_reached_and_given_back(test_device: &TestDevice) -> Outcome {
    const LEN: usize = 10_000;
    let mut pair = AnyPair::new(test_device);
    let suits = if pair.a.context.is_soft() { BufferKind::Shared } else { BufferKind::Private };
    assert_eq!(BufferKind::for_device(&pair.a.context), suits);
    for (seed, kind) in [BufferKind::Private, BufferKind::Shared].into_iter().enumerate() {
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead;
        let mut memory = pair.b.pd.reg_buffer(Buffer::new(kind, LEN).unwrap(), access).unwrap();
        let target = RemoteBuffer { rkey: memory.rkey(), addr: memory.as_ptr() as u64 };
        let bytes = pattern(seed as u8, LEN);
        pair.a.memory.set(0, &bytes);
        pair.a.run(Op::Write(target), Data::At(0, LEN));
        pair.a.memory.set(0, &[0; LEN]);
        pair.a.run(Op::Read(target), Data::At(0, LEN));
        assert_eq!(pair.a.memory.get(0, LEN), bytes, "{kind:?}");
        let mut copy = vec![0; LEN];
        memory.copy_to_slice(0, &mut copy).unwrap();
        assert_eq!(copy, bytes, "{kind:?}");

        memory.write(8, 0x1234_5678_u32).unwrap();
        memory.copy_from_slice(LEN - 3, b"end").unwrap();
        pair.a.run(Op::Read(target), Data::At(0, LEN));
        assert_eq!(pair.a.memory.get(8, 4), 0x1234_5678_u32.to_ne_bytes(), "{kind:?}");
        assert_eq!(pair.a.memory.get(LEN - 3, 3), b"end", "{kind:?}");
        assert_eq!(memory.read::<u32>(8).unwrap(), 0x1234_5678);
        // Buffers are whole pages.
        let outside = OutOfSlice { offset: memory.len() - 7, len: 8, limit: memory.len() };
        assert_eq!(memory.read::<u64>(outside.offset).unwrap_err(), outside);
        assert_eq!(memory.write::<u64>(outside.offset, 1).unwrap_err(), outside);
        assert!(memory.copy_from_slice(usize::MAX, b"x").is_err());
        memory.copy_from_slice(0, &bytes).unwrap();
        let buffer = memory.close().unwrap();
        // SAFETY: the reads are within the buffer, to which nobody writes any more.
        let got: Vec<_> = (0..LEN).map(|n| unsafe { buffer.as_ptr().add(n).read_volatile() }).collect();
        assert_eq!(got, bytes, "{kind:?}");
    }
    Ok(())
}
