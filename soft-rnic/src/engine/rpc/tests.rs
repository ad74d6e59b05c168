//! An owner that is stopped in the middle of a call. The test plays the requester or the owner.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_mummy_sys::types::*;

use super::*;
use crate::queue_pair::xrc::RECEIVER;
use crate::shared::entry::{MrDescriptor, QpDescriptor, SlotsDescriptor};
use crate::shared::generation::GenerationWriter;
use crate::shared::segment::{OWNED, SHARED};
use crate::shared::slot::{Holder, RecvCapacity};
use crate::verbs::bench::*;
use crate::verbs::testing::table;

const QUEUE_PAIR: u32 = 5;
const REGION: u32 = 3;
const KEY: u32 = REGION << 8 | 0x5a;
const PD: u32 = 7;
const AREA: u64 = SHARED.heap as u64 + 8192;
const IOVA: u64 = 0x10000;
/// Longer than the payload that fits into a slot.
const LENGTH: u32 = 600;

const ATOMIC: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
const RETRIES: ibv_wc_status = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;

/// Counts up, because several of these tests take blocks of the same device.
static NEXT_BLOCK: AtomicU32 = AtomicU32::new(500);

/// A queue pair, connected to one in a segment that the test owns.
struct RpcFixture {
    bench: VerbsFixture,
    qp: *mut ibv_qp,
    process: Arc<PeerProcess>,
    slots: SlotsDescriptor,
    _other: std::os::unix::net::UnixStream,
}

impl RpcFixture {
    fn new(qp_type: ibv_qp_type) -> Self {
        let bench = VerbsFixture::new(64);
        let qp = bench.qp(qp_type, ptr::null_mut());
        bench.init(qp);
        let node = Arc::clone(inner(qp).rnic.node());
        let free = |block: &u32| node.own_index(block << 14 | QUEUE_PAIR).is_none();
        let mut blocks = core::iter::repeat_with(|| NEXT_BLOCK.fetch_add(1, Relaxed));
        let block = blocks.find(free).expect("this process has a free block");
        let segment = Segment::create().expect("memory");
        let (process, other) = node.add_peer(block as u16, segment, AREA);
        let qpn = block << 14 | QUEUE_PAIR;
        bench.ready(qp, qpn, |attr| (attr.timeout, attr.retry_cnt) = (10, 1));
        let slots =
            SlotsDescriptor { offset: SHARED.heap as u64, offers: OWNED.heap as u64, count: 2, entries: 1 };
        let fixture = Self { bench, qp, process, slots, _other: other };
        fixture.describe(qpn);
        fixture
    }

    fn describe(&self, qpn: u32) {
        let segment = self.process.segment();
        let region = MrDescriptor {
            iova: IOVA,
            length: 1 << 20,
            pd: PD,
            access: ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
            ..MrDescriptor::default()
        };
        let entry = segment.region(REGION).expect("a small index");
        entry.publish(&mut GenerationWriter::default(), KEY as u8, &region);
        let attributes = inner(self.qp).sending.lock().attributes.clone();
        let descriptor = QpDescriptor {
            qpn,
            dest_qpn: number(self.qp),
            pd: PD,
            qp_type: inner(self.qp).answered_by().0 as u8,
            access: ATOMIC,
            max_dest_rd_atomic: 1,
            port: 1,
            path_mtu: (attributes.path_mtu / 128).trailing_zeros() as u8,
            slots: self.slots,
            link_up: true,
            local_gid: attributes.remote_gid,
            remote_gid: attributes.local_gid,
            ..QpDescriptor::default()
        };
        let slots = self.process.segment().slots(&self.slots).expect("the slots are in the heap");
        for index in 0..slots.count() {
            let slot = segment.slot(&slots, index).expect("it is in the heap");
            let offer = segment.offer(&slots, index).expect("it is in the owner's part");
            let room = RecvCapacity { bytes: 4096, entries: 1 };
            offer.entries[0].store(IOVA, 4096, KEY);
            offer.header.make(1, room);
            slot.header.first.store(IOVA, 4096, KEY);
            slot.header.post(1, room);
        }
        let entry = segment.queue_pair(QUEUE_PAIR).expect("a small index");
        entry.publish(&mut GenerationWriter::default(), ibv_qp_state::IBV_QPS_RTS.0 as u8, &descriptor);
    }

    fn cell(&self) -> &RpcCell {
        let transfer_slot = inner(self.qp).number.index as usize % TRANSFER_SLOTS;
        rpc_cell(self.process.segment(), AREA, transfer_slot).expect("it is in the heap").0
    }

    fn holders(&self) -> [Holder; 2] {
        let slots = self.process.segment().slots(&self.slots).expect("the slots are in the heap");
        let holder = |index| self.process.segment().slot(&slots, index).expect("a slot").header.holder();
        [holder(0), holder(1)]
    }

    /// Posts a message. The owner runs `then` once it has begun to execute the call.
    fn send(&self, wr_id: u64, then: impl Fn(&RpcCell) + Send + Sync) {
        let cell = self.cell();
        let state = &cell.state;
        let (begun, start) = (AtomicBool::new(false), Instant::now());
        let in_time = || start.elapsed() < Duration::from_secs(20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !state.begin() {
                    if !in_time() {
                        return;
                    }
                    std::thread::yield_now();
                }
                then(cell);
                begun.store(true, Ordering::Release);
            });
            assert_eq!(self.bench.send(self.qp, wr_id, LENGTH, |_| {}), 0);
            // If the owner began too late for the first attempt, that attempt was withdrawn.
            let is_over = || matches!(state.phase(), CallPhase::Left | CallPhase::Idle);
            while !(begun.load(Ordering::Acquire) && is_over()) {
                assert!(in_time(), "the owner did not begin in time");
                inner(self.qp).progress();
                std::thread::yield_now();
            }
        });
    }

    fn end(self) {
        assert_eq!(modify(self.qp, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
        inner(self.qp).rnic.node().lose_peer(&self.process);
        destroy(self.qp);
    }
}

const CLAIMED: Holder = Holder::Claimed { peer_id: 1 };

#[test]
#[cfg_attr(miri, ignore = "it depends on real time, and Miri simulates the clock")]
fn begun_call_cannot_be_withdrawn() {
    let fixture = RpcFixture::new(ibv_qp_type::IBV_QPT_RC);
    fixture.send(1, |_| {});
    assert_eq!(fixture.bench.wait_for(1), [(1, RETRIES)]);
    assert_eq!(
        (fixture.holders(), fixture.cell().state.phase()),
        ([CLAIMED, Holder::Posted], CallPhase::Left)
    );
    // Neither the failure nor the reset of the queue pair withdraws the call.
    assert_eq!(modify(fixture.qp, in_state(ibv_qp_state::IBV_QPS_RESET)), 0);
    assert_eq!(
        (fixture.holders(), fixture.cell().state.phase()),
        ([CLAIMED, Holder::Posted], CallPhase::Left)
    );
    fixture.end();
}

#[test]
#[cfg_attr(miri, ignore = "it depends on real time, and Miri simulates the clock")]
fn unreliable_messages_behind_a_stuck_one_are_lost() {
    let fixture = RpcFixture::new(ibv_qp_type::IBV_QPT_UC);
    fixture.send(1, |_| {});
    assert_eq!(fixture.bench.send(fixture.qp, 2, LENGTH, |_| {}), 0);
    assert_eq!(fixture.bench.send(fixture.qp, 3, 8, |_| {}), 0);
    assert_eq!(fixture.bench.wait_for(3), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]);
    // A later receive must not be filled before the one in between.
    assert_eq!(
        (fixture.holders(), fixture.cell().state.phase()),
        ([CLAIMED, Holder::Posted], CallPhase::Left)
    );
    // The owner continues.
    let cell = fixture.cell();
    assert!(!cell.state.answer());
    let claim = Claim::from_word(cell.claim.load(Relaxed), 1).expect("a claim was left");
    let slots = fixture.process.segment().slots(&fixture.slots).expect("the slots are in the heap");
    let slot = fixture.process.segment().slot(&slots, cell.slot.load(Relaxed)).expect("a slot");
    fixture.process.segment().progress(QUEUE_PAIR).expect("an index").set_cursor(cell.slot.load(Relaxed));
    assert!(slot.header.unclaim(claim));
    cell.state.end();
    fixture.send(4, |cell| {
        cell.status.store(DONE, Relaxed);
        assert!(cell.state.answer());
    });
    assert_eq!(fixture.bench.wait_for(1), [(4, SUCCESS)]);
    assert_eq!(fixture.holders(), [Holder::Done { peer_id: 1 }, Holder::Posted]);
    fixture.end();
}

#[test]
fn abandoned_receive_is_posted_again_by_its_owner() {
    const PEER_ID: u16 = 9;
    let bench = VerbsFixture::new(16);
    let srq = bench.srq(4);
    let own = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    let shared = bench.qp(ibv_qp_type::IBV_QPT_RC, srq);
    for (qp, other) in [(own, shared), (shared, own)] {
        bench.init(qp);
        bench.ready(qp, number(other), |_| {});
    }
    assert_eq!((bench.receive(own, 1, 64), bench.receive_shared(srq, 2)), (0, 0));
    let rnic = &inner(own).rnic;
    let node = rnic.node();
    let area = node.heap().alloc(TRANSFER_SLOTS * CALL_CELL).expect("room");
    let (cell, _) = rpc_cell(node.segment(), area.offset, 3).expect("it is in the heap");
    for qp in [own, shared] {
        let descriptor = inner(qp).descriptor();
        let srq = descriptor.srq.checked_sub(1);
        let shared_queue = srq.map(|srq| node.segment().shared_queue(srq).expect("it"));
        let counters = srq.map(|srq| node.segment().counters(srq).expect("it"));
        let slots = shared_queue.map_or(descriptor.slots, |entry| entry.read().expect("it is open").1.slots);
        let slots = node.segment().slots(&slots).expect("the slots are in the heap");
        let header = node.segment().slot(&slots, 0).expect("a slot").header;
        for peer_id in [PEER_ID + 1, PEER_ID] {
            let claim = header.claim(peer_id).expect("it was posted");
            counters.into_iter().for_each(|counters| _ = counters.take_available());
            cell.state.ask();
            assert!(cell.state.begin() && !cell.state.withdraw());
            cell.queue_pair.store(inner(qp).number.index, Relaxed);
            cell.slot.store(0, Relaxed);
            cell.claim.store(claim.to_word(), Relaxed);
            cell.shared_queue.store(descriptor.srq.into(), Relaxed);
            assert!(cell.state.leave());
            if peer_id == PEER_ID {
                // A queue pair in the error state flushes up to the receive that somebody else
                // holds.
                assert_eq!(modify(own, in_state(ibv_qp_state::IBV_QPS_ERR)), 0);
                assert_eq!(bench.results(), []);
            }
            rnic.finish_rpc(PEER_ID, cell, Some(0));
            assert_eq!(cell.state.phase(), CallPhase::Idle);
            let expected = if peer_id == PEER_ID { Holder::Posted } else { Holder::Claimed { peer_id } };
            assert_eq!(header.holder(), expected, "a process can leave only its own claim");
            if peer_id != PEER_ID {
                assert!(header.unclaim(claim));
                counters.into_iter().for_each(|counters| counters.add_available(1));
            }
        }
        if qp == own {
            assert_eq!(bench.results(), [(1, FLUSHED)]);
        }
    }
    destroy(own);
    destroy(shared);
    node.heap().free(area);
    // SAFETY: both queue pairs that used the shared queue are destroyed.
    assert_eq!(unsafe { (table().ibv_destroy_srq)(srq) }, 0);
}

/// The target belongs to one process and the queue to another. That one is asked for the atomic,
/// and stops.
#[test]
#[cfg_attr(miri, ignore = "it depends on real time, and Miri simulates the clock")]
fn stopped_srq_owner_owes_nothing_after_the_request_failed() {
    let fixture = RpcFixture::new(ibv_qp_type::IBV_QPT_XRC_SEND);
    let node = Arc::clone(inner(fixture.qp).rnic.node());
    let block = NEXT_BLOCK.fetch_add(1, Relaxed);
    let (process, _other) = node.add_peer(block as u16, Segment::create().expect("memory"), AREA);
    let (segment, srqn) = (process.segment(), block << 14 | QUEUE_PAIR);
    let access = ATOMIC | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    let region = MrDescriptor { iova: IOVA, length: 4096, pd: PD, access, ..MrDescriptor::default() };
    segment.region(REGION).expect("small").publish(&mut GenerationWriter::default(), KEY as u8, &region);
    let descriptor = QpDescriptor {
        qpn: srqn,
        pd: PD,
        qp_type: RECEIVER.0 as u8,
        link_up: true,
        ..QpDescriptor::default()
    };
    let entry = segment.queue_pair(QUEUE_PAIR).expect("a small index");
    entry.publish(&mut GenerationWriter::default(), ibv_qp_state::IBV_QPS_RTR.0 as u8, &descriptor);

    let transfer_slot = inner(fixture.qp).number.index as usize % TRANSFER_SLOTS;
    let state = &rpc_cell(segment, AREA, transfer_slot).expect("it is in the heap").0.state;
    let (bench, mut begun) = (&fixture.bench, false);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(5);
            while !state.begin() && Instant::now() < until {
                std::thread::yield_now();
            }
        });
        let posted = bench.send(fixture.qp, 1, 8, |wr| {
            wr.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            let (remote_addr, rkey, compare_add, swap) = (IOVA, KEY, 1, 0);
            wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, rkey, compare_add, swap };
            wr.qp_type.xrc.remote_srqn = srqn;
        });
        assert_eq!(posted, 0);
        let failed = bench.wait_for(1);
        begun = state.phase() == CallPhase::Begun;
        owner.join().expect("it ends");
        assert_eq!(failed, [(1, RETRIES)]);
    });
    assert!(begun, "the owner has begun the call");
    // Otherwise no queue pair with this transfer slot could ask that process for anything again.
    assert_eq!(process.pending_atomic(transfer_slot), None);
    node.lose_peer(&process);
    fixture.end();
}

/// Any process can write a call into a cell. Its key must be one that the queue pair serves, with the
/// rights that the operation needs.
#[test]
fn a_call_needs_the_rights_of_its_operation() {
    let bench = VerbsFixture::new(64);
    let qp = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    bench.init(qp);
    let rnic = &inner(qp).rnic;
    let (node, other_pd) = (rnic.node(), bench.opened.pd());
    let area = node.heap().alloc(TRANSFER_SLOTS * CALL_CELL).expect("room");
    let (cell, room) = rpc_cell(node.segment(), area.offset, 0).expect("a cell");
    let through = node.segment().queue_pair(inner(qp).number.index).expect("an entry").read();
    let through = through.expect("it is published").0;
    let memory = Box::into_raw(Box::new([7_u64; 8]));
    let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    for (pd, access, reads, writes) in [
        (bench.pd, local, false, true),
        (bench.pd, local | ibv_access_flags::IBV_ACCESS_REMOTE_READ, true, true),
        (bench.pd, ibv_access_flags::IBV_ACCESS_REMOTE_READ, true, false),
        (other_pd, local | ibv_access_flags::IBV_ACCESS_REMOTE_READ, false, false),
    ] {
        // SAFETY: the memory lives until the end, and both domains are live.
        let mr = unsafe {
            rdma_mummy_sys::verbs::ibv_reg_mr(table(), pd, memory.cast(), 64, access.0 as core::ffi::c_int)
        };
        assert!(!mr.is_null());
        let call = |operation: RpcOperation| {
            cell.operation.store(operation as u32, Relaxed);
            // SAFETY: the region is live.
            cell.key.store(unsafe { (*mr).lkey }, Relaxed);
            cell.queue_pair.store(inner(qp).number.index, Relaxed);
            cell.snapshot.store(through.to_word(), Relaxed);
            cell.address.store(memory.expose_provenance() as u64, Relaxed);
            cell.length.store(64, Relaxed);
            // SAFETY: the first word of the room, which nobody else uses.
            unsafe { room.cast::<u64>().write(9) };
            cell.state.ask();
            rnic.serve_cell(1, area.offset, 0);
            let done = cell.status.load(Relaxed) == DONE;
            cell.state.end();
            // SAFETY: nobody else uses the room or the memory.
            (done, unsafe { (room.cast::<u64>().read(), memory.cast::<u64>().read()) })
        };
        assert_eq!(call(RpcOperation::Read), (reads, (if reads { 7 } else { 9 }, 7)));
        assert_eq!(call(RpcOperation::WriteLast), (writes, (9, if writes { 9 } else { 7 })));
        // SAFETY: no call uses the region or the memory any more.
        unsafe {
            assert_eq!((table().ibv_dereg_mr)(mr), 0);
            memory.cast::<u64>().write(7);
        }
    }
    // SAFETY: it came from a box, and no region contains it any more.
    drop(unsafe { Box::from_raw(memory) });
    destroy(qp);
    node.heap().free(area);
    // SAFETY: no object of the domain is left.
    assert_eq!(unsafe { (table().ibv_dealloc_pd)(other_pd) }, 0);
}

/// The owner's part of a peer's segment has a level that the shared part lacks.
#[test]
#[cfg_attr(miri, ignore = "Miri's segments have one level")]
fn an_owner_whose_parts_differ_is_no_peer() {
    const FAR: u32 = 200;
    let bench = VerbsFixture::new(64);
    let qp = bench.qp(ibv_qp_type::IBV_QPT_RC, ptr::null_mut());
    bench.init(qp);
    let node = Arc::clone(inner(qp).rnic.node());
    let block = NEXT_BLOCK.fetch_add(1, Relaxed);
    let segment = Segment::create().expect("memory");
    segment.grow_owned(2).expect("memory");
    let (process, _other) = node.add_peer(block as u16, segment, AREA);
    let qpn = block << 14 | FAR;
    bench.ready(qp, qpn, |attr| (attr.timeout, attr.retry_cnt) = (10, 1));
    let attributes = inner(qp).sending.lock().attributes.clone();
    let descriptor = QpDescriptor {
        qpn,
        dest_qpn: number(qp),
        pd: PD,
        qp_type: inner(qp).answered_by().0 as u8,
        max_dest_rd_atomic: 1,
        port: 1,
        path_mtu: (attributes.path_mtu / 128).trailing_zeros() as u8,
        link_up: true,
        local_gid: attributes.remote_gid,
        remote_gid: attributes.local_gid,
        ..QpDescriptor::default()
    };
    let entry = process.segment().queue_pair(FAR).expect("the level is there");
    entry.publish(&mut GenerationWriter::default(), ibv_qp_state::IBV_QPS_RTS.0 as u8, &descriptor);
    assert!(process.segment().progress(FAR).is_none());
    assert_eq!(bench.send(qp, 1, 64, |_| {}), 0);
    assert_eq!(bench.wait_for(1), [(1, RETRIES)]);
    node.lose_peer(&process);
    destroy(qp);
}
