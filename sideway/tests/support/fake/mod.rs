//! A fake device: a provider whose functions are written in Rust.
//!
//! It connects nothing and moves no bytes: a posted request completes at once. It serves two
//! purposes:
//!
//! - It **injects faults**: every function can be made to fail or to return nonsense ([`Faults`]).
//! - It **checks its caller**: it verifies every rule of the C interface that safe Rust must keep.
//!   For example, polls and lists are opened once and closed, every request gets one buffer, and
//!   objects are destroyed in the right order. [`Fake`] fails a test that breaks a rule.

pub mod cm;
mod completion;
mod device;
#[cfg(all(feature = "mlx5", feature = "efa"))]
pub mod direct;
mod events;
mod extras;
#[cfg(all(feature = "mlx5", feature = "efa"))]
pub mod keys;
mod objects;
mod posting;
mod provided;
mod queue_pair;
mod regions;
mod xrc;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sideway::Error;
use sideway::Provider;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::sys::Verbs;

/// The faults of the device. A number is an `errno` to fail with; 0 means success.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub get_device_list: i32,
    pub device_count: Option<i32>,
    pub open_device: i32,
    pub vendor_id: u32,
    pub query_device: i32,
    /// Every attribute of the device and its port has the largest possible value.
    pub garbage_attributes: bool,
    pub query_port: i32,
    pub gid_tbl_len: Option<i32>,
    pub gid_table_result: Option<isize>,
    pub gid_entry_result: i32,
    /// The result for the entry at index 0 alone.
    pub first_gid_entry_result: i32,
    /// The index of the only entry in the table.
    pub gid_index: Option<u32>,
    pub alloc_pd: i32,
    pub reg_mr: i32,
    /// Regions of the whole address space are for local access alone.
    pub implicit_is_local: bool,
    /// The result of `ibv_rereg_mr`, and `errno`.
    pub rereg_mr: (i32, i32),
    /// The result of copies to and from device memory.
    pub copies: i32,
    /// Device memory has neither operations nor a handle.
    pub no_copies: bool,
    pub create_cq: i32,
    pub create_cq_ex: i32,
    pub create_qp: i32,
    pub create_srq: i32,
    /// Also `ibv_query_srq`.
    pub modify_srq: i32,
    /// Also `ibv_init_ah_from_wc`.
    pub create_ah: i32,
    pub create_qp_ex: i32,
    /// The value of all of a queue pair's granted capabilities.
    pub granted: Option<u32>,
    /// For every function that destroys an object.
    pub destroy: i32,
    /// Operations that are null, by the names of their fields.
    pub missing: &'static [&'static str],
    /// The context belongs to a library without extended verbs.
    pub no_extended_verbs: bool,
    pub poll_cq: Option<i32>,
    /// The call of `poll_cq` (from 0) from which on it returns this result.
    pub poll_cq_from: Option<(u64, i32)>,
    pub start_poll: Option<i32>,
    /// The call of `next_poll` (from 0) from which on it returns this result.
    pub next_poll: Option<(u64, i32)>,
    /// The status, opcode and flags of every completion.
    pub completion: Option<[u32; 3]>,
    /// SoftRoCE's defect: `ibv_end_poll` after an `ibv_next_poll` that found nothing drops a
    /// completion.
    pub softroce_bug: bool,
    pub wr_complete: i32,
    /// The result of `ibv_post_send`, and the position at which it reports that it stopped.
    pub post_send: Option<(i32, BadRequest)>,
    /// The result of `ibv_post_recv`, and the position at which it reports that it stopped.
    pub post_recv: Option<(i32, BadRequest)>,
    pub modify_qp: i32,
    pub query_qp: i32,
    pub queried_state: Option<u32>,
    /// For every function of domains, groups, options, imports, flows and counters.
    pub extras: i32,
    /// `ibv_open_xrcd`, `ibv_open_qp`.
    pub xrc: i32,
    /// `ibv_get_srq_num`.
    pub srq_number: i32,
    /// `ibv_reg_buf_mr`, `ibv_reg_mr_ex`.
    pub register: i32,
    /// `ibv_export_buf_dmabuf_fd`.
    pub export_buf: i32,
    /// The result of `ibv_query_qp_data_in_order` with flags, and without.
    pub data_in_order: Option<[i32; 2]>,
    /// For every function of existing counters and completion counters.
    pub counters: i32,
    pub async_fd: Option<i32>,
    pub create_comp_channel: i32,
    /// The descriptor of every channel.
    pub channel_fd: Option<i32>,
    pub req_notify_cq: i32,
    pub get_cq_event: i32,
    /// The context of every completion event.
    pub event_context: Option<usize>,
    pub resize_cq: i32,
    pub modify_cq: i32,
    /// The `errno` without an event; 0 stands for `EAGAIN`.
    pub get_async_event: i32,
    /// The frequency in kHz, the mask of valid bits, and the ticks of the device's clock.
    pub clock: Option<[u64; 3]>,
    pub query_rt_values: i32,
    /// The device is neither mlx5's nor EFA's.
    pub no_direct_verbs: bool,
    /// For every direct verb except the detection of the device.
    pub direct: i32,
    /// For `efadv_query_device`, which detects the device.
    pub efadv_query_device: i32,
    pub stream_reset: i32,
    pub dek_query: i32,
    pub mkey_check: i32,
    /// The number of bytes that an mlx5 device copies at once.
    pub max_memcpy: usize,
    /// The capabilities of an EFA device.
    pub efa_capabilities: u32,
    /// `rdma_create_event_channel`.
    pub cm_channel: i32,
    /// The descriptor of every event channel.
    pub cm_channel_fd: Option<i32>,
    /// `rdma_create_id`.
    pub cm_create: i32,
    /// For every function of an identifier.
    pub cm: i32,
    pub cm_get_event: i32,
    /// `rdma_get_cm_event` succeeds, but returns no event.
    pub cm_null_event: bool,
    pub cm_ack: i32,
    /// Identifiers get no device, as with a node GUID of 0.
    pub cm_no_guid: bool,
    /// `rdma_get_devices` returns a second device.
    pub cm_two_devices: bool,
    /// No event comes automatically.
    pub cm_silent: bool,
    /// `rdma_disconnect` succeeds, but no event follows.
    pub cm_no_goodbye: bool,
    /// `rdma_leave_multicast` fails, but frees the membership.
    pub cm_leave: i32,
    /// `rdma_get_devices`.
    pub cm_devices: i32,
    /// The result of `rdma_getaddrinfo`, and `errno`.
    pub cm_getaddrinfo: (i32, i32),
}

/// The name of [`Faults`] in `seed.rs`.
pub type Lies = Faults;

/// The position at which a list stopped, as the library reports it.
#[derive(Clone, Copy, Debug)]
pub enum BadRequest {
    /// At this request.
    Index(usize),
    /// Not reported.
    Unset,
    /// At an address outside the list.
    Address(usize),
}

/// One device and all objects made from it.
#[derive(Debug, Default)]
pub struct FakeWorld {
    pub lies: Faults,
    violations: Mutex<Vec<String>>,
    pub live: AtomicI64,
    pub posted: AtomicU64,
    pub received: AtomicU64,
    pub aborted: AtomicU64,
    pub inline_bytes: AtomicU64,
    /// The inline data of each request of an extended pair, if a test asks for it by `Some`.
    pub inline_data: Mutex<Option<Vec<Vec<u8>>>>,
    pub next_polls: AtomicU64,
    pub polls: AtomicU64,
    /// The number of calls of `ibv_dereg_mr` that fail with `EBUSY`.
    pub refused_deregistrations: AtomicI64,
    pub destroyed: Mutex<Vec<&'static str>>,
    /// The keys that requests invalidated.
    pub invalidated: Mutex<Vec<u32>>,
    keys: AtomicU64,
    pub extras: extras::Extras,
    pub regions: regions::Regions,
    pub provided: provided::Provided,
    pub objects: objects::Objects,
    pub xrc: xrc::Xrc,
    /// The descriptor by which a context was imported.
    pub imported_descriptor: Mutex<Option<i32>>,
    /// The number of calls of `ibv_ack_cq_events`.
    pub acknowledgements: AtomicU64,
    /// The last requested moderation: the count, and the period in the low 16 bits.
    pub moderation: AtomicU64,
    /// Types and elements of the pending events.
    pub async_events: Mutex<VecDeque<(u32, usize)>>,
    /// The elements of the events that were acknowledged.
    pub async_acknowledged: Mutex<Vec<usize>>,
    pub cm: cm::Cm,
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    pub direct: direct::Direct,
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    pub own: keys::Keys,
}

impl FakeWorld {
    /// Records that a rule of the C interface was broken.
    fn violation(&self, what: impl Into<String>) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(what.into());
    }

    /// Records a violation unless the rule holds.
    fn check(&self, holds: bool, rule: &str) {
        if !holds {
            self.violation(rule);
        }
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn has(&self, operation: &str) -> bool {
        !self.lies.missing.contains(&operation)
    }

    /// A new number for a queue pair or a key.
    fn number(&self) -> u32 {
        self.keys.fetch_add(1, Relaxed) as u32 + 0x11
    }

    fn born(&self) {
        self.live.fetch_add(1, Relaxed);
    }

    /// Whether the object is destroyed; otherwise `errno` has the reason.
    fn dies(&self, what: &'static str) -> bool {
        self.destroyed.lock().unwrap().push(what);
        if self.lies.destroy == 0 {
            self.live.fetch_sub(1, Relaxed);
        }
        self.lies.destroy == 0
    }
}

thread_local! {
    /// The world for `ibv_get_device_list`, which has no argument.
    static WORLD: RefCell<Arc<FakeWorld>> = RefCell::default();
}

fn world() -> Arc<FakeWorld> {
    WORLD.with_borrow(Arc::clone)
}

/// The device of one test. Its drop fails the test if a rule was broken or an object was left
/// behind.
pub struct Fake {
    pub world: Arc<FakeWorld>,
    may_leak: bool,
}

impl Fake {
    /// A device without faults.
    pub fn new() -> Self {
        Self::lying(|_| {})
    }

    /// A device with faults.
    pub fn lying(about: impl FnOnce(&mut Faults)) -> Self {
        let mut lies = Faults::default();
        about(&mut lies);
        let world = Arc::new(FakeWorld { lies, ..FakeWorld::default() });
        WORLD.set(Arc::clone(&world));
        Self { world, may_leak: false }
    }

    /// Allows objects to be left behind, for tests that leak handles.
    pub fn may_leak(mut self) -> Self {
        self.may_leak = true;
        self
    }

    pub fn list(&self) -> Result<DeviceList, Error> {
        DeviceList::from_provider(provider())
    }

    pub fn context(&self) -> DeviceContext {
        self.list().unwrap().first().unwrap().open().unwrap()
    }

    pub fn pd(&self) -> ProtectionDomain {
        self.context().alloc_pd().unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let violations = self.world.violations();
        assert!(violations.is_empty(), "rules of the C interface were broken: {violations:#?}");
        let live = self.world.live.load(Relaxed);
        let destroy_fails = self.world.lies.destroy != 0;
        assert!(live == 0 || self.may_leak || destroy_fails, "{live} objects were left behind");
    }
}

/// The provider of the fake device.
pub fn provider() -> Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    // SAFETY: the functions behave like those of libibverbs, as far as callers can rely on it.
    #[cfg(not(all(feature = "mlx5", feature = "efa")))]
    return *PROVIDER
        .get_or_init(|| unsafe { Provider::from_tables("fake", device::table(), Some(cm::table())) });
    // SAFETY: the functions behave like those of libibverbs, as far as callers can rely on it.
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    *PROVIDER.get_or_init(|| unsafe { direct::provider("fake", device::table()) })
}

/// The same without functions that are newer than the first releases.
pub fn old_provider() -> Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    let table = || Verbs {
        ibv_qp_to_qp_ex: None,
        _ibv_query_gid_ex: None,
        _ibv_query_gid_table: None,
        ibv_reg_mr_iova2: None,
        ibv_get_pkey_index: None,
        ibv_get_device_index: None,
        ibv_query_port_speed: None,
        ibv_is_fork_initialized: None,
        ibv_query_ece: None,
        ibv_set_ece: None,
        ibv_import_device: None,
        ibv_import_pd: None,
        ibv_import_mr: None,
        ibv_reg_mr_iova: None,
        ibv_reg_dmabuf_mr: None,
        ibv_import_dm: None,
        ibv_alloc_dmah: None,
        ibv_alloc_buf: None,
        ibv_reg_mr_ex: None,
        ibv_dm_export_dmabuf_fd: None,
        ibv_create_comp_cntr: None,
        _ibv_query_comp_cntr_caps: None,
        ..device::table()
    };
    // SAFETY: the functions behave like those of libibverbs, as far as callers can rely on it.
    #[cfg(not(all(feature = "mlx5", feature = "efa")))]
    return *PROVIDER
        .get_or_init(|| unsafe { Provider::from_tables("old fake", table(), Some(cm::old_table())) });
    // SAFETY: the functions behave like those of libibverbs, as far as callers can rely on it.
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    *PROVIDER.get_or_init(|| unsafe { direct::old_provider("old fake", table()) })
}

fn set_errno(error: i32) {
    // SAFETY: the location is this thread's errno.
    unsafe { *libc::__errno_location() = error };
}

/// If the function must fail: null, with `errno` set.
fn refuses<T>(error: i32) -> Option<*mut T> {
    (error != 0).then(|| {
        set_errno(error);
        std::ptr::null_mut()
    })
}
