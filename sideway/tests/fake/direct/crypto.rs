//! Tests of mlx5's data encryption keys, and of memory keys with encryption.

use sideway::ErrorKind;
use sideway::ibverbs::queue_pair::{PostSendError, PostSendGuard, QueuePair};
use sideway::mlx5::{
    self, AesXtsKey, BlockSize, Crypto, DataEncryptionKeyState, DirectOperationFlags, DirectRequestError,
    MKeyConfiguration, MKeyFlags, SignatureCryptoOrder,
};
use sideway::sys::types::*;

use super::super::SIGNALED;
use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::super::support::fake::keys::{DekArguments, OwnRequest};
use super::DirectSetup;

const LOGIN: u64 = mlx5dv_dek_init_attr_mask::MLX5DV_DEK_INIT_ATTR_CRYPTO_LOGIN.0 as u64;

#[test]
fn a_data_encryption_key_is_made_as_it_is_described() {
    let parts = DirectSetup::new();
    let mlx5 = parts.mlx5();
    let asked = || parts.fake.world.own.dek.lock().unwrap().take().expect("a key was to be made");
    let bytes: [u8; 64] = std::array::from_fn(|n| n as u8 + 1);
    let padded = |bytes: &[u8]| [bytes, &vec![0; 128 - bytes.len()]].concat();
    let long = mlx5.create_dek(&parts.pd, &AesXtsKey::Bits256(bytes), Some([0xee; 8]), *b"an owner").unwrap();
    let expected = DekArguments {
        key_size: mlx5dv_crypto_key_size::MLX5DV_CRYPTO_KEY_SIZE_256.0,
        has_keytag: true,
        opaque: *b"an owner",
        key: padded(&[&bytes[..], &[0xee; 8]].concat()),
        comp_mask: LOGIN,
        has_login: false,
    };
    assert_eq!(asked(), expected);
    let half: [u8; 32] = std::array::from_fn(|n| bytes[n]);
    let short = mlx5.create_dek(&parts.pd, &AesXtsKey::Bits128(half), None, [0; 8]).unwrap();
    let expected = DekArguments {
        key_size: mlx5dv_crypto_key_size::MLX5DV_CRYPTO_KEY_SIZE_128.0,
        has_keytag: false,
        opaque: [0; 8],
        key: padded(&half),
        ..expected
    };
    assert_eq!(asked(), expected);
    assert_eq!(short.query().unwrap(), (DataEncryptionKeyState::Error, [7; 8]));
    // `Debug` does not print a key.
    assert_eq!(
        format!("{:?} {:?}", AesXtsKey::Bits128(half), AesXtsKey::Bits256(bytes)),
        "Bits128(..) Bits256(..)"
    );
    assert_ne!(long.as_raw(), short.as_raw());
    // The key keeps its domain alive.
    short.close().unwrap();
    let DirectSetup { fake, pd, cq } = parts;
    drop((mlx5, pd, cq));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["dek", "cq"]);
    drop(long);
    assert_eq!(fake.world.destroyed.lock().unwrap()[2..4], ["dek", "pd"]);
}

#[test]
fn a_data_encryption_key_can_fail() {
    let key = AesXtsKey::Bits128([1; 32]);
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        match parts.mlx5().create_dek(&parts.pd, &key, None, [0; 8]).unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!(is_unsupported(errno));
                assert_eq!(error.verb(), "mlx5dv_dek_create");
            }
            error => assert_says(&error, errno),
        }
        let parts = DirectSetup::lying(|l| l.dek_query = errno);
        let dek = parts.mlx5().create_dek(&parts.pd, &key, None, [0; 8]).unwrap();
        assert_says(&dek.query().unwrap_err(), errno);
    }
    let parts = DirectSetup::new();
    let other = parts.fake.pd();
    let error = parts.mlx5().create_dek(&other, &key, None, [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherContext, "{error}");
}

#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn a_data_encryption_key_that_is_not_destroyed_comes_back() {
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.destroy = errno);
        let dek = parts.mlx5().create_dek(&parts.pd, &AesXtsKey::Bits128([1; 32]), None, [0; 8]).unwrap();
        let error = dek.close().unwrap_err();
        assert_says(&error, errno);
        drop(error.object);
        assert_eq!(*parts.fake.world.destroyed.lock().unwrap(), ["dek", "dek"]);
    }
}

#[test]
fn encryption_reaches_the_device_as_it_is() {
    let parts = DirectSetup::new();
    let mlx5 = parts.mlx5();
    let mut builder = mlx5.create_qp_builder(&parts.description());
    let mut pair =
        builder.setup_direct_send_ops_flags(DirectOperationFlags::MKeyConfigure).build_direct().unwrap();
    let dek = mlx5.create_dek(&parts.pd, &AesXtsKey::Bits128([1; 32]), None, [0; 8]).unwrap();
    let mut mkey = mlx5.create_mkey(&parts.pd, 4, MKeyFlags::Crypto).unwrap();
    let crypto = Crypto {
        dek: &dek,
        encrypt_on_tx: true,
        signature_order: SignatureCryptoOrder::SignatureBeforeCrypto,
        data_unit_size: BlockSize::Bytes4096,
        initial_tweak: std::array::from_fn(|n| n as u8),
        keytag: [0xff; 8],
    };
    let other = Crypto {
        encrypt_on_tx: false,
        signature_order: SignatureCryptoOrder::SignatureAfterCrypto,
        data_unit_size: BlockSize::Bytes520,
        ..crypto
    };
    for crypto in [crypto, other] {
        let mut guard = pair.start_post_send();
        let request = guard.construct_wr(1, SIGNALED);
        // SAFETY: the fake device touches no memory, and the data encryption key lives to the end.
        unsafe { request.setup_mkey_configure(&mut mkey, MKeyConfiguration::new().setup_crypto(crypto)) };
        guard.post().unwrap();
    }
    let dek_at = dek.as_raw().as_ptr().addr();
    let set = |encrypt_on_tx, order, unit| OwnRequest::Crypto {
        dek: dek_at,
        encrypt_on_tx,
        order,
        unit,
        tweak: std::array::from_fn(|n| n as u8),
        keytag: [0xff; 8],
    };
    let configured = OwnRequest::Configure { lkey: mkey.lkey(), setters: 1, conf_flags: 0 };
    use mlx5dv_signature_crypto_order as O;
    let before = O::MLX5DV_SIGNATURE_CRYPTO_ORDER_SIGNATURE_BEFORE_CRYPTO_ON_TX.0;
    let after = O::MLX5DV_SIGNATURE_CRYPTO_ORDER_SIGNATURE_AFTER_CRYPTO_ON_TX.0;
    let expected = [configured.clone(), set(true, before, 3), configured, set(false, after, 1)];
    assert_eq!(parts.own_requests(), expected);
    // A key that was made without encryption.
    let mut plain = mlx5.create_mkey(&parts.pd, 4, MKeyFlags::BlockSignature).unwrap();
    let mut guard = pair.start_post_send();
    let request = guard.construct_wr(1, SIGNALED);
    // SAFETY: `post` below refuses the list, so the device gets no request, and `plain` stays as it
    // is.
    unsafe { request.setup_mkey_configure(&mut plain, MKeyConfiguration::new().setup_crypto(crypto)) };
    let reason = DirectRequestError::KeyWithout { missing: MKeyFlags::Crypto };
    assert_eq!(guard.post(), Err(PostSendError::Direct { index: 0, reason }));
}

#[test]
fn a_data_encryption_key_of_another_context_is_refused() {
    let parts = DirectSetup::new();
    let mut builder = parts.mlx5().create_qp_builder(&parts.description());
    let mut pair =
        builder.setup_direct_send_ops_flags(DirectOperationFlags::MKeyConfigure).build_direct().unwrap();
    let pd = parts.fake.pd();
    let elsewhere = mlx5::DirectVerbs::of(pd.context()).unwrap();
    let dek = elsewhere.create_dek(&pd, &AesXtsKey::Bits128([1; 32]), None, [0; 8]).unwrap();
    let mut mkey = parts.mlx5().create_mkey(&parts.pd, 4, MKeyFlags::Crypto).unwrap();
    let crypto = Crypto {
        dek: &dek,
        encrypt_on_tx: true,
        signature_order: SignatureCryptoOrder::SignatureBeforeCrypto,
        data_unit_size: BlockSize::Bytes512,
        initial_tweak: [0; 16],
        keytag: [0; 8],
    };
    let mut guard = pair.start_post_send();
    let request = guard.construct_wr(1, SIGNALED);
    // SAFETY: `post` below refuses the list, so the device gets no request, and `mkey` stays as it
    // is.
    unsafe { request.setup_mkey_configure(&mut mkey, MKeyConfiguration::new().setup_crypto(crypto)) };
    assert_eq!(guard.post(), Err(PostSendError::OtherContext { index: 0 }));
    assert_eq!(parts.own_requests(), []);
}

#[test]
fn reports_signature_and_crypto_capabilities() {
    let parts = DirectSetup::lying(|l| l.max_memcpy = 1 << 20);
    let capabilities = parts.mlx5().query_device().unwrap();
    assert_eq!(capabilities.max_wr_memcpy_length(), Some(1 << 20));
    let signatures = mlx5::SignatureCapabilities {
        block_sizes: mlx5::BlockSizes::Bytes4096,
        types: mlx5::SignatureTypes::T10Dif | mlx5::SignatureTypes::Crc,
        guards: mlx5::GuardTypes::Crc,
        crcs: mlx5::CrcTypes::Crc32c | mlx5::CrcTypes::Crc64Xp10,
    };
    assert_eq!(capabilities.signatures(), Some(signatures));
    let crypto = mlx5::CryptoCapabilities {
        failed_selftests: 0,
        engines: mlx5::CryptoEngines::AesXtsSingleBlock | mlx5::CryptoEngines::AesXtsMultiBlock,
        wrapped_import: true,
        log_max_num_deks: 5,
        flags: mlx5::CryptoFlags::Crypto | mlx5::CryptoFlags::WrappedOperational,
    };
    assert_eq!(capabilities.crypto(), Some(crypto));
}
