//! Block signatures: a memory key generates, strips and checks them.

use std::ptr;

use rdma_mummy_sys::types::{
    mlx5dv_block_size as B, mlx5dv_block_size_caps as BC, mlx5dv_sig_block_attr, mlx5dv_sig_block_attr_flags,
    mlx5dv_sig_block_domain, mlx5dv_sig_block_domain__bindgen_ty_1 as Described, mlx5dv_sig_crc,
    mlx5dv_sig_crc_type as C, mlx5dv_sig_crc_type_caps as CC, mlx5dv_sig_mask as M,
    mlx5dv_sig_prot_caps as P, mlx5dv_sig_t10dif, mlx5dv_sig_t10dif_bg_caps as GC,
    mlx5dv_sig_t10dif_bg_type as G, mlx5dv_sig_t10dif_flags as D, mlx5dv_sig_type as T,
};

/// The size of a block without its signature (`mlx5dv_block_size`).
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
    /// Block sizes that a device supports (`mlx5dv_block_size_caps`).
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
    /// Kinds of signatures that a device supports (`mlx5dv_sig_prot_caps`).
    pub struct SignatureTypes(u32) {
        /// [`Signature::T10Dif`].
        T10Dif = P::MLX5DV_SIG_PROT_CAP_T10DIF.0,
        /// [`Signature::Crc`].
        Crc = P::MLX5DV_SIG_PROT_CAP_CRC.0,
    }
}

c_flags! {
    /// Guards of T10-DIF that a device supports (`mlx5dv_sig_t10dif_bg_caps`).
    pub struct GuardTypes(u16) {
        /// [`GuardType::Crc`].
        Crc = GC::MLX5DV_SIG_T10DIF_BG_CAP_CRC.0 as u16,
        /// [`GuardType::Checksum`].
        Checksum = GC::MLX5DV_SIG_T10DIF_BG_CAP_CSUM.0 as u16,
    }
}

c_flags! {
    /// CRCs that a device supports (`mlx5dv_sig_crc_type_caps`).
    pub struct CrcTypes(u16) {
        /// [`CrcType::Crc32`].
        Crc32 = CC::MLX5DV_SIG_CRC_TYPE_CAP_CRC32.0 as u16,
        /// [`CrcType::Crc32c`].
        Crc32c = CC::MLX5DV_SIG_CRC_TYPE_CAP_CRC32C.0 as u16,
        /// [`CrcType::Crc64Xp10`].
        Crc64Xp10 = CC::MLX5DV_SIG_CRC_TYPE_CAP_CRC64_XP10.0 as u16,
    }
}

/// A device's support for block signatures (`mlx5dv_sig_caps`); without support, all sets are
/// empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureCapabilities {
    /// The supported block sizes.
    pub block_sizes: BlockSizes,
    /// The supported kinds of signatures.
    pub types: SignatureTypes,
    /// The supported guards of T10-DIF.
    pub guards: GuardTypes,
    /// The supported CRCs.
    pub crcs: CrcTypes,
}

/// The initial value of a guard or a CRC. The device supports these two, in the width of the
/// result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureSeed {
    /// All bits are 0.
    #[default]
    Zeros,
    /// All bits are 1.
    Ones,
}

/// The computation of the T10-DIF guard (`mlx5dv_sig_t10dif_bg_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardType {
    /// The CRC of the specification.
    #[default]
    Crc,
    /// The IP checksum in place of the CRC.
    Checksum,
}

c_flags! {
    /// Options of T10-DIF (`mlx5dv_sig_t10dif_flags`).
    pub struct T10DifFlags(u16) {
        /// The reference tag is incremented with each block.
        ReferenceRemap = D::MLX5DV_SIG_T10DIF_FLAG_REF_REMAP.0 as u16,
        /// Blocks whose application tag is 0xffff are not checked.
        ApplicationEscape = D::MLX5DV_SIG_T10DIF_FLAG_APP_ESCAPE.0 as u16,
        /// Blocks whose application tag is 0xffff and whose reference tag is 0xffff_ffff are not
        /// checked.
        ApplicationReferenceEscape = D::MLX5DV_SIG_T10DIF_FLAG_APP_REF_ESCAPE.0 as u16,
    }
}

/// The T10-DIF signature (`mlx5dv_sig_t10dif`): 8 bytes after each block. The tags here are
/// generated or expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct T10Dif {
    /// The computation of the guard.
    pub guard: GuardType,
    /// The initial value of the guard.
    pub seed: SignatureSeed,
    /// The application tag.
    pub app_tag: u16,
    /// The reference tag, often the address of the first block.
    pub ref_tag: u32,
    /// Options of T10-DIF.
    pub flags: T10DifFlags,
}

/// The kind of CRC (`mlx5dv_sig_crc_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrcType {
    /// The CRC-32 of Fibre Channel.
    Crc32,
    /// The CRC-32C (Castagnoli) of iSCSI.
    Crc32c,
    /// The CRC-64 of XP10 compression.
    Crc64Xp10,
}

/// A CRC after each block (`mlx5dv_sig_crc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc {
    /// The kind of CRC.
    pub crc_type: CrcType,
    /// The initial value.
    pub seed: SignatureSeed,
}

/// The signature after each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// 8 bytes: a guard, an application tag and a reference tag.
    T10Dif(T10Dif),
    /// A CRC alone: 4 or 8 bytes.
    Crc(Crc),
}

/// The signatures in memory or on the wire (`mlx5dv_sig_block_domain`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureDomain {
    /// The signature after each block.
    pub signature: Signature,
    /// How many bytes of data each signature covers.
    pub block_size: BlockSize,
}

c_flags! {
    /// Bytes of a signature (`mlx5dv_sig_mask`), one bit each. Bit 0 is the last byte of T10-DIF
    /// (guard, application tag, reference tag). A CRC of 32 bits uses bits 4 to 7.
    /// `from_bits_retain` makes sets of single bytes.
    pub struct SignatureMask(u8) {
        /// Bits 6 and 7: the guard.
        T10DifGuard = M::MLX5DV_SIG_MASK_T10DIF_GUARD.0 as u8,
        /// Bits 4 and 5: the application tag.
        T10DifApplicationTag = M::MLX5DV_SIG_MASK_T10DIF_APPTAG.0 as u8,
        /// Bits 0 to 3: the reference tag.
        T10DifReferenceTag = M::MLX5DV_SIG_MASK_T10DIF_REFTAG.0 as u8,
        /// A CRC-32.
        Crc32 = M::MLX5DV_SIG_MASK_CRC32.0 as u8,
        /// A CRC-32C.
        Crc32c = M::MLX5DV_SIG_MASK_CRC32C.0 as u8,
        /// A CRC-64 of XP10.
        Crc64Xp10 = M::MLX5DV_SIG_MASK_CRC64_XP10.0 as u8,
    }
}

/// The block signatures of a memory key (`mlx5dv_sig_block_attr`).
///
/// It describes the data in memory and on the wire. Signatures that only one of the two has are
/// stripped or generated during the transfer, in both directions. Incoming signatures are checked;
/// [`MKey::check`](super::MKey::check) returns errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSignature {
    /// The signatures in memory; `None` for data without signatures. At least one of the two must
    /// be set.
    pub memory: Option<SignatureDomain>,
    /// The signatures on the wire.
    pub wire: Option<SignatureDomain>,
    /// The bytes of an incoming signature that are checked.
    pub check_mask: SignatureMask,
    /// The bytes that are copied instead of computed, if both sides have the same structure. With
    /// `None` the library chooses: all bytes, if both sides have the same signature.
    pub copy_mask: Option<SignatureMask>,
}

/// A domain as C structs, and the data that it points to.
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

    /// The domain, with its pointer into this struct set.
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
    /// Calls `then` with the attributes as a C struct, which is valid during the call.
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
