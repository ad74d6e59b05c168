//! Memory on the device (`man ibv_alloc_dm`, `man ibv_import_dm`). SoftRoCE has none.

use libc::{EBUSY, EFAULT, EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_access_flags as Access;
use rdma_mummy_sys::types::ibv_dm_mask;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    Device, Dm, EVERYTHING, Flavour, Node, NodeOptions, OPTIONAL_BITS, Outcome, Recv, Skip, Suite,
    TestDevice, Wr, pair, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        bytes_are_copied_in_and_out,
        copies_of_parts_of_words_are_refused,
        copies_out_of_bounds_are_refused,
        an_alignment_is_granted_or_refused,
        more_than_the_device_has_is_refused,
        unknown_attributes_of_device_memory_are_refused,
        memory_that_was_freed_can_be_had_again,
        a_region_of_device_memory_is_zero_based,
        a_region_has_to_lie_within_the_memory,
        a_region_of_no_bytes_is_made,
        optional_access_to_device_memory_is_ignored,
        peers_reach_device_memory_by_offsets,
        device_memory_is_local_memory,
        device_memory_takes_part_in_lists,
        a_registered_part_is_all_that_is_reached,
        atomics_reach_device_memory,
        device_memory_with_a_region_is_busy,
        a_region_of_device_memory_cannot_be_changed,
        device_memory_is_imported,
        unimported_device_memory_lives_on,
        device_memory_can_be_freed_by_whoever_imported_it,
        a_number_of_no_device_memory_is_refused,
    );
}

const ZERO_BASED: u32 = Access::IBV_ACCESS_ZERO_BASED.0;

/// Allocates device memory, where the device has any.
fn dm(dut: &TestDevice, device: &Device, length: usize) -> Result<Dm, Skip> {
    match Dm::new(device, length, 0) {
        Ok(dm) => Ok(dm),
        Err(EOPNOTSUPP) => skip!("{} has no device memory", dut.name),
        Err(error) => panic!("error {error}"),
    }
}

/// "In order to perform a write/read memory access to an allocated device memory, a user could use
/// the ibv_memcpy_to_dm and ibv_memcpy_from_dm calls respectively."
fn bytes_are_copied_in_and_out(dut: &TestDevice) -> Outcome {
    let dm = dm(dut, &dut.open(), 6000)?;
    assert_eq!(dm.write(0, &pattern(1, 6000)), 0);
    assert_eq!(dm.read(0, 6000).unwrap(), pattern(1, 6000));
    assert_eq!(dm.write(4092, &[7; 12]), 0);
    assert_eq!(dm.read(4088, 20).unwrap()[4..16], [7; 12]);
    assert_eq!(dm.read(5996, 4).unwrap(), pattern(1, 6000)[5996..]);
    assert_eq!(dm.write(6000, &[]), 0);
    Ok(())
}

/// mlx5, the only device with such memory in rdma-core when these verbs came, copies words of four
/// bytes and refuses other copies (`mlx5_access_dm`). A copy out of bounds is refused first.
fn copies_of_parts_of_words_are_refused(dut: &TestDevice) -> Outcome {
    let dm = dm(dut, &dut.open(), 256)?;
    assert_eq!(dm.write(0, &[1; 256]), 0);
    for (offset, len) in [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (252, 3), (255, 1), (1, 0)] {
        assert_eq!(dm.write(offset, &vec![2; len]), EINVAL, "{offset}, {len}");
        assert_eq!(dm.read(offset, len).err(), Some(EINVAL), "{offset}, {len}");
    }
    assert_eq!(dm.write(255, &[2; 2]), EFAULT);
    assert_eq!(dm.read(255, 2).err(), Some(EFAULT));
    assert_eq!(dm.read(0, 256).unwrap(), [1; 256]);
    Ok(())
}

fn copies_out_of_bounds_are_refused(dut: &TestDevice) -> Outcome {
    let dm = dm(dut, &dut.open(), 256)?;
    assert_eq!(dm.write(0, &[1; 256]), 0);
    for (offset, len) in [(0, 257), (256, 1), (255, 2), (u64::MAX, 1), (u64::MAX - 7, 16), (1 << 40, 8)] {
        assert_eq!(dm.write(offset, &vec![2; len]), EFAULT, "{offset}, {len}");
        assert_eq!(dm.read(offset, len).err(), Some(EFAULT), "{offset}, {len}");
    }
    assert_eq!(dm.read(0, 256).unwrap(), [1; 256]);
    Ok(())
}

/// "the user may specify the device memory start address alignment using the log_align_req
/// parameter"
fn an_alignment_is_granted_or_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    drop(dm(dut, &device, 64)?);
    // The alignment that atomics need.
    Dm::new(&device, 64, 3).unwrap();
    assert!(Dm::new(&device, 64, 63).is_err());
    assert!(Dm::new(&device, 64, u32::MAX).is_err());
    Ok(())
}

/// "ibv_alloc_dm() may fail if device has no more free device memory left, where the maximum amount
/// of allocated memory is provided by the max_dm_size attribute".
fn more_than_the_device_has_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    drop(dm(dut, &device, 64)?);
    let most = device.query_ex(None).unwrap().max_dm_size;
    assert!(most >= 64);
    assert!(Dm::new(&device, most as usize + 1, 0).is_err());
    assert!(Dm::new(&device, usize::MAX, 0).is_err());
    let half = most as usize / 2 + 1;
    let first = Dm::new(&device, half, 0).unwrap();
    assert!(Dm::new(&device, half, 0).is_err(), "there is less than twice the half");
    drop(first);
    Dm::new(&device, half, 0).unwrap();
    Ok(())
}

fn unknown_attributes_of_device_memory_are_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    drop(dm(dut, &device, 64)?);
    let error = Dm::with_mask(&device, 64, 0, 1 << 30).err();
    assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{error:?}");
    Ok(())
}

fn memory_that_was_freed_can_be_had_again(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    for _ in 0..100 {
        assert_eq!(dm(dut, &device, 4096)?.free(), 0);
    }
    Ok(())
}

/// "For this type of registration, user must set the IBV_ACCESS_ZERO_BASED flag."
fn a_region_of_device_memory_is_zero_based(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, dm) = (device.pd(), dm(dut, &device, 4096)?);
    assert!(pd.reg_dm(&dm, 0, 4096, EVERYTHING).is_err());
    let region = pd.reg_dm(&dm, 0, 4096, EVERYTHING | ZERO_BASED).unwrap();
    assert_eq!(region.fields().length, 4096);
    Ok(())
}

fn a_region_has_to_lie_within_the_memory(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, dm) = (device.pd(), dm(dut, &device, 256)?);
    for (offset, len) in [(0, 257), (64, 256), (256, 64), (u64::MAX, 64), (0, usize::MAX)] {
        assert!(pd.reg_dm(&dm, offset, len, EVERYTHING | ZERO_BASED).is_err(), "{offset}, {len}");
    }
    pd.reg_dm(&dm, 64, 192, EVERYTHING | ZERO_BASED).unwrap();
    Ok(())
}

/// The kernel compares the range with the memory only (`uverbs_std_types_mr.c`), so nothing of it
/// can be registered, and the region has no bytes.
fn a_region_of_no_bytes_is_made(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let dm = dm(dut, &b.device, 4096)?;
    for offset in [0, 64, 4096] {
        let region = b.pd.reg_dm(&dm, offset, 0, EVERYTHING | ZERO_BASED).unwrap();
        assert_eq!(region.fields().length, 0);
    }
    let region = b.pd.reg_dm(&dm, 64, 0, EVERYTHING | ZERO_BASED).unwrap();
    a.done(Wr::write(1, region.remote(0)).sge(a.mr.at(0, 0)));
    let status = a.fails(Wr::write(2, region.remote(0)).sge(a.mr.at(0, 1)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn optional_access_to_device_memory_is_ignored(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, dm) = (device.pd(), dm(dut, &device, 4096)?);
    for access in OPTIONAL_BITS.map(|bit| EVERYTHING | ZERO_BASED | 1 << bit) {
        assert!(pd.reg_dm(&dm, 0, 64, access).is_ok(), "access {access:#x}");
    }
    Ok(())
}

/// "any reference to it (specifically in sge) is done with a byte offset from the beginning of the
/// region"
fn peers_reach_device_memory_by_offsets(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let dm = dm(dut, &b.device, 8192)?;
    let region = b.pd.reg_dm(&dm, 1024, 7168, EVERYTHING | ZERO_BASED).unwrap();
    a.mr.buf.set(0, &pattern(3, 5000));
    a.done(Wr::write(1, region.remote(100)).sge(a.mr.at(0, 5000)));
    assert_eq!(dm.read(1124, 5000).unwrap(), pattern(3, 5000));
    assert_eq!(dm.write(8192 - 64, &[9; 64]), 0);
    a.done(Wr::read(2, region.remote(7168 - 64)).sge(a.mr.at(6000, 64)));
    assert_eq!(a.mr.buf.get(6000, 64), [9; 64]);
    Ok(())
}

fn device_memory_is_local_memory(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let (source, sink) = (dm(dut, &a.device, 8192)?, dm(dut, &b.device, 8192)?);
    let from = a.pd.reg_dm(&source, 0, 8192, EVERYTHING | ZERO_BASED).unwrap();
    let to = b.pd.reg_dm(&sink, 0, 8192, EVERYTHING | ZERO_BASED).unwrap();
    assert_eq!(source.write(0, &pattern(4, 8192)), 0);
    for (id, len) in [(1, 8), (2, 200), (3, 5000)] {
        b.qp.recv(Recv::new(id).sge(to.at(128, len)));
        a.done(Wr::send(id).sge(from.at(1000, len)));
        assert_eq!(b.recv_cq.ok().len, len);
        assert_eq!(sink.read(128, len as usize).unwrap(), pattern(4, 8192)[1000..1000 + len as usize]);
    }
    b.mr.buf.set(0, &pattern(5, 300));
    a.done(Wr::read(4, b.mr.remote(0)).sge(from.at(0, 300)));
    assert_eq!(source.read(0, 300).unwrap(), pattern(5, 300));
    Ok(())
}

fn device_memory_takes_part_in_lists(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let dm = dm(dut, &a.device, 256)?;
    let region = a.pd.reg_dm(&dm, 0, 256, EVERYTHING | ZERO_BASED).unwrap();
    assert_eq!(dm.write(0, &[2; 256]), 0);
    a.mr.buf.set(0, &[1; 600]);
    let list = [a.mr.at(0, 300), region.at(56, 200), a.mr.at(300, 300)];
    a.done(Wr::write(1, b.mr.remote(0)).list(&list));
    assert_eq!(b.mr.buf.get(0, 800), [vec![1; 300], vec![2; 200], vec![1; 300]].concat());
    Ok(())
}

fn a_registered_part_is_all_that_is_reached(dut: &TestDevice) -> Outcome {
    for (offset, len) in [(128, 1), (127, 2), (u64::MAX, 1)] {
        let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
        let dm = dm(dut, &b.device, 4096)?;
        let region = b.pd.reg_dm(&dm, 256, 128, EVERYTHING | ZERO_BASED).unwrap();
        a.done(Wr::write(1, region.remote(127)).sge(a.mr.at(0, 1)));
        let status = a.fails(Wr::write(2, region.remote(offset)).sge(a.mr.at(0, len)));
        assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR, "{offset}, {len}");
    }
    Ok(())
}

/// "Address alignment may be required in cases where RDMA atomic operations will be performed using
/// the device memory."
fn atomics_reach_device_memory(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    drop(dm(dut, &b.device, 64)?);
    let dm = Dm::new(&b.device, 64, 3).unwrap();
    let region = b.pd.reg_dm(&dm, 0, 64, EVERYTHING | ZERO_BASED).unwrap();
    assert_eq!(dm.write(0, &[0; 64]), 0);
    for n in 1..=5 {
        a.done(Wr::fetch_add(n, region.remote(8), 10).sge(a.mr.at(0, 8)));
        assert_eq!(a.mr.buf.get_u64(0), 10 * (n - 1));
    }
    a.done(Wr::cmp_swp(9, region.remote(8), 50, 1).sge(a.mr.at(0, 8)));
    assert_eq!(dm.read(8, 8).unwrap(), 1_u64.to_ne_bytes());
    Ok(())
}

/// "ibv_free_dm() may fail if any other resources (such as an MR) is still associated with the DM
/// being freed."
fn device_memory_with_a_region_is_busy(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, dm) = (device.pd(), dm(dut, &device, 4096)?);
    let region = pd.reg_dm(&dm, 0, 64, EVERYTHING | ZERO_BASED).unwrap();
    assert_eq!(dm.free(), EBUSY);
    assert_eq!(region.dereg(), 0);
    drop(region);
    assert_eq!(dm.free(), 0);
    Ok(())
}

/// Such a region has neither address nor pages that `ibv_rereg_mr` could change; it stays as it
/// was.
fn a_region_of_device_memory_cannot_be_changed(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let dm = dm(dut, &b.device, 4096)?;
    let region = b.pd.reg_dm(&dm, 0, 64, EVERYTHING | ZERO_BASED).unwrap();
    assert_ne!(region.rereg_access(EVERYTHING), 0);
    a.done(Wr::write(1, region.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

/// "The output dm contains the handle which could be used by user to import this device memory."
fn imported(dut: &TestDevice) -> Result<(Device, Device, Dm), Skip> {
    let device = dut.open();
    let dm = dm(dut, &device, 4096)?;
    match device.import_own() {
        Ok(imported) => Ok((device, imported, dm)),
        Err(EOPNOTSUPP) => skip!("{} cannot be imported", dut.name),
        Err(error) => panic!("error {error}"),
    }
}

fn device_memory_is_imported(dut: &TestDevice) -> Outcome {
    let (_device, imported, dm) = imported(dut)?;
    let (handle, mask) = dm.handle();
    assert_ne!(mask & ibv_dm_mask::IBV_DM_MASK_HANDLE.0, 0);
    let again = Dm::import(&imported, handle).unwrap();
    assert_eq!(again.handle().0, handle);
    assert_eq!(dm.write(8, &[1; 8]), 0);
    assert_eq!(again.read(8, 8).unwrap(), [1; 8]);
    let node = Node::new(&imported, &NodeOptions::rc(Flavour::Classic));
    node.connect(&node.peer());
    let region = node.pd.reg_dm(&again, 0, 64, EVERYTHING | ZERO_BASED).unwrap();
    node.mr.buf.set(0, &[2; 8]);
    node.done(Wr::write(1, region.remote(16)).sge(node.mr.at(0, 8)));
    assert_eq!(dm.read(16, 8).unwrap(), [2; 8]);
    assert_ne!(dm.free(), 0, "a region of another pointer's is of the same memory");
    Ok(())
}

/// "the second one way cleanup what ever is needed/opposite of the import without calling the
/// kernel"
fn unimported_device_memory_lives_on(dut: &TestDevice) -> Outcome {
    let (_device, imported, dm) = imported(dut)?;
    drop(Dm::import(&imported, dm.handle().0).unwrap());
    assert_eq!(dm.write(0, &[1; 8]), 0);
    assert_eq!(dm.free(), 0);
    Ok(())
}

/// "Once the DM usage has been ended ibv_free_dm() or ibv_unimport_dm() should be called."
fn device_memory_can_be_freed_by_whoever_imported_it(dut: &TestDevice) -> Outcome {
    let (_device, imported, dm) = imported(dut)?;
    let handle = dm.handle().0;
    let again = Dm::import(&imported, handle).unwrap();
    assert_eq!(again.free(), 0);
    assert!(Dm::import(&imported, handle).is_err(), "it is gone");
    // The original handle may only be unimported.
    dm.unimport();
    Ok(())
}

fn a_number_of_no_device_memory_is_refused(dut: &TestDevice) -> Outcome {
    let (device, imported, dm) = imported(dut)?;
    assert!(Dm::import(&imported, 0x7fff_ffff).is_err());
    let handle = dm.handle().0;
    assert!(Dm::import(&dut.open(), handle).is_err(), "it is another context's");
    assert_eq!(dm.free(), 0);
    assert!(Dm::import(&device, handle).is_err(), "it was freed");
    Ok(())
}
