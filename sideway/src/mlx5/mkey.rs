//! Memory keys: memory of several regions, behind one key.
//!
//! # Safety
//!
//! `mkey` of [`MKey`] is what `mlx5dv_create_mkey` made, which only the drop and `close` destroy. What the library keeps behind it is
//! written by requests that configure the key, which borrow it mutably; and by whoever polls the completion of
//! a signature error. That is why [`MKey::check`] and the requests about keys with signatures are unsafe.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::mlx5dv;
use rdma_mummy_sys::types::{
    mlx5dv_mkey, mlx5dv_mkey_err, mlx5dv_mkey_err_type as E, mlx5dv_mkey_init_attr,
    mlx5dv_mkey_init_attr_flags as F,
};

use super::DirectVerbs;
use crate::error::{ConsumeError, Error};
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{Unsupported, check};

c_flags! {
    /// What a memory key can be configured with (`mlx5dv_mkey_init_attr_flags`). That it is an indirect one goes without
    /// saying: there are no others.
    pub struct MKeyFlags(u32) {
        /// [Signatures](super::BlockSignature) of blocks.
        BlockSignature = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE.0,
        /// [Encryption](super::Crypto). Without having been configured with it such a key is good for nothing.
        Crypto = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_CRYPTO.0,
        /// The low eight bits of the key can be changed, by requests in the device's own format.
        UpdateTag = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_UPDATE_TAG.0,
        /// A peer can take the key away, by a [SEND](crate::ibverbs::queue_pair::WorkRequestHandle::setup_send_inv).
        RemoteInvalidate = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE.0,
    }
}

/// A memory key (`mlx5dv_mkey`): one key for memory that lies in pieces, in regions of its domain.
///
/// A new key leads nowhere. A request [configures](crate::ibverbs::queue_pair::WorkRequestHandle::setup_mkey_configure) it: which
/// memory, in which order, and what may be done to it. What is posted behind that in the same queue finds it so. Then
/// the key stands for all of the memory, as if that were in one piece. **Addresses begin at 0**: what requests name, here and at
/// peers, is how far into the whole a byte is.
///
/// So queue pairs and shared receive queues whose requests name the key as their local one must not have small messages put into
/// the completion: make pairs with [`DisableScatterToCqe`](super::QueuePairCreateFlags::DisableScatterToCqe).
///
/// The device has to be [opened](DirectVerbs::open) for this. Dropping the key takes the memory away from peers.
///
/// ```no_run
/// use sideway::ibverbs::AccessFlags;
/// use sideway::ibverbs::memory_region::MemoryRegion;
/// use sideway::ibverbs::protection_domain::ProtectionDomain;
/// use sideway::ibverbs::queue_pair::{
///     PostSendGuard, QueuePair, QueuePairBuilder, ScatterGatherEntry, WorkRequestFlags,
/// };
/// use sideway::mlx5::{DirectOperationFlags, DirectVerbs, MKeyConfiguration, MKeyFlags, QueuePairCreateFlags};
///
/// # fn configure(
/// #     mlx5: &DirectVerbs, pd: &ProtectionDomain, description: &QueuePairBuilder, header: &MemoryRegion, body: &MemoryRegion,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut pair = mlx5
///     .create_qp_builder(description)
///     .setup_create_flags(QueuePairCreateFlags::DisableScatterToCqe)
///     .setup_direct_send_ops_flags(DirectOperationFlags::MKeyConfigure)
///     .build_direct()?;
/// // ... connect ...
/// let mut key = mlx5.create_mkey(pd, 4, MKeyFlags::empty())?;
/// let rkey = key.rkey();
///
/// let pieces = [
///     ScatterGatherEntry::new(header.lkey(), header.get_ptr() as u64, 64),
///     ScatterGatherEntry::new(body.lkey(), body.get_ptr() as u64, 4096),
/// ];
/// let mut configuration = MKeyConfiguration::new();
/// configuration.setup_access_flags(AccessFlags::RemoteRead).setup_layout_list(&pieces);
/// let mut guard = pair.start_post_send();
/// let request = guard.construct_wr(1, WorkRequestFlags::Signaled);
/// // SAFETY: the regions cover the pieces, nobody writes to them as long as the key lives, and the queue is empty.
/// unsafe { request.setup_mkey_configure(&mut key, &configuration) };
/// guard.post()?;
/// // A peer that is told `rkey` reads 4160 bytes from address 0 on.
/// # let _ = rkey;
/// # Ok(()) }
/// ```
pub struct MKey {
    mkey: NonNull<mlx5dv_mkey>,
    lkey: u32,
    rkey: u32,
    max_entries: u16,
    flags: MKeyFlags,
    pd: ProtectionDomain,
    direct: DirectVerbs,
}

// SAFETY: a key is a number; what the library keeps behind it is changed with `&mut` only, but for what `check` asks about.
unsafe impl Send for MKey {}
// SAFETY: a key is a number; what the library keeps behind it is changed with `&mut` only, but for
// what `check` asks about; `&self` reads what does not change.
unsafe impl Sync for MKey {}

impl DirectVerbs {
    /// Makes a memory key that leads nowhere yet (`mlx5dv_create_mkey`), for layouts of `max_entries` pieces: a list takes one entry
    /// for each, interleaved memory one more.
    ///
    /// # Errors
    ///
    /// The library is too old, or the device has no such keys, or was opened without what they need
    /// ([`Unsupported`]; see [`open`](Self::open)); or there are no more of them.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_mkey`
    pub fn create_mkey(
        &self,
        pd: &ProtectionDomain,
        max_entries: u16,
        flags: MKeyFlags,
    ) -> Result<MKey, Error> {
        const VERB: &str = "mlx5dv_create_mkey";
        if pd.context() != self.context() {
            return Err(Error::other_context(VERB, super::OTHER_DOMAIN));
        }
        let what = || format!("memory keys with {flags:?}");
        let missing = |symbol| Unsupported::missing(self.context(), what(), symbol);
        let create = self.as_raw().mlx5dv_create_mkey().map_err(missing)?;
        // Without it the key could not be destroyed.
        self.as_raw().mlx5dv_destroy_mkey().map_err(missing)?;
        let create_flags = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT.0 | flags.bits();
        let mut attr = mlx5dv_mkey_init_attr { pd: pd.as_raw().as_ptr(), create_flags, max_entries };
        // SAFETY: the domain lives and is mlx5's, and the attributes are initialised.
        let mkey = unsafe { create(&raw mut attr) };
        let Some(mkey) = NonNull::new(mkey) else {
            let source = io::Error::last_os_error();
            return Err(Error::of_device(self.context(), VERB, what(), source)
                .with("max_entries", max_entries)
                .debug("flags", flags)
                .remedy("the device has to be opened by `mlx5::DirectVerbs::open`"));
        };
        // SAFETY: the key was made just now; its struct is as old as the function.
        let mlx5dv_mkey { lkey, rkey } = unsafe { mkey.as_ptr().read() };
        let (pd, direct) = (pd.clone(), self.clone());
        Ok(MKey { mkey, lkey, rkey, max_entries: attr.max_entries, flags, pd, direct })
    }
}

impl MKey {
    /// The key by which local work requests name the memory.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key by which a peer's work requests name the memory.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// For how many entries there is room, which may be more than were asked for.
    pub fn max_entries(&self) -> u16 {
        self.max_entries
    }

    /// What the key can be configured with.
    pub fn flags(&self) -> MKeyFlags {
        self.flags
    }

    /// The domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    pub fn as_raw(&self) -> NonNull<mlx5dv_mkey> {
        self.mkey
    }

    /// The signature error that was found last in what went through the key, if there was one (`mlx5dv_mkey_check`). It is told
    /// once. The key needs [`BlockSignature`](MKeyFlags::BlockSignature).
    ///
    /// Ask when the transfer has ended: when its completion has been polled, if it was one of this side; when the peer has said
    /// so, if it was the peer's, and what the device says of it has been polled. The completion of the transfer itself tells nothing of
    /// signatures.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// The library notes an error while a completion queue is polled, which it does not guard against this. So nobody polls in
    /// the meantime a completion queue of a pair through which memory behind the key may be reached by a request that has not
    /// completed: here, or at a peer who knows the key.
    ///
    /// # Errors
    ///
    /// The library is too old ([`Unsupported`]); or the key has no signatures, or the error is one that the library does not know.
    ///
    /// # References
    ///
    /// `man mlx5dv_mkey_check`
    pub unsafe fn check(&mut self) -> Result<Option<SignatureError>, Error> {
        const WHAT: &str = "signatures of blocks";
        let context = self.pd.context();
        let lib = self.direct.as_raw();
        lib._mlx5dv_mkey_check().map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        let mut error = mlx5dv_mkey_err::default();
        // SAFETY: the key lives, is this library's, and nobody else asks or configures (`&mut`) or notes an error (the caller).
        let result = check(unsafe { mlx5dv::mlx5dv_mkey_check(lib, self.mkey.as_ptr(), &raw mut error) });
        match result {
            Ok(()) => Ok(SignatureError::of(&error)),
            Err(source) => Err(Error::of_device(context, "mlx5dv_mkey_check", WHAT, source)
                .with("lkey", format_args!("{:#x}", self.lkey))),
        }
    }

    /// Destroys the key now (`mlx5dv_destroy_mkey`), and says how that went, which a drop only logs. When it has succeeded, nobody
    /// reaches the memory by it.
    ///
    /// # Errors
    ///
    /// The library refuses. The key comes back.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_mkey`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let mut mkey = ManuallyDrop::new(self);
        // SAFETY: the key lives, and is taken apart below only if this succeeded.
        match unsafe { mkey.destroy() } {
            Ok(()) => {
                // SAFETY: the key's own drop does not run, so these are the only ones of its handles.
                drop(unsafe { (ptr::read(&raw const mkey.pd), ptr::read(&raw const mkey.direct)) });
                Ok(())
            }
            Err(source) => Err(ConsumeError {
                object: ManuallyDrop::into_inner(mkey),
                error: Error::os("mlx5dv_destroy_mkey", source).remedy("the key still exists"),
            }),
        }
    }

    /// # Safety
    ///
    /// The key lives; if this succeeds it does not any more.
    unsafe fn destroy(&mut self) -> io::Result<()> {
        match self.direct.as_raw().mlx5dv_destroy_mkey() {
            // SAFETY: the caller says that the key lives.
            Ok(destroy) => check(unsafe { destroy(self.mkey.as_ptr()) }),
            // It was looked for when the key was made.
            Err(symbol) => Err(io::Error::other(symbol)),
        }
    }
}

impl Drop for MKey {
    fn drop(&mut self) {
        // SAFETY: the key lives until here.
        if let Err(error) = unsafe { self.destroy() } {
            log::error!("mlx5dv_destroy_mkey failed, the key {:#x} stays: {error}", self.lkey);
            // The key is still there, so what it depends on has to stay.
            std::mem::forget((self.pd.clone(), self.direct.clone()));
        }
    }
}

impl fmt::Debug for MKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MKey")
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .field("max_entries", &self.max_entries)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

c_enum! {
    /// Which part of a signature was wrong (`mlx5dv_mkey_err_type`). Of several in one block the first is told, in this order: guard,
    /// application tag, reference tag.
    pub struct SignatureErrorType(u32) {
        /// The CRC or the checksum.
        BadGuard = E::MLX5DV_MKEY_SIG_BLOCK_BAD_GUARD.0,
        /// The reference tag, of T10-DIF.
        BadReferenceTag = E::MLX5DV_MKEY_SIG_BLOCK_BAD_REFTAG.0,
        /// The application tag, of T10-DIF.
        BadApplicationTag = E::MLX5DV_MKEY_SIG_BLOCK_BAD_APPTAG.0,
    }
}

display_as_debug!(SignatureErrorType);

/// A signature that was not what it should be (`mlx5dv_mkey_err`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureError {
    /// Which part of it.
    pub error_type: SignatureErrorType,
    /// What comes of the bytes that were transferred.
    pub actual_value: u64,
    /// What the signature says.
    pub expected_value: u64,
    /// Where the block begins, in bytes from the transfer's beginning.
    pub offset: u64,
}

impl SignatureError {
    fn of(error: &mlx5dv_mkey_err) -> Option<Self> {
        if error.err_type == E::MLX5DV_MKEY_NO_ERR {
            return None;
        }
        // SAFETY: the union has this one member, of plain numbers, and was zeroed.
        let told = unsafe { error.err.sig };
        Some(Self {
            error_type: SignatureErrorType::from_raw(error.err_type.0),
            actual_value: told.actual_value,
            expected_value: told.expected_value,
            offset: told.offset,
        })
    }
}
