//! Tests of the creation of mlx5's queue pairs and completion queues.

use sideway::ibverbs::Unsupported;
use sideway::ibverbs::completion::CompletionQueue;
use sideway::ibverbs::completion::CreateCompletionQueueError;
use sideway::ibverbs::queue_pair::CreateQueuePairError;
use sideway::ibverbs::queue_pair::{
    QueuePair, QueuePairAttribute, QueuePairState, QueuePairType, SendOperationFlags,
};
use sideway::mlx5::{CqeFormats, CqeSize, DciStreams, QueuePairCreateFlags};
use sideway::sys::types::*;

use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::super::support::fake::direct::QpArguments;
use super::{DRIVER, DirectSetup, EXTENDED};

#[test]
fn an_initiator_is_made_as_it_is_described() {
    let parts = DirectSetup::new();
    let mlx5 = parts.mlx5();
    let mut description = parts.description();
    // Attributes for targets have no effect here.
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
        own_ops: 0,
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
    // One completion queue is enough, for sends or for receives. The operations come from the
    // description.
    let mut description = parts.pd.create_qp_builder();
    description.setup_send_cq(&parts.cq).setup_send_ops_flags(SendOperationFlags::Write);
    description.setup_qp_type(QueuePairType::UnreliableDatagram);
    drop(mlx5.create_dc_initiator_builder(&description).build().unwrap());
    assert_eq!(parts.arguments(), QpArguments { send_ops: SendOperationFlags::Write.bits(), ..plain });
}

#[test]
fn a_target_is_made_as_it_is_described() {
    let parts = DirectSetup::new();
    let mlx5 = parts.mlx5();
    let srq = parts.pd.create_srq_builder().build().unwrap();
    let mut description = parts.pd.create_qp_builder();
    description.setup_recv_cq(&parts.cq);
    let error = mlx5.create_dc_target_builder(&description, 1).build().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::MissingSharedReceiveQueue), "{error}");
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
        own_ops: 0,
    };
    assert_eq!(parts.arguments(), expected);
    // The target has a number only while it is ready to receive.
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
    // The target keeps its objects alive.
    let DirectSetup { fake, pd, cq } = parts;
    drop((srq, pd, cq, description, builder, mlx5));
    assert!(fake.world.destroyed.lock().unwrap().is_empty());
    drop(target);
    assert_eq!(fake.world.destroyed.lock().unwrap()[0], "qp");
}

#[test]
fn a_pair_of_libibverbs_takes_options() {
    let parts = DirectSetup::new();
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
        let parts = DirectSetup::lying(|l| l.direct = errno);
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
                CreateQueuePairError::Unsupported(Unsupported { verb, ref device, .. }) => {
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
        let parts = DirectSetup::lying(|l| l.missing = missing);
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
    let parts = DirectSetup::new();
    for qp_type in
        [QueuePairType::DcInitiator, QueuePairType::DcTarget, QueuePairType::ScalableReliableDatagram]
    {
        let mut description = parts.description();
        description.setup_qp_type(qp_type);
        for error in
            [description.build().map(drop).unwrap_err(), description.build_ex().map(drop).unwrap_err()]
        {
            assert!(matches!(error, CreateQueuePairError::UnknownType { .. }), "{error}");
        }
    }
}

#[test]
fn completion_queues_take_options() {
    let parts = DirectSetup::new();
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
        let parts = DirectSetup::lying(|l| l.direct = errno);
        let description = parts.pd.context().create_cq_builder();
        match parts.mlx5().create_cq_builder(&description).build_ex().unwrap_err() {
            CreateCompletionQueueError::Unsupported(Unsupported { verb, .. }) => {
                assert!(is_unsupported(errno));
                assert_eq!(verb, "mlx5dv_create_cq");
            }
            error => assert_says(&error, errno),
        }
    }
}
