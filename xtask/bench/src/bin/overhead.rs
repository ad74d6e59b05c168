//! The Rust program that `cargo xtask bench overhead` counts; `c/overhead.c` does the same in C.
//!
//!     overhead extended|classic|message|pool|send-64|send-512 LIST LISTS
//!
//! The process has a reliable connection to itself. LISTS times, it posts LIST (1 or 64) signaled
//! work requests together and polls their completions. They are writes of 8 inline bytes, or for
//! `message` of 64 registered bytes on an extended queue pair. `pool` is `message` with a slice of
//! a pool, which is taken, posted, reclaimed by the completion, and dropped. `send-64` and `send-512`
//! post a receive and a SEND of 64 and 512 registered bytes, and poll both completions.

use std::fmt::Debug;

use anyhow::{Context, Result, bail};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CompletionQueue, ExtendedCompletionQueue, WorkCompletionStatus,
};
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairBuilder, SendOperationFlags, WorkRequestFlags,
};
use sideway::memory::{Buffer, BufferKind, Pool, RegisteredBuffer};

/// The longest list, which is the depth of the queues.
const DEPTH: u32 = 64;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [flavour, list, lists] = words.as_slice() else {
        bail!("usage: overhead extended|classic|message|pool|send-64|send-512 1|64 LISTS")
    };
    let lists: u64 = lists.parse().context("LISTS must be a number")?;
    match (flavour.as_str(), list.as_str()) {
        ("extended", "1") => extended::<1>(lists),
        ("extended", "64") => extended::<64>(lists),
        ("classic", "1") => classic::<1>(lists),
        ("classic", "64") => classic::<64>(lists),
        ("message", "1") => messages(lists),
        ("pool", "1") => pooled(lists),
        ("send-64", "1") => sends(64, lists),
        ("send-512", "1") => sends(512, lists),
        _ => bail!("no such variant: {flavour} {list}"),
    }
}

/// Exits like the C program, because a benchmark has no caller to report to.
#[cold]
#[inline(never)]
fn fail(what: &str, why: &dyn Debug) -> ! {
    eprintln!("{what}: {why:?}");
    std::process::exit(1)
}

/// The objects that both flavours need.
struct BenchDevice {
    context: DeviceContext,
    pd: ProtectionDomain,
    memory: RegisteredBuffer,
}

/// The length of inline messages.
const MESSAGE: usize = 8;

/// A message and its destination.
struct WriteRequest<'a> {
    /// Its position in the list, which identifies its completion.
    wr_id: u64,
    message: &'a [u8; MESSAGE],
    remote: u64,
    rkey: u32,
}

impl BenchDevice {
    fn new() -> Result<Self> {
        let context = DeviceList::new()?.first()?.open()?;
        let pd = context.alloc_pd()?;
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let memory = pd.reg_buffer(Buffer::new(BufferKind::Private, 8192)?, access)?;
        Ok(Self { context, pd, memory })
    }

    /// A list of requests.
    fn works<'a>(&self, messages: &'a [[u8; MESSAGE]]) -> Vec<WriteRequest<'a>> {
        let (remote, rkey) = (self.memory.as_ptr().addr() as u64 + 4096, self.memory.rkey());
        (0..).zip(messages).map(|(wr_id, message)| WriteRequest { wr_id, message, remote, rkey }).collect()
    }

    fn builder(&self, cq: &impl CompletionQueue) -> QueuePairBuilder {
        let mut builder = self.pd.create_qp_builder();
        builder.setup_send_cq(cq).setup_recv_cq(cq).setup_max_send_wr(DEPTH).setup_max_inline_data(64);
        builder.setup_send_ops_flags(SendOperationFlags::Write | SendOperationFlags::Send);
        builder
    }

    fn connect(&self, one: &mut impl QueuePair, other: &mut impl QueuePair) -> Result<()> {
        let path = LocalPath::choose(&self.context, 1, None)?;
        let (here, there) = (Endpoint::new(one, &path, 1), Endpoint::new(other, &path, 2));
        connect(one, &path, &here, &there, &ConnectOptions::default())?;
        connect(other, &path, &there, &here, &ConnectOptions::default())?;
        Ok(())
    }
}

fn extended<const LIST: usize>(lists: u64) -> Result<()> {
    let device = BenchDevice::new()?;
    let mut cq = device.context.create_cq_builder().setup_cqe(DEPTH).build_ex()?;
    let builder = device.builder(&cq);
    let (mut one, mut other) = (builder.build_ex()?, builder.build_ex()?);
    device.connect(&mut one, &mut other)?;
    let messages = vec![[0; MESSAGE]; LIST];
    post_and_poll::<LIST>(&mut one, &mut cq, device.works(&messages).as_slice().try_into()?, lists);
    Ok(())
}

fn classic<const LIST: usize>(lists: u64) -> Result<()> {
    let device = BenchDevice::new()?;
    let mut cq = device.context.create_cq_builder().setup_cqe(DEPTH).setup_poll_batch(16).build()?;
    let builder = device.builder(&cq);
    let (mut one, mut other) = (builder.build()?, builder.build()?);
    device.connect(&mut one, &mut other)?;
    let messages = vec![[0; MESSAGE]; LIST];
    post_and_poll::<LIST>(&mut one, &mut cq, device.works(&messages).as_slice().try_into()?, lists);
    Ok(())
}

/// The part of the program that is counted.
#[inline(never)]
fn post_and_poll<const LIST: usize>(
    qp: &mut impl QueuePair,
    cq: &mut impl PollCq,
    works: &[WriteRequest<'_>; LIST],
    lists: u64,
) {
    for _ in 0..lists {
        post(qp, works);
        cq.poll(LIST as u64);
    }
}

#[inline(always)]
fn post<const LIST: usize>(qp: &mut impl QueuePair, works: &[WriteRequest<'_>; LIST]) {
    let mut list = qp.start_post_send();
    // An index loop as in C: an iterator would add one move instruction for each work request.
    #[expect(clippy::needless_range_loop, reason = "both programs index")]
    for index in 0..LIST {
        let work = &works[index];
        list.construct_wr(work.wr_id, WorkRequestFlags::Signaled)
            .setup_write(work.rkey, work.remote)
            .setup_inline_data(work.message);
    }
    list.post().unwrap_or_else(|error| fail("post", &error));
}

/// A completion queue of either flavour.
trait PollCq {
    /// Takes `count` completions.
    fn poll(&mut self, count: u64);
}

/// The pollers of both flavours have the same methods, but no common trait that a function could be
/// generic over.
macro_rules! impl_poll {
    ($Queue:ty) => {
        impl PollCq for $Queue {
            #[inline(always)]
            fn poll(&mut self, count: u64) {
                let mut seen = 0;
                while seen < count {
                    let mut poller = self.start_poll().unwrap_or_else(|error| fail("start_poll", &error));
                    while let Some(wc) = poller.next() {
                        if wc.status() != WorkCompletionStatus::Success {
                            fail("completion", &wc.status());
                        }
                        if wc.wr_id() != seen {
                            fail("completion", &wc.wr_id());
                        }
                        seen += 1;
                    }
                }
            }
        }
    };
}

impl_poll!(BasicCompletionQueue);
impl_poll!(ExtendedCompletionQueue);

/// The length of messages that are not inline.
const REGISTERED: u32 = 64;

fn messages(count: u64) -> Result<()> {
    let device = BenchDevice::new()?;
    let mut cq = device.context.create_cq_builder().setup_cqe(DEPTH).build_ex()?;
    let builder = device.builder(&cq);
    let (mut one, mut other) = (builder.build_ex()?, builder.build_ex()?);
    device.connect(&mut one, &mut other)?;
    let message = [[0; MESSAGE]];
    let [work] = &device.works(&message)[..] else { bail!("one message is one piece of work") };
    raw_messages(
        &mut one,
        &mut cq,
        work,
        (device.memory.lkey(), device.memory.as_ptr().addr() as u64),
        count,
    );
    Ok(())
}

#[inline(never)]
fn raw_messages(
    qp: &mut ExtendedQueuePair,
    cq: &mut ExtendedCompletionQueue,
    work: &WriteRequest<'_>,
    (lkey, local): (u32, u64),
    count: u64,
) {
    for _ in 0..count {
        let mut list = qp.start_post_send();
        let request = list.construct_wr(work.wr_id, WorkRequestFlags::Signaled);
        // SAFETY: the memory is registered until `device` is dropped. The request completes below,
        // before anything else uses the memory or posts the next request. The queue holds more than
        // one request.
        unsafe { request.setup_write(work.rkey, work.remote).setup_sge(lkey, local, REGISTERED) };
        list.post().unwrap_or_else(|error| fail("post", &error));
        cq.poll(1);
    }
}

fn sends(length: u32, count: u64) -> Result<()> {
    let device = BenchDevice::new()?;
    let cq = || device.context.create_cq_builder().setup_cqe(DEPTH).build_ex();
    let (mut sent, mut received) = (cq()?, cq()?);
    let (mut one, mut other) = (device.builder(&sent).build_ex()?, device.builder(&received).build_ex()?);
    device.connect(&mut one, &mut other)?;
    let (lkey, from) = (device.memory.lkey(), device.memory.as_ptr().addr() as u64);
    for _ in 0..count {
        let mut list = other.start_post_recv();
        // SAFETY: the memory is registered until `device` is dropped. The receive completes below,
        // before anything else uses the memory or posts the next one.
        unsafe { list.construct_wr(0).setup_sge(lkey, from + 4096, length) };
        list.post().unwrap_or_else(|error| fail("post", &error));
        let mut list = one.start_post_send();
        let request = list.construct_wr(0, WorkRequestFlags::Signaled);
        // SAFETY: as above, for the request.
        unsafe { request.setup_send().setup_sge(lkey, from, length) };
        list.post().unwrap_or_else(|error| fail("post", &error));
        sent.poll(1);
        received.poll(1);
    }
    Ok(())
}

fn pooled(count: u64) -> Result<()> {
    let device = BenchDevice::new()?;
    let mut cq = device.context.create_cq_builder().setup_cqe(DEPTH).build_ex()?;
    let builder = device.builder(&cq);
    let (mut one, mut other) = (builder.build_ex()?, builder.build_ex()?);
    device.connect(&mut one, &mut other)?;
    let mut builder = device.pd.create_pool_builder();
    let pool =
        builder.setup_slices(REGISTERED as usize, DEPTH as usize).setup_kind(BufferKind::Private).build()?;
    let message = [[0; MESSAGE]];
    let [work] = &device.works(&message)[..] else { bail!("one message is one piece of work") };
    pooled_messages(&mut one, &mut cq, &pool, work, count);
    Ok(())
}

#[inline(never)]
fn pooled_messages(
    qp: &mut ExtendedQueuePair,
    cq: &mut ExtendedCompletionQueue,
    pool: &Pool,
    work: &WriteRequest<'_>,
    count: u64,
) {
    for _ in 0..count {
        let Some(slice) = pool.take() else { fail("take", &pool) };
        let mut list = pool.attach(qp.start_post_send()).unwrap_or_else(|error| fail("attach", &error));
        let request = list.construct_wr(work.wr_id, WorkRequestFlags::Signaled);
        request.setup_write(work.rkey, work.remote).setup_slice(slice);
        list.post().unwrap_or_else(|error| fail("post", &error));
        let mut seen = 0;
        while seen < 1 {
            let mut poller = cq.start_poll().unwrap_or_else(|error| fail("start_poll", &error));
            while let Some(wc) = poller.next() {
                if wc.status() != WorkCompletionStatus::Success {
                    fail("completion", &wc.status());
                }
                let Some(returned) = pool.reclaim(&wc) else { fail("completion", &wc.wr_id()) };
                if returned.wr_id != seen {
                    fail("completion", &returned.wr_id);
                }
                seen += 1;
            }
        }
    }
}
