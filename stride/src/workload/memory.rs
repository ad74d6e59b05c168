//! Registered memory.
//!
//! # Safety
//!
//! A [`RegisteredBuffer`] owns both the memory and its registration, and ends them in this order: first the
//! registration, then the memory. Where the device does not let go, the memory is never freed. Nobody makes
//! references to the memory (see [`buffers`](crate::buffers)).

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;

use crate::buffers::{Buffer, BufferLayout};
use crate::error::Error;

/// Memory that the device and the peer can reach.
#[derive(Debug)]
pub(super) struct RegisteredBuffer {
    /// Always there until the buffer is dropped.
    region: Option<MemoryRegion>,
    buffer: ManuallyDrop<Buffer>,
    lkey: u32,
    rkey: u32,
}

impl RegisteredBuffer {
    /// Allocates and registers memory.
    ///
    /// # Errors
    ///
    /// There is not so much memory, or the process may not lock so much.
    pub(super) fn new(
        pd: &ProtectionDomain,
        layout: BufferLayout,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        let buffer = ManuallyDrop::new(Buffer::new(layout)?);
        // SAFETY: the buffer stays allocated until the region is closed (head of this file), and it is only
        // ever accessed through raw pointers.
        let region = unsafe { pd.reg_mr(buffer.start(), buffer.length(), access) };
        match region {
            Ok(region) => Ok(Self { lkey: region.lkey(), rkey: region.rkey(), region: Some(region), buffer }),
            Err(error) => {
                drop(ManuallyDrop::into_inner(buffer));
                Err(error.into())
            }
        }
    }

    /// The memory.
    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The key for this side's work requests.
    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for the peer's work requests.
    pub(super) fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for RegisteredBuffer {
    fn drop(&mut self) {
        if self.region.take().is_none_or(|region| region.close().is_ok()) {
            // SAFETY: the device has let go of the memory; this is the only place that drops it, once.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}
