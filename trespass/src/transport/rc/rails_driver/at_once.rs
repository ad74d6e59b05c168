//! Frames that are sent in the program's call, without the queues of the protocol and the rails.

use std::io::IoSlice;
use std::time::Instant;

use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};

use super::super::DeviceBlock;
use super::super::queue_pair::RcQueuePair;
use super::super::request::HEADERLESS_MAX;
use super::super::wr_id::{self, WrId};
use super::{ClosePhase, RailPair, RailsDriver};
use crate::protocol::copying::copy;
use crate::protocol::frame::{HEADER_LEN, Immediate};
use crate::protocol::{Blocks, Frame, ProtocolMachine, Purpose, TransmitItem};
use crate::rails::{RailCause, RailItem};

impl<B: DeviceBlock> RailsDriver<B> {
    /// Whether nothing must be sent before a new frame. No rail then has items to post: one that
    /// could not post its items has failed, and its command stands until they are taken back.
    #[inline]
    pub(super) fn may_post(&self) -> bool {
        self.phase == ClosePhase::Open && !self.broken && self.held.is_none() && self.rails.is_quiet()
    }

    /// Posts `bytes` as a frame, which the connection allows. Returns false without room or memory
    /// for it, and for many bytes, because a block of the peer may be too small for a header with
    /// them.
    pub(super) fn post_single_frame<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        bytes: &[u8],
    ) -> bool {
        if bytes.len() > HEADERLESS_MAX {
            return false;
        }
        let Self { pairs, rails, .. } = self;
        let len = HEADER_LEN + bytes.len();
        let has_room = |rail: usize| pairs[rail].as_ref().is_some_and(|pair| pair.owner.sends.room() > 0);
        let Some(rail) = rails.choose_for_frame(len, has_room) else { return false };
        let Some(RailPair { owner, .. }) = &pairs[rail] else { return false };
        let sent = len - if protocol.uses_immediate() { HEADER_LEN } else { 0 };
        if sent <= owner.heads.inline {
            self.post_inline(rail, protocol, bytes);
            return true;
        }
        let Some(mut block) = blocks.take(len, Purpose::Send) else { return false };
        copy(&mut block.bytes_mut()[HEADER_LEN..len], bytes);
        let header = protocol.begin_single_frame(bytes.len(), block.bytes().len());
        block.bytes_mut()[..HEADER_LEN].copy_from_slice(&header);
        let frame = Frame::Whole { block, start: 0, end: len, copied: bytes.len() };
        let item = RailItem::Transmit(TransmitItem::Send(frame));
        self.rails.posted(rail, &item, Instant::now());
        if let Some(pair) = &mut self.pairs[rail] {
            pair.to_post.push(item.into_transmit());
        }
        self.post_rail(rail, protocol, blocks);
        true
    }

    /// Posts a frame from where its bytes are, for which the rail has room. The rails keep a copy.
    fn post_inline(&mut self, rail: usize, protocol: &mut ProtocolMachine<B>, bytes: &[u8]) {
        let Some(RailPair { owner, .. }) = &mut self.pairs[rail] else { return };
        let RcQueuePair { qp, generation, sends, posted, .. } = &mut **owner;
        let header = protocol.begin_single_frame(bytes.len(), 0);
        let immediate = Immediate::of(&header).filter(|_| protocol.uses_immediate());
        let mut list = qp.start_post_send();
        let id = sends.push_single_frame(None);
        let number = wr_id::encode(*generation, WrId::Send(id as u32));
        let request = list.construct_wr(number, WorkRequestFlags::Signaled);
        match immediate {
            Some(Immediate(immediate)) => request.setup_send_imm(immediate).setup_inline_data(bytes),
            None => {
                request.setup_send().setup_inline_data_list(&[IoSlice::new(&header), IoSlice::new(bytes)])
            }
        }
        let outcome = list.post();
        *posted += outcome.as_ref().err().map_or(1, |error| error.posted().unwrap_or(1) as u64);
        self.doorbells += 1;
        // The peer does not wait for the copy and the clock.
        self.rails.posted_small(rail, &header, bytes, Instant::now);
        if let Err(error) = outcome {
            tracing::warn!(rail, %error, "handing a frame to the device failed");
            self.rails.fail(rail, RailCause::Device);
        }
    }
}
