//! Requests that configure a memory key: which memory it stands for, and what may be done to it.
//!
//! What the unsafe code here relies on is at the head of `operations.rs`.

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

/// A step of interleaved memory (`mlx5dv_mr_interleaved`).
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct InterleavedEntry(mlx5dv_mr_interleaved);

impl InterleavedEntry {
    /// How many bytes an entry takes and leaves out, at most: libraries take no more bits of the number (rdma-core up to 65).
    pub const LONGEST: u64 = u16::MAX as u64;

    /// `bytes_count` bytes from `addr` on, in the region that `lkey` names; then `bytes_skip` are left out, and so on with the next
    /// round. Both together are at most [`LONGEST`](Self::LONGEST). Making one is safe; giving it to a device is not.
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

/// How memory lies behind a key.
#[derive(Clone, Copy, Debug)]
enum Layout<'a> {
    /// One piece after the other.
    List(&'a [ScatterGatherEntry]),
    /// A step of each in turn, so many times.
    Interleaved { repeat_count: u32, entries: &'a [InterleavedEntry] },
}

impl Layout<'_> {
    /// That the key has room for it, and a device can count it.
    fn check(&self, mkey: &MKey) -> Result<(), DirectRequestError> {
        let given = match self {
            Self::List(pieces) => pieces.len(),
            // One for what they have in common.
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

/// What a key is to be (`mlx5dv_wr_mkey_configure` and what follows it). What is not set stays as it was; a new key has neither layout
/// nor permissions.
#[derive(Clone, Debug, Default)]
pub struct MKeyConfiguration<'a> {
    reset_signature: bool,
    access: Option<AccessFlags>,
    layout: Option<Layout<'a>>,
    signature: Option<BlockSignature>,
    crypto: Option<Crypto<'a>>,
}

impl<'a> MKeyConfiguration<'a> {
    /// One that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What may be done to the memory (`mlx5dv_wr_set_mkey_access_flags`), in place of what might be before: `LocalWrite`, `RemoteRead`,
    /// `RemoteWrite`, `RemoteAtomic`. Others are `EINVAL` when the list is posted.
    pub fn setup_access_flags(&mut self, access: AccessFlags) -> &mut Self {
        self.access = Some(access);
        self
    }

    /// One piece of memory after the other (`mlx5dv_wr_set_mkey_layout_list`), in place of the layout that was before.
    ///
    /// A request has room for four pieces, or for more if the pair was made for inline data, of which each takes 16 bytes.
    pub fn setup_layout_list(&mut self, pieces: &'a [ScatterGatherEntry]) -> &mut Self {
        self.layout = Some(Layout::List(pieces));
        self
    }

    /// A step of each piece in turn, `repeat_count` times (`mlx5dv_wr_set_mkey_layout_interleaved`), in place of the layout that was
    /// before.
    ///
    /// A request has room for three pieces, or for more if the pair was made for inline data, of which each takes 16 bytes, and all
    /// together 16 more.
    pub fn setup_layout_interleaved(
        &mut self,
        repeat_count: u32,
        entries: &'a [InterleavedEntry],
    ) -> &mut Self {
        self.layout = Some(Layout::Interleaved { repeat_count, entries });
        self
    }

    /// What is done about signatures (`mlx5dv_wr_set_mkey_sig_block`), in place of what was before. The key has to be
    /// made [for it](MKeyFlags::BlockSignature), and the request to have room for it: 64 bytes of inline data, behind the layout,
    /// which takes whole 64 bytes then.
    pub fn setup_sig_block(&mut self, signature: BlockSignature) -> &mut Self {
        self.signature = Some(signature);
        self
    }

    /// Does no more about signatures (`MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR`), but for what [this sets](Self::setup_sig_block). It
    /// has to be said behind a list that configured signatures and was not posted, or failed.
    pub fn setup_reset_signature(&mut self) -> &mut Self {
        self.reset_signature = true;
        self
    }

    /// How data are encrypted (`mlx5dv_wr_set_mkey_crypto`), in place of what was before. The key has to be made
    /// [for it](MKeyFlags::Crypto), and the request to have room for it, as for a signature: 64 bytes of inline data.
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

    /// How many setters follow.
    fn setters(&self) -> u8 {
        let there =
            [self.access.is_some(), self.layout.is_some(), self.signature.is_some(), self.crypto.is_some()];
        there.into_iter().map(u8::from).sum()
    }

    /// Builds the request.
    ///
    /// # Safety
    ///
    /// A list of the pair is open; it has the operations, and that about encryption if there is any here; the key lives, and nobody
    /// else uses it; and it passed the check.
    unsafe fn append(&self, qp: *mut mlx5dv_qp_ex, mkey: &mut MKey) {
        let conf_flags = if self.reset_signature { F::MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR.0 } else { 0 };
        let mut attr = mlx5dv_mkey_conf_attr { conf_flags, comp_mask: 0 };
        // SAFETY: the caller guarantees (`# Safety`) that a list of the pair is open; it has the
        // operations, and that about encryption if there is any here; the key lives, and nobody else
        // uses it; and it passed the check; as many setters follow as are announced.
        // What they are given is read during the calls. The lengths fit, being at most `max_entries`.
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

/// A list as C takes it, whose length was compared with a key's.
fn raw_list(pieces: &[ScatterGatherEntry]) -> (u16, *const ibv_sge) {
    // An entry is transparent over `ibv_sge`.
    (pieces.len() as u16, pieces.as_ptr().cast())
}

fn raw_entries(entries: &[InterleavedEntry]) -> (u16, *const mlx5dv_mr_interleaved) {
    (entries.len() as u16, entries.as_ptr().cast())
}

/// How many places a request takes that configures a key: behind one with signatures libraries put a request for each of the domains.
fn places(mkey: &MKey) -> usize {
    if mkey.flags().contains(MKeyFlags::BlockSignature) { 3 } else { 1 }
}

impl<'guard, G> WorkRequestHandle<'guard, G> {
    /// Configures a memory key (`mlx5dv_wr_mkey_configure`, and `mlx5dv_wr_set_mkey_access_flags`,
    /// `mlx5dv_wr_set_mkey_layout_list`, `mlx5dv_wr_set_mkey_layout_interleaved`, `mlx5dv_wr_set_mkey_sig_block`,
    /// `mlx5dv_wr_set_mkey_crypto` as far as they are asked for). What is posted behind it in the same queue finds the key so; others
    /// have to wait for its completion ([`Driver1`](crate::ibverbs::completion::WorkCompletionOperationType::Driver1)).
    ///
    /// Reliably connected pairs have it that were made [for it](DirectOperationFlags::MKeyConfigure). The key is borrowed until the list
    /// is posted or forgotten: ask for its numbers before. If the list is not posted, or posting it fails, what the library thinks
    /// of the key's signatures and encryption is not known: set or reset them the next time.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// From the call of [`post`](crate::ibverbs::queue_pair::PostSendGuard::post), unless its error says that this request was not
    /// [posted](PostSendError::posted):
    ///
    /// - As long as the key leads there (that is, until another layout, an [invalidation](Self::setup_invalidate_mkey) or a peer's has
    ///   completed, or the key has been [destroyed](MKey::close)), and the regions are registered: all memory of the layout stays
    ///   allocated; no Rust reference to any of it is used while the device may write to it, that is, while a request of this side
    ///   into it is outstanding, and, if the key has `RemoteWrite` or `RemoteAtomic`, as long as any peer knows the key; and no `&mut`
    ///   to it is used while the device may read it.
    /// - If the key is made for signatures: nobody polls a completion queue of a pair through which memory behind it may be reached
    ///   by a request that has not completed, as [`MKey::check`] says, while this list is built and posted, and, if the key has been
    ///   configured with a signature, while it is destroyed.
    /// - If encryption is set: its data encryption key lives until the memory key is destroyed, or was configured with another one
    ///   by a list that was posted.
    ///
    /// And the send queue has a place for the request, or three if the key is made for signatures: so many fewer than
    /// [`max_send_wr`](crate::ibverbs::queue_pair::QueuePairCapability::max_send_wr) are outstanding.
    ///
    /// A wrong key of a region, or an address outside of it, is not a matter of safety otherwise: the device refuses.
    ///
    /// # Errors
    ///
    /// [`post`](crate::ibverbs::queue_pair::PostSendGuard::post) says it: a
    /// [`DirectRequestError`], if the pair has no such requests, or the key no room, or not what is configured;
    /// [`PostSendError::OtherContext`]; `ENOMEM`, as of a full queue, if the request has no room for the layout.
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_mkey_configure`, `man mlx5dv_wr_set_mkey_sig_block`, `man mlx5dv_wr_set_mkey_crypto`
    pub unsafe fn setup_mkey_configure<'queue>(
        self,
        mkey: &'queue mut MKey,
        configuration: &MKeyConfiguration<'_>,
    ) where
        G: DirectGuard<'queue>,
    {
        // SAFETY: the caller guarantees (`# Safety`) that the memory of the layout stays registered
        // while the key leads there; the key is borrowed for as long as the guard has its queue.
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

    /// Lets a memory key stand for one piece of memory after the other (`mlx5dv_wr_mr_list`), and sets what may be done to it: what
    /// [`setup_layout_list`](MKeyConfiguration::setup_layout_list) and
    /// [`setup_access_flags`](MKeyConfiguration::setup_access_flags) do, for pairs that were made
    /// [for this alone](DirectOperationFlags::MrList). A key that leads somewhere is to be
    /// [invalidated](Self::setup_invalidate_mkey) before.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// As [`setup_mkey_configure`](Self::setup_mkey_configure). The list itself is copied.
    ///
    /// # Errors
    ///
    /// As [`setup_mkey_configure`](Self::setup_mkey_configure).
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
            // SAFETY: as of `MKeyConfiguration::append`, by this function's caller; C does not say that it only reads.
            unsafe {
                mlx5dv::mlx5dv_wr_mr_list(qp, mkey.as_raw().as_ptr(), access.bits(), count, sge.cast_mut());
            }
        };
        // SAFETY: as of `setup_mkey_configure`.
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

    /// Lets a memory key stand for a step of each piece in turn, `repeat_count` times (`mlx5dv_wr_mr_interleaved`), and sets what may be
    /// done to it: what [`setup_layout_interleaved`](MKeyConfiguration::setup_layout_interleaved) and
    /// [`setup_access_flags`](MKeyConfiguration::setup_access_flags) do, for pairs that were made
    /// [for this alone](DirectOperationFlags::MrInterleaved). A key that leads somewhere is to be
    /// [invalidated](Self::setup_invalidate_mkey) before.
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// As [`setup_mkey_configure`](Self::setup_mkey_configure). The entries themselves are copied.
    ///
    /// # Errors
    ///
    /// As [`setup_mkey_configure`](Self::setup_mkey_configure).
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
            // SAFETY: as of `MKeyConfiguration::append`, by this function's caller; C does not say that it only reads.
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
        // SAFETY: as of `setup_mkey_configure`.
        unsafe {
            append(DirectRequest::of(self), operation, mkey, |mkey| Ok(layout.check(mkey)?), interleaved);
        }
    }

    /// Takes the memory away from a memory key (`ibv_wr_local_inv`). When it has completed, nobody reaches the memory by it, and it
    /// can be laid out anew. The pair has to be made for it
    /// ([`LocalInvalidate`](SendOperationFlags::LocalInvalidate)).
    ///
    /// **Not run on hardware.**
    ///
    /// # Safety
    ///
    /// The send queue has a place for the request: fewer than
    /// [`max_send_wr`](crate::ibverbs::queue_pair::QueuePairCapability::max_send_wr) are outstanding.
    ///
    /// # Errors
    ///
    /// [`post`](crate::ibverbs::queue_pair::PostSendGuard::post) says it: [`PostSendError::UnsupportedOperation`],
    /// [`PostSendError::OtherContext`].
    ///
    /// # References
    ///
    /// `man mlx5dv_wr_post`, `man ibv_wr_post`
    pub unsafe fn setup_invalidate_mkey<'queue>(self, mkey: &'queue mut MKey)
    where
        G: DirectGuard<'queue>,
    {
        let request = DirectRequest::of(self);
        let can = request.list().can(SendOperationFlags::LocalInvalidate);
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
        // SAFETY: one request, whose operation exists; the caller guarantees (`# Safety`) a place
        // in the send queue.
        unsafe { request.append_with(1, false, check, |qp| verbs::ibv_wr_local_inv(qp, key)) }
    }
}

/// Appends a request about a key.
///
/// # Safety
///
/// As [`WorkRequestHandle::setup_mkey_configure`], if `check` finds nothing: then `request` appends it by `operation`.
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
    // SAFETY: one request, whose operation exists (head of this file); the caller guarantees
    // (`setup_mkey_configure`) its memory and its places in the send queue.
    unsafe { list.append(operation, places(mkey), |_| found, |qp| request(qp, mkey)) }
}
