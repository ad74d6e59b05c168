//! The modelled reliable connection: two queue pairs and the wire between them.
//!
//! The model is stricter than a device. A SEND that finds no posted receive fails the test, where a
//! device would answer RNR and try again. A work request that exceeds its queue fails the test,
//! too. The model also has all freedom of a device: chance decides when a work request executes; a
//! READ may proceed byte by byte; completions wait for any time; and the two completion queues are
//! independent.

use super::memory::{BlockOwner, SimBlock, SimMemory};
use super::rng::SimRng;
use crate::protocol::frame::Immediate;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time for which a device retries a peer that does not answer.
pub(super) const RETRIES: Duration = Duration::from_millis(536);

/// The operation of a work request.
pub(super) enum DeviceWork {
    /// Sends these bytes to a receive of the peer, with optional immediate data. The last field
    /// lists the blocks with the bytes.
    Send(Vec<u8>, Option<Immediate>, Vec<u64>),
    /// Reads `len` bytes of the peer's memory.
    Read { addr: u64, rkey: u32, len: usize },
    /// A zero-length WRITE, which only proves that the peer answers.
    Probe,
}

/// A work request in the send queue.
struct PostedWork {
    id: u64,
    signaled: bool,
    work: DeviceWork,
    /// The bytes that a READ has fetched so far.
    data: Vec<u8>,
}

/// A completion of the send queue.
#[derive(Debug)]
pub(super) struct SendCompletion {
    pub(super) id: u64,
    /// The bytes that a READ has fetched.
    pub(super) data: Vec<u8>,
    pub(super) failed: bool,
}

/// A completion of the receive queue.
pub(super) struct ReceiveCompletion {
    pub(super) block: SimBlock,
    pub(super) len: usize,
    pub(super) immediate: Option<Immediate>,
}

/// The queues of one end.
#[derive(Default)]
struct QueuePair {
    queue: VecDeque<PostedWork>,
    /// The number of requests at the front of `queue` that are executed, but not completed.
    executed: usize,
    /// The number of completed requests whose completion the program has not seen.
    unseen: usize,
    sent: VecDeque<(SendCompletion, usize)>,
    receives: VecDeque<SimBlock>,
    received: VecDeque<ReceiveCompletion>,
    /// The time since which the front request waits for an unresponsive peer.
    waiting_since: Option<Instant>,
    failed: bool,
    gone: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct QueueDepths {
    pub(super) send: usize,
    pub(super) receive: [usize; 2],
    pub(super) reads: usize,
}

/// Two connected queue pairs.
pub(super) struct RcLink {
    ends: [QueuePair; 2],
    depths: QueueDepths,
    memories: [SimMemory; 2],
    cut: bool,
    /// The devices retry for ever, and report nothing.
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

    /// The number of posted receives that are not consumed.
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

    /// Whether no send is posted and no completion waits.
    pub(super) fn is_idle(&self, end: usize) -> bool {
        let pair = &self.ends[end];
        pair.executed == pair.queue.len() && pair.sent.is_empty() && pair.received.is_empty()
    }

    /// Lets the device of `end` make one step; returns `false` if it has nothing to do.
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

    /// The time when the device gives up on its peer, if it waits for one.
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

    /// Executes the first request that is not executed, or a part of it.
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

    /// Checks a SEND's source. A device may read it this late, and again after a loss, so its
    /// blocks must still be in place.
    fn check_source(&self, end: usize, at: usize) {
        let Some(PostedWork { work: DeviceWork::Send(.., blocks), .. }) = self.ends[end].queue.get(at) else {
            return;
        };
        for id in blocks {
            assert!(
                self.memories[end].is_sending(*id),
                "I10: {end}: a frame is in flight, but its block {id} is no longer posted"
            );
        }
    }

    fn pair_of(&mut self, end: usize) -> (&mut QueuePair, &mut QueuePair) {
        let [a, b] = &mut self.ends;
        if end == 0 { (a, b) } else { (b, a) }
    }

    /// Completes some of the executed requests.
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

    /// Repeats a READ whose response was lost, possibly after later SENDs have arrived. Therefore
    /// the READ's source must stay unchanged until the READ completes.
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

    /// Moves the queue pair of `end` to the error state: all posted requests complete with an
    /// error.
    pub(super) fn fail(&mut self, end: usize) {
        let pair = &mut self.ends[end];
        pair.failed = true;
        pair.executed = 0;
        while !pair.queue.is_empty() {
            pair.complete(true);
        }
    }

    /// Kills `end`: its memory and queues vanish without a message.
    pub(super) fn kill(&mut self, end: usize) {
        self.destroy(end);
        self.ends[end].gone = true;
    }

    /// Cuts the link: nothing passes any more.
    pub(super) fn cut(&mut self) {
        self.cut = true;
    }

    /// Cuts the link, and the devices do not report it.
    pub(super) fn cut_silently(&mut self) {
        (self.cut, self.mute) = (true, true);
    }

    /// The state of the link, for a failure message.
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

    /// `ibv_poll_cq` of the send queue, for one completion.
    pub(super) fn poll_sent(&mut self, end: usize) -> Option<SendCompletion> {
        let pair = &mut self.ends[end];
        let (done, freed) = pair.sent.pop_front()?;
        pair.unseen -= freed;
        Some(done)
    }

    /// `ibv_poll_cq` of the receive queue, for one completion.
    pub(super) fn poll_received(&mut self, end: usize) -> Option<ReceiveCompletion> {
        let received = self.ends[end].received.pop_front()?;
        received.block.set_owner(BlockOwner::Local);
        Some(received)
    }

    /// `ibv_destroy_qp`: the device accesses nothing any more.
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
    /// Completes the front request. An unsignaled one is only counted: its place becomes free when
    /// the program sees a later completion.
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
