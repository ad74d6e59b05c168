//! Requests that configure a memory key: its memory, its permissions, signatures and encryption.
//!
//! The invariants for the unsafe code are at the head of `operations.rs`.

use rdma_mummy_sys::types::{
    ibv_sge, mlx5dv_mkey_conf_attr, mlx5dv_mkey_conf_flags as F, mlx5dv_mr_interleaved, mlx5dv_qp_ex,
};
use rdma_mummy_sys::{mlx5dv, verbs};

use super::operations::{DirectGuard, DirectRefusal, DirectRequest};
use super::{BlockSignature, Crypto, DirectOperationFlags, DirectRequestError, MKey, MKeyFlags};
use crate::ibverbs::AccessFlags;
use crate::ibverbs::queue_pair::{
    PostSendError, ScatterGatherEntry, SendOperationFlags, WorkRequestHandle, WorkRequestOperationType,
};

/// One piece of interleaved memory (`mlx5dv_mr_interleaved`).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct InterleavedEntry(mlx5dv_mr_interleaved);

impl InterleavedEntry {
    /// The maximum number of bytes that an entry takes and skips together: libraries use only 16
    /// bits of the number (rdma-core up to 65).
    pub const LONGEST: u64 = u16::MAX as u64;

    /// `bytes_count` bytes from `addr` on, in the region with the key `lkey`; then `bytes_skip`
    /// bytes are skipped before the next round. Their sum is at most [`LONGEST`](Self::LONGEST).
    /// Making an entry is safe; giving it to a device is not.
    pub const fn new(lkey: u32, addr: u64, bytes_count: u32, bytes_skip: u32) -> Self {
        Self(mlx5dv_mr_interleaved { addr, bytes_count, bytes_skip, lkey })
    }
}

impl std::fmt::Debug for InterleavedEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mlx5dv_mr_interleaved { addr, bytes_count, bytes_skip, lkey } = self.0;
        write!(
            f,
            "InterleavedEntry {{ addr: {addr:#x}, bytes_count: {bytes_count}, bytes_skip: {bytes_skip}, lkey: {lkey:#x} }}"
        )
    }
}

/// The arrangement of the memory behind a key.
#[derive(Clone, Copy, Debug)]
enum Layout<'a> {
    /// Pieces one after the other.
    List(&'a [ScatterGatherEntry]),
    /// One part of each piece in turn, `repeat_count` times.
    Interleaved { repeat_count: u32, entries: &'a [InterleavedEntry] },
}

impl Layout<'_> {
    /// Checks that the key has enough entries, and that the device can count them.
    fn check(&self, mkey: &MKey) -> Result<(), DirectRequestError> {
        let given = match self {
            Self::List(pieces) => pieces.len(),
            // One entry for the common header.
            Self::Interleaved { entries, .. } => entries.len() + 1,
        };
        let limit = mkey.max_entries();
        if given > usize::from(limit) {
            return Err(DirectRequestError::TooManyEntries { given, limit });
        }
        let Self::Interleaved { entries, .. } = self else { return Ok(()) };
        for (entry, InterleavedEntry(step)) in entries.iter().enumerate() {
            let given = u64::from(step.bytes_count) + u64::from(step.bytes_skip);
            if given > InterleavedEntry::LONGEST {
                return Err(DirectRequestError::InterleavedTooLong { entry, given });
            }
        }
        Ok(())
    }
}

/// The configuration of a memory key (`mlx5dv_wr_mkey_configure` and its setters). Attributes that
/// are not set stay unchanged. A new key has neither layout nor permissions.
#[derive(Clone, Debug, Default)]
pub struct MKeyConfiguration<'a> {
    reset_signature: bool,
    access: Option<AccessFlags>,
    layout: Option<Layout<'a>>,
    signature: Option<BlockSignature>,
    crypto: Option<Crypto<'a>>,
}

impl<'a> MKeyConfiguration<'a> {
    /// A configuration that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the permissions (`mlx5dv_wr_set_mkey_access_flags`), which replace the previous ones:
    /// `LocalWrite`, `RemoteRead`, `RemoteWrite`, `RemoteAtomic`. With others, posting the list
    /// fails with `EINVAL`.
    pub fn setup_access_flags(&mut self, access: AccessFlags) -> &mut Self {
        self.access = Some(access);
        self
    }

    /// Sets a layout of pieces one after the other (`mlx5dv_wr_set_mkey_layout_list`), which
    /// replaces the previous one.
    ///
    /// A request has room for four pieces. It has room for more if the pair was made for inline
    /// data, at 16 bytes for each piece.
    pub fn setup_layout_list(&mut self, pieces: &'a [ScatterGatherEntry]) -> &mut Self {
        self.layout = Some(Layout::List(pieces));
        self
    }

    /// Sets an interleaved layout (`mlx5dv_wr_set_mkey_layout_interleaved`), which replaces the
    /// previous one: one part of each piece in turn, `repeat_count` times.
    ///
    /// A request has room for three pieces. It has room for more if the pair was made for inline
    /// data, at 16 bytes for each piece and 16 bytes in common.
    pub fn setup_layout_interleaved(
        &mut self,
        repeat_count: u32,
        entries: &'a [InterleavedEntry],
    ) -> &mut Self {
        self.layout = Some(Layout::Interleaved { repeat_count, entries });
        self
    }

    /// Sets the block signatures (`mlx5dv_wr_set_mkey_sig_block`), which replace the previous ones.
    /// The key must be made [for signatures](MKeyFlags::BlockSignature). The request needs room for
    /// 64 bytes of inline data after the layout, whose size is rounded up to a multiple of 64
    /// bytes.
    pub fn setup_sig_block(&mut self, signature: BlockSignature) -> &mut Self {
        self.signature = Some(signature);
        self
    }

    /// Removes all signatures (`MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR`), except those that
    /// [`setup_sig_block`](Self::setup_sig_block) sets. It must be used after a list that
    /// configured signatures and was not posted, or failed.
    pub fn setup_reset_signature(&mut self) -> &mut Self {
        self.reset_signature = true;
        self
    }

    /// Sets the encryption (`mlx5dv_wr_set_mkey_crypto`), which replaces the previous one. The key
    /// must be made [for encryption](MKeyFlags::Crypto). The request needs room for 64 bytes of
    /// inline data, as for a signature.
    pub fn setup_crypto(&mut self, crypto: Crypto<'a>) -> &mut Self {
        self.crypto = Some(crypto);
        self
    }

    fn check(&self, mkey: &MKey) -> Result<(), DirectRefusal> {
        if let Some(layout) = &self.layout {
            layout.check(mkey)?;
        }
        if self.crypto.is_some_and(|crypto| crypto.dek.pd().context() != mkey.pd().context()) {
            return Err(DirectRefusal::OtherContext);
        }
        for (asked, missing) in [
            (self.signature.is_some(), MKeyFlags::BlockSignature),
            (self.crypto.is_some(), MKeyFlags::Crypto),
        ] {
            if asked && !mkey.flags().contains(missing) {
                return Err(DirectRequestError::KeyWithout { missing }.into());
            }
        }
        match self.signature {
            Some(BlockSignature { memory: None, wire: None, .. }) => {
                Err(DirectRequestError::NoSignature.into())
            }
            _ => Ok(()),
        }
    }

    /// The number of setter calls that follow.
    fn setters(&self) -> u8 {
        let there =
            [self.access.is_some(), self.layout.is_some(), self.signature.is_some(), self.crypto.is_some()];
        there.into_iter().map(u8::from).sum()
    }

    /// Builds the request.
    ///
    /// # Safety
    ///
    /// A list of the pair must be open, and the pair must have the operations, including encryption
    /// if the configuration has any. The key must be alive and not used elsewhere, and must have
    /// passed the check.
    unsafe fn append(&self, qp: *mut mlx5dv_qp_ex, mkey: &mut MKey) {
        let conf_flags = if self.reset_signature { F::MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR.0 } else { 0 };
        let mut attr = mlx5dv_mkey_conf_attr { conf_flags, comp_mask: 0 };
        // SAFETY: the caller guarantees (`# Safety`) an open list, a pair with these operations,
        // and a live key that passed the check. `setters` announces as many setter calls as follow,
        // and they only read their arguments. The lengths fit, being at most `max_entries`.
        unsafe {
            mlx5dv::mlx5dv_wr_mkey_configure(qp, mkey.as_raw().as_ptr(), self.setters(), &raw mut attr);
            if let Some(access) = self.access {
                mlx5dv::mlx5dv_wr_set_mkey_access_flags(qp, access.bits());
            }
            match self.layout {
                Some(Layout::List(pieces)) => {
                    let (count, sge) = raw_list(pieces);
                    mlx5dv::mlx5dv_wr_set_mkey_layout_list(qp, count, sge);
                }
                Some(Layout::Interleaved { repeat_count, entries }) => {
                    let (count, data) = raw_entries(entries);
                    mlx5dv::mlx5dv_wr_set_mkey_layout_interleaved(qp, repeat_count, count, data);
                }
                None => {}
            }
            if let Some(signature) = &self.signature {
                signature.with_raw(|attr| mlx5dv::mlx5dv_wr_set_mkey_sig_block(qp, attr));
            }
            if let Some(crypto) = &self.crypto {
                let attr = crypto.raw();
                mlx5dv::mlx5dv_wr_set_mkey_crypto(qp, &raw const attr);
            }
        }
    }
}

/// A list for C. Its length was compared with the key's entries, so it fits.
fn raw_list(pieces: &[ScatterGatherEntry]) -> (u16, *const ibv_sge) {
    // `ScatterGatherEntry` is transparent over `ibv_sge`.
    (pieces.len() as u16, pieces.as_ptr().cast())
}

fn raw_entries(entries: &[InterleavedEntry]) -> (u16, *const mlx5dv_mr_interleaved) {
    (entries.len() as u16, entries.as_ptr().cast())
}

/// The number of queue places of a request that configures a key. For a key with signatures,
/// libraries add one request for each of the two domains.
fn places(mkey: &MKey) -> usize {
    if mkey.flags().contains(MKeyFlags::BlockSignature) { 3 } else { 1 }
}

impl<'guard, G> WorkRequestHandle<'guard, G> {
    /// Configures a memory key (`mlx5dv_wr_mkey_configure`), with the setters that the
    /// configuration needs: `mlx5dv_wr_set_mkey_access_flags`, `mlx5dv_wr_set_mkey_layout_list`,
    /// `mlx5dv_wr_set_mkey_layout_interleaved`, `mlx5dv_wr_set_mkey_sig_block`,
    /// `mlx5dv_wr_set_mkey_crypto`.
    ///
    /// Requests posted after it in the same queue use the new configuration. Others must wait for
    /// its completion
    /// ([`Driver1`](crate::ibverbs::completion::WorkCompletionOperationType::Driver1)).
    ///
    /// It needs a reliably connected pair that was made [for
    /// it](DirectOperationFlags::MKeyConfigure). The key is borrowed until the list is posted or
    /// dropped, so query its numbers before. If the list is not posted, or posting fails, the
    /// library's view of the key's signatures and encryption is unknown: set or reset them the next
    /// time.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// The following must hold from the call of
    /// [`post`](crate::ibverbs::queue_pair::PostSendGuard::post) on, unless its error says that
    /// this request was not [posted](PostSendError::posted).
    ///
    /// - All memory of the layout stays allocated, no Rust reference to it is used while the device
    ///   may write to it, and no `&mut` while the device may read it. The device may write while a
    ///   local request into the memory is outstanding. With `RemoteWrite` or `RemoteAtomic`, it may
    ///   write as long as any peer knows the key.
    /// - This applies while the key refers to the memory and the regions are registered. The key
    ///   refers to it until another layout, an [invalidation](Self::setup_invalidate_mkey) here or
    ///   by a peer has completed, or until the key has been [destroyed](MKey::close).
    /// - If the key is made for signatures: some pairs have requests outstanding that may access
    ///   memory behind the key, as [`MKey::check`] describes. Nobody polls a completion queue of
    ///   such a pair while this list is built and posted. If the key has been configured with a
    ///   signature, nobody polls one while the key is destroyed either.
    /// - If encryption is set: its data encryption key lives until the memory key is destroyed, or
    ///   until a posted list configured another one.
    ///
    /// The send queue must have a free place for the request, or three if the key is made for
    /// signatures. That is, the number of outstanding requests plus these places must not exceed
    /// [`max_send_wr`](crate::ibverbs::queue_pair::QueuePairCapability::max_send_wr).
    ///
    /// A wrong key of a region, or an address outside of it, is not a safety problem otherwise: the
    /// device rejects it.
    ///
    /// # Errors
    ///
    /// [`post`](crate::ibverbs::queue_pair::PostSendGuard::post) reports them:
    ///
    /// - a [`DirectRequestError`], if the pair does not support such requests, if the key has too
    ///   few entries, or if the key was not made for the configuration;
    /// - [`PostSendError::OtherContext`];
    /// - `ENOMEM`, as for a full queue, if the request has no room for the layout.
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_mkey_configure`, `man mlx5dv_wr_set_mkey_sig_block`, `man
    /// mlx5dv_wr_set_mkey_crypto`
    pub unsafe fn setup_mkey_configure<'queue>(
        self,
        mkey: &'queue mut MKey,
        configuration: &MKeyConfiguration<'_>,
    ) where
        G: DirectGuard<'queue>,
    {
        // SAFETY: the caller keeps this function's contract (`# Safety`). The key is borrowed for
        // as long as the guard borrows its queue.
        unsafe {
            append(
                DirectRequest::of(self),
                DirectOperationFlags::MKeyConfigure,
                mkey,
                |mkey| configuration.check(mkey),
                |qp, mkey| configuration.append(qp, mkey),
            );
        }
    }

    /// Configures a memory key as pieces of memory one after the other (`mlx5dv_wr_mr_list`), with
    /// permissions. It does the same as [`setup_layout_list`](MKeyConfiguration::setup_layout_list)
    /// and [`setup_access_flags`](MKeyConfiguration::setup_access_flags), for pairs that were made
    /// [for this alone](DirectOperationFlags::MrList). [Invalidate](Self::setup_invalidate_mkey) a
    /// key that already refers to memory first.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// The contract of [`setup_mkey_configure`](Self::setup_mkey_configure) applies. The list
    /// itself is copied.
    ///
    /// # Errors
    ///
    /// Fails as [`setup_mkey_configure`](Self::setup_mkey_configure) does.
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`
    pub unsafe fn setup_mr_list<'queue>(
        self,
        mkey: &'queue mut MKey,
        access: AccessFlags,
        pieces: &[ScatterGatherEntry],
    ) where
        G: DirectGuard<'queue>,
    {
        let layout = Layout::List(pieces);
        let list = |qp, mkey: &mut MKey| {
            let (count, sge) = raw_list(pieces);
            // SAFETY: this function's caller keeps the contract of `MKeyConfiguration::append`. The
            // library only reads the list, although its C prototype is not `const`.
            unsafe {
                mlx5dv::mlx5dv_wr_mr_list(qp, mkey.as_raw().as_ptr(), access.bits(), count, sge.cast_mut());
            }
        };
        // SAFETY: the caller keeps this function's contract, which equals that of
        // `setup_mkey_configure`.
        unsafe {
            append(
                DirectRequest::of(self),
                DirectOperationFlags::MrList,
                mkey,
                |mkey| Ok(layout.check(mkey)?),
                list,
            );
        }
    }

    /// Configures a memory key as interleaved memory (`mlx5dv_wr_mr_interleaved`), with
    /// permissions: one part of each piece in turn, `repeat_count` times. It does the same as
    /// [`setup_layout_interleaved`](MKeyConfiguration::setup_layout_interleaved) and
    /// [`setup_access_flags`](MKeyConfiguration::setup_access_flags), for pairs that were made [for
    /// this alone](DirectOperationFlags::MrInterleaved). [Invalidate](Self::setup_invalidate_mkey)
    /// a key that already refers to memory first.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// The contract of [`setup_mkey_configure`](Self::setup_mkey_configure) applies. The entries
    /// themselves are copied.
    ///
    /// # Errors
    ///
    /// Fails as [`setup_mkey_configure`](Self::setup_mkey_configure) does.
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`
    pub unsafe fn setup_mr_interleaved<'queue>(
        self,
        mkey: &'queue mut MKey,
        access: AccessFlags,
        repeat_count: u32,
        entries: &[InterleavedEntry],
    ) where
        G: DirectGuard<'queue>,
    {
        let layout = Layout::Interleaved { repeat_count, entries };
        let interleaved = |qp, mkey: &mut MKey| {
            let ((count, data), mkey) = (raw_entries(entries), mkey.as_raw().as_ptr());
            // SAFETY: this function's caller keeps the contract of `MKeyConfiguration::append`. The
            // library only reads the entries, although its C prototype is not `const`.
            unsafe {
                mlx5dv::mlx5dv_wr_mr_interleaved(
                    qp,
                    mkey,
                    access.bits(),
                    repeat_count,
                    count,
                    data.cast_mut(),
                );
            }
        };
        let operation = DirectOperationFlags::MrInterleaved;
        // SAFETY: the caller keeps this function's contract, which equals that of
        // `setup_mkey_configure`.
        unsafe {
            append(DirectRequest::of(self), operation, mkey, |mkey| Ok(layout.check(mkey)?), interleaved);
        }
    }

    /// Invalidates a memory key (`ibv_wr_local_inv`). After completion, no request can access the
    /// memory through it, and it can be configured again. The pair must be made for it
    /// ([`LocalInvalidate`](SendOperationFlags::LocalInvalidate)).
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// The send queue must have a free place for the request: fewer than
    /// [`max_send_wr`](crate::ibverbs::queue_pair::QueuePairCapability::max_send_wr) are
    /// outstanding.
    ///
    /// # Errors
    ///
    /// [`post`](crate::ibverbs::queue_pair::PostSendGuard::post) reports them:
    /// [`PostSendError::UnsupportedOperation`], [`PostSendError::OtherContext`].
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`, `man ibv_wr_post`
    pub unsafe fn setup_invalidate_mkey<'queue>(self, mkey: &'queue mut MKey)
    where
        G: DirectGuard<'queue>,
    {
        let request = DirectRequest::of(self);
        let can = request.list().queue().send_ops_flags().contains(SendOperationFlags::LocalInvalidate);
        let same = request.context() == mkey.pd().context();
        let check = |index| match (can, same) {
            (false, _) => {
                let operation = WorkRequestOperationType::LocalInvalidate;
                Err(PostSendError::UnsupportedOperation { index, operation })
            }
            (true, false) => Err(PostSendError::OtherContext { index }),
            (true, true) => Ok(()),
        };
        let key = mkey.lkey();
        // SAFETY: the closure appends one request, and `check` refuses a pair without the
        // operation. The caller guarantees (`# Safety`) a free place in the send queue.
        unsafe { request.append_with(1, false, check, |qp| verbs::ibv_wr_local_inv(qp, key)) }
    }
}

/// Appends a request about a key.
///
/// # Safety
///
/// The contract of [`WorkRequestHandle::setup_mkey_configure`] applies if `check` finds nothing.
/// Then `request` must append one request by `operation`.
unsafe fn append(
    list: DirectRequest<'_, '_>,
    operation: DirectOperationFlags,
    mkey: &mut MKey,
    check: impl FnOnce(&MKey) -> Result<(), DirectRefusal>,
    request: impl FnOnce(*mut mlx5dv_qp_ex, &mut MKey),
) {
    let found = match list.context() == mkey.pd().context() {
        true => check(mkey),
        false => Err(DirectRefusal::OtherContext),
    };
    // SAFETY: the caller guarantees (`# Safety`) that `request` appends one request by `operation`,
    // and that its memory and its places in the send queue exist.
    unsafe { list.append(operation, places(mkey), |_| found, |qp| request(qp, mkey)) }
}
