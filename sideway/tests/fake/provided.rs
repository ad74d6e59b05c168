//! Tests of provider memory, DMA handles, dma-bufs, write order and Ethernet addresses: errors, C
//! structs, and lifetimes.

use std::os::fd::AsFd;

use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::BasicCompletionQueue;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::dma_handle::{DmaHandleAttribute, TphMemoryType};
use sideway::ibverbs::memory_region::{MemoryKind, RegisterMemoryRegionError};
use sideway::ibverbs::queue_pair::{BasicQueuePair, QueuePair, WorkRequestOperationType};
use sideway::ibverbs::resolve::EthernetAddress;
use sideway::ibverbs::{AccessFlags, DataInOrder, DataInOrderQuery};

use super::FakeSetup;
use super::control::{ERRNOS, assert_fails, assert_says, lying};
use super::support::fake::{Fake, old_provider};

const ACCESS: AccessFlags = AccessFlags::LocalWrite;

#[test]
fn everything_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.extras = errno);
        let error = context.alloc_dmah(DmaHandleAttribute::new().setup_cpu_id(7)).unwrap_err();
        assert_fails!(errno, "ibv_alloc_dmah", error);
        let error = context.alloc_pd().unwrap().alloc_buf(100).unwrap_err();
        assert_fails!(errno, "ibv_alloc_buf", error);
        let error = context.resolve_eth_l2_from_gid(&AddressHandleAttribute::new()).unwrap_err();
        assert_says(&error, errno);

        let (_fake, context) = lying(|l| l.export_buf = errno);
        let buffer = context.alloc_pd().unwrap().alloc_buf(100).unwrap();
        let error = buffer.export_dmabuf_fd().unwrap_err();
        assert_fails!(errno, "ibv_export_buf_dmabuf_fd", error);
    }
    // The memory is not of a dma-buf (`man ibv_export_buf_dmabuf_fd`).
    let (_fake, context) = lying(|l| l.export_buf = libc::ENODATA);
    let error = context.alloc_pd().unwrap().alloc_buf(100).unwrap().export_dmabuf_fd().unwrap_err();
    let text = "device fake0 has no dma-bufs of its provider's memory (ibv_export_buf_dmabuf_fd)";
    assert_eq!(error.to_string(), text);
}

#[test]
#[cfg_attr(miri, ignore = "asks the system for its limits")]
fn registering_can_fail() {
    for errno in ERRNOS {
        let (_fake, context) = lying(|l| l.register = errno);
        let pd = context.alloc_pd().unwrap();
        let buffer = pd.alloc_buf(100).unwrap();
        let error = buffer.reg_buf_mr(0, 100, ACCESS).unwrap_err();
        assert_fails!(errno, "ibv_reg_buf_mr", error, RegisterMemoryRegionError::Unsupported);
        let error = pd.create_mr_builder().build_of_buffer(&buffer, 0, 100).unwrap_err();
        assert_fails!(errno, "ibv_reg_mr_ex", error, RegisterMemoryRegionError::Unsupported);
    }
}

#[test]
fn libraries_that_are_too_old_are_named() {
    let _fake = Fake::new();
    let context = DeviceList::from_provider(old_provider()).unwrap().first().unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let says = |error: &dyn std::error::Error, symbol: &str, since: &str| {
        let text = error.to_string();
        assert!(text.contains(symbol) && text.contains(since) && text.contains("fake0"), "{text}");
    };
    says(&context.alloc_dmah(&DmaHandleAttribute::new()).unwrap_err(), "ibv_alloc_dmah", "rdma-core 59");
    says(&pd.alloc_buf(1).unwrap_err(), "ibv_alloc_buf", "rdma-core 64");
    // SAFETY: no bytes are registered.
    let error = unsafe { pd.create_mr_builder().build(std::ptr::null_mut(), 0) }.unwrap_err();
    says(&error, "ibv_reg_mr_ex", "rdma-core 59");
    let dm = context.alloc_dm(64, 0).unwrap();
    says(&dm.export_dmabuf_fd().unwrap_err(), "ibv_dm_export_dmabuf_fd", "rdma-core 62");
}

#[test]
fn a_dma_handle_says_what_was_set_up_and_outlives_its_regions() {
    let fake = Fake::new();
    let context = fake.context();
    let said = || fake.world.provided.dma_handle.lock().unwrap().take().unwrap();
    drop(context.alloc_dmah(&DmaHandleAttribute::new()).unwrap());
    assert_eq!(said(), (0, 0, 0, 0));
    let mut attribute = DmaHandleAttribute::new();
    attribute.setup_cpu_id(9).setup_processing_hint(2).setup_tph_mem_type(TphMemoryType::Persistent);
    let handle = context.alloc_dmah(&attribute).unwrap();
    assert_eq!(said(), (7, 9, 2, 1));

    let pd = context.alloc_pd().unwrap();
    let ptr = std::ptr::without_provenance_mut(0x5000);
    let mut builder = pd.create_mr_builder();
    builder.setup_dma_handle(&handle).setup_access(ACCESS | AccessFlags::RemoteRead).setup_iova(0x9000);
    // SAFETY: the fake device touches no memory.
    let region = unsafe { builder.build(ptr, 100) }.unwrap();
    // The memory's address, the address in requests, and the handle.
    assert_eq!(*fake.world.provided.registered.lock().unwrap(), Some((100, 5, 0b1_0011, 0x9000, 0x5000, 0)));
    assert_eq!((region.get_ptr(), region.iova(), region.region_len()), (ptr, 0x9000, 100));
    assert_eq!(region.dma_handle().map(|of| of.as_raw()), Some(handle.as_raw()));
    assert!(matches!(region.kind(), MemoryKind::Program));
    fake.world.destroyed.lock().unwrap().clear();
    drop((builder, handle, pd, context));
    assert!(fake.world.destroyed.lock().unwrap().is_empty());
    region.close().unwrap();
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr", "pd", "dmah", "context"]);
}

#[test]
fn a_dma_handle_of_another_context_is_refused() {
    let fake = Fake::new();
    let handle = fake.context().alloc_dmah(&DmaHandleAttribute::new()).unwrap();
    let pd = fake.pd();
    // SAFETY: no bytes are registered.
    let refused = unsafe { pd.create_mr_builder().setup_dma_handle(&handle).build(std::ptr::null_mut(), 0) };
    assert!(matches!(refused, Err(RegisterMemoryRegionError::OtherContext)));
}

#[test]
fn the_provider_s_memory_outlives_its_regions() {
    let fake = Fake::new();
    let pd = fake.pd();
    let buffer = pd.alloc_buf(4096).unwrap();
    let start = buffer.as_ptr().addr();
    let first = buffer.reg_buf_mr(96, 4000, ACCESS).unwrap();
    assert_eq!(*fake.world.provided.registered.lock().unwrap(), Some((4000, 1, 0b10_0010, 0, start + 96, 0)));
    assert_eq!(
        (first.get_ptr().addr(), first.iova(), first.region_len()),
        (start + 96, start as u64 + 96, 4000)
    );
    assert!(matches!(first.kind(), MemoryKind::Provider(of) if *of == buffer));
    let second = pd.create_mr_builder().setup_iova(0x7000).build_of_buffer(&buffer, 0, 0).unwrap();
    assert_eq!(*fake.world.provided.registered.lock().unwrap(), Some((0, 1, 0b10_0011, 0x7000, start, 0)));
    drop((buffer, first, pd));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
    drop(second);
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr", "mr", "buf", "pd", "context"]);
}

#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn memory_that_the_device_does_not_let_go_of_is_not_freed() {
    let fake = Fake::new().may_leak();
    let buffer = fake.pd().alloc_buf(64).unwrap();
    let region = buffer.reg_buf_mr(0, 64, ACCESS).unwrap();
    fake.world.refused_deregistrations.store(1, std::sync::atomic::Ordering::Relaxed);
    drop((buffer, region));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mr"]);
}

#[test]
fn ranges_outside_the_buffer_are_refused_without_a_call() {
    let fake = Fake::new();
    let pd = fake.pd();
    let buffer = pd.alloc_buf(64).unwrap();
    for (offset, length) in [(0, 65), (64, 1), (usize::MAX, 1), (1, usize::MAX)] {
        for error in [
            buffer.reg_buf_mr(offset, length, ACCESS).unwrap_err(),
            pd.create_mr_builder().build_of_buffer(&buffer, offset, length).unwrap_err(),
        ] {
            assert!(
                matches!(error, RegisterMemoryRegionError::OutOfBuffer { buffer_len: 64, .. }),
                "{error}"
            );
        }
    }
    let other = pd.context().alloc_pd().unwrap();
    let error = other.create_mr_builder().build_of_buffer(&buffer, 0, 64).unwrap_err();
    assert!(matches!(error, RegisterMemoryRegionError::OtherDomain), "{error}");
    assert!(fake.world.provided.registered.lock().unwrap().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "opens a file")]
fn dma_bufs_are_registered_and_exported() {
    let fake = Fake::new();
    let context = fake.context();
    let pd = context.alloc_pd().unwrap();
    let exported = context.alloc_dm(64, 0).unwrap().export_dmabuf_fd().unwrap();
    let region = pd.create_mr_builder().build_of_dmabuf(exported.as_fd(), 0x2010, 100).unwrap();
    assert_eq!(*fake.world.provided.registered.lock().unwrap(), Some((100, 1, 0b1101, 0x2010, 0, 0x2010)));
    assert_eq!((region.iova(), region.get_ptr()), (0x2010, std::ptr::null_mut()));
    assert!(matches!(region.kind(), MemoryKind::DmaBuf));
    // Each call returns a new descriptor.
    let buffer = pd.alloc_buf(64).unwrap();
    let (first, second) = (buffer.export_dmabuf_fd().unwrap(), buffer.export_dmabuf_fd().unwrap());
    drop(first);
    pd.create_mr_builder().build_of_dmabuf(second.as_fd(), 0, 1).unwrap();
}

#[test]
fn promises_of_order_are_the_library_s_and_no_more() {
    type Pair = FakeSetup<BasicQueuePair, BasicCompletionQueue>;
    let asked = |lie, query| {
        let fake = Fake::lying(|l| l.data_in_order = lie);
        let setup = Pair::new(&fake);
        setup.qp.control().query_data_in_order(WorkRequestOperationType::Read, query).unwrap().bits()
    };
    let (all, device) = (DataInOrderQuery::empty(), DataInOrderQuery::DeviceOnly);
    // The fake's answer contains the requested flags and the operation.
    assert_eq!((asked(None, all), asked(None, device)), (0x140, 0x340));
    for (lie, expected) in [
        ([0, 0], DataInOrder::empty()),
        ([1, 1], DataInOrder::WholeMessage),
        ([2, 0], DataInOrder::Aligned128Bytes),
        // A library older than the flags.
        ([0, 1], DataInOrder::WholeMessage),
        // A failure guarantees nothing.
        ([-95, -95], DataInOrder::empty()),
        ([0, -1], DataInOrder::empty()),
        ([0, 2], DataInOrder::empty()),
    ] {
        assert_eq!(asked(Some(lie), all), expected.bits(), "{lie:?}");
    }
    assert_eq!(asked(Some([0, 1]), device), 0);
}

#[test]
fn stations_have_an_address_and_perhaps_a_network() {
    let fake = Fake::new();
    let context = fake.context();
    let mut gid = Gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6] };
    for (vlan, expected) in
        [(0, Some(0)), (77, Some(77)), (0xfff, Some(0xfff)), (0x1000, None), (0xffff, None)]
    {
        gid.raw[..2].copy_from_slice(&u16::to_be_bytes(vlan));
        let found = context.resolve_eth_l2_from_gid(AddressHandleAttribute::new().setup_grh_dest_gid(&gid));
        assert_eq!(found.unwrap(), EthernetAddress { mac: [1, 2, 3, 4, 5, 6], vlan: expected });
    }
}
