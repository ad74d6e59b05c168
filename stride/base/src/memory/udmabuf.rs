//! Dma-bufs of host memory, which the kernel's udmabuf driver makes.
//!
//! # Safety
//!
//! The module makes one system call, `ioctl`, whose argument matches the structure in
//! `linux/udmabuf.h`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::MemoryError;

/// `struct udmabuf_create`
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const _: () = assert!(size_of::<UdmabufCreate>() == 24);

/// `UDMABUF_FLAGS_CLOEXEC`
const CLOSE_ON_EXEC: u32 = 1;

const DEVICE: &str = "/dev/udmabuf";

// SAFETY: the kernel reads the structure that belongs to the opcode (`UDMABUF_CREATE`), and returns
// a new descriptor.
unsafe impl Ioctl for UdmabufCreate {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<Self>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }

    unsafe fn output_from_ptr(made: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the call succeeded, so the kernel has just created this descriptor, and no other
        // code owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(made) })
    }
}

/// Makes a dma-buf of the first `length` bytes, in whole pages, of a memory file that cannot
/// shrink.
///
/// # Errors
///
/// The kernel lacks udmabuf, or the length exceeds its limit.
pub(super) fn of(file: BorrowedFd<'_>, length: usize) -> Result<OwnedFd, MemoryError> {
    let size = length.next_multiple_of(rustix::param::page_size()) as u64;
    let failed = |call| move |source: io::Error| MemoryError::DmaBuf { length: size, call, source };
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(failed(DEVICE))?;
    let create =
        UdmabufCreate { memfd: file.as_raw_fd().cast_unsigned(), flags: CLOSE_ON_EXEC, offset: 0, size };
    // SAFETY: the structure matches the opcode (`UdmabufCreate`), and both descriptors are open.
    unsafe { ioctl(&device, create) }.map_err(|errno| failed("UDMABUF_CREATE")(errno.into()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use sideway::memory::{Buffer, BufferKind};

    use super::*;

    #[test]
    fn a_kernel_without_dma_bufs_of_memory_is_named_with_the_remedy() {
        let buffer = Buffer::new(BufferKind::Shared, 5000).unwrap();
        match of(buffer.file().unwrap(), buffer.len()) {
            Ok(made) => {
                let size = rustix::fs::seek(made.as_fd(), rustix::fs::SeekFrom::End(0)).unwrap();
                assert_eq!(size, 5000_u64.next_multiple_of(rustix::param::page_size() as u64));
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("--buffer dma-buf") && text.contains("udmabuf"), "{text}");
            }
        }
    }
}
