//! Tests: requests of every kind to a peer whose segment contains arbitrary data.
//!
//! The invariants: no access outside that segment and the requester's memory, no panic, no endless
//! loop, and one completion for each request. `shared/hostile.rs` generates the data and says how
//! to run the test.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_mummy_sys::types::*;

use super::multicast::GROUP;
use crate::node::{CALL_CELL, PeerProcess};
use crate::queue_pair::xrc::RECEIVER;
use crate::shared::entry::gid_words;
use crate::shared::entry::{
    MembershipDescriptor, MrDescriptor, QpDescriptor, SlotsDescriptor, SrqDescriptor,
};
use crate::shared::generation::GenerationWriter;
use crate::shared::hazard::TRANSFER_SLOTS;
use crate::shared::segment::{MAX_SLOTS, SHARED, Segment};
use crate::shared::slot::RecvCapacity;
use crate::sync::{AtomicU32, Relaxed, Release};
use crate::verbs::bench::{QKEY, VerbsFixture, destroy, in_state, inner, modify, number};
use crate::verbs::testing::table;

/// The arbitrary values that a peer publishes where any value still lets a requester talk to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostilePeer {
    pub(crate) slots: SlotsDescriptor,
    pub(crate) kind: u8,
    pub(crate) index: u16,
    pub(crate) number: u32,
    pub(crate) word: u64,
}

/// How many requests were posted, and how many of them a reliable connection executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostileSends {
    pub(crate) requests: usize,
    pub(crate) done: usize,
}

impl core::ops::AddAssign for HostileSends {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.done += other.done;
    }
}

/// The indices of the peer's objects in its tables.
const QUEUE_PAIR: u32 = 5;
/// The receiver entry of an XRC shared receive queue.
const RECEIVES: u32 = 6;
const SHARED_QUEUE: u32 = 2;
const REGION: u32 = 3;
const KEY: u32 = REGION << 8 | 0x5a;
const PD: u32 = 7;
/// A group without another member.
const GROUP_GID: [u8; 16] = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x66, 0x66];
/// Requests to one queue pair. One failure ends a reliable connection.
const REQUESTS: usize = 3;

const OPERATIONS: [(ibv_wr_opcode, u32); 11] = [
    (ibv_wr_opcode::IBV_WR_SEND, 600),
    (ibv_wr_opcode::IBV_WR_RDMA_WRITE, 8),
    (ibv_wr_opcode::IBV_WR_RDMA_READ, 600),
    (ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, 8),
    (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, 600),
    (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
    (ibv_wr_opcode::IBV_WR_SEND, 0),
    (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, 8),
    (ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0),
    (ibv_wr_opcode::IBV_WR_SEND_WITH_INV, 600),
    (ibv_wr_opcode::IBV_WR_ATOMIC_WRITE, 8),
];

const TYPES: [ibv_qp_type; 4] = [
    ibv_qp_type::IBV_QPT_RC,
    ibv_qp_type::IBV_QPT_UC,
    ibv_qp_type::IBV_QPT_UD,
    ibv_qp_type::IBV_QPT_XRC_SEND,
];

/// Sends to a queue pair of the segment for each hostile peer. Calls `meddle` before each request;
/// it may write anything to the segment.
pub(crate) fn send_into(
    segment: Segment,
    hostile_peers: &[HostilePeer],
    mut meddle: impl FnMut(&Segment),
) -> HostileSends {
    static ONE_PEER: Mutex<()> = Mutex::new(());
    let _one = ONE_PEER.lock().unwrap_or_else(PoisonError::into_inner);
    let bench = VerbsFixture::new(64);
    let any = bench.qp(ibv_qp_type::IBV_QPT_UC, ptr::null_mut());
    let node = Arc::clone(inner(any).rnic.node());
    destroy(any);
    let block = (1..1024).rev().find(|block| node.own_index(block << 14 | QUEUE_PAIR).is_none());
    let block = block.expect("this process has a free block");
    // The area for calls is agreed before the peer can write to the segment, but nothing has
    // checked it.
    let area = match hostile_peers.first().map_or(0, |peer| peer.index % 8) {
        0 => SHARED.heap as u64 + 8,
        1 => u64::MAX - 64,
        _ => SHARED.heap as u64 + 8192,
    };
    let (process, _other) = node.add_peer(block as u16, segment, area);
    let mut sent = HostileSends::default();
    for (at, hostile_peer) in hostile_peers.iter().enumerate() {
        let requester = HostileRequester {
            bench: &bench,
            process: &process,
            hostile_peer,
            qpn: block << 14 | QUEUE_PAIR,
        };
        sent +=
            requester.run(TYPES[(at + usize::from(hostile_peer.kind >> 4)) % TYPES.len()], at, &mut meddle);
    }
    node.lose_peer(&process);
    sent
}

struct HostileRequester<'a> {
    bench: &'a VerbsFixture,
    process: &'a Arc<PeerProcess>,
    hostile_peer: &'a HostilePeer,
    qpn: u32,
}

impl HostileRequester<'_> {
    /// Creates a queue pair, posts its requests and destroys it.
    fn run(&self, qp_type: ibv_qp_type, first: usize, meddle: &mut impl FnMut(&Segment)) -> HostileSends {
        let (bench, segment) = (self.bench, self.process.segment());
        let qp = bench.qp(qp_type, ptr::null_mut());
        bench.init(qp);
        bench.ready(qp, self.qpn, |attr| (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (1, 1, 1));
        let mut attr = bench.ah_attr();
        if self.to_group() {
            attr.grh.dgid = ibv_gid { raw: GROUP_GID };
        }
        // SAFETY: the domain lives until `bench` is dropped.
        let ah = unsafe { (table().ibv_create_ah)(bench.pd, &raw mut attr) };
        self.describe(qp);
        let (mut sent, mut completed) = (0, Vec::new());
        for request in 0..REQUESTS {
            let (opcode, length) = OPERATIONS[(first * REQUESTS + request) % OPERATIONS.len()];
            let sends = [ibv_wr_opcode::IBV_WR_SEND, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM].contains(&opcode);
            let opcode = if qp_type == ibv_qp_type::IBV_QPT_UD && !sends {
                ibv_wr_opcode::IBV_WR_SEND
            } else {
                opcode
            };
            let posted = bench.send(qp, 1, length, |wr| {
                self.address(wr, opcode, ah);
                wr.qp_type.xrc.remote_srqn = self.srqn();
            });
            sent += usize::from(posted == 0);
            completed.extend(bench.results());
            meddle(segment);
            self.answer(qp);
            completed.extend(bench.results());
            inner(qp).rnic.node().run_timers();
        }
        assert_eq!(modify(qp, in_state(ibv_qp_state::IBV_QPS_ERR)), 0);
        completed.extend(bench.results());
        assert_eq!(completed.len(), sent, "every request completes once");
        assert_eq!(bench.poll().len(), 0);
        let reliable = inner(qp).is_reliable();
        destroy(qp);
        // SAFETY: every request that used the address handle has completed.
        assert_eq!(unsafe { (table().ibv_destroy_ah)(ah) }, 0);
        let done = completed.iter().filter(|result| result.1 == ibv_wc_status::IBV_WC_SUCCESS).count();
        HostileSends { requests: sent, done: if reliable { done } else { 0 } }
    }

    fn address(&self, wr: &mut ibv_send_wr, opcode: ibv_wr_opcode, ah: *mut ibv_ah) {
        let (remote_addr, rkey) = (self.iova(), KEY);
        wr.opcode = opcode;
        match opcode {
            ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
                let remote_qpn = if self.to_group() { GROUP } else { self.qpn };
                let remote_qkey = QKEY;
                wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn, remote_qkey };
            }
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD | ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
                let (compare_add, swap) = (1, 2);
                wr.wr.atomic =
                    ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, rkey, compare_add, swap };
            }
            _ => wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
        }
    }

    /// Whether datagrams go to a group that the peer claims to be in.
    fn to_group(&self) -> bool {
        self.hostile_peer.index & 1 != 0
    }

    /// The number of an XRC queue: usually the peer's, sometimes arbitrary.
    fn srqn(&self) -> u32 {
        if self.hostile_peer.index % 8 == 5 {
            self.hostile_peer.number
        } else {
            self.qpn - QUEUE_PAIR + RECEIVES
        }
    }

    /// The start of the peer's region in requests, sometimes just below the end of the address
    /// space.
    fn iova(&self) -> u64 {
        match self.hostile_peer.kind & 3 {
            0 => 0,
            1 => u64::MAX - 63,
            _ => self.hostile_peer.word & !7,
        }
    }

    /// Publishes the minimum that a requester needs: a queue pair with the right numbers, and
    /// receives. The rest is hostile.
    fn describe(&self, qp: *mut ibv_qp) {
        let HostilePeer { slots, kind, index, number: word32, word } = *self.hostile_peer;
        // A requester rejects too many slots at once, so half of the time the count is valid and
        // the lie is elsewhere.
        let count = if kind & 32 == 0 { slots.count % MAX_SLOTS } else { slots.count };
        let slots = SlotsDescriptor { count, ..slots };
        let segment = self.process.segment();
        let attributes = inner(qp).sending.lock().attributes.clone();
        let mut writer = GenerationWriter::default();
        let region = MrDescriptor {
            iova: self.iova(),
            length: if kind & 4 == 0 { u64::MAX } else { word32.into() },
            address: word,
            pd: PD,
            access: u32::MAX,
            export: if kind & 8 == 0 { 0 } else { word32 },
            export_epoch: word32,
        };
        segment.region(REGION).expect("a small index").publish(&mut writer, KEY as u8, &region);
        let descriptor = QpDescriptor {
            qpn: self.qpn,
            dest_qpn: number(qp),
            pd: PD,
            access: u32::MAX,
            qp_type: inner(qp).answered_by().0 as u8,
            port: 1,
            path_mtu: if kind & 16 == 0 { (attributes.path_mtu / 128).trailing_zeros() as u8 } else { kind },
            min_rnr_timer: 1,
            max_dest_rd_atomic: 1,
            qkey: QKEY,
            slots,
            srq: [0, SHARED_QUEUE + 1, 0, word32][usize::from(kind >> 2 & 3)],
            ring_words: 1 << (index % 32),
            ring_offset: slots.offset ^ u64::from(kind) << 3,
            // A requester takes no peer whose queue's entry is missing.
            recv_cq: if kind & 2 == 0 { word32 % 32 } else { word32 },
            source: word as u32,
            connection: word32,
            link_up: true,
            local_gid: attributes.remote_gid,
            remote_gid: attributes.local_gid,
            ..QpDescriptor::default()
        };
        let entry = segment.queue_pair(QUEUE_PAIR).expect("a small index");
        let progress = segment.progress(QUEUE_PAIR).expect("a small index");
        progress.set_expected_psn(0);
        progress.set_cursor(word as u32);
        entry.publish(&mut GenerationWriter::default(), ibv_qp_state::IBV_QPS_RTS.0 as u8, &descriptor);
        let receives = QpDescriptor {
            qpn: self.qpn - QUEUE_PAIR + RECEIVES,
            qp_type: if kind & 2 == 0 { RECEIVER.0 as u8 } else { kind },
            srq: [SHARED_QUEUE + 1, word32][usize::from(kind >> 3 & 1)],
            xrcd: [u64::from(kind >> 6), 0],
            ..descriptor
        };
        let entry = segment.queue_pair(RECEIVES).expect("a small index");
        entry.publish(&mut GenerationWriter::default(), ibv_qp_state::IBV_QPS_RTR.0 as u8, &receives);
        let shared = segment.shared_queue(SHARED_QUEUE).expect("a small index");
        let counters = segment.counters(SHARED_QUEUE).expect("a small index");
        counters.set_hint(word as u32);
        counters.add_available(word32 | 1);
        shared.publish(&mut GenerationWriter::default(), 0, &SrqDescriptor { pd: PD, slots });
        segment.owner_header().members.store(if kind & 2 == 0 { 4 } else { word32 }, Relaxed);
        for (entry, (index, qpn)) in
            [(QUEUE_PAIR, self.qpn), (word32, self.qpn), (QUEUE_PAIR, word32)].into_iter().enumerate()
        {
            let descriptor = MembershipDescriptor { gid: gid_words(GROUP_GID), index, qpn };
            let entry = segment.member(entry as u32).expect("a small index");
            entry.publish(&mut GenerationWriter::default(), 0, &descriptor);
        }
        let count = slots.count.clamp(1, MAX_SLOTS);
        for index in (0..4).map(|step| ((word as u32) % count + step) % count) {
            let Some(slots) = segment.slots(&slots) else { continue };
            let (Some(slot), Some(offer)) = (segment.slot(&slots, index), segment.offer(&slots, index))
            else {
                continue;
            };
            let length = if kind & 16 == 0 { 41 } else { word32 };
            let lkey = if kind & 32 == 0 { KEY } else { word32 };
            for (at, entry) in offer.entries.iter().chain([&slot.header.first]).enumerate() {
                entry.store(self.iova().wrapping_add(at as u64), length, lkey);
            }
            let bytes = if kind & 64 == 0 { u32::MAX } else { word32 };
            let room = RecvCapacity { bytes, entries: u32::MAX >> (kind & 31) };
            offer.header.make(word32, room);
            slot.header.post(word32, room);
        }
    }

    /// Marks every call in the peer's cells as done.
    fn answer(&self, qp: *mut ibv_qp) {
        let transfer_slot = inner(qp).number.index as usize % TRANSFER_SLOTS;
        let cell = self.process.call_area().checked_add((transfer_slot * CALL_CELL) as u64);
        let Some(place) = cell.and_then(|cell| self.process.segment().heap(cell, CALL_CELL)) else { return };
        if place.cast::<u64>().is_aligned() {
            // SAFETY: one of the first four words of a cell, which lies inside the segment,
            // aligned. The cell consists of atomics only.
            let word = |at| unsafe { place.cast::<AtomicU32>().add(at).as_ref() };
            word(3).store(u32::from(self.hostile_peer.kind & 128 == 0), Relaxed);
            word(0).store(2, Release);
        }
    }
}
