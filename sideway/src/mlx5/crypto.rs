//! Encryption by the device: keys for it, and how a memory key uses one.
//!
//! # Safety
//!
//! `dek` of [`DataEncryptionKey`] is what `mlx5dv_dek_create` made, which only the drop and `close` destroy.

use std::ffi::c_char;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{
    mlx5dv_crypto_attr, mlx5dv_crypto_caps_flags as CF, mlx5dv_crypto_engines_caps as E,
    mlx5dv_crypto_key_purpose, mlx5dv_crypto_key_size, mlx5dv_crypto_standard,
    mlx5dv_crypto_wrapped_import_method_caps as W, mlx5dv_dek, mlx5dv_dek_attr, mlx5dv_dek_init_attr,
    mlx5dv_dek_init_attr_mask, mlx5dv_dek_state as S, mlx5dv_signature_crypto_order,
};

use super::{BlockSize, DirectVerbs};
use crate::error::{ConsumeError, Error};
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{Unsupported, check};

c_flags! {
    /// What a device encrypts with (`mlx5dv_crypto_engines_caps`).
    pub struct CryptoEngines(u8) {
        /// AES-XTS, one block at a time.
        AesXtsSingleBlock = E::MLX5DV_CRYPTO_ENGINES_CAP_AES_XTS_SINGLE_BLOCK.0 as u8,
        /// AES-XTS.
        AesXtsMultiBlock = E::MLX5DV_CRYPTO_ENGINES_CAP_AES_XTS_MULTI_BLOCK.0 as u8,
    }
}

c_flags! {
    /// The state of a device's encryption (`mlx5dv_crypto_caps_flags`).
    pub struct CryptoFlags(u32) {
        /// There is any.
        Crypto = CF::MLX5DV_CRYPTO_CAPS_CRYPTO.0,
        /// It takes wrapped keys.
        WrappedOperational = CF::MLX5DV_CRYPTO_CAPS_WRAPPED_CRYPTO_OPERATIONAL.0,
        /// It is about to.
        WrappedGoingToCommissioning = CF::MLX5DV_CRYPTO_CAPS_WRAPPED_CRYPTO_GOING_TO_COMMISSIONING.0,
    }
}

/// What a device can encrypt (`mlx5dv_crypto_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CryptoCapabilities {
    /// Self-tests that failed; 0 where none did.
    pub failed_selftests: u16,
    /// Engines.
    pub engines: CryptoEngines,
    /// Whether the engine of AES-XTS takes wrapped keys only, which are not made here.
    pub wrapped_import: bool,
    /// How many keys there can be, as a power of two.
    pub log_max_num_deks: u8,
    /// Its state.
    pub flags: CryptoFlags,
}

/// The bit of the engine that takes wrapped keys.
pub(super) const WRAPPED: u8 = W::MLX5DV_CRYPTO_WRAPPED_IMPORT_METHOD_CAP_AES_XTS.0 as u8;

/// A key of AES-XTS in plain text: both of its halves, one behind the other. It does not print.
#[derive(Clone, Copy)]
pub enum AesXtsKey {
    /// Two keys of 128 bits.
    Bits128([u8; 32]),
    /// Two keys of 256 bits.
    Bits256([u8; 64]),
}

impl fmt::Debug for AesXtsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bits128(_) => "Bits128(..)",
            Self::Bits256(_) => "Bits256(..)",
        })
    }
}

/// A data encryption key (`mlx5dv_dek`), which the device has.
pub struct DataEncryptionKey {
    dek: NonNull<mlx5dv_dek>,
    pd: ProtectionDomain,
    direct: DirectVerbs,
}

// SAFETY: a key is a number, which nobody writes; the functions about it may be called from any thread.
unsafe impl Send for DataEncryptionKey {}
// SAFETY: a key is a number, which nobody writes; the functions about it may be called from any
// thread.
unsafe impl Sync for DataEncryptionKey {}

c_enum! {
    /// Whether a key can be used (`mlx5dv_dek_state`).
    pub struct DataEncryptionKeyState(u32) {
        /// It can.
        Ready = S::MLX5DV_DEK_STATE_READY.0,
        /// It has to be made anew.
        Error = S::MLX5DV_DEK_STATE_ERROR.0,
    }
}

display_as_debug!(DataEncryptionKeyState);

impl DirectVerbs {
    /// Gives the device a key of AES-XTS in plain text (`mlx5dv_dek_create`). With a `keytag`, whoever configures a memory key with
    /// it has to know that, too. `opaque` is [kept with it](DataEncryptionKey::query).
    ///
    /// Devices that take [wrapped keys only](CryptoCapabilities::wrapped_import) refuse; log in to them by [`as_raw`](Self::as_raw).
    ///
    /// # Errors
    ///
    /// The library is too old, or the device does not encrypt ([`Unsupported`]); or it has no room, or takes no such keys.
    ///
    /// # References
    ///
    /// `man mlx5dv_dek_create`
    pub fn create_dek(
        &self,
        pd: &ProtectionDomain,
        key: &AesXtsKey,
        keytag: Option<[u8; 8]>,
        opaque: [u8; 8],
    ) -> Result<DataEncryptionKey, Error> {
        const VERB: &str = "mlx5dv_dek_create";
        if pd.context() != self.context() {
            return Err(Error::other_context(VERB, super::OTHER_DOMAIN));
        }
        let missing = |symbol| Unsupported::missing(self.context(), WHAT, symbol);
        let create = self.as_raw().mlx5dv_dek_create().map_err(missing)?;
        // Without it the key could not be destroyed.
        self.as_raw().mlx5dv_dek_destroy().map_err(missing)?;
        let (key_size, bytes): (_, &[u8]) = match key {
            AesXtsKey::Bits128(bytes) => (mlx5dv_crypto_key_size::MLX5DV_CRYPTO_KEY_SIZE_128, bytes),
            AesXtsKey::Bits256(bytes) => (mlx5dv_crypto_key_size::MLX5DV_CRYPTO_KEY_SIZE_256, bytes),
        };
        let mut attr = mlx5dv_dek_init_attr {
            key_size,
            has_keytag: keytag.is_some(),
            key_purpose: mlx5dv_crypto_key_purpose::MLX5DV_CRYPTO_KEY_PURPOSE_AES_XTS,
            pd: pd.as_raw().as_ptr(),
            opaque: opaque.map(|byte| byte as c_char),
            // Without a login, which says that the key is in plain text.
            comp_mask: u64::from(mlx5dv_dek_init_attr_mask::MLX5DV_DEK_INIT_ATTR_CRYPTO_LOGIN.0),
            ..Default::default()
        };
        let bytes = bytes.iter().chain(keytag.as_ref().map_or(&[][..], |tag| tag));
        for (place, byte) in attr.key.iter_mut().zip(bytes) {
            *place = *byte as c_char;
        }
        // SAFETY: the context is open and mlx5's, the domain is its own, and the attributes are initialised.
        let dek = unsafe { create(self.context().as_raw().as_ptr(), &raw mut attr) };
        let source = io::Error::last_os_error();
        forget(&mut attr.key);
        match NonNull::new(dek) {
            Some(dek) => Ok(DataEncryptionKey { dek, pd: pd.clone(), direct: self.clone() }),
            None => Err(Error::of_device(self.context(), VERB, WHAT, source)),
        }
    }
}

const WHAT: &str = "data encryption keys";

/// Overwrites a key that is used no more, which a compiler would leave out if it could.
fn forget(key: &mut [c_char]) {
    for byte in key {
        // SAFETY: it is borrowed.
        unsafe { ptr::from_mut(byte).write_volatile(0) };
    }
}

impl DataEncryptionKey {
    /// The state of the key, and what was [kept with it](DirectVerbs::create_dek) (`mlx5dv_dek_query`).
    ///
    /// # Errors
    ///
    /// The library is too old ([`Unsupported`]), or the device does not answer.
    ///
    /// # References
    ///
    /// `man mlx5dv_dek_query`
    pub fn query(&self) -> Result<(DataEncryptionKeyState, [u8; 8]), Error> {
        let query = self.direct.as_raw().mlx5dv_dek_query();
        let query = query.map_err(|symbol| Unsupported::missing(self.pd.context(), WHAT, symbol))?;
        let mut attr = mlx5dv_dek_attr::default();
        // SAFETY: the key lives, and `attr` is a valid place.
        let result = check(unsafe { query(self.dek.as_ptr(), &raw mut attr) });
        result.map_err(|source| Error::os("mlx5dv_dek_query", source))?;
        Ok((DataEncryptionKeyState::from_raw(attr.state.0), attr.opaque.map(|byte| byte as u8)))
    }

    /// The domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    pub fn as_raw(&self) -> NonNull<mlx5dv_dek> {
        self.dek
    }

    /// Destroys the key now (`mlx5dv_dek_destroy`), and says how that went, which a drop only logs.
    ///
    /// # Errors
    ///
    /// The device refuses, as a memory key uses it. The key comes back.
    ///
    /// # References
    ///
    /// `man mlx5dv_dek_destroy`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let mut key = ManuallyDrop::new(self);
        // SAFETY: the key lives, and is taken apart below only if this succeeded.
        match unsafe { key.destroy() } {
            Ok(()) => {
                // SAFETY: the key's own drop does not run, so these are the only ones of its handles.
                drop(unsafe { (ptr::read(&raw const key.pd), ptr::read(&raw const key.direct)) });
                Ok(())
            }
            Err(source) => Err(ConsumeError {
                object: ManuallyDrop::into_inner(key),
                error: Error::os("mlx5dv_dek_destroy", source).remedy("the key still exists"),
            }),
        }
    }

    /// # Safety
    ///
    /// The key lives; if this succeeds it does not any more.
    unsafe fn destroy(&mut self) -> io::Result<()> {
        match self.direct.as_raw().mlx5dv_dek_destroy() {
            // SAFETY: the caller says that the key lives.
            Ok(destroy) => check(unsafe { destroy(self.dek.as_ptr()) }),
            // It was looked for when the key was made.
            Err(symbol) => Err(io::Error::other(symbol)),
        }
    }
}

impl Drop for DataEncryptionKey {
    fn drop(&mut self) {
        // SAFETY: the key lives until here.
        if let Err(error) = unsafe { self.destroy() } {
            log::error!("mlx5dv_dek_destroy failed, the key stays: {error}");
            // The key is still there, so what it depends on has to stay.
            std::mem::forget((self.pd.clone(), self.direct.clone()));
        }
    }
}

impl fmt::Debug for DataEncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataEncryptionKey").field("dek", &self.dek).finish_non_exhaustive()
    }
}

/// What comes first where a memory key has both (`mlx5dv_signature_crypto_order`), on the way from memory to the wire; on the way
/// back it is the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureCryptoOrder {
    /// Encryption or decryption, then the signature.
    SignatureAfterCrypto,
    /// The signature, then encryption or decryption.
    SignatureBeforeCrypto,
}

/// How a memory key encrypts (`mlx5dv_crypto_attr`), by AES-XTS.
#[derive(Clone, Copy, Debug)]
pub struct Crypto<'key> {
    /// The key.
    pub dek: &'key DataEncryptionKey,
    /// Whether data are encrypted as they leave memory, and decrypted as they come in; or the other way round.
    pub encrypt_on_tx: bool,
    /// What comes first, if there are signatures.
    pub signature_order: SignatureCryptoOrder,
    /// After how many bytes the tweak is one more. What is transferred is a multiple of it, or of 16 and not in its last 16 bytes.
    pub data_unit_size: BlockSize,
    /// The tweak of the first unit, in little endian: the number of the first block, if it is one.
    pub initial_tweak: [u8; 16],
    /// The tag that the key was made with, if it was made with one.
    pub keytag: [u8; 8],
}

impl Crypto<'_> {
    pub(super) fn raw(&self) -> mlx5dv_crypto_attr {
        use mlx5dv_signature_crypto_order as O;
        mlx5dv_crypto_attr {
            crypto_standard: mlx5dv_crypto_standard::MLX5DV_CRYPTO_STANDARD_AES_XTS,
            encrypt_on_tx: self.encrypt_on_tx,
            signature_crypto_order: match self.signature_order {
                SignatureCryptoOrder::SignatureAfterCrypto => {
                    O::MLX5DV_SIGNATURE_CRYPTO_ORDER_SIGNATURE_AFTER_CRYPTO_ON_TX
                }
                SignatureCryptoOrder::SignatureBeforeCrypto => {
                    O::MLX5DV_SIGNATURE_CRYPTO_ORDER_SIGNATURE_BEFORE_CRYPTO_ON_TX
                }
            },
            data_unit_size: self.data_unit_size.raw(),
            initial_tweak: self.initial_tweak.map(|byte| byte as c_char),
            dek: self.dek.dek.as_ptr(),
            keytag: self.keytag.map(|byte| byte as c_char),
            comp_mask: 0,
        }
    }
}
