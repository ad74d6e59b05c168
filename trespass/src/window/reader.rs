//! Reads a window from front to back, ahead of its program.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use super::blocks::PendingBlock;
use super::connection::Windows;
use super::error::WindowError;
use super::key::{Access, WindowKey};
use crate::pool::{Block, LARGEST_BLOCK};

/// How a [`WindowReader`] reads ahead.
#[derive(Clone, Debug)]
#[must_use]
pub struct ReaderConfig {
    part: usize,
    prefetch_parts: usize,
    whole_below: u64,
}

impl ReaderConfig {
    /// 8 parts of 1 MiB ahead.
    pub fn new() -> Self {
        Self { part: LARGEST_BLOCK, prefetch_parts: 8, whole_below: 0 }
    }

    /// The bytes of a part, 1 to 1 MiB, which is the largest block of a pool: others are set to the
    /// nearest. Default: 1 MiB.
    pub fn part(mut self, bytes: usize) -> Self {
        self.part = bytes.clamp(1, LARGEST_BLOCK);
        self
    }

    /// The parts that are under way, or wait for the program, behind the one that it reads. 0 gets each
    /// part when it is read. Default: 8.
    pub fn prefetch_parts(mut self, parts: usize) -> Self {
        self.prefetch_parts = parts;
        self
    }

    /// Objects of up to this many bytes are fetched at once by the first read. 0 turns it off, which is
    /// the default.
    pub fn whole_below(mut self, bytes: u64) -> Self {
        self.whole_below = bytes;
        self
    }
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// What a reader has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderStats {
    /// Parts that were asked for.
    pub parts: u64,
    /// Those of them that were there, or under way, before the program read them.
    pub ahead: u64,
    /// Parts that were given up, because the program went elsewhere.
    pub unused: u64,
    /// Times when nothing was read ahead, because the pool was full.
    pub pool_full: u64,
}

/// A part that is under way, or has arrived.
struct ReaderPart {
    range: Range<u64>,
    bytes: PartBytes,
}

#[expect(clippy::large_enum_variant, reason = "a few at a time")]
enum PartBytes {
    UnderWay(PendingBlock),
    Here(Block),
}

/// Reads a window of the peer like a file.
///
/// It reads parts ahead of its program, into blocks of the connection's pool. While the pool is full it
/// reads only what the program asks for. After a seek it goes on from there.
pub struct WindowReader {
    windows: Windows,
    key: WindowKey,
    config: ReaderConfig,
    at: u64,
    /// The parts, first the one that the program reads.
    parts: VecDeque<ReaderPart>,
    stats: ReaderStats,
}

impl WindowReader {
    /// A reader at the start of the window.
    ///
    /// # Errors
    ///
    /// [`Access`](WindowError::Access): the window was not offered for reading.
    pub fn new(windows: &Windows, key: WindowKey, config: &ReaderConfig) -> Result<Self, WindowError> {
        if !key.access().contains(Access::READ) {
            return Err(WindowError::Access { offered: key.access(), needed: Access::READ });
        }
        let (windows, config) = (windows.clone(), config.clone());
        Ok(Self { windows, key, config, at: 0, parts: VecDeque::new(), stats: ReaderStats::default() })
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> ReaderStats {
        self.stats
    }

    /// The parts that may be asked for behind the first one.
    fn most_ahead(&self) -> usize {
        if self.key.len() <= self.config.whole_below { usize::MAX } else { self.config.prefetch_parts }
    }

    /// Gives up the parts before the place of the program, and all if it is in none of them.
    fn leave_parts(&mut self) {
        let is_here = |part: &ReaderPart| part.range.contains(&self.at);
        let before = self.parts.iter().position(is_here).unwrap_or(self.parts.len());
        for part in self.parts.drain(..before) {
            self.stats.unused += u64::from(matches!(part.bytes, PartBytes::UnderWay(_)));
        }
    }

    /// Asks for parts, as far as the pool has blocks for them.
    fn ask(&mut self) -> Result<(), WindowError> {
        while self.parts.len() <= self.most_ahead() {
            let begin = self.parts.back().map_or(self.at, |part| part.range.end);
            let end = self.key.len().min(begin.saturating_add(self.config.part as u64));
            if begin == end {
                break;
            }
            let Some(block) = self.windows.pool().take((end - begin) as usize) else {
                self.stats.pool_full += 1;
                break;
            };
            self.stats.parts += 1;
            self.stats.ahead += u64::from(!self.parts.is_empty());
            let begun = self.windows.start_get_block(&self.key, begin, block, (end - begin) as usize);
            let bytes = PartBytes::UnderWay(begun.map_err(|(error, _)| error)?);
            self.parts.push_back(ReaderPart { range: begin..end, bytes });
        }
        Ok(())
    }
}

impl Read for WindowReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() || self.at >= self.key.len() {
            return Ok(0);
        }
        self.leave_parts();
        self.ask()?;
        let Some(ReaderPart { range, bytes }) = self.parts.pop_front() else {
            let len = buffer.len().min(self.config.part).min((self.key.len() - self.at) as usize);
            self.windows.get(&self.key, self.at, &mut buffer[..len])?;
            self.at += len as u64;
            return Ok(len);
        };
        let block = match bytes {
            PartBytes::Here(block) => block,
            PartBytes::UnderWay(get) => get.wait().map_err(|(error, _)| {
                self.parts.clear();
                error
            })?,
        };
        let (from, end) = ((self.at - range.start) as usize, (range.end - range.start) as usize);
        let len = buffer.len().min(end - from);
        buffer[..len].copy_from_slice(&block.bytes()[from..from + len]);
        self.parts.push_front(ReaderPart { range, bytes: PartBytes::Here(block) });
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for WindowReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(distance) => self.key.len().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.at.checked_add_signed(distance),
        };
        self.at = at.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a place before the start of the window, or beyond 2^64",
            )
        })?;
        Ok(self.at)
    }
}

impl fmt::Debug for WindowReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowReader(at {} of {} bytes, {:?})", self.at, self.key.len(), self.stats)
    }
}
