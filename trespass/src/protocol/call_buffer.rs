//! Where the program waits for what comes next.

use super::copying::copy;

/// The memory of a call that waits, if one does: a frame that is all that the call wants goes right there, past the queue of what arrived.
#[derive(Debug, Default)]
pub(crate) struct CallBuffer<'a> {
    buffer: Option<&'a mut [u8]>,
    taken: Option<usize>,
}

impl<'a> CallBuffer<'a> {
    /// That of a call that wants a message of at most so many bytes, or as many of the stream.
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer: Some(buffer), taken: None }
    }

    /// How many bytes went there, if any frame did.
    pub(crate) fn taken(&self) -> Option<usize> {
        self.taken
    }

    /// Takes these bytes if nothing was taken before and they fit.
    #[inline]
    pub(super) fn take(&mut self, bytes: &[u8]) -> bool {
        let Some(buffer) = self.buffer.as_deref_mut().and_then(|buffer| buffer.get_mut(..bytes.len())) else {
            return false;
        };
        copy(buffer, bytes);
        self.buffer = None;
        self.taken = Some(bytes.len());
        true
    }
}
