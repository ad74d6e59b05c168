//! A peer process, as this process sees it: connection, mapped segment, and paths to its memory.

use core::num::NonZero;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::NodeSettings;
use super::mailbox::{Mailbox, ServiceCommand};
use super::mapped_memory::{MappedMemory, PeerMappings};
use super::message::{Doorbell, ExportId, PeerRequest, PortGid, ProcessId, Welcome};
use super::numbers::Blocks;
use super::peer_channels::PeerChannels;
use super::probe::{probe, probe_own, warn_vm_unavailable};
use super::traffic::TrafficCounters;
use super::transfer_slot::{TransferSlotGuard, TransferSlots};
use crate::platform::event_counter;
use crate::platform::process::Process;
use crate::platform::socket::Socket;
use crate::platform::vm::Vm;
use crate::shared::hazard::{HazardPage, HazardSlot, TRANSFER_SLOTS};
use crate::shared::segment::Segment;
use crate::sync::SeqCst;

/// The state that all peer processes of a node share.
#[derive(Debug)]
pub(crate) struct NodeCommon {
    pub(crate) settings: NodeSettings,
    pub(crate) transfer_slots: Arc<TransferSlots>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// The warning that the system forbids copying was given.
    pub(crate) vm_warning_given: AtomicBool,
    /// The address of this process's identity page.
    pub(crate) identity_page: u64,
    /// How the system copies within this process; `None` if it does not. Set on first use.
    pub(crate) own_vm: OnceLock<Option<Vm>>,
}

impl NodeCommon {
    fn own_vm(&self) -> Option<Vm> {
        *self.own_vm.get_or_init(|| probe_own(self.identity_page))
    }
}

/// The connection to a peer, with its properties.
#[derive(Debug)]
struct PeerConnection {
    socket: Socket,
    process: ProcessId,
    /// Its process number in this pid namespace, 0 if it has none.
    pid: u32,
    /// Identifies the process, to prove its death.
    identity: Option<Process>,
    probe: u64,
    probe_address: u64,
    identity_page: u64,
    vm: OnceLock<Option<Vm>>,
    /// The system has withdrawn the permission to copy.
    vm_lost: AtomicBool,
    mappings: PeerMappings,
    channels: PeerChannels,
    /// The service thread's token of the connection.
    token: u64,
    /// The service thread waits for room in the socket.
    awaits_room: AtomicBool,
}

/// A peer process; one object per peer, however many blocks it has.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    number: u16,
    segment: Arc<Segment>,
    hazards: HazardPage,
    alive: AtomicBool,
    blocks: Arc<Blocks>,
    gids: Vec<PortGid>,
    call_area: u64,
    /// By transfer slot, the ticket of an atomic operation whose answer has not been collected; 0
    /// for none.
    pending_atomic: Box<[AtomicU64]>,
    common: Arc<NodeCommon>,
    counters: TrafficCounters,
    peer: Option<PeerConnection>,
}

/// One zero entry for each transfer slot.
fn no_pending_atomics() -> Box<[AtomicU64]> {
    (0..TRANSFER_SLOTS).map(|_| AtomicU64::new(0)).collect()
}

impl PeerProcess {
    /// This process as its own peer.
    pub(crate) fn own(
        (segment, hazards): (Arc<Segment>, HazardPage),
        blocks: Arc<Blocks>,
        gids: Vec<PortGid>,
        common: Arc<NodeCommon>,
    ) -> Self {
        let (alive, counters, pending_atomic) =
            (AtomicBool::new(true), TrafficCounters::default(), no_pending_atomics());
        Self {
            number: 0,
            segment,
            hazards,
            alive,
            blocks,
            gids,
            call_area: 0,
            pending_atomic,
            common,
            counters,
            peer: None,
        }
    }

    /// The process that accepted this one with a welcome.
    pub(crate) fn to_peer(
        socket: Socket,
        pid: u32,
        (segment, hazards): (Segment, HazardPage),
        welcome: Welcome,
        common: Arc<NodeCommon>,
        token: u64,
    ) -> Self {
        let Welcome { process, peer_id: number, call_area, gids, .. } = welcome;
        let Welcome { probe, probe_address, identity_page, .. } = welcome;
        let (vm, mappings) = (OnceLock::new(), PeerMappings::new());
        let identity = Process::find(pid);
        let vm_lost = AtomicBool::new(false);
        let awaits_room = AtomicBool::new(false);
        let peer = PeerConnection {
            socket,
            process,
            pid,
            identity,
            probe,
            probe_address,
            identity_page,
            vm,
            vm_lost,
            mappings,
            channels: PeerChannels::default(),
            token,
            awaits_room,
        };
        Self {
            number,
            segment: Arc::new(segment),
            hazards,
            alive: AtomicBool::new(true),
            blocks: Arc::default(),
            gids,
            call_area,
            pending_atomic: no_pending_atomics(),
            common,
            counters: TrafficCounters::default(),
            peer: Some(peer),
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.peer.is_none()
    }

    /// Whether the peer has not died, as far as is known.
    #[inline]
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    pub(crate) fn set_dead(&self) {
        self.alive.store(false, Ordering::Release);
    }

    /// The peer's segment.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// This process's number in the peer's segment, which its claims carry.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Where the transfer of a transfer slot publishes its hazard.
    #[inline]
    pub(crate) fn hazard_slot(&self, transfer_slot: usize) -> &HazardSlot {
        &self.hazards.slots()[transfer_slot % TRANSFER_SLOTS]
    }

    /// The hazards of this process in the peer's memory.
    pub(crate) fn hazards(&self) -> &HazardPage {
        &self.hazards
    }

    /// The index in the peer's tables of one of its queue pairs.
    #[inline]
    pub(crate) fn index_of(&self, qpn: u32) -> Option<u32> {
        self.blocks.index_of(qpn)
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Whether a port of the peer has this GID.
    pub(crate) fn has_gid(&self, device: u8, port: u8, gid: [u8; 16]) -> bool {
        self.gids.contains(&PortGid { device, port, gid })
    }

    /// The index of a GID in the table of the peer's port.
    pub(crate) fn gid_index(&self, device: u8, port: u8, gid: [u8; 16]) -> Option<u8> {
        let mut of_port = self.gids.iter().filter(|of| (of.device, of.port) == (device, port));
        of_port.position(|of| of.gid == gid).and_then(|index| u8::try_from(index).ok())
    }

    /// Offset in the peer's heap of this process's call cells, one for each transfer slot.
    pub(crate) fn call_area(&self) -> u64 {
        self.call_area
    }

    /// The ticket of the operation whose answer still has to be collected from the cell of this
    /// transfer slot.
    pub(crate) fn pending_atomic(&self, transfer_slot: usize) -> Option<u64> {
        Some(self.pending_atomic[transfer_slot % TRANSFER_SLOTS].load(Ordering::Relaxed))
            .filter(|ticket| *ticket != 0)
    }

    /// Sets or clears the pending ticket. Only the holder of the transfer slot calls this.
    pub(crate) fn set_pending_atomic(&self, transfer_slot: usize, ticket: Option<u64>) {
        self.pending_atomic[transfer_slot % TRANSFER_SLOTS].store(ticket.unwrap_or(0), Ordering::Relaxed);
    }

    /// The peer's process number in this process's pid namespace.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.peer
            .as_ref()
            .map_or_else(|| Some(std::process::id()), |peer| (peer.pid != 0).then_some(peer.pid))
    }

    pub(crate) fn is_of(&self, process: &ProcessId, pid: u32) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.process == *process && peer.pid == pid)
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.peer.as_ref().map(|peer| &peer.socket)
    }

    /// The service thread's token of the connection.
    pub(crate) fn token(&self) -> Option<u64> {
        self.peer.as_ref().map(|peer| peer.token)
    }

    /// Whether the service thread waits for room in the socket.
    pub(crate) fn awaits_room(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.awaits_room.load(Ordering::Relaxed))
    }

    /// Records whether the service thread waits for room. True if that is a change.
    pub(crate) fn await_room(&self, room: bool) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.awaits_room.swap(room, Ordering::Relaxed) != room)
    }

    /// Counters of the payload sent to the peer.
    #[inline]
    pub(crate) fn counters(&self) -> &TrafficCounters {
        &self.counters
    }

    pub(crate) fn mappings(&self) -> Option<&PeerMappings> {
        self.peer.as_ref().map(|peer| &peer.mappings)
    }

    /// The peer's completion channels.
    pub(crate) fn channels(&self) -> Option<&PeerChannels> {
        self.peer.as_ref().map(|peer| &peer.channels)
    }

    /// Takes the descriptor of a completion channel, if the settings and the system let this process.
    pub(crate) fn take_channel(&self, channel: NonZero<u64>, descriptor: RawFd, id: u64) {
        if let Some(peer) = self.peer.as_ref().filter(|_| self.common.settings.vm) {
            peer.channels.insert(channel, || event_counter::of_process(peer.pid, descriptor, id));
        }
    }

    /// Rings the owner of the segment to look at an object. Never waits.
    pub(crate) fn ring(&self, doorbell: Doorbell) {
        let Some(peer) = &self.peer else {
            return self.common.mailbox.post(ServiceCommand::Ring(doorbell));
        };
        let packet = doorbell.encode();
        let sent = peer.socket.send(&packet);
        if sent.is_err() && !peer.socket.is_there() {
            // If the program has closed the socket, the peer can no longer be notified.
            self.common.mailbox.check();
            self.set_dead();
        } else if is_full(sent) {
            self.segment.shared_header().check_everything.store(1, SeqCst);
            // If the socket has room now, the peer may have looked before the word was set. If it
            // is still full, the peer has yet to read its contents, and looks at the word after
            // that.
            let _ = peer.socket.send(&packet);
        }
    }

    /// Exported memory of the peer, usable while the transfer slot is held. If it is not mapped,
    /// the peer is asked for it.
    #[inline]
    pub(crate) fn mapped_memory<'a>(
        &'a self,
        transfer_slot: &'a TransferSlotGuard<'_>,
        export: ExportId,
        write: bool,
    ) -> Option<MappedMemory<'a>> {
        let peer = self.peer.as_ref()?;
        if !self.common.settings.direct || !transfer_slot.is_of(&self.common.transfer_slots) {
            return None;
        }
        let mapped = peer.mappings.get(transfer_slot, export, write);
        if mapped.is_none() && peer.mappings.claim_request(export) {
            let _ = peer.socket.send(&PeerRequest::MapExport { export, write }.encode());
        }
        mapped
    }

    /// The peer's memory, if the system lets this process copy from and to it. The first call
    /// probes that, so it may take as long as a copy.
    #[inline]
    pub(crate) fn vm(&self) -> Option<Vm> {
        let Some(peer) = &self.peer else { return self.common.own_vm() };
        if peer.vm_lost.load(Ordering::Relaxed) {
            return None;
        }
        *peer.vm.get_or_init(|| {
            let common = &self.common;
            if !common.settings.vm {
                return None;
            }
            let (who, place) = ((peer.pid, peer.identity_page), (peer.probe, peer.probe_address));
            probe(who, &self.segment, place, &common.vm_warning_given)
        })
    }

    /// Stops copying by the system, which now fails with this `errno`. Payload takes the next path.
    #[cold]
    pub(crate) fn disable_vm(&self, error: i32) {
        let Some(peer) = &self.peer else { return };
        if !peer.vm_lost.swap(true, Ordering::Relaxed) {
            let error = io::Error::from_raw_os_error(error);
            warn_vm_unavailable(&self.common.vm_warning_given, peer.pid, &format!("no longer: {error}"));
        }
    }

    /// Tells the peer that this process no longer accesses its memory. The message is a word in its
    /// segment, because the socket may be full.
    pub(crate) fn say_goodbye(&self) {
        if !self.is_own() {
            self.hazard_slot(0).leave();
        }
    }

    /// Ends the connection, even while references to this object remain.
    pub(crate) fn shut_down(&self) {
        if let Some(peer) = &self.peer {
            peer.socket.shut_down();
        }
    }

    /// Has the service thread check whether the peer has died, because a copy failed.
    pub(crate) fn suspect(self: &Arc<Self>) {
        if !self.is_own() {
            self.common.mailbox.post(ServiceCommand::Suspect(Arc::clone(self)));
        }
    }

    /// Whether the peer is dead for certain.
    pub(crate) fn is_proved_dead(&self) -> bool {
        self.peer.as_ref().and_then(|peer| peer.identity).is_some_and(Process::is_dead)
    }
}

fn is_full(sent: io::Result<()>) -> bool {
    sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}
