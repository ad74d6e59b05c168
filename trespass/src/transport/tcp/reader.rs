//! Parsing a TCP stream into frames, one block for each frame.
//!
//! One vectored read has two targets. The rest of the current frame goes straight into its block.
//! The bytes behind it go into a buffer that all connections of a thread share.
//!
//! These bytes are mostly small frames, which are copied out of the shared buffer. Of a large
//! frame, little more than the first bytes land there. So small frames need no separate reads,
//! large frames are not copied, and an idle connection holds no buffer.

use std::io::{self, IoSliceMut, Read};

use crate::protocol::Block;
use crate::protocol::copying::copy;
use crate::protocol::frame::HEADER_LEN;

/// The size in bytes of the shared buffer for what follows the current frame.
pub(super) const AHEAD: usize = 64 * 1024;

/// How much of the shared buffer is offered while at least [`LARGE`] bytes of the current frame are
/// missing. Bytes that land there must be copied, so the offer is small.
const AHEAD_OF_LARGE: usize = 4 * 1024;
const LARGE: usize = 16 * 1024;

/// The receiver of parsed frames, which also supplies the blocks.
pub(super) trait FrameSink {
    type Block: Block;
    type Error;
    /// Takes a block for the frame with this header; also returns the frame's length with its
    /// header. `None` if no block is available now. Fails if the header is invalid.
    fn place(&mut self, header: &[u8; HEADER_LEN]) -> Result<Option<(Self::Block, usize)>, Self::Error>;
    /// Takes a complete frame of `len` bytes, header included.
    fn frame(&mut self, block: Self::Block, len: usize) -> Result<(), Self::Error>;
}

/// The frame that is being read.
#[derive(Debug)]
enum PartialFrame<B> {
    /// The header, of which this many bytes have arrived.
    Header([u8; HEADER_LEN], usize),
    /// A block that holds `have` of the frame's `len` bytes.
    Body { block: B, have: usize, len: usize },
}

/// The state of parsing one stream.
#[derive(Debug)]
pub(super) struct Reader<B> {
    frame: PartialFrame<B>,
    /// Bytes that were read but not parsed, because no block was available.
    held: Vec<u8>,
}

impl<B: Block> Reader<B> {
    /// `held`: bytes of the stream that the caller has already read.
    pub(super) fn new(held: Vec<u8>) -> Self {
        Self { frame: PartialFrame::Header([0; HEADER_LEN], 0), held }
    }

    /// Whether bytes are waiting because no block was available.
    pub(super) fn is_held_up(&self) -> bool {
        !self.held.is_empty() || matches!(self.frame, PartialFrame::Header(_, HEADER_LEN))
    }

    /// Parses the waiting bytes again. Returns whether none are left waiting.
    pub(super) fn resume<S: FrameSink<Block = B>>(&mut self, sink: &mut S) -> Result<bool, S::Error> {
        if !self.is_held_up() {
            return Ok(true);
        }
        let held = std::mem::take(&mut self.held);
        let done = self.feed(&held, sink)?;
        if done < held.len() {
            self.held = held;
            self.held.drain(..done);
        }
        Ok(!self.is_held_up())
    }

    /// Reads once, and passes on the frames that are complete. In the result, `read` of 0 bytes
    /// means the end of the stream.
    pub(super) fn read<S: FrameSink<Block = B>>(
        &mut self,
        mut from: impl Read,
        ahead: &mut [u8],
        sink: &mut S,
    ) -> io::Result<Result<ReadOutcome, S::Error>> {
        debug_assert!(!self.is_held_up(), "nothing is read before what is held up is handed on");
        let (body, mut rest) = match &mut self.frame {
            PartialFrame::Body { block, have, len } => (&mut block.bytes_mut()[*have..*len], &mut ahead[..]),
            PartialFrame::Header(..) => (&mut [][..], &mut ahead[..]),
        };
        if body.len() >= LARGE && rest.len() > AHEAD_OF_LARGE {
            rest = &mut rest[..AHEAD_OF_LARGE];
        }
        let (to_body, asked) = (body.len(), body.len() + rest.len());
        let read = from.read_vectored(&mut [IoSliceMut::new(body), IoSliceMut::new(rest)])?;
        if let PartialFrame::Body { have, .. } = &mut self.frame {
            *have += read.min(to_body);
        }
        let ahead = &ahead[..read.saturating_sub(to_body)];
        Ok(self.complete(sink).and_then(|()| self.feed(ahead, sink)).map(|done| {
            self.held.extend_from_slice(&ahead[done..]);
            ReadOutcome { read, asked }
        }))
    }

    /// Passes on the current frame if it is complete.
    fn complete<S: FrameSink<Block = B>>(&mut self, sink: &mut S) -> Result<(), S::Error> {
        if !matches!(self.frame, PartialFrame::Body { have, len, .. } if have == len) {
            return Ok(());
        }
        match std::mem::replace(&mut self.frame, PartialFrame::Header([0; HEADER_LEN], 0)) {
            PartialFrame::Body { block, len, .. } => sink.frame(block, len),
            PartialFrame::Header(..) => Ok(()),
        }
    }

    /// Parses bytes into frames until it needs a block and gets none. Returns the number of bytes
    /// consumed.
    fn feed<S: FrameSink<Block = B>>(&mut self, bytes: &[u8], sink: &mut S) -> Result<usize, S::Error> {
        let mut rest = bytes;
        loop {
            match &mut self.frame {
                PartialFrame::Header(header, have) => {
                    let (now, later) = rest.split_at(rest.len().min(HEADER_LEN - *have));
                    header[*have..*have + now.len()].copy_from_slice(now);
                    *have += now.len();
                    rest = later;
                    if *have < HEADER_LEN {
                        break;
                    }
                    let Some((mut block, len)) = sink.place(header)? else { break };
                    block.bytes_mut()[..HEADER_LEN].copy_from_slice(header);
                    self.frame = PartialFrame::Body { block, have: HEADER_LEN, len };
                }
                PartialFrame::Body { block, have, len } => {
                    let (now, later) = rest.split_at(rest.len().min(*len - *have));
                    copy(&mut block.bytes_mut()[*have..*have + now.len()], now);
                    *have += now.len();
                    rest = later;
                    if *have < *len {
                        break;
                    }
                }
            }
            self.complete(sink)?;
        }
        Ok(bytes.len() - rest.len())
    }
}

/// The number of bytes that a read returned, and the number it asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOutcome {
    pub(super) read: usize,
    pub(super) asked: usize,
}

impl ReadOutcome {
    /// Whether the read returned less than was asked for: the socket was empty, so later data makes
    /// another event.
    pub(super) fn is_short(self) -> bool {
        self.read < self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Block for Box<[u8]> {
        fn bytes(&self) -> &[u8] {
            self
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            self
        }
    }

    /// A sink that collects complete frames, and has a limited number of blocks.
    #[derive(Default)]
    struct CollectedFrames {
        frames: Vec<Vec<u8>>,
        blocks: usize,
    }

    impl FrameSink for CollectedFrames {
        type Block = Box<[u8]>;
        type Error = String;

        fn place(&mut self, header: &[u8; HEADER_LEN]) -> Result<Option<(Self::Block, usize)>, String> {
            let len = HEADER_LEN + u32::from_le_bytes(header[12..].try_into().unwrap()) as usize;
            if len > 100_000 {
                return Err(format!("{len} bytes"));
            }
            if self.blocks == 0 {
                return Ok(None);
            }
            self.blocks -= 1;
            Ok(Some((vec![0xee; len + 3].into(), len)))
        }

        fn frame(&mut self, block: Self::Block, len: usize) -> Result<(), String> {
            self.frames.push(block[..len].to_vec());
            Ok(())
        }
    }

    /// A reader that returns at most this many bytes for each read.
    struct ShortReads<'a>(&'a [u8], usize);

    impl Read for ShortReads<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let limit = into.len().min(self.1);
            self.0.read(&mut into[..limit])
        }

        fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            let (mut read, mut left) = (0, self.1);
            for slice in into {
                let limit = slice.len().min(left);
                let now = self.0.read(&mut slice[..limit])?;
                (read, left) = (read + now, left - now);
            }
            Ok(read)
        }
    }

    fn frame(len: usize) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..HEADER_LEN + len).map(|at| (at * 7 + len) as u8).collect();
        frame[12..HEADER_LEN].copy_from_slice(&(len as u32).to_le_bytes());
        frame
    }

    fn frames() -> Vec<Vec<u8>> {
        [0, 1, 15, 16, 17, 300, 0, 0, 4096, 20_000, 7].map(frame).into()
    }

    #[test]
    fn frames_are_whole_however_few_bytes_a_read_brings() {
        let stream = frames().concat();
        for drop in (1..64).chain([1000, 4096, 20_000, 1 << 20]) {
            let (mut reader, mut taken) =
                (Reader::new(Vec::new()), CollectedFrames { blocks: 100, ..CollectedFrames::default() });
            let (mut from, mut ahead) = (ShortReads(&stream, drop), [0; 512]);
            while !from.0.is_empty() {
                reader.read(&mut from, &mut ahead, &mut taken).unwrap().unwrap();
            }
            assert_eq!(taken.frames, frames(), "{drop} bytes a read");
            assert!(!reader.is_held_up());
        }
    }

    #[test]
    fn bytes_without_a_block_are_held_until_one_is_free() {
        let stream = frames().concat();
        let (mut reader, mut taken) = (Reader::new(Vec::new()), CollectedFrames::default());
        let (mut from, mut ahead) = (ShortReads(&stream, usize::MAX), vec![0; 1 << 20]);
        reader.read(&mut from, &mut ahead, &mut taken).unwrap().unwrap();
        for count in 0..frames().len() {
            assert!(reader.is_held_up());
            assert_eq!(taken.frames, frames()[..count]);
            taken.blocks = 1;
            reader.resume(&mut taken).unwrap();
        }
        assert_eq!(taken.frames, frames());
        assert!(!reader.is_held_up() && reader.resume(&mut taken).unwrap());
    }

    #[test]
    fn bytes_read_ahead_come_first() {
        let stream = frames().concat();
        for cut in [0, 1, 16, 40, stream.len()] {
            let (mut reader, mut taken) = (
                Reader::new(stream[..cut].to_vec()),
                CollectedFrames { blocks: 100, ..CollectedFrames::default() },
            );
            let (mut from, mut ahead) = (ShortReads(&stream[cut..], 5000), [0; 512]);
            assert!(reader.resume(&mut taken).unwrap());
            while !from.0.is_empty() {
                reader.read(&mut from, &mut ahead, &mut taken).unwrap().unwrap();
            }
            assert_eq!(taken.frames, frames(), "{cut} bytes before");
        }
    }

    #[test]
    fn a_refused_header_takes_no_block() {
        let stream = frame(100_000);
        let (mut reader, mut taken) =
            (Reader::new(Vec::new()), CollectedFrames { blocks: 1, ..CollectedFrames::default() });
        let read = reader.read(&stream[..], &mut [0; 512], &mut taken).unwrap();
        assert_eq!(read.unwrap_err(), "100016 bytes");
        assert_eq!(taken.blocks, 1);
    }
}
