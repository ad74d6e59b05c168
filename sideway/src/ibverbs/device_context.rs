//! Device contexts: an open device, from which all other objects are made.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! let attr = context.query_device()?;
//! for port_num in 1..=attr.phys_port_cnt() {
//!     println!("port {port_num} is {}", context.query_port(port_num)?.port_state());
//! }
//! for entry in context.query_gid_table()? {
//!     println!("{}, {}: {}", entry.port_num(), entry.gid_index(), entry.gid());
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

mod former;

use std::any::Any;
use std::ffi::CStr;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

pub use former::*;
use rdma_mummy_sys::Provider;
use rdma_mummy_sys::types::{ibv_context, ibv_device};

use super::check;
use super::quirks::Quirks;
pub use super::types::Guid;
use super::types::TransportType;
use crate::error::Error;

/// An open device (`ibv_context`).
///
/// Clones refer to the same context. It is closed (`ibv_close_device`) when the last handle and the
/// last object made from it are dropped.
#[derive(Clone)]
pub struct DeviceContext(Arc<Inner>);

struct Inner {
    context: NonNull<ibv_context>,
    provider: Provider,
    quirks: Quirks,
    /// If another library opened the context: the object that keeps it open, and closes it.
    keeper: Option<ContextOwner>,
}

/// An object that keeps a context open. The unwind-safety bounds keep [`DeviceContext`]
/// unwind-safe.
pub(crate) type ContextOwner = Arc<dyn Any + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// A weak handle: it does not keep the context open.
#[derive(Clone, Default)]
pub(crate) struct WeakDeviceContext(Weak<Inner>);

impl WeakDeviceContext {
    pub(crate) fn upgrade(&self) -> Option<DeviceContext> {
        self.0.upgrade().map(DeviceContext)
    }
}

// SAFETY: libibverbs allows verbs on one context from several threads at a time.
unsafe impl Send for Inner {}
// SAFETY: libibverbs allows verbs on one context from several threads at a time.
unsafe impl Sync for Inner {}

impl DeviceContext {
    /// Takes ownership of an open context.
    ///
    /// # Safety
    ///
    /// `context` was opened with the functions of `provider`. Nothing else closes it, and it stays
    /// open until this handle closes it.
    pub unsafe fn from_raw(context: NonNull<ibv_context>, provider: Provider) -> Self {
        // SAFETY: the caller guarantees an open context of `provider` that stays open until this
        // handle closes it.
        unsafe { Self::new(context, provider, None) }
    }

    /// Uses a context that another owner closes.
    ///
    /// # Safety
    ///
    /// `context` was opened with the functions of `provider`, and stays open as long as `keeper`
    /// lives.
    pub(crate) unsafe fn kept_open(
        context: NonNull<ibv_context>,
        provider: Provider,
        keeper: ContextOwner,
    ) -> Self {
        // SAFETY: the caller guarantees an open context of `provider` that stays open as long as
        // `keeper` lives.
        unsafe { Self::new(context, provider, Some(keeper)) }
    }

    /// # Safety
    ///
    /// `context` was opened with the functions of `provider`. It stays open as long as `keeper`
    /// lives or, without one, until this handle closes it.
    unsafe fn new(context: NonNull<ibv_context>, provider: Provider, keeper: Option<ContextOwner>) -> Self {
        // SAFETY: the caller gives an open context of this provider.
        let quirks = unsafe { Quirks::of(context, provider) };
        Self(Arc::new(Inner { context, provider, quirks, keeper }))
    }

    pub(crate) fn downgrade(&self) -> WeakDeviceContext {
        WeakDeviceContext(Arc::downgrade(&self.0))
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// close it.
    pub fn as_raw(&self) -> NonNull<ibv_context> {
        self.0.context
    }

    /// The libraries that this context and everything made from it use.
    pub fn provider(&self) -> Provider {
        self.0.provider
    }

    pub(crate) fn quirks(&self) -> Quirks {
        self.0.quirks
    }

    /// The device's name, such as `mlx5_0`.
    pub fn name(&self) -> String {
        // SAFETY: the context is open, so its device is alive; every release's struct has this
        // field.
        unsafe {
            NonNull::new((*self.0.context.as_ptr()).device)
                .map_or_else(String::new, |device| device_name(self.0.provider, device))
        }
    }

    /// The transport protocol of the device, as in
    /// [`Device::transport_type`](crate::ibverbs::device::Device::transport_type).
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: the context is open, so its device is alive; every release's struct has this
        // field.
        unsafe {
            NonNull::new((*self.0.context.as_ptr()).device).map_or(TransportType::Unspecified, |device| {
                TransportType::from_raw((*device.as_ptr()).transport_type.0)
            })
        }
    }

    /// Whether this is a software device of soft-rnic, in this process or through its libibverbs.
    /// Only its devices are named `soft0`, `soft1` and so on.
    pub fn is_soft(&self) -> bool {
        is_soft(&self.name())
    }

    /// The node GUID (`ibv_get_device_guid`).
    pub fn guid(&self) -> Guid {
        // SAFETY: the context is open, so its device is alive.
        Guid::from_be(unsafe {
            (self.0.provider.verbs().ibv_get_device_guid)((*self.0.context.as_ptr()).device)
        })
    }

    /// The number of completion vectors (interrupts) from which a completion queue can choose.
    pub fn num_comp_vectors(&self) -> i32 {
        // SAFETY: the context is open, and every release's struct has this field.
        unsafe { (*self.0.context.as_ptr()).num_comp_vectors }
    }
}

impl fmt::Debug for DeviceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceContext").field(&self.name()).finish()
    }
}

impl PartialEq for DeviceContext {
    /// Whether both are the same open context; two contexts of one device differ.
    fn eq(&self, other: &Self) -> bool {
        self.0.context == other.0.context
    }
}

impl Eq for DeviceContext {}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.keeper.is_some() {
            return;
        }
        // SAFETY: the context is open until here and belongs to this object. Everything made from
        // it held this `Inner` and is gone.
        let result = unsafe { (self.provider.verbs().ibv_close_device)(self.context.as_ptr()) };
        if let Err(error) = check(result) {
            log::error!("ibv_close_device failed: {error}");
        }
    }
}

/// The name of a device.
///
/// # Safety
///
/// `device` must be a device of `provider` that has not been freed.
pub(crate) unsafe fn device_name(provider: Provider, device: NonNull<ibv_device>) -> String {
    // SAFETY: the caller guarantees that the device is alive; its name is a C string inside its
    // struct.
    unsafe {
        let name = (provider.verbs().ibv_get_device_name)(device.as_ptr());
        if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

/// Whether `name` is the name of a software device.
pub(crate) fn is_soft(name: &str) -> bool {
    name.starts_with("soft")
}

/// The error of [`DeviceContext::query_device`].
pub type QueryDeviceError = Error;

/// The error of [`DeviceContext::query_port`].
pub type QueryPortError = Error;

/// The error of [`DeviceContext::query_gid`] and [`DeviceContext::query_gid_ex`].
pub type QueryGidError = Error;

/// The error of [`DeviceContext::query_gid_table`].
pub type QueryGidTableError = Error;
