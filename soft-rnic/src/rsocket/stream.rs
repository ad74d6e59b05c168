//! The byte streams of a connection, in both directions.

use std::collections::VecDeque;
use std::ffi::c_int;

use super::message::{ImmData, RemoteMapping, RsHello, RsMessageKind};
use super::queues::{RsCompletion, RsQueues, UserBuffer};
use super::window::CreditWindow;
use crate::platform::copy::copy_unordered;

/// The unread part of a received data message.
struct ReceivedSlot {
    slot: u16,
    start: u32,
    length: u32,
}

/// Both directions of a connection. It makes progress only in calls, above all in
/// [`progress`](Self::progress).
pub(super) struct RsStream {
    pub(super) queues: RsQueues,
    window: CreditWindow,
    /// The greatest length of a sent message, in bytes.
    message: u32,
    /// The free send slots.
    free: Vec<u16>,
    received: VecDeque<ReceivedSlot>,
    /// The state of the outgoing stream's end.
    end: SendEnd,
    /// The peer has ended its stream.
    has_ended: bool,
    /// The queue pair has failed, or the peer has violated the protocol.
    is_broken: bool,
    /// The peer is ready to receive.
    is_open: bool,
    /// Announcements of mappings that are not sent yet. They precede all data that is written
    /// later.
    untold: VecDeque<(RsMessageKind, Vec<u8>)>,
    /// The peer's mappings, and the most that it may announce.
    mappings: Vec<RemoteMapping>,
    most_mappings: u16,
    /// The number of our mappings that the peer accepts.
    pub(super) their_mappings: u16,
}

/// The end of the outgoing stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendEnd {
    Open,
    /// The end is due, and is sent once there is room.
    Wanted,
    Told,
}

impl RsStream {
    /// A stream over `queues`; `hello` describes the peer.
    pub(super) fn new(queues: RsQueues, hello: RsHello, most_mappings: u16) -> Self {
        let shape = queues.shape();
        Self {
            window: CreditWindow::new(shape.receive_slots, hello.slots),
            message: shape.send_length.min(hello.length),
            free: (0..shape.send_slots).rev().collect(),
            received: VecDeque::with_capacity(shape.receive_slots.into()),
            end: SendEnd::Open,
            has_ended: false,
            is_broken: false,
            is_open: false,
            untold: VecDeque::new(),
            mappings: Vec::new(),
            most_mappings,
            their_mappings: hello.mappings,
            queues,
        }
    }

    /// The greatest length of a sent message, in bytes.
    pub(super) fn message(&self) -> u32 {
        self.message
    }

    pub(super) fn is_readable(&self) -> bool {
        !self.received.is_empty()
    }

    pub(super) fn is_writable(&self) -> bool {
        self.untold.is_empty() && self.can_send_bytes()
    }

    fn can_send_bytes(&self) -> bool {
        self.window.has_room_for_data() && !self.free.is_empty() && self.queues.has_room() && !self.is_broken
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether everything written, including the end, has reached the peer's memory.
    pub(super) fn is_flushed(&self) -> bool {
        self.end != SendEnd::Wanted && !self.queues.is_busy()
    }

    /// Processes completions, and sends due control messages. Returns whether there were
    /// completions.
    pub(super) fn progress(&mut self) -> bool {
        let mut batch = [const { None }; 32];
        let mut has_changed = false;
        while !self.is_broken {
            let count = self.queues.poll(&mut batch);
            for done in batch[..count].iter_mut().filter_map(Option::take) {
                self.handle(done);
            }
            has_changed |= count != 0;
            if count < batch.len() {
                break;
            }
        }
        self.send_control();
        has_changed
    }

    fn handle(&mut self, done: RsCompletion) {
        match done {
            RsCompletion::Sent(slot) => self.free.extend(slot),
            RsCompletion::Failed => self.is_broken = true,
            RsCompletion::Received { slot, length, bits } => {
                let is_possible = ImmData::decode(bits).is_some_and(|note| self.take(note, slot, length));
                if !is_possible {
                    log::warn!("the peer of an rsocket sent an invalid message ({bits:#x}, {length} bytes)");
                    self.is_broken = true;
                }
            }
        }
    }

    /// Handles a received message; returns `false` if it violates the protocol.
    fn take(&mut self, note: ImmData, slot: u16, length: u32) -> bool {
        if self.has_ended && note.kind == RsMessageKind::Data || !self.window.gain(note.credits) {
            return false;
        }
        let is_possible = match note.kind {
            RsMessageKind::Data if length != 0 => {
                self.received.push_back(ReceivedSlot { slot, start: 0, length });
                return true;
            }
            RsMessageKind::Data => true,
            RsMessageKind::Credit => length == 0,
            RsMessageKind::End => {
                self.has_ended |= length == 0;
                length == 0
            }
            RsMessageKind::Map => RemoteMapping::decode(&self.bytes(slot, length)).is_some_and(|mapping| {
                let has_room = self.mappings.len() < self.most_mappings.into();
                self.mappings.extend(has_room.then_some(mapping));
                has_room
            }),
            RsMessageKind::Unmap => <[u8; 8]>::try_from(&self.bytes(slot, length)[..]).is_ok_and(|offset| {
                let offset = u64::from_le_bytes(offset);
                self.mappings.retain(|mapping| mapping.offset != offset);
                true
            }),
        };
        self.give_back(slot);
        is_possible
    }

    /// Copies the start of a received control message: at most one byte more than the longest valid
    /// one.
    fn bytes(&self, slot: u16, length: u32) -> Vec<u8> {
        let length = (length as usize).min(RemoteMapping::LEN + 1);
        let length = length.min(self.queues.shape().receive_length as usize);
        let mut bytes = vec![0; length];
        // SAFETY: the slot has `length` bytes, and no receive is posted there, so the program owns
        // it.
        unsafe { copy_unordered(bytes.as_mut_ptr(), self.queues.receive_slot(slot), length) };
        bytes
    }

    /// Posts a receive slot again after its message was read.
    fn give_back(&mut self, slot: u16) {
        let is_posted = self.queues.receive(slot).is_ok();
        self.is_broken |= !(is_posted && self.window.note_received());
    }

    /// Sends the control messages that are due: mappings, the end of the stream, credits.
    fn send_control(&mut self) {
        let can_send = |this: &Self| !this.is_broken && this.window.has_room() && this.queues.has_room();
        while self.is_open && self.can_send_bytes() {
            let Some((kind, bytes)) = self.untold.pop_front() else { break };
            let Some(slot) = self.free.pop() else { break }; // `can_send_bytes` has checked.
            // SAFETY: the send slot holds a whole message, and nobody else uses it.
            unsafe { copy_unordered(self.queues.send_slot(slot), bytes.as_ptr(), bytes.len()) };
            self.say(kind, Some((slot, bytes.len() as u32)));
        }
        if self.end == SendEnd::Wanted && self.untold.is_empty() && can_send(self) {
            self.say(RsMessageKind::End, None);
            self.end = SendEnd::Told;
        }
        if self.is_open && self.window.is_due() && can_send(self) {
            self.say(RsMessageKind::Credit, None);
        }
    }

    /// Sends a message; the caller has checked that there is room.
    fn say(&mut self, kind: RsMessageKind, bytes: Option<(u16, u32)>) {
        let note = ImmData { kind, credits: self.window.send() };
        self.is_broken |= self.queues.send(note, bytes).is_err();
    }

    /// Ends the outgoing stream.
    pub(super) fn end(&mut self) {
        if self.end == SendEnd::Open {
            self.end = SendEnd::Wanted;
        }
        self.send_control();
    }

    /// Sends as many bytes as there is room for; returns their number.
    ///
    /// # Safety
    ///
    /// - The pieces are readable.
    pub(super) unsafe fn write(&mut self, pieces: &mut UserBuffers<'_>) -> usize {
        let before = pieces.left();
        while pieces.left() != 0 {
            let is_writable = self.is_writable() || self.progress() && self.is_writable();
            if !is_writable {
                break;
            }
            let Some(slot) = self.free.pop() else { break };
            // SAFETY: the caller guarantees that the pieces are readable; the slot holds a whole
            // message, and nobody else uses it.
            let length = unsafe { pieces.copy_to(self.queues.send_slot(slot), self.message as usize) };
            self.say(RsMessageKind::Data, Some((slot, length as u32)));
        }
        self.hasten();
        before - pieces.left()
    }

    /// Lets the device start sending now, because the program may not call again for long. A thread
    /// that sleeps for a completion that this call processes still wakes, because the channel's
    /// event stays pending.
    fn hasten(&mut self) {
        if self.queues.is_busy() {
            self.progress();
        }
    }

    /// Takes (or with `peek` copies) as many received bytes as fit; returns their number.
    ///
    /// # Safety
    ///
    /// - The pieces are writable.
    pub(super) unsafe fn read(&mut self, pieces: &mut UserBuffers<'_>, peek: bool) -> usize {
        let before = pieces.left();
        let mut next = 0;
        while pieces.left() != 0 {
            let Some(received) = self.received.get_mut(next) else { break };
            let from = self.queues.receive_slot(received.slot).wrapping_add(received.start as usize);
            // SAFETY: the caller guarantees that the pieces are writable; the slot holds
            // `received.length` unread bytes, and no receive is posted there.
            let length = unsafe { pieces.copy_from(from, received.length as usize) } as u32;
            if peek {
                next += 1;
                continue;
            }
            received.start += length;
            received.length -= length;
            if received.length == 0 {
                let slot = received.slot;
                self.received.pop_front();
                self.give_back(slot);
            }
        }
        self.send_control();
        before - pieces.left()
    }

    /// Queues an announcement of a mapping; it precedes all data that is written later.
    pub(super) fn tell(&mut self, kind: RsMessageKind, bytes: &[u8]) {
        assert!(bytes.len() <= self.message as usize, "a control message exceeds the message size");
        self.untold.push_back((kind, bytes.to_vec()));
        self.send_control();
    }

    /// Whether too many announcements are unsent, because the peer does not receive.
    pub(super) fn has_much_to_tell(&self) -> bool {
        self.untold.len() > 2 * usize::from(self.their_mappings)
    }

    /// Opens the stream: the peer is ready, so messages may be sent.
    pub(super) fn open(&mut self) {
        self.is_open = true;
        self.send_control();
    }

    /// The peer's mapping that contains a range of offsets.
    pub(super) fn mapping(&self, offset: u64, length: u64) -> Option<RemoteMapping> {
        self.mappings.iter().copied().find(|mapping| mapping.find(offset, length).is_some())
    }

    /// Writes as many bytes as there is room for to mapped memory of the peer; returns their
    /// number.
    ///
    /// # Safety
    ///
    /// - The pieces are readable.
    pub(super) unsafe fn write_to(
        &mut self,
        to: &RemoteMapping,
        offset: u64,
        pieces: &mut UserBuffers<'_>,
    ) -> usize {
        let before = pieces.left();
        while pieces.left() != 0 {
            let has_room = |this: &Self| !this.free.is_empty() && this.queues.has_room() && !this.is_broken;
            let has_room = has_room(self) || self.progress() && has_room(self);
            if !has_room {
                break;
            }
            let at = offset + (before - pieces.left()) as u64;
            let Some(address) = to.find(at, pieces.left() as u64) else { break };
            let Some(slot) = self.free.pop() else { break };
            let most = self.queues.shape().send_length as usize;
            // SAFETY: the caller guarantees that the pieces are readable; the slot has
            // `send_length` bytes, and nobody else uses it.
            let length = unsafe { pieces.copy_to(self.queues.send_slot(slot), most) } as u32;
            self.is_broken |= self.queues.write(slot, length, to, address).is_err();
        }
        self.hasten();
        before - pieces.left()
    }
}

/// The unprocessed rest of a vector.
pub(super) struct UserBuffers<'a> {
    pieces: &'a [UserBuffer],
    /// The number of processed bytes of the first piece.
    done: usize,
    left: usize,
}

impl<'a> UserBuffers<'a> {
    /// # Errors
    ///
    /// `EINVAL` if the total length overflows; `EFAULT` if a piece with a length is null.
    pub(super) fn new(pieces: &'a [UserBuffer]) -> Result<Self, c_int> {
        let left = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.length));
        let left = left.filter(|left| isize::try_from(*left).is_ok()).ok_or(libc::EINVAL)?;
        if pieces.iter().any(|piece| piece.base.is_null() && piece.length != 0) {
            return Err(libc::EFAULT);
        }
        Ok(Self { pieces, done: 0, left })
    }

    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Advances by up to `wanted` bytes. For each part, calls `copy` with its address, its distance
    /// from the start, and its length.
    fn take(&mut self, wanted: usize, mut copy: impl FnMut(*mut u8, usize, usize)) -> usize {
        let mut taken = 0;
        while let [first, rest @ ..] = self.pieces {
            let length = (first.length - self.done).min(wanted - taken);
            copy(first.base.wrapping_add(self.done), taken, length);
            taken += length;
            self.done += length;
            if self.done < first.length {
                break;
            }
            (self.pieces, self.done) = (rest, 0);
        }
        self.left -= taken;
        taken
    }

    /// # Safety
    ///
    /// - `to` is writable for `most` bytes, and the pieces are readable.
    unsafe fn copy_to(&mut self, to: *mut u8, most: usize) -> usize {
        // SAFETY: the caller guarantees that `to` is writable for `most` bytes, and that the pieces
        // are readable.
        self.take(most, |piece, at, length| unsafe { copy_unordered(to.add(at), piece, length) })
    }

    /// # Safety
    ///
    /// - `from` is readable for `most` bytes, and the pieces are writable.
    unsafe fn copy_from(&mut self, from: *const u8, most: usize) -> usize {
        // SAFETY: the caller guarantees that `from` is readable for `most` bytes, and that the
        // pieces are writable.
        self.take(most, |piece, at, length| unsafe { copy_unordered(piece, from.add(at), length) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn piece(bytes: &mut [u8]) -> UserBuffer {
        UserBuffer { base: bytes.as_mut_ptr(), length: bytes.len() }
    }

    #[test]
    fn vectors_are_gone_through_piece_by_piece() {
        let nothing = UserBuffer { base: std::ptr::null_mut(), length: 0 };
        for most in 1..12 {
            let (mut a, mut b, mut to) = (*b"stream", *b" of", [0; 9]);
            let from = [nothing, piece(&mut a), nothing, piece(&mut b), nothing];
            let mut from = UserBuffers::new(&from).expect("they are short");
            let (mut c, mut d) = ([0; 2], [0; 9]);
            let back = [piece(&mut c), piece(&mut d)];
            let mut back = UserBuffers::new(&back).expect("they are short");
            let (place, mut at) = (to.as_mut_ptr(), 0);
            while from.left() != 0 {
                // SAFETY: the rest of the pieces is as long as the rest of the array, and all of it
                // is local.
                unsafe {
                    let taken = from.copy_to(place.add(at), most);
                    assert_eq!(taken, most.min(9 - at));
                    assert_eq!(back.copy_from(place.add(at), taken), taken);
                    at += taken;
                }
            }
            assert_eq!((at, back.left(), &to), (9, 2, b"stream of"));
            assert_eq!((&c, &d[..7]), (b"st", &b"ream of"[..]));
        }
    }

    #[test]
    fn vectors_that_cannot_be_are_refused() {
        let huge = UserBuffer { base: std::ptr::dangling_mut(), length: usize::MAX };
        let nowhere = UserBuffer { base: std::ptr::null_mut(), length: 1 };
        let refused = |pieces: &[UserBuffer]| UserBuffers::new(pieces).err();
        assert_eq!(refused(&[huge]), Some(libc::EINVAL));
        assert_eq!(refused(&[huge, huge]), Some(libc::EINVAL));
        assert_eq!(refused(&[nowhere]), Some(libc::EFAULT));
        assert_eq!(refused(&[]), None);
    }
}
