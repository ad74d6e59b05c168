//! Reregistration: changes a region in place (`ibv_rereg_mr`).
//!
//! A failed `ibv_rereg_mr` leaves the region unchanged, changed, or in an unknown state. C tells
//! the three apart by an error number. Here they are variants of the error, and in the unknown
//! state the region comes back as an [`UnusableMemoryRegion`].

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{ibv_mr, ibv_rereg_mr_err_code as Code, ibv_rereg_mr_flags as Flags};

use super::{MemoryKind, MemoryRegion};
use crate::error::ConsumeError;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{AccessFlags, Unsupported};

/// The attributes of a region to change; the others stay.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MemoryRegionChange {
    translation: Option<(*mut u8, usize)>,
    pd: Option<ProtectionDomain>,
    access: Option<AccessFlags>,
}

// SAFETY: the pointer is a plain value here, which only the unsafe `rereg_mr` passes on.
unsafe impl Send for MemoryRegionChange {}
// SAFETY: the pointer is a plain value here, which only the unsafe `rereg_mr` passes on.
unsafe impl Sync for MemoryRegionChange {}

impl MemoryRegionChange {
    /// A change of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets other memory (`IBV_REREG_MR_CHANGE_TRANSLATION`), addressed by its own addresses.
    pub fn setup_translation(&mut self, ptr: *mut u8, len: usize) -> &mut Self {
        self.translation = Some((ptr, len));
        self
    }

    /// Sets another protection domain (`IBV_REREG_MR_CHANGE_PD`).
    pub fn setup_pd(&mut self, pd: &ProtectionDomain) -> &mut Self {
        self.pd = Some(pd.clone());
        self
    }

    /// Sets other permissions (`IBV_REREG_MR_CHANGE_ACCESS`).
    pub fn setup_access(&mut self, access: AccessFlags) -> &mut Self {
        self.access = Some(access);
        self
    }

    fn flags(&self) -> Flags {
        let bit = |is_there: bool, flag: Flags| if is_there { flag.0 } else { 0 };
        Flags(
            bit(self.translation.is_some(), Flags::IBV_REREG_MR_CHANGE_TRANSLATION)
                | bit(self.pd.is_some(), Flags::IBV_REREG_MR_CHANGE_PD)
                | bit(self.access.is_some(), Flags::IBV_REREG_MR_CHANGE_ACCESS),
        )
    }
}

impl MemoryRegion {
    /// Changes memory, domain or permissions of the region (`ibv_rereg_mr`), in place if the device
    /// can. The keys may be different afterwards.
    ///
    /// # Safety
    ///
    /// - From now on, the contract of [`reg_mr`](ProtectionDomain::reg_mr) holds for the new
    ///   memory, or for the old memory with the new permissions.
    /// - The contract also holds for the old memory until this succeeds, or until the region in the
    ///   error has been deregistered.
    ///
    /// # Errors
    ///
    /// [`ReregisterMemoryRegionError`] states the region's condition, and returns it. Only memory
    /// of the program can be changed.
    ///
    /// # References
    ///
    /// `man ibv_rereg_mr`
    pub unsafe fn rereg_mr(
        mut self,
        change: &MemoryRegionChange,
    ) -> Result<Self, ReregisterMemoryRegionError> {
        let flags = change.flags();
        let refused = |region, source| ReregisterMemoryRegionError::Unchanged { region, source };
        if !matches!(self.kind(), MemoryKind::Program) || flags.0 == 0 {
            return Err(refused(self, io::ErrorKind::InvalidInput.into()));
        }
        if change.pd.as_ref().is_some_and(|pd| pd.context() != self.pd.context()) {
            return Err(ReregisterMemoryRegionError::OtherContext { region: self });
        }
        let (ptr, len) = change.translation.unwrap_or((ptr::null_mut(), 0));
        let pd = change.pd.as_ref().map_or(ptr::null_mut(), |pd| pd.as_raw().as_ptr());
        let access = change.access.map_or(0, |access| access.bits().cast_signed());
        let rereg = self.pd.context().provider().verbs().ibv_rereg_mr;
        // SAFETY: region and domain live and are of one context; the caller answers for the memory.
        let result = unsafe { rereg(self.mr.as_ptr(), flags.0.cast_signed(), pd, ptr.cast(), len, access) };
        let source = io::Error::last_os_error();
        match Code(result) {
            Code(0) => {
                self.has_changed(change);
                Ok(self)
            }
            Code::IBV_REREG_MR_ERR_INPUT | Code::IBV_REREG_MR_ERR_DONT_FORK_NEW => Err(refused(self, source)),
            Code::IBV_REREG_MR_ERR_DO_FORK_OLD => {
                self.has_changed(change);
                Err(ReregisterMemoryRegionError::Changed { region: self, source })
            }
            _ => Err(self.left_behind(change, source)),
        }
    }

    fn has_changed(&mut self, change: &MemoryRegionChange) {
        if let Some((ptr, len)) = change.translation {
            (self.ptr, self.len, self.iova) = (ptr, len, ptr.addr() as u64);
        }
        if let Some(pd) = &change.pd {
            self.pd = pd.clone();
        }
        self.access = change.access.unwrap_or(self.access);
        // SAFETY: `self` keeps the region alive, and every release's struct has these fields.
        (self.lkey, self.rkey) = unsafe { ((*self.mr.as_ptr()).lkey, (*self.mr.as_ptr()).rkey) };
    }

    #[cold]
    fn left_behind(self, change: &MemoryRegionChange, source: io::Error) -> ReregisterMemoryRegionError {
        let unsupported = Unsupported::is_meant_by(&source)
            .then(|| Unsupported::new(self.pd.context(), "ibv_rereg_mr", "change of memory regions"));
        let region = UnusableMemoryRegion { region: self, other_pd: change.pd.clone() };
        match unsupported {
            Some(source) => ReregisterMemoryRegionError::Unsupported { region, source: Box::new(source) },
            None => ReregisterMemoryRegionError::Unusable { region, source },
        }
    }
}

/// A region that a failed change has left in an unknown state: old, new, or neither. It can only be
/// deregistered, which dropping it does.
///
/// Until that has succeeded, the device may still access both the old memory and the new.
pub struct UnusableMemoryRegion {
    region: MemoryRegion,
    /// The domain that the change named. The region may belong to it now, so it must be freed after
    /// the region.
    other_pd: Option<ProtectionDomain>,
}

impl UnusableMemoryRegion {
    /// Deregisters it now (`ibv_dereg_mr`), and returns the error that a drop would only log.
    ///
    /// # Errors
    ///
    /// Fails if the device did not release the memory; the region comes back with the error.
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let Self { region, other_pd } = self;
        region.close().map_err(|ConsumeError { object: region, error }| ConsumeError {
            object: Self { region, other_pd },
            error,
        })
    }

    /// The protection domain that it belonged to before the change.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.region.pd
    }

    /// The protection domain that the change named, if any.
    pub fn other_pd(&self) -> Option<&ProtectionDomain> {
        self.other_pd.as_ref()
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// deregister it.
    pub fn as_raw(&self) -> NonNull<ibv_mr> {
        self.region.mr
    }
}

impl fmt::Debug for UnusableMemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnusableMemoryRegion").finish_non_exhaustive()
    }
}

/// A region could not be changed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReregisterMemoryRegionError {
    /// The new domain is of another context. The region is as it was.
    #[error("the protection domain is of another context than the memory region, which is as it was")]
    OtherContext {
        /// The memory region, unchanged.
        region: MemoryRegion,
    },
    /// Nothing has changed (`IBV_REREG_MR_ERR_INPUT`, `IBV_REREG_MR_ERR_DONT_FORK_NEW`).
    #[error("ibv_rereg_mr failed: {source}; the memory region is as it was")]
    Unchanged {
        /// The region, as it was.
        region: MemoryRegion,
        /// The error number of `ibv_rereg_mr`.
        source: io::Error,
    },
    /// All has changed, but a forked child will not have the old memory
    /// (`IBV_REREG_MR_ERR_DO_FORK_OLD`).
    #[error(
        "ibv_rereg_mr: {source}; the memory region has changed, but the old memory is kept from forked children"
    )]
    Changed {
        /// The region, changed.
        region: MemoryRegion,
        /// The error number of `ibv_rereg_mr`.
        source: io::Error,
    },
    /// The region must not be used any more (`IBV_REREG_MR_ERR_CMD`,
    /// `IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW`, and numbers that this crate does not know).
    #[error("ibv_rereg_mr failed: {source}; the memory region cannot be used any more")]
    Unusable {
        /// What is left of it.
        region: UnusableMemoryRegion,
        /// The error number of `ibv_rereg_mr`.
        source: io::Error,
    },
    /// The device cannot change regions. By the letter of the man page this one must not be used
    /// any more.
    #[error("{source}; the memory region cannot be used any more")]
    Unsupported {
        /// What is left of it.
        region: UnusableMemoryRegion,
        /// What there is not.
        source: Box<Unsupported>,
    },
}

debug_as_text!(ReregisterMemoryRegionError);
