//! Protection domains, memory and address handles.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::handle::RawHandle;
use super::{BufferFile, Device, RemoteAddr, Sge, Td, Wc};

/// All permissions.
pub(crate) const ALL: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
    | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;

/// Bytes that depend on seed and position, so that a case can tell where they came from.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(seed)).collect()
}

/// Memory that a device may write at any time. Nothing ever makes a reference to its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Buf(Arc<Allocation>);

#[derive(Debug)]
struct Allocation {
    start: *mut u8,
    layout: Layout,
    /// Whether it is a mapping, and not from the allocator.
    mapped: bool,
}

const RIGHTS: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Allocation {
    fn map(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        let new = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, RIGHTS, new, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{bytes} bytes");
        Self { start: start.cast(), layout, mapped: true }
    }
}

/// The length of the file behind [`Buf::folded`].
const FOLD: usize = 16 << 20;

// SAFETY: the allocation belongs to this value, which accesses it through raw pointers only.
unsafe impl Send for Allocation {}
// SAFETY: the bytes are copied with volatile accesses through raw pointers. A race yields a wrong
// value at worst, as it does with a device.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: `map` mapped the memory with this length.
            unsafe { libc::munmap(self.start.cast(), self.layout.size()) };
            return;
        }
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

impl Buf {
    /// Allocates zeroed, page-aligned memory.
    pub(crate) fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(1), 4096).unwrap();
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self(Arc::new(Allocation { start, layout, mapped: false }))
    }

    /// Maps memory that has no pages yet.
    pub(crate) fn untouched(bytes: usize) -> Self {
        Self(Arc::new(Allocation::map(bytes)))
    }

    /// Maps memory that takes less room than its length: a small file, one time after the other,
    /// and behind it a last part that is no such mapping.
    pub(crate) fn folded(bytes: usize) -> Self {
        let allocation = Allocation::map(bytes);
        let file = BufferFile::memory(FOLD as u64, false);
        for at in (0..bytes.saturating_sub(FOLD)).step_by(FOLD) {
            let place = allocation.start.wrapping_add(at).cast();
            let again = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: this replaces a part of the mapping that was just made.
            let part = unsafe { libc::mmap(place, FOLD, RIGHTS, again, file.descriptor(), 0) };
            assert_eq!(part, place);
        }
        Self(Arc::new(allocation))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.layout.size()
    }

    pub(crate) fn addr(&self) -> u64 {
        self.0.start.expose_provenance() as u64
    }

    pub(crate) fn set(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len());
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: within the memory (checked above). The access is volatile, because a device
            // may read.
            unsafe { self.0.start.add(offset + n).write_volatile(*byte) };
        }
    }

    pub(crate) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len());
        // SAFETY: within the memory (checked above). The access is volatile, because a device may
        // write.
        (0..len).map(|n| unsafe { self.0.start.add(offset + n).read_volatile() }).collect()
    }

    pub(crate) fn set_u64(&self, offset: usize, value: u64) {
        self.set(offset, &value.to_ne_bytes());
    }

    pub(crate) fn get_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }

    /// Eight bytes, read atomically.
    pub(crate) fn atomic_u64(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= self.len() && offset.is_multiple_of(8));
        // SAFETY: within the memory (checked above), and aligned because the memory begins at a
        // page. A hardware device is outside the language's memory model; a device in this process
        // writes atomically.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.pointer(offset).cast()) }
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    fn pointer(&self, offset: usize) -> *mut u8 {
        self.0.start.wrapping_add(offset)
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub(crate) struct Pd(Arc<PdInner>);

#[derive(Debug)]
struct PdInner {
    raw: RawHandle<ibv_pd>,
    device: Device,
    /// Whether it is an imported handle, whose drop leaves the domain alone.
    imported: bool,
    /// The parts of a parent domain.
    _parts: (Option<Pd>, Option<Td>),
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the domain lives. No object that was made with it does,
        // because each holds a reference to it.
        self.raw.drop(|pd| unsafe {
            if self.imported {
                self.device.lib().ibv_unimport_pd().unwrap()(pd);
                return 0;
            }
            (self.device.lib().ibv_dealloc_pd)(pd)
        });
    }
}

impl Pd {
    pub(crate) fn new(device: &Device) -> Result<Self, i32> {
        // SAFETY: `RawHandle` checks that the context lives.
        let pd = unsafe { (device.lib().ibv_alloc_pd)(device.raw()) };
        Self::of(device, pd, None, None)
    }

    /// Takes over a parent domain that the library has just made of these parts.
    pub(super) fn of(
        device: &Device,
        pd: *mut ibv_pd,
        parent: Option<Self>,
        td: Option<Td>,
    ) -> Result<Self, i32> {
        let raw = RawHandle::new("a protection domain", pd)?;
        let inner = PdInner { raw, device: device.clone(), imported: false, _parts: (parent, td) };
        Ok(Self(Arc::new(inner)))
    }

    /// Takes over an imported domain.
    pub(super) fn imported(device: &Device, pd: *mut ibv_pd) -> Result<Self, i32> {
        let raw = RawHandle::new("an imported protection domain", pd)?;
        let inner = PdInner { raw, device: device.clone(), imported: true, _parts: (None, None) };
        Ok(Self(Arc::new(inner)))
    }

    /// The handle by which other contexts import it.
    pub(crate) fn handle(&self) -> u32 {
        // SAFETY: `RawHandle` checks that the object lives. It has this field in every release.
        unsafe { (*self.raw()).handle }
    }

    /// Whether its `context` field names this device's context.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        // SAFETY: `RawHandle` checks that the object lives. It has this field in every release.
        unsafe { (*self.raw()).context == device.raw() }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.get()
    }

    pub(crate) fn dealloc(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the domain lives. The library refuses while something
        // uses it.
        self.0.raw.end(|pd| unsafe { (self.device().lib().ibv_dealloc_pd)(pd) })
    }

    /// Gives up ownership: closing the context destroys the domain.
    pub(crate) fn forget(&self) {
        self.0.raw.forget();
    }

    /// Registers a whole buffer.
    pub(crate) fn reg(&self, buf: &Buf, access: u32) -> Result<Mr, i32> {
        self.reg_range(buf, 0, buf.len(), access)
    }

    /// Registers part of a buffer.
    pub(crate) fn reg_range(&self, buf: &Buf, offset: usize, len: usize, access: u32) -> Result<Mr, i32> {
        assert!(offset + len <= buf.len());
        let lib = self.device().lib();
        // SAFETY: `RawHandle` checks that the domain lives. The region holds the memory.
        let mr =
            unsafe { verbs::ibv_reg_mr(lib, self.raw(), buf.pointer(offset).cast(), len, access as i32) };
        let raw = Arc::new(RawHandle::new("a memory region", mr)?);
        Ok(Mr { raw, offset, len, buf: buf.clone(), pd: self.clone() })
    }

    /// Registers a whole buffer, which peers address from `iova`.
    pub(crate) fn reg_iova(&self, buf: &Buf, iova: u64, access: u32) -> Result<Mr, i32> {
        let lib = self.device().lib();
        // SAFETY: `RawHandle` checks that the domain lives. The region holds the memory.
        let mr = unsafe {
            verbs::ibv_reg_mr_iova(lib, self.raw(), buf.pointer(0).cast(), buf.len(), iova, access as i32)
        };
        let raw = Arc::new(RawHandle::new("a memory region", mr)?);
        Ok(Mr { raw, offset: 0, len: buf.len(), buf: buf.clone(), pd: self.clone() })
    }

    /// Tries to register memory that does not exist. If the device accepts, the region is
    /// deregistered again.
    pub(crate) fn reg_nowhere(&self, addr: u64, len: usize) -> Result<(), i32> {
        let lib = self.device().lib();
        let pointer = std::ptr::without_provenance_mut(addr as usize);
        // SAFETY: `RawHandle` checks that the domain lives. Nothing uses the region's keys, so that
        // the device never accesses the addresses.
        let mr = unsafe { verbs::ibv_reg_mr(lib, self.raw(), pointer, len, 1) };
        let raw = RawHandle::new("a memory region", mr)?;
        // SAFETY: the call above created the region.
        raw.end(|mr| unsafe { (lib.ibv_dereg_mr)(mr) });
        Ok(())
    }
}

/// A memory region with its memory.
#[derive(Debug)]
pub(crate) struct Mr {
    /// Shared with the requests that name the region.
    raw: Arc<RawHandle<ibv_mr>>,
    offset: usize,
    len: usize,
    pub(crate) buf: Buf,
    pd: Pd,
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the object lives.
        RawHandle::drop(&self.raw, |mr| unsafe { (self.pd.device().lib().ibv_dereg_mr)(mr) });
    }
}

impl Mr {
    /// The C struct of the region.
    pub(crate) fn fields(&self) -> ibv_mr {
        // SAFETY: `RawHandle` checks that the region lives. The struct has these fields in every
        // release.
        unsafe { self.raw.get().read() }
    }

    /// Gives up the pointer to a region that another context has deregistered.
    pub(crate) fn unimport(&self) {
        self.raw.end(|mr| unsafe {
            // SAFETY: `RawHandle` checks that the object lives.
            self.pd.device().lib().ibv_unimport_mr().unwrap()(mr);
            0
        });
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.fields().lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.fields().rkey
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of a byte of the region.
    pub(crate) fn addr(&self, offset: usize) -> u64 {
        self.buf.addr() + (self.offset + offset) as u64
    }

    /// A range of the region for a request; it may lie beyond the region's end.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr(offset), length: len as u32, lkey: self.lkey() }
    }

    /// An address in the region for a peer.
    pub(crate) fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.addr(offset), rkey: self.rkey() }
    }

    pub(super) fn shared(&self) -> Arc<RawHandle<ibv_mr>> {
        Arc::clone(&self.raw)
    }

    pub(crate) fn pd_is(&self, pd: &Pd) -> bool {
        self.fields().pd == pd.raw()
    }

    pub(crate) fn dereg(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the region lives. The library refuses while something
        // uses it.
        self.raw.end(|mr| unsafe { (self.pd.device().lib().ibv_dereg_mr)(mr) })
    }

    /// Gives up ownership: closing the context destroys the region.
    pub(crate) fn forget(&self) {
        self.raw.forget();
    }

    /// Changes what the flags name. On success the region holds the new memory and domain.
    pub(crate) fn rereg(&mut self, flags: u32, pd: Option<&Pd>, buf: Option<&Buf>, access: u32) -> i32 {
        let lib = self.pd.device().lib();
        let (pointer, len) = buf.map_or((std::ptr::null_mut(), 0), |buf| (buf.pointer(0).cast(), buf.len()));
        let raw_pd = pd.map_or(std::ptr::null_mut(), Pd::raw);
        // SAFETY: `RawHandle` checks that region and domain live. The region holds the new memory
        // afterwards.
        let result =
            unsafe { (lib.ibv_rereg_mr)(self.raw.get(), flags as i32, raw_pd, pointer, len, access as i32) };
        if result == 0 {
            if let Some(pd) = pd {
                self.pd = pd.clone();
            }
            if let Some(buf) = buf {
                (self.offset, self.len, self.buf) = (0, buf.len(), buf.clone());
            }
        }
        result
    }
}

impl Mr {
    /// Tries to change the memory to addresses that do not exist.
    pub(crate) fn rereg_nowhere(&mut self, flags: u32, addr: u64, len: usize) -> i32 {
        let pointer = std::ptr::without_provenance_mut(addr as usize);
        let pd = std::ptr::null_mut();
        // SAFETY: `RawHandle` checks that the region lives. The device refuses the addresses, and
        // no request uses the region afterwards.
        unsafe { (self.pd.device().lib().ibv_rereg_mr)(self.raw.get(), flags as i32, pd, pointer, len, 0) }
    }
}

/// An address handle.
#[derive(Clone, Debug)]
pub(crate) struct Ah(Arc<AhInner>);

#[derive(Debug)]
struct AhInner {
    raw: RawHandle<ibv_ah>,
    pd: Pd,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the object lives.
        self.raw.drop(|ah| unsafe { (self.pd.device().lib().ibv_destroy_ah)(ah) });
    }
}

impl Ah {
    pub(crate) fn new(pd: &Pd, mut attr: ibv_ah_attr) -> Result<Self, i32> {
        // SAFETY: `RawHandle` checks that the domain lives, the attributes are local variables.
        let ah = unsafe { (pd.device().lib().ibv_create_ah)(pd.raw(), &raw mut attr) };
        Ok(Self(Arc::new(AhInner { raw: RawHandle::new("an address handle", ah)?, pd: pd.clone() })))
    }

    /// An address handle for the sender of a datagram whose GRH lies at `offset` in the buffer.
    pub(crate) fn from_wc(pd: &Pd, wc: &Wc, buf: &Buf, offset: usize, port: u8) -> Result<Self, i32> {
        let (mut wc, mut grh) = (wc.classic(), grh(buf, offset));
        let lib = pd.device().lib();
        // SAFETY: `RawHandle` checks that the domain lives; completion and header are local
        // variables.
        let ah = unsafe { (lib.ibv_create_ah_from_wc)(pd.raw(), &raw mut wc, &raw mut grh, port) };
        Ok(Self(Arc::new(AhInner { raw: RawHandle::new("an address handle", ah)?, pd: pd.clone() })))
    }

    pub(super) fn raw(&self) -> *mut ibv_ah {
        self.0.raw.get()
    }

    pub(crate) fn destroy(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the object lives.
        self.0.raw.end(|ah| unsafe { (self.0.pd.device().lib().ibv_destroy_ah)(ah) })
    }
}

/// The GRH at `offset` in the buffer.
pub(super) fn grh(buf: &Buf, offset: usize) -> ibv_grh {
    let bytes = buf.get(offset, size_of::<ibv_grh>());
    // SAFETY: the slice has the header's length, and any bytes are a valid header.
    unsafe { bytes.as_ptr().cast::<ibv_grh>().read_unaligned() }
}
