//! A wire monitor: it observes the frames of a reliable connection, and keeps separate accounts of
//! the credits.
//!
//! It decodes frames from the protocol's description, independently of the code under test.

use super::link::RcLink;
use super::memory::SimMemory;
use std::collections::VecDeque;

pub(super) const HEADER: usize = 16;

/// A frame's header on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireHeader {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) count: u16,
    pub(super) seq: u32,
    pub(super) credit_total: u32,
    pub(super) len: u32,
}

const DATA: u8 = 1;
pub(super) const CREDIT: u8 = 2;
pub(super) const RTS: u8 = 3;
pub(super) const RFIN: u8 = 4;
pub(super) const FIN: u8 = 9;
pub(super) const FIN_ACK: u8 = 10;
pub(super) const RESET: u8 = 11;
/// Credits that data never spends.
const RESERVE: i32 = 3;

const COALESCED: u8 = 4;
const BLOCKED: u8 = 8;

impl WireHeader {
    pub(super) fn read(frame: &[u8]) -> Self {
        assert!(frame.len() >= HEADER, "a frame of {} bytes has no header", frame.len());
        let u32_at = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap());
        Self {
            kind: frame[0],
            flags: frame[1],
            count: u16::from_le_bytes([frame[2], frame[3]]),
            seq: u32_at(4),
            credit_total: u32_at(8),
            len: u32_at(12),
        }
    }

    /// The number of bytes after the header.
    pub(super) fn payload(&self) -> usize {
        if self.kind == RFIN { 0 } else { self.len as usize }
    }
}

/// A range of an end's memory.
#[derive(Clone, Copy, Debug)]
struct Range {
    addr: u64,
    len: u64,
}

/// The ranges that an RTS announces: its payload ends with `count` entries of address, length and
/// key.
fn ranges(header: &WireHeader, frame: &[u8]) -> Vec<Range> {
    let entries = frame[frame.len() - 16 * usize::from(header.count)..].chunks_exact(16);
    let range = |bytes: &[u8]| Range {
        addr: u64::from_le_bytes(bytes[..8].try_into().unwrap()),
        len: u32::from_le_bytes(bytes[8..12].try_into().unwrap()).into(),
    };
    entries.map(range).collect()
}

/// The credit accounts of one end: what it has sent, and what it knows of its peer.
#[derive(Debug, Default)]
pub(super) struct CreditAccounts {
    /// The total of frames posted for sending.
    pub(super) sent: u32,
    /// The total of frames that its connection has received.
    pub(super) received: u32,
    /// The total of receives that it has posted.
    pub(super) posted: u32,
    /// The latest total that it has reported to its peer.
    told: u32,
    /// The latest total that its peer has reported.
    heard: u32,
    /// The latest data frame that it received was marked BLOCKED, and it has not granted more since.
    hears_blocked: bool,
    /// The ranges that it announced in RTS frames and that no RFIN has answered.
    promised: VecDeque<Vec<Range>>,
    /// The total of answered RTS frames.
    answered: u32,
    /// Frames sent by type.
    pub(super) kinds: [u64; 12],
    /// Frames that spent the reserve.
    pub(super) reserve: u64,
    /// The number of times that `sent` wrapped.
    pub(super) wraps: u64,
    /// Sent frames marked BLOCKED, and sent messages that were coalesced.
    pub(super) blocked: u64,
    pub(super) coalesced: u64,
    /// Frames received without a header.
    pub(super) bare: u64,
    /// Sent frames that contained a part of a lent block.
    pub(super) parts: u64,
    /// Sent RTS frames with several ranges.
    pub(super) gathered: u64,
    /// FIN frames sent before the peer had read all sources.
    pub(super) early_fins: u64,
}

/// The accounts of both ends.
#[derive(Debug, Default)]
pub(super) struct WireMonitor {
    pub(super) accounts: [CreditAccounts; 2],
}

impl WireMonitor {
    /// All totals begin at `first`. Each end has granted its number of `slots` before the first
    /// frame.
    pub(super) fn new(first: u32, slots: [u32; 2]) -> Self {
        let book = |end: usize| CreditAccounts {
            sent: first,
            received: first,
            answered: first,
            posted: first,
            told: first.wrapping_add(slots[end]),
            heard: first.wrapping_add(slots[1 - end]),
            ..CreditAccounts::default()
        };
        Self { accounts: [book(0), book(1)] }
    }

    /// Accounts for a frame that `end` posts for sending.
    pub(super) fn sends(&mut self, end: usize, frame: &[u8], memory: &SimMemory) {
        let book = &mut self.accounts[end];
        let header = WireHeader::read(frame);
        let window = book.heard.wrapping_sub(book.sent) as i32;
        let control = matches!(header.kind, CREDIT | RFIN | FIN | FIN_ACK | RESET);
        assert!(window > 0, "I1: {end} knows of {window} posted receives and sends {header:?}");
        assert!(
            control || window > RESERVE,
            "I3: {end} knows of {window} receives, and spends one of the reserve for {header:?}"
        );
        let told = header.credit_total.wrapping_sub(book.told) as i32;
        assert!(told >= 0, "I2: {end} reported {}, and now less: {header:?}", book.told);
        let ahead = header.credit_total.wrapping_sub(book.posted) as i32;
        assert!(ahead <= 0, "I2: {end} has posted {} receives, and reports more: {header:?}", book.posted);
        book.told = header.credit_total;
        // The peer learns that it may go on.
        book.hears_blocked &= book.told.wrapping_sub(book.received) as i32 <= RESERVE;
        book.sent = book.sent.wrapping_add(1);
        book.reserve += u64::from(window <= RESERVE);
        book.wraps += u64::from(book.sent == 0);
        book.kinds[usize::from(header.kind)] += 1;
        book.blocked += u64::from(header.flags & BLOCKED != 0);
        book.coalesced += u64::from(header.flags & COALESCED != 0);
        book.early_fins += u64::from(header.kind == FIN && !book.promised.is_empty());
        if header.kind == RTS {
            book.gathered += u64::from(header.count > 1);
            let ranges = ranges(&header, frame);
            ranges.iter().for_each(|range| memory.announce_source(range.addr));
            book.promised.push_back(ranges);
        }
    }

    /// Accounts for `n` receives that `end` posts.
    pub(super) fn posts(&mut self, end: usize, n: usize) {
        let book = &mut self.accounts[end];
        book.posted = book.posted.wrapping_add(n as u32);
    }

    /// Accounts for a frame that the connection of `end` is about to receive.
    pub(super) fn receives(&mut self, end: usize, frame: &[u8], memory: &SimMemory) {
        let header = WireHeader::read(frame);
        let book = &mut self.accounts[end];
        book.heard = header.credit_total;
        if matches!(header.kind, DATA | RTS) {
            book.hears_blocked = header.flags & BLOCKED != 0;
        }
        book.received = book.received.wrapping_add(1);
        if header.kind != RFIN {
            return;
        }
        while book.answered != header.len {
            let piece = book.promised.pop_front();
            let piece = piece
                .unwrap_or_else(|| panic!("I2: {end} gets an RFIN for {} RTS it never sent", header.len));
            piece.into_iter().for_each(|Range { addr, .. }| {
                // Several RTS frames may announce parts of one block, which is free once the last
                // of them is answered.
                if !book.promised.iter().flatten().any(|other| other.addr >> 32 == addr >> 32) {
                    memory.release_source(addr);
                }
            });
            book.answered = book.answered.wrapping_add(1);
        }
    }

    /// Like [`receives`](Self::receives), for a data frame whose header is replaced by immediate
    /// data.
    pub(super) fn receives_bare(&mut self, end: usize, immediate: u32) {
        let book = &mut self.accounts[end];
        // The sender's accounts may already include later reports.
        let more = (immediate as u16).wrapping_sub(book.heard as u16);
        book.heard = book.heard.wrapping_add(more.into());
        book.hears_blocked = immediate >> 31 != 0;
        assert_eq!(immediate >> 16 & 0x1fff, book.received & 0x1fff, "{end} gets a frame out of order");
        book.received = book.received.wrapping_add(1);
        book.bare += 1;
    }

    /// Checks a READ of `len` bytes of the peer's memory that `end` posts.
    pub(super) fn reads(&self, end: usize, addr: u64, len: u64) {
        let mut told = self.accounts[1 - end].promised.iter().flatten();
        let inside = told.any(|range| range.addr <= addr && addr + len <= range.addr + range.len);
        assert!(
            inside,
            "I17: {end} READs {len} bytes at {addr:#x}, which its peer has not announced, or no longer"
        );
    }

    /// With nothing in flight, checks that both ends agree, and that neither owes more credits than
    /// allowed.
    pub(super) fn at_rest(&self, link: &RcLink, slots: [u32; 2]) {
        for (end, slots) in slots.into_iter().enumerate() {
            let (book, peer) = (&self.accounts[end], &self.accounts[1 - end]);
            assert_eq!(book.sent, peer.received, "I2: frames that {end} sent and that arrived");
            assert_eq!(book.told, peer.heard, "I2: credit that {end} reported and that its peer received");
            let free = book.posted.wrapping_sub(book.received);
            assert_eq!(free as usize, link.receives(end), "I2: receives of {end} posted and not used");
            assert!(free <= slots, "I2: {end} has {free} receives posted of {}", slots);
            let owed = book.posted.wrapping_sub(book.told);
            assert!(owed < slots.div_ceil(2), "I2: {end} owes {owed} of {} credits and is at rest", slots);
            assert_eq!(
                self.window(1 - end) + owed,
                free,
                "I2: credit of the peer of {end} and posted receives"
            );
        }
    }

    /// With nothing in flight, even if programs have stopped reading: an end must have reported its
    /// free receives to a peer that said it is blocked and has no credit to go on. One may stay
    /// unreported after an answer: the peer's own answer to this end has crossed it and used it, and
    /// answers to answers would never end. It is reported with the next one, when the program reads.
    pub(super) fn check_blocked_peers(&self) {
        for (end, book) in self.accounts.iter().enumerate() {
            let owed = book.posted.wrapping_sub(book.told);
            let opens = book.posted.wrapping_sub(book.received) as i32 > RESERVE;
            let due = owed > 1 || (owed > 0 && book.hears_blocked);
            assert!(
                !(due && opens && self.window(1 - end) <= RESERVE as u32),
                "I6: {end} owes {owed} credits to a peer that is blocked"
            );
        }
    }

    /// The credit that `end` holds, by its knowledge.
    pub(super) fn window(&self, end: usize) -> u32 {
        self.accounts[end].heard.wrapping_sub(self.accounts[end].sent)
    }
}
