//! Protection domains and memory regions.

use std::collections::HashSet;

use libc::{EBUSY, EFAULT, EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_access_flags as Access;
use rdma_mummy_sys::types::ibv_rereg_mr_flags as Rereg;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    Ah, Buf, EVERYTHING, Flavour, Node, NodeOptions, OPTIONAL_BITS, Outcome, RemoteAddr, Srq, Suite,
    TestDevice, Wr, ah_attr, pair, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_domain_with_a_region_is_busy,
        a_domain_with_a_queue_pair_is_busy,
        a_domain_with_a_shared_queue_is_busy,
        a_domain_with_an_address_handle_is_busy,
        many_domains_are_made,
        every_valid_access_is_granted,
        remote_writing_needs_local_writing,
        unknown_access_is_refused,
        optional_access_is_taken_or_ignored,
        optional_access_of_pairs_is_ignored,
        optional_access_is_ignored_when_a_region_changes,
        a_region_tells_what_it_is,
        keys_are_unique,
        keys_are_not_used_again_at_once,
        an_empty_region_is_made_or_refused,
        memory_that_is_not_there_is_refused,
        a_region_that_wraps_around_is_refused,
        part_of_a_page_is_registered,
        overlapping_regions_have_their_own_permissions,
        a_region_with_its_own_addresses_is_reached_by_them,
        a_region_of_a_pair_at_work_is_deregistered,
        rereg_changes_access,
        rereg_changes_memory,
        rereg_changes_the_domain,
        rereg_changes_everything,
        rereg_without_flags_is_refused,
        rereg_with_unknown_flags_is_refused,
        rereg_with_bad_access_is_refused,
    );
}

/// `man ibv_alloc_pd`: a protection domain that is in use is not deallocated.
fn a_domain_with_a_region_is_busy(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    let mr = pd.reg(&Buf::new(4096), EVERYTHING).unwrap();
    assert_eq!(pd.dealloc(), EBUSY);
    assert_eq!(mr.dereg(), 0);
    assert_eq!(pd.dealloc(), 0);
    Ok(())
}

fn a_domain_with_a_queue_pair_is_busy(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &NodeOptions::rc(Flavour::Classic));
    assert_eq!(node.mr.dereg(), 0);
    assert_eq!(node.pd.dealloc(), EBUSY);
    assert_eq!(node.qp.destroy(), 0);
    assert_eq!(node.pd.dealloc(), 0);
    Ok(())
}

fn a_domain_with_a_shared_queue_is_busy(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    let srq = Srq::new(&pd, 8, 1).unwrap();
    assert_eq!(pd.dealloc(), EBUSY);
    assert_eq!(srq.destroy(), 0);
    assert_eq!(pd.dealloc(), 0);
    Ok(())
}

fn a_domain_with_an_address_handle_is_busy(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let pd = device.pd();
    let ah = Ah::new(&pd, ah_attr(&device, device.find_gid().unwrap().0)).unwrap();
    assert_eq!(pd.dealloc(), EBUSY);
    assert_eq!(ah.destroy(), 0);
    assert_eq!(pd.dealloc(), 0);
    Ok(())
}

fn many_domains_are_made(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let domains: Vec<_> = (0..100).map(|_| device.pd()).collect();
    assert!(domains.iter().all(|pd| pd.dealloc() == 0));
    Ok(())
}

/// The flags that every device knows, in all combinations.
fn every_valid_access_is_granted(dut: &TestDevice) -> Outcome {
    let (pd, buf) = (dut.open().pd(), Buf::new(4096));
    let local = Access::IBV_ACCESS_LOCAL_WRITE.0;
    let remote = Access::IBV_ACCESS_REMOTE_WRITE.0 | Access::IBV_ACCESS_REMOTE_ATOMIC.0;
    for access in (0..32).filter(|access| access & remote == 0 || access & local != 0) {
        assert_eq!(pd.reg(&buf, access).map(drop), Ok(()), "access {access:#x}");
    }
    Ok(())
}

/// `man ibv_reg_mr`: remote write or atomic access requires local write access.
fn remote_writing_needs_local_writing(dut: &TestDevice) -> Outcome {
    let (pd, buf) = (dut.open().pd(), Buf::new(4096));
    let (write, atomic) = (Access::IBV_ACCESS_REMOTE_WRITE.0, Access::IBV_ACCESS_REMOTE_ATOMIC.0);
    for access in [write, atomic, write | atomic, write | Access::IBV_ACCESS_REMOTE_READ.0] {
        assert_eq!(pd.reg(&buf, access).err(), Some(EINVAL), "access {access:#x}");
    }
    Ok(())
}

fn unknown_access_is_refused(dut: &TestDevice) -> Outcome {
    let (pd, buf) = (dut.open().pd(), Buf::new(4096));
    for access in [1 << 10, 1 << 19, 1 << 30] {
        let error = pd.reg(&buf, EVERYTHING | access).err();
        assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "access {access:#x}: {error:?}");
    }
    Ok(())
}

/// `man ibv_reg_mr`: relaxed ordering is a hint. A device ignores each flag of that range that it
/// does not know (`IBV_ACCESS_OPTIONAL_RANGE`: bits 20 to 29).
fn optional_access_is_taken_or_ignored(dut: &TestDevice) -> Outcome {
    let (pd, buf) = (dut.open().pd(), Buf::new(4096));
    for access in OPTIONAL_BITS.map(|bit| EVERYTHING | 1 << bit) {
        assert_eq!(pd.reg(&buf, access).map(drop), Ok(()), "access {access:#x}");
        assert_eq!(pd.reg_iova(&buf, buf.addr(), access).map(drop), Ok(()), "access {access:#x}");
    }
    Ok(())
}

/// The flags of the optional range are ignored by each verb that has access flags.
fn optional_access_of_pairs_is_ignored(dut: &TestDevice) -> Outcome {
    for bit in OPTIONAL_BITS {
        let (a, b) = pair(
            dut,
            &NodeOptions::rc(Flavour::Classic).set(|options| {
                options.access |= 1 << bit;
                options.region |= 1 << bit;
            }),
        );
        a.mr.buf.set(0, &[bit as u8; 64]);
        a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 64)));
        assert_eq!(b.mr.buf.get(0, 64), [bit as u8; 64]);
    }
    Ok(())
}

fn optional_access_is_ignored_when_a_region_changes(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_REREG)?;
    let (a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    for access in OPTIONAL_BITS.map(|bit| EVERYTHING | 1 << bit) {
        assert_eq!(b.mr.rereg(Rereg::IBV_REREG_MR_CHANGE_ACCESS.0, None, None, access), 0, "{access:#x}");
        a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    }
    Ok(())
}

fn a_region_tells_what_it_is(dut: &TestDevice) -> Outcome {
    let (pd, buf) = (dut.open().pd(), Buf::new(8192));
    let mr = pd.reg_range(&buf, 100, 5000, EVERYTHING).unwrap();
    let fields = mr.fields();
    assert_eq!((fields.addr.addr() as u64, fields.length), (buf.addr() + 100, 5000));
    assert!(mr.pd_is(&pd));
    Ok(())
}

fn keys_are_unique(dut: &TestDevice) -> Outcome {
    let (device, buf) = (dut.open(), Buf::new(4096));
    let pds = [device.pd(), device.pd()];
    let regions: Vec<_> = (0..200).map(|n| pds[n % 2].reg(&buf, EVERYTHING).unwrap()).collect();
    let lkeys: HashSet<_> = regions.iter().map(crate::kit::Mr::lkey).collect();
    let rkeys: HashSet<_> = regions.iter().map(crate::kit::Mr::rkey).collect();
    assert_eq!((lkeys.len(), rkeys.len()), (200, 200));
    Ok(())
}

/// IBTA 10.6.3.3, local access keys: a deregistered key must be detected as invalid.
fn keys_are_not_used_again_at_once(dut: &TestDevice) -> Outcome {
    let (pd, buf) = (dut.open().pd(), Buf::new(4096));
    let keys: Vec<_> = (0..20).map(|_| pd.reg(&buf, EVERYTHING).unwrap().rkey()).collect();
    assert!(keys.windows(2).all(|two| two[0] != two[1]), "{keys:x?}");
    Ok(())
}

/// `man ibv_reg_mr` does not define it: hardware creates one, and the kernel's memory functions
/// refuse it.
fn an_empty_region_is_made_or_refused(dut: &TestDevice) -> Outcome {
    let (pd, buf) = (dut.open().pd(), Buf::new(4096));
    match pd.reg_range(&buf, 0, 0, EVERYTHING) {
        Ok(mr) => assert_eq!((mr.fields().length, mr.dereg()), (0, 0)),
        Err(error) => assert_eq!(error, EINVAL),
    }
    Ok(())
}

fn memory_that_is_not_there_is_refused(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    // The first page is never mapped.
    assert_eq!(pd.reg_nowhere(0, 4096), Err(EFAULT));
    assert_eq!(pd.reg_nowhere(0x10, 64), Err(EFAULT));
    Ok(())
}

fn a_region_that_wraps_around_is_refused(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    for (addr, len) in [(u64::MAX - 4095, 8192), (1 << 20, usize::MAX), (u64::MAX, 2)] {
        let error = pd.reg_nowhere(addr, len).unwrap_err();
        assert!([EINVAL, EFAULT, libc::ENOMEM].contains(&error), "{addr:#x}, {len:#x}: {error}");
    }
    Ok(())
}

fn part_of_a_page_is_registered(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let part = b.pd.reg_range(&b.mr.buf, 1001, 3, EVERYTHING).unwrap();
    a.mr.buf.set(0, &[5; 16]);
    a.done(Wr::write(1, part.remote(0)).sge(a.mr.at(0, 3)));
    assert_eq!(b.mr.buf.get(1000, 5), [0, 5, 5, 5, 0]);
    let status = a.fails(Wr::write(2, part.remote(0)).sge(a.mr.at(0, 4)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn overlapping_regions_have_their_own_permissions(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let readable = b.pd.reg(&b.mr.buf, Access::IBV_ACCESS_REMOTE_READ.0).unwrap();
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 64)));
    a.done(Wr::read(2, readable.remote(0)).sge(a.mr.at(0, 64)));
    let status = a.fails(Wr::write(3, readable.remote(0)).sge(a.mr.at(0, 64)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

/// `man ibv_reg_mr`: `ibv_reg_mr_iova` sets the addresses by which the region is reached.
fn a_region_with_its_own_addresses_is_reached_by_them(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let iova = 0x1000_0000 + b.mr.addr(0) % 4096;
    let mr = b.pd.reg_iova(&b.mr.buf, iova, EVERYTHING).unwrap();
    a.mr.buf.set(0, &pattern(1, 3000));
    a.done(Wr::write(1, RemoteAddr { addr: iova + 100, rkey: mr.rkey() }).sge(a.mr.at(0, 3000)));
    assert_eq!(b.mr.buf.get(100, 3000), pattern(1, 3000));
    let by_address = RemoteAddr { addr: b.mr.addr(0), rkey: mr.rkey() };
    assert_eq!(a.fails(Wr::write(2, by_address).sge(a.mr.at(0, 8))), Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

/// A region can be deregistered although a receive request names it; that request fails then.
fn a_region_of_a_pair_at_work_is_deregistered(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    b.recv(1, 0, 64);
    assert_eq!(b.mr.dereg(), 0);
    a.mr.buf.set(0, &[1; 64]);
    assert_eq!(a.fails(Wr::send(2).sge(a.mr.at(0, 64))), Status::IBV_WC_REM_OP_ERR);
    assert_ne!(b.recv_cq.one().status, Status::IBV_WC_SUCCESS);
    assert_eq!(b.mr.buf.get(0, 64), [0; 64]);
    Ok(())
}

const NO_REREG: &str = "has no ibv_rereg_mr";

fn rereg_changes_access(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_REREG)?;
    let (a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let reading = Access::IBV_ACCESS_LOCAL_WRITE.0 | Access::IBV_ACCESS_REMOTE_READ.0;
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(b.mr.rereg(Rereg::IBV_REREG_MR_CHANGE_ACCESS.0, None, None, reading), 0);
    a.done(Wr::read(2, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    let status = a.fails(Wr::write(3, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn rereg_changes_memory(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_REREG)?;
    let (a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let (old, new) = (b.mr.buf.clone(), Buf::new(8192));
    assert_eq!(b.mr.rereg(Rereg::IBV_REREG_MR_CHANGE_TRANSLATION.0, None, Some(&new), 0), 0);
    assert_eq!((b.mr.fields().addr.addr() as u64, b.mr.fields().length), (new.addr(), 8192));
    a.mr.buf.set(0, &[1; 64]);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 64)));
    assert_eq!((new.get(0, 64), old.get(0, 64)), (vec![1; 64], vec![0; 64]));
    let before = RemoteAddr { addr: old.addr(), rkey: b.mr.rkey() };
    assert_eq!(a.fails(Wr::write(2, before).sge(a.mr.at(0, 8))), Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn rereg_changes_the_domain(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_REREG)?;
    let (a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let other = b.device.pd();
    assert_eq!(b.mr.rereg(Rereg::IBV_REREG_MR_CHANGE_PD.0, Some(&other), None, 0), 0);
    assert!(b.mr.pd_is(&other));
    assert_eq!(other.dealloc(), EBUSY);
    let status = a.fails(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn rereg_changes_everything(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_REREG)?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let mut mr = b.device.pd().reg(&Buf::new(4096), 0).unwrap();
    let (new, flags) = (Buf::new(8192), Rereg::IBV_REREG_MR_FLAGS_SUPPORTED.0);
    assert_eq!(mr.rereg(flags, Some(&b.pd), Some(&new), EVERYTHING), 0);
    a.mr.buf.set(0, &[1; 64]);
    a.done(Wr::write(1, mr.remote(8128)).sge(a.mr.at(0, 64)));
    assert_eq!(new.get(8128, 64), [1; 64]);
    Ok(())
}

/// `man ibv_rereg_mr`: -1 (`IBV_REREG_MR_ERR_INPUT`), and the region stays as it was.
fn rereg_without_flags_is_refused(dut: &TestDevice) -> Outcome {
    let (a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    assert_ne!(b.mr.rereg(0, None, None, EVERYTHING), 0);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

fn rereg_with_unknown_flags_is_refused(dut: &TestDevice) -> Outcome {
    let (a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    assert_eq!(b.mr.rereg(1 << 20, None, None, EVERYTHING), -1);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

/// `man ibv_rereg_mr`: whether the region can be used after such a failure depends on the failure.
fn rereg_with_bad_access_is_refused(dut: &TestDevice) -> Outcome {
    let (_a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let writing = Access::IBV_ACCESS_REMOTE_WRITE.0;
    assert_ne!(b.mr.rereg(Rereg::IBV_REREG_MR_CHANGE_ACCESS.0, None, None, writing), 0);
    assert_eq!(b.mr.dereg(), 0);
    Ok(())
}
