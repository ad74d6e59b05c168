//! The device list, contexts and their queries.

use std::ffi::CStr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Provider, Verbs, verbs};

use super::handle::{RawHandle, errno};
use super::{AsyncEvent, CmId, CompChannel, Cq, CqInit, Pd};

/// Sets an environment variable for the library that is loaded next.
pub(crate) fn set_variable(name: &str, value: &str) {
    // SAFETY: only `main` calls this, before it starts a second thread.
    unsafe { std::env::set_var(name, value) };
}

/// The devices' names.
pub(crate) fn devices(provider: Provider) -> Result<Vec<String>, i32> {
    with_list(provider, |list| {
        // SAFETY: `with_list` frees the list only after this closure.
        list.iter().map(|device| unsafe { name(provider.verbs(), *device) }).collect()
    })
}

/// Calls with the device list, and frees the list afterwards.
fn with_list<T>(provider: Provider, call: impl FnOnce(&[*mut ibv_device]) -> T) -> Result<T, i32> {
    let lib = provider.verbs();
    let mut count = -1;
    // SAFETY: the count is a local variable.
    let list = unsafe { (lib.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(errno());
    }
    assert!(count >= 0, "the number of devices is {count}");
    // SAFETY: the library returns the length of its array, which has one more entry: a null
    // pointer.
    let array = unsafe { std::slice::from_raw_parts(list, count as usize + 1) };
    assert!(array[count as usize].is_null(), "a null pointer ends the device list");
    let result = call(&array[..count as usize]);
    // SAFETY: the list came from `ibv_get_device_list`, is freed once, and is not used afterwards.
    unsafe { (lib.ibv_free_device_list)(list) };
    Ok(result)
}

/// Whether the library lists devices for a caller that passes no pointer for the count.
pub(crate) fn lists_without_count(provider: Provider) -> bool {
    let lib = provider.verbs();
    // SAFETY: the count may be null (`man ibv_get_device_list`).
    let list = unsafe { (lib.ibv_get_device_list)(std::ptr::null_mut()) };
    if list.is_null() {
        return false;
    }
    // SAFETY: the list came from `ibv_get_device_list`, is freed once, and is not used afterwards.
    unsafe { (lib.ibv_free_device_list)(list) };
    true
}

/// The library's name for a completion status.
pub(crate) fn status_name(provider: Provider, status: ibv_wc_status) -> String {
    // SAFETY: any number is a valid argument. The result is a string that lives as long as the
    // library.
    unsafe { CStr::from_ptr((provider.verbs().ibv_wc_status_str)(status)) }.to_str().unwrap().to_owned()
}

/// The library's name for an event.
pub(crate) fn event_name(provider: Provider, event: ibv_event_type) -> String {
    // SAFETY: any number is a valid argument. The result is a string that lives as long as the
    // library.
    unsafe { CStr::from_ptr((provider.verbs().ibv_event_type_str)(event)) }.to_str().unwrap().to_owned()
}

/// The name of a device.
///
/// # Safety
///
/// - `device` is in a list of this library that has not been freed, or has an open context.
unsafe fn name(lib: &Verbs, device: *mut ibv_device) -> String {
    // SAFETY: the device exists (`# Safety`); the name is a string that lives as long as the
    // device.
    unsafe { CStr::from_ptr((lib.ibv_get_device_name)(device)) }.to_str().unwrap().to_owned()
}

/// The properties of a device in the device list, before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedDevice {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) index: Option<i32>,
    pub(crate) node_type: ibv_node_type,
    pub(crate) transport_type: ibv_transport_type,
}

/// A context.
#[derive(Clone, Debug)]
pub(crate) struct Device(Arc<DeviceInner>);

#[derive(Debug)]
struct DeviceInner {
    raw: RawHandle<ibv_context>,
    provider: Provider,
    name: String,
    /// Of a context that librdmacm has opened, and closes.
    of_cm: Option<CmId>,
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        if self.of_cm.is_some() {
            self.raw.forget();
        }
        // SAFETY: `RawHandle` checks that the context lives, and nothing that was made with it
        // does: those hold a reference to it.
        self.raw.drop(|context| unsafe { (self.provider.verbs().ibv_close_device)(context) });
    }
}

impl Device {
    /// Opens a device.
    pub(crate) fn open(provider: Provider, wanted: &str) -> Result<Self, i32> {
        let lib = provider.verbs();
        let context = with_list(provider, |list| {
            // SAFETY: `with_list` frees the list only after this closure.
            let device = list.iter().find(|device| unsafe { name(lib, **device) } == wanted);
            // SAFETY: `with_list` frees the list only after this closure.
            device.map(|device| RawHandle::new("a context", unsafe { (lib.ibv_open_device)(*device) }))
        })?;
        let raw = context.unwrap_or(Err(libc::ENODEV))?;
        Ok(Self(Arc::new(DeviceInner { raw, provider, name: wanted.to_owned(), of_cm: None })))
    }

    /// Takes over another context of this device, which the library has just created.
    pub(super) fn of_raw(&self, context: *mut ibv_context) -> Result<Self, i32> {
        let raw = RawHandle::new("an imported context", context)?;
        let (provider, name) = (self.0.provider, self.0.name.clone());
        Ok(Self(Arc::new(DeviceInner { raw, provider, name, of_cm: None })))
    }

    /// The context of a connection manager identifier; its drop does not close it.
    pub(super) fn of_cm(id: &CmId, context: *mut ibv_context) -> Self {
        let provider = id.provider();
        // SAFETY: the identifier keeps the context and its device alive, and the result holds the
        // identifier.
        let name = unsafe { name(provider.verbs(), (*context).device) };
        let raw = RawHandle::new("a context of librdmacm", context).unwrap();
        Self(Arc::new(DeviceInner { raw, provider, name, of_cm: Some(id.clone()) }))
    }

    /// The entries of the device list.
    pub(crate) fn listed(provider: Provider) -> Vec<ListedDevice> {
        let lib = provider.verbs();
        let listed = |device: &*mut ibv_device| {
            // SAFETY: `with_list` frees the list only after this closure. The first fields of the
            // struct are the same in every release.
            unsafe {
                ListedDevice {
                    name: name(lib, *device),
                    guid: u64::from_be((lib.ibv_get_device_guid)(*device)),
                    index: lib.ibv_get_device_index.map(|index| index(*device)),
                    node_type: (**device).node_type,
                    transport_type: (**device).transport_type,
                }
            }
        };
        with_list(provider, |list| list.iter().map(listed).collect()).unwrap()
    }

    pub(super) fn lib(&self) -> &'static Verbs {
        self.0.provider.verbs()
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.0.raw.get()
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Closes the context. Objects that were made with it must be forgotten or destroyed before.
    pub(crate) fn close(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the context lives. The case has forgotten or destroyed
        // the objects that were made with it.
        self.0.raw.end(|context| unsafe { (self.lib().ibv_close_device)(context) })
    }

    /// The device's name, read through the context, and the number of completion vectors.
    pub(crate) fn of_context(&self) -> (String, i32) {
        // SAFETY: `RawHandle` checks that the context lives, and with it its device. It has these
        // fields in every release.
        unsafe { (name(self.lib(), (*self.raw()).device), (*self.raw()).num_comp_vectors) }
    }

    /// Whether the first port is active and has an address.
    pub(crate) fn is_usable(&self) -> bool {
        let active = self.port().is_ok_and(|port| port.state == ibv_port_state::IBV_PORT_ACTIVE);
        active && self.find_gid().is_some()
    }

    pub(crate) fn query(&self) -> Result<ibv_device_attr, i32> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        result(unsafe { (self.lib().ibv_query_device)(self.raw(), &raw mut attr) }, attr)
    }

    /// The extended attributes, with this `comp_mask` in the input.
    pub(crate) fn query_ex(&self, comp_mask: Option<u32>) -> Result<ibv_device_attr_ex, i32> {
        let input = comp_mask.map(|comp_mask| ibv_query_device_ex_input { comp_mask });
        let input = input.as_ref().map_or(std::ptr::null(), |input| &raw const *input);
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: `RawHandle` checks that the context lives, input and attributes are local
        // variables.
        result(unsafe { verbs::ibv_query_device_ex(self.lib(), self.raw(), input, &raw mut attr) }, attr)
    }

    /// The device's clock in nanoseconds, and the `comp_mask` of the answer.
    pub(crate) fn clock(&self, comp_mask: u32) -> Result<(u32, i64), i32> {
        let mut values = ibv_values_ex { comp_mask, ..ibv_values_ex::default() };
        // SAFETY: `RawHandle` checks that the context lives, the values are local variables.
        let error = unsafe { verbs::ibv_query_rt_values_ex(self.raw(), &raw mut values) };
        result(error, ()).map(|()| (values.comp_mask, values.raw_clock.tv_nsec))
    }

    /// The first port.
    pub(crate) fn port(&self) -> Result<ibv_port_attr, i32> {
        self.port_at(1)
    }

    pub(crate) fn port_at(&self, port: u8) -> Result<ibv_port_attr, i32> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: `RawHandle` checks that the context lives, the attributes are local variables.
        result(unsafe { verbs::ibv_query_port(self.lib(), self.raw(), port, &raw mut attr) }, attr)
    }

    /// Whether the exported `ibv_query_port`, which old programs call, writes no more than 48
    /// bytes.
    pub(crate) fn port_is_short(&self) -> bool {
        let mut attr = [0xa5_u8; 64];
        // SAFETY: `RawHandle` checks that the context lives. The buffer is larger than the newest
        // struct.
        let error = unsafe { (self.lib().ibv_query_port)(self.raw(), 1, attr.as_mut_ptr().cast()) };
        error == 0 && attr[48..].iter().all(|byte| *byte == 0xa5)
    }

    pub(crate) fn gid(&self, port: u8, index: i32) -> Result<[u8; 16], i32> {
        let mut gid = ibv_gid::default();
        // SAFETY: `RawHandle` checks that the context lives, the result is a local variable.
        if unsafe { (self.lib().ibv_query_gid)(self.raw(), port, index, &raw mut gid) } != 0 {
            return Err(errno());
        }
        // SAFETY: any bytes are a valid GID.
        Ok(unsafe { gid.raw })
    }

    pub(crate) fn gid_ex(&self, port: u32, index: u32, flags: u32) -> Result<ibv_gid_entry, i32> {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: `RawHandle` checks that the context lives, the result is a local variable.
        let error =
            unsafe { verbs::ibv_query_gid_ex(self.lib(), self.raw(), port, index, &raw mut entry, flags) };
        result(error, entry)
    }

    /// The table of valid GIDs, with room for `max` of them.
    pub(crate) fn gid_table(&self, max: usize, flags: u32) -> Result<Vec<ibv_gid_entry>, i32> {
        let mut entries = vec![ibv_gid_entry::default(); max];
        // SAFETY: `RawHandle` checks that the context lives, there is room for `max` entries.
        let count =
            unsafe { verbs::ibv_query_gid_table(self.lib(), self.raw(), entries.as_mut_ptr(), max, flags) };
        if count < 0 {
            return Err(-count as i32);
        }
        entries.truncate(count as usize);
        Ok(entries)
    }

    pub(crate) fn pkey(&self, port: u8, index: i32) -> Result<u16, i32> {
        let mut pkey = 0;
        // SAFETY: `RawHandle` checks that the context lives, the result is a local variable.
        if unsafe { (self.lib().ibv_query_pkey)(self.raw(), port, index, &raw mut pkey) } != 0 {
            return Err(errno());
        }
        Ok(u16::from_be(pkey))
    }

    pub(crate) fn pkey_index(&self, port: u8, pkey: u16) -> Result<i32, i32> {
        let query = self.lib().ibv_get_pkey_index().unwrap();
        // SAFETY: `RawHandle` checks that the context lives.
        let index = unsafe { query(self.raw(), port, pkey.to_be()) };
        if index < 0 { Err(errno()) } else { Ok(index) }
    }

    /// The last GID of the table that is an IPv4 address, or else the first GID, with its index.
    pub(crate) fn find_gid(&self) -> Option<([u8; 16], u8)> {
        let len = self.port().ok()?.gid_tbl_len.clamp(0, 16);
        let gids: Vec<_> = (0..len)
            .filter_map(|n| Some((self.gid(1, n).ok()?, n as u8)))
            .filter(|(gid, _)| *gid != [0; 16])
            .collect();
        let mapped = gids.iter().find(|(gid, _)| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        mapped.or(gids.first()).copied()
    }

    /// The descriptor of asynchronous events.
    pub(crate) fn async_fd(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the context lives. It has this field in every release.
        unsafe { (*self.raw()).async_fd }
    }

    pub(crate) fn pd(&self) -> Pd {
        Pd::new(self).unwrap()
    }

    /// A classic completion queue.
    pub(crate) fn cq(&self, cqe: i32) -> Cq {
        Cq::new(self, &CqInit { cqe, ..CqInit::default() }).unwrap()
    }

    pub(crate) fn channel(&self) -> CompChannel {
        CompChannel::new(self).unwrap()
    }

    /// The next event, if one arrives within the limit.
    pub(crate) fn event(&self, limit: std::time::Duration) -> Option<AsyncEvent> {
        AsyncEvent::next(self, limit)
    }

    /// The attributes of an address handle for the sender of a received datagram.
    pub(crate) fn ah_attr_of(
        &self,
        wc: &super::Wc,
        buf: &super::Buf,
        offset: usize,
    ) -> Result<ibv_ah_attr, i32> {
        let (mut wc, mut grh) = (wc.classic(), super::memory::grh(buf, offset));
        let mut attr = ibv_ah_attr::default();
        // SAFETY: `RawHandle` checks that the context lives, everything else is a local variable.
        let error = unsafe {
            (self.lib().ibv_init_ah_from_wc)(self.raw(), 1, &raw mut wc, &raw mut grh, &raw mut attr)
        };
        if error == 0 { Ok(attr) } else { Err(errno()) }
    }
}

/// Converts an error number to a result.
fn result<T>(error: i32, value: T) -> Result<T, i32> {
    if error == 0 { Ok(value) } else { Err(error) }
}
