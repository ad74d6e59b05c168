//! Encryption by the device: data encryption keys, and their use by memory keys.
//!
//! # Safety
//!
//! `dek` of [`DataEncryptionKey`] is the result of `mlx5dv_dek_create`, and only its drop and
//! `close` destroy it.

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
use crate::direct::check;
use crate::error::{ConsumeError, Error};
use crate::ibverbs::Unsupported;
use crate::ibverbs::protection_domain::ProtectionDomain;

c_flags! {
    /// Encryption engines of a device (`mlx5dv_crypto_engines_caps`).
    pub struct CryptoEngines(u8) {
        /// AES-XTS, one block at a time.
        AesXtsSingleBlock = E::MLX5DV_CRYPTO_ENGINES_CAP_AES_XTS_SINGLE_BLOCK.0 as u8,
        /// AES-XTS, several blocks in one operation.
        AesXtsMultiBlock = E::MLX5DV_CRYPTO_ENGINES_CAP_AES_XTS_MULTI_BLOCK.0 as u8,
    }
}

c_flags! {
    /// The state of a device's encryption (`mlx5dv_crypto_caps_flags`).
    pub struct CryptoFlags(u32) {
        /// The device supports encryption.
        Crypto = CF::MLX5DV_CRYPTO_CAPS_CRYPTO.0,
        /// The device accepts wrapped keys.
        WrappedOperational = CF::MLX5DV_CRYPTO_CAPS_WRAPPED_CRYPTO_OPERATIONAL.0,
        /// The device is about to accept wrapped keys.
        WrappedGoingToCommissioning = CF::MLX5DV_CRYPTO_CAPS_WRAPPED_CRYPTO_GOING_TO_COMMISSIONING.0,
    }
}

/// A device's support for encryption (`mlx5dv_crypto_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CryptoCapabilities {
    /// The self-tests that failed; 0 for none.
    pub failed_selftests: u16,
    /// The encryption engines.
    pub engines: CryptoEngines,
    /// Whether the AES-XTS engine accepts wrapped keys only, which this crate does not make.
    pub wrapped_import: bool,
    /// The maximum number of keys, as a power of two.
    pub log_max_num_deks: u8,
    /// The state of encryption.
    pub flags: CryptoFlags,
}

/// The bit of the engine that accepts wrapped keys.
pub(super) const WRAPPED: u8 = W::MLX5DV_CRYPTO_WRAPPED_IMPORT_METHOD_CAP_AES_XTS.0 as u8;

/// An AES-XTS key in plain text: both halves, one after the other. `Debug` does not print it.
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

/// A data encryption key (`mlx5dv_dek`), stored in the device.
pub struct DataEncryptionKey {
    dek: NonNull<mlx5dv_dek>,
    pd: ProtectionDomain,
    direct: DirectVerbs,
}

// SAFETY: the object is never written, and mlx5 allows the functions for it from any thread.
unsafe impl Send for DataEncryptionKey {}
// SAFETY: the object is never written, and mlx5 allows the functions for it from any thread.
unsafe impl Sync for DataEncryptionKey {}

c_enum! {
    /// The state of a key (`mlx5dv_dek_state`).
    pub struct DataEncryptionKeyState(u32) {
        /// The key can be used.
        Ready = S::MLX5DV_DEK_STATE_READY.0,
        /// The key must be created again.
        Error = S::MLX5DV_DEK_STATE_ERROR.0,
    }
}

display_as_debug!(DataEncryptionKeyState);

impl DirectVerbs {
    /// Stores an AES-XTS key in plain text in the device (`mlx5dv_dek_create`). With a `keytag`, a
    /// memory key can use the key only if its configuration has the same tag. `opaque` is [stored
    /// with the key](DataEncryptionKey::query).
    ///
    /// Devices that accept [wrapped keys only](CryptoCapabilities::wrapped_import) reject it; log
    /// in to them through [`as_raw`](Self::as_raw).
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the library is too old, or if the device does not encrypt. Also
    /// fails if the device has no room, or rejects such keys.
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
        // Without `mlx5dv_dek_destroy` the key could not be destroyed.
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
            // Without a login, which means that the key is in plain text.
            comp_mask: u64::from(mlx5dv_dek_init_attr_mask::MLX5DV_DEK_INIT_ATTR_CRYPTO_LOGIN.0),
            ..Default::default()
        };
        let bytes = bytes.iter().chain(keytag.as_ref().map_or(&[][..], |tag| tag));
        for (place, byte) in attr.key.iter_mut().zip(bytes) {
            *place = *byte as c_char;
        }
        // SAFETY: the context is open and belongs to mlx5, the domain belongs to the context, and
        // the attributes are initialised.
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

/// Overwrites a key after use. The volatile writes keep the compiler from removing them.
fn forget(key: &mut [c_char]) {
    for byte in key {
        // SAFETY: `byte` is a mutable borrow.
        unsafe { ptr::from_mut(byte).write_volatile(0) };
    }
}

impl DataEncryptionKey {
    /// The key's state, and the value that was [stored with it](DirectVerbs::create_dek)
    /// (`mlx5dv_dek_query`).
    ///
    /// # Errors
    ///
    /// Fails if the library is too old ([`Unsupported`]), or if the device does not answer.
    ///
    /// # References
    ///
    /// `man mlx5dv_dek_query`
    pub fn query(&self) -> Result<(DataEncryptionKeyState, [u8; 8]), Error> {
        let query = self.direct.as_raw().mlx5dv_dek_query();
        let query = query.map_err(|symbol| Unsupported::missing(self.pd.context(), WHAT, symbol))?;
        let mut attr = mlx5dv_dek_attr::default();
        // SAFETY: `self` keeps the key alive, and `attr` is a local variable.
        let result = check(unsafe { query(self.dek.as_ptr(), &raw mut attr) });
        result.map_err(|source| Error::os("mlx5dv_dek_query", source))?;
        Ok((DataEncryptionKeyState::from_raw(attr.state.0), attr.opaque.map(|byte| byte as u8)))
    }

    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<mlx5dv_dek> {
        self.dek
    }

    /// Destroys the key now (`mlx5dv_dek_destroy`), and returns the error that a drop would only
    /// log.
    ///
    /// # Errors
    ///
    /// Fails if a memory key still uses it. The key comes back.
    ///
    /// # References
    ///
    /// `man mlx5dv_dek_destroy`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let mut key = ManuallyDrop::new(self);
        // SAFETY: `key` owns the C object, and is taken apart below only if this call succeeded.
        match unsafe { key.destroy() } {
            Ok(()) => {
                // SAFETY: `key` is `ManuallyDrop`, so its own drop does not run, and these are the
                // only reads of its handles.
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
    /// The key must be alive. If this succeeds, the key is dead and must not be used again.
    unsafe fn destroy(&mut self) -> io::Result<()> {
        match self.direct.as_raw().mlx5dv_dek_destroy() {
            // SAFETY: the caller guarantees that the key is alive.
            Ok(destroy) => check(unsafe { destroy(self.dek.as_ptr()) }),
            // Not expected: `create_dek` checked that the function exists.
            Err(symbol) => Err(io::Error::other(symbol)),
        }
    }
}

impl Drop for DataEncryptionKey {
    fn drop(&mut self) {
        // SAFETY: `self` owned the key until here, and nothing uses it after the drop.
        if let Err(error) = unsafe { self.destroy() } {
            log::error!("mlx5dv_dek_destroy failed, the key stays: {error}");
            // The library still has the key, so the objects that it depends on must stay alive too.
            std::mem::forget((self.pd.clone(), self.direct.clone()));
        }
    }
}

impl fmt::Debug for DataEncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataEncryptionKey").field("dek", &self.dek).finish_non_exhaustive()
    }
}

/// The order of signature and encryption in a memory key with both
/// (`mlx5dv_signature_crypto_order`), on the way from memory to the wire. The opposite direction
/// uses the reverse order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureCryptoOrder {
    /// Encryption or decryption, then the signature.
    SignatureAfterCrypto,
    /// The signature, then encryption or decryption.
    SignatureBeforeCrypto,
}

/// The encryption of a memory key (`mlx5dv_crypto_attr`), by AES-XTS.
#[derive(Clone, Copy, Debug)]
pub struct Crypto<'key> {
    /// The data encryption key.
    pub dek: &'key DataEncryptionKey,
    /// Whether data is encrypted on the way out of memory and decrypted on the way in; otherwise
    /// the reverse.
    pub encrypt_on_tx: bool,
    /// The order of encryption and signature, if there are signatures.
    pub signature_order: SignatureCryptoOrder,
    /// The number of bytes after which the tweak is incremented. The length of a transfer must be a
    /// multiple of it, or a multiple of 16 that does not end in the last 16 bytes of a unit.
    pub data_unit_size: BlockSize,
    /// The tweak of the first unit, little-endian: usually the number of the first block.
    pub initial_tweak: [u8; 16],
    /// The tag with which the key was made, if any.
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
