//! Thread domains, parent domains, imported objects, and rarely used verbs of contexts and queue
//! pairs.

use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::handle::{RawHandle, errno};
use super::{Device, Mr, Pd, Qp, Sge};

/// A thread domain.
#[derive(Clone, Debug)]
pub(crate) struct Td(Arc<TdInner>);

#[derive(Debug)]
struct TdInner {
    raw: RawHandle<ibv_td>,
    _device: Device,
}

impl Drop for TdInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the domain lives. A parent domain that uses it holds a
        // reference to it.
        self.raw.drop(|td| unsafe { verbs::ibv_dealloc_td(td) });
    }
}

impl Td {
    pub(crate) fn new(device: &Device, comp_mask: u32) -> Result<Self, i32> {
        let mut init = ibv_td_init_attr { comp_mask };
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        let td = unsafe { verbs::ibv_alloc_td(device.raw(), &raw mut init) };
        Ok(Self(Arc::new(TdInner { raw: RawHandle::new("a thread domain", td)?, _device: device.clone() })))
    }

    pub(crate) fn dealloc(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the domain lives. The library refuses while something
        // uses it.
        self.0.raw.end(|td| unsafe { verbs::ibv_dealloc_td(td) })
    }
}

/// The attributes of a new parent domain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ParentDomain<'a> {
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) td: Option<&'a Td>,
    pub(crate) comp_mask: u32,
}

/// An allocator that leaves each allocation to the library.
unsafe extern "C" fn use_default(
    _: *mut ibv_pd,
    _: *mut std::ffi::c_void,
    _: usize,
    _: usize,
    _: u64,
) -> *mut std::ffi::c_void {
    verbs::IBV_ALLOCATOR_USE_DEFAULT
}

/// The matching deallocator. The library calls it for memory of `use_default` only, which returns
/// none.
unsafe extern "C" fn never_called(
    _: *mut ibv_pd,
    _: *mut std::ffi::c_void,
    _: *mut std::ffi::c_void,
    _: u64,
) {
}

impl ParentDomain<'_> {
    pub(crate) fn alloc(self, device: &Device) -> Result<Pd, i32> {
        let mut attr = ibv_parent_domain_init_attr {
            pd: self.pd.map_or(std::ptr::null_mut(), Pd::raw),
            td: self.td.map_or(std::ptr::null_mut(), |td| td.0.raw.get()),
            comp_mask: self.comp_mask,
            alloc: Some(use_default),
            free: Some(never_called),
            pd_context: std::ptr::null_mut(),
        };
        // SAFETY: `RawHandle` checks that context and domains live, the attributes are local
        // variables.
        let pd = unsafe { verbs::ibv_alloc_parent_domain(device.raw(), &raw mut attr) };
        Pd::of(device, pd, self.pd.cloned(), self.td.cloned())
    }
}

/// A region that was imported from another context.
#[derive(Debug)]
pub(crate) struct ImportedMr {
    raw: RawHandle<ibv_mr>,
    pd: Pd,
}

impl Drop for ImportedMr {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the domain lives.
        self.raw.drop(|mr| unsafe {
            self.pd.device().lib().ibv_unimport_mr().unwrap()(mr);
            0
        });
    }
}

impl ImportedMr {
    pub(crate) fn new(pd: &Pd, handle: u32) -> Result<Self, i32> {
        let import = pd.device().lib().ibv_import_mr().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the domain lives.
        let mr = unsafe { import(pd.raw(), handle) };
        Ok(Self { raw: RawHandle::new("an imported memory region", mr)?, pd: pd.clone() })
    }

    pub(crate) fn fields(&self) -> ibv_mr {
        // SAFETY: `RawHandle` checks that the region lives. The struct has these fields in every
        // release.
        unsafe { self.raw.get().read() }
    }

    /// Deregisters the region for all contexts.
    pub(crate) fn dereg(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the domain lives.
        self.raw.end(|mr| unsafe { (self.pd.device().lib().ibv_dereg_mr)(mr) })
    }

    /// Part of the region, with the imported region's key.
    pub(crate) fn at(&self, original: &Mr, offset: usize, len: usize) -> Sge {
        Sge { lkey: self.fields().lkey, ..original.at(offset, len) }
    }
}

impl Device {
    /// The command descriptor of the context.
    pub(crate) fn command_fd(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the context lives. It has this field in every release.
        unsafe { (*self.raw()).cmd_fd }
    }

    /// Imports a context by its descriptor, which the new context owns on success.
    pub(crate) fn import(&self, descriptor: i32) -> Result<Self, i32> {
        let import = self.lib().ibv_import_device().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: the descriptor is invalid, or nothing else owns it.
        let context = unsafe { import(descriptor) };
        self.of_raw(context)
    }

    /// Imports a context by a duplicate of this one's descriptor.
    pub(crate) fn import_own(&self) -> Result<Self, i32> {
        let descriptor = duplicate(self.command_fd());
        if descriptor < 0 {
            return Err(libc::EOPNOTSUPP);
        }
        self.import(descriptor).inspect_err(|_| close(descriptor))
    }

    /// Imports a protection domain by its handle.
    pub(crate) fn import_pd(&self, handle: u32) -> Result<Pd, i32> {
        let import = self.lib().ibv_import_pd().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the context lives.
        let pd = unsafe { import(self.raw(), handle) };
        Pd::imported(self, pd)
    }

    /// Tries to create counters; returns the error number of a device that has none.
    pub(crate) fn counters(&self) -> Result<(), i32> {
        let mut init = ibv_counters_init_attr::default();
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        let counters = unsafe { verbs::ibv_create_counters(self.raw(), &raw mut init) };
        if counters.is_null() {
            return Err(errno());
        }
        // SAFETY: the call above created the counters.
        unsafe { verbs::ibv_destroy_counters(counters) };
        Ok(())
    }

    /// The speed of a port, in units of 100 Mb/s.
    pub(crate) fn port_speed(&self, port: u32) -> Result<u64, i32> {
        let query = self.lib().ibv_query_port_speed().map_err(|_| libc::EOPNOTSUPP)?;
        let mut speed = 0;
        // SAFETY: `RawHandle` checks that the context lives, the result is a local variable.
        match unsafe { query(self.raw(), port, &raw mut speed) } {
            0 => Ok(speed),
            error => Err(error),
        }
    }

    /// The number of bytes that the extended query writes if the struct is said to have `size`
    /// bytes, or its error number.
    pub(crate) fn query_ex_bytes(&self, size: usize) -> Result<usize, i32> {
        const UNTOUCHED: u8 = 0xa5;
        let mut bytes = [UNTOUCHED; 2 * size_of::<ibv_device_attr_ex>()];
        // SAFETY: `RawHandle` checks that the context lives.
        let query = unsafe { rdma_mummy_sys::verbs_get_ctx_op!(self.raw(), query_device_ex) };
        let query = query.ok_or(libc::EOPNOTSUPP)?;
        assert!(size <= bytes.len());
        // SAFETY: `RawHandle` checks that the context lives. The buffer has twice the size of the
        // newest struct.
        match unsafe { query(self.raw(), std::ptr::null(), bytes.as_mut_ptr().cast(), size) } {
            0 => Ok(bytes.iter().rposition(|byte| *byte != UNTOUCHED).map_or(0, |last| last + 1)),
            error => Err(error),
        }
    }
}

/// Duplicates a descriptor; negative on failure.
pub(crate) fn duplicate(descriptor: i32) -> i32 {
    // SAFETY: the call accesses no memory.
    unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) }
}

pub(crate) fn close(descriptor: i32) {
    // SAFETY: the caller owns the descriptor, so that nothing else uses it afterwards.
    unsafe { libc::close(descriptor) };
}

/// A descriptor of a file that is not a device.
pub(crate) fn other_descriptor() -> i32 {
    // SAFETY: the path is a string that ends with a zero byte.
    unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}

impl Qp {
    /// `ibv_attach_mcast`: 0 or an error number.
    pub(crate) fn attach(&self, gid: [u8; 16], lid: u16) -> i32 {
        let gid = ibv_gid { raw: gid };
        // SAFETY: `RawHandle` checks that the pair lives, the GID is a local variable.
        unsafe { (self.device().lib().ibv_attach_mcast)(self.raw(), &raw const gid, lid) }
    }

    /// `ibv_detach_mcast`: 0 or an error number.
    pub(crate) fn detach(&self, gid: [u8; 16], lid: u16) -> i32 {
        let gid = ibv_gid { raw: gid };
        // SAFETY: `RawHandle` checks that the pair lives, the GID is a local variable.
        unsafe { (self.device().lib().ibv_detach_mcast)(self.raw(), &raw const gid, lid) }
    }

    pub(crate) fn query_ece(&self) -> Result<ibv_ece, i32> {
        let query = self.device().lib().ibv_query_ece().map_err(|_| libc::EOPNOTSUPP)?;
        let mut ece = ibv_ece::default();
        // SAFETY: `RawHandle` checks that the pair lives, the result is a local variable.
        match unsafe { query(self.raw(), &raw mut ece) } {
            0 => Ok(ece),
            error => Err(error),
        }
    }

    /// Sets the options, and returns those that the device accepted.
    pub(crate) fn set_ece(&self, mut ece: ibv_ece) -> Result<ibv_ece, i32> {
        let set = self.device().lib().ibv_set_ece().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the pair lives, the options are local variables.
        match unsafe { set(self.raw(), &raw mut ece) } {
            0 => Ok(ece),
            error => Err(error),
        }
    }

    /// Steers all packets to the pair: 0 or an error number.
    pub(crate) fn steer_everything(&self) -> i32 {
        let size = size_of::<ibv_flow_attr>() as u16;
        let mut attr = ibv_flow_attr {
            type_: ibv_flow_attr_type::IBV_FLOW_ATTR_ALL_DEFAULT,
            size,
            ..Default::default()
        };
        attr.port = 1;
        // SAFETY: `RawHandle` checks that the pair lives, the attributes are local variables.
        let flow = unsafe { verbs::ibv_create_flow(self.raw(), &raw mut attr) };
        if flow.is_null() {
            return errno();
        }
        // SAFETY: the call above created the flow.
        unsafe { verbs::ibv_destroy_flow(flow) }
    }
}
