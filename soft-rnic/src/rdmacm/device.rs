//! The devices that ids are bound to, with their default protection domains.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::{check_pointer, lib};
use crate::objects::device::Device;
use crate::objects::setup::ProcessSetup;
use crate::platform::errno;
use crate::platform::fork::ForkGeneration;
use crate::verbs::context::context_of;

/// An open device. The process keeps it open, as `man rdma_get_devices` says; one that has failed is opened anew for who comes
/// next, and closed when the last of its ids has gone, and the last list that names it.
struct CmDevice {
    number: u8,
    process: ForkGeneration,
    context: *mut ibv_context,
    domain: Mutex<Weak<DefaultPd>>,
}

/// The default protection domain of a device, as long as an id is bound to the device.
pub(crate) struct DefaultPd {
    device: Arc<CmDevice>,
    pd: *mut ibv_pd,
    xrcd: Mutex<*mut ibv_xrcd>,
}

// SAFETY: libibverbs' objects may be used by any thread.
unsafe impl Send for CmDevice {}
// SAFETY: libibverbs' objects may be used by any thread.
unsafe impl Sync for CmDevice {}
// SAFETY: libibverbs' objects may be used by any thread.
unsafe impl Send for DefaultPd {}
// SAFETY: libibverbs' objects may be used by any thread.
unsafe impl Sync for DefaultPd {}

static OPEN: Mutex<Vec<Arc<CmDevice>>> = Mutex::new(Vec::new());

fn open_devices() -> MutexGuard<'static, Vec<Arc<CmDevice>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CmDevice {
    fn of(device: &'static Device) -> Result<Arc<Self>, c_int> {
        let mut open = open_devices();
        // A child has no part in its parent's; who holds it there holds it here.
        open.retain(|open| open.process.is_current() && !(open.number == device.number && open.has_failed()));
        if let Some(open) = open.iter().find(|open| open.number == device.number) {
            return Ok(Arc::clone(open));
        }
        // SAFETY: the device lives as long as the process.
        let context = check_pointer(unsafe { (lib().ibv_open_device)(device.object()) })?;
        let process = ForkGeneration::current();
        let new = Arc::new(Self { number: device.number, process, context, domain: Mutex::default() });
        open.push(Arc::clone(&new));
        Ok(new)
    }

    fn has_failed(&self) -> bool {
        // SAFETY: the context is open until this is dropped.
        unsafe { context_of(self.context) }.has_failed()
    }
}

impl Drop for CmDevice {
    fn drop(&mut self) {
        // SAFETY: it was opened here, and all that was made in it has gone.
        if self.process.is_current() && unsafe { (lib().ibv_close_device)(self.context) } != 0 {
            log::warn!("soft{} could not be closed", self.number);
        }
    }
}

impl DefaultPd {
    /// That of a device, which is opened.
    pub(crate) fn of(device: &'static Device) -> Result<Arc<Self>, c_int> {
        let device = CmDevice::of(device)?;
        let mut domain = device.domain.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domain) = domain.upgrade() {
            return Ok(domain);
        }
        // SAFETY: the context is open.
        let pd = check_pointer(unsafe { (lib().ibv_alloc_pd)(device.context) })?;
        let new = Arc::new(Self { device: Arc::clone(&device), pd, xrcd: Mutex::new(ptr::null_mut()) });
        *domain = Arc::downgrade(&new);
        Ok(new)
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.device.context
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    /// The XRC domain for those who give none; the first call opens it.
    pub(super) fn xrcd(&self) -> Result<*mut ibv_xrcd, c_int> {
        let mut xrcd = self.xrcd.lock().unwrap_or_else(PoisonError::into_inner);
        if xrcd.is_null() {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
                    | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: the context is open.
            *xrcd = check_pointer(unsafe { verbs::ibv_open_xrcd(self.device.context, &raw mut attr) })?;
        }
        Ok(*xrcd)
    }
}

impl Drop for DefaultPd {
    fn drop(&mut self) {
        if !self.device.process.is_current() {
            return;
        }
        let xrcd = *self.xrcd.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both were made here, and the ids that named them have gone.
        let (xrcd, pd) = unsafe {
            let xrcd = if xrcd.is_null() { 0 } else { verbs::ibv_close_xrcd(xrcd) };
            (xrcd, (lib().ibv_dealloc_pd)(self.pd))
        };
        if xrcd != 0 || pd != 0 {
            // The program's own objects in it are still there.
            log::warn!("the default protection domain of soft{} is still in use", self.device.number);
        }
    }
}

/// The contexts of all devices that can be opened, with a null pointer behind.
pub(super) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let setup = match ProcessSetup::get() {
        Ok(setup) => setup,
        Err(error) => {
            log::error!("{error}");
            errno::set(libc::EINVAL);
            return ptr::null_mut();
        }
    };
    let open: Vec<_> = setup.devices.iter().filter_map(|device| CmDevice::of(device).ok()).collect();
    // Behind the null pointer, what keeps the devices open as long as the list is there, even one that fails.
    // SAFETY: a size that is not zero.
    let list: *mut *mut ibv_context =
        unsafe { libc::calloc(2 * open.len() + 1, size_of::<*mut ibv_context>()) }.cast();
    if list.is_null() {
        return list;
    }
    // SAFETY: the list is long enough, and the caller's place valid, or null.
    unsafe {
        if !count.is_null() {
            count.write(open.len() as c_int);
        }
        let keepers = list.add(open.len() + 1).cast::<*const CmDevice>();
        for (place, open) in open.into_iter().enumerate() {
            list.add(place).write(open.context);
            keepers.add(place).write(Arc::into_raw(open));
        }
    }
    list
}

pub(super) unsafe extern "C" fn free_devices(list: *mut *mut ibv_context) {
    if list.is_null() {
        return;
    }
    // SAFETY: the caller's list is from `get_devices`, as it was: contexts, a null pointer, and as many keepers.
    unsafe {
        let count = (0..).take_while(|place| !(*list.add(*place)).is_null()).count();
        let keepers = list.add(count + 1).cast::<*const CmDevice>();
        (0..count).for_each(|place| drop(Arc::from_raw(keepers.add(place).read())));
        libc::free(list.cast());
    }
}
