//! The software RNIC of this process: one for all contexts.

use core::num::NonZero;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use super::cm_handler::{CmHandler, CmHandlerSlot};
use super::completion::{Cq, MODERATED};
use super::context::Context;
use super::multicast::MulticastGroups;
use super::region::RegionTable;
use super::setup::ProcessSetup;
use super::table::ObjectTable;
use super::xrc_domain::XrcDomains;
use crate::config::{Config, Limits, Path};
use crate::faults;
use crate::node::{Doorbell, Node, NodeHandler, NodeIdentity, NodeSettings, PeerProcess, PortGid, PortOwner};
use crate::platform::errno;
use crate::platform::exit::at_exit;
use crate::queue_pair::{Qp, Srq};
use crate::shared::segment::{MAX_COMPLETION_QUEUES, MAX_QUEUE_PAIRS, MAX_SHARED_QUEUES};
use crate::status::{OpenDevice, QueuePairs, Statistics, Traffic};
use crate::sync::{PlainAtomicU64, Relaxed};

/// Registers the report at process exit once, if the log shows it.
static EXIT_REPORT: Once = Once::new();

static CURRENT: Mutex<Weak<Rnic>> = Mutex::new(Weak::new());

/// All objects of this process. The first context creates it, the last one drops it.
pub(crate) struct Rnic {
    setup: &'static ProcessSetup,
    node: Arc<Node>,
    regions: RegionTable,
    groups: MulticastGroups,
    queue_pairs: ObjectTable<Qp>,
    completion_queues: ObjectTable<Cq>,
    shared_queues: ObjectTable<Srq>,
    xrc_domains: XrcDomains,
    contexts: Mutex<Vec<Weak<Context>>>,
    cm_handler: CmHandlerSlot,
    /// How often a message of this process met a receiver without a posted receive.
    not_ready: PlainAtomicU64,
}

impl Rnic {
    /// Returns the current instance, or creates one.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the configuration is invalid, otherwise the system's error if it has no memory
    /// or descriptors left.
    pub(crate) fn acquire() -> io::Result<Arc<Self>> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        // A forked child needs a new one.
        if let Some(rnic) = current.upgrade().filter(|rnic| !rnic.node.is_forked()) {
            return Ok(rnic);
        }
        let setup = ProcessSetup::get().map_err(|error| {
            log::error!("{error}");
            io::Error::from_raw_os_error(libc::EINVAL)
        })?;
        let rnic = Arc::new(Self::start(setup)?);
        if log::log_enabled!(log::Level::Info) {
            EXIT_REPORT.call_once(|| at_exit(process_ends));
        }
        let handler: Weak<Self> = Arc::downgrade(&rnic);
        rnic.node.set_handler(handler);
        if faults::active() {
            faults::effects::rearm(&rnic);
        }
        *current = Arc::downgrade(&rnic);
        Ok(rnic)
    }

    /// The current instance, if any context is open.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Adds an open context.
    pub(crate) fn enter_context(&self, context: &Arc<Context>) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    pub(crate) fn contexts(&self) -> Vec<Arc<Context>> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let open = contexts.iter().filter_map(Weak::upgrade);
        open.filter(|context| !context.is_closed()).collect()
    }

    fn start(setup: &'static ProcessSetup) -> io::Result<Self> {
        let gids = setup.devices.iter().flat_map(|device| {
            let ports = device.ports.iter();
            ports.flat_map(|port| {
                port.gids.iter().map(|gid| PortGid { device: device.number, port: port.number, gid: gid.raw })
            })
        });
        let node = Node::start(settings(&setup.config), NodeIdentity { gids: gids.collect() }).inspect_err(
            |error| {
                log::error!("the device cannot be opened (error {}): {error}", errno::of(error));
            },
        )?;
        Ok(Self {
            setup,
            regions: RegionTable::new(Arc::clone(&node)),
            groups: MulticastGroups::new(Arc::clone(&node)),
            node,
            queue_pairs: ObjectTable::new(MAX_QUEUE_PAIRS),
            completion_queues: ObjectTable::new(MAX_COMPLETION_QUEUES),
            shared_queues: ObjectTable::new(MAX_SHARED_QUEUES),
            xrc_domains: XrcDomains::default(),
            contexts: Mutex::default(),
            cm_handler: CmHandlerSlot::default(),
            not_ready: PlainAtomicU64::new(0),
        })
    }

    /// Counts of objects and traffic, for status queries.
    pub(crate) fn statistics(&self) -> Statistics {
        let (peers, former) = self.node.traffic();
        Statistics {
            mode: self.setup.config.mode,
            devices: self.open_devices(),
            queue_pairs: self.queue_pairs_by_kind(),
            shared_receive_queues: self.shared_queues.all().len() as u32,
            completion_queues: self.completion_queues.all().len() as u32,
            regions: self.regions.count(),
            identifiers: self.cm_handler.get().map(|cm| cm.identifiers()).unwrap_or_default(),
            peers,
            more_peers: 0,
            former,
        }
    }

    fn open_devices(&self) -> Vec<OpenDevice> {
        let mut devices: Vec<OpenDevice> = Vec::new();
        for context in self.contexts() {
            let name = &context.device().name;
            match devices.iter_mut().find(|device| device.name == *name) {
                Some(device) => device.contexts += 1,
                None => devices.push(OpenDevice { name: name.clone(), contexts: 1 }),
            }
        }
        devices
    }

    fn queue_pairs_by_kind(&self) -> Vec<QueuePairs> {
        let mut kinds: Vec<QueuePairs> = Vec::new();
        for qp in self.queue_pairs.all().iter().filter(|qp| !qp.receives_for_others()) {
            let (qp_type, state) = (qp.qp_type, qp.state());
            match kinds.iter_mut().find(|kind| (kind.qp_type, kind.state) == (qp_type, state)) {
                Some(kind) => kind.count += 1,
                None => kinds.push(QueuePairs { qp_type, state, count: 1 }),
            }
        }
        kinds.sort_by_key(|kind| (kind.qp_type.0, kind.state.0));
        kinds
    }

    /// Where the connection manager registers its handler.
    pub(crate) fn cm_handler(&self) -> &CmHandlerSlot {
        &self.cm_handler
    }

    fn with_cm(&self, tell: impl FnOnce(&dyn CmHandler)) {
        if let Some(cm) = self.cm_handler.get() {
            tell(&*cm);
        }
    }

    pub(crate) fn config(&self) -> &'static Config {
        &self.setup.config
    }

    pub(crate) fn limits(&self) -> &'static Limits {
        &self.setup.limits
    }

    #[inline]
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    #[inline]
    pub(crate) fn regions(&self) -> &RegionTable {
        &self.regions
    }

    pub(crate) fn groups(&self) -> &MulticastGroups {
        &self.groups
    }

    pub(crate) fn queue_pairs(&self) -> &ObjectTable<Qp> {
        &self.queue_pairs
    }

    pub(crate) fn completion_queues(&self) -> &ObjectTable<Cq> {
        &self.completion_queues
    }

    pub(crate) fn xrc_domains(&self) -> &XrcDomains {
        &self.xrc_domains
    }

    pub(crate) fn shared_queues(&self) -> &ObjectTable<Srq> {
        &self.shared_queues
    }
}

/// The part of the configuration that the node needs.
fn settings(config: &Config) -> NodeSettings {
    NodeSettings {
        fabric: config.fabric.clone(),
        patience: config.revoke,
        vm: config.path != Path::Call,
        direct: config.path == Path::Auto,
        any_shm: config.shm,
    }
}

impl Rnic {
    /// Answers a doorbell of this process itself. The caller holds no transfer slot.
    pub(crate) fn answer(&self, doorbell: Doorbell) {
        match doorbell {
            Doorbell::Cq(cq) => self.cq_fired(cq),
            Doorbell::Qp(qp) => self.qp_noticed(qp),
            Doorbell::Srq(srq) => self.srq_limit(srq),
            Doorbell::Call { transfer_slot } => self.serve_call(0, transfer_slot),
        }
    }
}

impl NodeHandler for Rnic {
    fn cq_fired(&self, cq: u32) {
        if let Some(cq) = self.completion_queues.get(cq) {
            cq.look();
        }
    }

    fn channel_of(&self, cq: u32, give: &mut dyn FnMut(NonZero<u64>, BorrowedFd<'_>)) {
        if let Some(cq) = self.completion_queues.get(cq)
            && let Some((channel, file)) = cq.give_channel()
        {
            give(channel, file);
        }
    }

    fn qp_noticed(&self, qp: u32) {
        if let Some(qp) = self.queue_pairs.get(qp) {
            qp.act_on_notices();
        }
    }

    fn srq_limit(&self, srq: u32) {
        if let Some(srq) = self.shared_queues.get(srq) {
            srq.limit_reached();
        }
    }

    fn check_everything(&self) {
        self.completion_queues.all().iter().for_each(|cq| cq.look());
        self.queue_pairs.all().iter().for_each(|qp| qp.act_on_notices());
        self.shared_queues.all().iter().for_each(|srq| srq.limit_reached());
    }

    fn peer_detached(&self, peer_id: u16) {
        self.queue_pairs.all().iter().for_each(|qp| qp.peer_detached(peer_id));
        self.shared_queues.all().iter().for_each(|srq| srq.peer_detached(peer_id));
        self.completion_queues.all().iter().for_each(|cq| cq.on_peer_death());
        self.shared_queues.all().iter().for_each(|srq| srq.limit_reached());
    }

    fn peer_lost(&self, process: &Arc<PeerProcess>) {
        self.queue_pairs.all().iter().for_each(|qp| qp.peer_lost(process));
    }

    fn serve_call(&self, peer_id: u16, transfer_slot: u16) {
        self.serve_call(peer_id, transfer_slot);
    }

    fn timer(&self, qp: u32) {
        if faults::active() {
            faults::effects::on_timer(self);
        }
        if qp == MODERATED {
            self.completion_queues.all().iter().for_each(|cq| cq.on_timer());
        } else if let Some(qp) = self.queue_pairs.get(qp) {
            qp.timer();
        }
    }

    fn statistics(&self) -> Statistics {
        self.statistics()
    }

    fn cm_message(&self, from: u16, message: &[u8]) {
        self.with_cm(|cm| cm.message(from, message));
    }

    fn cm_gone(&self, block: u16) {
        self.with_cm(|cm| cm.gone(block));
    }

    fn cm_port_owner(&self, token: u64, found: PortOwner) {
        self.with_cm(|cm| cm.port_owner(token, found));
    }

    fn cm_timer(&self) {
        self.with_cm(|cm| cm.timer());
    }
}

impl Rnic {
    /// Logs how messages were delivered. A program that has ended leaves no other trace of it.
    fn log_traffic(&self) {
        let (peers, former) = self.node.traffic();
        let sum =
            |of: fn(&Traffic) -> u64| of(&former) + peers.iter().map(|peer| of(&peer.traffic)).sum::<u64>();
        log::info!(
            "payload of messages: {} within the process, {} by shared memory, {} by process_vm, {} by the owner",
            sum(|traffic| traffic.own.messages),
            sum(|traffic| traffic.direct.messages),
            sum(|traffic| traffic.vm.messages),
            sum(|traffic| traffic.call.messages),
        );
        log::info!("receivers that were not ready: {}", self.not_ready());
    }

    /// Counts a message that met a receiver without a posted receive.
    pub(crate) fn count_not_ready(&self) {
        self.not_ready.fetch_add(1, Relaxed);
    }

    /// How many messages met a receiver without a posted receive.
    pub(crate) fn not_ready(&self) -> u64 {
        self.not_ready.load(Relaxed)
    }
}

impl Drop for Rnic {
    /// Runs when the last context is closed.
    fn drop(&mut self) {
        self.log_traffic();
    }
}

/// Runs at process exit, if a context is still open. The exit itself releases everything else.
extern "C" fn process_ends() {
    // `try_lock`, because a thread that holds the lock never releases it at exit.
    let Some(rnic) = CURRENT.try_lock().ok().and_then(|current| current.upgrade()) else { return };
    if !rnic.node.is_forked() {
        rnic.log_traffic();
    }
    // Not dropped, because other threads may still use it.
    std::mem::forget(rnic);
}
