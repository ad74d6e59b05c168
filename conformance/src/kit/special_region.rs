//! Regions without a [`Buf`](super::Buf): null, of device memory, of a file; and advice about
//! regions.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::handle::{RawHandle, errno};
use super::{Device, Pd, RemoteAddr, Sge};

/// Memory on the device.
#[derive(Clone, Debug)]
pub(crate) struct Dm(Arc<DmInner>);

#[derive(Debug)]
struct DmInner {
    raw: RawHandle<ibv_dm>,
    device: Device,
    /// Whether it is an imported handle, whose drop leaves the memory alone.
    imported: bool,
}

impl Drop for DmInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the memory lives. A region of it holds a reference to it.
        self.raw.drop(|dm| unsafe {
            if self.imported {
                self.device.lib().ibv_unimport_dm().unwrap()(dm);
                return 0;
            }
            verbs::ibv_free_dm(dm)
        });
    }
}

impl Dm {
    pub(crate) fn new(device: &Device, length: usize, log_align_req: u32) -> Result<Self, i32> {
        Self::with_mask(device, length, log_align_req, 0)
    }

    pub(crate) fn with_mask(
        device: &Device,
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    ) -> Result<Self, i32> {
        let mut attr = ibv_alloc_dm_attr { length, log_align_req, comp_mask };
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        let dm = unsafe { verbs::ibv_alloc_dm(device.raw(), &raw mut attr) };
        let raw = RawHandle::new("device memory", dm)?;
        Ok(Self(Arc::new(DmInner { raw, device: device.clone(), imported: false })))
    }

    /// Imports device memory by its handle.
    pub(crate) fn import(device: &Device, handle: u32) -> Result<Self, i32> {
        let import = device.lib().ibv_import_dm().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the context lives.
        let dm = unsafe { import(device.raw(), handle) };
        let raw = RawHandle::new("imported device memory", dm)?;
        Ok(Self(Arc::new(DmInner { raw, device: device.clone(), imported: true })))
    }

    /// The handle by which other contexts import it, and the mask that says whether it has one.
    pub(crate) fn handle(&self) -> (u32, u32) {
        // SAFETY: `RawHandle` checks that the memory lives. The mask is in every release, and says
        // which of the fields exist.
        unsafe {
            let dm = self.0.raw.get();
            let mask = (*dm).comp_mask;
            (if mask & ibv_dm_mask::IBV_DM_MASK_HANDLE.0 == 0 { 0 } else { (*dm).handle }, mask)
        }
    }

    /// Writes to the memory: 0 or an error number.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> i32 {
        // SAFETY: `RawHandle` checks that the memory lives. The bytes are a readable slice, and the
        // library refuses a range beyond the memory.
        unsafe { verbs::ibv_memcpy_to_dm(self.0.raw.get(), offset, bytes.as_ptr().cast(), bytes.len()) }
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, i32> {
        let mut bytes = vec![0xa5; len];
        // SAFETY: `RawHandle` checks that the memory lives. The bytes are a writable buffer, and
        // the library refuses a range beyond the memory.
        match unsafe { verbs::ibv_memcpy_from_dm(bytes.as_mut_ptr().cast(), self.0.raw.get(), offset, len) } {
            0 => Ok(bytes),
            error => Err(error),
        }
    }

    pub(crate) fn free(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the memory lives. The library refuses while something
        // uses it.
        self.0.raw.end(|dm| unsafe { verbs::ibv_free_dm(dm) })
    }

    /// Gives up the pointer to memory that another context has freed.
    pub(crate) fn unimport(&self) {
        // SAFETY: `RawHandle` checks that the region lives.
        self.0.raw.end(|dm| unsafe {
            self.0.device.lib().ibv_unimport_dm().unwrap()(dm);
            0
        });
    }
}

/// A region whose memory is not a [`Buf`](super::Buf).
#[derive(Debug)]
pub(crate) struct SpecialMr {
    raw: RawHandle<ibv_mr>,
    pd: Pd,
    _dm: Option<Dm>,
}

impl Drop for SpecialMr {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the region lives.
        self.raw.drop(|mr| unsafe { (self.pd.device().lib().ibv_dereg_mr)(mr) });
    }
}

impl SpecialMr {
    fn new(pd: &Pd, mr: *mut ibv_mr, dm: Option<&Dm>) -> Result<Self, i32> {
        Ok(Self { raw: RawHandle::new("a memory region", mr)?, pd: pd.clone(), _dm: dm.cloned() })
    }

    pub(crate) fn fields(&self) -> ibv_mr {
        // SAFETY: `RawHandle` checks that the region lives. The struct has these fields in every
        // release.
        unsafe { self.raw.get().read() }
    }

    pub(crate) fn at(&self, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: self.fields().lkey }
    }

    pub(crate) fn remote(&self, addr: u64) -> RemoteAddr {
        RemoteAddr { addr, rkey: self.fields().rkey }
    }

    /// The result of changing its permissions.
    pub(crate) fn rereg_access(&self, access: u32) -> i32 {
        let flags = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS.0 as i32;
        let (pd, addr) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `RawHandle` checks that the region lives. The call changes neither domain nor
        // memory.
        unsafe { (self.pd.device().lib().ibv_rereg_mr)(self.raw.get(), flags, pd, addr, 0, access as i32) }
    }

    pub(crate) fn dereg(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the region lives.
        self.raw.end(|mr| unsafe { (self.pd.device().lib().ibv_dereg_mr)(mr) })
    }
}

impl Pd {
    pub(crate) fn null_region(&self) -> Result<SpecialMr, i32> {
        // SAFETY: `RawHandle` checks that the domain lives.
        let mr = unsafe { verbs::ibv_alloc_null_mr(self.raw()) };
        SpecialMr::new(self, mr, None)
    }

    /// Registers the whole address space. Requests use its key for a `Buf` or a `Hole` alone.
    pub(crate) fn reg_everything(&self, access: u32) -> Result<SpecialMr, i32> {
        // SAFETY: `RawHandle` checks that the domain lives.
        let mr = unsafe {
            verbs::ibv_reg_mr(
                self.device().lib(),
                self.raw(),
                std::ptr::null_mut(),
                usize::MAX,
                access as i32,
            )
        };
        SpecialMr::new(self, mr, None)
    }

    pub(crate) fn reg_dm(&self, dm: &Dm, offset: u64, len: usize, access: u32) -> Result<SpecialMr, i32> {
        // SAFETY: `RawHandle` checks that domain and memory live. The region holds both.
        let mr = unsafe { verbs::ibv_reg_dm_mr(self.raw(), dm.0.raw.get(), offset, len, access) };
        SpecialMr::new(self, mr, Some(dm))
    }

    /// Registers part of a file. The device itself keeps the file open.
    pub(crate) fn reg_dmabuf(
        &self,
        descriptor: i32,
        offset: u64,
        len: usize,
        iova: u64,
        access: u32,
    ) -> Result<SpecialMr, i32> {
        let register = self.device().lib().ibv_reg_dmabuf_mr().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the domain lives. Any descriptor may be passed, because
        // the device must refuse an unsuitable one.
        let mr = unsafe { register(self.raw(), offset, len, iova, descriptor, access as i32) };
        SpecialMr::new(self, mr, None)
    }

    /// `ibv_advise_mr`: 0 or an error number.
    pub(crate) fn advise(&self, advice: ib_uverbs_advise_mr_advice, flags: u32, list: &[Sge]) -> i32 {
        let mut list: Vec<_> = list.iter().map(|sge| sge.raw()).collect();
        // SAFETY: `RawHandle` checks that the domain lives; the list is a local variable. The
        // device must check the keys and ranges.
        unsafe { verbs::ibv_advise_mr(self.raw(), advice, flags, list.as_mut_ptr(), list.len() as u32) }
    }

    /// Tries to register memory that is mapped with these permissions (`PROT_*`).
    pub(crate) fn reg_mapped(&self, protection: i32, access: u32) -> Result<(), i32> {
        const LEN: usize = 4 * 4096;
        let lib = self.device().lib();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new, and is unmapped after its region is gone. Nothing uses the
        // region's key.
        unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), LEN, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            let mr = verbs::ibv_reg_mr(lib, self.raw(), memory, LEN, access as i32);
            let result = if mr.is_null() { Err(errno()) } else { Ok(()) };
            if result.is_ok() {
                assert_eq!((lib.ibv_dereg_mr)(mr), 0);
            }
            libc::munmap(memory, LEN);
            result
        }
    }
}

/// A file to register as a dma-buf, and a second file that accesses the same bytes.
#[derive(Debug)]
pub(crate) struct BufferFile {
    memory: File,
    dma: Option<File>,
}

impl BufferFile {
    /// An anonymous memory file.
    pub(crate) fn memory(len: u64, sealed: bool) -> Self {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with a zero byte. The new descriptor belongs to
        // the `File`.
        let memory = unsafe {
            let descriptor = libc::memfd_create(c"conformance".as_ptr(), flags);
            assert!(descriptor >= 0);
            File::from_raw_fd(descriptor)
        };
        memory.set_len(len).unwrap();
        if sealed {
            // SAFETY: the call accesses no memory.
            let result = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
            assert_eq!(result, 0);
        }
        Self { memory, dma: None }
    }

    /// A real dma-buf of such a file, where the system has `/dev/udmabuf`.
    pub(crate) fn dma(len: u64) -> Option<Self> {
        #[repr(C)]
        struct DmabufHeap {
            memfd: u32,
            flags: u32,
            offset: u64,
            size: u64,
        }
        /// `UDMABUF_CREATE`
        const CREATE: libc::c_ulong = 0x4018_7542;
        let maker = File::options().read(true).write(true).open("/dev/udmabuf").ok()?;
        let mut file = Self::memory(len, true);
        let mut create = DmabufHeap { memfd: file.memory.as_raw_fd() as u32, flags: 1, offset: 0, size: len };
        // SAFETY: the request has its struct, a local variable. The new descriptor belongs to the
        // `File`.
        unsafe {
            let descriptor = libc::ioctl(maker.as_raw_fd(), CREATE as _, &raw mut create);
            file.dma = (descriptor >= 0).then(|| File::from_raw_fd(descriptor));
        }
        file.dma.is_some().then_some(file)
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.dma.as_ref().unwrap_or(&self.memory).as_raw_fd()
    }

    pub(crate) fn set(&self, offset: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, offset).unwrap();
    }

    pub(crate) fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }
}
