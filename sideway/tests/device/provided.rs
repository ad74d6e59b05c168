//! Tests of provider memory, DMA handles, write order, rates and Ethernet addresses on a device.

use std::os::fd::AsFd;

use sideway::ErrorKind;
use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::dma_handle::DmaHandleAttribute;
use sideway::ibverbs::memory_region::{MemoryKind, MemoryRegion, RegisterMemoryRegionError};
use sideway::ibverbs::port::LinkLayer;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::provider_buffer::ProviderBuffer;
use sideway::ibverbs::queue_pair::{QueuePair, WorkRequestOperationType};
use sideway::ibverbs::rate::Rate;
use sideway::ibverbs::{AccessFlags, DataInOrder, DataInOrderQuery};
use sideway::memory::{Buffer, BufferKind};
use sideway::sys::types::{ibv_ops_wr, ibv_ops_wr_opcode, ibv_rate};
use sideway::sys::verbs;

use crate::harness::{Outcome, Skip, Suite, TestDevice};
use crate::node::{AnyPair, Data, Op, RemoteBuffer, pattern};
use crate::support::errors::assert_error;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        memory_of_the_provider_is_registered_and_reached,
        memory_of_the_provider_has_an_end,
        a_description_makes_regions,
        described_options_work_or_are_unsupported,
        a_pair_promises_what_it_keeps,
        rates_are_the_library_s,
        the_station_of_the_port_s_own_address_is_known,
        raw_handles_reach_a_verb_that_is_not_wrapped,
    );
}

const ACCESS: AccessFlags = AccessFlags::LocalWrite.union(AccessFlags::RemoteWrite);

fn allocate(test_device: &TestDevice, pd: &ProtectionDomain, len: usize) -> Result<ProviderBuffer, Skip> {
    match pd.alloc_buf(len) {
        Err(error) if error.unsupported().is_some() => skip!("{}: {error}", test_device.name),
        buffer => Ok(buffer.unwrap()),
    }
}

fn remote(region: &MemoryRegion) -> RemoteBuffer {
    RemoteBuffer { rkey: region.rkey(), addr: region.iova() }
}

/// Reads bytes of the buffer.
fn bytes(buffer: &ProviderBuffer, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= buffer.len());
    // SAFETY: the bytes are in the buffer, and the device is done with them.
    (0..len).map(|at| unsafe { buffer.as_ptr().add(offset + at).read_volatile() }).collect()
}

fn memory_of_the_provider_is_registered_and_reached(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let buffer = allocate(test_device, &pair.b.pd, 3 * 4096)?;
    let region = buffer.reg_buf_mr(4096, 5000, ACCESS).unwrap();
    assert_eq!((region.get_ptr(), region.region_len()), (buffer.as_ptr().wrapping_add(4096), 5000));
    pair.a.memory.set(0, &pattern(7, 3000));
    pair.a.run(Op::Write(remote(&region)), Data::At(0, 3000));
    assert_eq!(bytes(&buffer, 4096, 3000), pattern(7, 3000));
    // The region keeps the memory alive, and the memory its domain.
    drop(buffer);
    pair.a.memory.set(0, &pattern(8, 3000));
    pair.a.run(Op::Write(remote(&region)), Data::At(0, 3000));
    let MemoryKind::Provider(buffer) = region.kind() else { panic!("{region:?}") };
    assert_eq!(bytes(buffer, 4096, 3000), pattern(8, 3000));
    region.close().unwrap();
    Ok(())
}

fn memory_of_the_provider_has_an_end(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let buffer = allocate(test_device, &pd, 4096)?;
    assert!(matches!(
        buffer.reg_buf_mr(1, 4096, ACCESS),
        Err(RegisterMemoryRegionError::OutOfBuffer { offset: 1, length: 4096, buffer_len: 4096 })
    ));
    match pd.alloc_buf(usize::MAX) {
        Err(error) => assert_error(&error, ErrorKind::Os, &[("len", &usize::MAX)]),
        other => panic!("{other:?}"),
    }
    match buffer.export_dmabuf_fd() {
        // Registering it shows that the descriptor belongs to this memory.
        Ok(exported) => drop(pd.reg_dmabuf_mr(exported.as_fd(), 0, 4096, 0, ACCESS).unwrap()),
        Err(error) if error.unsupported().is_some() => {
            assert!(error.verb().ends_with("dmabuf_fd"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
    Ok(())
}

fn a_description_makes_regions(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let memory = Buffer::new(BufferKind::for_device(&pair.b.context), 8192).unwrap();
    let mut builder = pair.b.pd.create_mr_builder();
    builder.setup_access(ACCESS).setup_iova(0x4000_0000);
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let region = match unsafe { builder.build(memory.as_ptr(), 8192) } {
        Err(RegisterMemoryRegionError::Unsupported(why)) => skip!("{}: {why}", test_device.name),
        region => region.unwrap(),
    };
    assert_eq!((region.iova(), region.access(), region.region_len()), (0x4000_0000, ACCESS, 8192));
    assert!(region.dma_handle().is_none() && matches!(region.kind(), MemoryKind::Program));
    pair.a.memory.set(0, &[9; 64]);
    pair.a.run(Op::Write(remote(&region)), Data::At(0, 64));
    // SAFETY: the read is within the memory, and the device is done with it.
    assert_eq!(unsafe { memory.as_ptr().add(63).read_volatile() }, 9);
    drop(region);
    // The same builder for the provider's memory; if that is a dma-buf, it may reject the address.
    let buffer = allocate(test_device, &pair.b.pd, 8192)?;
    let mut builder = pair.b.pd.create_mr_builder();
    let region = builder.setup_access(ACCESS).build_of_buffer(&buffer, 100, 64).unwrap();
    pair.a.run(Op::Write(remote(&region)), Data::At(0, 64));
    assert_eq!(bytes(&buffer, 99, 66), [&[0][..], &[9; 64], &[0]].concat());
    Ok(())
}

fn described_options_work_or_are_unsupported(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let handle = match context.alloc_dmah(&DmaHandleAttribute::new()) {
        Err(error) if error.unsupported().is_some() => {
            let why = error.unsupported().unwrap();
            assert_eq!((why.verb, why.device.as_str()), ("ibv_alloc_dmah", test_device.name.as_str()));
            return Ok(());
        }
        handle => handle.unwrap(),
    };
    let memory = Buffer::new(BufferKind::for_device(&context), 4096).unwrap();
    let pd = context.alloc_pd().unwrap();
    // SAFETY: the memory outlives the region, and no reference to it is made.
    let region =
        unsafe { pd.create_mr_builder().setup_dma_handle(&handle).build(memory.as_ptr(), 4096) }.unwrap();
    assert!(region.dma_handle().is_some());
    Ok(())
}

fn a_pair_promises_what_it_keeps(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::new(test_device);
    let control = pair.a.qp.control();
    for operation in [WorkRequestOperationType::Write, WorkRequestOperationType::Read] {
        let promised = match control.query_data_in_order(operation, DataInOrderQuery::empty()) {
            Err(why) => skip!("{}: {why}", test_device.name),
            Ok(promised) => promised,
        };
        let alone = control.query_data_in_order(operation, DataInOrderQuery::DeviceOnly).unwrap();
        let known = DataInOrder::WholeMessage | DataInOrder::Aligned128Bytes;
        assert!(known.contains(promised) && known.contains(alone), "{promised:?} {alone:?}");
        if test_device.open().is_soft() {
            // The last byte is written last, but the order of the others is not guaranteed.
            assert_eq!(promised, DataInOrder::empty());
        }
    }
    Ok(())
}

fn rates_are_the_library_s(test_device: &TestDevice) -> Outcome {
    let lib = test_device.open().provider().verbs();
    let mut known = 0;
    for number in 0..=u8::MAX {
        let (rate, raw) = (Rate::from_raw(number), ibv_rate(number.into()));
        // SAFETY: both functions take plain numbers, and accept any.
        let (mbps, multiple) = unsafe { ((lib.ibv_rate_to_mbps)(raw), (lib.ibv_rate_to_mult)(raw)) };
        // An older library knows fewer rates.
        if let Ok(mbps) = u32::try_from(mbps) {
            known += 1;
            assert_eq!((rate.mbps(), Rate::from_mbps(mbps)), (Some(mbps), Some(rate)));
        }
        if let Ok(multiple) = u32::try_from(multiple) {
            assert_eq!((rate.multiple(), Rate::from_multiple(multiple)), (Some(multiple), Some(rate)));
        }
    }
    assert!(known >= 17, "the library knows {known} rates");
    assert_eq!((Rate::Max.mbps(), Rate::Max.multiple()), (None, None));
    assert_eq!((Rate::from_mbps(0), Rate::from_multiple(0), Rate::from_mbps(7)), (None, None, None));
    Ok(())
}

fn the_station_of_the_port_s_own_address_is_known(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    if context.query_port(test_device.port).unwrap().link_layer() != LinkLayer::Ethernet {
        skip!("{} is not on Ethernet", test_device.name);
    }
    if !test_device.open().is_soft() {
        skip!(
            "{}: the system asks the network, and nobody answers for this host's own addresses",
            test_device.name
        );
    }
    let mut address = AddressHandleAttribute::new();
    let own = context.query_gid(test_device.port, 0).unwrap();
    address.setup_port(test_device.port).setup_grh_src_gid_index(0).setup_grh_dest_gid(&own);
    let found = context.resolve_eth_l2_from_gid(&address).unwrap();
    assert_eq!((found.vlan, &found.mac[..5]), (None, &b"\x02soft"[..]));
    let error = context.resolve_eth_l2_from_gid(address.setup_grh_src_gid_index(200)).unwrap_err();
    assert_error(
        &error,
        ErrorKind::Os,
        &[("port_num", &test_device.port), ("gid_index", &200), ("gid", &own)],
    );
    Ok(())
}

fn raw_handles_reach_a_verb_that_is_not_wrapped(test_device: &TestDevice) -> Outcome {
    let pd = test_device.open().alloc_pd().unwrap();
    let srq = pd.create_srq_builder().setup_max_wr(1).build().unwrap();
    let mut op = ibv_ops_wr { opcode: ibv_ops_wr_opcode::IBV_WR_TAG_SYNC, ..Default::default() };
    let mut bad = std::ptr::null_mut();
    // SAFETY: the queue lives, and the request and the place for the bad one are this function's.
    let refused = unsafe { verbs::ibv_post_srq_ops(srq.as_raw().as_ptr(), &raw mut op, &raw mut bad) };
    assert!(refused != 0, "{} takes tag operations on a queue without tags", test_device.name);
    Ok(())
}
