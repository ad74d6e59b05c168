//! How one side tells the other where its queue pair is: C's text.
//!
//! ```text
//! 0000:000011:cf45d8:00000000000000000000ffff0a4d0001
//! LID  QPN    PSN    GID
//! ```
//!
//! All fields are hexadecimal and of fixed width, and a zero byte ends the text. A GID of nothing but zeros
//! means that there is none: the peer is addressed by its LID.

use std::net::Ipv6Addr;

use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::Endpoint;

/// The length of the text, with the zero byte at its end.
pub const LENGTH: usize = 52;

/// What the client says when it has the server's address, with the zero byte at its end.
pub const DONE: &[u8; 5] = b"done\0";

/// The text for an endpoint.
pub fn encode(endpoint: &Endpoint) -> String {
    let Endpoint { lid, qp_number, packet_seq_num, .. } = endpoint;
    let gid = u128::from_be_bytes(gid_of(endpoint).raw);
    format!("{lid:04x}:{:06x}:{:06x}:{gid:032x}\0", qp_number & 0xff_ffff, packet_seq_num & 0xff_ffff)
}

/// The endpoint in a text. The text does not have the link layer and MTU; they are taken to be those of
/// `local`.
///
/// # Errors
///
/// The text is of another form.
pub fn decode(text: &[u8; LENGTH], local: &Endpoint) -> Result<Endpoint, WireError> {
    parse(text, local).ok_or_else(|| WireError { text: text.escape_ascii().to_string() })
}

fn parse(text: &[u8; LENGTH], local: &Endpoint) -> Option<Endpoint> {
    let text = str::from_utf8(text.strip_suffix(b"\0")?).ok()?;
    let mut fields = text.split(':');
    let mut field = |digits: usize| {
        let field = fields.next().filter(|field| field.len() == digits)?;
        // `from_str_radix` would take a sign, too.
        field.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u128::from_str_radix(field, 16).ok())?
    };
    let lid = u16::try_from(field(4)?).ok()?;
    let qp_number = u32::try_from(field(6)?).ok()?;
    let packet_seq_num = u32::try_from(field(6)?).ok()?;
    let gid = Gid { raw: field(32)?.to_be_bytes() };
    let gid = (!gid.is_zero()).then_some(gid);
    Some(Endpoint { qp_number, packet_seq_num, lid, gid, ..local.clone() })
}

/// The line that is printed about an endpoint, from its `LID` on.
pub fn describe(endpoint: &Endpoint) -> String {
    let Endpoint { lid, qp_number, packet_seq_num, .. } = endpoint;
    let gid = Ipv6Addr::from(gid_of(endpoint));
    format!("LID {lid:#06x}, QPN {qp_number:#08x}, PSN {packet_seq_num:#08x}, GID {gid}")
}

fn gid_of(endpoint: &Endpoint) -> Gid {
    endpoint.gid.unwrap_or(Gid::ZERO)
}

/// What came from the peer is no address.
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
    fn other_texts_are_refused() {
        let good = encode(&endpoint(None));
        let error = decode(&[b'x'; LENGTH], &endpoint(None)).unwrap_err().to_string();
        assert!(error.contains(&"x".repeat(LENGTH)), "{error}");
        // Each byte in turn is one that cannot stand there.
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
