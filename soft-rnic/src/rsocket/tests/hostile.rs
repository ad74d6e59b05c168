//! A peer that violates the protocol loses its connection; nothing else breaks.

use std::sync::MutexGuard;

use rdma_mummy_sys::types::*;

use super::super::message::{ImmData, RemoteMapping, RsMessageKind};
use super::super::options::{RDMA_IOMAPSIZE, RDMA_RQSIZE, SOL_RDMA};
use super::super::socket::RsState;
use super::super::table;
use super::*;

const DATA: u32 = (RsMessageKind::Data as u32) << 16;

/// A connection with few and short receives. One end will be hostile; the other accepts one
/// mapping.
fn victim_and_enemy() -> (TestSocket, TestSocket) {
    pair_with(|socket| {
        assert_eq!(socket.set(SOL_RDMA, RDMA_RQSIZE, 16), Ok(0));
        assert_eq!(socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 4096), Ok(0));
        assert_eq!(socket.set(SOL_RDMA, RDMA_IOMAPSIZE, 1), Ok(0));
        assert_eq!(socket.get(libc::SOL_SOCKET, libc::SO_RCVBUF), Ok(16 * 256));
    })
}

/// Posts a hand-made request at the hostile end.
fn post(enemy: &TestSocket, wr: ibv_send_wr, bytes: &[u8]) {
    let socket = table::get(enemy.0).expect("an rsocket");
    let mut state: MutexGuard<'_, RsState> = socket.locked();
    let queues = &mut state.stream.as_mut().expect("a stream").queues;
    // Take the completions, and answer no message.
    queues.poll(&mut [const { None }; 32]);
    // SAFETY: the first slot has room for the bytes, and nobody else uses it, because nothing else
    // is sent.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), queues.send_slot(0), bytes.len()) };
    queues.post(wr, Some((0, bytes.len() as u32))).expect("the request can be posted");
}

fn message(opcode: ibv_wr_opcode, bits: u32) -> ibv_send_wr {
    let mut wr = ibv_send_wr { opcode, ..ibv_send_wr::default() };
    wr.__bindgen_anon_1.imm_data = bits.to_be();
    wr
}

fn say(enemy: &TestSocket, bits: u32, bytes: &[u8]) {
    post(enemy, message(ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, bits), bytes);
}

/// Checks that the connection is cut off, and that calls other than reads behave as after any lost
/// connection.
fn expect_cut_off(victim: TestSocket, what: &str) {
    assert_ne!(victim.poll(libc::POLLIN, PATIENCE_MS) & libc::POLLHUP, 0, "{what}");
    assert_eq!(victim.receive(&mut [0; 9000], 0), Err(libc::ECONNRESET), "{what}");
    assert_eq!(victim.receive(&mut [0; 9000], 0), Ok(0), "{what}");
    assert_eq!(victim.send(b"x", 0), Err(libc::EPIPE), "{what}");
    assert_eq!(victim.close(), Ok(0), "{what}");
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn messages_that_cannot_be_end_the_connection() {
    let note = |kind, credits| ImmData { kind, credits }.encode();
    let mapping = RemoteMapping { offset: 0, length: 8, address: 4096, rkey: 1 };
    for (what, bits, bytes) in [
        ("an unknown kind", 9 << 16, &[][..]),
        ("too many credits", note(RsMessageKind::Credit, 5000), &[]),
        ("bytes with credits", note(RsMessageKind::Credit, 0), &[1]),
        ("bytes with an end", note(RsMessageKind::End, 0), &[1]),
        ("a mapping that is too short", note(RsMessageKind::Map, 0), &mapping.encode()[1..]),
        ("a mapping that is too long", note(RsMessageKind::Map, 0), &[1; 200]),
        (
            "an impossible mapping",
            note(RsMessageKind::Map, 0),
            &RemoteMapping { length: 0, ..mapping }.encode(),
        ),
        ("an offset that is too short", note(RsMessageKind::Unmap, 0), &[1; 7]),
        ("an offset that is too long", note(RsMessageKind::Unmap, 0), &[1; 256]),
        ("more than a receive holds", DATA, &[1; 257]),
    ] {
        let (victim, enemy) = victim_and_enemy();
        say(&enemy, bits, bytes);
        expect_cut_off(victim, what);
    }
    let (victim, enemy) = victim_and_enemy();
    say(&enemy, note(RsMessageKind::Map, 0), &mapping.encode());
    say(&enemy, note(RsMessageKind::Map, 0), &RemoteMapping { offset: 8, ..mapping }.encode());
    expect_cut_off(victim, "more mappings than it accepts");
    let (victim, enemy) = victim_and_enemy();
    post(&enemy, message(ibv_wr_opcode::IBV_WR_SEND, 0), &[1]);
    expect_cut_off(victim, "no immediate data");
}

/// A message after the stream's end adds nothing to the stream.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn nothing_comes_behind_the_end() {
    let (victim, enemy) = victim_and_enemy();
    say(&enemy, DATA, b"all");
    say(&enemy, ImmData { kind: RsMessageKind::End, credits: 0 }.encode(), &[]);
    say(&enemy, DATA, b"more");
    let mut bytes = [0; 9];
    assert_ne!(victim.poll(libc::POLLRDHUP, PATIENCE_MS) & libc::POLLRDHUP, 0);
    assert_eq!((victim.receive(&mut bytes, libc::MSG_WAITALL), &bytes[..3]), (Ok(3), &b"all"[..]));
    assert_eq!(victim.receive(&mut bytes, 0), Ok(0));
}

/// A write with immediate into mapped memory consumes a receive like a message, and may be longer
/// than any.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_write_is_no_message() {
    let mut memory = vec![0_u8; 4096];
    let (victim, enemy) = victim_and_enemy();
    // SAFETY: the memory outlives the rsocket.
    let offset =
        unsafe { (cm().riomap)(victim.0, memory.as_mut_ptr().cast(), memory.len(), libc::PROT_WRITE, 0, 0) };
    assert_eq!(offset, 0);
    assert_eq!((victim.send(b"!", 0), enemy.receive(&mut [0], 0)), (Ok(1), Ok(1)));
    let to = {
        let socket = table::get(enemy.0).expect("an rsocket");
        let state = socket.locked();
        state.stream.as_ref().and_then(|stream| stream.mapping(0, 4096)).expect("it was told")
    };
    let mut wr = message(ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, DATA);
    (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (to.address, to.rkey);
    post(&enemy, wr, &[7; 4096]);
    expect_cut_off(victim, "a write");
    assert!(memory.iter().all(|byte| *byte == 7));
}

/// A peer that returns no credits cannot make its victim's counters grow without bound.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn peer_that_sends_without_credits_is_disconnected() {
    let (victim, enemy) = victim_and_enemy();
    let mut byte = [0];
    let mut last = Err(libc::EAGAIN);
    for _ in 0..1000 {
        say(&enemy, DATA, &[]);
        last = victim.receive(&mut byte, libc::MSG_DONTWAIT);
        if last != Err(libc::EAGAIN) {
            break;
        }
    }
    assert_eq!(last, Err(libc::ECONNRESET));
}

/// The request exists, but its sender has left.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn accept_skips_requests_of_peers_that_left() {
    let (listener, address) = listener(libc::AF_INET);
    listener.make_nonblocking();
    for others in [false, true] {
        let gone = TestSocket::new(libc::AF_INET);
        gone.make_nonblocking();
        assert_eq!(gone.connect(address), Err(libc::EINPROGRESS));
        assert_eq!(listener.poll(libc::POLLIN, PATIENCE_MS), libc::POLLIN);
        assert_eq!(gone.close(), Ok(0));
        if others {
            let active = TestSocket::new(libc::AF_INET);
            active.make_nonblocking();
            assert_eq!(active.connect(address), Err(libc::EINPROGRESS));
            let passive = listener.accept().expect("the second");
            assert_eq!(active.poll(libc::POLLOUT, PATIENCE_MS), libc::POLLOUT);
            assert_eq!((active.send(b"x", 0), passive.receive(&mut [0], 0)), (Ok(1), Ok(1)));
        } else {
            assert_eq!(listener.accept().map(drop), Err(libc::EAGAIN));
        }
    }
}
