//! The device under test.

use std::env;
use std::net::{Ipv4Addr, Ipv6Addr};

use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::LocalPath;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_attr::DeviceCapabilityFlags;
use sideway::provider::ProviderChoice;

/// A device with an address.
#[derive(Debug)]
pub(crate) struct TestDevice {
    pub(crate) device: String,
    pub(crate) gid_index: String,
    pub(crate) gid: Gid,
    /// An IP address of the device, for the connection manager.
    pub(crate) address: String,
    /// Whether it has extended reliable connections.
    pub(crate) has_xrc: bool,
    /// Whether it is a software device, which the kernel does not know.
    pub(crate) is_soft: bool,
    /// Whether it is this process's own, which C programs do not see.
    pub(crate) is_own: bool,
    /// Whether this is the guest of `cargo xtask softroce`.
    pub(crate) is_guest: bool,
}

impl TestDevice {
    /// The device that `SOFTROCE_DEVICE` names, else the first one; or the reason why none was
    /// found.
    pub(crate) fn find() -> Result<Self, String> {
        let list = DeviceList::new().map_err(|error| error.to_string())?;
        let device = match env::var("SOFTROCE_DEVICE") {
            Ok(name) => list.find(&name),
            Err(_) => list.first(),
        };
        let context = device.map_err(|error| error.to_string())?.open().map_err(|error| error.to_string())?;
        let path = LocalPath::choose(&context, 1, None).map_err(|error| error.to_string())?;
        let (Some(gid_index), Some(gid)) = (path.gid_index(), path.gid()) else {
            return Err(format!("{} has no usable GID", context.name()));
        };
        Ok(Self {
            device: context.name(),
            has_xrc: context
                .query_device()
                .is_ok_and(|device| device.capability_flags().contains(DeviceCapabilityFlags::Xrc)),
            is_soft: context.is_soft(),
            is_own: ProviderChoice::Soft.select().is_ok_and(|soft| soft.provider() == context.provider()),
            gid_index: gid_index.to_string(),
            gid,
            address: address(gid, context.is_soft()),
            is_guest: env::var("SOFTROCE_RDMA_CORE").is_ok_and(|dut| dut != "host"),
        })
    }
}

/// The address of the guest or of this host, else the IP address in a RoCE v2 GID.
fn address(gid: Gid, is_soft: bool) -> String {
    if is_soft {
        return Ipv4Addr::LOCALHOST.to_string();
    }
    let address = Ipv6Addr::from(gid.raw);
    env::var("SOFTROCE_ADDRESS").unwrap_or_else(|_| address.to_canonical().to_string())
}

/// A TCP port for a server, different for each call.
pub(crate) fn tcp_port() -> Result<u16, String> {
    test_harness::free_port().map_err(|error| format!("no TCP port is free: {error}"))
}
