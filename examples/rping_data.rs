//! The messages and texts of `rping`, as in rdma-core's program.

use sideway::memory::Slice;

use crate::program::Failure;

/// A buffer that the peer may access: the message of both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The buffer's address.
    pub addr: u64,
    /// The buffer's remote key.
    pub rkey: u32,
    /// The buffer's size in bytes.
    pub size: u32,
}

impl RemoteBuffer {
    /// The length of the message in bytes.
    pub const BYTES: usize = 16;

    /// Address, key and size in network byte order.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    /// Parses the peer's message.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, rkey @ .., s, t, u, v] = bytes;
        Self {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes(rkey),
            size: u32::from_be_bytes([s, t, u, v]),
        }
    }
}

/// The text of a ping: `rdma-ping-0: ABC...`. A zero byte ends it and is the last byte of the
/// buffer.
pub fn text(ping: u64, size: usize) -> Vec<u8> {
    const LETTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';
    let letters = LETTERS.count() as u64;
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let first = (ping % letters) as usize;
    text.extend(LETTERS.cycle().skip(first).take(size.saturating_sub(text.len())));
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// The text in a buffer, up to its first zero byte, or all of it without one.
///
/// # Errors
///
/// The slice cannot be read.
pub fn read_text(slice: &Slice) -> Result<Vec<u8>, Failure> {
    let mut text = vec![0; slice.len()];
    slice.copy_to_slice(0, &mut text)?;
    let end = text.iter().position(|byte| *byte == 0);
    text.truncate(end.unwrap_or(text.len()));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_in_network_byte_order() {
        let remote = RemoteBuffer { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, size: 0x0d0e_0f10 };
        let bytes = remote.to_bytes();
        assert_eq!(bytes.to_vec(), (1..=16).collect::<Vec<u8>>());
        assert_eq!(RemoteBuffer::from_bytes(bytes), remote);
    }

    #[test]
    fn the_text_begins_with_another_letter_each_time() {
        assert_eq!(text(0, 20), b"rdma-ping-0: ABCDEF\0");
        assert_eq!(text(1, 20), b"rdma-ping-1: BCDEFG\0");
        assert_eq!(text(57, 20), b"rdma-ping-57: zABCD\0");
        assert_eq!(text(58, 20), b"rdma-ping-58: ABCDE\0");
        assert_eq!(text(0, 100)[13..13 + 60], text(58, 101)[14..14 + 60]);
        assert_eq!(text(4_000_000_000, 8), b"rdma-pi\0");
    }
}
