//! The program's calls that take data from the receive queue.

use super::{Chunk, Incoming, ItemBytes, MessageProgress, QueueItem, ReceivedPart};
use crate::protocol::block::{Block, Blocks, Purpose};
use crate::protocol::copying::copy;
use crate::protocol::failure::{Blocked, CallError};
use crate::protocol::frame;
use crate::protocol::setup::ConnectionKind;

impl<B: Block> Incoming<B> {
    /// Whether a receiving call would not block.
    pub(crate) fn readable(&self) -> bool {
        match self.kind {
            ConnectionKind::Stream => self.ready > 0 || self.at_end(),
            ConnectionKind::SeqPacket => {
                self.complete > 0
                    || self.at_end()
                    || self.too_long().is_some()
                    || (self.taking.is_some() && self.ready > 0)
            }
        }
    }

    /// Whether everything was taken and no data follows.
    pub(crate) fn at_end(&self) -> bool {
        (self.fin || self.discarding) && self.items.is_empty()
    }

    pub(super) fn front_total(&self) -> u64 {
        self.items.front().map_or(0, |item| item.total)
    }

    /// The length of the message at the front if it can only be taken in parts.
    fn too_long(&self) -> Option<u64> {
        // With no part of it here, the error waits: reporting it now would promise readiness that
        // does not exist.
        if self.taking.is_some() || self.kind == ConnectionKind::Stream || self.ready == 0 {
            return None;
        }
        let item = self.items.front()?;
        // Behind a message whose READs are late others may arrive, and more than fill the quota.
        let stuck =
            self.complete == 0 && self.arriving.is_some() && self.queued >= 2 * self.quota && self.in_front();
        (item.total > self.quota as u64 || stuck).then_some(item.total)
    }

    /// For the message that is taken in parts: the bytes taken, and its length.
    pub(crate) fn parts_taken(&self) -> Option<(u64, u64)> {
        self.taking.map(|MessageProgress { total, got }| (got, total))
    }

    /// The length of the message at the front, if it has begun to arrive.
    pub(crate) fn message_len(&self) -> Option<u64> {
        if self.kind == ConnectionKind::Stream {
            return None;
        }
        match &self.items.front()?.bytes {
            ItemBytes::Batch { block, at, end, .. } => {
                Some(frame::batched_message(&block.bytes()[..*end], *at)?.0.len() as u64)
            }
            _ => Some(self.front_total()),
        }
    }

    /// Whether a part has arrived of a message longer than `more_than`, and no longer than
    /// `at_most`.
    pub(crate) fn begins_with(&self, more_than: u64, at_most: u64) -> bool {
        let total = self.front_total();
        self.ready > 0 && self.taking.is_none() && total > more_than && total <= at_most
    }

    /// Whether the message at the front can be taken as a whole.
    pub(crate) fn message_complete(&self) -> bool {
        self.complete > 0 && self.taking.is_none()
    }

    /// Whether bytes of the stream go into the buffer. Otherwise it is empty, or the stream ends.
    fn has_bytes_for(&self, buffer: &[u8]) -> Result<bool, CallError> {
        if self.kind != ConnectionKind::Stream {
            return Err(CallError::WrongKind);
        }
        if buffer.is_empty() || self.at_end() {
            return Ok(false);
        }
        if self.ready == 0 {
            return Err(CallError::Blocked(Blocked::Nothing));
        }
        Ok(true)
    }

    /// Takes bytes of the stream. 0 means that the peer has sent all its data.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CallError> {
        if !self.has_bytes_for(buffer)? {
            return Ok(0);
        }
        let mut done = 0;
        while done < buffer.len() && self.ready > 0 {
            done += self.take_bytes(&mut buffer[done..]).0;
        }
        Ok(done)
    }

    /// Copies bytes of the stream, which stay. 0 means that the peer has sent all its data.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> Result<usize, CallError> {
        if !self.has_bytes_for(buffer)? {
            return Ok(0);
        }
        let mut done = 0;
        for item in self.items.iter().take(self.ready) {
            let ItemBytes::Here { block, at, end } = &item.bytes else { continue };
            let len = (*end - *at).min(buffer.len() - done);
            copy(&mut buffer[done..done + len], &block.bytes()[*at..*at + len]);
            done += len;
        }
        Ok(done)
    }

    /// Takes the whole message at the front. `None` means that the peer has sent all its data.
    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, CallError> {
        self.check_messages()?;
        if self.at_end() {
            return Ok(None);
        }
        if self.complete == 0 {
            return Err(match self.too_long() {
                Some(len) => CallError::AboveReceiveQuota { len, quota: self.quota as u64 },
                None => CallError::Blocked(Blocked::Nothing),
            });
        }
        let len = self.message_len().unwrap_or(0);
        if len > buffer.len() as u64 {
            return Err(CallError::BufferTooSmall { len, room: buffer.len() });
        }
        if let Some(len) = self.take_one_piece(buffer) {
            return Ok(Some(len));
        }
        let mut done = 0;
        loop {
            let (n, last) = self.take_bytes(&mut buffer[done..]);
            done += n;
            if last {
                return Ok(Some(done));
            }
        }
    }

    /// Takes as much of the message at the front as has arrived and fits. `None` means that the
    /// peer has sent all its data.
    pub(crate) fn recv_part(&mut self, buffer: &mut [u8]) -> Result<Option<ReceivedPart>, CallError> {
        if self.kind != ConnectionKind::SeqPacket {
            return Err(CallError::WrongKind);
        }
        if self.taking.is_none() && self.at_end() {
            return Ok(None);
        }
        if self.ready == 0 {
            return Err(CallError::Blocked(Blocked::Nothing));
        }
        let total = self.message_len().unwrap_or(0);
        let mut message = self.taking.unwrap_or(MessageProgress { total, got: 0 });
        if buffer.is_empty() && total > 0 {
            return Ok(Some(ReceivedPart { len: 0, last: false, total: message.total }));
        }
        let (mut len, mut last) = (0, false);
        while !last && self.ready > 0 && (len < buffer.len() || message.total == 0) {
            let (n, ends) = self.take_bytes(&mut buffer[len..]);
            len += n;
            last = ends;
        }
        message.got += len as u64;
        self.taking = (!last).then_some(message);
        Ok(Some(ReceivedPart { len, last, total: message.total }))
    }

    fn check_messages(&self) -> Result<(), CallError> {
        match self.taking {
            _ if self.kind != ConnectionKind::SeqPacket => Err(CallError::WrongKind),
            Some(message) => Err(CallError::PartOpen { left: message.total - message.got }),
            None => Ok(()),
        }
    }

    /// Copies from the item at the front, which is ready, and drops it when it is used up. Returns
    /// whether a message ended.
    fn take_bytes(&mut self, buffer: &mut [u8]) -> (usize, bool) {
        let Some(item) = self.items.front_mut() else { return (0, true) };
        let (len, over, ended) = match &mut item.bytes {
            ItemBytes::Here { block, at, end } => {
                let len = (*end - *at).min(buffer.len());
                copy(&mut buffer[..len], &block.bytes()[*at..*at + len]);
                *at += len;
                (len, at == end, at == end && item.last)
            }
            ItemBytes::Batch { block, at, skip, end, left } => {
                let bytes = &block.bytes()[..*end];
                let Some((range, next)) = frame::batched_message(bytes, *at) else { return (0, true) };
                let from = range.start + *skip;
                let len = (range.end - from).min(buffer.len());
                copy(&mut buffer[..len], &bytes[from..from + len]);
                *skip += len;
                let ended = from + len == range.end;
                if ended {
                    (*at, *skip) = (next, 0);
                    *left -= 1;
                }
                (len, *left == 0, ended)
            }
            ItemBytes::Wanted(_) | ItemBytes::Reading { .. } | ItemBytes::Nothing => (0, true, item.last),
        };
        if ended {
            self.complete -= 1;
        }
        if over {
            self.pop();
        }
        (len, ended)
    }

    /// Takes the message at the front if it consists of a single frame, as most do. It fits the
    /// buffer.
    #[inline]
    fn take_one_piece(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let Some(QueueItem { bytes: ItemBytes::Here { block, at, end }, last: true, .. }) =
            self.items.front()
        else {
            return None;
        };
        let bytes = &block.bytes()[*at..*end];
        let len = bytes.len();
        copy(&mut buffer[..len], bytes);
        self.complete -= 1;
        drop(self.pop());
        Some(len)
    }

    #[inline]
    fn pop(&mut self) -> Option<QueueItem<B>> {
        let item = self.items.pop_front()?;
        self.queued -= item.charge;
        self.ready -= 1;
        self.next_wanted -= 1;
        Some(item)
    }

    /// Takes the bytes at the front with their block. A message of a COALESCED frame that is not
    /// its last is copied to a separate block.
    pub(crate) fn chunk(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<Option<Chunk<B>>, CallError> {
        if self.taking.is_none() && self.at_end() {
            return Ok(None);
        }
        if self.ready == 0 {
            return Err(CallError::Blocked(Blocked::Nothing));
        }
        if let Some(chunk) = self.copied_chunk(blocks)? {
            return Ok(Some(chunk));
        }
        let total = self.message_len().unwrap_or(0);
        let Some(item) = self.pop() else { return Err(CallError::Blocked(Blocked::Nothing)) };
        let (block, range) = match item.bytes {
            ItemBytes::Here { block, at, end } => (block, at..end),
            ItemBytes::Batch { block, at, skip, end, .. } => {
                let message = frame::batched_message(&block.bytes()[..end], at);
                let range = message.map_or(at..at, |(range, _)| range.start + skip..range.end);
                (block, range)
            }
            _ => return Err(CallError::Blocked(Blocked::Nothing)),
        };
        let (mut first, mut whole) = (item.first, 0);
        if self.kind == ConnectionKind::SeqPacket {
            first = self.taking.is_none();
            let mut message = self.taking.unwrap_or(MessageProgress { total, got: 0 });
            message.got += range.len() as u64;
            whole = message.total;
            self.taking = (!item.last).then_some(message);
            self.complete -= usize::from(item.last);
        }
        self.held += item.charge;
        Ok(Some(Chunk { block, range, charge: item.charge, first, last: item.last, total: whole }))
    }

    fn copied_chunk(&mut self, blocks: &mut impl Blocks<Block = B>) -> Result<Option<Chunk<B>>, CallError> {
        let Some(QueueItem { bytes: ItemBytes::Batch { block, at, skip, end, left }, .. }) =
            self.items.front_mut()
        else {
            return Ok(None);
        };
        let Some((range, next)) = frame::batched_message(&block.bytes()[..*end], *at) else {
            return Ok(None);
        };
        if *left == 1 {
            return Ok(None);
        }
        let total = range.len() as u64;
        let rest = range.start + *skip..range.end;
        let len = rest.len();
        let own = blocks.take(len.max(1), Purpose::Receive);
        let mut own = own.ok_or(CallError::Blocked(Blocked::Memory))?;
        copy(&mut own.bytes_mut()[..len], &block.bytes()[rest]);
        (*at, *skip) = (next, 0);
        *left -= 1;
        self.complete -= 1;
        let charge = own.bytes().len();
        self.held += charge;
        let first = self.taking.take().is_none();
        Ok(Some(Chunk { block: own, range: 0..len, charge, first, last: true, total }))
    }
}
