//! XRC domains and their files.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::Device;
use super::handle::RawHandle;

/// An XRC domain.
#[derive(Clone, Debug)]
pub(crate) struct Xrcd(Arc<XrcdInner>);

#[derive(Debug)]
struct XrcdInner {
    raw: RawHandle<ibv_xrcd>,
    device: Device,
}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the domain lives. No object that was made with it does,
        // because each holds a reference to it.
        self.raw.drop(|xrcd| unsafe { verbs::ibv_close_xrcd(xrcd) });
    }
}

impl Xrcd {
    /// A domain without a file.
    pub(crate) fn private(device: &Device) -> Result<Self, i32> {
        Self::open(device, -1, libc::O_CREAT)
    }

    pub(crate) fn open(device: &Device, fd: i32, oflags: i32) -> Result<Self, i32> {
        use ibv_xrcd_init_attr_mask as Mask;
        Self::with(device, Mask::IBV_XRCD_INIT_ATTR_FD.0 | Mask::IBV_XRCD_INIT_ATTR_OFLAGS.0, fd, oflags)
    }

    /// Opens a domain with this `comp_mask`.
    pub(crate) fn with(device: &Device, comp_mask: u32, fd: i32, oflags: i32) -> Result<Self, i32> {
        let mut attr = ibv_xrcd_init_attr { comp_mask, fd, oflags };
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        let xrcd = unsafe { verbs::ibv_open_xrcd(device.raw(), &raw mut attr) };
        Ok(Self(Arc::new(XrcdInner { raw: RawHandle::new("an XRC domain", xrcd)?, device: device.clone() })))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    pub(super) fn raw(&self) -> *mut ibv_xrcd {
        self.0.raw.get()
    }

    pub(crate) fn close(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the domain lives. The library refuses while something
        // uses it.
        self.0.raw.end(|xrcd| unsafe { verbs::ibv_close_xrcd(xrcd) })
    }
}

/// An anonymous file.
#[derive(Debug)]
pub(crate) struct Inode(File);

impl Inode {
    pub(crate) fn new() -> Self {
        // SAFETY: the name is a string that ends with a zero byte. The new descriptor belongs to
        // the `File`.
        let file = unsafe {
            let fd = libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "a file in memory");
            File::from_raw_fd(fd)
        };
        Self(file)
    }

    /// Opens the same file once more.
    pub(crate) fn again(&self) -> Self {
        Self(File::open(format!("/proc/self/fd/{}", self.fd())).expect("the file can be opened"))
    }

    pub(crate) fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
