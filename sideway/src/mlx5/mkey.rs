//! Memory keys: memory of several regions behind one key.
//!
//! # Safety
//!
//! `mkey` of [`MKey`] is the result of `mlx5dv_create_mkey`, and only its drop and `close` destroy
//! it. The library's data behind it has two writers. Requests that configure the key borrow it
//! mutably. A thread that polls the completion of a signature error also writes it. That is why
//! [`MKey::check`] and the requests about keys with signatures are unsafe.

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
use crate::direct::check;
use crate::error::{ConsumeError, Error};
use crate::ibverbs::Unsupported;
use crate::ibverbs::protection_domain::ProtectionDomain;

c_flags! {
    /// Features that a memory key can be configured with (`mlx5dv_mkey_init_attr_flags`). The flag
    /// for indirect keys is always set, because the library has no other keys.
    pub struct MKeyFlags(u32) {
        /// Block [signatures](super::BlockSignature).
        BlockSignature = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE.0,
        /// [Encryption](super::Crypto). Such a key cannot be used until encryption is configured.
        Crypto = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_CRYPTO.0,
        /// Requests in the device's own format can change the low eight bits of the key.
        UpdateTag = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_UPDATE_TAG.0,
        /// A peer can invalidate the key with a
        /// [SEND](crate::ibverbs::queue_pair::WorkRequestHandle::setup_send_inv).
        RemoteInvalidate = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE.0,
    }
}

/// A memory key (`mlx5dv_mkey`): one key for several pieces of memory, in regions of its domain.
///
/// A new key refers to no memory. A request
/// [configures](crate::ibverbs::queue_pair::WorkRequestHandle::setup_mkey_configure) it: the
/// memory, its order, and the permissions. Requests posted after it in the same queue use the new
/// configuration. Then the key refers to all of the memory as if it were contiguous. **Addresses
/// begin at 0**: requests here and at peers use the offset of a byte in the whole.
///
/// If requests use the key as their local key, small messages must not be put into the completion.
/// So make their queue pairs, and the pairs of their shared receive queues, with
/// [`DisableScatterToCqe`](super::QueuePairCreateFlags::DisableScatterToCqe).
///
/// The device must be opened by [`DirectVerbs::open`]. Dropping the key revokes the peers' access.
///
/// ```no_run
/// use sideway::ibverbs::AccessFlags;
/// use sideway::ibverbs::memory_region::MemoryRegion;
/// use sideway::ibverbs::protection_domain::ProtectionDomain;
/// use sideway::ibverbs::queue_pair::{
///     PostSendGuard, QueuePair, QueuePairBuilder, ScatterGatherEntry, WorkRequestFlags,
/// };
/// use sideway::mlx5::{
///     DirectOperationFlags, DirectVerbs, MKeyConfiguration, MKeyFlags, QueuePairCreateFlags,
/// };
///
/// # fn configure(
/// #     mlx5: &DirectVerbs, pd: &ProtectionDomain, description: &QueuePairBuilder,
/// #     header: &MemoryRegion, body: &MemoryRegion,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut pair = mlx5
///     .create_qp_builder(description)
///     .setup_create_flags(QueuePairCreateFlags::DisableScatterToCqe)
///     .setup_direct_send_ops_flags(DirectOperationFlags::MKeyConfigure)
///     .build_direct()?;
///
/// // ... connect ...
/// let mut key = mlx5.create_mkey(pd, 4, MKeyFlags::empty())?;
/// let rkey = key.rkey();
///
/// let pieces = [
///     ScatterGatherEntry::new(header.lkey(), header.get_ptr() as u64, 64),
///     ScatterGatherEntry::new(body.lkey(), body.get_ptr() as u64, 4096),
/// ];
///
/// let mut configuration = MKeyConfiguration::new();
/// configuration.setup_access_flags(AccessFlags::RemoteRead).setup_layout_list(&pieces);
///
/// let mut guard = pair.start_post_send();
/// let request = guard.construct_wr(1, WorkRequestFlags::Signaled);
/// // SAFETY: the regions cover the pieces, nobody writes to them as long as the key lives, and the
/// // queue is empty.
/// unsafe { request.setup_mkey_configure(&mut key, &configuration) };
/// guard.post()?;
/// // A peer that knows `rkey` reads 4160 bytes from address 0 on.
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

// SAFETY: the keys are plain values. The library's data behind the object is changed through `&mut`
// only, except as `check`'s contract describes.
unsafe impl Send for MKey {}
// SAFETY: `&self` reads only data that does not change, except as `check`'s contract describes.
unsafe impl Sync for MKey {}

impl DirectVerbs {
    /// Makes a memory key that refers to no memory yet (`mlx5dv_create_mkey`), for layouts of up to
    /// `max_entries` entries. A list takes one entry for each piece, interleaved memory one more.
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the library is too old, or if the device has no such keys. The
    /// same applies if it was opened without the access for them (see [`open`](Self::open)). Also
    /// fails if the device has no more keys.
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
        // Without `mlx5dv_destroy_mkey` the key could not be destroyed.
        self.as_raw().mlx5dv_destroy_mkey().map_err(missing)?;
        let create_flags = F::MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT.0 | flags.bits();
        let mut attr = mlx5dv_mkey_init_attr { pd: pd.as_raw().as_ptr(), create_flags, max_entries };
        // SAFETY: the borrow keeps the domain alive, which belongs to mlx5, and the attributes are
        // initialised.
        let mkey = unsafe { create(&raw mut attr) };
        let Some(mkey) = NonNull::new(mkey) else {
            let source = io::Error::last_os_error();
            return Err(Error::of_device(self.context(), VERB, what(), source)
                .with("max_entries", max_entries)
                .debug("flags", flags)
                .remedy("the device has to be opened by `mlx5::DirectVerbs::open`"));
        };
        // SAFETY: the library made the key just now; its struct is as old as the function.
        let mlx5dv_mkey { lkey, rkey } = unsafe { mkey.as_ptr().read() };
        let (pd, direct) = (pd.clone(), self.clone());
        Ok(MKey { mkey, lkey, rkey, max_entries: attr.max_entries, flags, pd, direct })
    }
}

impl MKey {
    /// The key for the memory in local work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for the memory in a peer's work requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The maximum number of entries, which may be more than requested.
    pub fn max_entries(&self) -> u16 {
        self.max_entries
    }

    /// The features that the key can be configured with.
    pub fn flags(&self) -> MKeyFlags {
        self.flags
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<mlx5dv_mkey> {
        self.mkey
    }

    /// Returns the last signature error that was found in data through the key, if any, and clears
    /// it (`mlx5dv_mkey_check`). The key needs [`BlockSignature`](MKeyFlags::BlockSignature).
    ///
    /// Call it when the transfer has ended. For a local transfer, its completion must have been
    /// polled. For a peer's transfer, the peer must have reported its end, and the device's
    /// completions must have been polled. The completion of the transfer itself contains nothing
    /// about signatures.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// The library records an error while a completion queue is polled, without a lock against this
    /// call. So during the call, nobody may poll a completion queue of certain pairs: those with
    /// outstanding requests, here or at a peer that knows the key, that may access memory behind
    /// the key.
    ///
    /// # Errors
    ///
    /// Fails if the library is too old ([`Unsupported`]), if the key has no signatures, or if the
    /// library does not know the error.
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
        // SAFETY: `self` keeps the key alive, which belongs to this library. `&mut self` excludes
        // other checks and configurations, and the caller guarantees that no poll records an error.
        let result = check(unsafe { mlx5dv::mlx5dv_mkey_check(lib, self.mkey.as_ptr(), &raw mut error) });
        match result {
            Ok(()) => Ok(SignatureError::of(&error)),
            Err(source) => Err(Error::of_device(context, "mlx5dv_mkey_check", WHAT, source)
                .with("lkey", format_args!("{:#x}", self.lkey))),
        }
    }

    /// Destroys the key now (`mlx5dv_destroy_mkey`), and returns the error that a drop would only
    /// log. After success, no request can access the memory through it.
    ///
    /// # Errors
    ///
    /// Fails if the library refuses. The key comes back.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_mkey`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let mut mkey = ManuallyDrop::new(self);
        // SAFETY: `mkey` owns the C object, and is taken apart below only if this call succeeded.
        match unsafe { mkey.destroy() } {
            Ok(()) => {
                // SAFETY: `mkey` is `ManuallyDrop`, so its own drop does not run, and these are the
                // only reads of its handles.
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
    /// The key must be alive. If this succeeds, the key is dead and must not be used again.
    unsafe fn destroy(&mut self) -> io::Result<()> {
        match self.direct.as_raw().mlx5dv_destroy_mkey() {
            // SAFETY: the caller guarantees that the key is alive.
            Ok(destroy) => check(unsafe { destroy(self.mkey.as_ptr()) }),
            // Not expected: `create_mkey` checked that the function exists.
            Err(symbol) => Err(io::Error::other(symbol)),
        }
    }
}

impl Drop for MKey {
    fn drop(&mut self) {
        // SAFETY: `self` owned the key until here, and nothing uses it after the drop.
        if let Err(error) = unsafe { self.destroy() } {
            log::error!("mlx5dv_destroy_mkey failed, the key {:#x} stays: {error}", self.lkey);
            // The library still has the key, so the objects that it depends on must stay alive too.
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
    /// The wrong part of a signature (`mlx5dv_mkey_err_type`). If a block has several, the first is
    /// reported, in this order: guard, application tag, reference tag.
    pub struct SignatureErrorType(u32) {
        /// The guard: the CRC or the checksum.
        BadGuard = E::MLX5DV_MKEY_SIG_BLOCK_BAD_GUARD.0,
        /// The reference tag of T10-DIF.
        BadReferenceTag = E::MLX5DV_MKEY_SIG_BLOCK_BAD_REFTAG.0,
        /// The application tag of T10-DIF.
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
        // SAFETY: the union has one member, of plain numbers, and was zeroed.
        let told = unsafe { error.err.sig };
        Some(Self {
            error_type: SignatureErrorType::from_raw(error.err_type.0),
            actual_value: told.actual_value,
            expected_value: told.expected_value,
            offset: told.offset,
        })
    }
}
