//! A handshake message of arbitrary bytes, for fuzzing.
//!
//! The message is rejected or decoded. A decoded message must survive encoding and decoding, and
//! decoding must keep no more data than the message had.
//!
//! The input is the message; its checksum is corrected, because no fuzzer guesses it.

use super::preamble::checksum;
use super::{HandshakeMessage, Hello, MAX_MESSAGE, PREAMBLE, Ready};

/// Runs one input, and panics if a requirement is violated.
#[cfg(fuzzing)]
pub fn hostile_message(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) {
    let _ = HandshakeMessage::decode(data);
    let _ = HandshakeMessage::decode_private(data);
    if data.len() < PREAMBLE || data.len() > MAX_MESSAGE {
        return;
    }
    let mut bytes = data.to_vec();
    let len = bytes.len() as u32;
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(&bytes);
    bytes[12..PREAMBLE].copy_from_slice(&crc.to_le_bytes());
    let Ok(message) = HandshakeMessage::decode(&bytes) else { return };
    let again = match &message {
        HandshakeMessage::Hello(hello) => {
            assert!(hello.user_data.len() <= bytes.len());
            hello.encode()
        }
        HandshakeMessage::Reject(reject) => reject.encode(),
        HandshakeMessage::Ready(ready) => ready.encode(),
        HandshakeMessage::Probe(probe) => probe.encode().to_vec(),
        HandshakeMessage::CmPrefix(cm_prefix) => cm_prefix.encode(),
    };
    let again = HandshakeMessage::decode(&again).expect("what is written can be read");
    assert_eq!(without_words(again), without_words(message));
}

/// A text that was cut within a character loses a few more bytes when it is encoded again.
fn without_words(mut message: HandshakeMessage) -> HandshakeMessage {
    match &mut message {
        HandshakeMessage::Hello(Hello { path: Err(why), .. })
        | HandshakeMessage::Ready(Ready { verdict: Err(why), .. }) => {
            why.detail.clear();
        }
        HandshakeMessage::Reject(reject) => reject.text.clear(),
        _ => {}
    }
    message
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::super::golden;
    use super::*;
    use crate::corpus;

    /// Inputs that fuzzing found stay in the corpus.
    #[test]
    fn fuzzing_corpus_passes() {
        corpus::replay("messages", 4, run);
    }

    #[test]
    fn changed_messages_do_no_harm() {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let messages: Vec<_> = golden::one_of_each().into_iter().map(|(_, bytes)| bytes).collect();
        for _ in 0..50_000 {
            let mut data = messages[rng.next_u32() as usize % messages.len()].clone();
            for _ in 0..rng.next_u32() % 4 {
                let at = rng.next_u32() as usize % data.len();
                data[at] = rng.next_u32() as u8;
            }
            data.truncate(data.len() - (rng.next_u32() as usize % 40).saturating_sub(30));
            run(&data);
        }
    }

    /// Rewrites the initial inputs of the corpus: `cargo test -p trespass write_the_corpus --
    /// --ignored`.
    #[test]
    #[ignore = "writes files"]
    fn write_the_corpus() {
        corpus::write("messages", golden::one_of_each());
    }
}
