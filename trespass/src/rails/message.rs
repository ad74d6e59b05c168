//! The messages by which both sides agree on their rails. Each is a SEND of one frame, beside the
//! frames of the connection:
//!
//! ```text
//! 0 type u8 = 12 | 1 operation u8 | 2 rail u8 | 3 device u8 | 4 generation u32 | 8 value u32 | 12 len u32
//! ```
//!
//! `len` bytes of payload follow: the [`Endpoint`] of OFFER and ANSWER.

use crate::protocol::ProtocolError;
use crate::protocol::frame::{HEADER_LEN, Head};
use crate::wire::Endpoint;

/// The type of a frame that carries such a message.
pub(crate) const RAIL: u8 = 12;

const OFFER: u8 = 1;
const ANSWER: u8 = 2;
const REFUSE: u8 = 3;
const PROVE: u8 = 4;
const DOWN: u8 = 5;
const _: () = assert!(RAIL == 12 && OFFER == 1 && ANSWER == 2 && REFUSE == 3 && PROVE == 4 && DOWN == 5);

/// What a side says of one generation of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RailMessage {
    /// The client has made a queue pair with its device of this index. `attempt` counts the
    /// generations without a proven path, so that the server can try another device.
    Offer { device: u8, attempt: u32, endpoint: Endpoint },
    /// The server has connected a queue pair of its device of this index.
    Answer { device: u8, endpoint: Endpoint },
    /// The server makes no queue pair now.
    Refuse,
    /// The first request over the new queue pairs.
    Prove,
    /// The sender's queue pair is in the error state, or destroyed, and `received` SENDs of the
    /// peer have arrived over it. It takes no others.
    Down { received: u32 },
}

/// A message, with its rail and the generation of the rail's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RailFrame {
    pub(crate) rail: u8,
    pub(crate) generation: u32,
    pub(crate) message: RailMessage,
}

impl RailFrame {
    /// Whether a received frame without immediate data is such a message.
    pub(crate) fn is_in(frame: &[u8]) -> bool {
        frame.first() == Some(&RAIL)
    }

    pub(crate) fn encode(&self) -> Head {
        let (operation, device, value, endpoint) = match self.message {
            RailMessage::Offer { device, attempt, endpoint } => (OFFER, device, attempt, Some(endpoint)),
            RailMessage::Answer { device, endpoint } => (ANSWER, device, 0, Some(endpoint)),
            RailMessage::Refuse => (REFUSE, 0, 0, None),
            RailMessage::Prove => (PROVE, 0, 0, None),
            RailMessage::Down { received } => (DOWN, 0, received, None),
        };
        let payload = endpoint.map(|endpoint| endpoint.encode());
        let payload = payload.as_ref().map_or(&[][..], |payload| payload);
        let mut head = Head::of(&[RAIL, operation, self.rail, device]);
        head.push(&self.generation.to_le_bytes());
        head.push(&value.to_le_bytes());
        head.push(&(payload.len() as u32).to_le_bytes());
        head.push(payload);
        head
    }

    /// Decodes a whole frame. A newer version may append to the payload.
    pub(crate) fn decode(frame: &[u8]) -> Result<Self, ProtocolError> {
        let Some((header, payload)) = frame.split_first_chunk::<HEADER_LEN>() else {
            return Err(ProtocolError::ShortFrame { len: frame.len() });
        };
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let [_, operation, rail, device, ..] = *header;
        let (generation, value, len) = (word(4), word(8), word(12));
        if len as usize != payload.len() {
            return Err(ProtocolError::Rail { what: "a length of", value: len.into() });
        }
        let endpoint = || {
            let wrong = ProtocolError::Rail { what: "an endpoint of length", value: payload.len() as u64 };
            Endpoint::decode(payload).map_err(|_| wrong)
        };
        let message = match operation {
            OFFER => RailMessage::Offer { device, attempt: value, endpoint: endpoint()? },
            ANSWER => RailMessage::Answer { device, endpoint: endpoint()? },
            REFUSE => RailMessage::Refuse,
            PROVE => RailMessage::Prove,
            DOWN => RailMessage::Down { received: value },
            other => return Err(ProtocolError::Rail { what: "the operation", value: other.into() }),
        };
        Ok(Self { rail, generation, message })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::LinkLayer;

    pub(crate) fn endpoint(qp_num: u32) -> Endpoint {
        Endpoint {
            qp_num,
            psn: 0x00_0201,
            gid: [7; 16],
            lid: 9,
            mtu: 5,
            link_layer: LinkLayer::Ethernet,
            service_level: 1,
            traffic_class: 2,
            device: 3,
        }
    }

    #[test]
    fn golden_bytes() {
        let of = |message| RailFrame { rail: 1, generation: 0x0403_0201, message };
        let down = of(RailMessage::Down { received: 0x1413_1211 });
        let bytes = [12, 5, 1, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 0];
        assert_eq!(down.encode().bytes(), bytes);
        let offer = of(RailMessage::Offer { device: 2, attempt: 5, endpoint: endpoint(0x11) });
        let encoded = offer.encode();
        assert_eq!(encoded.bytes()[..16], [12, 1, 1, 2, 1, 2, 3, 4, 5, 0, 0, 0, 40, 0, 0, 0]);
        assert_eq!(encoded.bytes()[16..20], [0x11, 0, 0, 0]);
        for message in [
            offer.message,
            RailMessage::Answer { device: 7, endpoint: endpoint(1) },
            RailMessage::Refuse,
            RailMessage::Prove,
            down.message,
        ] {
            assert_eq!(RailFrame::decode(of(message).encode().bytes()), Ok(of(message)));
        }
    }

    #[test]
    fn wrong_messages_are_refused() {
        let good = RailFrame { rail: 0, generation: 1, message: RailMessage::Prove }.encode();
        let mut unknown = good.bytes().to_vec();
        unknown[1] = 6;
        assert!(matches!(RailFrame::decode(&unknown), Err(ProtocolError::Rail { value: 6, .. })));
        let longer = [good.bytes(), &[0]].concat();
        assert!(matches!(RailFrame::decode(&longer), Err(ProtocolError::Rail { value: 0, .. })));
        assert!(matches!(RailFrame::decode(&[RAIL; 15]), Err(ProtocolError::ShortFrame { len: 15 })));
        let mut bare = good.bytes().to_vec();
        bare[1] = OFFER;
        assert!(matches!(RailFrame::decode(&bare), Err(ProtocolError::Rail { .. })));
    }

    proptest! {
        #[test]
        fn decoding_anything_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = RailFrame::decode(&bytes);
            if bytes.len() >= 16 {
                (bytes[0], bytes[1]) = (RAIL, bytes[1] % 6);
                let len = (bytes.len() - 16) as u32;
                bytes[12..16].copy_from_slice(&len.to_le_bytes());
                let _ = RailFrame::decode(&bytes);
            }
        }
    }
}
