//! Direct verbs: which arguments reach C, what is refused before, and how failures come back.

use std::os::fd::{AsFd, AsRawFd};

use sideway::direct::DirectVerbsError;
use sideway::efa::{
    self, Capabilities, CompletionFields, CreateSrdError, InterconnectIds, QueryObjectError, SrdFlags,
};
use sideway::ibverbs::address::AddressHandleAttribute;
use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::completion::{CompletionQueue, ExtendedCompletionQueue};
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::memory_region::MemoryKind;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    self, ExtendedQueuePair, PostSendError, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairBuilder,
    QueuePairState, QueuePairType, SendOperationFlags, WorkRequestOperationType,
};
use sideway::ibverbs::{AccessFlags, Unsupported};
use sideway::mlx5::{
    self, CqeCompression, CqeFormats, CqeSize, DciStreams, DmabufAccess, DmabufRange, QueuePairCreateFlags,
    RegisterDmabufError,
};
use sideway::sys::types::*;

use super::SIGNALED;
use super::control::{ERRNOS, assert_says, is_unsupported};
use super::support::fake::direct::{DcAddress, DmabufArguments, QpArguments};
use super::support::fake::{Fake, Lies, old_provider};

/// The masks of an extended pair's attributes.
const EXTENDED: u32 =
    ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
const DRIVER: u32 = ibv_qp_type::IBV_QPT_DRIVER.0;

/// What a pair is made of. The device goes last, and looks whether anything was left behind.
struct Parts {
    pd: ProtectionDomain,
    cq: ExtendedCompletionQueue,
    fake: Fake,
}

impl Parts {
    fn lying(about: impl FnOnce(&mut Lies)) -> Self {
        let fake = Fake::lying(about);
        let pd = fake.pd();
        let cq = pd.context().create_cq_builder().build_ex().unwrap();
        Self { pd, cq, fake }
    }

    fn new() -> Self {
        Self::lying(|_| {})
    }

    fn mlx5(&self) -> mlx5::DirectVerbs {
        mlx5::DirectVerbs::of(self.pd.context()).unwrap()
    }

    fn efa(&self) -> efa::DirectVerbs {
        efa::DirectVerbs::of(self.pd.context()).unwrap()
    }

    fn description(&self) -> QueuePairBuilder {
        let mut description = self.pd.create_qp_builder();
        description.setup_send_cq(&self.cq).setup_recv_cq(&self.cq).setup_max_inline_data(16);
        description
    }

    fn address(&self) -> AddressHandle {
        handle(self.pd.context())
    }

    fn arguments(&self) -> QpArguments {
        self.fake.world.direct.qp.lock().unwrap().take().expect("a pair was to be made")
    }

    fn addresses(&self) -> Vec<DcAddress> {
        std::mem::take(&mut *self.fake.world.direct.addresses.lock().unwrap())
    }
}

fn handle(context: &DeviceContext) -> AddressHandle {
    let mut attr = AddressHandleAttribute::new();
    attr.setup_port(1);
    context.alloc_pd().unwrap().create_ah(&attr).unwrap()
}

#[test]
fn a_device_of_another_vendor_is_refused() {
    let fake = Fake::lying(|l| l.no_direct_verbs = true);
    let context = fake.context();
    let error = mlx5::DirectVerbs::of(&context).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no direct verbs of mlx5 (mlx5dv_is_supported)");
    assert!(matches!(error, DirectVerbsError::Unsupported(Unsupported { missing: None, .. })));
    let error = efa::DirectVerbs::of(&context).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no direct verbs of EFA (efadv_query_device)");
    assert!(matches!(error, DirectVerbsError::Unsupported(Unsupported { missing: None, .. })));
}

#[test]
fn an_efa_device_can_fail_to_answer() {
    for errno in ERRNOS.into_iter().filter(|errno| !is_unsupported(*errno)) {
        let fake = Fake::lying(|l| l.efadv_query_device = errno);
        let error = efa::DirectVerbs::of(&fake.context()).unwrap_err();
        assert!(matches!(error, DirectVerbsError::Failed { verb: "efadv_query_device", .. }), "{error}");
        assert_says(&error, errno);
    }
}

#[test]
fn an_old_library_names_symbol_and_release() {
    let _fake = Fake::new();
    let context = DeviceList::from_provider(old_provider()).unwrap().first().unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq_builder().build_ex().unwrap();
    let mut description = pd.create_qp_builder();
    description.setup_send_cq(&cq).setup_recv_cq(&cq);
    let (mlx5, efa) = (mlx5::DirectVerbs::of(&context).unwrap(), efa::DirectVerbs::of(&context).unwrap());
    let error = mlx5.create_dc_initiator_builder(&description).build().unwrap_err().to_string();
    assert_eq!(
        error,
        "device fake0 has no DC initiators here: libmlx5.so.1 does not export `mlx5dv_qp_ex_from_ibv_qp_ex` (added in \
         MLX5_1.10, rdma-core 24)"
    );
    let error = mlx5.data_direct_sysfs_path().unwrap_err().to_string();
    assert!(
        error.contains("`mlx5dv_get_data_direct_sysfs_path` (added in MLX5_1.25, rdma-core 54)"),
        "{error}"
    );
    let error = efa.create_srd_builder(&description).build().unwrap_err().to_string();
    assert!(
        error.contains("libefa.so.1 does not export `efadv_create_qp_ex` (added in EFA_1.1, rdma-core 26)")
    );
    let error = efa.create_cq_builder(&context.create_cq_builder()).build_ex().unwrap_err().to_string();
    assert!(error.contains("`efadv_create_cq` (added in EFA_1.2, rdma-core 43)"), "{error}");
    let error = efa.query_ah(&handle(&context)).unwrap_err().to_string();
    assert!(error.contains("`efadv_query_ah` (added in EFA_1.1, rdma-core 26)"), "{error}");
}

#[test]
fn what_the_device_tells_is_told() {
    let parts = Parts::new();
    let capabilities = parts.mlx5().query_device().unwrap();
    assert!(capabilities.flags().contains(mlx5::ContextFlags::Cqe128Padding));
    let formats = CqeFormats::Hash | CqeFormats::Checksum;
    assert_eq!(capabilities.cqe_compression(), Some(CqeCompression { max_num: 64, formats }));
    let streams = DciStreams { log_num_concurrent: 4, log_num_errored: 2 };
    assert_eq!(capabilities.dci_streams(), Some(streams));
    // What the library does not know of.
    assert_eq!((capabilities.out_of_order_receives(), capabilities.max_dc_rd_atom()), (None, None));
    for errno in ERRNOS {
        let parts = Parts::lying(|l| l.direct = errno);
        assert_says(&parts.mlx5().query_device().unwrap_err(), errno);
    }

    let parts = Parts::lying(|l| l.efa_capabilities = EFADV_DEVICE_ATTR_CAPS_RDMA_READ | 1 << 31);
    let efa = parts.efa();
    let attributes = efa.query_device();
    assert_eq!((attributes.max_sq_wr(), attributes.max_rdma_size()), (256, 1 << 30));
    assert_eq!(attributes.inline_buf_size(), 32);
    assert!(attributes.capabilities().contains(Capabilities::RdmaRead));
    assert!(!attributes.capabilities().contains(Capabilities::RdmaWrite));
    let sizes = parts.fake.world.direct.sizes.lock().unwrap().clone();
    assert_eq!(sizes, [("efadv_query_device", size_of::<efadv_device_attr>() as u32)]);
}

#[test]
fn an_initiator_is_made_as_it_is_described() {
    let parts = Parts::new();
    let mlx5 = parts.mlx5();
    let mut description = parts.description();
    // What one description says for targets makes no difference.
    let srq = parts.pd.create_srq_builder().build().unwrap();
    description.setup_srq(&srq);
    let all = SendOperationFlags::of_type(QueuePairType::ReliableConnection).bits();
    let mut builder = mlx5.create_dc_initiator_builder(&description);
    let initiator = builder.build().unwrap();
    assert_eq!(initiator.qp_type(), QueuePairType::DcInitiator);
    let capability = initiator.control().capability();
    assert_eq!((capability.max_inline_data, capability.max_recv_wr), (0, 0));
    let dc = u64::from(mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_DC.0);
    let plain = QpArguments {
        qp_type: DRIVER,
        comp_mask: EXTENDED,
        send_ops: all,
        srq: false,
        own_mask: dc,
        create_flags: 0,
        dc_type: mlx5dv_dc_type::MLX5DV_DCTYPE_DCI.0,
        dc_union: 0,
    };
    assert_eq!(parts.arguments(), plain);
    builder.setup_create_flags(QueuePairCreateFlags::OutOfOrderDataPlacement);
    builder.setup_streams(DciStreams { log_num_concurrent: 3, log_num_errored: 1 });
    drop(builder.build().unwrap());
    let flags = u64::from(mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.0);
    let streams = u64::from(mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS.0);
    let asked = QpArguments {
        own_mask: dc | flags | streams,
        create_flags: mlx5dv_qp_create_flags::MLX5DV_QP_CREATE_OOO_DP.0,
        dc_union: u64::from_ne_bytes([3, 1, 0, 0, 0, 0, 0, 0]),
        ..plain
    };
    assert_eq!(parts.arguments(), asked);
    // One completion queue is enough, whichever it is, and the operations are the description's.
    let mut description = parts.pd.create_qp_builder();
    description.setup_send_cq(&parts.cq).setup_send_ops_flags(SendOperationFlags::Write);
    description.setup_qp_type(QueuePairType::UnreliableDatagram);
    drop(mlx5.create_dc_initiator_builder(&description).build().unwrap());
    assert_eq!(parts.arguments(), QpArguments { send_ops: SendOperationFlags::Write.bits(), ..plain });
}

#[test]
fn a_target_is_made_as_it_is_described() {
    let parts = Parts::new();
    let mlx5 = parts.mlx5();
    let srq = parts.pd.create_srq_builder().build().unwrap();
    let mut description = parts.pd.create_qp_builder();
    description.setup_recv_cq(&parts.cq);
    let error = mlx5.create_dc_target_builder(&description, 1).build().unwrap_err();
    assert!(matches!(error, mlx5::CreateQueuePairError::MissingSharedReceiveQueue), "{error}");
    description.setup_srq(&srq);
    let mut builder = mlx5.create_dc_target_builder(&description, 0x0123_4567_89ab_cdef);
    builder.setup_create_flags(QueuePairCreateFlags::DisableScatterToCqe);
    let mut target = builder.build().unwrap();
    let masks = mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_DC.0
        | mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.0;
    let expected = QpArguments {
        qp_type: DRIVER,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
        send_ops: 0,
        srq: true,
        own_mask: u64::from(masks),
        create_flags: mlx5dv_qp_create_flags::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE.0,
        dc_type: mlx5dv_dc_type::MLX5DV_DCTYPE_DCT.0,
        dc_union: 0x0123_4567_89ab_cdef,
    };
    assert_eq!(parts.arguments(), expected);
    // It has a number as long as it is ready to receive.
    assert_eq!((target.dct_number(), target.access_key()), (None, 0x0123_4567_89ab_cdef));
    let mut attr = QueuePairAttribute::new();
    target.modify(attr.setup_state(QueuePairState::Init)).unwrap();
    assert_eq!(target.dct_number(), None);
    target.modify(attr.setup_state(QueuePairState::ReadyToReceive)).unwrap();
    let number = target.dct_number().expect("it is ready to receive");
    assert_ne!(number, 0);
    assert_eq!(target.state().unwrap(), QueuePairState::ReadyToReceive);
    target.modify(attr.setup_state(QueuePairState::Error)).unwrap();
    assert_eq!(target.dct_number(), None);
    // It keeps what it is made of.
    let Parts { fake, pd, cq } = parts;
    drop((srq, pd, cq, description, builder, mlx5));
    assert!(fake.world.destroyed.lock().unwrap().is_empty());
    drop(target);
    assert_eq!(fake.world.destroyed.lock().unwrap()[0], "qp");
}

#[test]
fn a_pair_of_libibverbs_takes_options() {
    let parts = Parts::new();
    let mut builder = parts.mlx5().create_qp_builder(&parts.description());
    drop(builder.build_ex().unwrap());
    assert_eq!(parts.arguments().own_mask, 0);
    let pair = builder.setup_create_flags(QueuePairCreateFlags::PacketBasedCreditMode).build_ex().unwrap();
    assert_eq!(
        (pair.qp_type(), pair.control().capability().max_inline_data),
        (QueuePairType::ReliableConnection, 0)
    );
    let arguments = parts.arguments();
    assert_eq!(arguments.qp_type, ibv_qp_type::IBV_QPT_RC.0);
    let mask = mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.0;
    let flag = mlx5dv_qp_create_flags::MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE.0;
    assert_eq!((arguments.own_mask, arguments.create_flags), (u64::from(mask), flag));
}

#[test]
fn pairs_of_mlx5_can_fail() {
    for errno in ERRNOS {
        let parts = Parts::lying(|l| l.direct = errno);
        let mlx5 = parts.mlx5();
        let srq = parts.pd.create_srq_builder().build().unwrap();
        let mut description = parts.description();
        let errors = [
            mlx5.create_qp_builder(&description).build_ex().unwrap_err(),
            mlx5.create_dc_initiator_builder(&description).build().unwrap_err(),
            mlx5.create_dc_target_builder(description.setup_srq(&srq), 1).build().unwrap_err(),
        ];
        for error in errors {
            match error {
                mlx5::CreateQueuePairError::Unsupported(Unsupported { verb, ref device, .. }) => {
                    assert!(is_unsupported(errno), "{error}");
                    assert_eq!((verb, device.as_str()), ("mlx5dv_create_qp", "fake0"));
                }
                error => assert_says(&error, errno),
            }
        }
    }
}

#[test]
fn an_initiator_without_its_operations_is_not_made() {
    let cases: [(&[&str], bool); 4] = [
        (&["mlx5dv_qp_ex"], false),
        (&["wr_set_dc_addr"], false),
        (&["wr_set_dc_addr_stream"], true),
        (&["qp_ex"], false),
    ];
    for (missing, streams) in cases {
        let parts = Parts::lying(|l| l.missing = missing);
        let mut builder = parts.mlx5().create_dc_initiator_builder(&parts.description());
        if streams {
            builder.setup_streams(DciStreams::default());
        }
        let error = builder.build().unwrap_err().to_string();
        assert!(error.contains("without `"), "{missing:?}: {error}");
    }
}

#[test]
fn a_driver_s_own_type_is_not_made_by_libibverbs() {
    let parts = Parts::new();
    for qp_type in
        [QueuePairType::DcInitiator, QueuePairType::DcTarget, QueuePairType::ScalableReliableDatagram]
    {
        let mut description = parts.description();
        description.setup_qp_type(qp_type);
        for error in
            [description.build().map(drop).unwrap_err(), description.build_ex().map(drop).unwrap_err()]
        {
            assert!(matches!(error, queue_pair::CreateQueuePairError::UnknownType { .. }), "{error}");
        }
    }
}

#[test]
fn what_belongs_to_another_context_is_refused() {
    let parts = Parts::new();
    let elsewhere = parts.fake.context();
    let (mlx5, efa) = (mlx5::DirectVerbs::of(&elsewhere).unwrap(), efa::DirectVerbs::of(&elsewhere).unwrap());
    let description = parts.description();
    let error = mlx5.create_qp_builder(&description).build_ex().unwrap_err();
    assert!(matches!(error, mlx5::CreateQueuePairError::OtherContext));
    let error = mlx5.create_dc_initiator_builder(&description).build().unwrap_err();
    assert!(matches!(error, mlx5::CreateQueuePairError::OtherContext));
    let error = mlx5.create_dc_target_builder(&description, 1).build().unwrap_err();
    assert!(matches!(error, mlx5::CreateQueuePairError::OtherContext));
    assert!(matches!(efa.create_srd_builder(&description).build(), Err(CreateSrdError::OtherContext)));
    let description = parts.pd.context().create_cq_builder();
    let error = mlx5.create_cq_builder(&description).build_ex().unwrap_err();
    assert!(matches!(error, mlx5::CreateCompletionQueueError::OtherContext));
    let error = efa.create_cq_builder(&description).build_ex().unwrap_err();
    assert!(matches!(error, efa::CreateCompletionQueueError::OtherContext));
    let error = efa.query_ah(&parts.address()).unwrap_err();
    assert!(matches!(error, QueryObjectError::OtherContext { object: "address handle" }));
    // Nor does a request go by an address handle of another context.
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    let ah = handle(&elsewhere);
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 7, 9).setup_write(1, 2));
    assert_eq!(guard.post(), Err(PostSendError::OtherContext { index: 0 }));
    assert!(parts.addresses().is_empty());
}

/// Posts to an initiator: a request of each kind, to a target each.
#[test]
fn every_request_goes_to_its_target() {
    let parts = Parts::new();
    let mut builder = parts.mlx5().create_dc_initiator_builder(&parts.description());
    let mut initiator = builder.setup_streams(DciStreams::default()).build().unwrap();
    let (one, two) = (parts.address(), parts.address());
    let mut bytes = [0u64; 2];
    let address = bytes.as_mut_ptr() as u64;
    let mut guard = initiator.start_post_send();
    let send = guard.construct_wr(1, SIGNALED).setup_dc_address(&one, 0x10, 0x1111);
    // SAFETY: no memory is named, and there is a place.
    unsafe { send.setup_send().setup_sge_list(&[]) };
    let write = guard.construct_wr(2, SIGNALED).setup_dc_address(&two, 0x20, u64::MAX).setup_write(1, 2);
    // SAFETY: the fake device touches no memory.
    unsafe { write.setup_sge(3, address, 8) };
    let read = guard.construct_wr(3, SIGNALED).setup_dc_address_stream(&one, 0x30, 3, 5).setup_read(1, 2);
    // SAFETY: as above.
    unsafe { read.setup_sge(3, address, 8) };
    let add = guard.construct_wr(4, SIGNALED).setup_dc_address(&two, 0x40, 4).setup_atomic_fetch_add(1, 8, 1);
    // SAFETY: as above.
    unsafe { add.setup_sge(3, address, 8) };
    guard.post().unwrap();
    let at = |number, access_key, stream| DcAddress { number, access_key, stream };
    let expected =
        [at(0x10, 0x1111, None), at(0x20, u64::MAX, None), at(0x30, 3, Some(5)), at(0x40, 4, None)];
    assert_eq!(parts.addresses(), expected);
    // By both halves, too.
    let (mut send, receive) = initiator.into_split();
    use sideway::ibverbs::queue_pair::SendQueue;
    let mut guard = send.start_post_send();
    let last = guard.construct_wr(5, SIGNALED).setup_dc_address(&one, 0x50, 5).setup_send_imm(1);
    // SAFETY: as above.
    unsafe { last.setup_sge_list(&[]) };
    guard.post().unwrap();
    assert_eq!(parts.addresses(), [at(0x50, 5, None)]);
    drop((send, receive, bytes));
    let mut cq = parts.cq;
    let mut poller = cq.start_poll().unwrap();
    let mut found = Vec::new();
    while let Some(wc) = poller.next() {
        found.push(wc.wr_id());
    }
    assert_eq!(found, [1, 2, 3, 4, 5]);
}

#[test]
fn a_request_without_its_target_is_refused() {
    let parts = Parts::new();
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    let ah = parts.address();
    // The second of three, after one whose handle was dropped: its target is not the next one's.
    let mut guard = initiator.start_post_send();
    let first = guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send();
    // SAFETY: no memory is named, and there is a place.
    unsafe { first.setup_sge_list(&[]) };
    drop(guard.construct_wr(2, SIGNALED).setup_dc_address(&ah, 2, 2));
    drop(guard.construct_wr(3, SIGNALED).setup_send());
    drop(guard.construct_wr(4, SIGNALED).setup_dc_address(&ah, 4, 4).setup_send());
    let operation = WorkRequestOperationType::Send;
    let error = guard.post().unwrap_err();
    assert_eq!(error, PostSendError::MissingDestination { index: 1, operation });
    assert_eq!((error.bad_work_request(), error.posted()), (Some(1), Some(0)));
    // Without a buffer nobody promises a place, and this device does not notice in time that there is none.
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send());
    assert_eq!(guard.post(), Err(PostSendError::FullQueueUnnoticed { index: 0 }));
    // A stream where there are none, a datagram's address, what it cannot do, and what there is no room for.
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_dc_address_stream(&ah, 1, 1, 1).setup_send());
    let error = guard.post().unwrap_err();
    assert_eq!((error, error.bad_work_request()), (PostSendError::NoStreams { index: 0 }, Some(0)));
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_ud_address(&ah, 1, 1).setup_send());
    assert!(matches!(guard.post(), Err(PostSendError::MissingDestination { index: 0, .. })));
    let mut guard = initiator.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send().setup_inline_data(&[1]);
    assert!(matches!(guard.post(), Err(PostSendError::InlineDataTooLong { index: 0, given: 1, limit: 0 })));
    let mut guard = initiator.start_post_send();
    for n in 0..17 {
        let send = guard.construct_wr(n, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send();
        // SAFETY: no memory is named; a list that is too long is not posted.
        unsafe { send.setup_sge_list(&[]) };
    }
    assert_eq!(guard.post(), Err(PostSendError::TooManyWorkRequests { limit: 16 }));
    // A list that is dropped or leaked never happened.
    drop(parts.addresses());
    let mut guard = initiator.start_post_send();
    let send = guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 1, 1).setup_send();
    // SAFETY: as above.
    unsafe { send.setup_sge_list(&[]) };
    std::mem::forget(guard);
    let mut guard = initiator.start_post_send();
    let send = guard.construct_wr(2, SIGNALED).setup_dc_address(&ah, 2, 2).setup_send();
    // SAFETY: as above.
    unsafe { send.setup_sge_list(&[]) };
    guard.post().unwrap();
    assert_eq!(parts.fake.world.posted.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn a_stream_is_reset() {
    let parts = Parts::new();
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    // A list that was leaked is ended first.
    std::mem::forget(initiator.start_post_send());
    initiator.split().0.reset_stream(5).unwrap();
    assert_eq!(*parts.fake.world.direct.stream.lock().unwrap(), Some(5));
    for errno in ERRNOS {
        let parts = Parts::lying(|l| l.stream_reset = errno);
        let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
        match initiator.split().0.reset_stream(5).unwrap_err() {
            mlx5::ResetStreamError::Unsupported(Unsupported { verb, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "mlx5dv_dci_stream_id_reset");
            }
            error => assert_says(&error, errno),
        }
    }
}

#[test]
fn completion_queues_take_options() {
    let parts = Parts::new();
    let description = parts.pd.context().create_cq_builder();
    let mut builder = parts.mlx5().create_cq_builder(&description);
    let asked = || parts.fake.world.direct.mlx5_cq.lock().unwrap().take().expect("a queue was made");
    drop(builder.build_ex().unwrap());
    assert_eq!(asked().comp_mask, 0);
    builder
        .setup_cqe_compression(CqeFormats::Checksum)
        .setup_cqe_size(CqeSize::Bytes128)
        .setup_cqe_padding(true);
    let cq = builder.build_ex().unwrap();
    assert_eq!(cq.cqe(), 1024);
    let attr = asked();
    assert_eq!((attr.comp_mask, attr.cqe_comp_res_format, attr.cqe_size, attr.flags), (0b111, 2, 128, 1));
    for errno in ERRNOS {
        let parts = Parts::lying(|l| l.direct = errno);
        let description = parts.pd.context().create_cq_builder();
        match parts.mlx5().create_cq_builder(&description).build_ex().unwrap_err() {
            mlx5::CreateCompletionQueueError::Unsupported(Unsupported { verb, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "mlx5dv_create_cq");
            }
            error => assert_says(&error, errno),
        }
    }
}

#[test]
fn a_dmabuf_is_registered_as_it_is_described() {
    let parts = Parts::new();
    let mlx5 = parts.mlx5();
    // A descriptor that is open; the fake device does not look what of.
    let null = std::fs::File::open("/dev/null").unwrap();
    let range = DmabufRange { fd: null.as_fd(), offset: 0x1000, length: 0x2000, iova: 0x7000_1000 };
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    // SAFETY: it is no dma-buf, and nobody posts to it.
    let mr = unsafe { mlx5.reg_dmabuf_mr(&parts.pd, range, access, DmabufAccess::DataDirect) }.unwrap();
    assert_eq!((mr.iova(), mr.region_len(), mr.access()), (0x7000_1000, 0x2000, access));
    assert!(mr.get_ptr().is_null() && matches!(mr.kind(), MemoryKind::DmaBuf));
    let expected = DmabufArguments {
        offset: 0x1000,
        length: 0x2000,
        iova: 0x7000_1000,
        fd: null.as_raw_fd(),
        access: access.bits() as i32,
        mlx5_access: 1,
    };
    assert_eq!(parts.fake.world.direct.dmabuf.lock().unwrap().take(), Some(expected));
    mr.close().unwrap();
    let other = parts.fake.pd();
    // SAFETY: as above.
    let error = unsafe { mlx5.reg_dmabuf_mr(&other, range, access, DmabufAccess::empty()) }.unwrap_err();
    assert!(matches!(error, RegisterDmabufError::OtherContext));
    let path = mlx5.data_direct_sysfs_path().unwrap();
    assert_eq!(path.as_deref(), Some("/sys/devices/pci0000:00/0000:00:01.0".as_ref()));
    for errno in ERRNOS.into_iter().chain([libc::ENODEV]) {
        let parts = Parts::lying(|l| l.direct = errno);
        let mlx5 = parts.mlx5();
        // SAFETY: as above.
        match unsafe { mlx5.reg_dmabuf_mr(&parts.pd, range, access, DmabufAccess::DataDirect) }.unwrap_err() {
            RegisterDmabufError::Unsupported(Unsupported { verb, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "mlx5dv_reg_dmabuf_mr");
            }
            error => assert_says(&error, errno),
        }
        match mlx5.data_direct_sysfs_path() {
            Ok(path) => assert_eq!((path, errno), (None, libc::ENODEV)),
            Err(mlx5::DataDirectPathError::Unsupported(_)) => assert!(is_unsupported(errno)),
            Err(error) => assert_says(&error, errno),
        }
    }
}

/// An SRD pair of a device that can do all of this.
fn srd(parts: &Parts, flags: SrdFlags) -> ExtendedQueuePair {
    let mut builder = parts.efa().create_srd_builder(&parts.description());
    builder.setup_flags(flags).setup_service_level(3).build().unwrap()
}

const RDMA: u32 = EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;

#[test]
fn an_srd_pair_is_made_as_it_is_described() {
    use SendOperationFlags as Op;
    let sends = Op::Send | Op::SendWithImmediate;
    for (capabilities, operations) in [
        (0, sends),
        (EFADV_DEVICE_ATTR_CAPS_RDMA_READ, sends | Op::Read),
        (RDMA, sends | Op::Read | Op::Write | Op::WriteWithImmediate),
    ] {
        let parts = Parts::lying(|l| l.efa_capabilities = capabilities);
        let pair = srd(&parts, SrdFlags::UnsolicitedWriteReceive);
        assert_eq!(pair.qp_type(), QueuePairType::ScalableReliableDatagram);
        let arguments = parts.arguments();
        assert_eq!((arguments.qp_type, arguments.comp_mask), (DRIVER, EXTENDED));
        assert_eq!(arguments.send_ops, operations.bits());
        let own = parts.fake.world.direct.efa_qp.lock().unwrap().take().expect("a pair was made");
        assert_eq!(
            (own.comp_mask, own.driver_qp_type, own.flags, own.sl),
            (0, EFADV_QP_DRIVER_TYPE_SRD, 1, 3)
        );
        let sizes = parts.fake.world.direct.sizes.lock().unwrap().clone();
        assert!(sizes.contains(&("efadv_create_qp_ex", size_of::<efadv_qp_init_attr>() as u32)));
    }
    for errno in ERRNOS {
        let parts = Parts::lying(|l| l.direct = errno);
        match parts.efa().create_srd_builder(&parts.description()).build().unwrap_err() {
            CreateSrdError::Unsupported(Unsupported { verb, ref device, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!((verb, device.as_str()), ("efadv_create_qp_ex", "fake0"));
            }
            error => assert_says(&error, errno),
        }
    }
    // Every request needs its address, so that a pair is not made without.
    let parts = Parts::lying(|l| l.missing = &["wr_set_ud_addr"]);
    let error = parts.efa().create_srd_builder(&parts.description()).build().unwrap_err();
    assert!(error.to_string().contains("wr_set_ud_addr"), "{error}");
}

#[test]
fn a_request_of_an_srd_pair_goes_where_it_is_addressed() {
    let parts = Parts::lying(|l| l.efa_capabilities = RDMA);
    let mut pair = srd(&parts, SrdFlags::empty());
    let ah = parts.address();
    let last = || *parts.fake.world.objects.last_datagram.lock().unwrap();
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_send().setup_inline_data(&[1, 2]);
    drop(guard.construct_wr(2, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write_imm(1, 2, 3));
    drop(guard.construct_wr(3, SIGNALED).setup_srd_address(&ah, 7, 8).setup_read(1, 2));
    drop(guard.construct_wr(4, SIGNALED).setup_ud_address(&ah, 9, 10).setup_send_imm(1));
    guard.post().unwrap();
    assert_eq!(last(), Some((9, 10)));
    let mut guard = pair.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_write(1, 2));
    let operation = WorkRequestOperationType::Write;
    assert_eq!(guard.post(), Err(PostSendError::MissingDestination { index: 0, operation }));
    // Inline data is for sends, unless the pair was made with more.
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write(1, 2).setup_inline_data(&[1]);
    assert_eq!(guard.post(), Err(PostSendError::InlineDataTooLong { index: 0, given: 1, limit: 0 }));
    let mut pair = srd(&parts, SrdFlags::InlineWrite);
    let mut guard = pair.start_post_send();
    guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write(1, 2).setup_inline_data(&[1]);
    guard.post().unwrap();
    // A pair that has no WRITE.
    let parts = Parts::new();
    let mut pair = srd(&parts, SrdFlags::empty());
    let ah = parts.address();
    let mut guard = pair.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 5, 6).setup_write(1, 2));
    assert_eq!(guard.post(), Err(PostSendError::UnsupportedOperation { index: 0, operation }));
}

#[test]
fn completions_tell_what_only_efa_knows() {
    let parts = Parts::new();
    let efa = parts.efa();
    let description = parts.pd.context().create_cq_builder();
    let mut builder = efa.create_cq_builder(&description);
    let fields = CompletionFields::Sgid | CompletionFields::IsUnsolicited;
    let (mut cq, reader) = builder.setup_efa_fields(fields).build_ex().unwrap();
    let own = parts.fake.world.direct.efa_cq.lock().unwrap().take().expect("a queue was made");
    assert_eq!(own, [0, 3, 0]);
    let sizes = parts.fake.world.direct.sizes.lock().unwrap().clone();
    assert!(sizes.contains(&("efadv_create_cq", size_of::<efadv_cq_init_attr>() as u32)));
    let (mut bare, nothing) = builder.setup_efa_fields(CompletionFields::empty()).build_ex().unwrap();
    for (queue, expected) in [(&mut cq, true), (&mut bare, false)] {
        let mut description = parts.description();
        let mut pair = efa.create_srd_builder(description.setup_send_cq(queue)).build().unwrap();
        let ah = parts.address();
        let mut guard = pair.start_post_send();
        drop(guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 1, 1).setup_send());
        drop(guard.construct_wr(2, SIGNALED).setup_srd_address(&ah, 1, 1).setup_send());
        guard.post().unwrap();
        let mut poller = queue.start_poll().unwrap();
        let wc = poller.next().unwrap();
        assert_eq!(reader.sgid(&wc).map(|gid| gid.raw), expected.then_some([1; 16]));
        assert_eq!(reader.is_unsolicited(&wc), expected.then_some(true));
        assert_eq!((nothing.sgid(&wc), nothing.is_unsolicited(&wc)), (None, None));
        // The device knows this sender by an address handle.
        let wc = poller.next().unwrap();
        assert_eq!(reader.sgid(&wc), None);
    }
    // The reader keeps what it reads.
    drop(cq);
    drop(reader);
    for errno in ERRNOS {
        let parts = Parts::lying(|l| l.direct = errno);
        let description = parts.pd.context().create_cq_builder();
        match parts.efa().create_cq_builder(&description).build_ex().unwrap_err() {
            efa::CreateCompletionQueueError::Unsupported(Unsupported { verb, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "efadv_create_cq");
            }
            error => assert_says(&error, errno),
        }
    }
    for missing in [&["wc_read_sgid"], &["wc_is_unsolicited"], &["efadv_cq"]] {
        let parts = Parts::lying(|l| l.missing = missing);
        let description = parts.pd.context().create_cq_builder();
        let mut builder = parts.efa().create_cq_builder(&description);
        let error = builder.setup_efa_fields(fields).build_ex().unwrap_err().to_string();
        assert!(error.contains("without `"), "{missing:?}: {error}");
    }
}

#[test]
fn a_completion_that_failed_tells_nothing_of_efa() {
    let parts = Parts::lying(|l| l.completion = Some([ibv_wc_status::IBV_WC_REM_ABORT_ERR.0, 0, 0]));
    let efa = parts.efa();
    let mut builder = efa.create_cq_builder(&parts.pd.context().create_cq_builder());
    let (mut cq, reader) = builder.setup_efa_fields(CompletionFields::Sgid).build_ex().unwrap();
    let mut pair = efa.create_srd_builder(parts.description().setup_send_cq(&cq)).build().unwrap();
    let ah = parts.address();
    let mut guard = pair.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_srd_address(&ah, 1, 1).setup_send());
    guard.post().unwrap();
    let mut poller = cq.start_poll().unwrap();
    assert_eq!(reader.sgid(&poller.next().unwrap()), None);
}

#[test]
fn efa_tells_of_handles_and_regions() {
    let parts = Parts::new();
    let mut memory = [0u8; 8];
    // SAFETY: the fake device touches no memory.
    let mr = unsafe { parts.pd.reg_mr(memory.as_mut_ptr(), 8, AccessFlags::LocalWrite) }.unwrap();
    assert_eq!(parts.efa().query_ah(&parts.address()).unwrap(), 77);
    let expected = InterconnectIds { recv: None, rdma_read: Some(4), rdma_recv: None };
    assert_eq!(parts.efa().query_mr(&mr).unwrap(), expected);
    let sizes = parts.fake.world.direct.sizes.lock().unwrap().clone();
    assert!(sizes.contains(&("efadv_query_ah", size_of::<efadv_ah_attr>() as u32)));
    assert!(sizes.contains(&("efadv_query_mr", size_of::<efadv_mr_attr>() as u32)));
    for errno in ERRNOS {
        let parts = Parts::lying(|l| l.direct = errno);
        match parts.efa().query_ah(&parts.address()).unwrap_err() {
            QueryObjectError::Unsupported(Unsupported { verb, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "efadv_query_ah");
            }
            error => assert_says(&error, errno),
        }
    }
}
