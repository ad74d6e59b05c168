//! Tests of dma-buf registration through mlx5's data-direct engine.

use sideway::ErrorKind;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::memory_region::MemoryKind;
use sideway::mlx5::{DmabufAccess, DmabufRange};
use std::os::fd::{AsFd, AsRawFd};

use super::super::control::{ERRNOS, assert_says, is_unsupported};
use super::super::support::fake::direct::DmabufArguments;
use super::DirectSetup;

#[test]
fn a_dmabuf_is_registered_as_it_is_described() {
    let parts = DirectSetup::new();
    let mlx5 = parts.mlx5();
    // Any open descriptor; the fake device does not check its type.
    let null = std::fs::File::open("/dev/null").unwrap();
    let range = DmabufRange { fd: null.as_fd(), offset: 0x1000, length: 0x2000, iova: 0x7000_1000 };
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    // SAFETY: the descriptor is not a dma-buf, and no request uses the region.
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
    // SAFETY: the descriptor is not a dma-buf, and no request uses the region.
    let error = unsafe { mlx5.reg_dmabuf_mr(&other, range, access, DmabufAccess::empty()) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OtherContext);
    let path = mlx5.data_direct_sysfs_path().unwrap();
    assert_eq!(path.as_deref(), Some("/sys/devices/pci0000:00/0000:00:01.0".as_ref()));
    for errno in ERRNOS.into_iter().chain([libc::ENODEV]) {
        let parts = DirectSetup::lying(|l| l.direct = errno);
        let mlx5 = parts.mlx5();
        // SAFETY: the descriptor is not a dma-buf, and no request uses the region.
        match unsafe { mlx5.reg_dmabuf_mr(&parts.pd, range, access, DmabufAccess::DataDirect) }.unwrap_err() {
            error if error.unsupported().is_some() => {
                assert!(is_unsupported(errno));
                assert_eq!(error.verb(), "mlx5dv_reg_dmabuf_mr");
            }
            error => assert_says(&error, errno),
        }
        match mlx5.data_direct_sysfs_path() {
            Ok(path) => assert_eq!((path, errno), (None, libc::ENODEV)),
            Err(error) if error.unsupported().is_some() => assert!(is_unsupported(errno)),
            Err(error) => assert_says(&error, errno),
        }
    }
}
