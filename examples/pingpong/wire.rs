//! The text with which the sides exchange the addresses of their queue pairs, as in the C program.
//!
//! ```text
//! 0000:000011:cf45d8:00000000000000000000ffff0a4d0001
//! LID  QPN    PSN    GID
//! ```
//!
//! All fields are hexadecimal and of fixed width, and a zero byte ends the text. A GID of zeros
//! means that the side has none, and its peer addresses it by LID.

use std::net::Ipv6Addr;

use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::Endpoint;

/// The length of the text, with the final zero byte.
pub const LENGTH: usize = 52;

/// The client's confirmation that it has the server's address, with the final zero byte.
pub const DONE: &[u8; 5] = b"done\0";

/// The addresses of one side of an extended reliable connection, for both directions.
///
/// ```text
/// 0000:458002:458003:3809ee:458001:00000000000000000000ffff7f000001
/// LID  target send   PSN    SRQ    GID
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XrcAddress {
    /// The target.
    pub receive: Endpoint,
    /// The initiator's queue pair number.
    pub send_qpn: u32,
    /// The shared receive queue's number.
    pub srqn: u32,
}

impl XrcAddress {
    /// The address of the initiator.
    pub fn sender(&self) -> Endpoint {
        Endpoint { qp_number: self.send_qpn, ..self.receive.clone() }
    }
}

/// The length of this text, with the final zero byte.
pub const XRC_LENGTH: usize = 66;

/// Each side's final message, with its zero byte.
pub const END: &[u8; 4] = b"END\0";

/// Formats an address.
pub fn encode_xrc(address: &XrcAddress) -> String {
    let XrcAddress { receive, send_qpn, srqn } = address;
    let Endpoint { lid, qp_number, packet_seq_num, .. } = receive;
    let gid = u128::from_be_bytes(gid_of(receive).raw);
    let [target, send, psn, srqn] = [*qp_number, *send_qpn, *packet_seq_num, *srqn].map(|n| n & 0xff_ffff);
    format!("{lid:04x}:{target:06x}:{send:06x}:{psn:06x}:{srqn:06x}:{gid:032x}\0")
}

/// Parses an address. Link layer and MTU, which the text lacks, are taken from `local`.
///
/// # Errors
///
/// The text is not in this format.
pub fn decode_xrc(text: &[u8; XRC_LENGTH], local: &XrcAddress) -> Result<XrcAddress, WireError> {
    parse_xrc(text, local).ok_or_else(|| WireError { text: text.escape_ascii().to_string() })
}

fn parse_xrc(text: &[u8; XRC_LENGTH], local: &XrcAddress) -> Option<XrcAddress> {
    let [lid, receive, send, psn, srqn, gid] = fields(text, [4, 6, 6, 6, 6, 32])?;
    let endpoint = endpoint([lid, receive, psn, gid], &local.receive)?;
    Some(XrcAddress { receive: endpoint, send_qpn: send.try_into().ok()?, srqn: srqn.try_into().ok()? })
}

/// The C program's line about it, from `LID` on.
pub fn describe_xrc(address: &XrcAddress) -> String {
    let XrcAddress { receive, send_qpn, srqn } = address;
    let Endpoint { lid, qp_number, packet_seq_num, .. } = receive;
    let gid = Ipv6Addr::from(gid_of(receive));
    format!(
        "LID {lid:04x}, QPN RECV {qp_number:06x} SEND {send_qpn:06x}, PSN {packet_seq_num:06x}, SRQN {srqn:06x}, GID {gid}"
    )
}

/// Formats an endpoint.
pub fn encode(endpoint: &Endpoint) -> String {
    let Endpoint { lid, qp_number, packet_seq_num, .. } = endpoint;
    let gid = u128::from_be_bytes(gid_of(endpoint).raw);
    format!("{lid:04x}:{:06x}:{:06x}:{gid:032x}\0", qp_number & 0xff_ffff, packet_seq_num & 0xff_ffff)
}

/// Parses an endpoint. Link layer and MTU, which the text lacks, are taken from `local`.
///
/// # Errors
///
/// The text is not in this format.
pub fn decode(text: &[u8; LENGTH], local: &Endpoint) -> Result<Endpoint, WireError> {
    parse(text, local).ok_or_else(|| WireError { text: text.escape_ascii().to_string() })
}

fn parse(text: &[u8; LENGTH], local: &Endpoint) -> Option<Endpoint> {
    endpoint(fields(text, [4, 6, 6, 32])?, local)
}

/// Parses hexadecimal fields with these numbers of digits.
fn fields<const COUNT: usize>(text: &[u8], digits: [usize; COUNT]) -> Option<[u128; COUNT]> {
    let text = str::from_utf8(text.strip_suffix(b"\0")?).ok()?;
    let mut fields = text.split(':');
    let mut found = [0; COUNT];
    for (number, digits) in found.iter_mut().zip(digits) {
        let field = fields.next().filter(|field| field.len() == digits)?;
        // `from_str_radix` would accept a sign.
        let hexadecimal = field.bytes().all(|byte| byte.is_ascii_hexdigit());
        *number = hexadecimal.then(|| u128::from_str_radix(field, 16).ok())??;
    }
    Some(found)
}

fn endpoint([lid, qp_number, psn, gid]: [u128; 4], local: &Endpoint) -> Option<Endpoint> {
    let (lid, qp_number) = (u16::try_from(lid).ok()?, u32::try_from(qp_number).ok()?);
    let packet_seq_num = u32::try_from(psn).ok()?;
    let gid = Gid { raw: gid.to_be_bytes() };
    let gid = (!gid.is_zero()).then_some(gid);
    Some(Endpoint { qp_number, packet_seq_num, lid, gid, ..local.clone() })
}

/// The printed line about an endpoint, from `LID` on.
pub fn describe(endpoint: &Endpoint) -> String {
    let Endpoint { lid, qp_number, packet_seq_num, .. } = endpoint;
    let gid = Ipv6Addr::from(gid_of(endpoint));
    format!("LID {lid:#06x}, QPN {qp_number:#08x}, PSN {packet_seq_num:#08x}, GID {gid}")
}

fn gid_of(endpoint: &Endpoint) -> Gid {
    endpoint.gid.unwrap_or(Gid::ZERO)
}

/// The peer's text is not an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    text: String,
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the peer sent \"{}\" instead of an address (LID:QPN:PSN:GID): is it ibv_rc_pingpong or one of these programs?",
            self.text
        )
    }
}

impl std::error::Error for WireError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(gid: Option<&str>) -> Endpoint {
        let gid = gid.map(|gid| gid.parse().unwrap());
        Endpoint { qp_number: 0x11, packet_seq_num: 0xcf45d8, lid: 7, gid, mtu: 1024, ethernet: true }
    }

    fn bytes(text: &str) -> [u8; LENGTH] {
        text.as_bytes().try_into().unwrap()
    }

    #[test]
    fn the_text_is_that_of_c() {
        let endpoint = endpoint(Some("::ffff:10.77.0.1"));
        let text = encode(&endpoint);
        assert_eq!(text, "0007:000011:cf45d8:00000000000000000000ffff0a4d0001\0");
        assert_eq!(decode(&bytes(&text), &endpoint).unwrap(), endpoint);
        assert_eq!(describe(&endpoint), "LID 0x0007, QPN 0x000011, PSN 0xcf45d8, GID ::ffff:10.77.0.1");
    }

    #[test]
    fn no_gid_is_a_gid_of_zeros() {
        let endpoint = endpoint(None);
        let text = encode(&endpoint);
        assert_eq!(text, "0007:000011:cf45d8:00000000000000000000000000000000\0");
        assert_eq!(decode(&bytes(&text), &endpoint).unwrap(), endpoint);
        assert_eq!(describe(&endpoint), "LID 0x0007, QPN 0x000011, PSN 0xcf45d8, GID ::");
    }

    #[test]
    fn both_directions_are_in_one_text() {
        let receive = endpoint(Some("::ffff:10.77.0.1"));
        let address = XrcAddress { receive, send_qpn: 0x12, srqn: 0x13 };
        let text = encode_xrc(&address);
        assert_eq!(text, "0007:000011:000012:cf45d8:000013:00000000000000000000ffff0a4d0001\0");
        let bytes: [u8; XRC_LENGTH] = text.as_bytes().try_into().unwrap();
        assert_eq!(decode_xrc(&bytes, &address).unwrap(), address);
        assert_eq!(
            describe_xrc(&address),
            "LID 0007, QPN RECV 000011 SEND 000012, PSN cf45d8, SRQN 000013, GID ::ffff:10.77.0.1"
        );
        for place in 0..XRC_LENGTH {
            let mut wrong = bytes;
            wrong[place] = b'g';
            assert!(decode_xrc(&wrong, &address).is_err());
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let good = encode(&endpoint(None));
        let error = decode(&[b'x'; LENGTH], &endpoint(None)).unwrap_err().to_string();
        assert!(error.contains(&"x".repeat(LENGTH)), "{error}");
        // Each byte in turn is replaced by one that is not allowed there.
        for place in 0..LENGTH {
            for wrong in [b'g', b'+', b' ', b'\n', 0xff] {
                let mut text = bytes(&good);
                text[place] = wrong;
                let error = decode(&text, &endpoint(None)).unwrap_err().to_string();
                assert_eq!(error.lines().count(), 1);
            }
        }
    }
}
