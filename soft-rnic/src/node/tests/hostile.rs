//! Tests against peers of the same user that send nonsense. Each runs in a separate process, so
//! that the test can count its descriptors.

use std::cell::RefCell;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::super::message::{CM_MESSAGE, ExportRange, PeerRequest, REPLY, Reply, Welcome};
use super::super::numbers::{BLOCK_BITS, block_of};
use super::process::assert_sleeping;
use super::*;
use crate::platform::listeners;
use crate::platform::memory::FileMapping;
use crate::platform::socket::Received;
use crate::shared::segment::{MAX_PEERS, OWNED, PAGE, SHARED};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Sends a packet and any number of descriptors. False if the other end has closed the connection,
/// or lets no descriptors come.
fn send_all(socket: &Socket, packet: &[u8], files: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags).is_ok()
}

fn name(process: &TestNode, qpn: u32) -> Vec<u8> {
    // Of any user.
    let thing = process.node.state.thing_of(block_of(qpn).expect("a block"));
    let mut listeners = listeners::all(format!("{thing}/").as_bytes()).expect("a list");
    listeners.pop().expect("an owner").name
}

fn connect(process: &TestNode) -> Socket {
    let mut socket = None;
    eventually("room to connect", || {
        socket = Socket::connect(&name(process, process.qpn)).ok();
        socket.is_some()
    });
    let mut socket = socket.expect("connected");
    socket.peer_of(process.node.state.user).expect("this user");
    socket.take_descriptors();
    socket
}

fn hello() -> Vec<u8> {
    PeerRequest::Hello { version: LAYOUT_VERSION, process: [5; 16] }.encode()
}

/// A valid or corrupted packet.
fn packet(random: &mut Random) -> Vec<u8> {
    let export = ExportId { index: random.next() as u32, epoch: random.next() as u32 };
    let long = random.bytes(CM_MESSAGE + 1);
    let mut packet = match random.below(10) {
        0 => hello(),
        1 => PeerRequest::Hello { version: random.next(), process: [5; 16] }.encode(),
        2 => PeerRequest::MapExport { export, write: true }.encode(),
        3 => PeerRequest::MapExport {
            export: ExportId { index: 0, epoch: random.next() as u32 % 3 },
            write: true,
        }
        .encode(),
        4 => PeerRequest::Doorbell(Doorbell::Call { transfer_slot: random.next() as u16 }).encode(),
        5 => PeerRequest::Doorbell(Doorbell::Cq(random.next() as u32)).encode(),
        6 => {
            let message = &long[..random.below(CM_MESSAGE + 2)];
            PeerRequest::CmMessage { from: random.below(1100) as u16, message }.encode()
        }
        7 => PeerRequest::CmReset { from: random.below(1100) as u16 }.encode(),
        8 => {
            let len = random.below(100) + 1;
            random.bytes(len)
        }
        _ => {
            let len = random.below(10_000) + 1;
            random.bytes(len)
        }
    };
    match random.below(4) {
        0 => {
            let len = random.below(packet.len()) + 1;
            packet.truncate(len);
        }
        1 => {
            let range = random.below(packet.len());
            packet[range] ^= random.next() as u8;
        }
        _ => {}
    }
    packet
}

/// Many processes connect and send invalid first packets.
pub(super) fn pending() {
    let process = TestNode::new(&fabric());
    let before = descriptors();
    let file = rustix::fs::memfd_create("gift", MemfdFlags::CLOEXEC).expect("a file");
    let mut random = Random(0x5eed);
    let mut kept = Vec::new();
    for round in 0..600 {
        let socket = connect(&process);
        for _ in 0..random.below(3) {
            let files = vec![file.as_fd(); random.below(5)];
            send_all(&socket, &packet(&mut random), &files);
        }
        // Some of them have become attached peers.
        let _ = socket.send(&PeerRequest::Goodbye.encode());
        if round % 20 == 0 {
            kept.push(socket);
        }
    }
    // The node does not wait for silent connections.
    let friend = TestNode::new(&process.node.state.common.settings.fabric);
    let remote = friend.connect_to(process.qpn);
    remote.ring(Doorbell::Qp(77));
    process.expect(&HandlerCall::Qp(77));
    drop((remote, friend, kept, file));
    eventually("nothing left open", || descriptors() == before);
    eventually("nobody left", || process.node.state.peer_ids.iter().count() == 0);
}

/// Becomes an attached peer, and gets the parts of the segment and a page for its hazards.
pub(super) fn enter(process: &TestNode) -> (Socket, Welcome, [OwnedFd; 3]) {
    let socket = connect(process);
    socket.send(&hello()).expect("sent");
    let mut buffer = vec![0; REPLY];
    let mut welcome = None;
    eventually("welcome", || {
        if let Received::Packet(len, files) = socket.receive_with(&mut buffer) {
            welcome = Reply::decode(&buffer[..len]).zip(files.into_inner().ok());
        }
        welcome.is_some()
    });
    let Some((Reply::Welcome(welcome), parts)) = welcome else { panic!("{welcome:?}") };
    (socket, welcome, parts)
}

/// Says hello to the owner of a queue pair, and returns the outcome.
pub(super) fn try_to_enter(process: &TestNode, qpn: u32) -> &'static str {
    let socket = Socket::connect(&name(process, qpn)).expect("a listener");
    let _ = socket.send(&hello());
    let mut received = Received::Nothing;
    eventually("an answer", || {
        received = socket.receive_with(&mut [0; REPLY]);
        !matches!(received, Received::Nothing)
    });
    if matches!(received, Received::End) { "refused" } else { "let in" }
}

thread_local! {
    static BAIT: RefCell<Option<HostileOwner>> = const { RefCell::new(None) };
}

/// Becomes the owner of a block, and returns a queue pair in it.
pub(super) fn bait(process: &TestNode) -> u32 {
    let owner = HostileOwner::new(process);
    let qpn = owner.qpn;
    BAIT.set(Some(owner));
    qpn
}

/// Whether a process has connected to that block, and sent anything.
pub(super) fn taken_bait() -> &'static str {
    let owner = BAIT.take().expect("a bait");
    let Ok(caller) = owner.listener.accept() else { return "nothing was sent" };
    let mut received = Received::Nothing;
    eventually("a packet or the end", || {
        received = caller.receive_with(&mut [0; REPLY]);
        !matches!(received, Received::Nothing)
    });
    if matches!(received, Received::End) { "nothing was sent" } else { "hello was sent" }
}

/// An attached peer that sends requests and does not read the answers until the end.
pub(super) fn silent_peer() {
    let process = TestNode::new(&fabric());
    let exports: Vec<_> = (0..3)
        .map(|_| {
            process
                .node
                .exports()
                .add(Arc::new(FileMapping::create(c"shared", 4096).expect("memory")))
                .expect("room")
        })
        .collect();
    let (socket, ..) = enter(&process);
    for export in &exports {
        let ask = PeerRequest::MapExport { export: *export, write: false }.encode();
        socket.send(&ask).expect("room");
    }
    let nothing = PeerRequest::MapExport { export: ExportId { index: 9, epoch: 9 }, write: false }.encode();
    for _ in 0..3000 {
        eventually("heard", || socket.send(&nothing).is_ok());
    }
    exports.iter().for_each(|export| process.node.exports().remove(*export));
    assert_sleeping(std::process::id());
    let mut untold = exports;
    let mut buffer = vec![0; REPLY];
    eventually("all notices", || {
        if let Received::Packet(len, _) = socket.receive_with(&mut buffer)
            && let Some(Reply::ExportGone { export }) = Reply::decode(&buffer[..len])
        {
            untold.retain(|left| *left != export);
        }
        untold.is_empty()
    });
    assert_sleeping(std::process::id());
}

/// An attached peer that sends invalid packets.
pub(super) fn attached() {
    let process = TestNode::new(&fabric());
    let memory = Arc::new(FileMapping::create(c"shared", 4096).expect("memory"));
    let export = process.node.exports().add(memory).expect("room");
    process.node.exports().note_access(export, true, true);
    let before = descriptors();
    let (socket, welcome, _) = enter(&process);
    let mut buffer = vec![0; REPLY];
    let file = rustix::fs::memfd_create("gift", MemfdFlags::CLOEXEC).expect("a file");
    let mut random = Random(0xbad);
    for _ in 0..5000 {
        let files = vec![file.as_fd(); random.below(5)];
        send_all(&socket, &packet(&mut random), &files);
        if random.below(3) == 0 {
            // The node drops received descriptors.
            let _ = socket.receive_with(&mut buffer);
        }
        // The peer may write anywhere in the segment.
        process.node.segment().shared_header().check_everything.store(1, crate::sync::Relaxed);
    }
    process.node.exports().remove(export);
    // The peer is still attached, and its doorbells are heard.
    eventually("room for a doorbell", || socket.send(&Doorbell::Qp(77).encode()).is_ok());
    process.expect(&HandlerCall::Qp(77));
    // This process lives, so that without a goodbye the node would only treat the peer as
    // disconnected.
    eventually("room for a goodbye", || socket.send(&PeerRequest::Goodbye.encode()).is_ok());
    drop((socket, file));
    process.expect(&HandlerCall::PeerDetached(welcome.peer_id));
    // The exported memory had held one descriptor.
    eventually("nothing left open", || descriptors() == before - 1);
}

/// An attached peer whose connection manager claims another process's block, or a block without an
/// owner.
pub(super) fn impostor() {
    let process = TestNode::new(&fabric());
    let other = TestNode::new(&process.node.state.common.settings.fabric);
    let block = |process: &TestNode| process.node.own_block().expect("a block");
    process.node.send_cm(block(&other), b"first").expect("it can be sent");
    other.expect(&HandlerCall::CmMessage(block(&process), b"first".to_vec()));
    let before = descriptors();
    let say = |socket: &Socket, from, message| {
        socket.send(&PeerRequest::CmMessage { from, message }.encode()).expect("room")
    };
    let (socket, ..) = enter(&process);
    for from in [block(&other), block(&process)] {
        say(&socket, from, b"I am another");
        socket.send(&PeerRequest::CmReset { from }.encode()).expect("room");
    }
    // Later messages from it are delivered, because it may have a block whose name no longer
    // exists.
    let nobody =
        (1..=LAST_BLOCK).rev().find(|of| ![block(&other), block(&process)].contains(of)).expect("a block");
    say(&socket, nobody, b"I am nobody");
    process.expect_cm_calls(&[HandlerCall::CmMessage(nobody, b"I am nobody".to_vec())]);
    say(&socket, block(&other), b"I am another");
    socket.send(&PeerRequest::CmReset { from: block(&other) }.encode()).expect("room");
    socket.send(&PeerRequest::CmReset { from: nobody }.encode()).expect("room");
    process.expect_cm_calls(&[HandlerCall::Gone(nobody)]);
    other.node.send_cm(block(&process), b"I am myself").expect("it can be sent");
    process.expect_cm_calls(&[HandlerCall::CmMessage(block(&other), b"I am myself".to_vec())]);
    // Once another process owns the block, messages of this peer are no longer attributed to it.
    say(&socket, nobody, b"I am nobody");
    process.expect_cm_calls(&[HandlerCall::CmMessage(nobody, b"I am nobody".to_vec())]);
    let somebody = HostileOwner {
        listener: names::present(&process.node.state.thing_of(nobody)).expect("a descriptor"),
        qpn: u32::from(nobody) << BLOCK_BITS | 1,
    };
    process.node.send_cm(nobody, b"who are you?").expect("it can be sent");
    let caller = somebody.accept();
    let segment = good_part();
    send_all(
        &caller,
        &Reply::Welcome(good_welcome()).encode(),
        &[segment.as_fd(), segment.as_fd(), segment.as_fd()],
    );
    process.expect_cm_calls(&[HandlerCall::Gone(nobody)]);
    say(&socket, nobody, b"I am nobody");
    socket.send(&PeerRequest::CmReset { from: nobody }.encode()).expect("room");
    other.node.send_cm(block(&process), b"I am myself").expect("it can be sent");
    process.expect_cm_calls(&[HandlerCall::CmMessage(block(&other), b"I am myself".to_vec())]);
    drop((somebody, caller, segment));
    process.expect_cm_calls(&[HandlerCall::Gone(nobody)]);
    say(&socket, nobody, b"I am nobody");
    process.expect_cm_calls(&[HandlerCall::CmMessage(nobody, b"I am nobody".to_vec())]);
    // If the owner of the claimed block does not answer, the messages are delivered all the same:
    // after a while, or when too many are held.
    let silent = HostileOwner::new(&process);
    let silent_block = block_of(silent.qpn).expect("a block");
    for count in [3, 300] {
        let (socket, ..) = enter(&process);
        for _ in 0..count {
            eventually("room", || {
                socket.send(&PeerRequest::CmMessage { from: silent_block, message: b"x" }.encode()).is_ok()
            });
        }
        process.expect_cm_calls(&vec![HandlerCall::CmMessage(silent_block, b"x".to_vec()); count]);
        socket.send(&PeerRequest::Goodbye.encode()).expect("room");
        drop(socket);
        process.expect_cm_calls(&[HandlerCall::Gone(silent_block)]);
    }
    socket.send(&PeerRequest::Goodbye.encode()).expect("room");
    drop((socket, silent));
    process.expect_cm_calls(&[HandlerCall::Gone(nobody)]);
    // What remains is the connection to `other`, which owns its block.
    eventually("nothing left open", || descriptors() <= before + 2);
}

/// Owners of ports that give wrong answers.
pub(super) fn false_listeners() {
    let process = TestNode::new(&fabric());
    let before = descriptors();
    let file = rustix::fs::memfd_create("gift", MemfdFlags::CLOEXEC).expect("a file");
    let mut random = Random(0xd00b);
    for round in 0..300 {
        let port = ports::CmPort { space: 1, number: 1000 + round };
        let listener =
            names::present(&port.thing(&process.node.state.common.settings.fabric)).expect("a descriptor");
        assert_eq!(process.node.find_port(1, port.number, Instant::now() + LONG, 7, false), None);
        let mut caller = None;
        eventually("asked", || {
            caller = listener.accept().ok();
            caller.is_some()
        });
        let caller = caller.expect("asked");
        // A block that is not this process's own, because a lookup would recognize that.
        let block = if process.node.state.blocks.has(9) { 10 } else { 9 };
        let good = Reply::Block { block }.encode();
        let mut packet = good.clone();
        match random.below(5) {
            0 => packet.truncate(random.below(good.len()) + 1),
            1 => packet[1 + random.below(16)] ^= 1 << random.below(8),
            2 => packet.push(0),
            3 => {
                let len = random.below(4000) + 1;
                packet = random.bytes(len);
            }
            _ => {}
        }
        let is_sent = random.below(8) > 0 && send_all(&caller, &packet, &vec![file.as_fd(); random.below(5)]);
        drop(caller);
        let found = if is_sent && packet == good { PortOwner::Block(block) } else { PortOwner::Nobody };
        assert_eq!(process.calls.recv_timeout(LONG), Ok(HandlerCall::PortOwner(7, found)), "{packet:?}");
    }
    drop(file);
    eventually("nothing left open", || descriptors() == before);
}

/// A file that can be each part of a segment.
fn good_part() -> OwnedFd {
    segment_file(SHARED.length(1).max(OWNED.length(1)), SealFlags::SHRINK, LAYOUT_VERSION)
}

/// A file of a segment with the given properties.
fn segment_file(len: usize, seals: SealFlags, version: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("segment", flags).expect("a file");
    rustix::fs::ftruncate(&file, len as u64).expect("room");
    rustix::io::pwrite(&file, &version.to_le_bytes(), 0).expect("room");
    rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
    file
}

fn good_welcome() -> Welcome {
    Welcome {
        process: random(),
        peer_id: 1,
        ordinal: 0,
        call_area: SHARED.heap as u64,
        probe: SHARED.heap as u64 + 64,
        probe_address: 8,
        identity_page: 8,
        gids: Vec::new(),
    }
}

/// The owner of a block that gives wrong answers.
struct HostileOwner {
    listener: Socket,
    qpn: u32,
}

impl HostileOwner {
    /// Takes a block that has no owner and was never looked up, because after a failed lookup the
    /// node waits before the next.
    fn new(process: &TestNode) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        loop {
            let block = NEXT.fetch_add(1, Ordering::Relaxed) as u16;
            assert!(block <= LAST_BLOCK, "no block is left");
            let (thing, user) = (process.node.state.thing_of(block), process.node.state.socket_user);
            if let Some(listener) = names::claim(&thing, user).expect("descriptors") {
                return Self { listener, qpn: (u32::from(block) << BLOCK_BITS) | 1 };
            }
        }
    }

    fn accept(&self) -> Socket {
        let mut caller = None;
        eventually("called", || {
            caller = self.listener.accept().ok();
            caller.is_some()
        });
        caller.expect("called")
    }

    /// Accepts a connection and sends this answer.
    fn answer(process: &TestNode, packet: &[u8], files: &[BorrowedFd<'_>]) -> (Self, Socket, Reachability) {
        let owner = Self::new(process);
        assert!(matches!(process.node.find_process(owner.qpn), Reachability::Pending));
        let caller = owner.accept();
        send_all(&caller, packet, files);
        let reach = process.node.wait_for_process(owner.qpn, LONG);
        (owner, caller, reach)
    }
}

/// Owners of blocks that give a wrong answer to a connection.
pub(super) fn owner() {
    let process = TestNode::new(&fabric());
    let before = descriptors();
    let good = good_part();
    let reply = |welcome: Welcome| Reply::Welcome(welcome).encode();
    let refused = |what: &str, packet: &[u8], files: &[BorrowedFd<'_>]| {
        let (_owner, _caller, reach) = HostileOwner::answer(&process, packet, files);
        assert!(matches!(reach, Reachability::Nobody), "{what}: {reach:?}");
    };
    refused("no segment", &reply(good_welcome()), &[]);
    refused("one part", &reply(good_welcome()), &[good.as_fd()]);
    refused("no page", &reply(good_welcome()), &[good.as_fd(), good.as_fd()]);
    let longest = SHARED.length(1).max(OWNED.length(1));
    for (what, file) in [
        (
            "short",
            segment_file(SHARED.length(1).min(OWNED.length(1)) - 4096, SealFlags::SHRINK, LAYOUT_VERSION),
        ),
        ("unsealed", segment_file(longest, SealFlags::GROW, LAYOUT_VERSION)),
        ("a pipe", rustix::pipe::pipe().expect("a pipe").0),
        ("a program", std::fs::File::open("/proc/self/exe").expect("a file").into()),
    ] {
        refused(what, &reply(good_welcome()), &[file.as_fd(), good.as_fd(), good.as_fd()]);
        refused(what, &reply(good_welcome()), &[good.as_fd(), file.as_fd(), good.as_fd()]);
    }
    for (what, file) in [
        ("a short page", segment_file(PAGE - 8, SealFlags::SHRINK, 0)),
        ("an unsealed page", segment_file(PAGE, SealFlags::GROW, 0)),
        ("a page that is not writable", segment_file(PAGE, SealFlags::SHRINK | SealFlags::WRITE, 0)),
        ("a pipe for a page", rustix::pipe::pipe().expect("a pipe").0),
    ] {
        refused(what, &reply(good_welcome()), &[good.as_fd(), good.as_fd(), file.as_fd()]);
    }
    let other = segment_file(longest, SealFlags::SHRINK, LAYOUT_VERSION + 1);
    refused("another version", &reply(good_welcome()), &[other.as_fd(), good.as_fd(), good.as_fd()]);
    let read_only = segment_file(longest, SealFlags::SHRINK | SealFlags::WRITE, LAYOUT_VERSION);
    refused("not writable", &reply(good_welcome()), &[good.as_fd(), read_only.as_fd(), good.as_fd()]);
    drop((other, read_only));
    for (what, welcome) in [
        ("peer id 0", Welcome { peer_id: 0, ..good_welcome() }),
        ("no such peer id", Welcome { peer_id: MAX_PEERS as u16, ..good_welcome() }),
        ("no such block", Welcome { ordinal: 8, ..good_welcome() }),
        ("calls in the tables", Welcome { call_area: 0, ..good_welcome() }),
        ("calls beyond the end", Welcome { call_area: SHARED.length(1) as u64 - 64, ..good_welcome() }),
        ("calls that wrap", Welcome { call_area: u64::MAX - 63, ..good_welcome() }),
        ("crooked calls", Welcome { call_area: SHARED.heap as u64 + 8, ..good_welcome() }),
        ("probe beyond the end", Welcome { probe: SHARED.length(1) as u64, ..good_welcome() }),
        ("crooked probe", Welcome { probe: SHARED.heap as u64 + 1, ..good_welcome() }),
    ] {
        refused(what, &reply(welcome), &[good.as_fd(), good.as_fd(), good.as_fd()]);
    }
    refused(
        "another version",
        &Reply::OtherVersion { version: 9 }.encode(),
        &[good.as_fd(), good.as_fd(), good.as_fd()],
    );
    let mut random = Random(0xdecade);
    for _ in 0..150 {
        let mut packet = reply(good_welcome());
        let range = random.below(packet.len());
        match random.below(3) {
            0 => packet.truncate(range.max(1)),
            // Corrupt the magic number or the version.
            1 => packet[1 + range % 16] ^= 1 << random.below(8),
            _ => packet = random.bytes(range + 1),
        }
        let files = vec![good.as_fd(); random.below(5)];
        refused("garbage", &packet, &files);
    }
    lying_owner(&process, &reply(good_welcome()), &good);
    drop(good);
    eventually("nothing left open", || descriptors() == before);
}

/// An owner that gives a valid welcome, and wrong answers after it.
fn lying_owner(process: &TestNode, welcome: &[u8], segment: &OwnedFd) {
    // On a busy machine an answer may come too late.
    let answered = (0..5).find_map(|_| {
        // The last is one too many.
        let files = [segment.as_fd(); 4];
        match HostileOwner::answer(process, welcome, &files) {
            (owner, caller, Reachability::Ready(remote)) => Some((owner, caller, remote)),
            _ => None,
        }
    });
    let (owner, caller, remote) = answered.expect("a remote");
    assert!(remote.vm().is_none(), "its segment is not at the address that it gave");
    let export = ExportId { index: 3, epoch: 4 };
    let transfer_slot = || process.node.transfer_slot(0);
    let range = ExportRange { base: 4096, len: 8192, offset: 0 };
    let answer = |range, writable| Reply::Export { export, writable, range }.encode();
    let sealed = |len| segment_file(len, SealFlags::SHRINK, 0);
    let file = sealed(8192);
    // The node has not asked for this memory. The first timer may fire in a turn of the service
    // thread that had already begun. In the next turn the thread reads packets before it runs
    // timers.
    send_all(&caller, &answer(range, true), &[file.as_fd()]);
    for timer in [1, 2] {
        process.node.wake_at(Instant::now(), timer);
        process.expect(&HandlerCall::Timer(timer));
    }
    let mut wrong = vec![
        (answer(ExportRange { len: 8193, ..range }, true), sealed(8192)),
        (answer(ExportRange { len: u64::MAX, ..range }, true), sealed(8192)),
        (answer(ExportRange { len: 0, ..range }, true), sealed(8192)),
        (answer(ExportRange { offset: 4096, ..range }, true), sealed(8192)),
        (answer(ExportRange { offset: u64::MAX, ..range }, true), sealed(8192)),
        (answer(ExportRange { offset: 1, len: 4096, ..range }, true), sealed(8192)),
        (answer(range, true), segment_file(8192, SealFlags::GROW, 0)),
        (answer(range, true), segment_file(8192, SealFlags::SHRINK | SealFlags::WRITE, 0)),
        (answer(range, true), std::fs::File::open("/dev/zero").expect("a device").into()),
        (
            Reply::Export { export: ExportId { epoch: 5, ..export }, writable: true, range }.encode(),
            sealed(8192),
        ),
        (answer(range, false), sealed(8192)),
        (answer(range, true), file),
    ];
    // A huge page that is not available would kill the process that touches it. Not every system
    // has huge pages.
    if let Ok(huge) = rustix::fs::memfd_create("huge", MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING) {
        let _ = rustix::fs::ftruncate(&huge, 1 << 30);
        let _ = rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK);
        wrong.insert(0, (answer(range, true), huge));
    }
    let last = wrong.len() - 1;
    let mut buffer = [0; 100];
    for (count, (packet, file)) in wrong.iter().enumerate() {
        eventually("asked", || {
            assert!(remote.mapped_memory(&transfer_slot(), export, true).is_none(), "answer {count}");
            let Received::Packet(len, _) = caller.receive(&mut buffer) else { return false };
            PeerRequest::decode(&buffer[..len]) == Some(PeerRequest::MapExport { export, write: true })
        });
        send_all(&caller, packet, &[file.as_fd(), file.as_fd()]);
        if count == last {
            // The node may take the previous answer for the answer to the last request. Then it
            // asks again.
            eventually("mapped", || {
                let mapped = remote.mapped_memory(&transfer_slot(), export, true).is_some();
                if !mapped && matches!(caller.receive(&mut buffer), Received::Packet(..)) {
                    send_all(&caller, packet, &[file.as_fd()]);
                }
                mapped
            });
        }
    }
    let mut random = Random(0xfeed);
    let file = sealed(4096);
    for _ in 0..3000 {
        let export = ExportId { index: random.next() as u32 % 8, epoch: random.next() as u32 % 8 };
        let range = ExportRange { base: random.next(), len: random.next(), offset: random.next() };
        let packet = match random.below(5) {
            0 => Reply::ExportGone { export }.encode(),
            1 => Reply::NoExport { export }.encode(),
            2 => Reply::Export { export, writable: true, range }.encode(),
            3 => welcome.to_vec(),
            _ => {
                let len = random.below(200) + 1;
                random.bytes(len)
            }
        };
        send_all(&caller, &packet, &vec![file.as_fd(); random.below(5)]);
    }
    assert!(remote.alive());
    drop((caller, owner));
    process.expect(&HandlerCall::PeerLost(1));
}
