//! Signatures of blocks: what a memory key adds, takes away and checks.

use std::ptr;

use rdma_mummy_sys::types::{
    mlx5dv_block_size as B, mlx5dv_block_size_caps as BC, mlx5dv_sig_block_attr, mlx5dv_sig_block_attr_flags,
    mlx5dv_sig_block_domain, mlx5dv_sig_block_domain__bindgen_ty_1 as Described, mlx5dv_sig_crc,
    mlx5dv_sig_crc_type as C, mlx5dv_sig_crc_type_caps as CC, mlx5dv_sig_mask as M,
    mlx5dv_sig_prot_caps as P, mlx5dv_sig_t10dif, mlx5dv_sig_t10dif_bg_caps as GC,
    mlx5dv_sig_t10dif_bg_type as G, mlx5dv_sig_t10dif_flags as D, mlx5dv_sig_type as T,
};

/// How many bytes a block has (`mlx5dv_block_size`), without its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes.
    Bytes512,
    /// 520 bytes.
    Bytes520,
    /// 4048 bytes.
    Bytes4048,
    /// 4096 bytes.
    Bytes4096,
    /// 4160 bytes.
    Bytes4160,
}

impl BlockSize {
    pub(super) const fn raw(self) -> B {
        match self {
            Self::Bytes512 => B::MLX5DV_BLOCK_SIZE_512,
            Self::Bytes520 => B::MLX5DV_BLOCK_SIZE_520,
            Self::Bytes4048 => B::MLX5DV_BLOCK_SIZE_4048,
            Self::Bytes4096 => B::MLX5DV_BLOCK_SIZE_4096,
            Self::Bytes4160 => B::MLX5DV_BLOCK_SIZE_4160,
        }
    }
}

c_flags! {
    /// The sizes of blocks that a device can sign (`mlx5dv_block_size_caps`).
    pub struct BlockSizes(u64) {
        /// 512 bytes.
        Bytes512 = BC::MLX5DV_BLOCK_SIZE_CAP_512.0,
        /// 520 bytes.
        Bytes520 = BC::MLX5DV_BLOCK_SIZE_CAP_520.0,
        /// 4048 bytes.
        Bytes4048 = BC::MLX5DV_BLOCK_SIZE_CAP_4048.0,
        /// 4096 bytes.
        Bytes4096 = BC::MLX5DV_BLOCK_SIZE_CAP_4096.0,
        /// 4160 bytes.
        Bytes4160 = BC::MLX5DV_BLOCK_SIZE_CAP_4160.0,
    }
}

c_flags! {
    /// The kinds of signatures that a device has (`mlx5dv_sig_prot_caps`).
    pub struct SignatureTypes(u32) {
        /// [`Signature::T10Dif`].
        T10Dif = P::MLX5DV_SIG_PROT_CAP_T10DIF.0,
        /// [`Signature::Crc`].
        Crc = P::MLX5DV_SIG_PROT_CAP_CRC.0,
    }
}

c_flags! {
    /// The guards of T10-DIF that a device has (`mlx5dv_sig_t10dif_bg_caps`).
    pub struct GuardTypes(u16) {
        /// [`GuardType::Crc`].
        Crc = GC::MLX5DV_SIG_T10DIF_BG_CAP_CRC.0 as u16,
        /// [`GuardType::Checksum`].
        Checksum = GC::MLX5DV_SIG_T10DIF_BG_CAP_CSUM.0 as u16,
    }
}

c_flags! {
    /// The CRCs that a device has (`mlx5dv_sig_crc_type_caps`).
    pub struct CrcTypes(u16) {
        /// [`CrcType::Crc32`].
        Crc32 = CC::MLX5DV_SIG_CRC_TYPE_CAP_CRC32.0 as u16,
        /// [`CrcType::Crc32c`].
        Crc32c = CC::MLX5DV_SIG_CRC_TYPE_CAP_CRC32C.0 as u16,
        /// [`CrcType::Crc64Xp10`].
        Crc64Xp10 = CC::MLX5DV_SIG_CRC_TYPE_CAP_CRC64_XP10.0 as u16,
    }
}

/// The signatures that a device has (`mlx5dv_sig_caps`); without any, all are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureCapabilities {
    /// Sizes of blocks.
    pub block_sizes: BlockSizes,
    /// Kinds of signatures.
    pub types: SignatureTypes,
    /// Guards of T10-DIF.
    pub guards: GuardTypes,
    /// CRCs.
    pub crcs: CrcTypes,
}

/// What the computation of a guard or a CRC begins with. The device has these two values, in as many bits as the result has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureSeed {
    /// All bits are 0.
    #[default]
    Zeros,
    /// All bits are 1.
    Ones,
}

/// How the guard of T10-DIF is computed (`mlx5dv_sig_t10dif_bg_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardType {
    /// The CRC that the specification has.
    #[default]
    Crc,
    /// The checksum of IP in its place.
    Checksum,
}

c_flags! {
    /// Options of T10-DIF (`mlx5dv_sig_t10dif_flags`).
    pub struct T10DifFlags(u16) {
        /// The reference tag is one more with each block.
        ReferenceRemap = D::MLX5DV_SIG_T10DIF_FLAG_REF_REMAP.0 as u16,
        /// The guard of a block is not checked whose application tag is 0xffff.
        ApplicationEscape = D::MLX5DV_SIG_T10DIF_FLAG_APP_ESCAPE.0 as u16,
        /// The same, if the reference tag is 0xffff_ffff besides.
        ApplicationReferenceEscape = D::MLX5DV_SIG_T10DIF_FLAG_APP_REF_ESCAPE.0 as u16,
    }
}

/// The signature of T10-DIF (`mlx5dv_sig_t10dif`): 8 bytes behind each block. What the tags are is generated, or expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct T10Dif {
    /// How the guard is computed.
    pub guard: GuardType,
    /// With what that begins.
    pub seed: SignatureSeed,
    /// The application tag.
    pub app_tag: u16,
    /// The reference tag; the address of the first block to be transmitted, if it is one.
    pub ref_tag: u32,
    /// Options.
    pub flags: T10DifFlags,
}

/// Which CRC (`mlx5dv_sig_crc_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcType {
    /// That of Fibre Channel, of 32 bits.
    Crc32,
    /// Castagnoli's, of 32 bits, which iSCSI has.
    Crc32c,
    /// That of XP10 compression, of 64 bits.
    Crc64Xp10,
}

/// A CRC behind each block (`mlx5dv_sig_crc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc {
    /// Which one.
    pub crc_type: CrcType,
    /// With what it begins.
    pub seed: SignatureSeed,
}

/// What is behind each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// T10-DIF.
    T10Dif(T10Dif),
    /// A CRC.
    Crc(Crc),
}

/// The signatures in memory, or on the wire (`mlx5dv_sig_block_domain`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureDomain {
    /// What is behind each block.
    pub signature: Signature,
    /// How long a block is.
    pub block_size: BlockSize,
}

c_flags! {
    /// Bytes of a signature (`mlx5dv_sig_mask`), a bit each: bit 0 is the last byte of T10-DIF (guard, application tag, reference tag); of a
    /// CRC of 32 bits bits 4 to 7 count. Sets of single bytes are made by `from_bits_retain`.
    pub struct SignatureMask(u8) {
        /// The guard of T10-DIF.
        T10DifGuard = M::MLX5DV_SIG_MASK_T10DIF_GUARD.0 as u8,
        /// Its application tag.
        T10DifApplicationTag = M::MLX5DV_SIG_MASK_T10DIF_APPTAG.0 as u8,
        /// Its reference tag.
        T10DifReferenceTag = M::MLX5DV_SIG_MASK_T10DIF_REFTAG.0 as u8,
        /// A CRC-32.
        Crc32 = M::MLX5DV_SIG_MASK_CRC32.0 as u8,
        /// A CRC-32C.
        Crc32c = M::MLX5DV_SIG_MASK_CRC32C.0 as u8,
        /// A CRC-64 of XP10.
        Crc64Xp10 = M::MLX5DV_SIG_MASK_CRC64_XP10.0 as u8,
    }
}

/// What a memory key does about signatures (`mlx5dv_sig_block_attr`).
///
/// It says how data look in memory, and how on the wire. What the one has and the other has not is taken away or added on the way,
/// in either direction; what comes in is checked. Errors are found by [`MKey::check`](super::MKey::check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSignature {
    /// The signatures in memory; `None` for data alone. One of the two has some.
    pub memory: Option<SignatureDomain>,
    /// The signatures on the wire.
    pub wire: Option<SignatureDomain>,
    /// The bytes of a signature that are checked as it comes in.
    pub check_mask: SignatureMask,
    /// The bytes that are copied as they are instead of being computed, where both sides have the same structure; `None` for what the
    /// library finds, which is all where both have the same signature.
    pub copy_mask: Option<SignatureMask>,
}

/// A domain as C has it, and what it points to.
struct Raw {
    dif: mlx5dv_sig_t10dif,
    crc: mlx5dv_sig_crc,
    domain: mlx5dv_sig_block_domain,
}

impl Raw {
    fn of(domain: &SignatureDomain) -> Self {
        let (mut dif, mut crc) = (mlx5dv_sig_t10dif::default(), mlx5dv_sig_crc::default());
        let mut raw = mlx5dv_sig_block_domain { block_size: domain.block_size.raw(), ..Default::default() };
        match domain.signature {
            Signature::T10Dif(T10Dif { guard, seed, app_tag, ref_tag, flags }) => {
                raw.sig_type = T::MLX5DV_SIG_TYPE_T10DIF;
                let bg_type = match guard {
                    GuardType::Crc => G::MLX5DV_SIG_T10DIF_CRC,
                    GuardType::Checksum => G::MLX5DV_SIG_T10DIF_CSUM,
                };
                let bg = seed.of(u16::MAX.into()) as u16;
                dif = mlx5dv_sig_t10dif { bg_type, bg, app_tag, ref_tag, flags: flags.bits() };
            }
            Signature::Crc(Crc { crc_type, seed }) => {
                raw.sig_type = T::MLX5DV_SIG_TYPE_CRC;
                let (type_, ones) = match crc_type {
                    CrcType::Crc32 => (C::MLX5DV_SIG_CRC_TYPE_CRC32, u32::MAX.into()),
                    CrcType::Crc32c => (C::MLX5DV_SIG_CRC_TYPE_CRC32C, u32::MAX.into()),
                    CrcType::Crc64Xp10 => (C::MLX5DV_SIG_CRC_TYPE_CRC64_XP10, u64::MAX),
                };
                crc = mlx5dv_sig_crc { type_, seed: seed.of(ones) };
            }
        }
        Self { dif, crc, domain: raw }
    }

    /// The domain, with its pointer into this.
    fn linked(&mut self) -> *const mlx5dv_sig_block_domain {
        self.domain.sig = match self.domain.sig_type {
            T::MLX5DV_SIG_TYPE_T10DIF => Described { dif: &raw const self.dif },
            _ => Described { crc: &raw const self.crc },
        };
        &raw const self.domain
    }
}

impl SignatureSeed {
    const fn of(self, ones: u64) -> u64 {
        match self {
            Self::Zeros => 0,
            Self::Ones => ones,
        }
    }
}

impl BlockSignature {
    /// Calls `then` with this as C has it, which is there for as long as the call.
    pub(super) fn with_raw(&self, then: impl FnOnce(*const mlx5dv_sig_block_attr)) {
        let mut domains = [self.memory, self.wire].map(|domain| domain.as_ref().map(Raw::of));
        let [mem, wire] = domains.each_mut().map(|raw| raw.as_mut().map_or(ptr::null(), |raw| raw.linked()));
        let copies = mlx5dv_sig_block_attr_flags::MLX5DV_SIG_BLOCK_ATTR_FLAG_COPY_MASK.0;
        let attr = mlx5dv_sig_block_attr {
            mem,
            wire,
            flags: if self.copy_mask.is_some() { copies } else { 0 },
            check_mask: self.check_mask.bits(),
            copy_mask: self.copy_mask.map_or(0, |mask| mask.bits()),
            comp_mask: 0,
        };
        then(&raw const attr);
    }
}
