//! Buffers for bytes on their way. A direction holds one only while it has bytes, so that the memory
//! of idle connections is small.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// The most that a direction of a connection holds, in bytes.
pub(crate) const BUFFER_SIZE: usize = 64 << 10;

/// Free buffers that are kept: 4 MiB.
const KEPT: usize = 64;

/// Buffers that no connection holds.
static FREE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

/// A buffer of [`BUFFER_SIZE`] bytes with old contents.
pub(crate) struct RelayBuffer(Box<[u8]>);

impl RelayBuffer {
    pub(crate) fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Self(free.unwrap_or_else(|| vec![0; BUFFER_SIZE].into()))
    }
}

impl Drop for RelayBuffer {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(mem::take(&mut self.0));
        }
    }
}

impl Deref for RelayBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for RelayBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
