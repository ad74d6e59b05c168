//! The message that goes to and fro, and the memory that it is in.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::memory::{Buffer, BufferKind, RegisteredBuffer};

use crate::program::Failure;

/// Registered memory for two messages, taken in turn: while one is on its way out, the next one comes in
/// beside it. What came in is what goes out next, so the message really travels.
///
/// Nothing here ever makes a reference to the memory, since the device may write to it at any time.
pub struct PingPongBuffers {
    memory: RegisteredBuffer,
    size: u32,
    /// How much lies before each message, for the header of a datagram.
    header: u32,
    /// From the one message to the other: whole pages.
    stride: usize,
    page: usize,
}

impl PingPongBuffers {
    /// C's filling; with it, the first byte of each page is another if the message is to be checked.
    const FILLING: u8 = 0x7b;
    const PAGE_MARK: u8 = 0;

    /// Memory for two messages of this size, at least one byte.
    ///
    /// # Errors
    ///
    /// There is not so much memory, or it cannot be registered.
    pub fn new(pd: &ProtectionDomain, size: u32) -> Result<Self, Failure> {
        Self::with_header(pd, size, 0)
    }

    /// The same, with room for a header of this length before each message.
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
        // SAFETY: so many bytes were allocated just now, and nobody else knows of them yet.
        unsafe { buffer.as_ptr().write_bytes(Self::FILLING, buffer.len()) };
        let memory = pd.reg_buffer(buffer, AccessFlags::LocalWrite)?;
        Ok(Self { memory, size, header, stride, page })
    }

    /// The key to both messages.
    pub fn lkey(&self) -> u32 {
        self.memory.lkey()
    }

    /// Where a message is. Even and odd turns take turns.
    pub fn addr(&self, turn: u32) -> u64 {
        self.message(turn).addr() as u64
    }

    /// Where a message comes in: its header's place, and the length of both.
    pub fn receive_target(&self, turn: u32) -> (u64, u32) {
        (self.addr(turn) - u64::from(self.header), self.size + self.header)
    }

    /// How long a message is.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Writes the marks that [`wrong_pages`](Self::wrong_pages) looks for. To be called before anything is
    /// posted, or the device sends who knows what.
    pub fn mark(&self, turn: u32) {
        for page in (0..self.size as usize).step_by(self.page) {
            // SAFETY: `page` is below the message's size; the write makes no reference.
            unsafe { self.message(turn).add(page).write_volatile(Self::PAGE_MARK) };
        }
    }

    /// The pages of a message that are not as [`mark`](Self::mark) left them. A byte that once went wrong
    /// stays wrong while the message travels, so looking once, at the end, is enough.
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

    /// The pages of a message whose mark is missing, whatever else is in them: for messages that a peer has filled.
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
