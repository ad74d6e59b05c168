//! Tests of mlx5's memory keys: creation, and the requests that configure them.

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::WorkCompletionOperationType;
use sideway::ibverbs::queue_pair::{
    PostSendError, PostSendGuard, QueuePair, ScatterGatherEntry, SendOperationFlags, WorkRequestOperationType,
};
use sideway::mlx5::{
    self, BlockSignature, BlockSize, Crc, CrcType, DirectOperationFlags, DirectQueuePair, DirectRequestError,
    GuardType, InterleavedEntry, MKey, MKeyConfiguration, MKeyFlags, Signature, SignatureDomain,
    SignatureError, SignatureErrorType, SignatureMask, SignatureSeed, T10Dif, T10DifFlags,
};
use sideway::sys::types::*;

use super::super::SIGNALED;
use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::super::support::fake::keys::{Described, Domain, OwnRequest};
use super::DirectSetup;

const INDIRECT: u32 = mlx5dv_mkey_init_attr_flags::MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT.0;

const LAYOUTS: DirectOperationFlags = DirectOperationFlags::MKeyConfigure
    .union(DirectOperationFlags::MrList)
    .union(DirectOperationFlags::MrInterleaved);

/// A pair with all operations for memory keys.
fn pair(parts: &DirectSetup) -> DirectQueuePair {
    let mut description = parts.description();
    let operations = SendOperationFlags::Write | SendOperationFlags::LocalInvalidate;
    description.setup_send_ops_flags(operations);
    let mut builder = parts.mlx5().create_qp_builder(&description);
    builder.setup_direct_send_ops_flags(LAYOUTS).build_direct().unwrap()
}

fn key(parts: &DirectSetup, flags: MKeyFlags) -> MKey {
    parts.mlx5().create_mkey(&parts.pd, 4, flags).unwrap()
}

fn piece(n: u32) -> ScatterGatherEntry {
    ScatterGatherEntry::new(n, u64::from(n) << 12, n * 16)
}

/// Configures a key by a separate list.
fn configure(
    pair: &mut DirectQueuePair,
    key: &mut MKey,
    configuration: &MKeyConfiguration<'_>,
) -> Result<(), PostSendError> {
    let mut guard = pair.start_post_send();
    // SAFETY: the fake device touches no memory, and completes each request at once.
    unsafe { guard.construct_wr(1, SIGNALED).setup_mkey_configure(key, configuration) };
    guard.post()
}

fn refused(reason: DirectRequestError) -> Result<(), PostSendError> {
    Err(PostSendError::Direct { index: 0, reason })
}

#[test]
fn a_key_is_made_as_it_is_described() {
    let parts = DirectSetup::new();
    let mlx5 = parts.mlx5();
    let asked = || parts.fake.world.own.mkey.lock().unwrap().take().expect("a key was to be made");
    let plain = mlx5.create_mkey(&parts.pd, 5, MKeyFlags::empty()).unwrap();
    assert_eq!(asked(), (INDIRECT, 5));
    assert_eq!((plain.max_entries(), plain.flags(), plain.lkey()), (8, MKeyFlags::empty(), plain.rkey()));
    let flags =
        MKeyFlags::BlockSignature | MKeyFlags::Crypto | MKeyFlags::UpdateTag | MKeyFlags::RemoteInvalidate;
    let all = key(&parts, flags);
    assert_eq!(asked(), (INDIRECT | 0b11110, 4));
    assert_eq!((all.flags(), all.max_entries()), (flags, 4));
    assert_ne!(all.lkey(), plain.lkey());
    assert!(all.pd().context() == parts.pd.context());
    // The key keeps its domain alive.
    plain.close().unwrap();
    let DirectSetup { fake, pd, cq } = parts;
    drop((mlx5, pd, cq));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["mkey", "cq"]);
    drop(all);
    assert_eq!(fake.world.destroyed.lock().unwrap()[2..4], ["mkey", "pd"]);
}

#[test]
fn a_key_can_fail() {
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        match parts.mlx5().create_mkey(&parts.pd, 4, MKeyFlags::BlockSignature).unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!(is_unsupported(errno));
                assert_eq!(error.verb(), "mlx5dv_create_mkey");
                let capability = &error.unsupported().unwrap().capability;
                assert!(capability.contains("BlockSignature"), "{capability}");
            }
            error => {
                assert_eq!(error.argument("max_entries"), Some("4"), "{error}");
                assert_says(&error, errno);
            }
        }
    }
    let parts = DirectSetup::new();
    let other = parts.fake.pd();
    let error = parts.mlx5().create_mkey(&other, 4, MKeyFlags::empty()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherContext, "{error}");
}

#[test]
#[cfg_attr(miri, ignore = "leaks what cannot be destroyed")]
fn a_key_that_is_not_destroyed_comes_back() {
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.destroy = errno);
        let error = key(&parts, MKeyFlags::empty()).close().unwrap_err();
        assert_says(&error, errno);
        assert_eq!(error.object.max_entries(), 4);
        // The drop fails as well, and keeps the domain alive.
        drop(error);
        let destroyed = parts.fake.world.destroyed.lock().unwrap().clone();
        assert_eq!(destroyed, ["mkey", "mkey"]);
    }
}

#[test]
fn a_configuration_reaches_the_device_as_it_is() {
    let mut parts = DirectSetup::new();
    let (mut pair, mut one, mut two) =
        (pair(&parts), key(&parts, MKeyFlags::empty()), key(&parts, MKeyFlags::empty()));
    let (first, second) = (one.lkey(), two.lkey());
    let pieces: Vec<_> = (1..=4).map(piece).collect();
    let steps = [InterleavedEntry::new(1, 0x1000, 512, 4), InterleavedEntry::new(2, 0x2000, 65535, 0)];
    let access = AccessFlags::RemoteRead | AccessFlags::RemoteWrite;
    let mut list = MKeyConfiguration::new();
    list.setup_access_flags(access).setup_layout_list(&pieces);
    let mut interleaved = MKeyConfiguration::new();
    // The last setting wins, also for layouts.
    interleaved.setup_layout_list(&pieces).setup_layout_interleaved(7, &steps).setup_reset_signature();
    let mut guard = pair.start_post_send();
    // SAFETY: the fake device touches no memory, and the queue has free places.
    unsafe {
        guard.construct_wr(1, SIGNALED).setup_mkey_configure(&mut one, &list);
        guard.construct_wr(2, SIGNALED).setup_mkey_configure(&mut two, &interleaved);
        // The next request uses the key.
        guard.construct_wr(3, SIGNALED).setup_write(1, 2).setup_sge(first, 0, 160);
    }
    guard.post().unwrap();
    configure(&mut pair, &mut one, &MKeyConfiguration::new()).unwrap();
    let expected_pieces: Vec<_> = (1..=4).map(|n| (u64::from(n) << 12, n * 16, n)).collect();
    let reset = mlx5dv_mkey_conf_flags::MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR.0;
    let expected_steps = vec![(0x1000, 512, 4, 1), (0x2000, 65535, 0, 2)];
    assert_eq!(
        parts.own_requests(),
        [
            OwnRequest::Configure { lkey: first, setters: 2, conf_flags: 0 },
            OwnRequest::Access(access.bits()),
            OwnRequest::LayoutList(expected_pieces),
            OwnRequest::Configure { lkey: second, setters: 1, conf_flags: reset },
            OwnRequest::LayoutInterleaved { repeat_count: 7, steps: expected_steps },
            OwnRequest::Configure { lkey: first, setters: 0, conf_flags: 0 },
        ]
    );
    let mut poller = parts.cq.start_poll().unwrap();
    let mut found = Vec::new();
    while let Some(wc) = poller.next() {
        found.push((wc.wr_id(), wc.opcode()));
    }
    use WorkCompletionOperationType as Op;
    assert_eq!(found, [(1, Op::Driver1), (2, Op::Driver1), (3, Op::RdmaWrite), (1, Op::Driver1)]);
}

#[test]
fn the_short_ways_reach_the_device_as_they_are() {
    let parts = DirectSetup::new();
    let (mut pair, mut one, mut two) =
        (pair(&parts), key(&parts, MKeyFlags::empty()), key(&parts, MKeyFlags::empty()));
    let (first, second) = (one.lkey(), two.lkey());
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteAtomic;
    let mut guard = pair.start_post_send();
    // SAFETY: the fake device touches no memory, and the queue has free places.
    unsafe {
        guard.construct_wr(1, SIGNALED).setup_mr_list(&mut one, access, &[piece(3), piece(1)]);
        let steps = [InterleavedEntry::new(9, 0x9000, 100, 28)];
        guard.construct_wr(2, SIGNALED).setup_mr_interleaved(
            &mut two,
            AccessFlags::empty(),
            u32::MAX,
            &steps,
        );
    }
    guard.post().unwrap();
    let expected = [
        OwnRequest::MrList {
            lkey: first,
            access: access.bits(),
            pieces: vec![(0x3000, 48, 3), (0x1000, 16, 1)],
        },
        OwnRequest::MrInterleaved {
            lkey: second,
            access: 0,
            repeat_count: u32::MAX,
            steps: vec![(0x9000, 100, 28, 9)],
        },
    ];
    assert_eq!(parts.own_requests(), expected);
    // Invalidates the key again.
    let mut guard = pair.start_post_send();
    // SAFETY: the fake device touches no memory, and the queue has free places.
    unsafe {
        guard.construct_wr(3, SIGNALED).setup_invalidate_mkey(&mut two);
        guard.construct_wr(4, SIGNALED).setup_invalidate_mkey(&mut one);
    }
    guard.post().unwrap();
    assert_eq!(*parts.fake.world.invalidated.lock().unwrap(), [second, first]);
    assert_eq!(parts.posted(), 4);
}

#[test]
fn a_signature_reaches_the_device_as_it_is() {
    let parts = DirectSetup::new();
    let (mut pair, mut key) = (pair(&parts), key(&parts, MKeyFlags::BlockSignature));
    let dif = |guard, seed, flags| T10Dif { guard, seed, app_tag: 0x1234, ref_tag: 0x89ab_cdef, flags };
    let of = |signature, block_size| Some(SignatureDomain { signature, block_size });
    let crc = |crc_type, seed| Signature::Crc(Crc { crc_type, seed });
    use SignatureSeed::{Ones, Zeros};
    let remap = T10DifFlags::ReferenceRemap;
    let cases = [
        BlockSignature {
            memory: None,
            wire: of(Signature::T10Dif(dif(GuardType::Crc, Zeros, remap)), BlockSize::Bytes512),
            check_mask: SignatureMask::T10DifGuard | SignatureMask::T10DifReferenceTag,
            copy_mask: None,
        },
        BlockSignature {
            memory: of(
                Signature::T10Dif(dif(
                    GuardType::Checksum,
                    Ones,
                    T10DifFlags::ApplicationEscape | T10DifFlags::ApplicationReferenceEscape,
                )),
                BlockSize::Bytes4160,
            ),
            wire: of(crc(CrcType::Crc32, Ones), BlockSize::Bytes520),
            check_mask: SignatureMask::T10DifApplicationTag,
            copy_mask: Some(SignatureMask::Crc32),
        },
        BlockSignature {
            memory: of(crc(CrcType::Crc64Xp10, Ones), BlockSize::Bytes4096),
            wire: of(crc(CrcType::Crc32c, Zeros), BlockSize::Bytes4048),
            check_mask: SignatureMask::Crc64Xp10,
            copy_mask: Some(SignatureMask::empty()),
        },
    ];
    for signature in cases {
        configure(&mut pair, &mut key, MKeyConfiguration::new().setup_sig_block(signature)).unwrap();
    }
    let t10 =
        |bg_type, bg, flags| Described::T10Dif { bg_type, bg, app_tag: 0x1234, ref_tag: 0x89ab_cdef, flags };
    let domain = |block_size, signature| Some(Domain { block_size, signature });
    let configured = OwnRequest::Configure { lkey: key.lkey(), setters: 1, conf_flags: 0 };
    let expected = [
        OwnRequest::Signature {
            mem: None,
            wire: domain(0, t10(0, 0, 1)),
            flags: 0,
            check_mask: 0xcf,
            copy_mask: 0,
        },
        OwnRequest::Signature {
            mem: domain(4, t10(1, 0xffff, 6)),
            wire: domain(1, Described::Crc { crc_type: 0, seed: 0xffff_ffff }),
            flags: 1,
            check_mask: 0x30,
            copy_mask: 0xf0,
        },
        OwnRequest::Signature {
            mem: domain(3, Described::Crc { crc_type: 2, seed: u64::MAX }),
            wire: domain(2, Described::Crc { crc_type: 1, seed: 0 }),
            flags: 1,
            check_mask: 0xff,
            copy_mask: 0,
        },
    ];
    let expected: Vec<_> =
        expected.into_iter().flat_map(|signature| [configured.clone(), signature]).collect();
    assert_eq!(parts.own_requests(), expected);
    // A key that was made without signatures, and an invalid signature.
    let mut plain = self::key(&parts, MKeyFlags::Crypto);
    let missing = MKeyFlags::BlockSignature;
    let result = configure(&mut pair, &mut plain, MKeyConfiguration::new().setup_sig_block(cases[0]));
    assert_eq!(result, refused(DirectRequestError::KeyWithout { missing }));
    let none = BlockSignature { wire: None, ..cases[0] };
    let result = configure(&mut pair, &mut key, MKeyConfiguration::new().setup_sig_block(none));
    assert_eq!(result, refused(DirectRequestError::NoSignature));
    assert_eq!(parts.own_requests(), []);
}

#[test]
fn a_signature_error_is_told_once() {
    let parts = DirectSetup::new();
    let mut key = key(&parts, MKeyFlags::BlockSignature);
    // SAFETY: no completion queue is polled during the call.
    let mut check = || unsafe { key.check() };
    assert_eq!(check().unwrap(), None);
    let types = [
        (mlx5dv_mkey_err_type::MLX5DV_MKEY_SIG_BLOCK_BAD_GUARD, SignatureErrorType::BadGuard),
        (mlx5dv_mkey_err_type::MLX5DV_MKEY_SIG_BLOCK_BAD_REFTAG, SignatureErrorType::BadReferenceTag),
        (mlx5dv_mkey_err_type::MLX5DV_MKEY_SIG_BLOCK_BAD_APPTAG, SignatureErrorType::BadApplicationTag),
        (mlx5dv_mkey_err_type(4711), SignatureErrorType::from_raw(4711)),
    ];
    for (raw, error_type) in types {
        *parts.fake.world.own.error.lock().unwrap() = Some((raw.0, 1, u64::MAX, 4096));
        let told = SignatureError { error_type, actual_value: 1, expected_value: u64::MAX, offset: 4096 };
        assert_eq!(check().unwrap(), Some(told));
        assert_eq!(check().unwrap(), None);
    }
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.mkey_check = errno);
        let mut key = self::key(&parts, MKeyFlags::empty());
        // SAFETY: no completion queue is polled during the call.
        match unsafe { key.check() }.unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!(is_unsupported(errno));
                assert_eq!(error.verb(), "mlx5dv_mkey_check");
            }
            error => assert_says(&error, errno),
        }
    }
}

#[test]
fn a_layout_is_as_large_as_the_key() {
    let parts = DirectSetup::new();
    let (mut pair, mut key) = (pair(&parts), key(&parts, MKeyFlags::empty()));
    let pieces: Vec<_> = (0..5).map(piece).collect();
    let steps: Vec<_> = (0..4).map(|n| InterleavedEntry::new(n, 0, 1, 0)).collect();
    let too_many = refused(DirectRequestError::TooManyEntries { given: 5, limit: 4 });
    let mut list = |list| configure(&mut pair, &mut key, MKeyConfiguration::new().setup_layout_list(list));
    assert_eq!((list(&pieces[..4]), list(&[]), list(&pieces)), (Ok(()), Ok(()), too_many));
    let mut interleaved =
        |steps| configure(&mut pair, &mut key, MKeyConfiguration::new().setup_layout_interleaved(1, steps));
    // One entry is the common header.
    assert_eq!((interleaved(&steps[..3]), interleaved(&steps)), (Ok(()), too_many));
    // More entries than C's field can count.
    if !cfg!(miri) {
        let many = vec![piece(0); 65536 + 4];
        let result = configure(&mut pair, &mut key, MKeyConfiguration::new().setup_layout_list(&many));
        assert_eq!(result, refused(DirectRequestError::TooManyEntries { given: 65540, limit: 4 }));
    }
    // The sum of both lengths must fit into the same bits as one length.
    for (bytes_count, bytes_skip) in [(65536, 0), (1, 65535), (u32::MAX, u32::MAX)] {
        let steps = [InterleavedEntry::new(1, 2, 3, 4), InterleavedEntry::new(1, 2, bytes_count, bytes_skip)];
        let given = u64::from(bytes_count) + u64::from(bytes_skip);
        let expected = refused(DirectRequestError::InterleavedTooLong { entry: 1, given });
        let result =
            configure(&mut pair, &mut key, MKeyConfiguration::new().setup_layout_interleaved(1, &steps));
        assert_eq!(result, expected);
        let mut guard = pair.start_post_send();
        // SAFETY: `post` below refuses the list, so the device gets no request, and `key` stays as
        // it is.
        unsafe {
            guard.construct_wr(1, SIGNALED).setup_mr_interleaved(&mut key, AccessFlags::empty(), 1, &steps)
        };
        assert_eq!(guard.post(), expected);
    }
    let mut guard = pair.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request, and `key` stays as it
    // is.
    unsafe { guard.construct_wr(1, SIGNALED).setup_mr_list(&mut key, AccessFlags::empty(), &pieces) };
    assert_eq!(guard.post(), too_many);
    // The request itself may lack room, which the library reports.
    let parts = DirectSetup::lying(|l| l.wr_complete = libc::ENOMEM);
    let (mut pair, mut key) = (self::pair(&parts), self::key(&parts, MKeyFlags::empty()));
    let error = configure(&mut pair, &mut key, MKeyConfiguration::new().setup_layout_list(&pieces[..4]));
    assert!(matches!(error, Err(PostSendError::NotEnoughResources { .. })));
}

#[test]
fn a_pair_without_these_requests_refuses_them() {
    let parts = DirectSetup::new();
    let mut pair = {
        let mut builder = parts.mlx5().create_qp_builder(&parts.description());
        builder.setup_direct_send_ops_flags(DirectOperationFlags::RawWqe).build_direct().unwrap()
    };
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    let mut key = key(&parts, MKeyFlags::empty());
    let without = |operation| refused(DirectRequestError::UnsupportedOperation { operation });
    let result = configure(&mut pair, &mut key, &MKeyConfiguration::new());
    assert_eq!(result, without(DirectOperationFlags::MKeyConfigure));
    let mut guard = pair.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request, and `key` stays as it
    // is.
    unsafe { guard.construct_wr(1, SIGNALED).setup_mr_list(&mut key, AccessFlags::empty(), &[]) };
    assert_eq!(guard.post(), without(DirectOperationFlags::MrList));
    let mut guard = initiator.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request, and `key` stays as it
    // is.
    unsafe { guard.construct_wr(1, SIGNALED).setup_mr_interleaved(&mut key, AccessFlags::empty(), 1, &[]) };
    assert_eq!(guard.post(), without(DirectOperationFlags::MrInterleaved));
    let operation = WorkRequestOperationType::LocalInvalidate;
    let mut guard = pair.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request, and `key` stays as it
    // is.
    unsafe { guard.construct_wr(1, SIGNALED).setup_invalidate_mkey(&mut key) };
    assert_eq!(guard.post(), Err(PostSendError::UnsupportedOperation { index: 0, operation }));
    assert_eq!((parts.own_requests(), parts.posted()), (vec![], 0));
    // An ordinary extended pair refuses invalidation, as on every mlx5 device.
    let mut builder = parts.description();
    let operations = SendOperationFlags::Write | SendOperationFlags::LocalInvalidate;
    let mut plain =
        parts.mlx5().create_qp_builder(builder.setup_send_ops_flags(operations)).build_ex().unwrap();
    let mut guard = plain.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_local_inv(key.rkey());
    assert_eq!(guard.post(), Err(PostSendError::FullQueueUnnoticed { index: 0 }));
}

#[test]
fn a_key_of_another_context_is_refused() {
    let parts = DirectSetup::new();
    let mut pair = pair(&parts);
    let pd = parts.fake.pd();
    let elsewhere = mlx5::DirectVerbs::of(pd.context()).unwrap();
    let mut key = elsewhere.create_mkey(&pd, 4, MKeyFlags::empty()).unwrap();
    let other = Err(PostSendError::OtherContext { index: 0 });
    assert_eq!(configure(&mut pair, &mut key, &MKeyConfiguration::new()), other);
    let mut guard = pair.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request, and `key` stays as it
    // is.
    unsafe { guard.construct_wr(1, SIGNALED).setup_invalidate_mkey(&mut key) };
    assert_eq!(guard.post(), other);
    let mut guard = pair.start_post_send();
    // SAFETY: `post` below refuses the list, so the device gets no request, and `key` stays as it
    // is.
    unsafe { guard.construct_wr(1, SIGNALED).setup_mr_list(&mut key, AccessFlags::empty(), &[]) };
    assert_eq!(guard.post(), other);
    assert_eq!(parts.own_requests(), []);
}

/// The library adds two requests after the configuration of a key with signatures; the queue holds
/// 16.
#[test]
fn a_key_with_signatures_takes_three_places() {
    let parts = DirectSetup::new();
    let mut pair = pair(&parts);
    let mut keys: Vec<_> = (0..6).map(|_| key(&parts, MKeyFlags::BlockSignature)).collect();
    let mut plain: Vec<_> = (0..2).map(|_| key(&parts, MKeyFlags::empty())).collect();
    let nothing = MKeyConfiguration::new();
    let mut post = |signed: usize, unsigned: usize| {
        let mut guard = pair.start_post_send();
        for key in keys.iter_mut().take(signed).chain(plain.iter_mut().take(unsigned)) {
            // SAFETY: the fake device touches no memory; a list that is too long is not posted.
            unsafe { guard.construct_wr(1, SIGNALED).setup_mkey_configure(key, &nothing) };
        }
        guard.post()
    };
    let too_many = Err(PostSendError::TooManyWorkRequests { limit: 16 });
    assert_eq!((post(5, 1), post(5, 2), post(6, 0), post(0, 2)), (Ok(()), too_many, too_many, Ok(())));
    assert_eq!(parts.posted(), 8);
}

#[test]
fn a_list_about_a_key_can_be_forgotten() {
    let parts = DirectSetup::new();
    let mut pair = pair(&parts);
    let mut key = key(&parts, MKeyFlags::BlockSignature);
    let pieces = [piece(1)];
    let mut configuration = MKeyConfiguration::new();
    configuration.setup_layout_list(&pieces);
    let mut guard = pair.start_post_send();
    // SAFETY: the guard is dropped without `post`, so the device gets no request for `key`.
    unsafe { guard.construct_wr(1, SIGNALED).setup_mkey_configure(&mut key, &configuration) };
    drop(guard);
    let mut guard = pair.start_post_send();
    // SAFETY: the guard is leaked without `post`, so the device gets no request for `key`.
    unsafe { guard.construct_wr(1, SIGNALED).setup_mkey_configure(&mut key, &configuration) };
    std::mem::forget(guard);
    // The key may be dropped before the leaked list is closed by the next list or by the pair's
    // drop.
    drop(key);
    drop(pair);
    assert_eq!(parts.posted(), 0);
}
