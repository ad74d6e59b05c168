//! What `cargo xtask bench overhead` counts on sideway's side; `c/overhead.c` does the same in C.
//!
//!     overhead extended|classic|message LIST LISTS
//!
//! A reliable connection within the process. LISTS times, LIST (1 or 64) signaled work requests are posted together
//! and completed: writes of 8 bytes inline, or for `message` of 64 registered bytes, extended.

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
    BasicQueuePair, ExtendedQueuePair, PostSendGuard, QueuePair, QueuePairBuilder, SendOperationFlags,
    WorkRequestFlags,
};
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

/// The longest list, and so how deep the queues are.
const DEPTH: u32 = 64;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [flavour, list, lists] = words.as_slice() else {
        bail!("three words are needed: extended, classic or message; 1 or 64; how many lists")
    };
    let lists: u64 = lists.parse().context("how many lists is a number")?;
    match (flavour.as_str(), list.as_str()) {
        ("extended", "1") => extended::<1>(lists),
        ("extended", "64") => extended::<64>(lists),
        ("classic", "1") => classic::<1>(lists),
        ("classic", "64") => classic::<64>(lists),
        ("message", "1") => messages(lists),
        _ => bail!("no such variant: {flavour} {list}"),
    }
}

/// As the program in C does: a benchmark has nobody to tell.
#[cold]
#[inline(never)]
fn fail(what: &str, why: &dyn Debug) -> ! {
    eprintln!("{what}: {why:?}");
    std::process::exit(1)
}

/// What both flavours need.
struct Place {
    context: DeviceContext,
    pd: ProtectionDomain,
    memory: RegisteredBuffer,
}

/// Where the writes go, and what a message consists of.
#[derive(Clone, Copy)]
struct Target {
    rkey: u32,
    remote: u64,
    lkey: u32,
    local: u64,
}

impl Place {
    fn new() -> Result<Self> {
        let context = DeviceList::new()?.first()?.open()?;
        let pd = context.alloc_pd()?;
        let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
        let memory = pd.reg_buffer(Buffer::new(BufferKind::Private, 8192)?, access)?;
        Ok(Self { context, pd, memory })
    }

    fn target(&self) -> Target {
        let local = self.memory.as_ptr().addr() as u64;
        Target { rkey: self.memory.rkey(), remote: local + 4096, lkey: self.memory.lkey(), local }
    }

    fn builder(&self, cq: &impl CompletionQueue) -> QueuePairBuilder {
        let mut builder = self.pd.create_qp_builder();
        builder.setup_send_cq(cq).setup_recv_cq(cq).setup_max_send_wr(DEPTH).setup_max_inline_data(64);
        builder.setup_send_ops_flags(SendOperationFlags::Write);
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

fn extended<const LIST: u32>(lists: u64) -> Result<()> {
    let place = Place::new()?;
    let mut cq = place.context.create_cq_builder().setup_cqe(DEPTH).build_ex()?;
    let builder = place.builder(&cq);
    let (mut one, mut other) = (builder.build_ex()?, builder.build_ex()?);
    place.connect(&mut one, &mut other)?;
    extended_lists::<LIST>(&mut one, &mut cq, &place.target(), lists);
    Ok(())
}

/// What is counted, apart from what is not.
#[inline(never)]
fn extended_lists<const LIST: u32>(
    qp: &mut ExtendedQueuePair,
    cq: &mut ExtendedCompletionQueue,
    target: &Target,
    lists: u64,
) {
    let mut next = 0;
    while next < lists * u64::from(LIST) {
        post_extended::<LIST>(qp, target, next);
        next = poll_extended(cq, next, LIST);
    }
}

#[inline(always)]
fn post_extended<const LIST: u32>(qp: &mut ExtendedQueuePair, target: &Target, first: u64) {
    let mut list = qp.start_post_send();
    for number in (0..u64::from(LIST)).map(|number| first + number) {
        list.construct_wr(number, WorkRequestFlags::Signaled)
            .setup_write(target.rkey, target.remote)
            .setup_inline_data(&number.to_ne_bytes());
    }
    list.post().unwrap_or_else(|error| fail("post", &error));
}

#[inline(always)]
fn poll_extended(cq: &mut ExtendedCompletionQueue, first: u64, count: u32) -> u64 {
    let mut next = first;
    while next < first + u64::from(count) {
        let mut poller = cq.start_poll().unwrap_or_else(|error| fail("start_poll", &error));
        while let Some(wc) = poller.next() {
            if wc.status() != WorkCompletionStatus::Success {
                fail("completion", &wc.status());
            }
            if wc.wr_id() != next {
                fail("completion", &wc.wr_id());
            }
            next += 1;
        }
    }
    next
}

fn classic<const LIST: u32>(lists: u64) -> Result<()> {
    let place = Place::new()?;
    let mut cq = place.context.create_cq_builder().setup_cqe(DEPTH).setup_poll_batch(16).build()?;
    let builder = place.builder(&cq);
    let (mut one, mut other) = (builder.build()?, builder.build()?);
    place.connect(&mut one, &mut other)?;
    classic_lists::<LIST>(&mut one, &mut cq, &place.target(), lists);
    Ok(())
}

/// What is counted, apart from what is not.
#[inline(never)]
fn classic_lists<const LIST: u32>(
    qp: &mut BasicQueuePair,
    cq: &mut BasicCompletionQueue,
    target: &Target,
    lists: u64,
) {
    let mut first = 0;
    while first < lists * u64::from(LIST) {
        post_classic::<LIST>(qp, target, first);
        poll_classic(cq, first, LIST);
        first += u64::from(LIST);
    }
}

#[inline(always)]
fn post_classic<const LIST: u32>(qp: &mut BasicQueuePair, target: &Target, first: u64) {
    let mut list = qp.start_post_send();
    for number in (0..u64::from(LIST)).map(|number| first + number) {
        list.construct_wr(number, WorkRequestFlags::Signaled)
            .setup_write(target.rkey, target.remote)
            .setup_inline_data(&number.to_ne_bytes());
    }
    list.post().unwrap_or_else(|error| fail("post", &error));
}

#[inline(always)]
fn poll_classic(cq: &mut BasicCompletionQueue, first: u64, count: u32) {
    let mut seen = 0;
    while seen < count {
        let mut poller = cq.start_poll().unwrap_or_else(|error| fail("start_poll", &error));
        while let Some(wc) = poller.next() {
            if wc.status() != WorkCompletionStatus::Success {
                fail("completion", &wc.status());
            }
            if wc.wr_id() != first + u64::from(seen) {
                fail("completion", &wc.wr_id());
            }
            seen += 1;
        }
    }
}

fn messages(count: u64) -> Result<()> {
    let place = Place::new()?;
    let mut cq = place.context.create_cq_builder().setup_cqe(DEPTH).build_ex()?;
    let builder = place.builder(&cq);
    let (mut one, mut other) = (builder.build_ex()?, builder.build_ex()?);
    place.connect(&mut one, &mut other)?;
    let target = place.target();
    for number in 0..count {
        let mut list = one.start_post_send();
        let request = list.construct_wr(number, WorkRequestFlags::Signaled);
        // SAFETY: the memory is registered until `place` is dropped; it is completed below, before anybody
        // touches it or posts another; the queue holds more than one.
        unsafe { request.setup_write(target.rkey, target.remote).setup_sge(target.lkey, target.local, 64) };
        list.post()?;
        poll_extended(&mut cq, number, 1);
    }
    Ok(())
}
