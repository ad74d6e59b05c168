//! Sent frames that the peer's connection has not confirmed. They can be sent again over another
//! rail.
//!
//! A SEND completes when the frame has reached the peer's device. That device may fail before the
//! peer's process sees the frame. A frame is therefore kept until the peer's process has counted it.

use std::collections::VecDeque;

use crate::protocol::frame::{HEADER_LEN, Head};
use crate::protocol::{Block, BlockPieces, Blocks, Frame, Purpose, SMALL_FRAME};

/// Where the bytes of a sent frame are.
#[derive(Debug)]
enum FrameBytes<B> {
    /// At this place of [`SentFrames::small`], counted from the connection's first byte there.
    Small {
        at: u32,
        len: u32,
    },
    /// The device may still read the block, which the driver keeps.
    Posted {
        start: usize,
        end: usize,
    },
    Kept {
        block: B,
        start: usize,
        end: usize,
    },
    /// The device never returned the block.
    Copied(Vec<u8>),
    /// The peer has the frame.
    Nothing,
}

/// A frame that may have to be sent again, until the peer's process has counted it.
#[derive(Debug)]
struct SentFrame<B> {
    bytes: FrameBytes<B>,
    /// The frame's bytes in [`SentFrames::small`].
    small: u32,
    /// The program's bytes in the block, and the block's size, as the protocol counts them.
    copied: usize,
    memory: usize,
    /// It is in a send queue.
    is_posted: bool,
    /// The protocol knows that it was sent.
    is_reported: bool,
    /// It waits to be sent again.
    is_due: bool,
}

/// What the protocol must be told of a frame that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completed {
    pub(super) copied: usize,
    pub(super) memory: usize,
}

/// The sent frames, oldest first.
#[derive(Debug)]
pub(super) struct SentFrames<B> {
    frames: VecDeque<SentFrame<B>>,
    /// The sequence number of the frame at the front.
    first: u32,
    /// The frames that are due.
    due: usize,
    /// The bytes of frames that are in no block, in the order of the frames, and the place of the
    /// first one. They leave with their frames.
    small: VecDeque<u8>,
    small_from: u32,
}

impl<B: Block> SentFrames<B> {
    pub(super) fn new(first: u32) -> Self {
        Self { frames: VecDeque::new(), first, due: 0, small: VecDeque::new(), small_from: 0 }
    }

    /// Whether a frame waits to be sent again.
    pub(super) fn is_due(&self) -> bool {
        self.due > 0
    }

    fn find(&mut self, seq: u32) -> Option<&mut SentFrame<B>> {
        self.frames.get_mut(seq.wrapping_sub(self.first) as usize)
    }

    /// Records a frame that is posted for the first time, or again. A small one is copied, so that its
    /// block returns when the device is done.
    pub(super) fn posted(&mut self, seq: u32, frame: &Frame<B>) {
        let (bytes, copied, memory) = match frame {
            Frame::Short(head) => (head.bytes(), 0, 0),
            Frame::Whole { block, start, end, copied } => {
                (&block.bytes()[*start..*end], *copied, block.bytes().len())
            }
            Frame::Gather { .. } | Frame::Part { .. } => {
                unreachable!("frames over several rails hold copies")
            }
        };
        if let Some(again) = self.find(seq) {
            (again.is_posted, again.is_due) = (true, false);
            if let (Frame::Whole { start, end, .. }, false) = (frame, again.is_small()) {
                again.bytes = FrameBytes::Posted { start: *start, end: *end };
            }
        } else if bytes.len() <= HEADER_LEN + SMALL_FRAME {
            self.push_small(seq, bytes, &[], copied, memory);
        } else if let Frame::Whole { start, end, .. } = frame {
            let bytes = FrameBytes::Posted { start: *start, end: *end };
            self.push(seq, SentFrame::new(bytes, 0, copied, memory));
        }
    }

    /// Records a frame that is posted for the first time, and whose bytes are in no block.
    #[inline]
    pub(super) fn posted_small(&mut self, seq: u32, header: &[u8], bytes: &[u8]) {
        self.push_small(seq, header, bytes, 0, 0);
    }

    #[inline]
    fn push_small(&mut self, seq: u32, header: &[u8], bytes: &[u8], copied: usize, memory: usize) {
        let at = self.small_from.wrapping_add(self.small.len() as u32);
        self.small.extend(header);
        self.small.extend(bytes);
        let len = (header.len() + bytes.len()) as u32;
        self.push(seq, SentFrame::new(FrameBytes::Small { at, len }, len, copied, memory));
    }

    #[inline]
    fn push(&mut self, seq: u32, frame: SentFrame<B>) {
        let place = seq.wrapping_sub(self.first) as usize;
        debug_assert_eq!(place, self.frames.len(), "frames are sent in order");
        self.frames.push_back(frame);
    }

    /// The device has completed the frame and returned its block. The result is for the protocol,
    /// if it does not know yet. A block that is not kept comes back.
    pub(super) fn completed(
        &mut self,
        seq: u32,
        pieces: Option<BlockPieces<B>>,
    ) -> (Option<Completed>, Option<BlockPieces<B>>) {
        let Some(frame) = self.find(seq) else { return (None, pieces) };
        let report = frame.report();
        frame.is_posted = false;
        frame.keep(pieces);
        (report, None)
    }

    /// The queue pair has ended and has returned the block.
    pub(super) fn flushed(&mut self, seq: u32, pieces: Option<BlockPieces<B>>) {
        if let Some(frame) = self.find(seq) {
            frame.is_posted = false;
            frame.keep(pieces);
        }
    }

    /// The queue pair has ended, and the device may still read these bytes.
    pub(super) fn lost(&mut self, seq: u32, bytes: &[u8]) {
        let Some(frame) = self.find(seq) else { return };
        frame.is_posted = false;
        if let FrameBytes::Posted { start, end } = frame.bytes {
            frame.bytes = FrameBytes::Copied(bytes.get(start..end).unwrap_or_default().to_vec());
        }
    }

    /// The peer's process has received this frame.
    pub(super) fn arrived(&mut self, seq: u32) -> Option<Completed> {
        let frame = self.find(seq)?;
        frame.bytes = FrameBytes::Nothing;
        frame.report()
    }

    /// The peer's process has not received this frame, and never will over its rail.
    pub(super) fn repeat(&mut self, seq: u32) {
        if let Some(frame) = self.find(seq)
            && !std::mem::replace(&mut frame.is_due, true)
        {
            self.due += 1;
        }
    }

    /// The peer's process has received all frames before this one. `report` gets those that the
    /// protocol does not know to be sent, and that no device will complete. A frame that is posted
    /// stays until then.
    pub(super) fn acknowledged(&mut self, before: u32, mut report: impl FnMut(Completed)) {
        while before.wrapping_sub(self.first) as i32 > 0
            && let Some(frame) = self.frames.front_mut()
            && !frame.is_posted
        {
            frame.report().map(&mut report);
            // A peer that contradicts itself may confirm a frame that it has missed.
            self.due -= usize::from(frame.is_due);
            let small = frame.small;
            self.small.drain(..small as usize);
            self.small_from = self.small_from.wrapping_add(small);
            self.frames.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Whether a frame before this one is kept.
    pub(super) fn has_before(&self, before: u32) -> bool {
        before.wrapping_sub(self.first) as i32 > 0 && !self.frames.is_empty()
    }

    /// The oldest frame that is due, to be posted again. `None` also if there is no memory for it;
    /// `starved` tells.
    pub(super) fn next_due(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        starved: &mut bool,
    ) -> Option<(u32, Frame<B>)> {
        if self.due == 0 {
            return None;
        }
        let at = self.frames.iter().position(|frame| frame.is_due)?;
        let frame = &mut self.frames[at];
        let copied = frame.copied;
        let again = match std::mem::replace(&mut frame.bytes, FrameBytes::Nothing) {
            FrameBytes::Small { at, len } => {
                // They stay where they are, for the next repetition.
                frame.bytes = FrameBytes::Small { at, len };
                let from = at.wrapping_sub(self.small_from) as usize;
                let bytes = &self.small.make_contiguous()[from..from + len as usize];
                if bytes.len() <= Head::MAX {
                    Frame::Short(Head::of(bytes))
                } else {
                    let Some(block) = in_block(bytes, blocks) else {
                        *starved = true;
                        return None;
                    };
                    Frame::Whole { block, start: 0, end: bytes.len(), copied }
                }
            }
            FrameBytes::Kept { block, start, end } => Frame::Whole { block, start, end, copied },
            FrameBytes::Copied(bytes) => {
                let Some(block) = in_block(&bytes, blocks) else {
                    frame.bytes = FrameBytes::Copied(bytes);
                    *starved = true;
                    return None;
                };
                Frame::Whole { block, start: 0, end: bytes.len(), copied }
            }
            FrameBytes::Posted { .. } | FrameBytes::Nothing => {
                unreachable!("a frame that is due has returned from its rail")
            }
        };
        frame.is_due = false;
        self.due -= 1;
        Some((self.first.wrapping_add(at as u32), again))
    }
}

/// A block that begins with these bytes.
fn in_block<P: Blocks>(bytes: &[u8], blocks: &mut P) -> Option<P::Block> {
    let block = blocks.take(bytes.len(), Purpose::Send);
    let mut block = block.or_else(|| blocks.take(bytes.len(), Purpose::Receive))?;
    block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    Some(block)
}

impl<B: Block> SentFrame<B> {
    fn new(bytes: FrameBytes<B>, small: u32, copied: usize, memory: usize) -> Self {
        Self { bytes, small, copied, memory, is_posted: true, is_reported: false, is_due: false }
    }

    fn is_small(&self) -> bool {
        matches!(self.bytes, FrameBytes::Small { .. })
    }

    fn report(&mut self) -> Option<Completed> {
        let is_new = !std::mem::replace(&mut self.is_reported, true);
        is_new.then_some(Completed { copied: self.copied, memory: self.memory })
    }

    fn keep(&mut self, pieces: Option<BlockPieces<B>>) {
        if let FrameBytes::Posted { start, end } = self.bytes
            && let Some(pieces) = pieces
        {
            self.bytes = FrameBytes::Kept { block: pieces.into_block(), start, end };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::block::testing::VecBlocks;

    fn bytes_of<B: Block>(frame: &Frame<B>) -> Vec<u8> {
        frame.parts().collect::<Vec<_>>().concat()
    }

    /// A frame with `len` bytes behind its header. Each byte is its number.
    fn small<B: Block>(frames: &mut SentFrames<B>, seq: u32, len: usize) -> Vec<u8> {
        let bytes = vec![seq as u8; HEADER_LEN + len];
        let (header, data) = bytes.split_at(HEADER_LEN);
        frames.posted_small(seq, header, data);
        bytes
    }

    #[test]
    fn small_frames_can_be_repeated_twice() {
        let (mut frames, mut blocks) = (SentFrames::new(0), VecBlocks::new(8));
        let sent: Vec<_> = (0..4).map(|seq| small(&mut frames, seq, 100 * seq as usize)).collect();
        (0..4).for_each(|seq| drop(frames.completed(seq, None)));
        frames.acknowledged(1, |_| panic!("reported before"));
        for _ in 0..2 {
            for seq in [1, 3] {
                frames.repeat(seq);
                let (next, frame) = frames.next_due(&mut blocks, &mut false).expect("a frame is due");
                assert_eq!((next, bytes_of(&frame)), (seq, sent[seq as usize].clone()));
                frames.posted(seq, &frame);
                frames.flushed(seq, None);
            }
        }
        frames.acknowledged(4, |_| panic!("reported before"));
        assert!(frames.frames.is_empty() && frames.small.is_empty());
        small(&mut frames, 4, 5);
        assert_eq!(frames.small.len(), HEADER_LEN + 5);
    }

    #[test]
    fn a_small_frame_keeps_no_block() {
        let (mut frames, mut blocks) = (SentFrames::new(7), VecBlocks::new(8));
        let [mut short, mut long] = [100, 600].map(|len| blocks.take(len, Purpose::Send).unwrap());
        short.bytes_mut().fill(1);
        long.bytes_mut().fill(2);
        for (seq, block, end) in [(7, short, 100), (8, long, 600)] {
            let frame = Frame::Whole { block, start: 0, end, copied: 10 };
            frames.posted(seq, &frame);
            let Frame::Whole { block, .. } = frame else { unreachable!() };
            let (report, _) = frames.completed(seq, Some(BlockPieces::own(block, end, 10)));
            assert_eq!(report.map(|done| done.copied), Some(10));
        }
        let keeps_block = |frame: &SentFrame<_>| matches!(frame.bytes, FrameBytes::Kept { .. });
        assert_eq!(frames.frames.iter().map(keeps_block).collect::<Vec<_>>(), [false, true]);
        frames.repeat(7);
        let (_, again) = frames.next_due(&mut blocks, &mut false).expect("a frame is due");
        assert_eq!(bytes_of(&again), [1; 100]);
    }
}
