//! A program's vector as a block.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A vector's memory, taken apart into its raw parts so that no other code reaches it.
pub(super) struct AdoptedMemory {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: this is the only access to a vector's memory, and a vector is Send.
unsafe impl Send for AdoptedMemory {}
// SAFETY: a shared reference returns a raw pointer only.
unsafe impl Sync for AdoptedMemory {}

impl AdoptedMemory {
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl From<Vec<u8>> for AdoptedMemory {
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let start = NonNull::new(bytes.as_mut_ptr()).expect("no vector is at address 0");
        Self { start, len: bytes.len(), capacity: bytes.capacity() }
    }
}

impl From<AdoptedMemory> for Vec<u8> {
    fn from(adopted: AdoptedMemory) -> Self {
        let adopted = ManuallyDrop::new(adopted);
        // SAFETY: these are the parts of the vector that `from` took apart, and `ManuallyDrop`
        // keeps the drop from using them again.
        unsafe { Self::from_raw_parts(adopted.start.as_ptr(), adopted.len, adopted.capacity) }
    }
}

impl Drop for AdoptedMemory {
    fn drop(&mut self) {
        // SAFETY: these are the parts of the vector that `from` took apart, and only this drop puts
        // them together.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}
