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

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use rdma_mummy_sys::types::{ibv_context, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr};
use rdma_mummy_sys::{Provider, verbs};

use super::address::{Gid, GidEntry};
use super::completion::CompletionQueueBuilder;
use super::device::{Guid, TransportType, device_name, is_soft};
use super::device_attr::DeviceAttr;
use super::port::PortAttr;
use super::protection_domain::{AllocateProtectionDomainError, ProtectionDomain};
use super::{check, sysfs};

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
    keeper: Option<Keeper>,
}

/// An object that keeps a context open. The unwind-safety bounds keep [`DeviceContext`]
/// unwind-safe.
pub(crate) type Keeper = Arc<dyn Any + Send + Sync + UnwindSafe + RefUnwindSafe>;

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

/// Known defects of a device's library, for which this crate has workarounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quirks {
    /// SoftRoCE before rdma-core 55 drops a completion in an `ibv_end_poll` after an
    /// `ibv_next_poll` that found the queue empty. Workaround: end each poll after one completion.
    pub(crate) end_poll_after_each: bool,
    /// Inline data through `ibv_wr_set_inline_data` is broken in every rdma-core up to at least 65.
    ///
    /// SoftRoCE copies the bytes without telling the kernel about them, so that the message fails.
    /// If the queue is full, mlx5 writes them over an outstanding request, where the device may
    /// take them for addresses. `ibv_post_send` is correct in both.
    pub(crate) no_extended_inline: bool,
    /// SoftRoCE's `ibv_wr_set_sge_list` uses the first entry's length for all entries (every
    /// rdma-core before mid-2026). Fewer bytes are moved, or the message fails. `ibv_post_send` is
    /// correct.
    pub(crate) one_extended_entry: bool,
    /// mlx5's `ibv_wr_*` detect a full queue only after they have started to overwrite an
    /// outstanding request (every rdma-core up to at least 65). `ibv_post_send` checks first. So
    /// this crate refuses requests with which safe code could fill the queue.
    pub(crate) overwrites_when_full: bool,
}

impl Quirks {
    /// The vendor ID that the kernel's SoftRoCE reports.
    const RXE_VENDOR_ID: u32 = 0x00ff_ffff;

    /// The vendor ID of NVIDIA (Mellanox) NICs.
    const MELLANOX_VENDOR_ID: u32 = 0x02c9;

    const ALL: Self = Self {
        end_poll_after_each: true,
        no_extended_inline: true,
        one_extended_entry: true,
        overwrites_when_full: true,
    };

    fn of(attr: &DeviceAttr) -> Self {
        match attr.vendor_id() {
            Self::RXE_VENDOR_ID => Self { overwrites_when_full: false, ..Self::ALL },
            Self::MELLANOX_VENDOR_ID => {
                Self { no_extended_inline: true, overwrites_when_full: true, ..Self::default() }
            }
            _ => Self::default(),
        }
    }
}

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
        keeper: Keeper,
    ) -> Self {
        // SAFETY: the caller guarantees an open context of `provider` that stays open as long as
        // `keeper` lives.
        unsafe { Self::new(context, provider, Some(keeper)) }
    }

    /// # Safety
    ///
    /// `context` was opened with the functions of `provider`. It stays open as long as `keeper`
    /// lives or, without one, until this handle closes it.
    unsafe fn new(context: NonNull<ibv_context>, provider: Provider, keeper: Option<Keeper>) -> Self {
        // SAFETY: the caller guarantees an open context of `provider`.
        let attr = unsafe { query_device(context, provider) };
        // Without attributes the device is unknown, so that all workarounds apply. They are correct
        // with every device.
        let quirks = attr.map_or(Quirks::ALL, |attr| Quirks::of(&attr));
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

    /// Queries limits and features of the device (`ibv_query_device_ex`, or its predecessor in an
    /// old library).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    ///
    /// # References
    ///
    /// `man ibv_query_device_ex`
    pub fn query_device(&self) -> Result<DeviceAttr, QueryDeviceError> {
        // SAFETY: `self` keeps the context open.
        unsafe { query_device(self.0.context, self.0.provider) }.map_err(|source| QueryDeviceError { source })
    }

    /// Queries the state of a port (`ibv_query_port`). Ports are numbered from 1.
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist, or if the device does not answer.
    ///
    /// # References
    ///
    /// `man ibv_query_port`
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr, QueryPortError> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: `self` keeps the context open, and `attr` is a local variable.
        let result = unsafe {
            verbs::ibv_query_port(self.0.provider.verbs(), self.0.context.as_ptr(), port_num, &raw mut attr)
        };
        check(result).map_err(|source| QueryPortError { port_num, source })?;
        Ok(PortAttr::new(attr))
    }

    /// Queries one entry of a port's GID table, without its type (`ibv_query_gid`).
    ///
    /// # Errors
    ///
    /// Fails if the port or the index does not exist.
    ///
    /// # References
    ///
    /// `man ibv_query_gid`
    pub fn query_gid(&self, port_num: u8, gid_index: u32) -> Result<Gid, QueryGidError> {
        let error = |source| QueryGidError { port_num, gid_index, source };
        let index =
            i32::try_from(gid_index).map_err(|_| error(io::Error::from_raw_os_error(libc::EINVAL)))?;
        let mut gid = ibv_gid::default();
        // SAFETY: `self` keeps the context open, and `gid` is a local variable.
        let result = unsafe {
            (self.0.provider.verbs().ibv_query_gid)(self.0.context.as_ptr(), port_num, index, &raw mut gid)
        };
        check(result).map_err(error)?;
        Ok(Gid::from(gid))
    }

    /// Queries one entry of a port's GID table, with type and network device. Uses
    /// `ibv_query_gid_ex`, or sysfs if the library lacks it.
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist, or if the table has no entry at this index.
    ///
    /// # References
    ///
    /// `man ibv_query_gid_ex`
    pub fn query_gid_ex(&self, port_num: u8, gid_index: u32) -> Result<GidEntry, QueryGidError> {
        let error = |source| QueryGidError { port_num, gid_index, source };
        let mut entry = ibv_gid_entry::default();
        // SAFETY: `self` keeps the context open, and `entry` is a local variable.
        let result = unsafe {
            verbs::ibv_query_gid_ex(
                self.0.provider.verbs(),
                self.0.context.as_ptr(),
                u32::from(port_num),
                gid_index,
                &raw mut entry,
                0,
            )
        };
        match result {
            0 => Ok(GidEntry::new(entry)),
            libc::EOPNOTSUPP => sysfs::gid_entry(&self.name(), port_num, gid_index).map_err(error),
            errno => Err(error(super::os_error(errno))),
        }
    }

    /// Queries the GID tables of all ports, without their empty entries. Uses
    /// `ibv_query_gid_table`, or sysfs if the library lacks it.
    ///
    /// # Errors
    ///
    /// Fails if the tables cannot be read.
    ///
    /// # References
    ///
    /// `man ibv_query_gid_table`
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>, QueryGidTableError> {
        let ports = self.query_device()?.phys_port_cnt();
        let mut room = 0;
        for port in 1..=ports {
            // Indices have 16 bits, so a table cannot be longer; a larger length from the device is
            // cut off.
            room += usize::try_from(self.query_port(port)?.gid_tbl_len().clamp(0, 1 << 16)).unwrap_or(0);
        }
        let mut entries = vec![ibv_gid_entry::default(); room];
        // SAFETY: `self` keeps the context open, and `entries` has the length that is passed.
        let count = unsafe {
            verbs::ibv_query_gid_table(
                self.0.provider.verbs(),
                self.0.context.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
            )
        };
        match usize::try_from(count) {
            Ok(count) => {
                entries.truncate(count);
                Ok(entries.into_iter().map(GidEntry::new).collect())
            }
            Err(_) if count == -(libc::EOPNOTSUPP as isize) => {
                sysfs::gid_table(&self.name(), ports).map_err(|source| QueryGidTableError::Sysfs { source })
            }
            Err(_) => {
                let errno = i32::try_from(count.saturating_neg()).unwrap_or(libc::EIO);
                Err(QueryGidTableError::Ibverbs { source: super::os_error(errno) })
            }
        }
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no more of them.
    ///
    /// # References
    ///
    /// `man ibv_alloc_pd`
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, AllocateProtectionDomainError> {
        ProtectionDomain::allocate(self)
    }

    /// Returns a builder for completion queues of this context.
    pub fn create_cq_builder(&self) -> CompletionQueueBuilder {
        CompletionQueueBuilder::new(self)
    }
}

/// # Safety
///
/// `context` must be an open context of `provider`.
unsafe fn query_device(context: NonNull<ibv_context>, provider: Provider) -> io::Result<DeviceAttr> {
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the caller guarantees an open context. The input is null, which the verb allows, and
    // `attr` is a local variable.
    let result = unsafe {
        verbs::ibv_query_device_ex(provider.verbs(), context.as_ptr(), core::ptr::null(), &raw mut attr)
    };
    check(result)?;
    Ok(DeviceAttr::new(attr))
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

/// A device did not say what it can do.
#[derive(Debug, thiserror::Error)]
#[error("ibv_query_device failed: {source}")]
pub struct QueryDeviceError {
    /// What the library said.
    pub source: io::Error,
}

/// A port did not say what state it is in.
#[derive(Debug, thiserror::Error)]
#[error("cannot query port {port_num}: {source} (ports are numbered from 1)")]
pub struct QueryPortError {
    /// The port that was asked for.
    pub port_num: u8,
    /// What the library said.
    pub source: io::Error,
}

/// A GID could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read GID index {gid_index} of port {port_num}: {source}")]
pub struct QueryGidError {
    /// The port that was asked for.
    pub port_num: u8,
    /// The index that was asked for.
    pub gid_index: u32,
    /// What the library said.
    pub source: io::Error,
}

/// The GID table could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryGidTableError {
    /// The number of ports is not known.
    #[error(transparent)]
    Device(#[from] QueryDeviceError),
    /// The length of a port's table is not known.
    #[error(transparent)]
    Port(#[from] QueryPortError),
    /// `ibv_query_gid_table` failed.
    #[error("ibv_query_gid_table failed: {source}")]
    Ibverbs {
        /// What the library said.
        source: io::Error,
    },
    /// The library cannot read the table, and sysfs could not be read either.
    #[error("cannot read the GID table in sysfs: {source}")]
    Sysfs {
        /// What the system said.
        source: io::Error,
    },
}
