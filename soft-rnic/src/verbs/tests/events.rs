use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use crate::objects::completion::Cqe;
use crate::objects::event::{AsyncEvent, EventElement};
use crate::shared::completion::Fired;
use crate::verbs::channel::channel_of;
use crate::verbs::completion_queue::cq_of;
use crate::verbs::context::context_of;
use crate::verbs::testing::{OpenedDevice, SendPtr, errno, table};

fn success(wr_id: u64) -> Cqe {
    Cqe { wr_id, ..Cqe::default() }
}

fn failure(wr_id: u64) -> Cqe {
    Cqe { wr_id, status: ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0, ..Cqe::default() }
}

/// Makes a descriptor non-blocking.
fn set_nonblocking(fd: i32) {
    if !cfg!(miri) {
        // SAFETY: the descriptor is open.
        unsafe {
            assert!(fd >= 0);
            let flags = libc::fcntl(fd, libc::F_GETFL);
            assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        }
    }
}

struct EventsFixture {
    opened: OpenedDevice,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
}

/// The context pointer that the program gave its queue.
const COOKIE: *mut c_void = ptr::without_provenance_mut(0x77);

impl EventsFixture {
    fn new() -> Self {
        let opened = OpenedDevice::new(0);
        // SAFETY: the context is open.
        unsafe {
            let channel = (table().ibv_create_comp_channel)(opened.0);
            set_nonblocking((*channel).fd);
            let cq = (table().ibv_create_cq)(opened.0, 8, COOKIE, channel, 0);
            assert!(!cq.is_null());
            Self { opened, channel, cq }
        }
    }

    /// The next event's queue, or the errno.
    fn event(&self) -> Result<*mut ibv_cq, i32> {
        let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live.
        let result = unsafe { (table().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut cookie) };
        if result != 0 {
            return Err(errno());
        }
        assert_eq!(cookie, COOKIE);
        Ok(cq)
    }

    fn push(&self, cqe: Cqe, solicited: bool) {
        // SAFETY: the queue is live.
        unsafe { cq_of(self.cq) }.push(cqe, solicited);
    }

    fn arm(&self, solicited_only: i32) {
        // SAFETY: the queue is live.
        assert_eq!(unsafe { verbs::ibv_req_notify_cq(self.cq, solicited_only) }, 0);
    }

    /// A second queue of the channel.
    fn second(&self) -> Self {
        // SAFETY: the context is open, and the channel live.
        let cq = unsafe { (table().ibv_create_cq)(self.opened.0, 8, COOKIE, self.channel, 0) };
        assert!(!cq.is_null());
        Self { opened: OpenedDevice::new(0), channel: self.channel, cq }
    }

    /// A peer leaves a note in the queue, and marks it if it says to have written a token.
    fn note(&self, is_marked: bool) {
        // SAFETY: the queue is live.
        let cq = unsafe { cq_of(self.cq) };
        let entry = cq.context().rnic().node().segment().completion_queue(cq.index()).expect("an entry");
        let Fired::First(note) = entry.fire() else { panic!("the first note") };
        if is_marked {
            entry.woken(note);
        }
    }

    /// A peer writes a token.
    fn give(&self) {
        // SAFETY: the channel is live.
        unsafe { channel_of(self.channel) }.fail();
    }

    fn destroy_cq(&self) {
        // SAFETY: the queue is live, and nobody uses it afterwards.
        assert_eq!(unsafe { (table().ibv_destroy_cq)(self.cq) }, 0);
    }

    fn ack(&self, count: u32) {
        // SAFETY: the queue is live.
        unsafe { (table().ibv_ack_cq_events)(self.cq, count) };
    }

    fn end(self) {
        // SAFETY: all objects are live until they are destroyed here.
        unsafe {
            assert_eq!((table().ibv_destroy_comp_channel)(self.channel), libc::EBUSY);
            assert_eq!((table().ibv_destroy_cq)(self.cq), 0);
            assert_eq!((table().ibv_destroy_comp_channel)(self.channel), 0);
        }
    }
}

#[test]
fn armed_queue_fires_once() {
    let bench = EventsFixture::new();
    bench.push(success(1), true);
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    bench.arm(0);
    bench.push(success(2), false);
    bench.push(success(3), true);
    assert_eq!(bench.event(), Ok(bench.cq));
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    bench.ack(1);
    bench.end();
}

#[test]
fn solicited_arming_fires_for_solicited_and_errors_only() {
    let bench = EventsFixture::new();
    bench.arm(1);
    bench.push(success(1), false);
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    bench.push(success(2), true);
    assert_eq!(bench.event(), Ok(bench.cq));
    bench.arm(1);
    bench.push(failure(3), false);
    assert_eq!(bench.event(), Ok(bench.cq));
    // An armed "any completion" is not narrowed by a later request for solicited ones.
    bench.arm(0);
    bench.arm(1);
    bench.push(success(4), false);
    assert_eq!(bench.event(), Ok(bench.cq));
    bench.ack(3);
    bench.end();
}

/// What a peer writes without a token takes no event of this process away.
#[test]
fn a_note_without_a_token_takes_no_event_away() {
    let bench = EventsFixture::new();
    let noted = bench.second();
    let complete_beside_a_note = || {
        noted.note(true);
        bench.arm(0);
        bench.push(success(1), false);
    };
    // Another queue's token serves for the note.
    noted.arm(0);
    complete_beside_a_note();
    let mut events = [bench.event(), noted.event()];
    events.sort();
    let mut expected = [Ok(bench.cq), Ok(noted.cq)];
    expected.sort();
    assert_eq!(events, expected);
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    // The program waits for no event of the noted queue: when it takes an event, when it asks for
    // one of the noted queue, and when it destroys that.
    for _ in 0..2 {
        complete_beside_a_note();
        assert_eq!(bench.event(), Ok(bench.cq));
        assert_eq!(bench.event(), Err(libc::EAGAIN));
    }
    complete_beside_a_note();
    noted.arm(0);
    assert_eq!(bench.event(), Ok(bench.cq));
    noted.ack(1);
    noted.push(success(1), false);
    assert_eq!(noted.event(), Ok(noted.cq));
    complete_beside_a_note();
    noted.ack(1);
    noted.destroy_cq();
    assert_eq!(bench.event(), Ok(bench.cq));
    bench.ack(5);
    bench.end();
}

/// A program that asks again before it reads gets the event of the first request, and a peer that
/// completes after that leaves a new note.
#[test]
fn a_note_becomes_an_event_at_the_next_request() {
    for is_marked in [true, false] {
        let bench = EventsFixture::new();
        bench.arm(0);
        bench.note(is_marked);
        if is_marked {
            bench.give();
        }
        bench.arm(0);
        bench.note(true);
        bench.give();
        assert_eq!([bench.event(), bench.event()], [Ok(bench.cq); 2]);
        assert_eq!(bench.event(), Err(libc::EAGAIN));
        bench.ack(2);
        bench.end();
    }
}

/// A peer was stopped before it wrote a token, and the service thread has delivered the event.
/// Whoever sees the token gets an event.
#[test]
fn a_token_too_many_brings_an_event() {
    let bench = EventsFixture::new();
    bench.arm(0);
    bench.note(false);
    // SAFETY: the queue is live.
    unsafe { cq_of(bench.cq) }.look();
    bench.give();
    assert_eq!([bench.event(), bench.event()], [Ok(bench.cq); 2]);
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    bench.ack(2);
    bench.end();
}

/// Two peers have left notes without marks and one of them a token. The other may be stopped.
#[test]
fn each_unmarked_note_brings_an_event() {
    let bench = EventsFixture::new();
    let second = bench.second();
    for bench in [&bench, &second] {
        bench.arm(0);
        bench.note(false);
    }
    bench.give();
    assert_eq!([bench.event(), bench.event()], [Ok(second.cq), Ok(bench.cq)]);
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    bench.ack(1);
    second.ack(1);
    second.destroy_cq();
    bench.end();
}

#[test]
fn untaken_event_is_removed_with_its_queue() {
    let bench = EventsFixture::new();
    bench.arm(0);
    bench.push(success(1), false);
    let lib = table();
    // SAFETY: all are live until they are destroyed.
    unsafe {
        assert_eq!((lib.ibv_destroy_cq)(bench.cq), 0);
        assert_eq!(bench.event(), Err(libc::EAGAIN));
        let cq = (lib.ibv_create_cq)(bench.opened.0, 8, COOKIE, bench.channel, 0);
        let bench = EventsFixture { cq, ..bench };
        bench.arm(0);
        bench.push(success(1), false);
        assert_eq!(bench.event(), Ok(cq));
        bench.ack(1);
        bench.end();
    }
}

/// The state between the first and the last step of a destruction that another thread executes.
#[test]
fn event_of_a_queue_under_destruction_is_not_delivered() {
    let bench = EventsFixture::new();
    bench.arm(0);
    bench.push(success(1), false);
    // SAFETY: the queue is live, and the context open.
    let (cq, context) = unsafe { (Arc::clone(cq_of(bench.cq)), context_of(bench.opened.0)) };
    let element = EventElement::Cq(Arc::clone(&cq));
    context.raise(AsyncEvent { kind: ibv_event_type::IBV_EVENT_CQ_ERR, element });
    cq.set_handle(ptr::null_mut());
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    // SAFETY: the context is open.
    set_nonblocking(unsafe { (*bench.opened.0).async_fd });
    let mut event = ibv_async_event::default();
    // SAFETY: the context is open, and the event is local.
    assert_eq!(unsafe { (table().ibv_get_async_event)(bench.opened.0, &raw mut event) }, -1);
    assert_eq!(errno(), libc::EAGAIN);
    // The destruction does not wait for an acknowledgement.
    cq.set_handle(bench.cq);
    drop((cq, context));
    bench.end();
}

#[test]
fn destroy_waits_for_the_acknowledgements() {
    let bench = EventsFixture::new();
    bench.arm(0);
    bench.push(success(1), false);
    assert_eq!(bench.event(), Ok(bench.cq));
    let cq = SendPtr::new(bench.cq);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        use std::sync::atomic::Ordering::SeqCst;
        let destroyer = scope.spawn({
            let done = &done;
            move || {
                // SAFETY: the queue is live, and nobody uses it afterwards.
                let result = unsafe { (table().ibv_destroy_cq)(cq.get()) };
                done.store(true, SeqCst);
                result
            }
        });
        for _ in 0..20 {
            std::thread::yield_now();
        }
        assert!(!done.load(SeqCst));
        bench.ack(1);
        assert_eq!(destroyer.join().unwrap(), 0);
    });
    // SAFETY: the channel is live.
    assert_eq!(unsafe { (table().ibv_destroy_comp_channel)(bench.channel) }, 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri's stand-in for the descriptor does not wait")]
fn a_blocking_channel_waits() {
    let opened = OpenedDevice::new(0);
    let lib = table();
    // SAFETY: all are live until they are destroyed.
    unsafe {
        let channel = (lib.ibv_create_comp_channel)(opened.0);
        let cq = opened.cq(8, channel);
        assert_eq!(verbs::ibv_req_notify_cq(cq, 0), 0);
        let (state, there) = (Arc::clone(cq_of(cq)), SendPtr::new(channel));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                let (mut cq, mut cookie) = (ptr::null_mut(), ptr::null_mut());
                let channel = there.get();
                let result = (lib.ibv_get_cq_event)(channel, &raw mut cq, &raw mut cookie);
                (result, SendPtr::new(cq))
            });
            state.push(success(1), false);
            let (result, woken) = waiter.join().unwrap();
            assert_eq!((result, woken.get()), (0, cq));
        });
        (lib.ibv_ack_cq_events)(cq, 1);
        drop(state);
        assert_eq!((lib.ibv_destroy_cq)(cq), 0);
        assert_eq!((lib.ibv_destroy_comp_channel)(channel), 0);
    }
}

/// The next asynchronous event, or the errno.
fn async_event(opened: &OpenedDevice) -> Result<ibv_async_event, i32> {
    let mut event = ibv_async_event {
        element: ibv_async_event__bindgen_ty_1 { port_num: -1 },
        event_type: ibv_event_type(u32::MAX),
    };
    // SAFETY: the context is open.
    let result = unsafe { (table().ibv_get_async_event)(opened.0, &raw mut event) };
    if result == 0 { Ok(event) } else { Err(errno()) }
}

#[test]
fn overrun_raises_one_event() {
    let bench = EventsFixture::new();
    let lib = table();
    // SAFETY: the context is open.
    set_nonblocking(unsafe { (*bench.opened.0).async_fd });
    assert_eq!(async_event(&bench.opened).err(), Some(libc::EAGAIN));
    (0..10).for_each(|number| bench.push(success(number), false));
    let mut event = async_event(&bench.opened).ok().unwrap();
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_CQ_ERR);
    // SAFETY: the event's element is a queue.
    assert_eq!(unsafe { event.element.cq }, bench.cq);
    assert_eq!(async_event(&bench.opened).err(), Some(libc::EAGAIN));
    // The completions that fitted are still in the queue.
    let mut wc = [ibv_wc::default(); 16];
    // SAFETY: the queue is live, and there is room for sixteen.
    unsafe {
        assert_eq!(verbs::ibv_poll_cq(bench.cq, 16, wc.as_mut_ptr()), 8);
        (lib.ibv_ack_async_event)(&raw mut event);
    }
    assert_eq!(wc[7].wr_id, 7);
    bench.end();
}

#[test]
fn port_change_raises_an_event() {
    let opened = OpenedDevice::new(0);
    // SAFETY: the context is open.
    let context = unsafe { context_of(opened.0) };
    context.raise_port(2, ibv_port_state::IBV_PORT_DOWN);
    context.raise_port(1, ibv_port_state::IBV_PORT_ACTIVE);
    for (kind, port) in [(ibv_event_type::IBV_EVENT_PORT_ERR, 2), (ibv_event_type::IBV_EVENT_PORT_ACTIVE, 1)]
    {
        let mut event = async_event(&opened).ok().unwrap();
        assert_eq!(event.event_type, kind);
        // SAFETY: the event's element is a port.
        unsafe {
            assert_eq!(event.element.port_num, port);
            (table().ibv_ack_async_event)(&raw mut event);
        }
    }
}

/// Destruction takes the handle away first, so an event that is taken at that moment must not
/// contain a null handle.
#[test]
fn async_event_of_an_object_under_destruction_is_not_delivered() {
    let bench = EventsFixture::new();
    // SAFETY: the context is open, and the queue live.
    let state = unsafe {
        set_nonblocking((*bench.opened.0).async_fd);
        Arc::clone(cq_of(bench.cq))
    };
    bench.arm(0);
    (0..10).for_each(|number| bench.push(success(number), false));
    state.set_handle(ptr::null_mut());
    assert_eq!(bench.event(), Err(libc::EAGAIN));
    assert_eq!(async_event(&bench.opened).err(), Some(libc::EAGAIN));
    // No event was delivered, so none must be acknowledged.
    drop(state);
    bench.end();
}
