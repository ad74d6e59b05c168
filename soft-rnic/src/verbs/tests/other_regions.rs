//! Null regions, device memory, files, and advice: the parts that the conformance suite cannot see.

use std::os::fd::AsRawFd;
use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::objects::memory_region::Mr;
use crate::objects::region::index_of;
use crate::shared::entry::kind;
use crate::verbs::bench::{SUCCESS, VerbsFixture, destroy};
use crate::verbs::context::context_of;
use crate::verbs::protection_domain::pd_of;
use crate::verbs::testing::{errno, table};

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const REMOTE_WRITE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
const ZERO_BASED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;

#[test]
fn null_region_reads_zeroes_and_has_only_a_local_key() {
    let bench = VerbsFixture::new(8);
    // SAFETY: the domain lives, and the region until it is deregistered.
    unsafe {
        let mr = verbs::ibv_alloc_null_mr(bench.pd);
        let ibv_mr { addr, length, lkey, rkey, .. } = mr.read();
        assert_eq!((addr, length, rkey), (ptr::null_mut(), usize::MAX, 0));
        let context = context_of(bench.opened.0);
        let (_, _, descriptor) = context.rnic().regions().read(lkey).unwrap();
        assert_eq!((descriptor.length, descriptor.access), (0, LOCAL_WRITE | kind::NULL));
        assert!(descriptor.pointer(0, 1).is_none());
        let (source, sink) =
            (descriptor.null_pointer(64, false).unwrap(), descriptor.null_pointer(64, true).unwrap());
        sink.write_volatile(1);
        assert_eq!(source.read_volatile(), 0);
        assert!(descriptor.null_pointer((1 << 31) + 1, false).is_none());
        let published = context.rnic().node().segment().region(index_of(lkey)).unwrap().read().unwrap().1;
        assert!(published.is_null() && !published.contains(0, 1) && published.export == 0);
        // A region with memory has no null pointer.
        let (_, _, descriptor) = context.rnic().regions().read((*bench.mr).lkey).unwrap();
        assert!(descriptor.null_pointer(1, false).is_none());
        assert_eq!((table().ibv_dereg_mr)(mr), 0);
    }
}

#[test]
fn a_null_region_takes_part_in_messages() {
    let bench = VerbsFixture::new(8);
    let [a, b] = bench.pair(ibv_qp_type::IBV_QPT_RC);
    // SAFETY: all objects are live.
    unsafe {
        let mr = verbs::ibv_alloc_null_mr(bench.pd);
        let rkey = (*bench.mr).rkey;
        let post = |opcode, remote_addr, length| {
            let mut null = ibv_sge { addr: 77, length, lkey: (*mr).lkey };
            let list = &raw mut null;
            bench.send(a, 1, 0, |wr| {
                (wr.opcode, wr.sg_list) = (opcode, list);
                wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
            })
        };
        (0..400).for_each(|word| bench.set(word, 5));
        assert_eq!(post(ibv_wr_opcode::IBV_WR_RDMA_WRITE, bench.at(16), 16), 0);
        assert_eq!(bench.wait_for(1), [(1, SUCCESS)]);
        assert_eq!([0, 1, 2, 3, 4].map(|word| bench.get(word)), [5, 5, 0, 0, 5]);
        assert_eq!(post(ibv_wr_opcode::IBV_WR_RDMA_READ, bench.at(0), 3000), 0);
        assert_eq!(bench.wait_for(1), [(1, SUCCESS)]);
        // A null region discards the bytes that arrive.
        for (id, length) in [(2, 64), (3, 3000)] {
            let mut list = [ibv_sge { addr: u64::MAX - 5000, length: 4000, lkey: (*mr).lkey }];
            assert_eq!(bench.receive_list(b, id, &mut list), 0);
            assert_eq!(bench.send(a, 1, length, |_| {}), 0);
            let mut results = bench.wait_for(2);
            results.sort_by_key(|(id, _)| *id);
            assert_eq!(results, [(1, SUCCESS), (id, SUCCESS)]);
        }
        assert_eq!(post(ibv_wr_opcode::IBV_WR_RDMA_WRITE, bench.at(0), 3000), 0);
        assert_eq!(bench.wait_for(1), [(1, SUCCESS)]);
        assert!((0..375).all(|word| bench.get(word) == 0));
        [a, b].into_iter().for_each(destroy);
        assert_eq!((table().ibv_dereg_mr)(mr), 0);
    }
}

#[test]
fn device_memory_is_shared_with_peers_and_given_back() {
    let bench = VerbsFixture::new(8);
    let context = bench.opened.0;
    // SAFETY: all are live until they are freed.
    unsafe {
        let mut attr = ibv_alloc_dm_attr { length: 5000, log_align_req: 12, comp_mask: 0 };
        let dm = verbs::ibv_alloc_dm(context, &raw mut attr);
        let access = LOCAL_WRITE | REMOTE_WRITE | ZERO_BASED;
        let mr = verbs::ibv_reg_dm_mr(bench.pd, dm, 100, 4900, access);
        let regions = context_of(context);
        let (_, _, descriptor) = regions.rnic().regions().read((*mr).rkey).unwrap();
        assert_eq!((descriptor.iova, descriptor.length, descriptor.base.addr() % 4096), (0, 4900, 100));
        let published =
            regions.rnic().node().segment().region(index_of((*mr).rkey)).unwrap().read().unwrap().1;
        assert_ne!(published.export, 0, "peers map it");
        assert_eq!(verbs::ibv_free_dm(dm), libc::EBUSY);
        assert_eq!((table().ibv_dereg_mr)(mr), 0);
        // A domain of another context is refused.
        let other = crate::verbs::testing::OpenedDevice::new(1);
        let pd = other.pd();
        assert!(verbs::ibv_reg_dm_mr(pd, dm, 0, 64, access).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!((table().ibv_dealloc_pd)(pd), 0);
        for (access, length) in [(LOCAL_WRITE, 64), (access | 1 << 4, 64), (access, 5001)] {
            assert!(verbs::ibv_reg_dm_mr(bench.pd, dm, 0, length, access).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        assert_eq!(verbs::ibv_free_dm(dm), 0);
        for (length, log_align_req, comp_mask) in [(0, 0, 0), (64, 13, 0), (64, 0, 1)] {
            let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask };
            assert!(verbs::ibv_alloc_dm(context, &raw mut attr).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no anonymous files")]
fn file_mapping_follows_its_permissions() {
    let bench = VerbsFixture::new(8);
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&file, 16384).unwrap();
    // SAFETY: the domain lives; the function must refuse the wrong files.
    unsafe {
        let reg = table().ibv_reg_dmabuf_mr.unwrap();
        let register = |access: u32| reg(bench.pd, 4100, 5000, 4, file.as_raw_fd(), access as i32);
        assert!(register(LOCAL_WRITE).is_null());
        assert_eq!(errno(), libc::EINVAL, "it could shrink");
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
        let mr = register(LOCAL_WRITE | REMOTE_WRITE);
        assert_eq!(((*mr).addr.addr(), (*mr).length), (4100, 5000));
        let context = context_of(bench.opened.0);
        let (_, _, descriptor) = context.rnic().regions().read((*mr).rkey).unwrap();
        descriptor.pointer(4, 1).unwrap().write(9);
        let mut byte = [0];
        rustix::io::pread(&file, &mut byte, 4100).unwrap();
        assert_eq!(byte, [9]);
        let published =
            context.rnic().node().segment().region(index_of((*mr).rkey)).unwrap().read().unwrap().1;
        assert_ne!(published.export, 0, "peers map the file too");
        assert_eq!((table().ibv_dereg_mr)(mr), 0);
        // The call for all kinds of memory refuses it too.
        use ibv_mr_init_attr_mask as M;
        let masks = M::IBV_REG_MR_MASK_FD.0 | M::IBV_REG_MR_MASK_FD_OFFSET.0 | M::IBV_REG_MR_MASK_IOVA.0;
        let fd = file.as_raw_fd();
        let mut attr =
            ibv_mr_init_attr { length: 64, fd, comp_mask: masks.into(), ..ibv_mr_init_attr::default() };
        let mr = (table().ibv_reg_mr_ex.unwrap())(bench.pd, &raw mut attr);
        assert_eq!((table().ibv_dereg_mr)(mr), 0);
        attr.comp_mask = M::IBV_REG_MR_MASK_FD.0.into();
        assert!((table().ibv_reg_mr_ex.unwrap())(bench.pd, &raw mut attr).is_null());
        assert_eq!(errno(), libc::EINVAL);
        // A file that is not writable cannot be registered for writing.
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::WRITE).unwrap();
        assert!(register(LOCAL_WRITE).is_null());
        assert_eq!(errno(), libc::EPERM);
        assert_eq!((table().ibv_dereg_mr)(register(0)), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri counts no descriptors and mappings")]
fn destroyed_regions_leave_nothing_behind() {
    let bench = VerbsFixture::new(8);
    let open = |name: &str| {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = files.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains(name)).count()
    };
    let mapped = |name: &str| {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(name)).count()
    };
    let file = rustix::fs::memfd_create("leak-test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    // SAFETY: all are live until they are freed.
    unsafe {
        let context = context_of(bench.opened.0);
        let reg = table().ibv_reg_dmabuf_mr.unwrap();
        // In all more than the device has. An emulator needs memory for each page that was mapped.
        for _ in 0..200 {
            let mr = reg(bench.pd, 0, 4096, 0, file.as_raw_fd(), LOCAL_WRITE as i32);
            assert_eq!((table().ibv_dereg_mr)(mr), 0);
            let mut attr = ibv_alloc_dm_attr { length: 1 << 21, log_align_req: 0, comp_mask: 0 };
            let dm = verbs::ibv_alloc_dm(bench.opened.0, &raw mut attr);
            assert!(!dm.is_null());
            assert_eq!(verbs::ibv_free_dm(dm), 0);
            assert!(Mr::register_null(pd_of(bench.pd)).is_ok_and(|(mr, _)| mr.deregister().is_ok()));
        }
        drop(context);
    }
    assert_eq!((mapped("/memfd:leak-test"), open("/memfd:leak-test")), (0, 1));
    // Another test may have such memory at the moment.
    let memory = "/memfd:soft-rnic device memory";
    assert!(mapped(memory) <= 2 && open(memory) <= 2, "{}, {}", mapped(memory), open(memory));
}

#[test]
fn advice_needs_on_demand_paging() {
    let bench = VerbsFixture::new(8);
    let on_demand = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
    // SAFETY: domain and memory live as long as the fixture.
    unsafe {
        let advise = |advice: u32, lkey, addr, length| {
            let mut list = ibv_sge { addr, length, lkey };
            verbs::ibv_advise_mr(bench.pd, ib_uverbs_advise_mr_advice(advice), 1, &raw mut list, 1)
        };
        let mr = verbs::ibv_reg_mr(table(), bench.pd, bench.memory.cast(), 4096, on_demand as i32);
        let (key, at) = ((*mr).lkey, bench.at(0));
        assert_eq!(advise(0, key, at, 4096), 0);
        assert_eq!(advise(2, key, at + 100, 1), 0);
        assert_eq!(advise(1, key, at, 64), libc::EPERM, "for writing");
        assert_eq!(advise(0, key, at, 4097), libc::EFAULT);
        assert_eq!(advise(3, key, at, 64), libc::EOPNOTSUPP);
        assert_eq!(advise(0, key ^ 1, at, 64), libc::ENOENT);
        assert_eq!(advise(0, (*bench.mr).lkey, at, 64), libc::EINVAL, "the region is not paged on demand");
        let none = verbs::ibv_advise_mr(bench.pd, ib_uverbs_advise_mr_advice(0), 1, ptr::null_mut(), 1);
        assert_eq!(none, libc::EINVAL);
        assert_eq!((table().ibv_dereg_mr)(mr), 0);
    }
}
