//! The system's devices.

use std::net::IpAddr;

use sideway::ibverbs::connect::LocalPath;
use sideway::ibverbs::device::DeviceList;
use sideway::provider::ProviderChoice;

/// The IPv4 address of one of the system's devices.
#[allow(dead_code, reason = "not each test program needs it")]
pub(crate) fn address() -> Result<IpAddr, String> {
    devices().map(|devices| devices[0].1)
}

/// The system's devices that have an IPv4 address at port 1, at least one.
pub(crate) fn devices() -> Result<Vec<(String, IpAddr)>, String> {
    let provider = ProviderChoice::System.select().map_err(|error| error.to_string())?.provider();
    let devices = DeviceList::from_provider(provider).map_err(|error| error.to_string())?;
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    for device in devices.iter() {
        let path = device
            .open()
            .map_err(|error| error.to_string())
            .and_then(|context| LocalPath::choose(&context, 1, None).map_err(|error| error.to_string()));
        match path.map(|path| path.gid().and_then(|gid| gid.to_ipv4_mapped())) {
            Ok(Some(address)) => found.push((device.name().to_string(), address.into())),
            Ok(None) => seen.push(format!("{} has no IPv4 address at port 1", device.name())),
            Err(error) => seen.push(format!("{}: {error}", device.name())),
        }
    }
    if found.is_empty() {
        return Err(if seen.is_empty() {
            "the system lists no RDMA device".to_owned()
        } else {
            seen.join("; ")
        });
    }
    Ok(found)
}
