//! The memory of the exchanged message.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

use crate::program::Failure;

/// Registered memory for two messages, which alternate: while one is being sent, the next one
/// arrives in the other buffer. The received message is the next to be sent, so that the same bytes
/// travel.
///
/// This type never makes a reference to the memory, because the device may write to it at any time.
pub struct PingPongBuffers {
    memory: RegisteredBuffer,
    size: u32,
    /// The size of the header in front of a datagram.
    header: u32,
    /// The distance between the two messages, a multiple of the page size.
    stride: usize,
    page: usize,
}

impl PingPongBuffers {
    /// The C program's filling. If the message is to be checked, the first byte of each page
    /// differs.
    const FILLING: u8 = 0x7b;
    const PAGE_MARK: u8 = 0;

    /// Memory for two messages of this size, at least one byte.
    ///
    /// # Errors
    ///
    /// The memory is not available, or cannot be registered.
    pub fn new(pd: &ProtectionDomain, size: u32) -> Result<Self, Failure> {
        Self::with_header(pd, size, 0)
    }

    /// Like [`new`](Self::new), with room for a header in front of each message.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_header(pd: &ProtectionDomain, size: u32, header: u32) -> Result<Self, Failure> {
        let page = rustix::param::page_size();
        let stride = usize::try_from(u64::from(size) + u64::from(header))?.next_multiple_of(page);
        let kind = BufferKind::for_device(pd.context());
        let buffer = Buffer::new(kind, 2 * stride)
            .map_err(|error| Failure::setup(format_args!("{error}; choose shorter messages with -s")))?;
        // SAFETY: the buffer was allocated with this length just now, and nothing else uses it yet.
        unsafe { buffer.as_ptr().write_bytes(Self::FILLING, buffer.len()) };
        let memory = pd.reg_buffer(buffer, AccessFlags::LocalWrite)?;
        Ok(Self { memory, size, header, stride, page })
    }

    /// The local key of both messages.
    pub fn lkey(&self) -> u32 {
        self.memory.lkey()
    }

    /// The address of a message. Even and odd turns alternate.
    pub fn addr(&self, turn: u32) -> u64 {
        self.message(turn).addr() as u64
    }

    /// The address and length for a receive, including the header.
    pub fn receive_target(&self, turn: u32) -> (u64, u32) {
        (self.addr(turn) - u64::from(self.header), self.size + self.header)
    }

    /// The size of a message.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Writes the marks that [`wrong_pages`](Self::wrong_pages) checks. Must be called before the
    /// message is posted.
    pub fn mark(&self, turn: u32) {
        for page in (0..self.size as usize).step_by(self.page) {
            // SAFETY: `page` is below the message's size; the write makes no reference.
            unsafe { self.message(turn).add(page).write_volatile(Self::PAGE_MARK) };
        }
    }

    /// The pages of a message that differ from what [`mark`](Self::mark) wrote. A wrong byte stays
    /// wrong while the message travels, so that one check at the end suffices.
    pub fn wrong_pages(&self, turn: u32) -> Vec<usize> {
        let page = self.page;
        let mut wrong: Vec<usize> = (0..self.size as usize)
            .filter(|place| {
                let expected = if place % page == 0 { Self::PAGE_MARK } else { Self::FILLING };
                // SAFETY: `place` is below the message's size; the read makes no reference.
                unsafe { self.message(turn).add(*place).read_volatile() != expected }
            })
            .map(|place| place / page)
            .collect();
        wrong.dedup();
        wrong
    }

    /// The pages of a message without a mark, whatever their other bytes are: for messages that a
    /// peer has filled.
    pub fn wrong_marks(&self, turn: u32) -> Vec<usize> {
        let places = (0..self.size as usize).step_by(self.page);
        // SAFETY: `place` is below the message's size; the read makes no reference.
        let is_wrong =
            |place: &usize| unsafe { self.message(turn).add(*place).read_volatile() != Self::PAGE_MARK };
        places.filter(is_wrong).map(|place| place / self.page).collect()
    }

    fn message(&self, turn: u32) -> *mut u8 {
        // SAFETY: the memory is twice as long as the stride, which has room for header and message.
        unsafe { self.memory.as_ptr().add(turn as usize % 2 * self.stride + self.header as usize) }
    }
}
