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

/// A device that librdmacm has opened. The process keeps it open, as `man rdma_get_devices`
/// demands. A failed device is opened again for the next user; the failed context closes with the
/// last id and the last device list that refer to it.
struct CmDevice {
    number: u8,
    process: ForkGeneration,
    context: *mut ibv_context,
    domain: Mutex<Weak<DefaultPd>>,
}

/// The default protection domain of a device. It lives while an id is bound to the device.
pub(crate) struct DefaultPd {
    device: Arc<CmDevice>,
    pd: *mut ibv_pd,
    xrcd: Mutex<*mut ibv_xrcd>,
}

// SAFETY: any thread may use libibverbs' objects.
unsafe impl Send for CmDevice {}
// SAFETY: any thread may use libibverbs' objects.
unsafe impl Sync for CmDevice {}
// SAFETY: any thread may use libibverbs' objects.
unsafe impl Send for DefaultPd {}
// SAFETY: any thread may use libibverbs' objects.
unsafe impl Sync for DefaultPd {}

static OPEN: Mutex<Vec<Arc<CmDevice>>> = Mutex::new(Vec::new());

fn open_devices() -> MutexGuard<'static, Vec<Arc<CmDevice>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CmDevice {
    fn of(device: &'static Device) -> Result<Arc<Self>, c_int> {
        let mut open = open_devices();
        // A forked child must not use its parent's devices. Dropping the child's reference leaks
        // nothing in the parent, whose holders keep theirs.
        open.retain(|open| open.process.is_current() && !(open.number == device.number && open.has_failed()));
        if let Some(open) = open.iter().find(|open| open.number == device.number) {
            return Ok(Arc::clone(open));
        }
        // SAFETY: `device` is static, and its C object lives as long.
        let context = check_pointer(unsafe { (lib().ibv_open_device)(device.object()) })?;
        let process = ForkGeneration::current();
        let new = Arc::new(Self { number: device.number, process, context, domain: Mutex::default() });
        open.push(Arc::clone(&new));
        Ok(new)
    }

    fn has_failed(&self) -> bool {
        // SAFETY: the context stays open until this value drops.
        unsafe { context_of(self.context) }.has_failed()
    }
}

impl Drop for CmDevice {
    fn drop(&mut self) {
        // SAFETY: `of` opened the context, and this value drops after everything that was made in
        // it.
        if self.process.is_current() && unsafe { (lib().ibv_close_device)(self.context) } != 0 {
            log::warn!("soft{} could not be closed", self.number);
        }
    }
}

impl DefaultPd {
    /// Returns the device's default protection domain; opens the device and allocates the domain on
    /// first use.
    pub(crate) fn of(device: &'static Device) -> Result<Arc<Self>, c_int> {
        let device = CmDevice::of(device)?;
        let mut domain = device.domain.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domain) = domain.upgrade() {
            return Ok(domain);
        }
        // SAFETY: `device` keeps the context open.
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

    /// The default XRC domain, for callers that give none; the first call opens it.
    pub(super) fn xrcd(&self) -> Result<*mut ibv_xrcd, c_int> {
        let mut xrcd = self.xrcd.lock().unwrap_or_else(PoisonError::into_inner);
        if xrcd.is_null() {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
                    | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: `self.device` keeps the context open.
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
        // SAFETY: `self` made both objects, and the ids that used them have dropped their
        // references.
        let (xrcd, pd) = unsafe {
            let xrcd = if xrcd.is_null() { 0 } else { verbs::ibv_close_xrcd(xrcd) };
            (xrcd, (lib().ibv_dealloc_pd)(self.pd))
        };
        if xrcd != 0 || pd != 0 {
            // Objects that the program made in the domain still exist.
            log::warn!(
                "the default protection domain of soft{} could not be freed: it is still in use",
                self.device.number
            );
        }
    }
}

/// `rdma_get_devices`: the contexts of all devices that can be opened, terminated by a null
/// pointer.
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
    // References behind the null pointer keep the devices open while the list exists, even a device
    // that fails.
    // SAFETY: the size is not zero.
    let list: *mut *mut ibv_context =
        unsafe { libc::calloc(2 * open.len() + 1, size_of::<*mut ibv_context>()) }.cast();
    if list.is_null() {
        return list;
    }
    // SAFETY: the list has room for the contexts, the null pointer and the references;
    // `rdma_get_devices` requires that `count` is valid or null.
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
    // SAFETY: `rdma_free_devices` requires an unchanged list from `get_devices`: contexts, a null
    // pointer, and one reference for each context.
    unsafe {
        let count = (0..).take_while(|place| !(*list.add(*place)).is_null()).count();
        let keepers = list.add(count + 1).cast::<*const CmDevice>();
        (0..count).for_each(|place| drop(Arc::from_raw(keepers.add(place).read())));
        libc::free(list.cast());
    }
}
