//! The end that operates: its queue pair with the requests that are outstanding.

use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{CompletionChannel, GenericCompletionQueue, Notify, WorkCompletionStatus};
use sideway::ibverbs::connect::Endpoint as QpEndpoint;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, PostSendGuard, QueuePair, SendOperationFlags, WorkRequestFlags,
};

use super::super::device::{DevicePort, RdmaDevice};
use super::super::draining::{Draining, drain};
use super::super::path::{connect_to, endpoint_of};
use super::super::queue_pair::{DRAIN, build_with_inline};
use super::work::{LocalMemory, OneSidedOperation, RemoteAddress};
use super::{OneSidedEnd, OneSidedPorts};
use crate::pool::Block;
use crate::wire::{Cause, Unavailable};

/// The requests that a queue pair has outstanding.
const DEPTH: u32 = 128;

/// An operation on ranges of the peer's memory.
pub(crate) struct OneSidedRequest<'a> {
    pub(crate) operation: OneSidedOperation,
    pub(crate) rkey: u32,
    /// Addresses and lengths, whose bytes follow each other in this side's memory.
    pub(crate) ranges: &'a [(u64, u32)],
}

/// Why nothing was posted. The block comes back.
pub(crate) enum RefusedPost {
    /// The send queue has too little room now.
    NoRoom(Block),
    /// It never will, or the block is too short, or not registered with this device.
    Unsuited(Block),
    /// The queue pair has failed.
    Failed(Block),
}

/// What became of a short operation while nothing else was outstanding.
pub(crate) enum PerformedAlone {
    /// It was performed.
    Done(Block),
    /// It is outstanding, or has failed. This is its ticket.
    Posted(u64),
    /// Nothing was posted.
    Refused(Block),
}

/// A short operation of one range.
#[derive(Clone, Copy)]
pub(crate) struct ShortRequest<'a> {
    pub(crate) operation: OneSidedOperation,
    pub(crate) rkey: u32,
    pub(crate) address: u64,
    /// What a WRITE sends.
    pub(crate) bytes: &'a [u8],
}

/// The end of an operation. The device accesses its memory no more.
pub(crate) struct OneSidedOutcome {
    /// `Success`, or how it failed.
    pub(crate) status: WorkCompletionStatus,
    /// The block that was posted. `None` without one, or if the device may still access it.
    pub(crate) block: Option<Block>,
}

/// An operation that was posted, as one request for each range. Each has a completion, because some
/// devices complete a WRITE before an earlier READ.
struct Flight {
    block: Option<Block>,
    /// The requests that have not completed.
    left: u32,
    /// The first status that is not `Success`.
    status: WorkCompletionStatus,
    is_over: bool,
    /// The program waits for its end, or has taken it.
    is_wanted: bool,
    is_taken: bool,
}

impl Flight {
    /// One of its requests has completed.
    fn complete(&mut self, status: WorkCompletionStatus) {
        if self.status == WorkCompletionStatus::Success {
            self.status = status;
        }
        self.left -= 1;
        if self.left == 0 {
            self.end();
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        if !self.is_wanted {
            self.block = None;
            self.is_taken = true;
        }
    }
}

/// A queue pair that operates on the peer's memory. The peer reaches nothing over it. A drop waits
/// until the device has ended all requests, or leaks their memory.
pub(crate) struct Initiator {
    /// `None` only after the drop has taken it.
    core: Option<Box<InitiatorCore>>,
}

struct InitiatorCore {
    qp: GenericQueuePair,
    cq: GenericCompletionQueue,
    channel: CompletionChannel,
    /// The parameters that the peer was told.
    own: QpEndpoint,
    /// The index of its device among those of the pool.
    device: usize,
    /// The most bytes that a WRITE carries itself.
    inline: usize,
    /// The size of the send queue, and the requests in it.
    depth: u32,
    used: u32,
    flights: VecDeque<Flight>,
    /// The ticket of the oldest flight.
    first: u64,
    is_armed: bool,
    /// The first failure of the queue pair.
    failure: Option<WorkCompletionStatus>,
    _device: Arc<RdmaDevice>,
}

impl Initiator {
    /// Creates the queue pair in the RESET state. Returns what the peer is told of it.
    pub(crate) fn new(ports: &OneSidedPorts, device: usize) -> Result<(Self, OneSidedEnd), Unavailable> {
        let DevicePort { device: rdma, .. } = &ports.ports[device];
        let lacks = |error: &(dyn std::error::Error + 'static)| rdma.lacks(Cause::Resources, error);
        let channel = rdma.context().create_comp_channel().map_err(|error| lacks(&error))?;
        let depth = DEPTH.min(rdma.limits.work_requests).min(rdma.limits.completions);
        let mut builder = rdma.context().create_cq_builder();
        builder.setup_cqe(depth).setup_comp_channel(&channel);
        let cq = builder.build_generic().map_err(|error| lacks(&error))?;
        let mut operations = SendOperationFlags::Write | SendOperationFlags::Read;
        if ports.can_read() {
            operations |= SendOperationFlags::AtomicFetchAndAdd | SendOperationFlags::AtomicCompareAndSwap;
        }
        let mut builder = rdma.domain().create_qp_builder();
        builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_max_send_wr(depth).setup_max_recv_wr(1);
        builder.setup_max_recv_sge(1).setup_send_ops_flags(operations);
        let inline = ports.parameters.inline;
        let qp = build_with_inline(&mut builder, 1, inline).map_err(|error| rdma.lacks_queue_pair(&error))?;
        let (own, endpoint) = endpoint_of(&qp, &ports.ports[device], &ports.parameters)?;
        let inline = (qp.control().capability().max_inline_data).min(inline) as usize;
        let reads = if ports.can_read() { rdma.limits.reads_out.min(ports.parameters.reads) } else { 0 };
        let core = InitiatorCore {
            qp,
            cq,
            channel,
            own,
            device,
            inline,
            depth,
            used: 0,
            flights: VecDeque::new(),
            first: 0,
            is_armed: false,
            failure: None,
            _device: Arc::clone(rdma),
        };
        Ok((Self { core: Some(Box::new(core)) }, OneSidedEnd { endpoint, reads }))
    }

    /// Connects it to the owner's responder.
    pub(crate) fn connect(&mut self, ports: &OneSidedPorts, peer: &OneSidedEnd) -> Result<(), Unavailable> {
        let InitiatorCore { qp, own, device, .. } = self.core();
        let (port, ends) = (&ports.ports[*device], (&*own, &peer.endpoint));
        connect_to(qp, port, &ports.parameters, ends, (peer.reads, 0), AccessFlags::empty())
    }

    fn core(&mut self) -> &mut InitiatorCore {
        self.core.as_mut().expect(OPEN)
    }

    /// The number of its queue pair.
    pub(crate) fn qp_number(&self) -> u32 {
        self.core.as_ref().expect(OPEN).qp.qp_number()
    }

    /// Posts an operation. Returns its ticket.
    pub(crate) fn post(&mut self, request: &OneSidedRequest<'_>, block: Block) -> Result<u64, RefusedPost> {
        self.core().post(request, block)
    }

    /// Posts a short operation if nothing else is outstanding, and polls for its completion. The block
    /// gets what a READ or an atomic operation returns.
    #[inline]
    pub(crate) fn perform_alone(
        &mut self,
        request: ShortRequest<'_>,
        block: Block,
        polls: u32,
    ) -> PerformedAlone {
        self.core().perform_alone(request, block, polls)
    }

    /// Takes completions. Returns whether there was one.
    pub(crate) fn poll(&mut self) -> bool {
        self.core().poll()
    }

    /// Whether an operation of this ticket is over: nobody takes it a second time.
    pub(crate) fn is_over(&self, ticket: u64) -> bool {
        self.core.as_ref().expect(OPEN).flight(ticket).is_none_or(|flight| flight.is_over)
    }

    /// Takes the end of an operation. `None` while it is outstanding.
    pub(crate) fn take(&mut self, ticket: u64) -> Option<OneSidedOutcome> {
        self.core().take(ticket)
    }

    /// Takes the block of an operation that was performed.
    pub(crate) fn take_performed(&mut self, ticket: u64) -> Option<Block> {
        let core = self.core();
        let flight = core.flight_mut(ticket)?;
        if !flight.is_over || flight.status != WorkCompletionStatus::Success {
            return None;
        }
        let block = flight.block.take()?;
        flight.is_taken = true;
        core.forget_taken();
        Some(block)
    }

    /// Nobody waits for an operation any more.
    pub(crate) fn abandon(&mut self, ticket: u64) {
        let core = self.core();
        if let Some(flight) = core.flight_mut(ticket) {
            flight.is_wanted = false;
            if flight.is_over {
                flight.end();
            }
        }
        core.forget_taken();
    }

    /// The ticket of the next operation. All before it that are not over are outstanding.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.core.as_ref().expect(OPEN).next_ticket()
    }

    /// The ticket of the first operation that is outstanding.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let core = self.core.as_ref().expect(OPEN);
        let at = core.flights.iter().position(|flight| !flight.is_over)?;
        Some(core.first + at as u64)
    }

    /// Whether all operations before this ticket are over.
    pub(crate) fn is_over_before(&self, ticket: u64) -> bool {
        let core = self.core.as_ref().expect(OPEN);
        let before = ticket.saturating_sub(core.first) as usize;
        core.flights.iter().take(before).all(|flight| flight.is_over)
    }

    /// How its queue pair has failed.
    pub(crate) fn failure(&self) -> Option<WorkCompletionStatus> {
        self.core.as_ref().expect(OPEN).failure
    }

    /// Gives the queue pair up: the device ends all requests. Waits for that a short while. Requests
    /// that the device does not end lose their memory, and have failed.
    pub(crate) fn give_up(&mut self) {
        let core = self.core();
        core.stop();
        let until = Instant::now() + DRAIN;
        while !core.is_flushed() && Instant::now() < until {
            if !core.poll() {
                std::thread::yield_now();
            }
        }
        core.forget_outstanding();
    }

    /// Arms the completion queue, so that its descriptor is readable after the next completion. Poll
    /// once more before waiting.
    pub(crate) fn arm(&mut self) -> bool {
        let core = self.core();
        if !core.is_armed {
            core.is_armed = core.cq.arm(Notify::Any).is_ok();
        }
        core.is_armed
    }

    /// The descriptor of the completion channel.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.core.as_ref().expect(OPEN).channel.as_fd()
    }

    /// Reads the event of the completion queue, if there is one.
    pub(crate) fn take_event(&mut self) {
        let core = self.core();
        if core.is_armed && core.channel.try_next().is_ok_and(|event| event.is_some()) {
            core.is_armed = false;
        }
    }
}

const OPEN: &str = "it is open until its drop";

impl InitiatorCore {
    fn next_ticket(&self) -> u64 {
        self.first + self.flights.len() as u64
    }

    fn flight(&self, ticket: u64) -> Option<&Flight> {
        self.flights.get(usize::try_from(ticket.checked_sub(self.first)?).ok()?)
    }

    fn flight_mut(&mut self, ticket: u64) -> Option<&mut Flight> {
        self.flights.get_mut(usize::try_from(ticket.checked_sub(self.first)?).ok()?)
    }

    fn post(&mut self, request: &OneSidedRequest<'_>, block: Block) -> Result<u64, RefusedPost> {
        let requests = request.ranges.len() as u32;
        let total: u64 = request.ranges.iter().map(|(_, len)| u64::from(*len)).sum();
        if self.failure.is_some() {
            return Err(RefusedPost::Failed(block));
        }
        let fits = total <= block.len() as u64 && (1..=self.depth).contains(&requests);
        let Some(lkey) = block.lkey_of(self.device).filter(|_| fits) else {
            return Err(RefusedPost::Unsuited(block));
        };
        if self.depth - self.used < requests {
            return Err(RefusedPost::NoRoom(block));
        }
        let (ticket, address) = (self.next_ticket(), block.as_ptr().addr() as u64);
        let is_inline = request.operation.is_write() && total <= self.inline as u64;
        self.used += requests;
        self.flights.push_back(Flight {
            block: Some(block),
            left: requests,
            status: WorkCompletionStatus::Success,
            is_over: false,
            is_wanted: true,
            is_taken: false,
        });
        let (mut list, mut at) = (self.qp.start_post_send(), address);
        for (remote, len) in request.ranges {
            let work = list.construct_wr(ticket, WorkRequestFlags::Signaled);
            let block = self.flights.back().and_then(|flight| flight.block.as_ref());
            let offset = (at - address) as usize;
            let local = match block {
                Some(block) if is_inline => LocalMemory::Inline(&block.bytes()[offset..][..*len as usize]),
                _ => LocalMemory::Registered { lkey, address: at, len: *len },
            };
            let remote = RemoteAddress { rkey: request.rkey, address: *remote };
            // SAFETY: the block is in `flights` until all requests of the flight have completed
            // (`Flight::complete`), or is leaked (`forget_outstanding`), so that no other code uses it. The range
            // lies in it, because `total` is at most its length. `used` counts the requests, so that the
            // send queue has room.
            unsafe { request.operation.append(work, remote, local) };
            at += u64::from(*len);
        }
        let posted = list.post();
        if let Err(error) = posted {
            tracing::warn!(%error, "handing one-sided requests to the device failed");
            self.not_posted(requests, error.posted());
        }
        Ok(ticket)
    }

    /// The device has refused some of the last requests, or an unknown number of them.
    #[cold]
    fn not_posted(&mut self, requests: u32, posted: Option<usize>) {
        self.fail(WorkCompletionStatus::GeneralError);
        let never = posted.map_or(0, |posted| requests.saturating_sub(posted as u32));
        self.used -= never;
        if let Some(flight) = self.flights.back_mut() {
            flight.left -= never;
            flight.status = WorkCompletionStatus::GeneralError;
            if flight.left == 0 {
                flight.end();
            }
        }
    }

    /// Keeps no records unless it takes long, because these cost as much as the verb.
    fn perform_alone(&mut self, request: ShortRequest<'_>, block: Block, polls: u32) -> PerformedAlone {
        let ShortRequest { operation, rkey, address, bytes } = request;
        let len = if operation.is_write() { bytes.len() } else { size_of::<u64>() };
        let lkey = block.lkey_of(self.device);
        let Some(lkey) = lkey.filter(|_| self.flights.is_empty() && self.failure.is_none()) else {
            return PerformedAlone::Refused(block);
        };
        if len > block.len() {
            return PerformedAlone::Refused(block);
        }
        let ticket = self.first;
        // Whoever unwinds leaks it, because the device may access it.
        let mut block = ManuallyDrop::new(block);
        let is_inline = operation.is_write() && len <= self.inline;
        if operation.is_write() && !is_inline {
            block.bytes_mut()[..len].copy_from_slice(bytes);
        }
        let mut list = self.qp.start_post_send();
        let work = list.construct_wr(ticket, WorkRequestFlags::Signaled);
        let local = match is_inline {
            true => LocalMemory::Inline(bytes),
            false => LocalMemory::Registered { lkey, address: block.as_ptr().addr() as u64, len: len as u32 },
        };
        // SAFETY: the block has `len` bytes, and is neither dropped nor used before the completion was
        // polled: it is `ManuallyDrop`, or in `flights` (`record_alone`). The send queue is empty, because
        // `flights` is, so that it has room.
        unsafe { operation.append(work, RemoteAddress { rkey, address }, local) };
        let posted = list.post();
        if posted.is_ok() {
            for _ in 0..polls {
                let Ok(mut poller) = self.cq.start_poll() else { break };
                let Some(completion) = poller.next() else { continue };
                if completion.wr_id() == ticket && completion.status() == WorkCompletionStatus::Success {
                    self.first += 1;
                    return PerformedAlone::Done(ManuallyDrop::into_inner(block));
                }
                let (id, status) = (completion.wr_id(), completion.status());
                drop(poller);
                self.record_alone(ManuallyDrop::into_inner(block), bytes, is_inline);
                self.complete(id, status);
                return PerformedAlone::Posted(ticket);
            }
        }
        self.record_alone(ManuallyDrop::into_inner(block), bytes, is_inline);
        if let Err(error) = posted {
            tracing::warn!(%error, "handing a one-sided request to the device failed");
            self.not_posted(1, error.posted());
        }
        PerformedAlone::Posted(ticket)
    }

    /// Records an operation that was posted without a record.
    #[cold]
    fn record_alone(&mut self, block: Block, bytes: &[u8], is_inline: bool) {
        let mut block = block;
        if is_inline {
            // The device has its own copy. This one is for another attempt.
            block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        }
        self.used += 1;
        self.flights.push_back(Flight {
            block: Some(block),
            left: 1,
            status: WorkCompletionStatus::Success,
            is_over: false,
            is_wanted: true,
            is_taken: false,
        });
    }

    fn complete(&mut self, ticket: u64, status: WorkCompletionStatus) {
        if status != WorkCompletionStatus::Success {
            self.failure.get_or_insert(status);
        }
        match self.flight_mut(ticket).filter(|flight| !flight.is_over) {
            Some(flight) => {
                flight.complete(status);
                self.used -= 1;
            }
            None => tracing::debug!(ticket, "a completion of a request that was not posted"),
        }
    }

    fn poll(&mut self) -> bool {
        let Self { cq, flights, first, used, failure, .. } = self;
        let mut any = false;
        match cq.start_poll() {
            Ok(mut poller) => {
                while let Some(completion) = poller.next() {
                    any = true;
                    let (ticket, status) = (completion.wr_id(), completion.status());
                    if status != WorkCompletionStatus::Success {
                        failure.get_or_insert(status);
                    }
                    let at = ticket.checked_sub(*first).and_then(|at| usize::try_from(at).ok());
                    let flight = at.and_then(|at| flights.get_mut(at)).filter(|flight| !flight.is_over);
                    match flight {
                        Some(flight) => {
                            *used -= 1;
                            flight.complete(status);
                        }
                        None => tracing::debug!(ticket, "a completion of a request that was not posted"),
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "polling one-sided requests failed");
                failure.get_or_insert(WorkCompletionStatus::GeneralError);
            }
        }
        if any {
            self.forget_taken();
        }
        any
    }

    fn take(&mut self, ticket: u64) -> Option<OneSidedOutcome> {
        let outcome = match self.flight_mut(ticket) {
            Some(flight) if !flight.is_over => return None,
            Some(flight) => {
                flight.is_taken = true;
                OneSidedOutcome { status: flight.status, block: flight.block.take() }
            }
            None => OneSidedOutcome { status: WorkCompletionStatus::GeneralError, block: None },
        };
        self.forget_taken();
        Some(outcome)
    }

    fn forget_taken(&mut self) {
        while self.flights.front().is_some_and(|flight| flight.is_taken) {
            self.flights.pop_front();
            self.first += 1;
        }
    }

    fn fail(&mut self, status: WorkCompletionStatus) {
        self.failure.get_or_insert(status);
    }

    /// Moves the queue pair to the error state, in which outstanding requests complete as flushed.
    fn stop(&mut self) {
        self.fail(WorkCompletionStatus::WorkRequestFlushedError);
        if let Err(error) = self.qp.fail() {
            tracing::debug!(%error, "a queue pair of one-sided operations cannot be stopped");
        }
    }

    fn is_flushed(&self) -> bool {
        self.flights.iter().all(|flight| flight.is_over)
    }

    /// Ends the requests that the device has not. It may still access their memory, which is leaked.
    fn forget_outstanding(&mut self) {
        let mut lost = 0;
        for flight in self.flights.iter_mut().filter(|flight| !flight.is_over) {
            lost += 1;
            mem::forget(flight.block.take());
            if flight.status == WorkCompletionStatus::Success {
                flight.status = WorkCompletionStatus::WorkRequestFlushedError;
            }
            flight.end();
        }
        if lost > 0 {
            tracing::error!(lost, "one-sided operations never completed: their memory is lost");
        }
        self.forget_taken();
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        let Some(mut core) = self.core.take() else { return };
        if !core.is_flushed() {
            core.stop();
        }
        drain(DrainingInitiator { core, until: Instant::now() + DRAIN });
    }
}

/// A stopped queue pair, until the device has ended its requests.
struct DrainingInitiator {
    core: Box<InitiatorCore>,
    until: Instant,
}

impl Draining for DrainingInitiator {
    fn poll(&mut self, now: Instant) -> bool {
        self.core.poll();
        if now >= self.until {
            self.core.forget_outstanding();
        }
        self.core.is_flushed()
    }
}
