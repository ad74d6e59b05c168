//! Tests of device detection and capabilities.

use sideway::ErrorKind;
use sideway::efa::Capabilities;
use sideway::ibverbs::Unsupported;
use sideway::ibverbs::completion::CreateCompletionQueueError;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::queue_pair::CreateQueuePairError;
use sideway::ibverbs::queue_pair::{PostSendError, PostSendGuard, QueuePair};
use sideway::mlx5::{CqeCompression, CqeFormats, DciStreams};
use sideway::sys::types::*;
use sideway::{efa, mlx5};

use super::super::SIGNALED;
use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::super::support::fake::{Fake, old_provider};
use super::{DirectSetup, handle};

#[test]
fn a_device_of_another_vendor_is_refused() {
    let fake = Fake::lying(|l| l.no_direct_verbs = true);
    let context = fake.context();
    let error = mlx5::DirectVerbs::of(&context).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no direct verbs of mlx5 (mlx5dv_is_supported)");
    assert!(matches!(error.unsupported(), Some(Unsupported { missing: None, .. })));
    let error = efa::DirectVerbs::of(&context).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no direct verbs of EFA (efadv_query_device)");
    assert!(matches!(error.unsupported(), Some(Unsupported { missing: None, .. })));
}

#[test]
fn an_efa_device_can_fail_to_answer() {
    for errno in ERRNOS.into_iter().filter(|errno| !is_unsupported(*errno)) {
        let fake = Fake::lying(|l| l.efadv_query_device = errno);
        let error = efa::DirectVerbs::of(&fake.context()).unwrap_err();
        assert_eq!((error.kind(), error.verb()), (ErrorKind::Os, "efadv_query_device"), "{error}");
        assert_eq!(error.object(), Some("device fake0"));
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
    let error = mlx5.create_qp_builder(&description).build_direct().unwrap_err().to_string();
    assert!(error.contains("`mlx5dv_qp_ex_from_ibv_qp_ex` (added in MLX5_1.10, rdma-core 24)"), "{error}");
    let error = mlx5.create_mkey(&pd, 4, mlx5::MKeyFlags::empty()).unwrap_err().to_string();
    assert!(error.contains("`mlx5dv_create_mkey` (added in MLX5_1.10, rdma-core 24)"), "{error}");
    let key = mlx5::AesXtsKey::Bits128([0; 32]);
    let error = mlx5.create_dek(&pd, &key, None, [0; 8]).unwrap_err().to_string();
    assert!(error.contains("`mlx5dv_dek_create` (added in MLX5_1.21, rdma-core 37)"), "{error}");
    let devices = DeviceList::from_provider(old_provider()).unwrap();
    let error = mlx5::DirectVerbs::open(&devices.first().unwrap()).unwrap_err().to_string();
    assert!(error.contains("`mlx5dv_open_device` (added in MLX5_1.7, rdma-core 21)"), "{error}");
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
fn reports_the_capabilities_of_the_device() {
    let parts = DirectSetup::new();
    let capabilities = parts.mlx5().query_device().unwrap();
    assert!(capabilities.flags().contains(mlx5::ContextFlags::Cqe128Padding));
    let formats = CqeFormats::Hash | CqeFormats::Checksum;
    assert_eq!(capabilities.cqe_compression(), Some(CqeCompression { max_num: 64, formats }));
    let streams = DciStreams { log_num_concurrent: 4, log_num_errored: 2 };
    assert_eq!(capabilities.dci_streams(), Some(streams));
    // Capabilities that the library does not know.
    assert_eq!((capabilities.out_of_order_receives(), capabilities.max_dc_rd_atom()), (None, None));
    for errno in ERRNOS {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        assert_says(&parts.mlx5().query_device().unwrap_err(), errno);
    }

    let parts = DirectSetup::lying(|l| l.efa_capabilities = EFADV_DEVICE_ATTR_CAPS_RDMA_READ | 1 << 31);
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
fn objects_of_another_context_are_refused() {
    let parts = DirectSetup::new();
    let elsewhere = parts.fake.context();
    let (mlx5, efa) = (mlx5::DirectVerbs::of(&elsewhere).unwrap(), efa::DirectVerbs::of(&elsewhere).unwrap());
    let description = parts.description();
    let error = mlx5.create_qp_builder(&description).build_ex().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::DescriptionOfOtherContext));
    let error = mlx5.create_dc_initiator_builder(&description).build().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::DescriptionOfOtherContext));
    let error = mlx5.create_dc_target_builder(&description, 1).build().unwrap_err();
    assert!(matches!(error, CreateQueuePairError::DescriptionOfOtherContext));
    assert!(matches!(
        efa.create_srd_builder(&description).build(),
        Err(CreateQueuePairError::DescriptionOfOtherContext)
    ));
    let description = parts.pd.context().create_cq_builder();
    let error = mlx5.create_cq_builder(&description).build_ex().unwrap_err();
    assert!(matches!(error, CreateCompletionQueueError::DescriptionOfOtherContext));
    let error = efa.create_cq_builder(&description).build_ex().unwrap_err();
    assert!(matches!(error, CreateCompletionQueueError::DescriptionOfOtherContext));
    let error = efa.query_ah(&parts.address()).unwrap_err();
    assert_eq!((error.kind(), error.verb()), (ErrorKind::OtherContext, "efadv_query_ah"));
    assert!(error.to_string().contains("address handle"), "{error}");
    // A request cannot use an address handle of another context either.
    let mut initiator = parts.mlx5().create_dc_initiator_builder(&parts.description()).build().unwrap();
    let ah = handle(&elsewhere);
    let mut guard = initiator.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_dc_address(&ah, 7, 9).setup_write(1, 2));
    assert_eq!(guard.post(), Err(PostSendError::OtherContext { index: 0 }));
    assert!(parts.addresses().is_empty());
}

#[test]
fn a_device_is_opened_for_keys() {
    let fake = Fake::new();
    let devices = fake.list().unwrap();
    let mlx5 = mlx5::DirectVerbs::open(&devices.first().unwrap()).unwrap();
    let devx = mlx5dv_context_attr_flags::MLX5DV_CONTEXT_FLAGS_DEVX.0;
    assert_eq!(*fake.world.own.opened.lock().unwrap(), Some((devx, 0)));
    // The context is an ordinary one, which the direct verbs keep open.
    let pd = mlx5.context().alloc_pd().unwrap();
    assert!(mlx5::DirectVerbs::of(pd.context()).unwrap().context() == mlx5.context());
    drop((pd, devices));
    assert_eq!(*fake.world.destroyed.lock().unwrap(), ["pd"]);
    drop(mlx5);
    assert_eq!(fake.world.destroyed.lock().unwrap()[1], "context");
    for errno in ERRNOS {
        let fake = Fake::lying(|l| l.direct = errno);
        match mlx5::DirectVerbs::open(&fake.list().unwrap().first().unwrap()).unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!(is_unsupported(errno));
                let names = (error.verb(), error.object());
                assert_eq!(names, ("mlx5dv_open_device", Some("device fake0")));
            }
            error => assert_says(&error, errno),
        }
    }
    let fake = Fake::lying(|l| l.no_direct_verbs = true);
    let error = mlx5::DirectVerbs::open(&fake.list().unwrap().first().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "device fake0 has no direct verbs of mlx5 (mlx5dv_is_supported)");
}
