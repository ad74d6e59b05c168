//! Memory windows: allocation, binding, rebinding, and permissions (`man ibv_alloc_mw`, `man
//! ibv_bind_mw`, `man ibv_post_send`, `man ibv_wr_post`; IBTA chapter 10, memory windows).

use libc::{EBUSY, EINVAL, EPERM};
use rdma_mummy_sys::types::ibv_access_flags as Access;
use rdma_mummy_sys::types::ibv_device_cap_flags as Cap;
use rdma_mummy_sys::types::ibv_mw_type as Type;
use rdma_mummy_sys::types::ibv_qp_create_send_ops_flags as Ops;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_opcode as WcOpcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    BindRange, Buf, EVERYTHING, Flavour, Mw, Node, NodeOptions, OPTIONAL_BITS, Outcome, PeerLocation,
    RemoteAddr, Skip, SoftRoce, Suite, TestDevice, Wr, next_key, pair, pair_at, pattern,
};

pub(super) const ONE: Type = Type::IBV_MW_TYPE_1;
pub(super) const TWO: Type = Type::IBV_MW_TYPE_2;
const READ: u32 = Access::IBV_ACCESS_REMOTE_READ.0;
pub(super) const WRITE: u32 = Access::IBV_ACCESS_REMOTE_WRITE.0;
const ATOMIC: u32 = Access::IBV_ACCESS_REMOTE_ATOMIC.0;
const LOCAL_WRITE: u32 = Access::IBV_ACCESS_LOCAL_WRITE.0;
pub(super) const BINDS: u32 = Access::IBV_ACCESS_MW_BIND.0;
const ZERO_BASED: u32 = Access::IBV_ACCESS_ZERO_BASED.0;

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_window_tells_what_it_is,
        an_unknown_type_of_window_is_refused,
        a_domain_with_a_window_is_busy,
        a_window_of_type_1_is_bound,
        a_window_of_type_1_is_bound_within_a_context,
        a_window_that_is_bound_anew_has_another_key,
        a_window_of_type_1_is_unbound,
        a_window_is_unbound_without_a_region,
        a_window_of_type_1_cannot_be_zero_based,
        a_window_of_type_1_is_bound_to_regions_of_its_domain,
        a_window_of_type_1_is_good_for_every_pair_of_its_domain,
        a_window_of_type_2_is_not_bound_by_the_call,
        a_region_with_a_bound_window_is_busy,
        a_deallocated_windows_key_is_dead,
        a_windows_key_is_no_local_key,
        two_windows_of_a_region_have_their_own_permissions,
        a_window_of_type_1_ignores_flags_of_regions,
        a_window_outlives_the_reset_of_its_pair,
        a_window_of_type_2_loses_its_pair,
    );
    both!(suite:
        a_window_of_type_2_is_bound,
        a_window_ends_where_it_was_bound_to,
        a_window_allows_no_more_than_it_says,
        a_window_of_type_2_ignores_flags_of_regions,
        a_window_allows_what_its_region_does_not,
        atomics_go_through_a_window,
        a_long_message_goes_through_a_window,
        a_write_with_immediate_data_goes_through_a_window,
        a_zero_based_window_begins_at_zero,
        a_region_that_allows_no_windows_has_none,
        a_window_that_writes_needs_a_region_that_may,
        a_window_beyond_its_region_is_not_bound,
        a_window_of_another_domain_is_not_bound,
        a_region_of_another_domain_is_not_bound_to,
        a_bound_window_of_type_2_is_not_bound_again,
        a_window_of_type_2_is_not_bound_to_nothing,
        a_window_of_type_2_is_good_for_its_own_pair_only,
        a_send_after_a_binding_sees_it,
    );
}

/// Skips the case if the device does not support windows of the type.
fn has(dut: &TestDevice, mw_type: Type) -> Outcome {
    let flags = dut.open().query().unwrap().device_cap_flags;
    let wanted = if mw_type == ONE {
        Cap::IBV_DEVICE_MEM_WINDOW.0
    } else {
        Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0 | Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0
    };
    if flags & wanted == 0 {
        skip!("{} has no memory windows of this type", dut.name);
    }
    Ok(())
}

fn options(flavour: Flavour) -> NodeOptions {
    NodeOptions::rc(flavour).set(|options| {
        options.region = EVERYTHING | BINDS;
        options.more_ops = Ops(Ops::IBV_QP_EX_WITH_BIND_MW.0
            | Ops::IBV_QP_EX_WITH_LOCAL_INV.0
            | Ops::IBV_QP_EX_WITH_SEND_WITH_INV.0);
    })
}

/// Two connected nodes; the windows belong to the second.
pub(super) fn nodes(dut: &TestDevice, mw_type: Type, flavour: Flavour) -> Result<(Node, Node), Skip> {
    has(dut, mw_type)?;
    Ok(pair(dut, &options(flavour)))
}

/// Binds a new window of type 1.
pub(super) fn bound_one(node: &Node, part: &BindRange) -> Mw {
    let mw = Mw::new(&node.pd, ONE).unwrap();
    bind_one(node, &mw, part);
    mw
}

fn bind_one(node: &Node, mw: &Mw, part: &BindRange) {
    assert_eq!(mw.bind(&node.qp, 77, part), 0);
    let wc = node.send_cq.ok();
    assert_eq!((wc.id, wc.opcode), (77, WcOpcode::IBV_WC_BIND_MW));
}

/// Binds a window of type 2 under its next key.
pub(super) fn bind_two(node: &Node, mw: &Mw, part: &BindRange) {
    let rkey = next_key(mw.rkey());
    let wc = node.done(Wr::bind(78, mw, rkey, part));
    assert_eq!(wc.opcode, WcOpcode::IBV_WC_BIND_MW);
    mw.set_rkey(rkey);
}

pub(super) fn bound_two(node: &Node, part: &BindRange) -> Mw {
    let mw = Mw::new(&node.pd, TWO).unwrap();
    bind_two(node, &mw, part);
    mw
}

/// An address in the second node's memory, with a window's key.
pub(super) fn through(mw: &Mw, node: &Node, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: node.mr.addr(offset), rkey: mw.rkey() }
}

/// The first node writes through a window into the second, and the data arrives.
pub(super) fn writes(a: &Node, b: &Node, to: RemoteAddr, offset: usize, seed: u8) {
    a.mr.buf.set(0, &pattern(seed, 64));
    a.done(Wr::write(1, to).sge(a.mr.at(0, 64)));
    assert_eq!(b.mr.buf.get(offset, 64), pattern(seed, 64));
}

/// The key does not permit the access, and nothing is written.
pub(super) fn is_refused(a: &Node, b: &Node, to: RemoteAddr, offset: usize) {
    let before = b.mr.buf.get(offset, 64);
    a.mr.buf.set(0, &pattern(0xb1, 64));
    assert_eq!(a.fails(Wr::write(9, to).sge(a.mr.at(0, 64))), Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(b.mr.buf.get(offset, 64), before);
}

/// The status of a local window error: the new SoftRoCE reports a flush for each local error.
pub(super) fn local(dut: &TestDevice, right: Status) -> Status {
    dut.expects_since(SoftRoce::New, right, Status::IBV_WC_WR_FLUSH_ERR)
}

/// Binding a window of type 1 fails, in the call or with the completion.
fn bind_one_fails(node: &Node, part: &BindRange) {
    let mw = Mw::new(&node.pd, ONE).unwrap();
    if mw.bind(&node.qp, 5, part) == 0 {
        let wc = node.send_cq.one();
        assert_eq!((wc.id, wc.status), (5, Status::IBV_WC_MW_BIND_ERR));
    }
}

fn bind_two_fails(dut: &TestDevice, node: &Node, mw: &Mw, part: &BindRange) {
    let status = node.fails(Wr::bind(5, mw, next_key(mw.rkey()), part));
    assert_eq!(status, local(dut, Status::IBV_WC_MW_BIND_ERR));
}

/// `man ibv_alloc_mw`: a window of the domain, with a key.
fn a_window_tells_what_it_is(dut: &TestDevice) -> Outcome {
    has(dut, ONE)?;
    has(dut, TWO)?;
    let pd = dut.open().pd();
    let (one, two) = (Mw::new(&pd, ONE).unwrap(), Mw::new(&pd, TWO).unwrap());
    assert_eq!((one.mw_type(), two.mw_type()), (ONE, TWO));
    assert_ne!(one.rkey() >> 8, two.rkey() >> 8);
    assert_eq!((one.dealloc(), two.dealloc()), (0, 0));
    Ok(())
}

fn an_unknown_type_of_window_is_refused(dut: &TestDevice) -> Outcome {
    has(dut, ONE)?;
    let pd = dut.open().pd();
    assert_eq!(Mw::new(&pd, Type(3)).err(), Some(EINVAL));
    assert_eq!(Mw::new(&pd, Type(0)).err(), Some(EINVAL));
    Ok(())
}

fn a_domain_with_a_window_is_busy(dut: &TestDevice) -> Outcome {
    has(dut, ONE)?;
    let pd = dut.open().pd();
    let mw = Mw::new(&pd, ONE).unwrap();
    assert_eq!(pd.dealloc(), EBUSY);
    assert_eq!(mw.dealloc(), 0);
    assert_eq!(pd.dealloc(), 0);
    Ok(())
}

/// Flags without an effect on a window: local writing, the permission to bind, and the optional
/// range.
fn ignored_flags() -> impl Iterator<Item = u32> {
    [LOCAL_WRITE, BINDS].into_iter().chain(OPTIONAL_BITS.map(|bit| 1 << bit))
}

fn a_window_of_type_1_ignores_flags_of_regions(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    for flag in ignored_flags() {
        let mw = bound_one(&b, &BindRange::of(&b.mr, 4096, 4096, WRITE | flag));
        writes(&a, &b, through(&mw, &b, 4096), 4096, flag.ilog2() as u8);
        assert_eq!(mw.dealloc(), 0);
    }
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, READ | LOCAL_WRITE));
    is_refused(&a, &b, through(&mw, &b, 0), 0);
    Ok(())
}

fn a_window_of_type_2_ignores_flags_of_regions(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    for flag in ignored_flags() {
        let mw = bound_two(&b, &BindRange::of(&b.mr, 4096, 4096, WRITE | flag));
        writes(&a, &b, through(&mw, &b, 4096), 4096, flag.ilog2() as u8);
        assert_eq!(mw.dealloc(), 0);
    }
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, READ | LOCAL_WRITE));
    is_refused(&a, &b, through(&mw, &b, 0), 0);
    Ok(())
}

/// `man ibv_bind_mw`: "The R_Key of the MW is changed", and a completion reports the binding.
fn a_window_of_type_1_is_bound(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = Mw::new(&b.pd, ONE).unwrap();
    let before = mw.rkey();
    bind_one(&b, &mw, &BindRange::of(&b.mr, 4096, 4096, READ | WRITE));
    assert_ne!(mw.rkey(), before);
    assert_eq!(mw.rkey() >> 8, before >> 8);
    writes(&a, &b, through(&mw, &b, 4096), 4096, 1);
    a.done(Wr::read(2, through(&mw, &b, 4096)).sge(a.mr.at(512, 64)));
    assert_eq!(a.mr.buf.get(512, 64), pattern(1, 64));
    Ok(())
}

fn a_window_of_type_1_is_bound_within_a_context(dut: &TestDevice) -> Outcome {
    has(dut, ONE)?;
    let (a, b) = pair_at(dut, PeerLocation::SameContext, &options(Flavour::Classic))?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    writes(&a, &b, through(&mw, &b, 100), 100, 3);
    Ok(())
}

/// "The previous R_Key is invalidated."
fn a_window_that_is_bound_anew_has_another_key(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let old = through(&mw, &b, 0);
    writes(&a, &b, old, 0, 4);
    bind_one(&b, &mw, &BindRange::of(&b.mr, 0, 8192, WRITE));
    assert_ne!(mw.rkey(), old.rkey);
    writes(&a, &b, through(&mw, &b, 4096), 4096, 5);
    is_refused(&a, &b, old, 0);
    Ok(())
}

/// "A zero length unbinds the window", and the region is free again.
fn a_window_of_type_1_is_unbound(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let other = b.pd.reg(&Buf::new(4096), EVERYTHING | BINDS).unwrap();
    let mw = bound_one(&b, &BindRange::of(&other, 0, 4096, WRITE));
    let old = RemoteAddr { addr: other.addr(0), rkey: mw.rkey() };
    a.done(Wr::write(1, old).sge(a.mr.at(0, 64)));
    bind_one(&b, &mw, &BindRange::of(&other, 0, 0, 0));
    assert_eq!(other.dereg(), 0);
    assert_eq!(a.fails(Wr::write(2, old).sge(a.mr.at(0, 64))), Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

/// `ibv_bind_mw` itself accepts a null region if the length is zero.
fn a_window_is_unbound_without_a_region(dut: &TestDevice) -> Outcome {
    dut.not_softroce("reads the region of a window that is unbound, and crashes where there is none")?;
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let old = through(&mw, &b, 0);
    bind_one(&b, &mw, &BindRange::none());
    is_refused(&a, &b, old, 0);
    Ok(())
}

/// IBTA o10-36.2.2: a window of type 1 has virtual addresses.
fn a_window_of_type_1_cannot_be_zero_based(dut: &TestDevice) -> Outcome {
    let (_a, b) = nodes(dut, ONE, Flavour::Classic)?;
    bind_one_fails(&b, &BindRange::of(&b.mr, 0, 4096, WRITE | ZERO_BASED));
    Ok(())
}

/// `EPERM` if the domains differ; `ibv_bind_mw` itself checks that.
fn a_window_of_type_1_is_bound_to_regions_of_its_domain(dut: &TestDevice) -> Outcome {
    let (_a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let other = b.device.pd();
    let mr = other.reg(&Buf::new(4096), EVERYTHING | BINDS).unwrap();
    let mw = Mw::new(&b.pd, ONE).unwrap();
    assert_eq!(mw.bind(&b.qp, 1, &BindRange::of(&mr, 0, 4096, WRITE)), EPERM);
    Ok(())
}

/// A window of type 1 belongs to a domain, whichever pair bound it.
fn a_window_of_type_1_is_good_for_every_pair_of_its_domain(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let (c, d) = (Node::new(&a.device, &a.options), Node::within(&b.device, &b.pd, &b.options));
    c.connect(&d.peer());
    d.connect(&c.peer());
    writes(&c, &b, through(&mw, &b, 0), 0, 6);
    Ok(())
}

/// `man ibv_bind_mw`: type 1; the others are bound by work requests.
fn a_window_of_type_2_is_not_bound_by_the_call(dut: &TestDevice) -> Outcome {
    let (_a, b) = nodes(dut, TWO, Flavour::Classic)?;
    let mw = Mw::new(&b.pd, TWO).unwrap();
    assert_eq!(mw.bind(&b.qp, 1, &BindRange::of(&b.mr, 0, 4096, WRITE)), EINVAL);
    Ok(())
}

/// `man ibv_dereg_mr`: it "fails if any memory window is still bound to this MR".
fn a_region_with_a_bound_window_is_busy(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mr = b.pd.reg(&Buf::new(4096), EVERYTHING | BINDS).unwrap();
    let mw = bound_one(&b, &BindRange::of(&mr, 0, 4096, WRITE));
    assert_eq!(mr.dereg(), dut.expects(EBUSY, EINVAL));
    // The region still works.
    a.done(Wr::write(1, RemoteAddr { addr: mr.addr(0), rkey: mw.rkey() }).sge(a.mr.at(0, 64)));
    a.done(Wr::write(2, mr.remote(0)).sge(a.mr.at(0, 64)));
    assert_eq!(mw.dealloc(), 0);
    assert_eq!(mr.dereg(), 0);
    Ok(())
}

/// `man ibv_dealloc_mw`: of a bound window, too.
fn a_deallocated_windows_key_is_dead(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let key = through(&mw, &b, 0);
    writes(&a, &b, key, 0, 7);
    assert_eq!(mw.dealloc(), 0);
    is_refused(&a, &b, key, 0);
    Ok(())
}

/// A window has a remote key and no local one (IBTA chapter 10, memory windows).
fn a_windows_key_is_no_local_key(dut: &TestDevice) -> Outcome {
    dut.not_softroce(crate::cases::LOCAL_REASON)?;
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, READ | WRITE));
    a.recv(1, 0, 64);
    let sge = crate::kit::Sge { lkey: mw.rkey(), ..b.mr.at(0, 64) };
    assert_eq!(b.fails(Wr::send(2).sge(sge)), Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn two_windows_of_a_region_have_their_own_permissions(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let reads = bound_one(&b, &BindRange::of(&b.mr, 0, 8192, READ));
    let both = bound_one(&b, &BindRange::of(&b.mr, 4096, 8192, WRITE));
    writes(&a, &b, through(&both, &b, 4096), 4096, 8);
    a.done(Wr::read(2, through(&reads, &b, 4096)).sge(a.mr.at(512, 64)));
    assert_eq!(a.mr.buf.get(512, 64), pattern(8, 64));
    is_refused(&a, &b, through(&reads, &b, 4096), 4096);
    Ok(())
}

/// The binding pair is needed for the bind only: a window of type 1 stays bound until it is
/// deallocated or rebound.
fn a_window_outlives_the_reset_of_its_pair(dut: &TestDevice) -> Outcome {
    let (a, b) = nodes(dut, ONE, Flavour::Classic)?;
    let mw = bound_one(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    for node in [&a, &b] {
        node.go(State::IBV_QPS_RESET);
    }
    a.connect(&b.peer());
    b.connect(&a.peer());
    writes(&a, &b, through(&mw, &b, 0), 0, 9);
    Ok(())
}

/// IBTA chapter 10, type 2 windows: they are bound to a pair and cannot be used without it.
fn a_window_of_type_2_loses_its_pair(dut: &TestDevice) -> Outcome {
    dut.not_softroce("waits for the windows of a pair that is destroyed")?;
    let (_a, b) = nodes(dut, TWO, Flavour::Classic)?;
    let mr = b.pd.reg(&Buf::new(4096), EVERYTHING | BINDS).unwrap();
    let mw = bound_two(&b, &BindRange::of(&mr, 0, 4096, WRITE));
    assert_eq!(mr.dereg(), EBUSY);
    assert_eq!(b.qp.destroy(), 0);
    assert_eq!(mr.dereg(), 0);
    assert_eq!(mw.dealloc(), 0);
    Ok(())
}

/// `man ibv_wr_post`: the program chooses the key.
fn a_window_of_type_2_is_bound(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 4096, 4096, READ | WRITE));
    writes(&a, &b, through(&mw, &b, 4096), 4096, 11);
    a.done(Wr::read(2, through(&mw, &b, 4096)).sge(a.mr.at(512, 64)));
    assert_eq!(a.mr.buf.get(512, 64), pattern(11, 64));
    // The key from the allocation is not valid.
    let made_with = RemoteAddr { rkey: mw.rkey().wrapping_sub(1), ..through(&mw, &b, 4096) };
    is_refused(&a, &b, made_with, 4096);
    Ok(())
}

fn a_window_ends_where_it_was_bound_to(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce("holds an access by a window to the bounds of its region, not to its own")?;
    for (offset, inside) in [(4096, true), (8192 - 64, true), (4095, false), (8192 - 63, false), (0, false)] {
        let (a, b) = nodes(dut, TWO, flavour)?;
        let mw = bound_two(&b, &BindRange::of(&b.mr, 4096, 4096, WRITE));
        let to = through(&mw, &b, offset);
        if inside {
            writes(&a, &b, to, offset, 12);
        } else {
            is_refused(&a, &b, to, offset);
        }
    }
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 4096, 4096, WRITE | ZERO_BASED));
    is_refused(&a, &b, RemoteAddr { addr: 4033, rkey: mw.rkey() }, 8192 - 64);
    Ok(())
}

fn a_window_allows_no_more_than_it_says(dut: &TestDevice, flavour: Flavour) -> Outcome {
    for access in [WRITE, READ, ATOMIC] {
        for tried in [WRITE, READ, ATOMIC].into_iter().filter(|tried| *tried != access) {
            let (a, b) = nodes(dut, TWO, flavour)?;
            let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, access));
            let to = through(&mw, &b, 0);
            let request = match tried {
                WRITE => Wr::write(1, to).sge(a.mr.at(0, 8)),
                READ => Wr::read(1, to).sge(a.mr.at(0, 8)),
                _ => Wr::fetch_add(1, to, 1).sge(a.mr.at(0, 8)),
            };
            assert_eq!(a.fails(request), Status::IBV_WC_REM_ACCESS_ERR, "{tried} of {access}");
        }
    }
    Ok(())
}

/// A window has its own permissions, but the region must allow local writes and binding (IBTA
/// C10-73, C10-74).
fn a_window_allows_what_its_region_does_not(dut: &TestDevice, flavour: Flavour) -> Outcome {
    has(dut, TWO)?;
    let (a, b) = pair(dut, &options(flavour).set(|options| options.region = LOCAL_WRITE | BINDS));
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, READ | WRITE));
    writes(&a, &b, through(&mw, &b, 0), 0, 13);
    is_refused(&a, &b, b.mr.remote(0), 0);
    Ok(())
}

fn atomics_go_through_a_window(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 4096, 64, ATOMIC));
    b.mr.buf.set_u64(4096, 40);
    let to = through(&mw, &b, 4096);
    a.done(Wr::fetch_add(1, to, 2).sge(a.mr.at(0, 8)));
    assert_eq!((a.mr.buf.get_u64(0), b.mr.buf.get_u64(4096)), (40, 42));
    a.done(Wr::cmp_swp(2, to, 42, 7).sge(a.mr.at(0, 8)));
    assert_eq!((a.mr.buf.get_u64(0), b.mr.buf.get_u64(4096)), (42, 7));
    Ok(())
}

fn a_long_message_goes_through_a_window(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let len = b.mr.len() - 4097;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 4097, len, READ | WRITE));
    a.mr.buf.set(0, &pattern(14, len));
    a.done(Wr::write(1, through(&mw, &b, 4097)).sge(a.mr.at(0, len)));
    assert_eq!(b.mr.buf.get(4097, len), pattern(14, len));
    a.mr.buf.set(0, &vec![0; len]);
    a.done(Wr::read(2, through(&mw, &b, 4097)).sge(a.mr.at(0, len)));
    assert_eq!(a.mr.buf.get(0, len), pattern(14, len));
    Ok(())
}

fn a_write_with_immediate_data_goes_through_a_window(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    b.recv(3, 8192, 64);
    a.mr.buf.set(0, &pattern(15, 300));
    a.done(Wr::write_imm(1, through(&mw, &b, 0), 0x1234).sge(a.mr.at(0, 300)));
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.imm, wc.len, wc.invalidated), (3, 0x1234, 300, None));
    assert_eq!(b.mr.buf.get(0, 300), pattern(15, 300));
    Ok(())
}

/// `man ibv_bind_mw`, `IBV_ACCESS_ZERO_BASED`: "the address set will be the offset from the base of
/// the MW".
fn a_zero_based_window_begins_at_zero(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 4096, 4096, WRITE | ZERO_BASED));
    writes(&a, &b, RemoteAddr { addr: 0, rkey: mw.rkey() }, 4096, 16);
    writes(&a, &b, RemoteAddr { addr: 4032, rkey: mw.rkey() }, 8192 - 64, 17);
    Ok(())
}

/// IBTA C10-73; `man ibv_reg_mr`, `IBV_ACCESS_MW_BIND`.
fn a_region_that_allows_no_windows_has_none(dut: &TestDevice, flavour: Flavour) -> Outcome {
    has(dut, TWO)?;
    let (_a, b) = pair(dut, &options(flavour).set(|options| options.region = EVERYTHING));
    bind_two_fails(dut, &b, &Mw::new(&b.pd, TWO).unwrap(), &BindRange::of(&b.mr, 0, 4096, READ));
    Ok(())
}

/// IBTA C10-74.
fn a_window_that_writes_needs_a_region_that_may(dut: &TestDevice, flavour: Flavour) -> Outcome {
    has(dut, TWO)?;
    for access in [WRITE, ATOMIC] {
        let (_a, b) = pair(dut, &options(flavour).set(|options| options.region = READ | BINDS));
        bind_two_fails(dut, &b, &Mw::new(&b.pd, TWO).unwrap(), &BindRange::of(&b.mr, 0, 4096, access));
    }
    let (a, b) = pair(dut, &options(flavour).set(|options| options.region = BINDS));
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, READ));
    // The node's default region is writable; this one is not writable for peers.
    let mr = a.pd.reg(&Buf::new(4096), LOCAL_WRITE).unwrap();
    b.mr.buf.set(0, &pattern(18, 64));
    a.done(Wr::read(1, through(&mw, &b, 0)).sge(mr.at(0, 64)));
    assert_eq!(mr.buf.get(0, 64), pattern(18, 64));
    Ok(())
}

/// IBTA C10-75: a window must lie within its region.
fn a_window_beyond_its_region_is_not_bound(dut: &TestDevice, flavour: Flavour) -> Outcome {
    has(dut, TWO)?;
    for (offset, more) in [(0, 1), (1, 0)] {
        let (_a, b) = pair(dut, &options(flavour));
        let part = BindRange::of(&b.mr, offset, b.mr.len() + more, WRITE);
        bind_two_fails(dut, &b, &Mw::new(&b.pd, TWO).unwrap(), &part);
    }
    let (_a, b) = pair(dut, &options(flavour));
    let part = BindRange::of(&b.mr, 0, 4096, WRITE).from(b.mr.addr(0) - 1);
    bind_two_fails(dut, &b, &Mw::new(&b.pd, TWO).unwrap(), &part);
    Ok(())
}

/// IBTA C10-72: window and pair have one domain.
fn a_window_of_another_domain_is_not_bound(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_a, b) = nodes(dut, TWO, flavour)?;
    let other = b.device.pd();
    let mr = other.reg(&Buf::new(4096), EVERYTHING | BINDS).unwrap();
    bind_two_fails(dut, &b, &Mw::new(&other, TWO).unwrap(), &BindRange::of(&mr, 0, 4096, WRITE));
    Ok(())
}

fn a_region_of_another_domain_is_not_bound_to(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce("binds windows of type 2 to regions of any domain")?;
    let (_a, b) = nodes(dut, TWO, flavour)?;
    let other = b.device.pd();
    let mr = other.reg(&Buf::new(4096), EVERYTHING | BINDS).unwrap();
    bind_two_fails(dut, &b, &Mw::new(&b.pd, TWO).unwrap(), &BindRange::of(&mr, 0, 4096, WRITE));
    Ok(())
}

/// IBTA o10-37.2.30: a window of type 2 is bound when it is free.
fn a_bound_window_of_type_2_is_not_bound_again(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_a, b) = nodes(dut, TWO, flavour)?;
    let part = BindRange::of(&b.mr, 0, 4096, WRITE);
    let mw = bound_two(&b, &part);
    bind_two_fails(dut, &b, &mw, &part);
    Ok(())
}

/// IBTA o10-37.2.40: a window of type 2 needs a range above zero.
fn a_window_of_type_2_is_not_bound_to_nothing(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (_a, b) = nodes(dut, TWO, flavour)?;
    bind_two_fails(dut, &b, &Mw::new(&b.pd, TWO).unwrap(), &BindRange::of(&b.mr, 0, 0, WRITE));
    Ok(())
}

/// IBTA chapter 10: an access through a window of type 2 must use the pair to which it is bound.
fn a_window_of_type_2_is_good_for_its_own_pair_only(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = bound_two(&b, &BindRange::of(&b.mr, 0, 4096, WRITE));
    let (c, d) = (Node::new(&a.device, &a.options), Node::within(&b.device, &b.pd, &b.options));
    c.connect(&d.peer());
    d.connect(&c.peer());
    is_refused(&c, &b, through(&mw, &b, 0), 0);
    writes(&a, &b, through(&mw, &b, 0), 0, 19);
    Ok(())
}

/// IBTA chapter 10, ordering: a bind is complete before the requests posted after it start.
fn a_send_after_a_binding_sees_it(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = nodes(dut, TWO, flavour)?;
    let mw = Mw::new(&b.pd, TWO).unwrap();
    let rkey = next_key(mw.rkey());
    a.recv(5, 1024, 64);
    let part = BindRange::of(&b.mr, 0, 4096, WRITE);
    b.qp.post(&[Wr::bind(1, &mw, rkey, &part).quiet(), Wr::send(2).sge(b.mr.at(8192, 64))]).unwrap();
    assert_eq!(a.recv_cq.ok().id, 5);
    writes(&a, &b, RemoteAddr { addr: b.mr.addr(0), rkey }, 0, 24);
    assert_eq!(b.send_cq.ok().id, 2);
    Ok(())
}
