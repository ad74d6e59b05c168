//! The transmitting half of the state machine: it chooses the next frame, READ or probe.

use std::time::Instant;

use super::{ProtocolMachine, returning};
use crate::protocol::block::{Block, Blocks, Purpose};
use crate::protocol::frame::{FrameType, HEADER_LEN, Head, Header};
use crate::protocol::transmit_item::{Frame, TransmitItem};

impl<B: Block> ProtocolMachine<B> {
    /// Whether [`transmit`](Self::transmit) certainly has nothing to send, by a quick check.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.outgoing.is_quiet()
            && self.incoming.is_quiet()
            && self.closing.is_untouched()
            && !self.credits.credit_due()
            // One branch for both.
            && !(self.acknowledgement_due | self.prober.is_due())
    }

    /// Whether the result of [`transmit`](Self::transmit) depends on the time, as with a cork, a
    /// probe, or the end.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.outgoing.is_corked() || self.prober.is_due() || !self.closing.is_untouched()
    }

    /// The next item to post, if `room` more can be posted. `None` means nothing for now.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        blocks: &mut impl Blocks<Block = B>,
        room: usize,
    ) -> Option<TransmitItem<B>> {
        self.wants_memory = false;
        if room == 0 || self.closing.is_closed() {
            return None;
        }
        if self.closing.failed().is_some() {
            return self.reset();
        }
        if let Some(frame) = self.answer() {
            return Some(TransmitItem::Send(frame));
        }
        let mut blocks = RefusalTracker { blocks, refused: &mut self.wants_memory };
        if let Some(read) = self.incoming.next_read(&mut blocks) {
            self.counters.reads += 1;
            self.counters.bytes_read += u64::from(read.from.len);
            return Some(TransmitItem::Read(read));
        }
        if let Some(frame) = self.outgoing.next_frame(now, &mut self.credits, &mut blocks) {
            self.outgoing.cut_up(returning(&mut self.events, true));
            self.counters.frames_sent += 1;
            self.counters.bytes_sent += if frame.is_rts() { 0 } else { (frame.len() - HEADER_LEN) as u64 };
            return Some(TransmitItem::Send(frame));
        }
        if let Some(frame) = self.end_or_credit() {
            return Some(TransmitItem::Send(frame));
        }
        self.prober.take(now).then(|| {
            self.counters.probes += 1;
            TransmitItem::Probe
        })
    }

    fn reset(&mut self) -> Option<TransmitItem<B>> {
        if !self.closing.reset_due() || !self.credits.allows_reset() || self.closing.all_is_said() {
            return None;
        }
        self.closing.reset_sent();
        Some(TransmitItem::Send(self.control(FrameType::Reset, 0)))
    }

    /// RFIN, and FIN_ACK once everything was read.
    fn answer(&mut self) -> Option<Frame<B>> {
        if !self.credits.allows_control() {
            return None;
        }
        if let Some(total) = self.incoming.rfin_due() {
            self.incoming.rfin_sent();
            return Some(self.control(FrameType::Rfin, total));
        }
        if self.closing.fin_ack_due(self.incoming.all_read()) {
            self.closing.fin_ack_sent();
            return Some(self.acknowledging(FrameType::FinAck));
        }
        None
    }

    /// FIN once everything was sent, although the peer may still have sources to read; or CREDIT if
    /// no other frame has carried the credits that are due.
    fn end_or_credit(&mut self) -> Option<Frame<B>> {
        if !self.credits.allows_control() {
            return None;
        }
        if self.closing.fin_due() && self.outgoing.is_empty() {
            self.closing.fin_sent();
            return Some(self.acknowledging(FrameType::Fin));
        }
        if (self.credits.credit_due() || self.acknowledgement_due) && !self.closing.all_is_said() {
            self.counters.credits_sent += 1;
            return Some(self.acknowledging(FrameType::Credit));
        }
        None
    }

    /// A frame that tells how many frames have been received.
    fn acknowledging(&mut self, kind: FrameType) -> Frame<B> {
        (self.acknowledgement_due, self.untold) = (false, 0);
        self.told_received = self.credits.received();
        self.control(kind, if self.acknowledge_agreed { self.told_received } else { 0 })
    }

    fn control(&mut self, kind: FrameType, len: u32) -> Frame<B> {
        let (seq, credit_total) = self.credits.spend();
        self.outgoing.count_control();
        self.counters.frames_sent += 1;
        Frame::Short(Head::new(&Header { kind, flags: 0, count: 0, seq, credit_total, len }))
    }
}

/// A source of blocks that remembers whether it refused one.
struct RefusalTracker<'a, P> {
    blocks: &'a mut P,
    refused: &'a mut bool,
}

impl<P: Blocks> Blocks for RefusalTracker<'_, P> {
    type Block = P::Block;

    fn dense_size(&self, size: usize) -> usize {
        self.blocks.dense_size(size)
    }

    fn take(&mut self, size: usize, purpose: Purpose) -> Option<P::Block> {
        let block = self.blocks.take(size, purpose);
        *self.refused |= block.is_none();
        block
    }
}
