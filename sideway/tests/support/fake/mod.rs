//! A device that is not there: a provider whose functions are Rust.
//!
//! It connects nothing and moves no bytes: a posted request completes at once. What it is good for:
//!
//! - It **lies** on request: every function can be told to fail or to answer nonsense ([`Faults`]).
//! - It **watches** its caller: every rule of the C interface that safe Rust must keep (polls and lists are
//!   opened once and closed, every request gets one buffer, objects go in the right order, ...) is checked,
//!   and [`Fake`] fails the test that broke one.

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

/// How the device misbehaves. A number is an `errno` to fail with, where 0 means to work.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub get_device_list: i32,
    pub device_count: Option<i32>,
    pub open_device: i32,
    pub vendor_id: u32,
    pub query_device: i32,
    /// Every number that a device or a port says about itself is the largest that fits.
    pub garbage_attributes: bool,
    pub query_port: i32,
    pub gid_tbl_len: Option<i32>,
    pub gid_table_result: Option<isize>,
    pub gid_entry_result: i32,
    pub alloc_pd: i32,
    pub reg_mr: i32,
    /// What `ibv_rereg_mr` returns, and `errno`.
    pub rereg_mr: (i32, i32),
    /// What copying to and from device memory returns.
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
    /// All of a granted queue pair's capabilities.
    pub granted: Option<u32>,
    /// Every function that destroys something.
    pub destroy: i32,
    /// Operations that are null, by the names of their fields.
    pub missing: &'static [&'static str],
    /// The context is that of a library without extended verbs.
    pub no_extended_verbs: bool,
    pub poll_cq: Option<i32>,
    /// From this call of `poll_cq` on (from 0), it returns this.
    pub poll_cq_from: Option<(u64, i32)>,
    pub start_poll: Option<i32>,
    /// From this call of `next_poll` on (from 0), it returns this.
    pub next_poll: Option<(u64, i32)>,
    /// Status, opcode and flags of every completion.
    pub completion: Option<[u32; 3]>,
    /// `ibv_end_poll` after an `ibv_next_poll` that found nothing drops a completion.
    pub softroce_bug: bool,
    pub wr_complete: i32,
    /// What `ibv_post_send` returns, and where it says that it stopped.
    pub post_send: Option<(i32, BadRequest)>,
    /// What `ibv_post_recv` returns, and where it says that it stopped.
    pub post_recv: Option<(i32, BadRequest)>,
    pub modify_qp: i32,
    pub query_qp: i32,
    pub queried_state: Option<u32>,
    /// Every function of domains, groups, options, imports, flows and counters.
    pub extras: i32,
    /// `ibv_open_xrcd`, `ibv_open_qp`.
    pub xrc: i32,
    /// `ibv_get_srq_num`.
    pub srq_number: i32,
    /// `ibv_reg_buf_mr`, `ibv_reg_mr_ex`.
    pub register: i32,
    /// `ibv_export_buf_dmabuf_fd`.
    pub export_buf: i32,
    /// What `ibv_query_qp_data_in_order` returns with flags, and without.
    pub data_in_order: Option<[i32; 2]>,
    /// Every function of a set of counters, or of a completion counter, that is there.
    pub counters: i32,
    pub async_fd: Option<i32>,
    pub create_comp_channel: i32,
    /// The descriptor of every channel.
    pub channel_fd: Option<i32>,
    pub req_notify_cq: i32,
    pub get_cq_event: i32,
    /// What every completion event carries.
    pub event_context: Option<usize>,
    pub resize_cq: i32,
    pub modify_cq: i32,
    /// When there is no event: 0 for `EAGAIN`.
    pub get_async_event: i32,
    /// The frequency in kHz, the bits that count, and the ticks of the device's clock.
    pub clock: Option<[u64; 3]>,
    pub query_rt_values: i32,
    /// The device is neither mlx5's nor EFA's.
    pub no_direct_verbs: bool,
    /// Every direct verb that does not only ask whose the device is.
    pub direct: i32,
    /// `efadv_query_device`, when it does.
    pub efadv_query_device: i32,
    pub stream_reset: i32,
    pub dek_query: i32,
    pub mkey_check: i32,
    /// How many bytes an mlx5 device copies at once.
    pub max_memcpy: usize,
    /// What an EFA device can do.
    pub efa_capabilities: u32,
    /// `rdma_create_event_channel`.
    pub cm_channel: i32,
    /// The descriptor of every event channel.
    pub cm_channel_fd: Option<i32>,
    /// `rdma_create_id`.
    pub cm_create: i32,
    /// Every function of an identifier.
    pub cm: i32,
    pub cm_get_event: i32,
    /// `rdma_get_cm_event` succeeds, and gives out nothing.
    pub cm_null_event: bool,
    pub cm_ack: i32,
    /// Identifiers get no device, as those of one whose node GUID is 0.
    pub cm_no_guid: bool,
    /// `rdma_get_devices` names a second device.
    pub cm_two_devices: bool,
    /// No event comes of itself.
    pub cm_silent: bool,
    /// `rdma_disconnect` succeeds, and no event says so.
    pub cm_no_goodbye: bool,
    /// `rdma_leave_multicast` fails, and has freed the membership.
    pub cm_leave: i32,
    /// `rdma_get_devices`.
    pub cm_devices: i32,
    /// What `rdma_getaddrinfo` returns, and `errno`.
    pub cm_getaddrinfo: (i32, i32),
}

/// The name by which `seed.rs` knows [`Faults`].
pub type Lies = Faults;

/// Where a list broke off, as the library says.
#[derive(Clone, Copy, Debug)]
pub enum BadRequest {
    /// At this one.
    Index(usize),
    /// It does not say.
    Unset,
    /// At an address that is none of the list's.
    Address(usize),
}

/// One device and all that was made from it.
#[derive(Debug, Default)]
pub struct FakeWorld {
    pub lies: Faults,
    violations: Mutex<Vec<String>>,
    pub live: AtomicI64,
    pub posted: AtomicU64,
    pub received: AtomicU64,
    pub aborted: AtomicU64,
    pub inline_bytes: AtomicU64,
    pub next_polls: AtomicU64,
    pub polls: AtomicU64,
    /// So many calls of `ibv_dereg_mr` are answered with `EBUSY`.
    pub refused_deregistrations: AtomicI64,
    pub destroyed: Mutex<Vec<&'static str>>,
    /// The keys that requests were to invalidate.
    pub invalidated: Mutex<Vec<u32>>,
    keys: AtomicU64,
    pub extras: extras::Extras,
    pub regions: regions::Regions,
    pub provided: provided::Provided,
    pub objects: objects::Objects,
    pub xrc: xrc::Xrc,
    /// The descriptor that a context was imported by.
    pub imported_descriptor: Mutex<Option<i32>>,
    /// Calls of `ibv_ack_cq_events`.
    pub acknowledgements: AtomicU64,
    /// What was asked for last: the count, and the period in its last 16 bits.
    pub moderation: AtomicU64,
    /// Types and elements of the events to come.
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
    /// Notes that a rule of the C interface was broken.
    fn violation(&self, what: impl Into<String>) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(what.into());
    }

    /// Notes it unless the rule holds.
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

    /// A number that is not in use yet: of a queue pair, or a key.
    fn number(&self) -> u32 {
        self.keys.fetch_add(1, Relaxed) as u32 + 0x11
    }

    fn born(&self) {
        self.live.fetch_add(1, Relaxed);
    }

    /// Whether the object goes; else `errno` says why not.
    fn dies(&self, what: &'static str) -> bool {
        self.destroyed.lock().unwrap().push(what);
        if self.lies.destroy == 0 {
            self.live.fetch_sub(1, Relaxed);
        }
        self.lies.destroy == 0
    }
}

thread_local! {
    /// What `ibv_get_device_list`, which has no argument, answers for.
    static WORLD: RefCell<Arc<FakeWorld>> = RefCell::default();
}

fn world() -> Arc<FakeWorld> {
    WORLD.with_borrow(Arc::clone)
}

/// The device of one test, which fails if a rule was broken or something was left behind.
pub struct Fake {
    pub world: Arc<FakeWorld>,
    may_leak: bool,
}

impl Fake {
    /// An honest device.
    pub fn new() -> Self {
        Self::lying(|_| {})
    }

    /// A device that lies.
    pub fn lying(about: impl FnOnce(&mut Faults)) -> Self {
        let mut lies = Faults::default();
        about(&mut lies);
        let world = Arc::new(FakeWorld { lies, ..FakeWorld::default() });
        WORLD.set(Arc::clone(&world));
        Self { world, may_leak: false }
    }

    /// This test leaks handles, so objects may be left behind.
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

/// The libraries of the device that is not there.
pub fn provider() -> Provider {
    static PROVIDER: OnceLock<Provider> = OnceLock::new();
    // SAFETY: the functions do what those of libibverbs do, as far as a caller can rely on it.
    #[cfg(not(all(feature = "mlx5", feature = "efa")))]
    return *PROVIDER
        .get_or_init(|| unsafe { Provider::from_tables("fake", device::table(), Some(cm::table())) });
    // SAFETY: the functions do what those of libibverbs do, as far as a caller can rely on it.
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    *PROVIDER.get_or_init(|| unsafe { direct::provider("fake", device::table()) })
}

/// The same without what came after the first releases.
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
    // SAFETY: the functions do what those of libibverbs do, as far as a caller can rely on it.
    #[cfg(not(all(feature = "mlx5", feature = "efa")))]
    return *PROVIDER
        .get_or_init(|| unsafe { Provider::from_tables("old fake", table(), Some(cm::old_table())) });
    // SAFETY: the functions do what those of libibverbs do, as far as a caller can rely on it.
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    *PROVIDER.get_or_init(|| unsafe { direct::old_provider("old fake", table()) })
}

fn set_errno(error: i32) {
    // SAFETY: the location is this thread's own errno, valid for its life.
    unsafe { *libc::__errno_location() = error };
}

/// Null with `errno`, if the function is to fail.
fn refuses<T>(error: i32) -> Option<*mut T> {
    (error != 0).then(|| {
        set_errno(error);
        std::ptr::null_mut()
    })
}
