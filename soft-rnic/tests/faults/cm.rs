//! Fault rules for CM messages: lost, delayed, duplicated, and rejected.

use std::ffi::c_int;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_mummy_sys::RdmaCm;
use rdma_mummy_sys::types::rdma_cm_event_type as Kind;
use rdma_mummy_sys::types::*;
use soft_rnic::faults;

use crate::bench::*;

/// The number of times that an unanswered message is sent: once, plus fifteen retries.
const TRIES: u64 = 16;
const TCP: rdma_port_space = rdma_port_space::RDMA_PS_TCP;
const UDP: rdma_port_space = rdma_port_space::RDMA_PS_UDP;

fn cm() -> &'static RdmaCm {
    provider().rdmacm().expect("the software devices have a connection manager")
}

#[track_caller]
fn good(result: c_int) {
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn loopback(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    }
}

/// An event channel and its ids, destroyed on drop.
struct CmChannel {
    raw: *mut rdma_event_channel,
    ids: Vec<*mut rdma_cm_id>,
}

impl CmChannel {
    fn new() -> Self {
        // SAFETY: the function has no preconditions.
        let raw = unsafe { (cm().rdma_create_event_channel)() };
        assert!(!raw.is_null(), "{}", std::io::Error::last_os_error());
        Self { raw, ids: Vec::new() }
    }

    fn id(&mut self, space: rdma_port_space) -> *mut rdma_cm_id {
        let mut id = ptr::null_mut();
        // SAFETY: the channel is live.
        good(unsafe { (cm().rdma_create_id)(self.raw, &raw mut id, ptr::null_mut(), space) });
        self.ids.push(id);
        id
    }

    /// The kind, id and status of the next event; `None` if none comes in time.
    fn next(&mut self, milliseconds: c_int) -> Option<(Kind, *mut rdma_cm_id, c_int)> {
        // SAFETY: the channel is live, its descriptor open, and each event is read before it is
        // acknowledged.
        unsafe {
            let mut poll = libc::pollfd { fd: (*self.raw).fd, events: libc::POLLIN, revents: 0 };
            if libc::poll(&raw mut poll, 1, milliseconds) == 0 {
                return None;
            }
            let mut event = ptr::null_mut();
            good((cm().rdma_get_cm_event)(self.raw, &raw mut event));
            let told = ((*event).event, (*event).id, (*event).status);
            if told.0 == Kind::RDMA_CM_EVENT_CONNECT_REQUEST {
                self.ids.push(told.1);
            }
            good((cm().rdma_ack_cm_event)(event));
            Some(told)
        }
    }

    #[track_caller]
    fn expect(&mut self, kind: Kind, status: c_int) -> *mut rdma_cm_id {
        let told = self.next(20_000).unwrap_or_else(|| panic!("{kind:?} never came"));
        assert_eq!((told.0, told.2), (kind, status), "an event and its status");
        told.1
    }

    /// Expects no event for longer than a message is repeated.
    #[track_caller]
    fn expect_silence(&mut self) {
        if let Some((kind, ..)) = self.next(200) {
            panic!("{kind:?}");
        }
    }

    fn destroy(&mut self, id: *mut rdma_cm_id) {
        self.ids.retain(|of| *of != id);
        // SAFETY: the id is live, and its events are acknowledged.
        good(unsafe { (cm().rdma_destroy_id)(id) });
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        for id in std::mem::take(&mut self.ids) {
            self.destroy(id);
        }
        // SAFETY: the channel's ids are destroyed.
        unsafe { (cm().rdma_destroy_event_channel)(self.raw) };
    }
}

/// The active side, and the listening side.
struct CmPair {
    here: CmChannel,
    there: CmChannel,
    port: u16,
    space: rdma_port_space,
    pairs: u32,
}

impl CmPair {
    fn new(space: rdma_port_space) -> Self {
        // Set up the devices first, so that they are the same whichever table is used first.
        table();
        let (here, mut there) = (CmChannel::new(), CmChannel::new());
        let (listener, mut address) = (there.id(space), loopback(0));
        // SAFETY: the id is live, and the address valid.
        let port = unsafe {
            good((cm().rdma_bind_addr)(listener, (&raw mut address).cast()));
            good((cm().rdma_listen)(listener, 64));
            u16::from_be((cm().rdma_get_src_port)(listener))
        };
        Self { here, there, port, space, pairs: 100 }
    }

    /// Connection parameters with a fresh queue pair number.
    fn parameters(&mut self) -> rdma_conn_param {
        self.pairs += 1;
        rdma_conn_param { qp_num: self.pairs, ..rdma_conn_param::default() }
    }

    fn ask(&mut self) -> *mut rdma_cm_id {
        let (id, mut to) = (self.here.id(self.space), loopback(self.port));
        let mut parameters = self.parameters();
        // SAFETY: the id is live, and the address and the parameters are valid.
        unsafe {
            good((cm().rdma_resolve_addr)(id, ptr::null_mut(), (&raw mut to).cast(), 2000));
            self.here.expect(Kind::RDMA_CM_EVENT_ADDR_RESOLVED, 0);
            good((cm().rdma_resolve_route)(id, 2000));
            self.here.expect(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
            good((cm().rdma_connect)(id, &raw mut parameters));
        }
        id
    }

    fn accept(&mut self) -> *mut rdma_cm_id {
        let id = self.there.expect(Kind::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        let mut parameters = self.parameters();
        // SAFETY: the id is live, and the parameters valid.
        good(unsafe { (cm().rdma_accept)(id, &raw mut parameters) });
        id
    }

    fn establish(&mut self) -> *mut rdma_cm_id {
        let id = self.here.expect(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
        // SAFETY: the event names a live id, because only `CmChannel` destroys its ids, in
        // `destroy` or on drop.
        good(unsafe { cm().rdma_establish.expect("soft-rnic has rdma_establish")(id) });
        id
    }

    /// Connects the two sides.
    fn connected(&mut self) -> [*mut rdma_cm_id; 2] {
        self.ask();
        let passive = self.accept();
        let active = self.establish();
        assert_eq!(self.there.expect(Kind::RDMA_CM_EVENT_ESTABLISHED, 0), passive);
        [active, passive]
    }

    /// Disconnects both sides.
    fn part(&mut self, [active, passive]: [*mut rdma_cm_id; 2]) {
        disconnect(active);
        assert_eq!(self.there.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, 0), passive);
        disconnect(passive);
        assert_eq!(self.here.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, 0), active);
        self.here.expect(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        self.there.expect(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    }
}

fn disconnect(id: *mut rdma_cm_id) {
    // SAFETY: callers pass an id of a `CmChannel`, which destroys it only in `destroy` or on drop.
    good(unsafe { (cm().rdma_disconnect)(id) });
}

#[test]
fn a_request_that_is_lost_comes_again() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    rules("drop cm=req first=3");
    let pair = sides.connected();
    assert_eq!(fired(), [3]);
    sides.part(pair);
}

#[test]
fn a_request_that_is_always_lost_times_out() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    rules("drop cm=req");
    let active = sides.ask();
    assert_eq!(sides.here.expect(Kind::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT), active);
    assert_eq!(fired(), [TRIES]);
    sides.there.expect_silence();
}

#[test]
fn a_reply_that_is_lost_comes_again() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    rules("drop cm=rep nth=1");
    let pair = sides.connected();
    assert_eq!(fired(), [1]);
    sides.part(pair);
}

#[test]
fn a_reply_that_is_always_lost_times_out_on_both_sides() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    rules("drop cm=rep");
    let active = sides.ask();
    let passive = sides.accept();
    assert_eq!(sides.here.expect(Kind::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT), active);
    assert_eq!(sides.there.expect(Kind::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT), passive);
    // The passive side repeats its reply by itself, and for each repeated request.
    assert!(fired()[0] >= TRIES, "{:?}", fired());
}

#[test]
fn a_last_word_that_is_lost_is_asked_for_again() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    rules("drop cm=rtu nth=1; delay=1us cm=rep");
    let pair = sides.connected();
    assert_eq!(fired()[0], 1);
    assert!(fired()[1] >= 2, "the reply comes again: {:?}", fired());
    sides.part(pair);
}

/// One side believes that it is connected, and the other does not.
#[test]
fn a_last_word_that_is_always_lost_leaves_one_side_alone() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    rules("drop cm=rtu");
    sides.ask();
    let passive = sides.accept();
    let active = sides.establish();
    assert_eq!(sides.there.expect(Kind::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT), passive);
    sides.there.destroy(passive);
    sides.here.expect_silence();
    // No peer exists that could object.
    disconnect(active);
    sides.here.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, 0);
    sides.here.expect(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
}

#[test]
fn a_connection_ends_though_nobody_hears_of_it() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    let [active, passive] = sides.connected();
    rules("drop cm=dreq");
    disconnect(active);
    sides.here.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, -libc::ETIMEDOUT);
    sides.here.expect(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    assert_eq!(fired(), [TRIES]);
    sides.there.expect_silence();
    // The other side can disconnect, too.
    faults::clear();
    disconnect(passive);
    sides.there.next(20_000).expect("it has ended");
    sides.here.expect_silence();
}

#[test]
fn a_connection_ends_though_the_answer_is_lost() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    let [active, passive] = sides.connected();
    rules("drop cm=drep");
    disconnect(active);
    sides.there.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, 0);
    disconnect(passive);
    sides.here.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, -libc::ETIMEDOUT);
    for side in [&mut sides.here, &mut sides.there] {
        side.expect(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        side.expect_silence();
    }
    assert!(fired()[0] >= 1);
}

/// Duplicated, reordered or delayed messages do not change the number of events.
#[test]
fn repeated_cm_message_raises_no_second_event() {
    const ALL: &str = "cm=req,mra,rep,rtu,rej,dreq,drep,sidr_req,sidr_rep";
    for text in [format!("duplicate=2 {ALL}"), format!("duplicate {ALL}; delay=1us..3ms {ALL}")] {
        let _turn = turn();
        let (mut sides, mut datagrams) = (CmPair::new(TCP), CmPair::new(UDP));
        rules(&text);
        for _ in 0..10 {
            let pair = sides.connected();
            sides.part(pair);
            let active = sides.ask();
            let passive = sides.there.expect(Kind::RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            // SAFETY: the id lives; there is no data.
            good(unsafe { (cm().rdma_reject)(passive, ptr::null(), 0) });
            assert_eq!(sides.here.expect(Kind::RDMA_CM_EVENT_REJECTED, 28), active);
            datagrams.ask();
            datagrams.accept();
            datagrams.here.expect(Kind::RDMA_CM_EVENT_ESTABLISHED, 0);
        }
        for side in [&mut sides.here, &mut sides.there, &mut datagrams.here, &mut datagrams.there] {
            side.expect_silence();
        }
        assert!(fired().iter().all(|fired| *fired >= 80), "{:?}", fired());
    }
}

#[test]
fn a_message_that_is_late_arrives() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    let begin = Instant::now();
    rules("delay=20ms..25ms cm=req nth=1; delay=20ms cm=rep nth=1; delay=20ms cm=rtu nth=1");
    let pair = sides.connected();
    assert!(begin.elapsed() >= Duration::from_millis(60), "{:?}", begin.elapsed());
    assert_eq!(fired(), [1, 1, 1]);
    sides.part(pair);
}

#[test]
fn a_rejection_is_told_to_whoever_knows_of_the_connection() {
    let _turn = turn();
    let mut sides = CmPair::new(TCP);
    for (text, status) in [("reject cm=req nth=1", 28), ("reject=3 cm=req nth=1", 3)] {
        rules(text);
        let active = sides.ask();
        assert_eq!(sides.here.expect(Kind::RDMA_CM_EVENT_REJECTED, status), active);
        sides.there.expect_silence();
    }
    rules("reject=1 cm=rep nth=1");
    sides.ask();
    let passive = sides.accept();
    sides.here.expect(Kind::RDMA_CM_EVENT_REJECTED, 1);
    assert_eq!(sides.there.expect(Kind::RDMA_CM_EVENT_REJECTED, 1), passive);
    rules("reject cm=rtu nth=1");
    sides.ask();
    let passive = sides.accept();
    let active = sides.establish();
    assert_eq!(sides.here.expect(Kind::RDMA_CM_EVENT_REJECTED, 28), active);
    assert_eq!(sides.there.expect(Kind::RDMA_CM_EVENT_REJECTED, 28), passive);
    let mut datagrams = CmPair::new(UDP);
    rules("reject cm=sidr_req nth=1");
    datagrams.ask();
    datagrams.here.expect(Kind::RDMA_CM_EVENT_UNREACHABLE, 2);
    datagrams.there.expect_silence();
}

#[test]
fn a_datagram_service_that_does_not_answer_is_unreachable() {
    let _turn = turn();
    for text in ["drop cm=sidr_req", "drop cm=sidr_rep"] {
        let mut sides = CmPair::new(UDP);
        rules(text);
        sides.ask();
        if text.ends_with("rep") {
            sides.accept();
        }
        sides.here.expect(Kind::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        assert!(fired()[0] >= 1, "{text}");
        faults::clear();
    }
}

/// Lost messages end in an error event on each side.
#[test]
fn every_attempt_comes_to_something() {
    let _turn = turn();
    for seed in 0..2 {
        let mut sides = CmPair::new(TCP);
        let text = "drop cm=req,rep,rtu,dreq,drep chance=0.4; duplicate cm=req,rep,rtu,dreq,drep chance=0.4";
        faults::set(faults::parse(text).unwrap(), seed).unwrap();
        for _ in 0..3 {
            let active = sides.ask();
            let passive = sides.accept();
            match sides.here.next(20_000).expect("a reply, or a timeout") {
                (Kind::RDMA_CM_EVENT_CONNECT_RESPONSE, id, 0) => {
                    assert_eq!(id, active);
                    // SAFETY: `sides.here` owns the id, and has not destroyed it.
                    good(unsafe { cm().rdma_establish.unwrap()(id) });
                    let (told, id, _) = sides.there.next(20_000).expect("RTU, or a timeout");
                    assert!(
                        [Kind::RDMA_CM_EVENT_ESTABLISHED, Kind::RDMA_CM_EVENT_UNREACHABLE].contains(&told),
                        "{told:?}"
                    );
                    assert_eq!(id, passive);
                    disconnect(active);
                    let (told, ..) = sides.here.next(20_000).expect("the end");
                    assert_eq!(told, Kind::RDMA_CM_EVENT_DISCONNECTED);
                }
                (told, ..) => assert_eq!(told, Kind::RDMA_CM_EVENT_UNREACHABLE),
            }
            sides.here.destroy(active);
            sides.there.destroy(passive);
        }
        faults::clear();
    }
}

/// The child of the next test.
#[test]
#[ignore = "a child process, which another test starts"]
fn listens_in_a_process_of_its_own() {
    assert!(crate::children::is_child());
    let mut sides = CmPair::new(TCP);
    println!("port {}", sides.port);
    let passive = sides.accept();
    sides.there.expect(Kind::RDMA_CM_EVENT_ESTABLISHED, 0);
    sides.there.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, 0);
    disconnect(passive);
    sides.there.expect(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    println!("acted {:?}", fired());
}

/// Each process has its rules, which apply to the messages that it sends.
#[test]
fn rules_hold_between_processes() {
    let _turn = turn();
    // Names the fabric of this process, so that both share one host.
    let fabric = format!("faults-{}", std::process::id());
    let variables = [
        ("SOFT_RNIC_FABRIC", fabric.as_str()),
        ("SOFT_RNIC_DEVICES", "2"),
        ("SOFT_RNIC_PORTS", "2"),
        ("SOFT_RNIC_TIME_SCALE", "0.01"),
        ("SOFT_RNIC_FAULTS", "drop cm=rep nth=1; duplicate=2 cm=drep first=1"),
    ];
    let mut child =
        crate::children::child("cm::listens_in_a_process_of_its_own", &variables).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = |of: &str| {
        let found =
            out.by_ref().map(|line| line.unwrap()).find_map(|line| Some(line.split_once(of)?.1.to_owned()));
        found.unwrap_or_else(|| panic!("the child never said {of:?}"))
    };
    let mut sides = CmPair::new(TCP);
    sides.port = line("port ").parse().unwrap();
    rules("reject=3 cm=req nth=1; duplicate cm=req nth=2; drop cm=rtu nth=1; delay=1ms..5ms cm=dreq nth=1");
    let active = sides.ask();
    assert_eq!(sides.here.expect(Kind::RDMA_CM_EVENT_REJECTED, 3), active);
    let active = sides.ask();
    assert_eq!(sides.establish(), active);
    // The child notices that the RTU message is missing.
    until(|| (faults::report()[2].matched >= 2).then_some(()));
    disconnect(active);
    sides.here.expect(Kind::RDMA_CM_EVENT_DISCONNECTED, 0);
    sides.here.expect(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    assert_eq!(fired(), [1; 4]);
    assert_eq!(line("acted "), "[1, 1]");
    assert!(child.wait().unwrap().success());
}
