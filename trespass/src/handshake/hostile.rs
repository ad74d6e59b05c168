//! Fuzzing of the TCP handshake: a peer that sends any bytes, to either side.
//!
//! It checks that nothing panics or loops, that memory is bounded by one message, and that RDMA is
//! used only after a valid HELLO and READY, and only by a side that has it.
//!
//! The input has one byte of choices ([`InputFlags`]), then pieces: each is a length (8 bits) and
//! its bytes, or the rest of the input. One read returns one piece. With a choice, a piece becomes
//! the body of a message with a valid header and checksum, because a fuzzer does not guess those.
//! `trespass/fuzz` runs it under libFuzzer, and the tests here run it on seeded random bytes and on
//! the corpus.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::{Agreed, Attempt, DataPath, TcpHandshake, Terms};
use crate::wire::{Cause, Unavailable};
use crate::wire::{
    Endpoint, Features, Kind, Limits, LinkLayer, MAJOR, MAX_MESSAGE, MINOR, PREAMBLE, Policy, Role, checksum,
};

/// Calls after which a side must have ended, because each takes a piece or finds none.
const CALLS: usize = 5000;

/// Runs one input. Panics if a check fails.
#[cfg(fuzzing)]
pub fn hostile_handshake(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) {
    let Some((&choices, pieces)) = data.split_first() else { return };
    let choices = InputFlags(choices);
    let mut stream = ScriptedSocket::new(choices, pieces);
    let path = choices.has_device().then_some(WorkingPath).ok_or(Unavailable::new(Cause::NoDevice, ""));
    let (now, attempt) = (Instant::now(), Attempt { conn_id: 0, generation: 0, role: Role::Client });
    let mut side = match choices.role() {
        Role::Client => TcpHandshake::client(choices.terms(), attempt, path, now),
        Role::Server => TcpHandshake::server(choices.terms(), path, now),
    };
    for _ in 0..CALLS {
        let poll = side.progress(&mut stream, Instant::now);
        assert!(side.incoming_capacity() <= MAX_MESSAGE, "{}", side.incoming_capacity());
        if let Poll::Ready(result) = poll {
            if let Ok(established) = result {
                assert!(established.path.is_err() || choices.has_device());
                assert!(stream.given >= 2 * PREAMBLE, "agreed on nothing");
            }
            return;
        }
    }
    panic!("it goes on for ever");
}

/// The choices of the first byte.
#[derive(Clone, Copy)]
struct InputFlags(u8);

impl InputFlags {
    fn role(self) -> Role {
        if self.0 & 1 == 0 { Role::Server } else { Role::Client }
    }

    fn has_device(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether pieces become messages.
    fn frames(self) -> bool {
        self.0 & 4 != 0
    }

    fn terms(self) -> Terms {
        let policy = [Policy::Auto, Policy::RequireRdma, Policy::TcpOnly][usize::from(self.0 >> 3) % 3];
        Terms {
            kind: if self.0 & 0x80 == 0 { Kind::Stream } else { Kind::SeqPacket },
            policy,
            deadline: Duration::from_secs(600),
            ..terms()
        }
    }
}

/// Default terms.
pub(super) fn terms() -> Terms {
    Terms {
        first_slots: None,
        devices: None,
        kind: Kind::Stream,
        takes_either_kind: false,
        policy: Policy::Auto,
        features: Features::KNOWN,
        limits: Limits {
            slot_size: 8192,
            rx_slots: 64,
            eager_max: 65536,
            max_rts: 16,
            rd_atomic_in: 16,
            rd_atomic_out: 16,
            max_msg: 1 << 30,
        },
        user_data: Vec::new(),
        probe_timeout: Duration::from_millis(300),
        deadline: Duration::from_secs(5),
        minor: MINOR,
    }
}

/// A data path that always works.
struct WorkingPath;

impl DataPath for WorkingPath {
    fn prepare(&mut self, _: Attempt) -> Result<Endpoint, Unavailable> {
        let gid = [1; 16];
        let link_layer = LinkLayer::Ethernet;
        let (service_level, traffic_class, device) = (0, 0, 0);
        Ok(Endpoint {
            qp_num: 1,
            psn: 1,
            gid,
            lid: 0,
            mtu: 3,
            link_layer,
            service_level,
            traffic_class,
            device,
        })
    }

    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable> {
        assert!(peer.qp_num < 1 << 24 && peer.psn < 1 << 24 && (1..=5).contains(&peer.mtu));
        assert!(agreed.peer.slot_size.is_power_of_two() && agreed.peer.rx_slots >= 16);
        assert!(
            u64::from(agreed.peer.eager_max) <= agreed.peer.max_msg && agreed.peer.max_msg <= Limits::MAX_MSG
        );
        Ok(())
    }

    fn probe(&mut self, _: Instant) -> Poll<Result<(), Unavailable>> {
        Poll::Ready(Ok(()))
    }
}

/// A socket that returns one piece after the other, then its end.
struct ScriptedSocket {
    pieces: VecDeque<Vec<u8>>,
    pause: bool,
    given: usize,
}

impl ScriptedSocket {
    fn new(choices: InputFlags, mut data: &[u8]) -> Self {
        let mut pieces = VecDeque::new();
        while let Some((&len, rest)) = data.split_first() {
            let (piece, rest) = rest.split_at(usize::from(len).min(rest.len()));
            pieces.push_back(if choices.frames() { framed(piece) } else { piece.to_vec() });
            data = rest;
        }
        Self { pieces, pause: false, given: 0 }
    }
}

/// A message with the type and the fixed length that the piece begins with.
fn framed(piece: &[u8]) -> Vec<u8> {
    let [kind, units, body @ ..] = piece else { return piece.to_vec() };
    let mut bytes = b"TRSP".to_vec();
    bytes.extend_from_slice(&[kind % 6, MAJOR, 0, units % 20]);
    bytes.extend_from_slice(&((PREAMBLE + body.len()) as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(body);
    let crc = checksum(&bytes);
    bytes[12..PREAMBLE].copy_from_slice(&crc.to_le_bytes());
    bytes
}

impl Read for ScriptedSocket {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.pause = !self.pause;
        if self.pause {
            return Err(ErrorKind::WouldBlock.into());
        }
        while self.pieces.front().is_some_and(Vec::is_empty) {
            self.pieces.pop_front();
        }
        let Some(piece) = self.pieces.front_mut() else { return Ok(0) };
        let len = piece.len().min(into.len());
        into[..len].copy_from_slice(&piece[..len]);
        piece.drain(..len);
        self.given += len;
        Ok(len)
    }
}

impl Write for ScriptedSocket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::corpus;
    use crate::wire::{Hello, Ready};

    /// Every input that once failed stays in the corpus.
    #[test]
    fn fuzzing_corpus_passes() {
        corpus::replay("handshake", 4, run);
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let mut rng = ChaCha8Rng::seed_from_u64(6);
        for round in 0..20_000 {
            let mut data = vec![0; rng.next_u32() as usize % 700];
            rng.fill_bytes(&mut data);
            if round % 2 == 0
                && let Some(first) = data.first_mut()
            {
                *first |= 4;
            }
            run(&data);
        }
    }

    /// A valid handshake as an input.
    pub(super) fn good(choices: u8) -> Vec<u8> {
        let terms = InputFlags(choices).terms();
        let role = super::super::fake::other(InputFlags(choices).role());
        let hello = Hello {
            first_slots: None,
            devices: None,
            minor: terms.minor,
            features: terms.features,
            conn_id: 0,
            generation: 0,
            role,
            kind: terms.kind,
            policy: Policy::Auto,
            limits: terms.limits,
            path: WorkingPath.prepare(Attempt { conn_id: 0, generation: 0, role }),
            user_data: b"fuzz".to_vec(),
        };
        let ready = Ready { conn_id: 0, generation: 0, role, verdict: Ok(()) };
        let mut data = vec![choices];
        for message in [hello.encode(), ready.encode()] {
            let piece = match InputFlags(choices).frames() {
                true => [&[message[4], message[7]], &message[PREAMBLE..]].concat(),
                false => message,
            };
            data.push(piece.len() as u8);
            data.extend(piece);
        }
        data
    }

    /// Valid handshakes with a few changed bytes reach deeper code than random bytes.
    #[test]
    fn changed_handshakes_do_no_harm() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        for _ in 0..20_000 {
            let mut data = good(rng.next_u32() as u8);
            for _ in 0..rng.next_u32() % 4 {
                let at = rng.next_u32() as usize % data.len();
                data[at] = rng.next_u32() as u8;
            }
            run(&data);
        }
    }

    /// The unchanged handshakes succeed, so the changed ones reach the end.
    #[test]
    fn good_handshakes_end_well() {
        for choices in [0b010, 0b011, 0b110, 0b111] {
            let data = good(choices);
            let mut stream = ScriptedSocket::new(InputFlags(choices), &data[1..]);
            let attempt = Attempt { conn_id: 0, generation: 0, role: Role::Client };
            let (terms, now) = (InputFlags(choices).terms(), Instant::now());
            let mut side = match InputFlags(choices).role() {
                Role::Client => TcpHandshake::client(terms, attempt, Ok(WorkingPath), now),
                Role::Server => TcpHandshake::server(terms, Ok(WorkingPath), now),
            };
            let result = (0..10).find_map(|_| match side.progress(&mut stream, Instant::now) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            });
            assert!(result.expect("an end").expect("a connection").path.is_ok());
        }
    }

    /// Writes the seed inputs again: `cargo test -p trespass write_the_corpus -- --ignored`.
    #[test]
    #[ignore = "writes files"]
    fn write_the_corpus() {
        let names = [
            ("good_client_raw", 0b011),
            ("good_server_raw", 0b010),
            ("good_client_framed", 0b111),
            ("good_server_framed", 0b110),
        ];
        corpus::write("handshake", names.map(|(name, choices)| (name, good(choices))));
    }
}
