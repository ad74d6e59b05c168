//! The handshake of a connection that begins with rdma_cm, as a state machine without queue pairs
//! and clocks.
//!
//! ```text
//! client                                             server
//! request, with its CM_PREFIX ----------------------------->
//!                                                    make a queue pair, connect it,
//!                                                    post receives for the client's HELLO
//!    <-------------------------- answer, with its CM_PREFIX
//! connect the queue pair, post all receives
//! HELLO ================== over RDMA =================>
//!                                                    post all receives
//!    <==================== over RDMA ================= HELLO
//! ```
//!
//! No READY follows, because RDMA is the only transport. Each HELLO also proves that its direction
//! works. HELLO is sent in pieces of a receive slot's size, and CM_PREFIX announces how many
//! receives to post for it. So a HELLO uses none of the receives that the connection grants.

use super::error::HandshakeError;
use super::machine::{check_role, rejection};
use super::{Agreed, Attempt, Terms};
use crate::wire::Unavailable;
use crate::wire::{CmPrefix, Features, HandshakeMessage, Hello, REJECT_DATA, Role, WireError};

/// One side of the exchange.
pub(crate) struct CmExchange {
    terms: Terms,
    attempt: Attempt,
    /// The peer's CM_PREFIX, until its HELLO is complete.
    cm_prefix: Option<CmPrefix>,
    /// Bytes of a HELLO piece, in both directions.
    piece: usize,
    /// The receives that this side's connection begins with.
    granted: u32,
    /// The received part of the peer's HELLO. CM_PREFIX and the maximum message bound it.
    received: Vec<u8>,
}

impl CmExchange {
    /// Starts as the client.
    pub(crate) fn client(terms: Terms, attempt: Attempt) -> Self {
        Self::new(terms, Attempt { role: Role::Client, ..attempt })
    }

    /// Starts as the server, which learns the attempt from the client.
    pub(crate) fn server(terms: Terms) -> Self {
        Self::new(terms, Attempt { conn_id: 0, generation: 0, role: Role::Server })
    }

    fn new(terms: Terms, attempt: Attempt) -> Self {
        let mut exchange =
            Self { terms, attempt, cm_prefix: None, piece: 0, granted: 0, received: Vec::new() };
        exchange.begin_with(None);
        exchange
    }

    /// Sets the receives that the connection begins with; `None` grants all. CM_PREFIX announces the
    /// length of the HELLO, so that HELLO always has this field.
    pub(crate) fn begin_with(&mut self, first_slots: Option<u32>) {
        self.terms.first_slots = Some(first_slots.unwrap_or(self.terms.limits.rx_slots));
    }

    /// This side's terms, until they are sent.
    pub(crate) fn terms(&mut self) -> &mut Terms {
        &mut self.terms
    }

    /// The private data of the request or of the answer.
    pub(crate) fn cm_prefix(&self) -> Vec<u8> {
        let hello = self.hello();
        CmPrefix::of(&hello, hello.encode().len()).encode()
    }

    /// The HELLO, to be sent over the queue pair in [pieces](Self::piece).
    pub(crate) fn hello_bytes(&self) -> Vec<u8> {
        self.hello().encode()
    }

    fn hello(&self) -> Hello {
        let Attempt { conn_id, generation, role } = self.attempt;
        Hello {
            minor: self.terms.minor,
            features: self.terms.features,
            conn_id,
            generation,
            role,
            kind: self.terms.kind,
            policy: self.terms.policy,
            limits: self.terms.limits,
            first_slots: self.terms.first_slots,
            devices: self.terms.devices,
            path: Err(Unavailable::unspecified()),
            user_data: self.terms.user_data.clone(),
        }
    }

    /// Handles the private data of the request or of the answer. It is unchecked, and may have
    /// trailing padding.
    pub(crate) fn prefix_received(&mut self, private_data: &[u8]) -> Result<(), HandshakeError> {
        let cm_prefix = match HandshakeMessage::decode_private(private_data)? {
            HandshakeMessage::CmPrefix(cm_prefix) => cm_prefix,
            HandshakeMessage::Reject(reject) => return Err(reject.into()),
            _ => return Err(WireError::Unexpected("another message than CM_PREFIX").into()),
        };
        check_role(self.attempt.role, cm_prefix.role)?;
        self.terms.agree_on_kind(cm_prefix.kind)?;
        let Attempt { conn_id, generation, role } = self.attempt;
        match role {
            Role::Server => {
                self.attempt = Attempt { conn_id: cm_prefix.conn_id, generation: cm_prefix.generation, role };
            }
            Role::Client if (cm_prefix.conn_id, cm_prefix.generation) != (conn_id, generation) => {
                return Err(WireError::Unexpected("the answer to another attempt").into());
            }
            Role::Client => {}
        }
        self.piece = cm_prefix.slot_size.min(self.terms.limits.slot_size) as usize;
        // A peer that does not know the feature counts all slots as granted from the start.
        let knows_windows = cm_prefix.features.and(self.terms.features).has(Features::WINDOWS);
        let first_slots = self.terms.first_slots.filter(|_| knows_windows);
        self.granted = first_slots.unwrap_or(self.terms.limits.rx_slots);
        self.cm_prefix = Some(cm_prefix);
        Ok(())
    }

    /// Bytes of each piece except the last.
    pub(crate) fn piece(&self) -> usize {
        self.piece
    }

    /// Receives that the peer's HELLO needs.
    pub(crate) fn receives(&self) -> usize {
        self.cm_prefix.map_or(0, |cm_prefix| cm_prefix.hello.div_ceil(self.piece))
    }

    /// Receives that the peer counts as granted from the start. It is known after the peer's
    /// CM_PREFIX.
    pub(crate) fn granted(&self) -> usize {
        self.granted as usize
    }

    /// Handles an unchecked piece from the queue pair. Returns the agreed terms when HELLO is
    /// complete.
    pub(crate) fn received(&mut self, piece: &[u8]) -> Result<Option<Agreed>, HandshakeError> {
        let Some(cm_prefix) = self.cm_prefix else {
            return Err(WireError::Unexpected("something else than HELLO").into());
        };
        if self.received.is_empty()
            && let Ok(HandshakeMessage::Reject(reject)) = HandshakeMessage::decode(piece)
        {
            return Err(reject.into());
        }
        if piece.len() != self.piece.min(cm_prefix.hello - self.received.len()) {
            return Err(WireError::Value {
                field: "length of a piece of HELLO",
                value: piece.len() as u64,
                bound: "a receive slot's, or what is left of the length that came before it",
            }
            .into());
        }
        self.received.reserve_exact(cm_prefix.hello - self.received.len());
        self.received.extend_from_slice(piece);
        if self.received.len() < cm_prefix.hello {
            return Ok(None);
        }
        let message = std::mem::take(&mut self.received);
        self.cm_prefix = None;
        match HandshakeMessage::decode(&message)? {
            HandshakeMessage::Hello(mut hello) if CmPrefix::of(&hello, message.len()) == cm_prefix => {
                let user_data = std::mem::take(&mut hello.user_data);
                Ok(Some(Agreed::new(self.attempt, &self.terms, &hello, user_data)))
            }
            HandshakeMessage::Hello(_) => {
                Err(WireError::Unexpected("a HELLO that differs from its CM_PREFIX").into())
            }
            _ => Err(WireError::Unexpected("another message than HELLO").into()),
        }
    }

    /// Bytes allocated for the peer's HELLO.
    #[cfg(any(test, fuzzing))]
    pub(super) fn capacity(&self) -> usize {
        self.received.capacity()
    }
}

/// The rejection to send in the private data or in one piece over the queue pair. `None` if the
/// peer does not speak this protocol or cannot receive.
pub(crate) fn rejection_message(error: &HandshakeError) -> Option<Vec<u8>> {
    rejection(error).map(|reject| reject.encode_within(REJECT_DATA))
}

#[cfg(test)]
mod tests {
    use super::super::fake::{ATTEMPT, terms};
    use super::*;
    use crate::wire::{Kind, MAJOR, MAX_MESSAGE, Policy, REQUEST_DATA, Reject, RejectReason, checksum};

    fn pair() -> [CmExchange; 2] {
        [CmExchange::client(terms(Policy::Auto), ATTEMPT), CmExchange::server(terms(Policy::RequireRdma))]
    }

    /// Pads the data as the private data field of a CM message does.
    fn carried(mut data: Vec<u8>, field: usize) -> Vec<u8> {
        assert!(data.len() <= field, "{} bytes", data.len());
        data.resize(field, 0);
        data
    }

    /// Runs the exchange of both sides, and returns the agreed terms.
    fn run_exchange(sides: &mut [CmExchange; 2]) -> Result<[Agreed; 2], HandshakeError> {
        let [client, server] = sides;
        server.prefix_received(&carried(client.cm_prefix(), REQUEST_DATA))?;
        client.prefix_received(&carried(server.cm_prefix(), 196))?;
        let there = say(client, server)?;
        let here = say(server, client)?;
        Ok([here, there])
    }

    fn say(from: &CmExchange, to: &mut CmExchange) -> Result<Agreed, HandshakeError> {
        let receives = to.receives();
        let hello = from.hello_bytes();
        let pieces: Vec<_> = hello.chunks(from.piece()).collect();
        assert_eq!(pieces.len(), receives);
        let mut agreed = None;
        for piece in pieces {
            assert!(agreed.is_none());
            agreed = to.received(piece)?;
            assert!(to.capacity() <= MAX_MESSAGE);
        }
        Ok(agreed.expect("it was whole"))
    }

    #[test]
    fn both_sides_agree() {
        let [here, there] = run_exchange(&mut pair()).expect("an agreement");
        assert_eq!((here.attempt.conn_id, here.attempt.role), (ATTEMPT.conn_id, Role::Client));
        assert_eq!((there.attempt.conn_id, there.attempt.role), (ATTEMPT.conn_id, Role::Server));
        assert_eq!((here.features, here.minor), (there.features, there.minor));
    }

    /// The client learns how many connections the process has after it has sent CM_PREFIX.
    #[test]
    fn a_side_grants_the_receives_that_the_peer_counts() {
        for (knows_windows, granted) in [(true, [12, 64]), (false, [64, 64])] {
            let mut sides = pair();
            for side in &mut sides {
                side.terms.limits.rx_slots = 64;
                if knows_windows {
                    side.terms.features = side.terms.features.with(Features::WINDOWS);
                }
                side.begin_with(None);
            }
            let [client, server] = &mut sides;
            server.prefix_received(&client.cm_prefix()).expect("a CM_PREFIX");
            client.begin_with(Some(12));
            client.prefix_received(&server.cm_prefix()).expect("a CM_PREFIX");
            assert_eq!([client.granted(), server.granted()], granted);
            let there = say(client, server).expect("an agreement");
            let here = say(server, client).expect("an agreement");
            let [granted_here, granted_there] = granted.map(|granted| granted as u32);
            assert_eq!(here.first_slots, (granted_here, granted_there));
            assert_eq!(there.first_slots, (granted_there, granted_here));
        }
    }

    /// A HELLO longer than a slot is sent in pieces, also between sides with different slots.
    #[test]
    fn long_user_data_arrives_in_pieces() {
        for sizes in [[512, 512], [512, 8192], [8192, 512], [8192, 8192]] {
            let mut sides = pair();
            for (index, (side, size)) in sides.iter_mut().zip(sizes).enumerate() {
                side.terms.limits.slot_size = size;
                side.terms.user_data = vec![index as u8 + 1; 1024];
            }
            let [here, there] = run_exchange(&mut sides).expect("an agreement");
            assert_eq!((here.user_data, there.user_data), (vec![2; 1024], vec![1; 1024]));
        }
    }

    #[test]
    fn another_minor_version_gets_along() {
        let mut sides = pair();
        sides[0].terms.minor = 7;
        let [here, there] = run_exchange(&mut sides).expect("an agreement");
        assert_eq!((here.minor, there.minor), (0, 0));
    }

    /// A peer of another major version receives a rejection that it can read.
    #[test]
    fn another_major_version_is_rejected_with_words() {
        let [client, mut server] = pair();
        let mut cm_prefix = client.cm_prefix();
        cm_prefix[5] = MAJOR + 1;
        let crc = checksum(&cm_prefix);
        cm_prefix[12..16].copy_from_slice(&crc.to_le_bytes());
        let error = server.prefix_received(&carried(cm_prefix, REQUEST_DATA)).expect_err("another version");
        assert!(matches!(error, HandshakeError::Version { major, .. } if major == MAJOR + 1));
        let words = rejection_message(&error).expect("every version reads them");
        let mut client = client;
        let error = client.prefix_received(&carried(words, REJECT_DATA)).expect_err("rejected");
        let HandshakeError::Rejected { reason: RejectReason::Version, text, major: MAJOR, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!(text, "it speaks version 1.0 of the protocol, and you 2.0; update the older one");
    }

    #[test]
    fn the_other_kind_and_the_other_role_are_refused_before_anything_is_made() {
        let [client, mut server] = pair();
        server.terms.kind = Kind::SeqPacket;
        let error = server.prefix_received(&client.cm_prefix()).expect_err("messages and bytes");
        assert!(matches!(error, HandshakeError::Kind { .. }), "{error:?}");
        let words = rejection_message(&error).expect("words");
        let HandshakeMessage::Reject(reject) = HandshakeMessage::decode(&words).expect("a message") else {
            panic!()
        };
        assert!(reject.text.ends_with("use the same type on both sides"), "{}", reject.text);
        let [mut one, other] = [pair(), pair()].map(|[client, _]| client);
        assert!(matches!(one.prefix_received(&other.cm_prefix()), Err(HandshakeError::Role("client"))));
    }

    /// A long text is cut to the size of a rejection.
    #[test]
    fn long_words_are_cut() {
        let reject = Reject::new(RejectReason::RdmaRequired, (0, 0), "ä".repeat(400));
        let bytes = reject.encode_within(REJECT_DATA);
        assert!(bytes.len() <= REJECT_DATA);
        let Ok(HandshakeMessage::Reject(read)) = HandshakeMessage::decode(&bytes) else {
            panic!("{bytes:02x?}")
        };
        assert_eq!(read.text, "ä".repeat(60));
    }

    /// Private data of another program or of an attacker, and the expected errors.
    #[test]
    fn hostile_private_data_is_refused() {
        let good = pair()[0].cm_prefix();
        let with = |at: usize, byte: u8| {
            let mut cm_prefix = good.clone();
            cm_prefix[at] = byte;
            let crc = checksum(&cm_prefix);
            cm_prefix[12..16].copy_from_slice(&crc.to_le_bytes());
            cm_prefix
        };
        use WireError as W;
        type Refused = (&'static str, Vec<u8>, fn(&WireError) -> bool);
        let cases: [Refused; 14] = [
            ("nothing", vec![], |e| matches!(e, W::Short(_))),
            ("three bytes", good[..3].to_vec(), |e| matches!(e, W::Short(_))),
            ("zeros", vec![0; 56], |e| matches!(e, W::Magic([0, 0, 0, 0]))),
            ("another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec(), |e| matches!(e, W::Magic(_))),
            ("half a preamble", good[..12].to_vec(), |e| matches!(e, W::Short(_))),
            ("half of it", good[..40].to_vec(), |e| matches!(e, W::Short(_))),
            ("a changed byte", [&good[..20], &[0xff; 36]].concat(), |e| matches!(e, W::Checksum { .. })),
            ("more than there is", with(8, 57), |e| matches!(e, W::Short(_))),
            ("less than there must be", with(7, 2), |e| matches!(e, W::Short(_))),
            ("no slot size", with(38, 255), |e| matches!(e, W::Value { field: "slot_size", .. })),
            ("a slot of 2^31", with(38, 31), |e| matches!(e, W::Value { field: "slot_size", .. })),
            ("no slots", with(40, 0), |e| matches!(e, W::Value { field: "rx_slots", .. })),
            ("no HELLO", with(42, 0), |e| matches!(e, W::Value { field: "length of the HELLO", .. })),
            ("a giant HELLO", with(43, 0xff), |e| matches!(e, W::Value { .. })),
        ];
        for (name, data, refused) in cases {
            let error = HandshakeMessage::decode_private(&data).expect_err(name);
            assert!(refused(&error), "{name}: {error:?}");
            let told = pair()[1].prefix_received(&data).expect_err(name);
            assert_eq!(told.to_string(), HandshakeError::from(error).to_string(), "{name}");
        }
    }

    /// A HELLO that differs from its CM_PREFIX: longer, shorter, in other pieces, of another
    /// attempt.
    #[test]
    fn hello_must_match_its_cm_prefix() {
        let begun = || {
            let [client, mut server] = pair();
            server.prefix_received(&client.cm_prefix()).expect("a CM_PREFIX");
            (client.hello_bytes(), server)
        };
        let refused = |name: &str, pieces: &[&[u8]]| {
            let (_, mut server) = begun();
            let error = pieces.iter().find_map(|piece| match server.received(piece) {
                Err(error) => Some(error),
                Ok(agreed) => {
                    assert!(agreed.is_none(), "{name}");
                    None
                }
            });
            assert!(matches!(error, Some(HandshakeError::Malformed(_))), "{name}: {error:?}");
        };
        let (hello, _) = begun();
        refused("nothing", &[&[]]);
        refused("short", &[&hello[..hello.len() - 1]]);
        refused("long", &[&[&hello[..], &[0]].concat()]);
        refused("in halves", &[&hello[..32], &hello[32..]]);
        let other =
            CmExchange::client(terms(Policy::Auto), Attempt { generation: 9, ..ATTEMPT }).hello_bytes();
        refused("of another attempt", &[&other]);
        let mut terms = terms(Policy::Auto);
        terms.limits.rx_slots = 32;
        refused("with other limits", &[&CmExchange::client(terms, ATTEMPT).hello_bytes()]);
        let (hello, mut server) = begun();
        server.received(&hello).expect("a HELLO").expect("whole");
        assert!(server.received(&hello).is_err(), "twice");
        // A rejection in its place is read, whatever length was announced.
        let (_, mut server) = begun();
        let words = Reject::new(RejectReason::Busy, (0, 0), "later".into()).encode_within(REJECT_DATA);
        assert!(matches!(server.received(&words), Err(HandshakeError::Rejected { .. })));
    }
}
