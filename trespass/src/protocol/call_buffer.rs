//! The buffer of a call that waits to receive, so that a frame is copied into it directly.

use super::copying::copy;

/// The buffer of a waiting call, if any. A frame that contains exactly what the call wants is
/// copied there directly, and bypasses the receive queue.
#[derive(Debug, Default)]
pub(crate) struct CallBuffer<'a> {
    buffer: Option<&'a mut [u8]>,
    taken: Option<usize>,
}

impl<'a> CallBuffer<'a> {
    /// The buffer of a call that wants a message of at most its length, or as many bytes of the
    /// stream.
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer: Some(buffer), taken: None }
    }

    /// The number of bytes copied there, if a frame was.
    pub(crate) fn taken(&self) -> Option<usize> {
        self.taken
    }

    /// Copies the bytes if nothing was copied before and they fit.
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
