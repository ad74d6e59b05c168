//! The modelled devices and wires of several rails: queue pairs, each of which may fail alone.
//!
//! The model is stricter than devices are (a SEND without a receive, or a full queue, fails the
//! test), and has their freedom: requests execute at any time, packets of a queue pair that has
//! failed may still arrive, and completions may be lost with a device.

use super::super::link::RETRIES;
use super::super::memory::{BlockOwner, SimBlock, SimMemory};
use super::super::rng::SimRng;
use crate::protocol::frame::Immediate;
use std::collections::VecDeque;
use std::time::Instant;

/// The operation of a work request.
pub(super) enum Work {
    /// These bytes, with optional immediate data, from this block.
    Send(Vec<u8>, Option<Immediate>, Option<u64>),
    /// `device` is the peer's device at the other end, whose key this is.
    Read {
        addr: u64,
        rkey: u32,
        device: u32,
        len: usize,
    },
    Probe,
}

struct PostedWork {
    id: u64,
    signaled: bool,
    work: Work,
    /// What a READ has brought.
    data: Vec<u8>,
}

/// A completion of the send queue.
pub(super) struct SendCompletion {
    pub(super) id: u64,
    pub(super) data: Vec<u8>,
    pub(super) failed: bool,
}

/// A completion of the receive queue.
pub(super) struct ReceiveCompletion {
    pub(super) block: SimBlock,
    pub(super) len: usize,
    pub(super) immediate: Option<Immediate>,
}

/// How a rail is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Nothing passes until the time given.
    Cut(Instant),
    /// The device of this end fails.
    Fails(usize),
    /// The same, and receives that have completed are lost before the program sees them.
    Dies(usize),
    /// The device of this end executes nothing more, reports nothing, and returns no block.
    Hangs(usize),
}

pub(super) struct SimQp {
    end: usize,
    rail: usize,
    peer: Option<usize>,
    is_alive: bool,
    hangs: bool,
    queue: VecDeque<PostedWork>,
    /// Sent, and not arrived.
    flying: VecDeque<PostedWork>,
    /// Arrived, and not acknowledged.
    arrived: VecDeque<PostedWork>,
    /// Packets of a failed queue pair that are still on the way.
    late: VecDeque<(Vec<u8>, Option<Immediate>)>,
    sent: VecDeque<SendCompletion>,
    receives: VecDeque<SimBlock>,
    received: VecDeque<ReceiveCompletion>,
    waiting_since: Option<Instant>,
}

/// All queue pairs of a run; destroyed ones stay in the list.
pub(super) struct Fabric {
    qps: Vec<SimQp>,
    memories: [SimMemory; 2],
    /// Until when each rail's wire is cut.
    cuts: Vec<Option<Instant>>,
    pub(super) depth: usize,
    pub(super) receive_depth: usize,
    pub(super) reads: usize,
    /// SENDs that arrived late, from a queue pair that had failed.
    pub(super) late_arrivals: u64,
    pub(super) delivered: u64,
}

impl Fabric {
    pub(super) fn new(rails: usize, memories: [SimMemory; 2]) -> Self {
        Self {
            qps: Vec::new(),
            memories,
            cuts: vec![None; rails],
            depth: 0,
            receive_depth: 0,
            reads: 0,
            late_arrivals: 0,
            delivered: 0,
        }
    }

    pub(super) fn create(&mut self, end: usize, rail: usize) -> usize {
        self.qps.push(SimQp {
            end,
            rail,
            peer: None,
            is_alive: true,
            hangs: false,
            queue: VecDeque::new(),
            flying: VecDeque::new(),
            arrived: VecDeque::new(),
            late: VecDeque::new(),
            sent: VecDeque::new(),
            receives: VecDeque::new(),
            received: VecDeque::new(),
            waiting_since: None,
        });
        self.qps.len() - 1
    }

    pub(super) fn connect(&mut self, qp: usize, peer: usize) {
        self.qps[qp].peer = Some(peer);
    }

    pub(super) fn post_receive(&mut self, qp: usize, block: SimBlock) {
        let most = self.receive_depth;
        let qp = &mut self.qps[qp];
        assert!(qp.receives.len() + qp.received.len() < most, "the receive queue overflows");
        block.set_owner(BlockOwner::Receiving);
        qp.receives.push_back(block);
    }

    /// The posted receives that nothing has used.
    pub(super) fn receives(&self, qp: usize) -> usize {
        self.qps[qp].receives.len()
    }

    pub(super) fn post(&mut self, qp: usize, id: u64, signaled: bool, work: Work) {
        let (depth, reads) = (self.depth, self.reads);
        let qp = &mut self.qps[qp];
        let outstanding = || qp.queue.iter().chain(&qp.flying).chain(&qp.arrived);
        assert!(outstanding().count() < depth, "I11: a send queue overflows");
        let is_read = |work: &Work| matches!(work, Work::Read { .. });
        let under_way = outstanding().filter(|posted| is_read(&posted.work)).count();
        assert!(!is_read(&work) || under_way < reads, "I11: {under_way} READs, and one more");
        assert!(qp.peer.is_some(), "a request is posted before the queue pair is connected");
        qp.queue.push_back(PostedWork { id, signaled, work, data: Vec::new() });
    }

    pub(super) fn disturb(&mut self, rail: usize, how: Disturbance) {
        let of = |qps: &[SimQp], end| {
            qps.iter().rposition(|qp| qp.rail == rail && qp.end == end && qp.is_alive && qp.peer.is_some())
        };
        match how {
            Disturbance::Cut(until) => self.cuts[rail] = Some(until),
            Disturbance::Fails(end) => {
                if let Some(qp) = of(&self.qps, end) {
                    self.fail(qp);
                }
            }
            Disturbance::Dies(end) => {
                if let Some(qp) = of(&self.qps, end) {
                    let qp = &mut self.qps[qp];
                    let lost: Vec<_> = qp.received.drain(..).map(|lost| lost.block).collect();
                    lost.into_iter().rev().for_each(|block| qp.receives.push_front(block));
                }
                self.disturb(rail, Disturbance::Fails(end));
            }
            Disturbance::Hangs(end) => {
                if let Some(qp) = of(&self.qps, end) {
                    self.qps[qp].hangs = true;
                }
            }
        }
    }

    /// The queue pair goes to the error state: requests are flushed, unless the device hangs.
    pub(super) fn fail(&mut self, qp: usize) {
        let qp = &mut self.qps[qp];
        if !std::mem::replace(&mut qp.is_alive, false) || qp.hangs {
            return;
        }
        for posted in qp.flying.iter() {
            if let Work::Send(bytes, immediate, _) = &posted.work {
                qp.late.push_back((bytes.clone(), *immediate));
            }
        }
        let all = qp.arrived.drain(..).chain(qp.flying.drain(..)).chain(qp.queue.drain(..));
        qp.sent.extend(all.map(|posted| SendCompletion { id: posted.id, data: Vec::new(), failed: true }));
    }

    /// Whether the device reports the queue pair's error by flushing its receives.
    pub(super) fn flushes_receives(&self, qp: usize) -> bool {
        let qp = &self.qps[qp];
        !qp.is_alive && !qp.hangs && qp.received.is_empty() && !qp.receives.is_empty()
    }

    /// The receives that a failed queue pair gives back.
    pub(super) fn take_receives(&mut self, qp: usize) -> Vec<SimBlock> {
        let qp = &mut self.qps[qp];
        let receives: Vec<_> = qp.receives.drain(..).chain(qp.received.drain(..).map(|r| r.block)).collect();
        receives.iter().for_each(|block| block.set_owner(BlockOwner::Local));
        receives
    }

    pub(super) fn poll_sent(&mut self, qp: usize) -> Option<SendCompletion> {
        self.qps[qp].sent.pop_front()
    }

    pub(super) fn poll_received(&mut self, qp: usize) -> Option<ReceiveCompletion> {
        let received = self.qps[qp].received.pop_front()?;
        received.block.set_owner(BlockOwner::Local);
        Some(received)
    }

    /// The time of the next timeout of a device, or of the end of a cut.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let timeouts = self.qps.iter().filter(|qp| qp.is_alive && !qp.hangs);
        let timeouts = timeouts.filter_map(|qp| qp.waiting_since.map(|since| since + RETRIES));
        timeouts.chain(self.cuts.iter().flatten().copied()).min()
    }

    /// One random step of a random queue pair. Returns whether anything happened.
    pub(super) fn step(&mut self, now: Instant, rng: &mut SimRng) -> bool {
        for cut in &mut self.cuts {
            if cut.is_some_and(|until| now >= until) {
                *cut = None;
            }
        }
        let first = rng.within(0..self.qps.len());
        let count = self.qps.len();
        (0..count).any(|more| self.step_of((first + more) % count, now, rng))
    }

    fn step_of(&mut self, at: usize, now: Instant, rng: &mut SimRng) -> bool {
        let qp = &self.qps[at];
        let Some(peer) = qp.peer else { return false };
        let is_cut = self.cuts[qp.rail].is_some();
        let answers = !is_cut && self.qps[peer].is_alive && !self.qps[peer].hangs;
        if !qp.is_alive || qp.hangs {
            return !is_cut && self.deliver_late(at, peer, rng);
        }
        if !answers {
            if qp.queue.is_empty() && qp.flying.is_empty() && qp.arrived.is_empty() {
                return false;
            }
            let since = *self.qps[at].waiting_since.get_or_insert(now);
            if now >= since + RETRIES {
                self.fail(at);
                return true;
            }
            return false;
        }
        self.qps[at].waiting_since = None;
        let qp = &mut self.qps[at];
        let has = [!qp.arrived.is_empty(), !qp.flying.is_empty(), !qp.queue.is_empty()];
        match rng.within(0..3) {
            0 if has[0] => self.acknowledge(at),
            1 if has[1] => self.deliver(at, peer),
            _ if has[2] => qp.flying.extend(qp.queue.pop_front()),
            _ if has[1] => self.deliver(at, peer),
            _ if has[0] => self.acknowledge(at),
            _ => return false,
        }
        true
    }

    fn acknowledge(&mut self, at: usize) {
        let qp = &mut self.qps[at];
        let Some(posted) = qp.arrived.pop_front() else { return };
        if posted.signaled {
            qp.sent.push_back(SendCompletion { id: posted.id, data: posted.data, failed: false });
        }
    }

    fn deliver(&mut self, at: usize, peer: usize) {
        let Some(mut posted) = self.qps[at].flying.pop_front() else { return };
        match &posted.work {
            Work::Probe => {}
            Work::Send(bytes, immediate, block) => {
                if let Some(block) = block {
                    let end = self.qps[at].end;
                    assert!(
                        self.memories[end].is_sending(*block),
                        "I10: block {block} is not posted any more"
                    );
                }
                self.receive(peer, bytes, *immediate);
            }
            Work::Read { addr, rkey, device, len } => {
                let memory = &self.memories[self.qps[peer].end];
                let bytes = memory.remote_read(*addr, rkey.wrapping_sub(*device), *len);
                posted.data = bytes.unwrap_or_else(|why| panic!("I10/I17: {why}"));
            }
        }
        self.qps[at].arrived.push_back(posted);
    }

    fn receive(&mut self, peer: usize, bytes: &[u8], immediate: Option<Immediate>) {
        let rail = self.qps[peer].rail;
        let mut block = self.qps[peer].receives.pop_front().unwrap_or_else(|| {
            panic!("I1: a SEND of {} bytes over rail {rail}, and no receive (RNR)", bytes.len())
        });
        assert!(bytes.len() <= block.len(), "{} bytes into {}", bytes.len(), block.len());
        block.device_write(0, bytes);
        self.qps[peer].received.push_back(ReceiveCompletion { block, len: bytes.len(), immediate });
        self.delivered += 1;
    }

    /// A packet of a queue pair that has failed arrives, if the peer's is still there.
    fn deliver_late(&mut self, at: usize, peer: usize, rng: &mut SimRng) -> bool {
        if self.qps[at].late.is_empty() {
            return false;
        }
        if !self.qps[peer].is_alive || rng.one_in(4) {
            self.qps[at].late.clear();
            return false;
        }
        if let Some((bytes, immediate)) = self.qps[at].late.pop_front() {
            self.receive(peer, &bytes, immediate);
            self.late_arrivals += 1;
        }
        true
    }
}
