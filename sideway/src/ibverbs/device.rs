//! Device discovery: the list of RDMA devices, their names, GUIDs and types.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::device::DeviceList;
//!
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! for device in list.iter() {
//!     println!("{}: {:?}, {}", device.name(), device.guid(), device.node_type());
//! }
//! let context = list.find("soft0")?.open()?;
//! # drop(list);
//! # assert_eq!(context.name(), "soft0");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;

use rdma_mummy_sys::types::ibv_device;
use rdma_mummy_sys::{Provider, verbs};

use super::device_context::{DeviceContext, device_name};
use super::device_file::DeviceFolders;
pub use super::types::{Guid, TransportType};
use crate::error::{Error, ErrorKind};
use crate::provider::{
    NoSystemDevice, ProviderChoice, automatic, default_provider_for, invalid_configuration,
};

/// The RDMA devices of a provider (`ibv_get_device_list`). Dropping the list frees it
/// (`ibv_free_device_list`).
#[derive(Debug)]
pub struct DeviceList {
    provider: Provider,
    devices: NonNull<*mut ibv_device>,
    len: usize,
    /// Never changed, so that an unwinding thread leaves it whole.
    fallback: Option<AssertUnwindSafe<NoSystemDevice>>,
}

// SAFETY: the list is immutable, and libibverbs protects its devices with its own locks.
unsafe impl Send for DeviceList {}
// SAFETY: the list is immutable, and libibverbs protects its devices with its own locks.
unsafe impl Sync for DeviceList {}

/// A hint in errors to try the software device, if this build contains it.
const OR_SOFT: &str =
    if cfg!(feature = "soft") { ", or choose software devices by SIDEWAY_PROVIDER=soft" } else { "" };

/// A device was asked for that is not there.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FindDeviceError {
    /// There is no device at all.
    #[error(
        "no RDMA device found: load the NIC's driver, or make a software one (`rdma link add rxe0 type rxe netdev \
         DEV`){OR_SOFT}"
    )]
    NoDevice,
    /// There are devices, but none of this name.
    #[error("no RDMA device named `{name}`; there {}", DeviceNames(.known))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The kernel has devices, and this process has the file of none of them, as in a container.
    #[error(
        "the kernel has {}, and this process has no file of {} in /dev/infiniband: load ib_uverbs (`modprobe ib_uverbs`); \
         a container gets the files by `--device /dev/infiniband`{OR_SOFT}",
        .known.join(", "),
        if .known.len() == 1 { "it" } else { "them" }
    )]
    NoDeviceFile {
        /// The names of the kernel's devices.
        known: Vec<String>,
    },
}

debug_as_text!(FindDeviceError);

struct DeviceNames<'a>(&'a [String]);

impl fmt::Display for DeviceNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.0.len() == 1 { "is" } else { "are" };
        write!(f, "{verb} {}", self.0.join(", "))
    }
}

const LIST: &str = "ibv_get_device_list";

impl DeviceList {
    /// Lists the devices of the [default provider](crate::default_provider).
    ///
    /// # Errors
    ///
    /// Fails if the library is missing or cannot list devices. An empty list is not an error.
    pub fn new() -> Result<Self, Error> {
        Self::from_provider(default_provider_for(LIST)?)
    }

    /// Lists the devices of the provider that was set as the [default](crate::set_default_provider),
    /// otherwise of the one that `SIDEWAY_PROVIDER` names, otherwise the system's. If the system has no
    /// device, it lists the software devices of the feature `soft`, and
    /// [`fallback`](Self::fallback) returns the reason.
    ///
    /// # Errors
    ///
    /// Fails if the system has no device and this build no software devices, and as [`new`](Self::new)
    /// does.
    pub fn auto() -> Result<Self, Error> {
        let selection = automatic().map_err(|error| error.of_verb(LIST))?;
        let mut list = Self::from_provider(selection.provider())?;
        list.fallback = selection.into_fallback().map(AssertUnwindSafe);
        Ok(list)
    }

    /// The reason why [`auto`](Self::auto) lists software devices although nobody asked for them;
    /// `None` in other cases. A program should show it to its user, who might otherwise take results of
    /// a software device for those of hardware.
    pub fn fallback(&self) -> Option<&NoSystemDevice> {
        self.fallback.as_deref()
    }

    /// Lists the devices of `provider` (`ibv_get_device_list`).
    ///
    /// # Errors
    ///
    /// Fails if the library cannot list devices.
    ///
    /// # References
    ///
    /// `man ibv_get_device_list`
    pub fn from_provider(provider: Provider) -> Result<Self, Error> {
        let mut len = 0;
        // SAFETY: `len` is a local variable.
        let devices = unsafe { verbs::ibv_get_device_list(provider.verbs(), &raw mut len) };
        match NonNull::new(devices) {
            Some(devices) => {
                Ok(Self { provider, devices, len: usize::try_from(len).unwrap_or(0), fallback: None })
            }
            None => {
                let source = io::Error::last_os_error();
                Err(match source.raw_os_error() {
                    Some(libc::ENOSYS) => Error::os(LIST, source)
                        .of_kind(ErrorKind::NoDevice)
                        .reason("the kernel has no RDMA devices")
                        .remedy(format!("load ib_uverbs and the driver of the NIC{OR_SOFT}")),
                    _ => invalid_configuration(LIST, provider).unwrap_or_else(|| Error::os(LIST, source)),
                })
            }
        }
    }

    /// The number of devices.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list has no device.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device at `index`, if the list is that long.
    pub fn get(&self, index: usize) -> Option<Device<'_>> {
        if index >= self.len {
            return None;
        }
        // SAFETY: the list has `len` entries, and `index` is below `len`.
        let device = NonNull::new(unsafe { *self.devices.as_ptr().add(index) })?;
        Some(Device { device, provider: self.provider, list: PhantomData })
    }

    /// The devices, in the library's order.
    pub fn iter(&self) -> Devices<'_> {
        Devices { list: self, next: 0 }
    }

    /// The first device.
    ///
    /// # Errors
    ///
    /// Fails if the list is empty.
    pub fn first(&self) -> Result<Device<'_>, FindDeviceError> {
        self.get(0).ok_or_else(|| self.why_empty())
    }

    /// Why the list is empty.
    #[cold]
    pub(super) fn why_empty(&self) -> FindDeviceError {
        // Only this provider's library lists the kernel's devices.
        if self.provider.name() != ProviderChoice::System.name() {
            return FindDeviceError::NoDevice;
        }
        match DeviceFolders::default().devices_without_files() {
            known if known.is_empty() => FindDeviceError::NoDevice,
            known => FindDeviceError::NoDeviceFile { known },
        }
    }

    /// The device called `name`.
    ///
    /// # Errors
    ///
    /// Fails if no device has this name; the error lists the names of all devices.
    pub fn find(&self, name: &str) -> Result<Device<'_>, FindDeviceError> {
        if self.is_empty() {
            return Err(self.why_empty());
        }
        self.iter().find(|device| device.name() == name).ok_or_else(|| FindDeviceError::Unknown {
            name: name.to_owned(),
            known: self.iter().map(|device| device.name()).collect(),
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from this provider's `ibv_get_device_list` and is freed only here.
        // A `Device` borrows the list, and an open context keeps its device alive.
        unsafe { (self.provider.verbs().ibv_free_device_list)(self.devices.as_ptr()) };
    }
}

/// The devices of a [`DeviceList`], in the library's order.
#[derive(Clone, Debug)]
pub struct Devices<'list> {
    list: &'list DeviceList,
    next: usize,
}

impl<'list> Iterator for Devices<'list> {
    type Item = Device<'list>;

    fn next(&mut self) -> Option<Device<'list>> {
        while self.next < self.list.len {
            let device = self.list.get(self.next);
            self.next += 1;
            if device.is_some() {
                return device;
            }
        }
        None
    }
}

impl<'list> IntoIterator for &'list DeviceList {
    type Item = Device<'list>;
    type IntoIter = Devices<'list>;

    fn into_iter(self) -> Devices<'list> {
        self.iter()
    }
}

/// A device of a [`DeviceList`].
#[derive(Clone, Copy)]
pub struct Device<'list> {
    device: NonNull<ibv_device>,
    provider: Provider,
    list: PhantomData<&'list DeviceList>,
}

// SAFETY: the list, which `self` borrows, keeps the device alive. It is only read, and libibverbs
// locks the parts that it shares.
unsafe impl Send for Device<'_> {}
// SAFETY: `&self` only reads the device, and libibverbs locks the parts that it shares.
unsafe impl Sync for Device<'_> {}

impl Device<'_> {
    /// The kernel's name of the device, such as `mlx5_0` (`ibv_get_device_name`).
    ///
    /// # References
    ///
    /// `man ibv_get_device_name`
    pub fn name(&self) -> String {
        // SAFETY: `self` belongs to a device list, which keeps the device alive.
        unsafe { device_name(self.provider, self.device) }
    }

    /// The node GUID (`ibv_get_device_guid`).
    ///
    /// # References
    ///
    /// `man ibv_get_device_guid`
    pub fn guid(&self) -> Guid {
        // SAFETY: `self` belongs to a device list, which keeps the device alive.
        Guid::from_be(unsafe { (self.provider.verbs().ibv_get_device_guid)(self.device.as_ptr()) })
    }

    /// The kernel's index of the device, which stays the same while the device exists
    /// (`ibv_get_device_index`). `None` if the kernel, or a library before rdma-core 30, does not
    /// report it.
    ///
    /// # References
    ///
    /// `man ibv_get_device_index`
    pub fn index(&self) -> Option<u32> {
        let index = self.provider.verbs().ibv_get_device_index().ok()?;
        // SAFETY: `self` belongs to a device list, which keeps the device alive.
        u32::try_from(unsafe { index(self.device.as_ptr()) }).ok()
    }

    /// The transport protocol of the device.
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: `self` belongs to a device list, which keeps the device alive; every release's
        // struct has this field.
        TransportType::from_raw(unsafe { (*self.device.as_ptr()).transport_type }.0)
    }

    /// The kind of node that the device is.
    pub fn node_type(&self) -> NodeType {
        // SAFETY: `self` belongs to a device list, which keeps the device alive; every release's
        // struct has this field.
        NodeType::from_raw(unsafe { (*self.device.as_ptr()).node_type }.0)
    }

    /// Opens the device (`ibv_open_device`).
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be opened, for example without permission for its device file. The
    /// error says what the file itself shows, because the library's error number need not.
    ///
    /// # References
    ///
    /// `man ibv_open_device`
    pub fn open(&self) -> Result<DeviceContext, Error> {
        // SAFETY: `self` belongs to a device list, which keeps the device alive.
        let context = unsafe { (self.provider.verbs().ibv_open_device)(self.device.as_ptr()) };
        let context = NonNull::new(context).ok_or_else(|| {
            let source = io::Error::last_os_error();
            let name = self.name();
            let remedy = DeviceFolders::default().why_not_opened(&name).unwrap_or_default();
            Error::os("ibv_open_device", source).of(format!("device {name}")).remedy(remedy)
        })?;
        // SAFETY: this provider opened the context just now, and nothing else owns it.
        Ok(unsafe { DeviceContext::from_raw(context, self.provider) })
    }
}

/// A device, whether it is open or only listed.
///
/// [`Device`] and [`DeviceContext`] have these methods without an import. The trait is for functions
/// that take either.
pub trait DeviceInfo {
    /// The kernel's name of the device, such as `mlx5_0`.
    fn name(&self) -> String;

    /// The node GUID.
    fn guid(&self) -> Guid;

    /// The transport protocol of the device.
    fn transport_type(&self) -> TransportType;
}

/// Implements [`DeviceInfo`] by the methods of the same names.
macro_rules! impl_device_info {
    ($($Device:ty),*) => {$(
        impl DeviceInfo for $Device {
            fn name(&self) -> String {
                self.name()
            }

            fn guid(&self) -> Guid {
                self.guid()
            }

            fn transport_type(&self) -> TransportType {
                self.transport_type()
            }
        }
    )*};
}

impl_device_info!(Device<'_>, DeviceContext);

impl Device<'_> {
    /// The provider that listed the device.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The C object, for verbs that this crate does not wrap. It lives as long as the list from which
    /// this device was taken.
    pub fn as_raw(&self) -> NonNull<ibv_device> {
        self.device
    }
}

impl fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name()).finish()
    }
}

c_enum! {
    /// The kind of a node (`ibv_node_type`).
    pub struct NodeType(i32) {
        /// A host's InfiniBand adapter, an HCA (`IBV_NODE_CA`).
        ChannelAdapter = 1,
        /// An InfiniBand switch (`IBV_NODE_SWITCH`).
        Switch = 2,
        /// An InfiniBand router between subnets (`IBV_NODE_ROUTER`).
        Router = 3,
        /// An RDMA-capable Ethernet NIC.
        Rnic = 4,
        /// Cisco's usNIC (`IBV_NODE_USNIC`).
        Usnic = 5,
        /// usNIC over UDP.
        UsnicUdp = 6,
    }
}

display_as_debug!(NodeType);

/// The error of [`DeviceList::new`].
pub type GetDeviceListError = Error;

/// Why [`Device::open`] failed.
pub type OpenDeviceError = Error;

#[cfg(test)]
mod tests {
    use std::ffi::{c_char, c_int};
    use std::fs;
    use std::ptr;

    use rdma_mummy_sys::Verbs;
    use rdma_mummy_sys::types::ibv_context;

    use super::super::device_file::tests::{REPLACED, one_device};
    use super::*;

    type RawList = [*mut ibv_device; 2];

    fn list_of(device: *mut ibv_device) -> *mut *mut ibv_device {
        Box::into_raw(Box::new([device, ptr::null_mut()])).cast()
    }

    unsafe extern "C" fn no_device(num: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller's pointer is valid for the count.
        unsafe { num.write(0) };
        list_of(ptr::null_mut())
    }

    unsafe extern "C" fn mlx5_0(num: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the caller's pointer is valid for the count.
        unsafe { num.write(1) };
        let mut device = ibv_device::default();
        for (to, from) in device.name.iter_mut().zip(b"mlx5_0") {
            *to = *from as c_char;
        }
        list_of(Box::into_raw(Box::new(device)))
    }

    unsafe extern "C" fn free(list: *mut *mut ibv_device) {
        // SAFETY: `list_of` boxed the list, and `mlx5_0` its device; both are freed once.
        unsafe {
            let [device, _] = *Box::from_raw(list.cast::<RawList>());
            if !device.is_null() {
                drop(Box::from_raw(device));
            }
        }
    }

    unsafe extern "C" fn name(device: *mut ibv_device) -> *const c_char {
        // SAFETY: the caller passes a live device, whose name is text with a final zero byte.
        unsafe { (&raw const (*device).name).cast() }
    }

    /// As libibverbs does for every reason.
    unsafe extern "C" fn absent(_: *mut ibv_device) -> *mut ibv_context {
        // SAFETY: the location is this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOENT };
        ptr::null_mut()
    }

    fn list(
        provider: &'static str,
        devices: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    ) -> DeviceList {
        let verbs = Verbs {
            ibv_get_device_list: devices,
            ibv_free_device_list: free,
            ibv_get_device_name: name,
            ibv_open_device: absent,
            ..Verbs::unsupported()
        };
        // SAFETY: these functions keep their contracts, and all others return errors.
        DeviceList::from_provider(unsafe { Provider::from_tables(provider, verbs, None) }).unwrap()
    }

    #[test]
    fn devices_without_files_are_named_where_the_library_lists_none() {
        let (root, folders) = one_device("listed");
        REPLACED.set(Some(folders));
        let expected = format!(
            "the kernel has mlx5_0, and this process has no file of it in /dev/infiniband: load ib_uverbs (`modprobe \
             ib_uverbs`); a container gets the files by `--device /dev/infiniband`{OR_SOFT}"
        );
        let system = list("system", no_device);
        for error in [system.first().unwrap_err(), system.find("mlx5_0").unwrap_err()] {
            assert_eq!(error, FindDeviceError::NoDeviceFile { known: vec!["mlx5_0".to_owned()] });
            assert_eq!([error.to_string(), format!("{error:?}")], [expected.clone(), expected.clone()]);
        }
        fs::create_dir(root.join("infiniband/mlx5_1")).unwrap();
        let text = system.first().unwrap_err().to_string();
        assert!(
            text.starts_with("the kernel has mlx5_0, mlx5_1, and this process has no file of them "),
            "{text}"
        );
        // The kernel's files say nothing about another provider's devices.
        assert_eq!(list("another", no_device).first().unwrap_err(), FindDeviceError::NoDevice);
        fs::remove_dir_all(root).unwrap();
        let text = system.first().unwrap_err().to_string();
        let expected = "no RDMA device found: load the NIC's driver, or make a software one (`rdma link add rxe0 type \
                        rxe netdev DEV`)";
        assert_eq!(text, format!("{expected}{OR_SOFT}"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot ask for the rights of a file")]
    fn a_device_that_does_not_open_is_explained_by_its_file() {
        let (root, folders) = one_device("opened");
        REPLACED.set(Some(folders));
        let error = list("system", mlx5_0).first().unwrap().open().unwrap_err();
        let path = root.join("dev/uverbs3").display().to_string();
        let expected = format!(
            "ibv_open_device failed for device mlx5_0: No such file or directory (os error 2); {path} does not exist: \
             load ib_uverbs (`modprobe ib_uverbs`); a container gets it by `--device {path}`"
        );
        assert_eq!(error.to_string(), expected);
        fs::remove_dir_all(root).unwrap();
    }
}
