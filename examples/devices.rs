//! Finds devices and addresses.

use std::fmt;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use sideway::Provider;
use sideway::ibverbs::device::{Device, DeviceList, FindDeviceError};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::provider::ProviderChoice;
use sideway::rdmacm::missing_interface;

use crate::program::{Failure, note};

/// The argument that names the device.
#[derive(Clone, Debug, clap::Args)]
pub struct DeviceArg {
    /// The device [default: the first]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    pub ib_dev: Option<String>,
}

impl DeviceArg {
    /// Opens the named device, or the first one.
    ///
    /// # Errors
    ///
    /// No device has this name, or it cannot be opened.
    pub fn open(&self) -> Result<DeviceContext, Failure> {
        let list = list()?;
        Ok(one(&list, self.ib_dev.as_deref())?.open()?)
    }
}

/// The devices of the provider that `SIDEWAY_PROVIDER` names. By default these are the system's if
/// it has any, else software devices, with a notice on stderr.
///
/// # Errors
///
/// The variable names no provider, or the library cannot be used.
pub fn list() -> Result<DeviceList, Failure> {
    Ok(DeviceList::from_provider(provider()?)?)
}

/// The provider of [`list`]'s devices.
///
/// # Errors
///
/// As [`list`].
pub fn provider() -> Result<Provider, Failure> {
    let choice = ProviderChoice::from_environment()?.unwrap_or(ProviderChoice::Auto);
    let selection = choice.select()?;
    if let Some(reason) = selection.fallback() {
        note(format_args!(
            "notice: {reason}, so this goes over software devices: figures are of this host's processors and \
             memory, never of hardware (SIDEWAY_PROVIDER=system refuses instead)"
        ));
    }
    Ok(selection.provider())
}

/// The device with this name, or the first device.
///
/// # Errors
///
/// No device exists, or none with this name.
pub fn one<'list>(devices: &'list DeviceList, name: Option<&str>) -> Result<Device<'list>, FindDeviceError> {
    match name {
        Some(name) => devices.find(name),
        None => devices.first(),
    }
}

/// The device with this name, or all devices, at least one.
///
/// # Errors
///
/// As [`one`].
pub fn all<'list>(
    devices: &'list DeviceList,
    name: Option<&str>,
) -> Result<Vec<Device<'list>>, FindDeviceError> {
    match name {
        Some(name) => Ok(vec![devices.find(name)?]),
        None => devices.first().map(|_| devices.iter().collect()),
    }
}

/// Connects to the first of a host's addresses that answers within `limit`.
///
/// # Errors
///
/// None answers; the text says what to do.
pub fn connect_any(
    addresses: impl IntoIterator<Item = SocketAddr>,
    limit: Duration,
) -> Result<TcpStream, String> {
    let mut last = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let remedy = missing_interface(&address);
                last = format!("{error}; {}", remedy.as_deref().unwrap_or("is the server running?"));
            }
        }
    }
    Err(last)
}

/// The first address of this host name.
///
/// # Errors
///
/// The name has no address, or one that lacks its interface.
pub fn resolve(name: &str, port: u16) -> Result<SocketAddr, Failure> {
    let mut found = (name, port).to_socket_addrs().map_err(|error| {
        Failure::setup(format_args!("cannot find an address of {name}: {error}{}", HostAlone(name)))
    })?;
    let address = found.next().ok_or_else(|| Failure::setup(format_args!("{name} has no address")))?;
    match missing_interface(&address) {
        Some(remedy) => Err(Failure::setup(format_args!("cannot use the address {name}: {remedy}"))),
        None => Ok(address),
    }
}

/// What to give instead of a host name with a port in it; nothing for other names.
#[derive(Clone, Copy, Debug)]
pub struct HostAlone<'name>(pub &'name str);

impl fmt::Display for HostAlone<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') && port.parse::<u16>().is_ok() => {
                write!(f, "; the port is given apart (-p {port}), and the host is {host}")
            }
            _ => Ok(()),
        }
    }
}
