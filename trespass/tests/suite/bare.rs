//! RDMA READs between two queue pairs, with short WRITEs between them, without trespass.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{GenericCompletionQueue, WorkCompletionStatus};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::queue_pair::{GenericQueuePair, PostSendGuard, QueuePair, WorkRequestFlags};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

/// Bytes of a READ.
const SPAN: usize = 65_536;
/// Requests in one posted list.
const DEPTH: usize = 4;
const ROUNDS: u64 = 40;
/// The devices retransmit without limit.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The parts of an end's memory, several spans each: the peer reads from the first, this end reads
/// into the second, sends from the third, and the peer writes to the last.
#[derive(Clone, Copy)]
enum BufferArea {
    Source,
    Read,
    Written,
    Target,
}

impl BufferArea {
    fn span(self, number: usize) -> usize {
        (self as usize * DEPTH + number) * SPAN
    }
}

struct RawEnd {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    memory: RegisteredBuffer,
    path: LocalPath,
}

/// An end's memory, as its peer addresses it.
#[derive(Clone, Copy)]
struct RemoteBuffer {
    key: u32,
    address: usize,
}

impl RemoteBuffer {
    fn span(self, part: BufferArea, number: usize) -> u64 {
        (self.address + part.span(number)) as u64
    }
}

fn access() -> AccessFlags {
    AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead
}

impl RawEnd {
    fn new(device: &str) -> Self {
        let context = DeviceList::new().unwrap().find(device).unwrap().open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_builder().setup_cqe(256).build_generic().unwrap();
        let mut builder = pd.create_qp_builder();
        builder.setup_max_send_wr(64).setup_max_recv_wr(1).setup_send_cq(&cq).setup_recv_cq(&cq);
        let buffer = Buffer::new(BufferKind::for_device(&context), 4 * DEPTH * SPAN).unwrap();
        let memory = pd.reg_buffer(buffer, access()).unwrap();
        let path = LocalPath::choose(&context, 1, None).unwrap();
        Self { qp: builder.build_generic().unwrap(), cq, memory, path }
    }

    fn place(&self, key: u32) -> RemoteBuffer {
        RemoteBuffer { key, address: self.memory.as_ptr().addr() }
    }

    fn span(&self, part: BufferArea, number: usize) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(part.span(number))
    }

    /// Fills the part that the peer reads with new bytes, and clears the part that receives.
    fn fill(&self, round: u64) {
        for number in 0..DEPTH {
            let bytes = bytes(round, number);
            // SAFETY: both spans are within the memory, and no request of either end is
            // outstanding, because both wait for each other.
            unsafe {
                self.span(BufferArea::Source, number).copy_from_nonoverlapping(bytes.as_ptr(), SPAN);
                self.span(BufferArea::Read, number).write_bytes(0, SPAN);
            }
        }
    }

    /// Posts READs with a WRITE before and after each.
    fn post(&mut self, peer: RemoteBuffer) -> Result<(), String> {
        let own = self.place(self.memory.lkey());
        let mut list = self.qp.start_post_send();
        for number in 0..DEPTH {
            let (target, written) =
                (peer.span(BufferArea::Target, number), own.span(BufferArea::Written, number));
            for is_behind in [false, true] {
                if is_behind {
                    let read = list.construct_wr(number as u64, WorkRequestFlags::Signaled);
                    let read = read.setup_read(peer.key, peer.span(BufferArea::Source, number));
                    // SAFETY: the span is within the memory, which outlives the queue pair's
                    // requests, and no code reads it until the READ has completed.
                    unsafe { read.setup_sge(own.key, own.span(BufferArea::Read, number), SPAN as u32) };
                }
                let write = list.construct_wr(DEPTH as u64, WorkRequestFlags::empty());
                // SAFETY: the span is within the memory, which outlives the queue pair's work, and
                // no code writes to it until the completion.
                unsafe { write.setup_write(peer.key, target).setup_sge(own.key, written, 300) };
            }
        }
        list.post().map_err(|error| error.to_string())
    }

    fn wait(&mut self) -> Result<(), String> {
        let (begin, mut left) = (Instant::now(), DEPTH);
        while left > 0 {
            if begin.elapsed() > TIMEOUT {
                return Err(format!("{left} of {DEPTH} did not complete within {TIMEOUT:?}"));
            }
            let Ok(mut poller) = self.cq.start_poll() else {
                // An emulated processor skips the time in which nothing runs.
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            while let Some(completion) = poller.next() {
                if completion.status() != WorkCompletionStatus::Success {
                    return Err(format!("the first that failed: {}", completion.status()));
                }
                left -= 1;
            }
        }
        Ok(())
    }

    fn check(&self, round: u64) -> Result<(), String> {
        for number in 0..DEPTH {
            let (mut came, sent) = (vec![0; SPAN], bytes(round, number));
            // SAFETY: the span is within the memory, and its READ has completed.
            unsafe { self.span(BufferArea::Read, number).copy_to_nonoverlapping(came.as_mut_ptr(), SPAN) };
            if let Some(at) = (0..SPAN).find(|&at| came[at] != sent[at]) {
                return Err(format!("a READ has completed, and brought other bytes from {at} on"));
            }
        }
        Ok(())
    }

    fn go(&mut self, peer: RemoteBuffer, barrier: &Barrier) -> Result<(), String> {
        let mut result = Ok(());
        for round in 0..ROUNDS {
            self.fill(round);
            barrier.wait();
            result = result.and_then(|()| {
                self.post(peer)?;
                self.wait()?;
                self.check(round).map_err(|error| format!("round {round}: {error}"))
            });
            barrier.wait();
        }
        result
    }
}

fn bytes(round: u64, number: usize) -> Vec<u8> {
    test_harness::bytes(round * DEPTH as u64 + number as u64, SPAN)
}

/// Both ends read the other's memory, with `at_a_time` READs outstanding each. Returns the first
/// error.
pub(crate) fn reads(devices: &[String; 2], at_a_time: u8) -> Result<(), String> {
    let mut ends = devices.each_ref().map(|device| RawEnd::new(device));
    let options = ConnectOptions {
        access_flags: access(),
        max_read_atomic: at_a_time,
        max_dest_read_atomic: at_a_time,
        timeout: 10,
        retry_cnt: 7,
        ..ConnectOptions::default()
    };
    let [here, there] = &mut ends;
    let told = [Endpoint::new(&here.qp, &here.path, 1), Endpoint::new(&there.qp, &there.path, 2)];
    connect(&mut here.qp, &here.path, &told[0], &told[1], &options).map_err(|error| error.to_string())?;
    connect(&mut there.qp, &there.path, &told[1], &told[0], &options).map_err(|error| error.to_string())?;
    let places = [&*here, &*there].map(|end| end.place(end.memory.rkey()));
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let other = scope.spawn(|| there.go(places[0], &barrier));
        let result = here.go(places[1], &barrier);
        result.and(other.join().expect("the other end's thread has failed"))
    })
}
