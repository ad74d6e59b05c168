//! The shared secret: each side proves to the other that it knows it, before it asks for anything.
//!
//! ```text
//! client                          server
//!   Hello: a nonce           ->
//!                            <-     Challenge: a nonce
//!   Proof                    ->
//!                            <-     Proof
//!   Request and so on
//! ```
//!
//! Argon2id makes a key of the secret, with a fixed salt: once in a process, because a derivation
//! for each connection would let strangers use up the processor.
//!
//! A proof is the HMAC-SHA-256, under that key, of the side's role and both nonces, so that no
//! proof is valid for another connection or for the other side. The client's proof comes first: an
//! attacker who listens at the server's port learns nothing against which to test a guess. The
//! traffic that follows is neither encrypted nor signed.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use argon2::{Algorithm, Argon2, Block, Params, Version};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::link::WORD_LIMIT;
use super::{ControlError, ControlLink, ControlMessage, FrameTransport};

/// Random bytes that no side sends twice.
pub type Nonce = [u8; 32];

/// An HMAC-SHA-256 value.
pub type Proof = [u8; 32];

/// The shortest accepted secret in bytes; a shorter one could be guessed.
pub const SHORTEST_SECRET: usize = 16;

/// The longest accepted secret in bytes.
pub const LONGEST_SECRET: usize = 4096;

/// The salt of the key. It is the same for all, because both sides must have the same key before
/// they exchange anything; its version changes with the parameters below.
const SALT: &[u8] = b"stride-perf control secret, version 1";

/// The memory of one derivation in KiB, and the passes over it: the first choice of OWASP's list.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;

/// The key that proofs are made with.
type SecretKey = [u8; 32];

/// The secret from which this process derived a key last, with that key.
static DERIVED: Mutex<Option<(Vec<u8>, SecretKey)>> = Mutex::new(None);

/// The key of the shared secret. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(SecretKey);

/// The reason why bytes are not accepted as a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The secret is short enough to be guessed.
    #[error(
        "the secret has {given} bytes, fewer than {SHORTEST_SECRET}, and could be guessed: make one with \
         `head -c 32 /dev/urandom | base64`"
    )]
    TooShort {
        /// Its length in bytes.
        given: usize,
    },
    /// The file is too long, and so probably the wrong file.
    #[error("the secret has more than {LONGEST_SECRET} bytes: give the file that has the secret alone")]
    TooLong,
}

/// The reason why a side refuses the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretRefusal {
    /// The server has a secret, and the client gave no proof.
    Missing,
    /// The client has a secret, and the server has none.
    Unexpected,
    /// The proof was made with another secret.
    Wrong,
}

/// The side that made a proof.
#[derive(Clone, Copy, Debug)]
enum Prover {
    Client,
    Server,
}

impl Secret {
    /// Makes a secret of these bytes, without a line end at their end. The first call with them
    /// takes some hundredths of a second and 19 MiB.
    ///
    /// # Errors
    ///
    /// They are too few or too many.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        match bytes.len() {
            given @ ..SHORTEST_SECRET => Err(SecretError::TooShort { given }),
            ..=LONGEST_SECRET => Ok(Self(key_of(bytes))),
            _ => Err(SecretError::TooLong),
        }
    }

    fn mac(&self, prover: Prover, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(match prover {
            Prover::Client => b"stride-perf client",
            Prover::Server => b"stride-perf server",
        });
        mac.update(client);
        mac.update(server);
        mac
    }

    fn prove(&self, prover: Prover, client: &Nonce, server: &Nonce) -> Proof {
        self.mac(prover, client, server).finalize().into_bytes().into()
    }

    /// Takes the same time for every wrong proof.
    fn is_proved(&self, prover: Prover, client: &Nonce, server: &Nonce, proof: &Proof) -> bool {
        self.mac(prover, client, server).verify_slice(proof).is_ok()
    }
}

/// The key of a secret, derived once while the process uses the same secret.
fn key_of(secret: &[u8]) -> SecretKey {
    // A thread that panicked left either the old value or the new one.
    let mut derived = DERIVED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*derived {
        Some((known, key)) if known == secret => *key,
        _ => derived.insert((secret.to_owned(), derive(secret))).1,
    }
}

fn derive(secret: &[u8]) -> SecretKey {
    let params = Params::new(MEMORY_KIB, PASSES, 1, Some(size_of::<SecretKey>())).expect("they are in range");
    let mut memory = vec![Block::default(); params.block_count()];
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let mut key = SecretKey::default();
    let derived = argon2.hash_password_into_with_memory(secret, SALT, &mut key, &mut memory);
    derived.expect("the lengths are in range");
    key
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl SecretRefusal {
    /// The reason as the refusing side prints it.
    pub(super) fn by_us(self) -> &'static str {
        match self {
            Self::Missing => {
                "gave no secret, and this server has one: give that side the same --secret-file or STRIDE_SECRET"
            }
            Self::Unexpected => {
                "wants this side to know a secret, and there is none here: give this side the same --secret-file or \
                 STRIDE_SECRET"
            }
            Self::Wrong => "has another secret: give both sides the same --secret-file or STRIDE_SECRET",
        }
    }

    /// The reason as the refused side prints it.
    pub(super) fn by_peer(self) -> &'static str {
        match self {
            Self::Missing => {
                "serves only who knows its secret: give this side the same --secret-file or STRIDE_SECRET"
            }
            Self::Unexpected => {
                "has no secret, and this side has one: start it with the same --secret-file or STRIDE_SECRET, or leave them \
                 out here"
            }
            Self::Wrong => "has another secret: give both sides the same --secret-file or STRIDE_SECRET",
        }
    }
}

impl<W: FrameTransport> ControlLink<W> {
    /// Proves a client's secret at the start of a connection: afterwards each side knows that the
    /// other knows it.
    ///
    /// # Errors
    ///
    /// The server does not know the secret.
    pub fn prove(&mut self, secret: &Secret) -> Result<(), ControlError> {
        let own = nonce()?;
        self.send(&ControlMessage::Hello { nonce: own })?;
        let theirs = match self.receive()? {
            ControlMessage::Challenge { nonce } => nonce,
            other => return Err(self.unexpected(&other, "challenge")),
        };
        let proof = secret.prove(Prover::Client, &own, &theirs);
        match self.exchange(&ControlMessage::Proof { proof })? {
            ControlMessage::Proof { proof } if secret.is_proved(Prover::Server, &own, &theirs, &proof) => {
                Ok(())
            }
            ControlMessage::Proof { .. } => Err(self.refuse(SecretRefusal::Wrong)),
            other => Err(self.unexpected(&other, "proof")),
        }
    }

    /// Receives the client's request on a server with this secret, or with none.
    ///
    /// # Errors
    ///
    /// The client does not know the secret, or requires one.
    pub fn asked(&mut self, secret: Option<&Secret>) -> Result<ControlMessage, ControlError> {
        match (self.receive()?, secret) {
            (ControlMessage::Hello { nonce }, Some(secret)) => {
                self.answer(secret, nonce)?;
                self.receive_soon()
            }
            (ControlMessage::Hello { .. }, None) => Err(self.refuse(SecretRefusal::Unexpected)),
            (_, Some(_)) => Err(self.refuse(SecretRefusal::Missing)),
            (word, None) => Ok(word),
        }
    }

    /// Answers the client's first message. A client without the secret gets no more time than one
    /// that sends nothing.
    fn answer(&mut self, secret: &Secret, theirs: Nonce) -> Result<(), ControlError> {
        let own = nonce()?;
        self.send(&ControlMessage::Challenge { nonce: own })?;
        match self.receive_soon()? {
            ControlMessage::Proof { proof } if secret.is_proved(Prover::Client, &theirs, &own, &proof) => {}
            ControlMessage::Proof { .. } => return Err(self.refuse(SecretRefusal::Wrong)),
            other => return Err(self.unexpected(&other, "proof")),
        }
        self.send(&ControlMessage::Proof { proof: secret.prove(Prover::Server, &theirs, &own) })
    }

    fn receive_soon(&mut self) -> Result<ControlMessage, ControlError> {
        self.receive_within(Some(WORD_LIMIT))
    }

    fn refuse(&mut self, refusal: SecretRefusal) -> ControlError {
        // A failure is ignored, because a client that has gone needs no reason.
        let _ = self.send(&ControlMessage::Refused(refusal)).and_then(|()| self.linger());
        ControlError::Refused { peer: self.peer().to_owned(), refusal }
    }
}

/// Makes a random nonce.
///
/// # Errors
///
/// The system provides no random numbers.
pub fn nonce() -> Result<Nonce, ControlError> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(|error| ControlError::NoRandomness { what: error.to_string() })?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::control::{ControlListener, FrameKind, Tcp, VERSION, connect, write_frame};

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).unwrap()
    }

    const OURS: &str = "correct horse battery staple";

    #[test]
    fn a_secret_is_long_and_ends_with_its_line() {
        assert_eq!(secret("0123456789abcdef\n"), secret("0123456789abcdef"));
        assert_eq!(secret("0123456789abcdef\r\n"), secret("0123456789abcdef"));
        assert_ne!(secret("0123456789abcdef\n\n"), secret("0123456789abcdef"));
        assert_eq!(Secret::new(b""), Err(SecretError::TooShort { given: 0 }));
        assert_eq!(Secret::new(b"0123456789abcde\n"), Err(SecretError::TooShort { given: 15 }));
        assert!(Secret::new(&[7; LONGEST_SECRET]).is_ok());
        assert_eq!(Secret::new(&[7; LONGEST_SECRET + 1]), Err(SecretError::TooLong));
        assert_eq!(format!("{:?}", secret(OURS)), "Secret");
    }

    #[test]
    fn a_proof_is_of_one_side_of_one_connection_under_one_secret() {
        let (ours, one, two) = (secret(OURS), [1; 32], [2; 32]);
        let proof = ours.prove(Prover::Client, &one, &two);
        assert!(ours.is_proved(Prover::Client, &one, &two, &proof));
        assert!(!ours.is_proved(Prover::Server, &one, &two, &proof));
        assert!(!ours.is_proved(Prover::Client, &two, &one, &proof));
        assert!(!ours.is_proved(Prover::Client, &one, &one, &proof));
        assert!(!secret("another secret, of the same length").is_proved(Prover::Client, &one, &two, &proof));
        for bit in 0..8 * proof.len() {
            let mut changed = proof;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!ours.is_proved(Prover::Client, &one, &two, &changed));
        }
    }

    /// Other releases of the crate, and other programs, derive the same key. This one is from the
    /// `Argon2id` of Python's package `cryptography`: this salt, 19,456 KiB, 2 passes and 1 lane.
    #[test]
    fn the_key_is_argon2ids() {
        let hex: String = secret(OURS).0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "a5156f7e04315244ab7bd0fbe2ba1398e57027bfd33d3c6f25f615568fecc982");
    }

    /// A peer of the release before has the same secret and another key.
    #[test]
    fn a_peer_of_the_release_before_is_told_to_use_the_same_release() {
        let (server, ()) = thread::scope(|scope| {
            let listener = ControlListener::bind_local().unwrap();
            let port = listener.port();
            let server = scope.spawn(move || listener.accept().unwrap().asked(Some(&secret(OURS))));
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let hello = ControlMessage::Hello { nonce: [1; 32] }.to_json().unwrap();
            let mut bytes = Vec::new();
            write_frame(&mut bytes, FrameKind::Message, &hello).unwrap();
            bytes[4..6].copy_from_slice(&3u16.to_be_bytes());
            std::io::Write::write_all(&mut stream, &bytes).unwrap();
            let mut header = [0; 6];
            std::io::Read::read_exact(&mut stream, &mut header).unwrap();
            assert_eq!(header[4..], VERSION.to_be_bytes(), "that release names this version");
            (server.join().unwrap(), ())
        });
        let text = server.unwrap_err().to_string();
        assert!(text.contains("version 3") && text.contains("run the same release"), "{text}");
    }

    /// RFC 4231, test case 2, so that both sides may use different releases of the HMAC crates.
    #[test]
    fn the_proof_is_the_standards() {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    /// The outcome of a server's and a client's first messages.
    fn meet(
        server: Option<&str>,
        client: impl FnOnce(&mut ControlLink<Tcp>) -> Result<(), ControlError>,
    ) -> (Result<ControlMessage, ControlError>, Result<(), ControlError>) {
        let listener = ControlListener::bind_local().unwrap();
        let port = listener.port();
        let server = server.map(secret);
        let serving = thread::spawn(move || listener.accept().unwrap().asked(server.as_ref()));
        let mut link = connect("127.0.0.1", port).unwrap();
        let client = client(&mut link);
        (serving.join().unwrap(), client)
    }

    fn with(own: Option<&str>) -> impl FnOnce(&mut ControlLink<Tcp>) -> Result<(), ControlError> {
        let own = own.map(secret);
        move |link| {
            own.map_or(Ok(()), |own| link.prove(&own))?;
            link.send(&ControlMessage::Done)?;
            // The server reveals nothing but its reason.
            match link.receive() {
                Err(ControlError::Gone { .. }) => Ok(()),
                said => said.map(drop),
            }
        }
    }

    fn refused<T: fmt::Debug>(end: Result<T, ControlError>) -> (bool, SecretRefusal, String) {
        let error = end.unwrap_err();
        assert!(error.is_known_to_peer(), "{error}");
        let text = error.to_string();
        match error {
            ControlError::Refused { refusal, .. } => (true, refusal, text),
            ControlError::RefusedByPeer { refusal, .. } => (false, refusal, text),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_server_accepts_clients_with_its_secret() {
        for own in [Some(OURS), None] {
            let (server, client) = meet(own, with(own));
            assert_eq!(server.unwrap(), ControlMessage::Done);
            client.unwrap();
        }
    }

    #[test]
    fn both_sides_are_told_what_to_do() {
        for (server, client, refusal, words) in [
            (
                Some(OURS),
                None,
                SecretRefusal::Missing,
                ["gave no secret", "serves only who knows its secret"],
            ),
            (
                None,
                Some(OURS),
                SecretRefusal::Unexpected,
                ["there is none here", "has no secret, and this side has one"],
            ),
            (
                Some(OURS),
                Some("correct horse battery stable"),
                SecretRefusal::Wrong,
                ["another secret", "another secret"],
            ),
        ] {
            let (server, client) = meet(server, with(client));
            for ((by_us, found, text), (is_server, words)) in
                [refused(server), refused(client)].into_iter().zip([(true, words[0]), (false, words[1])])
            {
                assert_eq!((by_us, found), (is_server, refusal), "{text}");
                assert!(text.contains(words) && text.contains("--secret-file or STRIDE_SECRET"), "{text}");
            }
        }
    }

    #[test]
    fn a_server_that_does_not_know_the_secret_is_not_asked() {
        for proof in [None, Some([0; 32])] {
            let listener = ControlListener::bind_local().unwrap();
            let port = listener.port();
            let impostor = thread::spawn(move || {
                let mut link = listener.accept().unwrap();
                let ControlMessage::Hello { nonce } = link.receive().unwrap() else { panic!("no hello") };
                link.send(&ControlMessage::Challenge { nonce: [9; 32] }).unwrap();
                let ControlMessage::Proof { proof: theirs } = link.receive().unwrap() else {
                    panic!("no proof")
                };
                // Reflecting the server's proof does not help, either.
                let _ = nonce;
                link.send(&ControlMessage::Proof { proof: proof.unwrap_or(theirs) }).unwrap();
                link.receive().map(drop)
            });
            let mut link = connect("127.0.0.1", port).unwrap();
            assert_eq!(refused(link.prove(&secret(OURS))).1, SecretRefusal::Wrong);
            assert_eq!(refused(impostor.join().unwrap()).1, SecretRefusal::Wrong);
        }
    }

    #[test]
    fn words_out_of_order_are_refused() {
        let hello = ControlMessage::Hello { nonce: [1; 32] };
        let (server, _) = meet(Some(OURS), |link| link.exchange(&hello).and_then(|_| link.send(&hello)));
        let text = server.unwrap_err().to_string();
        assert!(text.contains("`hello` in place of `proof`"), "{text}");
        // A proof that was valid for another connection.
        let old = secret(OURS).prove(Prover::Client, &[1; 32], &[9; 32]);
        let (server, _) = meet(Some(OURS), |link| {
            link.exchange(&hello).and_then(|_| link.send(&ControlMessage::Proof { proof: old }))
        });
        assert_eq!(refused(server).1, SecretRefusal::Wrong);
    }
}
