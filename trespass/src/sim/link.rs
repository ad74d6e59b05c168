//! The modelled reliable connection: two queue pairs and the wire between them.
//!
//! It is stricter than a device. A SEND that finds no receive posted is a failure of the test (a
//! device would say RNR and try again), and so is one work request too many in a queue. It is also as
//! free as a device may be: work is carried out when chance says so, a READ byte by byte, completions
//! wait in their queues for any time and the two queues know nothing of each other.

use super::memory::{BlockOwner, SimBlock, SimMemory};
use super::rng::SimRng;
use crate::protocol::frame::Immediate;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a device tries to reach a peer that does not answer.
pub(super) const RETRIES: Duration = Duration::from_millis(536);

/// What a work request asks of the device.
pub(super) enum DeviceWork {
    /// These bytes to a receive of the peer, with immediate data if there is any; and the blocks in which they lie.
    Send(Vec<u8>, Option<Immediate>, Vec<u64>),
    /// So many bytes of the peer's memory.
    Read { addr: u64, rkey: u32, len: usize },
    /// Nothing to nowhere: it only proves the way (a zero-length WRITE).
    Probe,
}

/// A work request in the send queue.
struct PostedWork {
    id: u64,
    signaled: bool,
    work: DeviceWork,
    /// What a READ has brought so far.
    data: Vec<u8>,
}

/// A completion of the send queue.
#[derive(Debug)]
pub(super) struct SendCompletion {
    pub(super) id: u64,
    /// What a READ has brought.
    pub(super) data: Vec<u8>,
    pub(super) failed: bool,
}

/// A completion of the receive queue.
pub(super) struct ReceiveCompletion {
    pub(super) block: SimBlock,
    pub(super) len: usize,
    pub(super) immediate: Option<Immediate>,
}

/// One end's queues.
#[derive(Default)]
struct QueuePair {
    queue: VecDeque<PostedWork>,
    /// So many at the front of `queue` are carried out, but not completed.
    executed: usize,
    /// So many before the front are completed, but the program has not seen the completion.
    unseen: usize,
    sent: VecDeque<(SendCompletion, usize)>,
    receives: VecDeque<SimBlock>,
    received: VecDeque<ReceiveCompletion>,
    /// Since when the front of the queue waits for a peer that does not answer.
    waiting_since: Option<Instant>,
    failed: bool,
    gone: bool,
}

/// How deep the queues are.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueDepths {
    pub(super) send: usize,
    pub(super) receive: [usize; 2],
    pub(super) reads: usize,
}

/// Two queue pairs, connected.
pub(super) struct RcLink {
    ends: [QueuePair; 2],
    depths: QueueDepths,
    memories: [SimMemory; 2],
    cut: bool,
    /// The devices try for ever, and tell nothing.
    mute: bool,
    pub(super) delivered: u64,
}

impl RcLink {
    pub(super) fn new(depths: QueueDepths, memories: [SimMemory; 2]) -> Self {
        Self { ends: Default::default(), depths, memories, cut: false, mute: false, delivered: 0 }
    }

    /// `ibv_post_recv`.
    pub(super) fn post_receive(&mut self, end: usize, block: SimBlock) {
        let posted = self.ends[end].receives.len() + self.ends[end].received.len();
        assert!(posted < self.depths.receive[end], "receive queue of {end} overflows: {posted} posted");
        block.set_owner(BlockOwner::Receiving);
        self.ends[end].receives.push_back(block);
    }

    /// Receives posted and not consumed.
    pub(super) fn receives(&self, end: usize) -> usize {
        self.ends[end].receives.len()
    }

    /// `ibv_wr_complete` of one work request.
    pub(super) fn post(&mut self, end: usize, id: u64, signaled: bool, work: DeviceWork) {
        let pair = &mut self.ends[end];
        let posted = pair.queue.len() + pair.unseen;
        assert!(posted < self.depths.send, "I11: send queue of {end} overflows: {posted} posted");
        let reads = pair.queue.iter().filter(|posted| matches!(posted.work, DeviceWork::Read { .. })).count();
        if matches!(work, DeviceWork::Read { .. }) {
            assert!(reads < self.depths.reads, "I11: {end} has {reads} READs outstanding and posts one more");
        }
        pair.queue.push_back(PostedWork { id, signaled, work, data: Vec::new() });
    }

    /// Nothing is posted to be sent and no completion waits.
    pub(super) fn is_idle(&self, end: usize) -> bool {
        let pair = &self.ends[end];
        pair.executed == pair.queue.len() && pair.sent.is_empty() && pair.received.is_empty()
    }

    /// The device of `end` does a little of what it may do now. False: there was nothing to do.
    pub(super) fn step(&mut self, end: usize, now: Instant, rng: &mut SimRng) -> bool {
        if self.ends[end].failed || self.ends[end].gone {
            return false;
        }
        let acknowledged = self.acknowledge(end, rng);
        let pair = &self.ends[end];
        if pair.executed == pair.queue.len() {
            return acknowledged;
        }
        if self.cut || self.ends[1 - end].failed || self.ends[1 - end].gone {
            return self.wait_for_peer(end, now) || acknowledged;
        }
        self.execute(end, rng);
        true
    }

    /// When the device gives up on its peer, if it waits for one.
    pub(super) fn gives_up_at(&self, end: usize) -> Option<Instant> {
        let pair = &self.ends[end];
        pair.waiting_since.filter(|_| !pair.failed && !pair.gone && !self.mute).map(|since| since + RETRIES)
    }

    fn wait_for_peer(&mut self, end: usize, now: Instant) -> bool {
        let since = *self.ends[end].waiting_since.get_or_insert(now);
        if now >= since + RETRIES && !self.mute {
            self.fail(end);
            return true;
        }
        false
    }

    /// Carries out the first that is not, or a part of it.
    fn execute(&mut self, end: usize, rng: &mut SimRng) {
        self.ends[end].waiting_since = None;
        self.check_source(end, self.ends[end].executed);
        let (near, far) = self.pair_of(end);
        let first = &mut near.queue[near.executed];
        match &first.work {
            DeviceWork::Probe => {}
            DeviceWork::Send(bytes, immediate, _) => {
                let mut block = far.receives.pop_front().unwrap_or_else(|| {
                    panic!("I1: {end} sends {} bytes and its peer has no receive posted (RNR)", bytes.len())
                });
                assert!(bytes.len() <= block.len(), "{end} sends {} bytes into {}", bytes.len(), block.len());
                block.device_write(0, bytes);
                far.received.push_back(ReceiveCompletion { block, len: bytes.len(), immediate: *immediate });
                self.delivered += 1;
            }
            DeviceWork::Read { addr, rkey, len } => {
                let left = len - first.data.len();
                let (addr, rkey) = (*addr, *rkey);
                let part = if rng.one_in(3) { rng.within(0..left + 1) } else { left };
                let at = addr + first.data.len() as u64;
                match self.memories[1 - end].remote_read(at, rkey, part) {
                    Ok(bytes) => self.ends[end].queue[self.ends[end].executed].data.extend(bytes),
                    Err(why) => panic!("I10/I17: {end}: {why}"),
                }
                if part < left {
                    return;
                }
            }
        }
        self.ends[end].executed += 1;
    }

    /// What is sent is read as late as this, and again if it was lost: its blocks must be where they were.
    fn check_source(&self, end: usize, at: usize) {
        let Some(PostedWork { work: DeviceWork::Send(.., blocks), .. }) = self.ends[end].queue.get(at) else {
            return;
        };
        for id in blocks {
            assert!(
                self.memories[end].is_sending(*id),
                "I10: {end}: a frame is under way, and block {id} is no longer where it lies"
            );
        }
    }

    fn pair_of(&mut self, end: usize) -> (&mut QueuePair, &mut QueuePair) {
        let [a, b] = &mut self.ends;
        if end == 0 { (a, b) } else { (b, a) }
    }

    /// Completes some of what is carried out.
    fn acknowledge(&mut self, end: usize, rng: &mut SimRng) -> bool {
        let pair = &mut self.ends[end];
        if pair.executed == 0 || rng.one_in(3) {
            return false;
        }
        for _ in 0..rng.within(1..pair.executed + 1) {
            self.read_again(end, rng);
            self.check_source(end, 0);
            let pair = &mut self.ends[end];
            pair.executed -= 1;
            pair.complete(false);
        }
        true
    }

    /// A READ's response may be lost, and the READ done once more, also after SENDs that were posted behind it have arrived. So its
    /// source must stand until it is complete.
    fn read_again(&mut self, end: usize, rng: &mut SimRng) {
        let far = &self.ends[1 - end];
        let Some(PostedWork { work: DeviceWork::Read { addr, rkey, len }, .. }) =
            self.ends[end].queue.front()
        else {
            return;
        };
        if self.cut || far.failed || far.gone || rng.one_in(2) {
            return;
        }
        if let Err(why) = self.memories[1 - end].remote_read(*addr, *rkey, *len) {
            panic!("I10/I17: {end}, once more after a lost response: {why}");
        }
    }

    /// The queue pair of `end` goes to the error state: all that is posted completes with an error.
    pub(super) fn fail(&mut self, end: usize) {
        let pair = &mut self.ends[end];
        pair.failed = true;
        pair.executed = 0;
        while !pair.queue.is_empty() {
            pair.complete(true);
        }
    }

    /// `end` is killed: its memory and queues are gone without a word.
    pub(super) fn kill(&mut self, end: usize) {
        self.destroy(end);
        self.ends[end].gone = true;
    }

    /// Nothing passes any more.
    pub(super) fn cut(&mut self) {
        self.cut = true;
    }

    /// The same, and no device says so.
    pub(super) fn cut_silently(&mut self) {
        (self.cut, self.mute) = (true, true);
    }

    /// How things stand, for a failure.
    pub(super) fn state(&self) -> String {
        let end = |pair: &QueuePair| {
            format!(
                "{{queue {}, executed {}, unseen {}, completions {} + {}, receives {}, failed {}}}",
                pair.queue.len(),
                pair.executed,
                pair.unseen,
                pair.sent.len(),
                pair.received.len(),
                pair.receives.len(),
                pair.failed,
            )
        };
        format!("link {} {}", end(&self.ends[0]), end(&self.ends[1]))
    }

    /// `ibv_poll_cq` of the send side, one entry.
    pub(super) fn poll_sent(&mut self, end: usize) -> Option<SendCompletion> {
        let pair = &mut self.ends[end];
        let (done, freed) = pair.sent.pop_front()?;
        pair.unseen -= freed;
        Some(done)
    }

    /// `ibv_poll_cq` of the receive side, one entry.
    pub(super) fn poll_received(&mut self, end: usize) -> Option<ReceiveCompletion> {
        let received = self.ends[end].received.pop_front()?;
        received.block.set_owner(BlockOwner::Local);
        Some(received)
    }

    /// `ibv_destroy_qp`: the device touches nothing any more.
    pub(super) fn destroy(&mut self, end: usize) {
        let pair = &mut self.ends[end];
        pair.failed = true;
        pair.queue.clear();
        pair.sent.clear();
        pair.received.iter().for_each(|received| received.block.set_owner(BlockOwner::Local));
        pair.receives.iter().for_each(|block| block.set_owner(BlockOwner::Local));
        pair.received.clear();
        pair.receives.clear();
    }
}

impl QueuePair {
    /// Completes the front. Without a completion entry it is only counted: its place is free when a
    /// later entry is seen.
    fn complete(&mut self, failed: bool) {
        let Some(posted) = self.queue.pop_front() else { return };
        self.unseen += 1;
        if posted.signaled || failed {
            let freed = self.unseen - self.sent.iter().map(|(_, freed)| freed).sum::<usize>();
            let done = SendCompletion { id: posted.id, data: posted.data, failed };
            self.sent.push_back((done, freed));
        }
    }
}
