//! Atomic write and flush (`man ibv_wr_post`: `ibv_wr_atomic_write`, `ibv_wr_flush`; `man
//! ibv_reg_mr`; IBTA, annex on memory placement extensions).

use libc::{EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_access_flags as Access;
use rdma_mummy_sys::types::ibv_placement_type as Placement;
use rdma_mummy_sys::types::ibv_qp_create_send_ops_flags as Ops;
use rdma_mummy_sys::types::ibv_selectivity_level as Level;
use rdma_mummy_sys::types::ibv_wc_opcode as WcOpcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    Buf, EVERYTHING, Flavour, Node, NodeOptions, Outcome, RemoteAddr, Skip, Suite, TestDevice, Wr, pair,
    pattern,
};

/// The kernel's values (`ib_user_verbs.h`), which no header of libibverbs has.
const HAS_GLOBAL_FLUSH: u64 = 1 << 38;
const HAS_PERSISTENT_FLUSH: u64 = 1 << 39;
const HAS_ATOMIC_WRITE: u64 = 1 << 40;

const GLOBAL: u32 = Placement::IBV_FLUSH_GLOBAL.0;
const RANGE: u32 = Level::IBV_FLUSH_RANGE.0;
const REGION: u32 = Level::IBV_FLUSH_MR.0;
const MAY_FLUSH: u32 = Access::IBV_ACCESS_FLUSH_GLOBAL.0;

/// Why SoftRoCE skips cases with a classic atomic write.
const CLASSIC: &str = "does not hand the address of a classic atomic write on to the kernel";

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        an_atomic_write_stores_eight_bytes,
        a_misaligned_atomic_write_is_refused,
        an_atomic_write_needs_the_permission_to_write,
        an_atomic_write_ends_with_the_region,
        a_pair_that_answers_no_reads_answers_no_atomic_write,
    );
    cases!(suite:
        an_atomic_write_of_another_length_is_refused,
        an_atomic_write_is_never_seen_in_part,
        a_range_is_flushed,
        a_region_is_flushed,
        a_flush_needs_the_regions_permission,
        a_flush_needs_the_pairs_permission,
        a_flush_ends_with_the_region,
        a_flush_of_another_kind_is_refused,
        a_flush_has_no_classic_request,
        persistence_that_is_not_there_is_not_granted,
    );
}

fn capabilities(dut: &TestDevice) -> u64 {
    dut.open().query_ex(None).map_or(0, |attr| attr.device_cap_flags_ex)
}

fn has(dut: &TestDevice, capability: u64, what: &str) -> Outcome {
    if capabilities(dut) & capability == 0 {
        skip!("{} has no {what}", dut.name);
    }
    Ok(())
}

fn writers(dut: &TestDevice, flavour: Flavour) -> Result<NodeOptions, Skip> {
    has(dut, HAS_ATOMIC_WRITE, "atomic write")?;
    Ok(NodeOptions::rc(flavour).set(|options| options.more_ops = Ops::IBV_QP_EX_WITH_ATOMIC_WRITE))
}

/// The value is in the requester's memory, too, from where a classic pair takes it.
fn atomic_write(a: &Node, id: u64, to: RemoteAddr, value: u64) -> Wr {
    a.mr.buf.set_u64(0, value);
    let request = Wr::atomic_write(id, to, value);
    if a.options.flavour == Flavour::Classic { request.sge(a.mr.at(0, 8)) } else { request }
}

fn an_atomic_write_stores_eight_bytes(dut: &TestDevice, flavour: Flavour) -> Outcome {
    if flavour == Flavour::Classic {
        dut.not_softroce(CLASSIC)?;
    }
    let (a, b) = pair(dut, &writers(dut, flavour)?);
    b.mr.buf.set(4096, &[0xee; 24]);
    let wc = a.done(atomic_write(&a, 1, b.mr.remote(4104), 0x0123_4567_89ab_cdef));
    assert_eq!(wc.opcode, WcOpcode::IBV_WC_ATOMIC_WRITE);
    assert_eq!(b.mr.buf.get_u64(4104), 0x0123_4567_89ab_cdef);
    assert_eq!((b.mr.buf.get(4096, 8), b.mr.buf.get(4112, 8)), (vec![0xee; 8], vec![0xee; 8]));
    // Data written before the atomic write has arrived, and data written after it comes later.
    a.mr.buf.set(64, &pattern(1, 3000));
    a.qp.post(&[Wr::write(2, b.mr.remote(8192)).sge(a.mr.at(64, 3000)).quiet(), {
        atomic_write(&a, 3, b.mr.remote(4104), 7)
    }])
    .unwrap();
    assert_eq!(a.send_cq.ok().id, 3);
    assert_eq!(b.mr.buf.get_u64(4104), 7);
    assert_eq!(b.mr.buf.get(8192, 3000), pattern(1, 3000));
    Ok(())
}

/// "The remote address must be 8-byte aligned" (IBTA, atomic write).
fn a_misaligned_atomic_write_is_refused(dut: &TestDevice, flavour: Flavour) -> Outcome {
    if flavour == Flavour::Classic {
        dut.not_softroce(CLASSIC)?;
    }
    let (a, b) = pair(dut, &writers(dut, flavour)?);
    match a.qp.post(&[atomic_write(&a, 1, b.mr.remote(4), 1)]) {
        Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_REM_INV_REQ_ERR),
        Err((error, _)) => assert_eq!(error, EINVAL),
    }
    assert_eq!(b.mr.buf.get(0, 16), [0; 16]);
    Ok(())
}

fn an_atomic_write_needs_the_permission_to_write(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let all_but = EVERYTHING & !Access::IBV_ACCESS_REMOTE_WRITE.0;
    let (a, b) = pair(dut, &writers(dut, flavour)?.set(|options| options.region = all_but));
    let status = a.fails(atomic_write(&a, 1, b.mr.remote(0), 1));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(b.mr.buf.get_u64(0), 0);
    Ok(())
}

fn an_atomic_write_ends_with_the_region(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &writers(dut, flavour)?);
    let status = a.fails(atomic_write(&a, 1, b.mr.remote(b.mr.len()), 1));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

/// It needs one of the responder's resources for reads and atomics (IBTA, atomic write).
fn a_pair_that_answers_no_reads_answers_no_atomic_write(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &writers(dut, flavour)?.set(|options| options.dest_rd_atomic = 0));
    let status = a.fails(atomic_write(&a, 1, b.mr.remote(0), 1));
    assert_eq!(status, Status::IBV_WC_REM_INV_REQ_ERR);
    Ok(())
}

/// Its length is eight bytes.
fn an_atomic_write_of_another_length_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce(CLASSIC)?;
    for len in [0, 4, 16] {
        let (a, b) = pair(dut, &writers(dut, Flavour::Classic)?);
        match a.qp.post(&[Wr::atomic_write(1, b.mr.remote(0), 1).sge(a.mr.at(0, len))]) {
            Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_LEN_ERR),
            Err((error, _)) => assert_eq!(error, EINVAL),
        }
    }
    Ok(())
}

fn an_atomic_write_is_never_seen_in_part(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &writers(dut, Flavour::Extended)?);
    let values = [u64::MAX, 0x0101_0101_0101_0101];
    b.mr.buf.set_u64(0, values[0]);
    let reader = {
        let (c, d) = pair(dut, &NodeOptions::rc(Flavour::Classic));
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                // A third node reads, so that nothing orders its reads against the writes.
                let mut seen = Vec::new();
                for round in 0..200 {
                    seen.push(b.mr.buf.atomic_u64(0));
                    c.done(Wr::write(round, d.mr.remote(0)).sge(c.mr.at(0, 8)));
                }
                seen
            });
            for round in 0..400_usize {
                a.done(atomic_write(&a, 1, b.mr.remote(0), values[round % 2]));
            }
            seen.join().unwrap()
        })
    };
    assert!(reader.iter().all(|seen| values.contains(seen)), "{reader:x?}");
    Ok(())
}

fn flushers(dut: &TestDevice) -> Result<NodeOptions, Skip> {
    has(dut, HAS_GLOBAL_FLUSH, "flush")?;
    Ok(NodeOptions::rc(Flavour::Extended).set(|options| {
        options.more_ops = Ops::IBV_QP_EX_WITH_FLUSH;
        options.region |= MAY_FLUSH;
        options.access |= MAY_FLUSH;
    }))
}

/// "Global visibility": every reader sees the data that was written.
fn a_range_is_flushed(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &flushers(dut)?);
    a.mr.buf.set(0, &pattern(2, 5000));
    let write = Wr::write(1, b.mr.remote(100)).sge(a.mr.at(0, 5000)).quiet();
    a.qp.post(&[write, Wr::flush(2, b.mr.remote(100), 5000, GLOBAL, RANGE)]).unwrap();
    let wc = a.send_cq.ok();
    assert_eq!((wc.id, wc.opcode), (2, WcOpcode::IBV_WC_FLUSH));
    assert_eq!(b.mr.buf.get(100, 5000), pattern(2, 5000));
    Ok(())
}

/// The length is ignored if the whole region is flushed.
fn a_region_is_flushed(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &flushers(dut)?);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 64)));
    a.done(Wr::flush(2, b.mr.remote(0), 0, GLOBAL, REGION));
    a.done(Wr::flush(3, b.mr.remote(64), 1 << 30, GLOBAL, REGION));
    Ok(())
}

fn a_flush_needs_the_regions_permission(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &flushers(dut)?.set(|options| options.region = EVERYTHING));
    let status = a.fails(Wr::flush(1, b.mr.remote(0), 64, GLOBAL, RANGE));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

fn a_flush_needs_the_pairs_permission(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &flushers(dut)?.set(|options| options.access = EVERYTHING));
    let status = a.fails(Wr::flush(1, b.mr.remote(0), 64, GLOBAL, RANGE));
    assert!([Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_REM_INV_REQ_ERR].contains(&status), "{status:?}");
    Ok(())
}

fn a_flush_ends_with_the_region(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &flushers(dut)?);
    let status = a.fails(Wr::flush(1, b.mr.remote(64), b.mr.len() as u64, GLOBAL, RANGE));
    assert_eq!(status, Status::IBV_WC_REM_ACCESS_ERR);
    Ok(())
}

/// An undefined placement type and an undefined selectivity level.
fn a_flush_of_another_kind_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("takes any placement type and selectivity level")?;
    for (placement, level) in [(0, RANGE), (GLOBAL, 9)] {
        let (a, b) = pair(dut, &flushers(dut)?);
        match a.qp.post(&[Wr::flush(1, b.mr.remote(0), 64, placement, level)]) {
            Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_REM_INV_REQ_ERR),
            Err((error, _)) => assert_eq!(error, EINVAL),
        }
    }
    Ok(())
}

/// `struct ibv_send_wr` has no fields for a flush.
fn a_flush_has_no_classic_request(dut: &TestDevice) -> Outcome {
    dut.not_softroce("posts a classic flush of nothing")?;
    let options = flushers(dut)?.set(|options| options.flavour = Flavour::Classic);
    let (a, b) = pair(dut, &options);
    assert_eq!(a.qp.post(&[Wr::flush(1, b.mr.remote(0), 64, GLOBAL, RANGE)]), Err((EINVAL, 0)));
    Ok(())
}

/// A device without persistent memory must not promise that flushed data survives a power failure.
fn persistence_that_is_not_there_is_not_granted(dut: &TestDevice) -> Outcome {
    if capabilities(dut) & HAS_PERSISTENT_FLUSH != 0 {
        skip!("{} has persistent memory", dut.name);
    }
    let pd = dut.open().pd();
    let access = EVERYTHING | Access::IBV_ACCESS_FLUSH_PERSISTENT.0;
    let error = pd.reg(&Buf::new(4096), access).err();
    assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{error:?}");
    Ok(())
}
