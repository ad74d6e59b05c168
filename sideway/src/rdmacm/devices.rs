//! Devices of the connection manager: contexts that librdmacm opened and keeps open.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_mummy_sys::types::ibv_context;
use rdma_mummy_sys::{Provider, RdmaCm};

use super::identifier::Identifier;
use crate::error::{Error, ErrorKind};
use crate::ibverbs::device_context::{DeviceContext, WeakDeviceContext};
use crate::provider::default_provider_for;

const VERB: &str = "rdma_get_devices";

/// The devices that librdmacm has open (`rdma_get_devices`), for the [default
/// provider](crate::default_provider). The list is freed (`rdma_free_devices`) when the last
/// context from
/// it is dropped.
///
/// # Errors
///
/// Fails if there is no provider, if it has no librdmacm, or if the library reports an error.
///
/// # References
///
/// `man rdma_get_devices`
pub fn get_devices() -> Result<Vec<DeviceContext>, Error> {
    get_devices_of(default_provider_for(VERB)?)
}

/// The same for `provider`.
///
/// # Errors
///
/// Fails as [`get_devices`] does.
pub fn get_devices_of(provider: Provider) -> Result<Vec<DeviceContext>, Error> {
    let lib = provider.rdmacm().map_err(|error| Error::caused(VERB, ErrorKind::Library, error.clone()))?;
    let mut kept = kept();
    let list = OwnedList::get(provider, lib).map_err(|source| Error::os(VERB, source))?;
    let living = living(&kept, provider);
    let known = |context| living.iter().find_map(|list| list.find(context));
    let mut is_new = false;
    let contexts = list.entries.iter().map(|entry| {
        known(entry.context).unwrap_or_else(|| {
            is_new = true;
            list.context(entry)
        })
    });
    let contexts = contexts.collect();
    if is_new {
        kept.push(OpenList::new(&list));
    }
    Ok(contexts)
}

impl Identifier {
    /// The device that the identifier is bound to. Use it to make a protection domain, completion
    /// queues and a queue pair.
    ///
    /// librdmacm opens and closes the context. The device stays open while this handle, or an
    /// object made from it, exists, even if the identifier is gone. (This crate holds a list of
    /// `rdma_get_devices` for that, which opens all devices of the machine.) Identifiers of one
    /// device have the same context, so they can share domains and queues.
    ///
    /// # Errors
    ///
    /// Fails if the identifier has no device yet, or if librdmacm reports none although there is
    /// one ([`ErrorKind::NoDevice`]).
    pub fn get_device_context(&self) -> Result<DeviceContext, Error> {
        let (provider, lib) = (self.provider(), self.lib());
        let mut kept = kept();
        let verbs = self.device().map_err(|lacking| lacking.error(VERB))?;
        if let Some(context) = living(&kept, provider).iter().find_map(|list| list.find(verbs)) {
            return Ok(context);
        }
        let list = OwnedList::get(provider, lib)
            .map_err(|source| Error::os(VERB, source).remedy("it opens all RDMA devices of the machine"))?;
        let context = list.find(verbs).ok_or_else(|| {
            Error::not_called(VERB, ErrorKind::DeviceGone, "the identifier's device was removed")
                .remedy("drop the identifier")
        })?;
        kept.push(OpenList::new(&list));
        Ok(context)
    }
}

/// A device list that keeps a context open.
struct OpenList {
    list: Weak<OwnedList>,
    /// A list of several devices is never freed. librdmacm (rdma-core 38 to at least 64) has a
    /// use-after-free: when the last list that names a removed device is freed, it frees the
    /// device, and then compares it with the rest of the list.
    _for_ever: Option<Arc<OwnedList>>,
}

impl OpenList {
    fn new(list: &Arc<OwnedList>) -> Self {
        let _for_ever = (list.entries.len() > 1).then(|| Arc::clone(list));
        Self { list: Arc::downgrade(list), _for_ever }
    }
}

/// The lists that keep a context open. Lists whose contexts are gone are removed, so there are
/// never more lists than contexts.
fn kept() -> MutexGuard<'static, Vec<OpenList>> {
    static KEPT: Mutex<Vec<OpenList>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.retain(|kept| kept.list.strong_count() > 0);
    kept
}

fn living(kept: &[OpenList], provider: Provider) -> Vec<Arc<OwnedList>> {
    kept.iter().filter_map(|kept| kept.list.upgrade()).filter(|list| list.provider == provider).collect()
}

/// The result of `rdma_get_devices`. Until it is freed, librdmacm keeps its devices open.
///
/// The manual page says that they stay open as long as the library is loaded. But rdma-core 38 and
/// later close a removed device as soon as no identifier and no such list refers to it.
struct OwnedList {
    list: NonNull<*mut ibv_context>,
    entries: Vec<ListedDevice>,
    provider: Provider,
    lib: &'static RdmaCm,
}

struct ListedDevice {
    context: NonNull<ibv_context>,
    /// The handle made for this context, while it lives. It is shared, so that the device is
    /// queried only once.
    made: Mutex<WeakDeviceContext>,
}

// SAFETY: the list is only read, and freed once, when its only owner is dropped.
unsafe impl Send for OwnedList {}
// SAFETY: the list is only read, and freed by its one owner.
unsafe impl Sync for OwnedList {}

impl OwnedList {
    fn get(provider: Provider, lib: &'static RdmaCm) -> io::Result<Arc<Self>> {
        let mut count = 0;
        // SAFETY: `count` is a local variable.
        let list = unsafe { (lib.rdma_get_devices)(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        let mut entries = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the library returned `count` contexts, followed by a null pointer.
            match NonNull::new(unsafe { list.add(index).read() }) {
                Some(context) => entries.push(ListedDevice { context, made: Mutex::default() }),
                None => break,
            }
        }
        Ok(Arc::new(Self { list, entries, provider, lib }))
    }

    fn find(self: &Arc<Self>, context: NonNull<ibv_context>) -> Option<DeviceContext> {
        self.entries.iter().find(|entry| entry.context == context).map(|entry| self.context(entry))
    }

    fn context(self: &Arc<Self>, entry: &ListedDevice) -> DeviceContext {
        let mut made = entry.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.upgrade().unwrap_or_else(|| {
            // SAFETY: librdmacm has the context open and keeps it open until the list is freed,
            // which the kept `Arc` prevents. Nothing else closes it.
            let context =
                unsafe { DeviceContext::kept_open(entry.context, self.provider, Arc::clone(self) as _) };
            *made = context.downgrade();
            context
        })
    }
}

impl Drop for OwnedList {
    fn drop(&mut self) {
        // SAFETY: the library made the list. The contexts made from it held this object and are
        // gone.
        unsafe { (self.lib.rdma_free_devices)(self.list.as_ptr()) };
    }
}

impl fmt::Debug for OwnedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}
