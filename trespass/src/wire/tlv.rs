//! The TLV list at the end of HELLO: `type u16 | length u16 | value`, padded with zeros to a
//! multiple of 8 bytes.

use super::WireError;
use super::preamble::Writer;
use super::reader::Reader;

/// The address of a queue pair: [`Endpoint`](super::Endpoint).
pub(super) const ENDPOINT: u16 = 1;
/// The reason for having no endpoint: a cause (u16), and a text.
pub(super) const UNAVAILABLE: u16 = 2;
/// Data of the program for its peer.
pub(super) const USER_DATA: u16 = 3;
// 4 is reserved for authentication, and never sent.
/// The number of receives that the sender starts with (u32), if not all.
pub(super) const FIRST_SLOTS: u16 = 5;
/// The number of the sender's devices (u8, and three zero bytes), if it uses several.
pub(super) const RAILS: u16 = 6;

/// The most data that a program may send with HELLO, in bytes.
pub(crate) const MAX_USER_DATA: usize = 1024;

// Frozen, like the types of the messages.
const _: () = assert!(ENDPOINT == 1 && UNAVAILABLE == 2 && USER_DATA == 3 && FIRST_SLOTS == 5 && RAILS == 6);

/// Appends an entry.
pub(super) fn put(writer: &mut Writer, kind: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).expect("values are bounded far below 64 KiB");
    writer.put(&kind.to_le_bytes()).put(&len.to_le_bytes()).put(value).pad();
}

/// The entries of a list.
pub(super) struct Tlvs<'a>(Reader<'a>);

impl<'a> Tlvs<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(Reader::new(bytes, "list of options"))
    }

    fn entry(&mut self) -> Result<(u16, &'a [u8]), WireError> {
        let kind = self.0.u16()?;
        let len = usize::from(self.0.u16()?);
        let value = self.0.slice(len)?;
        self.0.slice((4 + len).next_multiple_of(8) - (4 + len))?;
        Ok((kind, value))
    }
}

impl<'a> Iterator for Tlvs<'a> {
    type Item = Result<(u16, &'a [u8]), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.is_empty()).then(|| self.entry())
    }
}
