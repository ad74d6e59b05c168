//! The receiving half of the state machine: posted receives, and frames that arrive.

use std::ops::Range;

use super::{ConnectionEvent, ProtocolMachine, returning};
use crate::protocol::block::Block;
use crate::protocol::call_buffer::CallBuffer;
use crate::protocol::failure::{FailureCause, ProtocolError};
use crate::protocol::frame::{COALESCED, FrameType, HEADER_LEN, Header, Immediate};
use crate::protocol::setup::LinkType;

impl<B: Block> ProtocolMachine<B> {
    /// The number of receives to post now. For TCP, 0 means not to read from the socket for now.
    pub(crate) fn slots_wanted(&self) -> usize {
        if self.closing.failed().is_some() || self.closing.is_closed() {
            return 0;
        }
        self.credits.wanted() as usize
    }

    /// Counts `n` posted receives.
    pub(crate) fn slots_posted(&mut self, n: usize) {
        self.credits.post(n as u32);
    }

    /// TCP: the checked length of the frame with this header; its block must be at least as large.
    pub(crate) fn frame_len(&self, header: &[u8; HEADER_LEN]) -> Result<usize, ProtocolError> {
        let len = Header::decode(header)?.payload_len();
        if len > self.receive_payload {
            return Err(ProtocolError::FrameTooLong { len, most: self.receive_payload });
        }
        Ok(HEADER_LEN + len)
    }

    /// Like [`received`](Self::received), while a call waits: its `sink` takes the frame's bytes if
    /// the call waits for them. If [immediate data](crate::protocol::Frame::immediate) replaces the
    /// header, all `len` bytes are payload.
    #[inline(always)]
    pub(crate) fn received_for(
        &mut self,
        block: B,
        len: usize,
        immediate: Option<Immediate>,
        sink: &mut CallBuffer<'_>,
    ) -> Result<Option<B>, ProtocolError> {
        if self.closing.failed().is_some() || self.closing.is_closed() {
            return Ok(Some(block));
        }
        let len = len.min(block.bytes().len());
        let result = match immediate {
            // Without a header the payload starts at the slot's beginning.
            Some(immediate) if self.immediate_agreed => {
                let header = immediate.header(self.credits.received(), self.credits.granted(), len);
                self.take_frame(&header, block, 0..len, HEADER_LEN + self.receive_payload, sink)
            }
            Some(Immediate(immediate)) => Err(ProtocolError::Immediate { immediate }),
            None => match Header::decode(&block.bytes()[..len]) {
                Ok(header) => self.take_frame(&header, block, HEADER_LEN..len, self.receive_payload, sink),
                Err(error) => Err(error),
            },
        };
        result.inspect_err(|error| self.fail(FailureCause::Protocol(*error), true))
    }

    /// Handles a frame: the first `len` bytes of `block`. Returns the block if it is not kept; it
    /// should be reposted at once, because its slot then needs nothing from the pool. On an error
    /// the connection has failed, and the peer will be told.
    pub(crate) fn received(&mut self, block: B, len: usize) -> Result<Option<B>, ProtocolError> {
        self.received_for(block, len, None, &mut CallBuffer::default())
    }

    /// The same for a frame whose header is in immediate data.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn received_bare(
        &mut self,
        block: B,
        len: usize,
        immediate: Immediate,
    ) -> Result<Option<B>, ProtocolError> {
        self.received_for(block, len, Some(immediate), &mut CallBuffer::default())
    }

    /// Handles a frame for which the connection had no receive. The frame is lost, and so is the
    /// connection.
    pub(crate) fn overdrawn(&mut self) {
        let granted = self.credits.announced();
        self.fail(FailureCause::Protocol(ProtocolError::Overdrawn { granted }), true);
    }

    #[inline(always)]
    fn take_frame(
        &mut self,
        header: &Header,
        block: B,
        payload: Range<usize>,
        most: usize,
        sink: &mut CallBuffer<'_>,
    ) -> Result<Option<B>, ProtocolError> {
        if header.payload_len() != payload.len() {
            let said = header.payload_len() as u32;
            return Err(ProtocolError::Length { kind: header.kind, said, came: payload.len() });
        }
        if payload.len() > most {
            return Err(ProtocolError::FrameTooLong { len: payload.len(), most });
        }
        if header.flags & COALESCED != 0 && !self.coalesce_agreed {
            return Err(ProtocolError::Flags { kind: header.kind, flags: header.flags });
        }
        if header.kind == FrameType::Reset {
            // The sender has given up the frames before it, so that its number may not be due.
            self.lose(FailureCause::PeerReset);
            return Ok(Some(block));
        }
        self.credits.receive(header)?;
        self.prober.heard();
        self.counters.frames_received += 1;
        let kept = match header.kind {
            FrameType::Data => {
                self.counters.bytes_received += payload.len() as u64;
                if self.incoming.hands_over(header, &block.bytes()[payload.clone()], sink) {
                    Some(block)
                } else {
                    self.incoming.data(header, block, payload)?
                }
            }
            FrameType::Rts if self.read_agreed => {
                self.incoming.source(header, &block.bytes()[payload])?;
                Some(block)
            }
            _ => {
                self.take_control(header)?;
                Some(block)
            }
        };
        if self.incoming.may_hold_more() {
            self.credits.release();
        } else if kept.is_none() {
            self.credits.withhold();
        }
        self.settle();
        Ok(kept)
    }

    fn take_control(&mut self, header: &Header) -> Result<(), ProtocolError> {
        if header.kind.acknowledges() {
            self.take_acknowledgement(header)?;
        }
        match header.kind {
            FrameType::Credit if self.link == LinkType::Rc => {}
            FrameType::Rfin if self.read_agreed => {
                for _ in 0..self.outgoing.rfin(header.len)? {
                    self.outgoing.source_read(returning(&mut self.events, true));
                }
            }
            FrameType::Fin => {
                self.incoming.fin()?;
                self.closing.fin_received();
                self.events.push_back(ConnectionEvent::PeerClosed);
            }
            // A peer that acknowledges the end has read everything before it, and has sent RFIN for
            // it.
            FrameType::FinAck if self.outgoing.unread() > 0 => return Err(ProtocolError::StrayFinAck),
            FrameType::FinAck => self.closing.fin_ack_received()?,
            kind => return Err(ProtocolError::NotAgreed { kind }),
        }
        Ok(())
    }

    fn take_acknowledgement(&mut self, header: &Header) -> Result<(), ProtocolError> {
        let Header { kind, len: total, .. } = *header;
        if !self.acknowledge_agreed {
            let is_bare = total == 0;
            return is_bare.then_some(()).ok_or(ProtocolError::Length { kind, said: total, came: 0 });
        }
        let (sent, before) = (self.counters.frames_sent, self.acknowledged);
        let acknowledged = sent.checked_sub(self.credits.sent_after(total).into());
        self.acknowledged = acknowledged
            .filter(|acknowledged| *acknowledged >= before)
            .ok_or(ProtocolError::ReceivedTotal { total, sent, before })?;
        Ok(())
    }
}
