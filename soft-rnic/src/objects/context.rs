//! A device context (`ibv_context`): one opened device, its objects and its limits.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mummy_sys::types::{ibv_context, ibv_event_type, ibv_port_state};

use super::channel::CompletionChannel;
use super::device::Device;
use super::device_memory::Dm;
use super::event::{AsyncEvent, AsyncEventQueue, EventElement};
use super::memory_region::Mr;
use super::protection_domain::Pd;
use super::rnic::Rnic;
use crate::faults::{self, Call, effects};
use crate::platform::command::CommandFile;

/// How many objects of each kind a context has.
#[derive(Debug, Default)]
pub(crate) struct ObjectCounts {
    pub(crate) pd: ObjectCount,
    pub(crate) td: ObjectCount,
    pub(crate) mr: ObjectCount,
    pub(crate) mw: ObjectCount,
    pub(crate) dm: ObjectCount,
    pub(crate) cq: ObjectCount,
    pub(crate) qp: ObjectCount,
    pub(crate) ah: ObjectCount,
    pub(crate) srq: ObjectCount,
    pub(crate) xrcd: ObjectCount,
    pub(crate) channel: ObjectCount,
}

/// A count that is checked against a limit.
#[derive(Debug, Default)]
pub(crate) struct ObjectCount(AtomicU32);

/// One counted object. Counts it out when it is dropped, or before that by
/// [`count_out`](Self::count_out).
#[derive(Debug)]
pub(crate) struct CountGuard {
    context: Arc<Context>,
    which: fn(&ObjectCounts) -> &ObjectCount,
    out: AtomicBool,
}

impl CountGuard {
    /// The context that counts.
    #[inline]
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Counts the object out, although references to it may remain.
    pub(crate) fn count_out(&self) {
        if !self.out.swap(true, Relaxed) {
            (self.which)(&self.context.counts).0.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.count_out();
    }
}

/// An open device.
pub(crate) struct Context {
    rnic: Arc<Rnic>,
    device: &'static Device,
    events: AsyncEventQueue,
    counts: ObjectCounts,
    /// How many times it is open: once, and once for each import.
    open: AtomicU32,
    /// The channels, to be woken when the device goes.
    channels: Mutex<Vec<Weak<CompletionChannel>>>,
    closed: AtomicBool,
    /// The file through which it is imported.
    command: CommandFile,
    /// The objects that can be imported by number.
    domains: Mutex<Vec<Weak<Pd>>>,
    memory_regions: Mutex<Vec<Weak<Mr>>>,
    device_memories: Mutex<Vec<Weak<Dm>>>,
    /// Bytes of device memory that are allocated.
    device_memory: AtomicU64,
    /// Whether the device has gone since it was opened.
    failed: AtomicBool,
    /// The C parts, which the verbs create. They stay as long as an object that was created in any
    /// of them.
    handles: Mutex<Vec<AtomicPtr<ibv_context>>>,
    free_handle: unsafe fn(*mut ibv_context),
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.device.name).finish_non_exhaustive()
    }
}

impl Context {
    /// Opens a device. `free_handle` frees the C part once the context and all its objects are
    /// gone.
    ///
    /// # Errors
    ///
    /// The system has no memory or descriptors left.
    pub(crate) fn open(
        device: &'static Device,
        free_handle: unsafe fn(*mut ibv_context),
    ) -> io::Result<Arc<Self>> {
        let (rnic, events, command) = (Rnic::acquire()?, AsyncEventQueue::create()?, CommandFile::create()?);
        let context = Arc::new(Self {
            rnic,
            device,
            events,
            counts: ObjectCounts::default(),
            open: AtomicU32::new(1),
            channels: Mutex::default(),
            closed: AtomicBool::new(false),
            command,
            domains: Mutex::default(),
            memory_regions: Mutex::default(),
            device_memories: Mutex::default(),
            device_memory: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            handles: Mutex::default(),
            free_handle,
        });
        context.rnic.enter_context(&context);
        Ok(context)
    }

    #[inline]
    pub(crate) fn rnic(&self) -> &Arc<Rnic> {
        &self.rnic
    }

    /// Fails with `EIO` in a forked child, which may not use the device that its parent opened.
    pub(crate) fn check_process(&self) -> Result<(), c_int> {
        if self.rnic.node().is_forked() { Err(libc::EIO) } else { Ok(()) }
    }

    /// Whether a verb may run. It may not if a fault rule applies or the device has failed.
    ///
    /// # Errors
    ///
    /// An errno: the one that a rule names; `EIO` if the device has failed.
    #[inline]
    pub(crate) fn admit(&self, call: Call) -> Result<(), c_int> {
        if faults::active() { effects::admit(self, call) } else { Ok(()) }
    }

    /// Marks the device as gone and wakes every waiter of its channels. Returns false if it was
    /// marked before.
    pub(crate) fn fail(&self) -> bool {
        let first = !self.failed.swap(true, Relaxed);
        if first {
            self.channels().iter().filter_map(Weak::upgrade).for_each(|channel| channel.fail());
        }
        first
    }

    fn channels(&self) -> MutexGuard<'_, Vec<Weak<CompletionChannel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new channel.
    pub(crate) fn enter_channel(&self, channel: &Arc<CompletionChannel>) {
        let mut channels = self.channels();
        channels.retain(|channel| channel.strong_count() != 0);
        channels.push(Arc::downgrade(channel));
        // Under the lock, so that either this or `fail` wakes the channel.
        if self.has_failed() {
            channel.fail();
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// Adds another C part, to be freed at the end.
    pub(crate) fn add_handle(&self, handle: *mut ibv_context) {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(AtomicPtr::new(handle));
    }

    pub(crate) fn command(&self) -> &CommandFile {
        &self.command
    }

    /// Counts an import, so that one more call is needed to close the context.
    pub(crate) fn open_again(&self) {
        self.open.fetch_add(1, Relaxed);
    }

    /// Makes a protection domain importable.
    pub(crate) fn enter_domain(&self, pd: &Arc<Pd>) {
        enter(&self.domains, pd);
    }

    /// The domain with this number, if it was not deallocated.
    pub(crate) fn find_domain(&self, number: u32) -> Option<Arc<Pd>> {
        find(&self.domains, |pd| pd.number() == number && !pd.is_gone())
    }

    /// Makes a region importable.
    pub(crate) fn enter_region(&self, mr: &Arc<Mr>) {
        enter(&self.memory_regions, mr);
    }

    /// The region with this index, if it was not deregistered.
    pub(crate) fn find_region(&self, index: u32) -> Option<Arc<Mr>> {
        find(&self.memory_regions, |mr| mr.index() == index && !mr.is_gone())
    }

    /// Makes device memory importable.
    pub(crate) fn enter_device_memory(&self, dm: &Arc<Dm>) {
        enter(&self.device_memories, dm);
    }

    /// The device memory with this number, if it was not freed.
    pub(crate) fn find_device_memory(&self, number: u32) -> Option<Arc<Dm>> {
        find(&self.device_memories, |dm| dm.number() == number && !dm.is_gone())
    }

    /// Takes bytes of the device's memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if fewer bytes are left.
    pub(crate) fn take_device_memory(&self, bytes: usize) -> Result<(), c_int> {
        let most = self.rnic.limits().max_dm_size;
        let take = |taken: u64| taken.checked_add(bytes as u64).filter(|taken| *taken <= most);
        self.device_memory.fetch_update(Relaxed, Relaxed, take).map(drop).map_err(|_| libc::ENOMEM)
    }

    /// Returns bytes that were taken.
    pub(crate) fn return_device_memory(&self, bytes: usize) {
        self.device_memory.fetch_sub(bytes as u64, Relaxed);
    }

    /// Counts a new object.
    ///
    /// # Errors
    ///
    /// An errno: `ENOMEM` if the limit is reached, `EIO` in a forked child.
    pub(crate) fn count(
        self: &Arc<Self>,
        which: fn(&ObjectCounts) -> &ObjectCount,
        limit: u32,
    ) -> Result<CountGuard, c_int> {
        self.check_process()?;
        let count = &which(&self.counts).0;
        if count.fetch_add(1, Relaxed) >= limit {
            count.fetch_sub(1, Relaxed);
            return Err(libc::ENOMEM);
        }
        Ok(CountGuard { context: Arc::clone(self), which, out: AtomicBool::new(false) })
    }

    pub(crate) fn events(&self) -> &AsyncEventQueue {
        &self.events
    }

    /// Adds an asynchronous event.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.events.raise(event);
    }

    /// Reports that a port went up or down.
    pub(crate) fn raise_port(&self, port: u8, state: ibv_port_state) {
        let up = state == ibv_port_state::IBV_PORT_ACTIVE;
        let kind =
            if up { ibv_event_type::IBV_EVENT_PORT_ACTIVE } else { ibv_event_type::IBV_EVENT_PORT_ERR };
        self.raise(AsyncEvent { kind, element: EventElement::Port(port) });
    }

    /// Closes the context. Objects that the program did not destroy keep their memory, but peers
    /// lose access to it. The driver of a real device takes all of it away.
    pub(crate) fn close(self: Arc<Self>) {
        if self.open.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        self.closed.store(true, Relaxed);
        // A forked child only drops its copy.
        if self.check_process().is_err() {
            return;
        }
        let counts = &self.counts;
        let live = [
            &counts.qp,
            &counts.srq,
            &counts.xrcd,
            &counts.cq,
            &counts.mr,
            &counts.mw,
            &counts.dm,
            &counts.ah,
            &counts.pd,
            &counts.td,
            &counts.channel,
        ]
        .iter()
        .map(|count| count.0.load(Relaxed))
        .sum::<u32>();
        if live != 0 {
            log::info!("{} was closed with {live} objects that were not destroyed", self.device.name);
            self.rnic
                .queue_pairs()
                .all()
                .iter()
                .filter(|qp| Arc::ptr_eq(&qp.context, &self))
                .for_each(|qp| qp.abandon());
            self.rnic.regions().revoke_all(&self);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.has_failed() {
            effects::failed_context_closed();
        }
        for handle in self.handles.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: `free_handle` was given for these handles, and their last user was this
            // context.
            unsafe { (self.free_handle)(*handle.get_mut()) };
        }
    }
}

/// Adds an object to a table, and removes entries of dropped objects before the table grows.
fn enter<T>(table: &Mutex<Vec<Weak<T>>>, object: &Arc<T>) {
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    let object = Arc::downgrade(object);
    // Removing costs as much as the table is long, so do it only before the table would grow.
    if table.len() == table.capacity() {
        table.retain(|object| object.strong_count() > 0);
        // Leave room, so that the next removal is not due soon.
        let live = table.len();
        table.reserve(live + 8);
    }
    table.push(object);
}

fn find<T>(table: &Mutex<Vec<Weak<T>>>, is_it: impl Fn(&T) -> bool) -> Option<Arc<T>> {
    let table = table.lock().unwrap_or_else(PoisonError::into_inner);
    table.iter().filter_map(Weak::upgrade).find(|object| is_it(object))
}
