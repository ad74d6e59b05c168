use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::objects::context::Context;
use crate::objects::region::index_of;
use crate::shared::hazard::Hazard;
use crate::verbs::context::context_of;
use crate::verbs::testing::{OpenedDevice, errno, table};

const LOCAL_WRITE: i32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
const REMOTE_WRITE: i32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 as i32;
const REMOTE_READ: i32 = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 as i32;
const REMOTE_ATOMIC: i32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0 as i32;

/// A device with a protection domain and memory to register.
struct RegionsFixture {
    opened: OpenedDevice,
    pd: *mut ibv_pd,
    memory: *mut u8,
}

const SIZE: usize = 8192;

impl RegionsFixture {
    fn new() -> Self {
        let opened = OpenedDevice::new(0);
        let pd = opened.pd();
        let memory = Box::into_raw(Box::new([0u64; SIZE / 8])).cast();
        Self { opened, pd, memory }
    }

    fn reg(&self, offset: usize, length: usize, access: i32) -> *mut ibv_mr {
        let addr = self.memory.wrapping_add(offset).cast();
        // SAFETY: domain and memory live as long as the fixture, and all regions are deregistered
        // before it ends.
        unsafe { verbs::ibv_reg_mr(table(), self.pd, addr, length, access) }
    }

    fn context(&self) -> std::sync::Arc<Context> {
        // SAFETY: the context is open.
        unsafe { context_of(self.opened.0) }
    }

    fn dereg(&self, mr: *mut ibv_mr) -> i32 {
        // SAFETY: the region is live, and not used after a success.
        unsafe { (table().ibv_dereg_mr)(mr) }
    }
}

impl Drop for RegionsFixture {
    fn drop(&mut self) {
        // SAFETY: nothing uses the objects any more.
        unsafe {
            assert_eq!((table().ibv_dealloc_pd)(self.pd), 0);
            drop(Box::from_raw(self.memory.cast::<[u64; SIZE / 8]>()));
        }
    }
}

#[test]
fn a_region_is_found_by_its_key_until_it_is_deregistered() {
    let bench = RegionsFixture::new();
    let mr = bench.reg(8, 100, LOCAL_WRITE | REMOTE_READ);
    // SAFETY: the region is live.
    let ibv_mr { context, pd, addr, length, lkey, rkey, .. } = unsafe { mr.read() };
    assert_eq!((context, pd), (bench.opened.0, bench.pd));
    assert_eq!((addr, length), (bench.memory.wrapping_add(8).cast::<c_void>(), 100));
    assert_eq!(lkey, rkey);
    assert_ne!(index_of(lkey), 0);

    let context = bench.context();
    let regions = context.rnic().regions();
    let (region, snapshot, descriptor) = regions.read(lkey).unwrap();
    assert_eq!((descriptor.base, descriptor.iova, descriptor.length), (addr.cast(), addr.addr() as u64, 100));
    assert_eq!(descriptor.access, (LOCAL_WRITE | REMOTE_READ) as u32);
    assert!(region.is_current(snapshot));
    // The pointer has the provenance of the registered memory.
    // SAFETY: within the fixture's memory.
    unsafe { descriptor.pointer(descriptor.iova + 99, 1).unwrap().write(7) };
    // SAFETY: within the fixture's memory.
    assert_eq!(unsafe { bench.memory.add(107).read() }, 7);
    assert_eq!(descriptor.pointer(descriptor.iova + 100, 0), Some(bench.memory.wrapping_add(108)));
    assert_eq!(descriptor.pointer(descriptor.iova + 100, 1), None);
    assert_eq!(descriptor.pointer(descriptor.iova + 1, 100), None);
    assert_eq!(descriptor.pointer(descriptor.iova - 1, 1), None);
    assert_eq!(descriptor.pointer(descriptor.iova, u64::MAX), None);

    let entry = context.rnic().node().segment().region(index_of(lkey)).unwrap();
    let (shared, published) = entry.read().unwrap();
    assert_eq!(u32::from(shared.label()), lkey & 0xff);
    assert_eq!(
        (published.iova, published.length, published.address),
        (descriptor.iova, 100, descriptor.iova)
    );
    assert_eq!((published.pd, published.access, published.export), (descriptor.pd, descriptor.access, 0));

    // Not the next index, which a concurrent test may have.
    for wrong in [lkey ^ 1, lkey | 0x0800_0000, 0, u32::MAX] {
        assert!(regions.read(wrong).is_none(), "{wrong:#x}");
    }
    assert!(regions.read(lkey).is_some());
    // A domain is in use as long as it has regions.
    // SAFETY: the domain is live.
    assert_eq!(unsafe { (table().ibv_dealloc_pd)(bench.pd) }, libc::EBUSY);
    assert_eq!(bench.dereg(mr), 0);
    assert!(regions.read(lkey).is_none() && entry.read().is_none() && !region.is_current(snapshot));
}

#[test]
fn flags_and_ranges_are_checked() {
    let bench = RegionsFixture::new();
    let unknown = 1 << 18;
    let on_demand = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 as i32;
    for (offset, length, access, error) in [
        (0, 64, REMOTE_WRITE, libc::EINVAL),
        (0, 64, REMOTE_ATOMIC | REMOTE_READ, libc::EINVAL),
        (0, 64, unknown, libc::EINVAL),
        (0, 0, LOCAL_WRITE, libc::EINVAL),
        (0, usize::MAX, LOCAL_WRITE, libc::EINVAL),
        (0, (1 << 47) + 1, LOCAL_WRITE, libc::EINVAL),
    ] {
        assert!(bench.reg(offset, length, access).is_null(), "{length} bytes with {access:#x}");
        assert_eq!(errno(), error, "{length} bytes with {access:#x}");
    }
    let relaxed = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 as i32;
    let all = LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC;
    for access in [0, REMOTE_READ, all, LOCAL_WRITE | relaxed, LOCAL_WRITE | on_demand] {
        let mr = bench.reg(0, 64, access);
        assert!(!mr.is_null(), "{access:#x}");
        assert_eq!(bench.dereg(mr), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no page tables to ask")]
fn unmapped_memory_is_refused() {
    let bench = RegionsFixture::new();
    let length = 1 << 20;
    // SAFETY: a new mapping, which is unmapped again.
    unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let hole = mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
        munmap(hole.byte_add(length / 2), length / 2).unwrap();
        let lib = table();
        assert!(verbs::ibv_reg_mr(lib, bench.pd, hole, length, 0).is_null());
        assert_eq!(errno(), libc::EFAULT);
        let mr = verbs::ibv_reg_mr(lib, bench.pd, hole, length / 2, 0);
        assert_eq!(bench.dereg(mr), 0);
        munmap(hole, length / 2).unwrap();
    }
}

/// Under Miri the system copies nothing, so that no implicit region exists.
#[test]
fn an_implicit_region_has_few_permissions() {
    let bench = RegionsFixture::new();
    let on_demand = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0 as i32;
    let binds = ibv_access_flags::IBV_ACCESS_MW_BIND.0 as i32;
    let zero_based = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 as i32;
    let writes = LOCAL_WRITE | REMOTE_WRITE;
    let register = |iova, access: i32| {
        // SAFETY: the domain is live, and no request uses the region.
        unsafe {
            verbs::ibv_reg_mr_iova(table(), bench.pd, ptr::null_mut(), usize::MAX, iova, access | on_demand)
        }
    };
    for (iova, access, error) in [
        (0, writes | REMOTE_ATOMIC, libc::EOPNOTSUPP),
        (0, writes | binds, libc::EOPNOTSUPP),
        (0, REMOTE_WRITE, libc::EINVAL),
        (0, writes | zero_based, if cfg!(miri) { libc::EOPNOTSUPP } else { libc::EINVAL }),
        (4096, writes, libc::EINVAL),
    ] {
        assert!(register(iova, access).is_null(), "{access:#x} at {iova}");
        assert_eq!(errno(), error, "{access:#x} at {iova}");
    }
    let relaxed = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 as i32;
    let mr = register(0, writes | relaxed);
    assert_eq!(mr.is_null(), cfg!(miri));
    if mr.is_null() {
        return;
    }
    let context = bench.context();
    // SAFETY: the region is live.
    let (lkey, length) = unsafe { ((*mr).lkey, (*mr).length) };
    assert_eq!(length, usize::MAX);
    let (_, _, descriptor) = context.rnic().regions().read(lkey).unwrap();
    // Nothing but the system may touch the memory.
    assert_eq!(descriptor.pointer(bench.memory.addr() as u64, 1), None);
    assert_eq!(descriptor.implicit_pointer(4096, 8).map(|at| at.addr()), Some(4096));
    assert_eq!(descriptor.implicit_pointer(u64::MAX, 1), None);
    assert_eq!(bench.dereg(mr), 0);
}

#[test]
fn an_address_may_be_chosen() {
    let bench = RegionsFixture::new();
    let lib = table();
    let page = 4096 - 1;
    let iova = 0x7000_0000_0000 | (bench.memory.addr() as u64 & page);
    let addr = bench.memory.cast();
    let zero_based = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0 as i32;
    // SAFETY: domain and memory live as long as the fixture.
    unsafe {
        let mr = verbs::ibv_reg_mr_iova(lib, bench.pd, addr, 64, iova, LOCAL_WRITE);
        let context = bench.context();
        let (_, _, descriptor) = context.rnic().regions().read((*mr).lkey).unwrap();
        assert_eq!(
            (descriptor.iova, descriptor.pointer(iova + 3, 1)),
            (iova, Some(bench.memory.wrapping_add(3)))
        );
        assert_eq!((*mr).addr, addr);
        assert_eq!(bench.dereg(mr), 0);
        // The device translates pages, so the offset within a page must be the same.
        assert!(verbs::ibv_reg_mr_iova(lib, bench.pd, addr, 64, iova + 8, LOCAL_WRITE).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let mr = bench.reg(0, 64, LOCAL_WRITE | zero_based);
        let (_, _, descriptor) = context.rnic().regions().read((*mr).lkey).unwrap();
        assert_eq!((descriptor.iova, descriptor.pointer(63, 1)), (0, Some(bench.memory.wrapping_add(63))));
        assert_eq!(bench.dereg(mr), 0);
    }
}

#[test]
fn a_region_can_be_changed_in_place() {
    let bench = RegionsFixture::new();
    let other_pd = bench.opened.pd();
    let rereg = table().ibv_rereg_mr;
    let mr = bench.reg(0, 64, LOCAL_WRITE);
    let new = bench.memory.wrapping_add(4096);
    let (translation, pd, access) = (1, 2, 4);
    // SAFETY: domains, region and memory are live.
    unsafe {
        let key = (*mr).lkey;
        let context = bench.context();
        let regions = context.rnic().regions();
        let (region, snapshot, old) = regions.read(key).unwrap();
        assert_eq!(rereg(mr, access, ptr::null_mut(), ptr::null_mut(), 0, LOCAL_WRITE | REMOTE_WRITE), 0);
        assert!(!region.is_current(snapshot));
        let (_, _, descriptor) = regions.read((*mr).lkey).unwrap();
        assert_eq!((descriptor.base, descriptor.access), (old.base, (LOCAL_WRITE | REMOTE_WRITE) as u32));
        assert_eq!(rereg(mr, translation | pd, other_pd, new.cast(), 128, 0), 0);
        let (_, _, descriptor) = regions.read((*mr).lkey).unwrap();
        assert_eq!((descriptor.base, descriptor.length, descriptor.iova), (new, 128, new.addr() as u64));
        assert_ne!(descriptor.pd, old.pd);
        assert_eq!(((*mr).pd, (*mr).addr, (*mr).length), (other_pd, new.cast(), 128));
        assert_eq!((table().ibv_dealloc_pd)(other_pd), libc::EBUSY);

        // An invalid change leaves the registration as it is.
        let same = |_: ()| regions.read((*mr).lkey).map(|(_, snapshot, descriptor)| (snapshot, descriptor));
        let before = same(());
        for (flags, pd, addr, length, access, result) in [
            (8, ptr::null_mut(), ptr::null_mut(), 0, 0, -1),
            (translation, ptr::null_mut(), ptr::null_mut(), 64, 0, -1),
            (translation, ptr::null_mut(), new.cast(), 0, 0, -1),
            (pd, other_pd, ptr::null_mut(), 0, LOCAL_WRITE, -1),
            (0, ptr::null_mut(), ptr::null_mut(), 0, 0, -4),
            (pd, ptr::null_mut(), ptr::null_mut(), 0, 0, -4),
            (access, ptr::null_mut(), ptr::null_mut(), 0, REMOTE_WRITE, -4),
        ] {
            assert_eq!(rereg(mr, flags, pd, addr, length, access), result, "flags {flags}");
            assert_eq!(errno(), libc::EINVAL);
            assert_eq!(same(()), before);
        }
        assert_eq!(bench.dereg(mr), 0);
        assert_eq!((table().ibv_dealloc_pd)(other_pd), 0);
    }
}

#[test]
fn region_in_use_stays_closed_until_it_is_released() {
    let bench = RegionsFixture::new();
    let (first, second) = (bench.reg(0, 64, LOCAL_WRITE), bench.reg(64, 64, LOCAL_WRITE));
    // SAFETY: the regions are live.
    let (key, other) = unsafe { ((*first).lkey, (*second).lkey) };
    let context = bench.context();
    // A queue pair of another test that has this transfer slot waits.
    let transfer_slot = context.rnic().node().transfer_slot(crate::shared::hazard::TRANSFER_SLOTS - 1);
    let hazard = context.rnic().node().local_hazard(transfer_slot.index());
    // Name a queue pair that cannot exist, because the destruction of an existing one, in another
    // test, would wait for the hazard.
    hazard.publish(Hazard::new(Hazard::NO_REGION, index_of(key)));
    assert_eq!(bench.dereg(first), libc::EBUSY);
    assert_eq!(errno(), libc::EBUSY);
    assert!(context.rnic().regions().read(key).is_none());
    assert!(context.rnic().regions().read(other).is_some());
    assert_eq!(bench.dereg(second), 0);
    // The index is not reused before the hazard is cleared.
    let third = bench.reg(0, 64, LOCAL_WRITE);
    // SAFETY: the region is live.
    assert_ne!(unsafe { index_of((*third).lkey) }, index_of(key));
    assert_eq!(bench.dereg(third), 0);
    assert_eq!(bench.dereg(first), libc::EBUSY);
    hazard.clear();
    drop(transfer_slot);
    assert_eq!(bench.dereg(first), 0);
}

/// A transfer within this process publishes a hazard on every region, because its source and
/// destination lie in different ones. So deregistering waits for the transfers of all tests, and
/// must not fail when a thread does not run for a moment.
#[test]
#[cfg_attr(miri, ignore = "it depends on real time, and Miri simulates the clock")]
fn deregister_waits_for_a_slow_transfer() {
    let bench = RegionsFixture::new();
    let mr = bench.reg(0, 64, LOCAL_WRITE);
    // SAFETY: the region is live.
    let key = unsafe { (*mr).lkey };
    let context = bench.context();
    let rnic = context.rnic();
    let transfer_slot = rnic.node().transfer_slot(crate::shared::hazard::TRANSFER_SLOTS - 2);
    let hazard = rnic.node().local_hazard(transfer_slot.index());
    hazard.publish(Hazard::new(Hazard::NO_REGION, Hazard::ANY_REGION));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while rnic.regions().read(key).is_some() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(100));
            hazard.clear();
        });
        assert_eq!(bench.dereg(mr), 0);
    });
}

#[test]
fn reused_index_has_another_tag() {
    let bench = RegionsFixture::new();
    let mut last = std::collections::HashMap::new();
    // Indices come back in turn, after as many registrations as all tests together ever had at a
    // time.
    for _ in 0..10_000 {
        let mr = bench.reg(0, 64, 0);
        // SAFETY: the region is live.
        let key = unsafe { (*mr).lkey };
        assert_eq!(bench.dereg(mr), 0);
        if let Some(former) = last.insert(index_of(key), key) {
            assert_ne!(former, key);
            return;
        }
    }
    panic!("no index came back");
}

#[test]
fn memory_of_the_device_is_shareable() {
    let bench = RegionsFixture::new();
    let lib = table();
    // SAFETY: the domain is live, and every object is freed once.
    unsafe {
        let mut buf = ptr::null_mut();
        let memory = lib.ibv_alloc_buf.unwrap()(bench.pd, 5000, &raw mut buf);
        assert!(!memory.is_null());
        memory.cast::<u8>().add(8191).write(1);
        let register = lib.ibv_reg_buf_mr.unwrap();
        let mr = register(bench.pd, buf, memory.byte_add(100), 4900, LOCAL_WRITE | REMOTE_WRITE);
        let context = bench.context();
        let entry = context.rnic().node().segment().region(index_of((*mr).rkey)).unwrap();
        assert_ne!(entry.read().unwrap().1.export, 0);
        assert!(register(bench.pd, buf, memory.byte_add(8000), 193, 0).is_null());
        assert_eq!(errno(), libc::EINVAL);
        // A plain registration of the memory finds the shareable memory too.
        let plain = verbs::ibv_reg_mr(lib, bench.pd, memory, 8192, 0);
        let entry = context.rnic().node().segment().region(index_of((*plain).rkey)).unwrap();
        assert_ne!(entry.read().unwrap().1.export, 0);
        assert_eq!((bench.dereg(plain), bench.dereg(mr)), (0, 0));
        lib.ibv_free_buf.unwrap()(buf);
        assert!(lib.ibv_alloc_buf.unwrap()(bench.pd, 0, &raw mut buf).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
}

#[test]
fn closing_a_context_revokes_its_regions() {
    let lib = table();
    let outer = OpenedDevice::new(0);
    let opened = OpenedDevice::new(0);
    let pd = opened.pd();
    let mut byte = 0u64;
    // SAFETY: domain and region are destroyed after their context, which this device permits.
    unsafe {
        let mr = verbs::ibv_reg_mr(lib, pd, (&raw mut byte).cast(), 8, LOCAL_WRITE);
        let key = (*mr).lkey;
        let context = context_of(outer.0);
        assert!(context.rnic().regions().read(key).is_some());
        drop(opened);
        assert!(context.rnic().regions().read(key).is_none());
        assert_eq!(((lib.ibv_dereg_mr)(mr), (lib.ibv_dealloc_pd)(pd)), (0, 0));
    }
}
