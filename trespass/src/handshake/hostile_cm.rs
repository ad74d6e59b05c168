//! Fuzzing of the rdma_cm handshake: a peer that sends any private data, and then any bytes over
//! the queue pair.
//!
//! What must hold: nothing panics, there is never memory for more than one message, as many receives are asked for as a message can
//! take, and there is an agreement only after a whole CM_PREFIX and a whole HELLO.
//!
//! The input: one byte of choices, then pieces, each a length (16 bits) and so many bytes, or what is left. The first is the private
//! data, the others come over the queue pair. Checksums are set right where chosen, since no fuzzer guesses those.

use super::Attempt;
use super::cm::{CmExchange, rejection_message};
use crate::wire::{HandshakeMessage, MAX_MESSAGE, PREAMBLE, REJECT_DATA, Role, checksum};

/// Runs one input. Panics if something is amiss.
#[cfg(fuzzing)]
pub fn hostile_exchange(data: &[u8]) {
    run(data);
}

/// Whether there was an agreement.
fn run(data: &[u8]) -> bool {
    let Some((&choices, mut data)) = data.split_first() else { return false };
    let mut side = side(choices);
    let mut is_prefix_received = false;
    while let Some((len, rest)) = data.split_first_chunk() {
        let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
        data = rest;
        let piece = if choices & 4 == 0 { piece.to_vec() } else { checked(piece) };
        let outcome = match is_prefix_received {
            false => side.prefix_received(&piece).map(|()| None),
            true => side.received(&piece),
        };
        assert!(side.capacity() <= MAX_MESSAGE, "{}", side.capacity());
        match outcome {
            Ok(Some(agreed)) => {
                assert!(agreed.peer.slot_size.is_power_of_two() && agreed.peer.rx_slots >= 16);
                return true;
            }
            Ok(None) => {
                assert!((1..=8).contains(&side.receives()), "{}", side.receives());
                assert!((512..=8192).contains(&side.piece()), "{}", side.piece());
                is_prefix_received = true;
            }
            Err(error) => {
                if let Some(words) = rejection_message(&error) {
                    assert!(
                        words.len() <= REJECT_DATA
                            && matches!(HandshakeMessage::decode(&words), Ok(HandshakeMessage::Reject(_)))
                    );
                }
                return false;
            }
        }
    }
    false
}

fn side(choices: u8) -> CmExchange {
    let slot_size = if choices & 2 == 0 { 8192 } else { 512 };
    let mut terms = super::hostile::terms();
    terms.limits.slot_size = slot_size;
    match choices & 1 {
        0 => CmExchange::server(terms),
        _ => CmExchange::client(terms, Attempt { conn_id: 0, generation: 0, role: Role::Client }),
    }
}

/// The same with the checksum of the message that it begins with.
fn checked(piece: &[u8]) -> Vec<u8> {
    let mut bytes = piece.to_vec();
    let told = bytes.get(8..12).map_or(0, |len| u32::from_le_bytes(len.try_into().unwrap_or_default()));
    if let Some(message) = bytes.get_mut(..told as usize).filter(|message| message.len() >= PREAMBLE) {
        let crc = checksum(message);
        message[12..PREAMBLE].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;
    use crate::corpus;

    /// Whatever is found lies in the corpus from then on.
    #[test]
    fn fuzzing_corpus_passes() {
        corpus::replay("exchange", 4, |data| _ = run(data));
    }

    /// An exchange that goes well, as an input.
    fn good(choices: u8) -> Vec<u8> {
        let other = side(choices ^ 1);
        // The client's number is 0 here, which is what a server begins with.
        let (mut data, hello) = (vec![choices], other.hello_bytes());
        let piece = if choices & 2 == 0 { 8192 } else { 512 };
        for piece in std::iter::once(&other.cm_prefix()[..]).chain(hello.chunks(piece)) {
            data.extend_from_slice(&(piece.len() as u16).to_le_bytes());
            data.extend_from_slice(piece);
        }
        data
    }

    #[test]
    fn good_exchanges_end_well() {
        for choices in 0..8 {
            assert!(run(&good(choices)), "{choices}");
        }
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        for _ in 0..20_000 {
            let mut data = vec![0; rng.next_u32() as usize % 500];
            rng.fill_bytes(&mut data);
            assert!(!run(&data));
        }
    }

    /// Good exchanges with a few bytes changed get further than noise.
    #[test]
    fn changed_exchanges_do_no_harm() {
        let (mut rng, mut ends) = (ChaCha8Rng::seed_from_u64(10), [0, 0]);
        for _ in 0..30_000 {
            let mut data = good(rng.next_u32() as u8);
            for _ in 0..rng.next_u32() % 4 {
                let at = rng.next_u32() as usize % data.len();
                data[at] = rng.next_u32() as u8;
            }
            ends[usize::from(run(&data))] += 1;
        }
        assert!(ends[0] > 1000 && ends[1] > 1000, "{ends:?} are refused, and agreed on");
    }

    /// Renews the corpus's beginnings: `cargo test -p trespass write_the_corpus -- --ignored`.
    #[test]
    #[ignore = "writes files"]
    fn write_the_corpus() {
        let names = [("client_raw", 1), ("server_raw", 0), ("client_checked", 7), ("server_checked", 6)];
        corpus::write("exchange", names.map(|(name, choices)| (name, good(choices))));
    }
}
