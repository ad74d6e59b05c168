//! Special regions: with chosen addresses, null, on-demand, of a file's memory.

use libc::{EBADF, EFAULT, EINVAL, ENOENT, EOPNOTSUPP, EPERM};
use rdma_mummy_sys::types::{
    IBV_ADVISE_MR_ADVICE_PREFETCH as PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT as PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE as PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
    ib_uverbs_advise_mr_advice as Advice, ibv_access_flags as Access, ibv_odp_general_caps as OdpCaps,
    ibv_odp_transport_cap_bits as OdpBits, ibv_rereg_mr_flags as Rereg, ibv_wc_status as Status,
};

use crate::kit::{
    Buf, BufferFile, Device, EVERYTHING, Flavour, Mr, Node, NodeOptions, OPTIONAL_BITS, Outcome, Pd, Recv,
    RemoteAddr, Sge, Skip, SoftRoce, SpecialMr, Suite, TestDevice, TestTarget, Wr, other_descriptor, pair,
    pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        local_entries_name_a_region_by_its_own_addresses,
        a_region_may_begin_at_zero,
        a_zero_based_region_is_reached_by_offsets,
        memory_that_may_not_be_read_is_refused,
        memory_that_may_not_be_written_is_registered_for_reading,
        a_change_to_memory_that_is_not_there_fails,
        a_null_region_has_the_greatest_length,
        a_null_region_sends_zeros,
        a_null_region_drops_received_bytes,
        a_null_region_drops_read_bytes,
        the_rest_of_a_list_is_not_dropped,
        peers_do_not_reach_a_null_region,
        a_null_region_belongs_to_its_domain,
        a_null_region_cannot_be_changed,
        paging_on_demand_is_there_or_refused,
        pages_on_demand_take_part_in_everything,
        a_region_on_demand_takes_part_in_everything,
        all_of_the_address_space_is_one_region_or_refused,
        a_region_on_demand_is_prefetched,
        a_prefetch_for_writing_needs_the_permission,
        a_prefetch_out_of_bounds_is_refused,
        a_prefetch_of_another_domain_is_refused,
        a_prefetch_of_pinned_memory_is_refused,
        unknown_advice_is_refused,
        part_of_a_file_is_reached_by_chosen_addresses,
        a_file_is_local_memory,
        a_file_is_registered_within_its_bounds,
        a_file_keeps_its_page_offset,
        a_region_of_a_file_has_few_permissions,
        a_descriptor_without_memory_is_refused,
        a_region_keeps_its_file,
    );
}

/// `man ibv_reg_mr`: "the virtual base address of the MR when accessed through a lkey or rkey".
fn local_entries_name_a_region_by_its_own_addresses(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let iova = 0x5000_0000;
    let mr = a.pd.reg_iova(&a.mr.buf, iova, EVERYTHING).unwrap();
    let at = |offset, length| Sge { addr: iova + offset, length, lkey: mr.lkey() };
    a.mr.buf.set(0, &pattern(1, 3000));
    a.done(Wr::write(1, b.mr.remote(0)).sge(at(10, 2990)));
    assert_eq!(b.mr.buf.get(0, 2990), pattern(1, 3000)[10..]);
    a.done(Wr::read(2, b.mr.remote(0)).sge(at(8000, 500)));
    assert_eq!(a.mr.buf.get(8000, 500), pattern(1, 3000)[10..510]);
    a.qp.recv(Recv::new(3).sge(at(20_000, 100)));
    b.done(Wr::send(4).sge(b.mr.at(0, 100)));
    assert_eq!(a.recv_cq.ok().len, 100);
    assert_eq!(a.mr.buf.get(20_000, 100), pattern(1, 3000)[10..110]);
    Ok(())
}

/// `man ibv_reg_mr`: "Specifying 0 for hca_va has the same effect as IBV_ACCESS_ZERO_BASED."
fn a_region_may_begin_at_zero(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let mr = b.pd.reg_iova(&b.mr.buf, 0, EVERYTHING).unwrap();
    a.mr.buf.set(0, &[3; 64]);
    a.done(Wr::write(1, RemoteAddr { addr: 100, rkey: mr.rkey() }).sge(a.mr.at(0, 64)));
    assert_eq!(b.mr.buf.get(99, 66), [vec![0], vec![3; 64], vec![0]].concat());
    Ok(())
}

/// `man ibv_reg_mr`: "Use byte offset from beginning of MR to access this MR, instead of a pointer
/// address".
fn a_zero_based_region_is_reached_by_offsets(dut: &TestDevice) -> Outcome {
    dut.not_softroce("ignores IBV_ACCESS_ZERO_BASED, or refuses it")?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let access = EVERYTHING | Access::IBV_ACCESS_ZERO_BASED.0;
    let mr = b.pd.reg_range(&b.mr.buf, 1000, 500, access).unwrap();
    a.mr.buf.set(0, &[3; 64]);
    a.done(Wr::write(1, RemoteAddr { addr: 436, rkey: mr.rkey() }).sge(a.mr.at(0, 64)));
    assert_eq!(b.mr.buf.get(1435, 66), [vec![0], vec![3; 64], vec![0]].concat());
    Ok(())
}

/// "Local read access is always enabled for the MR": therefore the memory must be readable.
fn memory_that_may_not_be_read_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_on(SoftRoce::Old, "forces its way to memory that may not be read")?;
    let pd = dut.open().pd();
    for access in [0, Access::IBV_ACCESS_REMOTE_READ.0, EVERYTHING] {
        assert_eq!(pd.reg_mapped(libc::PROT_NONE, access), Err(EFAULT), "access {access:#x}");
    }
    Ok(())
}

fn memory_that_may_not_be_written_is_registered_for_reading(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    assert_eq!(pd.reg_mapped(libc::PROT_READ, 0), Ok(()));
    assert_eq!(pd.reg_mapped(libc::PROT_READ, Access::IBV_ACCESS_REMOTE_READ.0), Ok(()));
    assert_eq!(pd.reg_mapped(libc::PROT_READ, Access::IBV_ACCESS_LOCAL_WRITE.0), Err(EFAULT));
    assert_eq!(pd.reg_mapped(libc::PROT_READ, EVERYTHING), Err(EFAULT));
    assert_eq!(pd.reg_mapped(libc::PROT_READ | libc::PROT_WRITE, EVERYTHING), Ok(()));
    Ok(())
}

/// `man ibv_rereg_mr`: "Even on a failure, the user still needs to call ibv_dereg_mr on this MR."
fn a_change_to_memory_that_is_not_there_fails(dut: &TestDevice) -> Outcome {
    let (_a, mut b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let flags = Rereg::IBV_REREG_MR_CHANGE_TRANSLATION.0;
    assert_ne!(b.mr.rereg_nowhere(flags, 0x1000, 4096), 0);
    assert_ne!(b.mr.rereg_nowhere(flags, u64::MAX - 4095, 8192), 0);
    assert_eq!(b.mr.dereg(), 0);
    Ok(())
}

/// A null region, where the device has one (`man ibv_alloc_null_mr`).
fn null(dut: &TestDevice, pd: &Pd) -> Result<SpecialMr, Skip> {
    match pd.null_region() {
        Ok(region) => Ok(region),
        Err(EOPNOTSUPP) => skip!("{} has no null region", dut.name),
        Err(error) => panic!("error {error}"),
    }
}

/// "It has the maximum length and only the lkey is valid".
fn a_null_region_has_the_greatest_length(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let null = null(dut, &a.pd)?;
    assert_eq!(null.fields().length, usize::MAX);
    for addr in [0, 1, u64::MAX / 2, u64::MAX - 64] {
        a.done(Wr::write(1, b.mr.remote(0)).sge(null.at(addr, 64)));
    }
    Ok(())
}

/// "always returns 0 on read"
fn a_null_region_sends_zeros(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let null = null(dut, &a.pd)?;
    for len in [1_u32, 64, 300, 40_000] {
        b.mr.buf.set(0, &vec![1; len as usize + 1]);
        a.done(Wr::write(1, b.mr.remote(0)).sge(null.at(0, len)));
        assert_eq!(b.mr.buf.get(0, len as usize + 1), [vec![0; len as usize], vec![1]].concat());
        b.mr.buf.set(0, &vec![1; len as usize + 1]);
        b.recv(2, 0, 1 << 16);
        a.done(Wr::send(3).sge(null.at(u64::from(len), len)));
        assert_eq!(b.recv_cq.ok().len, len);
        assert_eq!(b.mr.buf.get(0, len as usize + 1), [vec![0; len as usize], vec![1]].concat());
    }
    Ok(())
}

/// "discards all data written to it"
fn a_null_region_drops_received_bytes(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let null = null(dut, &b.pd)?;
    a.mr.buf.set(0, &pattern(1, 60_000));
    for len in [1, 64, 300, 60_000] {
        b.qp.recv(Recv::new(1).sge(null.at(0x1234, 1 << 20)));
        a.done(Wr::send_imm(2, 0x77).sge(a.mr.at(0, len)));
        let wc = b.recv_cq.ok();
        assert_eq!((wc.len as usize, wc.imm), (len, 0x77));
        // A read from the null region still returns zeros.
        b.done(Wr::write(3, a.mr.remote(60_000)).sge(null.at(0x1234, 64)));
        assert_eq!(a.mr.buf.get(60_000, 64), [0; 64]);
    }
    Ok(())
}

fn a_null_region_drops_read_bytes(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let null = null(dut, &a.pd)?;
    b.mr.buf.set(0, &pattern(1, 50_000));
    a.done(Wr::read(1, b.mr.remote(0)).sge(null.at(0, 50_000)));
    a.done(Wr::fetch_add(2, b.mr.remote(0), 1).sge(null.at(8, 8)));
    assert_ne!(b.mr.buf.get(0, 8), pattern(1, 8), "the operation took place");
    a.done(Wr::write(3, b.mr.remote(0)).sge(null.at(0, 64)));
    assert_eq!(b.mr.buf.get(0, 64), [0; 64]);
    Ok(())
}

/// "by using a scatter/gather list in commands if applications do not intend to access the data, or
/// need data to be 0 filled"
fn the_rest_of_a_list_is_not_dropped(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let (ours, theirs) = (null(dut, &a.pd)?, null(dut, &b.pd)?);
    for part in [20_u32, 2000] {
        let n = part as usize;
        let message = pattern(2, 3 * n);
        a.mr.buf.set(0, &message);
        let list = [b.mr.at(0, n), theirs.at(0, part), b.mr.at(n, n)];
        b.qp.recv(list.iter().fold(Recv::new(1), |recv, sge| recv.sge(*sge)));
        a.done(Wr::send(2).sge(a.mr.at(0, 3 * n)));
        assert_eq!(b.recv_cq.ok().len, 3 * part);
        assert_eq!(b.mr.buf.get(0, 2 * n), [&message[..n], &message[2 * n..]].concat());
        let list = [a.mr.at(0, n), ours.at(0, part), a.mr.at(n, n)];
        a.done(Wr::write(3, b.mr.remote(10_000)).list(&list));
        let expected = [&message[..n], &vec![0; n][..], &message[n..2 * n]].concat();
        assert_eq!(b.mr.buf.get(10_000, 3 * n), expected);
        b.mr.buf.set(0, &message);
        let list = [a.mr.at(20_000, n), ours.at(0, part), a.mr.at(20_000 + n, n)];
        a.done(Wr::read(4, b.mr.remote(0)).list(&list));
        assert_eq!(a.mr.buf.get(20_000, 2 * n), [&message[..n], &message[2 * n..]].concat());
    }
    Ok(())
}

/// "the MR is not exposed as an rkey"
fn peers_do_not_reach_a_null_region(dut: &TestDevice) -> Outcome {
    let remote = |b: &Node| Ok::<_, Skip>((null(dut, &b.pd)?, b.pd.clone()));
    for write in [true, false] {
        let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
        let (null, _pd) = remote(&b)?;
        let place = RemoteAddr { addr: 0, rkey: null.fields().lkey };
        let wr = if write { Wr::write(1, place) } else { Wr::read(1, place) };
        assert_eq!(a.fails(wr.sge(a.mr.at(0, 8))), Status::IBV_WC_REM_ACCESS_ERR);
    }
    Ok(())
}

fn a_null_region_belongs_to_its_domain(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let null = null(dut, &a.device.pd())?;
    let status = a.fails(Wr::write(1, b.mr.remote(0)).sge(null.at(0, 64)));
    assert_eq!(status, Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

/// "The use of ibv_rereg_mr() or ibv_bind_mw() with this MR is invalid."
fn a_null_region_cannot_be_changed(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let null = null(dut, &a.pd)?;
    assert_ne!(null.rereg_access(EVERYTHING), 0);
    a.done(Wr::write(1, b.mr.remote(0)).sge(null.at(0, 64)));
    Ok(())
}

const ON_DEMAND: u32 = Access::IBV_ACCESS_ON_DEMAND.0;
const WITHOUT_ATOMICS: u32 = EVERYTHING & !Access::IBV_ACCESS_REMOTE_ATOMIC.0;

fn general_caps(device: &Device) -> u64 {
    device.query_ex(None).map_or(0, |attr| attr.odp_caps.general_caps)
}

/// Whether the device says that it has regions of the whole address space.
pub(super) fn implicit_is_announced(device: &Device) -> bool {
    general_caps(device) & u64::from(OdpCaps::IBV_ODP_SUPPORT_IMPLICIT.0) != 0
}

/// Skips the case if the device does not support on-demand paging.
pub(super) fn on_demand(dut: &TestDevice) -> Outcome {
    if general_caps(&dut.open()) & u64::from(OdpCaps::IBV_ODP_SUPPORT.0) == 0 {
        skip!("{} does not page on demand", dut.name);
    }
    Ok(())
}

/// The attributes are true (`man ibv_query_device_ex`, `man ibv_reg_mr`).
fn paging_on_demand_is_there_or_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let made = device.pd().reg(&Buf::new(8192), WITHOUT_ATOMICS | ON_DEMAND);
    let there = general_caps(&device) & u64::from(OdpCaps::IBV_ODP_SUPPORT.0) != 0;
    assert_eq!(made.is_ok(), there, "{:?}", made.err());
    Ok(())
}

/// Whether the device has this operation with memory on demand.
fn has_on_demand(device: &Device, bit: OdpBits) -> bool {
    let caps = device.query_ex(None).map_or(0, |attr| attr.odp_caps.per_transport_caps.rc_odp_caps);
    caps & bit.0 != 0
}

/// A message of these bytes takes part in each operation that is announced, from `here` in a region
/// on demand to `there` in another.
fn takes_part(a: &Node, b: &Node, regions: [&Mr; 2], [here, there]: [usize; 2], bytes: &[u8]) {
    let ([ours, theirs], len) = (regions, bytes.len());
    let has = |bit| has_on_demand(&a.device, bit);
    ours.buf.set(here, bytes);
    if has(OdpBits::IBV_ODP_SUPPORT_WRITE) {
        a.done(Wr::write(1, theirs.remote(there)).sge(ours.at(here, len)));
        assert_eq!(theirs.buf.get(there, len), bytes);
    }
    if has(OdpBits::IBV_ODP_SUPPORT_READ) {
        theirs.buf.set(there, bytes);
        ours.buf.set(here, &vec![0; len]);
        a.done(Wr::read(2, theirs.remote(there)).sge(ours.at(here, len)));
        assert_eq!(ours.buf.get(here, len), bytes);
    }
    if has(OdpBits::IBV_ODP_SUPPORT_SEND) && has(OdpBits::IBV_ODP_SUPPORT_RECV) {
        theirs.buf.set(there, &vec![0; len]);
        b.qp.recv(Recv::new(3).sge(theirs.at(there, len)));
        a.done(Wr::send(4).sge(ours.at(here, len)));
        assert_eq!(b.recv_cq.ok().len as usize, len);
        assert_eq!(theirs.buf.get(there, len), bytes);
    }
}

/// Messages of one packet, from and to the beginnings of pages.
fn pages_on_demand_take_part_in_everything(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let has_atomics = has_on_demand(&a.device, OdpBits::IBV_ODP_SUPPORT_ATOMIC);
    let access = ON_DEMAND | if has_atomics { EVERYTHING } else { WITHOUT_ATOMICS };
    // Pages that nobody has touched; one is read before it is written to.
    let [ours, theirs] = [&a, &b].map(|node| node.pd.reg(&Buf::untouched(1 << 16), access).unwrap());
    if has_on_demand(&a.device, OdpBits::IBV_ODP_SUPPORT_READ) {
        ours.buf.set(0, &[1; 256]);
        a.done(Wr::read(5, theirs.remote(8192)).sge(ours.at(0, 256)));
        assert_eq!(ours.buf.get(0, 256), [0; 256]);
    }
    for len in [8, 256] {
        takes_part(&a, &b, [&ours, &theirs], [4096, 8192], &pattern(len as u8, len));
    }
    assert_eq!(Buf::untouched(4096).get(0, 4096), [0; 4096], "new memory is still empty");
    if has_atomics {
        a.done(Wr::fetch_add(6, theirs.remote(12_296), 7).sge(ours.at(0, 8)));
        assert_eq!((ours.buf.get_u64(0), theirs.buf.get_u64(12_296)), (0, 7));
    }
    Ok(())
}

fn a_region_on_demand_takes_part_in_everything(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    dut.not_since(SoftRoce::Newest, "copies from and to the beginnings of pages on demand")?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let [ours, theirs] =
        [&a, &b].map(|node| node.pd.reg(&Buf::new(1 << 16), WITHOUT_ATOMICS | ON_DEMAND).unwrap());
    for len in [8, 300, 30_000] {
        takes_part(&a, &b, [&ours, &theirs], [32_000, 100], &pattern(len as u8, len));
    }
    Ok(())
}

/// "To create an implicit ODP MR, IBV_ACCESS_ON_DEMAND should be set, addr should be 0 and length
/// should be SIZE_MAX."
fn all_of_the_address_space_is_one_region_or_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let there = implicit_is_announced(&device);
    let local = device.pd().reg_everything(Access::IBV_ACCESS_LOCAL_WRITE.0 | ON_DEMAND);
    assert_eq!(local.is_ok(), there, "error {:?}", local.err());
    // A device may have such regions for local access alone, so the capability does not promise
    // this one.
    if let Ok(region) = device.pd().reg_everything(WITHOUT_ATOMICS | ON_DEMAND) {
        assert!(there);
        assert_eq!(region.fields().length, usize::MAX);
    }
    Ok(())
}

/// `man ibv_advise_mr`: "all the lkeys of all the scatter gather elements (SGEs) must be associated
/// with ODP MRs".
fn a_region_on_demand_is_prefetched(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    let pd = dut.open().pd();
    let regions = [(); 3].map(|()| pd.reg(&Buf::new(1 << 16), WITHOUT_ATOMICS | ON_DEMAND).unwrap());
    regions[0].buf.set(5000, &[5; 100]);
    let list: Vec<_> = regions.iter().map(|mr| mr.at(4096, 10_000)).collect();
    for advice in [PREFETCH, PREFETCH_WRITE, PREFETCH_NO_FAULT] {
        for flags in [0, IBV_ADVISE_MR_FLAG_FLUSH.0] {
            assert_eq!(pd.advise(advice, flags, &list), 0, "{advice:?}, {flags}");
            assert_eq!(pd.advise(advice, flags, &list[..1]), 0, "{advice:?}, {flags}");
        }
    }
    assert_eq!(regions[0].buf.get(5000, 100), [5; 100]);
    Ok(())
}

/// The errors of a prefetch without permission.
fn out_of_reach(dut: &TestDevice) -> &'static [i32] {
    dut.expects_since(SoftRoce::Newest, &[EPERM], &[EPERM, EINVAL])
}

/// EPERM: "The advice is IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE but the specified MR in the scatter
/// gather list is not registered as writable access."
fn a_prefetch_for_writing_needs_the_permission(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    let pd = dut.open().pd();
    let mr = pd.reg(&Buf::new(8192), ON_DEMAND | Access::IBV_ACCESS_REMOTE_READ.0).unwrap();
    // SoftRoCE prefetches no region that may not be written to.
    let error = pd.advise(PREFETCH, 0, &[mr.at(0, 8192)]);
    assert!(dut.expects_since(SoftRoce::Newest, &[0][..], &[0, EINVAL]).contains(&error), "{error}");
    let error = pd.advise(PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH.0, &[mr.at(0, 8192)]);
    assert!(out_of_reach(dut).contains(&error), "{error}");
    Ok(())
}

/// EFAULT: "when the range requested is out of the MR bounds"; ENOENT, or EFAULT: "the lkeys ...
/// invalid".
fn a_prefetch_out_of_bounds_is_refused(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    let pd = dut.open().pd();
    let mr = pd.reg(&Buf::new(8192), WITHOUT_ATOMICS | ON_DEMAND).unwrap();
    let flush = IBV_ADVISE_MR_FLAG_FLUSH.0;
    for sge in [mr.at(8192, 1), mr.at(0, 8193), Sge { addr: mr.addr(0) - 1, ..mr.at(0, 8) }] {
        assert_eq!(pd.advise(PREFETCH, flush, &[mr.at(0, 64), sge]), EFAULT, "{sge:?}");
    }
    let lkey = mr.lkey() ^ 0x55;
    let error = pd.advise(PREFETCH, flush, &[Sge { lkey, ..mr.at(0, 64) }]);
    let right = dut.expects_since(SoftRoce::Newest, &[EFAULT, ENOENT][..], &[EFAULT, ENOENT, EINVAL]);
    assert!(right.contains(&error), "{error}");
    Ok(())
}

/// EPERM: "Referencing a valid lkey outside the caller's security scope."
fn a_prefetch_of_another_domain_is_refused(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    let device = dut.open();
    let mr = device.pd().reg(&Buf::new(8192), WITHOUT_ATOMICS | ON_DEMAND).unwrap();
    let error = device.pd().advise(PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH.0, &[mr.at(0, 64)]);
    assert!(out_of_reach(dut).contains(&error), "{error}");
    Ok(())
}

fn a_prefetch_of_pinned_memory_is_refused(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    dut.never_since(SoftRoce::Newest, "takes every region for one on demand, and reads beyond its record")?;
    let pd = dut.open().pd();
    let mr = pd.reg(&Buf::new(8192), EVERYTHING).unwrap();
    assert_ne!(pd.advise(PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH.0, &[mr.at(0, 64)]), 0);
    Ok(())
}

/// ENOTSUP: "The advise operation isn't supported." EINVAL: "The flags are invalid."
fn unknown_advice_is_refused(dut: &TestDevice) -> Outcome {
    on_demand(dut)?;
    let pd = dut.open().pd();
    let mr = pd.reg(&Buf::new(8192), WITHOUT_ATOMICS | ON_DEMAND).unwrap();
    assert_eq!(pd.advise(Advice(77), 0, &[mr.at(0, 64)]), EOPNOTSUPP);
    assert_eq!(pd.advise(PREFETCH, 1 << 20, &[mr.at(0, 64)]), EINVAL);
    Ok(())
}

/// A file that the device can register: a real dma-buf, where the system makes any. The software
/// device accepts a memory file.
fn file(dut: &TestDevice, pd: &Pd, len: u64) -> Result<BufferFile, Skip> {
    let file = match BufferFile::dma(len) {
        Some(file) => file,
        None if dut.target == TestTarget::System => skip!("the system makes no dma-bufs (/dev/udmabuf)"),
        None => BufferFile::memory(len, true),
    };
    match pd.reg_dmabuf(file.descriptor(), 0, len as usize, 0, EVERYTHING) {
        Ok(_) => Ok(file),
        Err(EOPNOTSUPP) => skip!("{} registers no dma-bufs", dut.name),
        Err(error) => panic!("error {error}"),
    }
}

const FILE: u64 = 8 * 4096;

/// `man ibv_reg_mr`: "The MR starts at offset of the dma-buf and its size is length. ... The
/// argument iova specifies the virtual base address of the MR when accessed through a lkey or
/// rkey."
fn part_of_a_file_is_reached_by_chosen_addresses(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let file = file(dut, &b.pd, FILE)?;
    let iova = 0x7000_0000_0000 + 100;
    let region = b.pd.reg_dmabuf(file.descriptor(), 4196, 9000, iova, EVERYTHING).unwrap();
    assert_eq!(region.fields().length, 9000);
    a.mr.buf.set(0, &pattern(1, 8000));
    a.done(Wr::write(1, region.remote(iova + 50)).sge(a.mr.at(0, 8000)));
    assert_eq!(file.get(4246, 8000), pattern(1, 8000));
    file.set(4196 + 8999, &[77]);
    a.done(Wr::read(2, region.remote(iova + 8999)).sge(a.mr.at(9000, 1)));
    assert_eq!(a.mr.buf.get(9000, 1), [77]);
    a.done(Wr::fetch_add(3, region.remote(iova + 8988), 1).sge(a.mr.at(0, 8)));
    let status = a.fails(Wr::write(4, region.remote(iova + 8999)).sge(a.mr.at(0, 2)));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn a_file_is_local_memory(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let file = file(dut, &a.pd, FILE)?;
    let region = a.pd.reg_dmabuf(file.descriptor(), 0, FILE as usize, 0, EVERYTHING).unwrap();
    file.set(5000, &pattern(1, 6000));
    a.done(Wr::write(1, b.mr.remote(0)).sge(region.at(5000, 6000)));
    assert_eq!(b.mr.buf.get(0, 6000), pattern(1, 6000));
    for len in [16, 6000] {
        a.qp.recv(Recv::new(2).sge(region.at(20_000, 6000)));
        b.done(Wr::send(3).sge(b.mr.at(0, len)));
        assert_eq!(a.recv_cq.ok().len as usize, len);
        assert_eq!(file.get(20_000, len), pattern(1, 6000)[..len]);
    }
    Ok(())
}

fn a_file_is_registered_within_its_bounds(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    let file = file(dut, &pd, FILE)?;
    let bounds =
        [(0, FILE + 1), (FILE, 4096), (FILE - 4096, 4097), (u64::MAX - 4095, 4096), (0, u64::MAX), (0, 0)];
    for (offset, len) in bounds {
        let made = pd.reg_dmabuf(file.descriptor(), offset, len as usize, offset, EVERYTHING);
        assert!(made.is_err(), "{offset}, {len}");
    }
    Ok(())
}

/// "It must have the same page offset as offset."
fn a_file_keeps_its_page_offset(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    let file = file(dut, &pd, FILE)?;
    let error = pd.reg_dmabuf(file.descriptor(), 100, 4096, 0x1000_0000, EVERYTHING).err();
    assert_eq!(error, Some(EINVAL));
    pd.reg_dmabuf(file.descriptor(), 100, 4096, 0x1000_0064, EVERYTHING).unwrap();
    Ok(())
}

/// "only the following flags are supported"
fn a_region_of_a_file_has_few_permissions(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    let file = file(dut, &pd, FILE)?;
    let register = |access| pd.reg_dmabuf(file.descriptor(), 0, 4096, 0, access);
    for bit in OPTIONAL_BITS {
        register(EVERYTHING | 1 << bit).unwrap();
    }
    register(0).unwrap();
    for access in [Access::IBV_ACCESS_MW_BIND, Access::IBV_ACCESS_ZERO_BASED, Access::IBV_ACCESS_ON_DEMAND] {
        let error = register(EVERYTHING | access.0).err();
        assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{access:?}: {error:?}");
    }
    assert_eq!(register(Access::IBV_ACCESS_REMOTE_WRITE.0).err(), Some(EINVAL));
    Ok(())
}

/// Memory that could shrink is not registered, and a file without memory is not, either.
fn a_descriptor_without_memory_is_refused(dut: &TestDevice) -> Outcome {
    let pd = dut.open().pd();
    drop(file(dut, &pd, FILE)?);
    let register = |descriptor| pd.reg_dmabuf(descriptor, 0, 4096, 0, EVERYTHING).err();
    assert_eq!(register(-1), Some(EBADF));
    let null = other_descriptor();
    assert_eq!(register(null), Some(EINVAL));
    crate::kit::close(null);
    assert_eq!(register(BufferFile::memory(FILE, false).descriptor()), Some(EINVAL));
    Ok(())
}

/// The descriptor may be closed once the memory is registered.
fn a_region_keeps_its_file(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let file = file(dut, &b.pd, FILE)?;
    let region = b.pd.reg_dmabuf(file.descriptor(), 0, 4096, 0, EVERYTHING).unwrap();
    drop(file);
    a.mr.buf.set(0, &[4; 100]);
    a.done(Wr::write(1, region.remote(0)).sge(a.mr.at(0, 100)));
    a.done(Wr::read(2, region.remote(50)).sge(a.mr.at(200, 50)));
    assert_eq!(a.mr.buf.get(200, 50), [4; 50]);
    Ok(())
}
