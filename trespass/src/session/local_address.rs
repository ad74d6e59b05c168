//! The local addresses that a configuration names: of a listener, of a client, and the one that a
//! listener tells its clients.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, TcpStream, ToSocketAddrs};

use socket2::{Domain, Socket, Type};

use crate::config::Config;
use crate::config::environment::DeviceName;
use crate::error::{ConnectError, LocalAddressError};

/// An address of a network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddress {
    interface: String,
    ip: IpAddr,
    /// The interface index, which a link-local IPv6 address needs; 0 if it is unknown.
    index: u32,
}

impl InterfaceAddress {
    /// The addresses of all interfaces (`getifaddrs`); none if the system does not tell.
    fn all() -> Vec<Self> {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
            tracing::warn!(%error, "the addresses of this host are unknown");
            Vec::new()
        });
        let address = |found: if_addrs::Interface| {
            let (ip, index) = (found.ip(), found.index.unwrap_or(0));
            Self { interface: found.name, ip, index }
        };
        interfaces.into_iter().map(address).collect()
    }

    fn with_port(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, self.index).into(),
            ip => (ip, port).into(),
        }
    }

    /// Ranks an address for a listener. Lower is better.
    fn rank(&self) -> u8 {
        match self.ip {
            IpAddr::V4(ip) if !ip.is_link_local() => 0,
            IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
            IpAddr::V4(_) => 2,
            IpAddr::V6(_) => 3,
        }
    }

    /// Ranks an address of the peer's family for a client. Lower is better.
    fn rank_towards(&self, peer: IpAddr) -> u8 {
        let is_link_local = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        (is_link_local(self.ip) != is_link_local(peer)).into()
    }
}

/// The addresses of one interface, best first.
fn of_interface<'a>(
    all: &'a [InterfaceAddress],
    name: &str,
) -> Result<Vec<&'a InterfaceAddress>, LocalAddressError> {
    let mut own: Vec<_> = all.iter().filter(|address| address.interface == name).collect();
    if own.is_empty() {
        let mut known: Vec<_> = all.iter().map(|address| address.interface.clone()).collect();
        known.sort();
        known.dedup();
        return Err(LocalAddressError::Interface { name: name.to_owned(), known });
    }
    own.sort_by_key(|address| address.rank());
    Ok(own)
}

fn of_host(host: &str, port: u16) -> Result<Vec<SocketAddr>, LocalAddressError> {
    let refused = |source| LocalAddressError::Host { host: host.to_owned(), source };
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(refused)?.collect();
    if addresses.is_empty() {
        return Err(refused(io::ErrorKind::AddrNotAvailable.into()));
    }
    Ok(addresses)
}

/// The address of a device's port: its GID's, else the best one of its interfaces.
fn of_device(
    device: &DeviceName,
    gid_index: Option<u8>,
    port: u16,
    all: &[InterfaceAddress],
) -> Result<SocketAddr, LocalAddressError> {
    let unknown = |reason| LocalAddressError::Device { device: device.to_string(), reason };
    let (gids, netdevs) = device_addresses(device, gid_index).map_err(unknown)?;
    // A GID of InfiniBand or of iWARP is no address of an interface.
    let of_gid = gids.iter().find_map(|gid| all.iter().find(|address| address.ip == *gid));
    let mut of_netdevs: Vec<_> = all.iter().filter(|address| netdevs.contains(&address.interface)).collect();
    of_netdevs.sort_by_key(|address| address.rank());
    match of_gid.or(of_netdevs.first().copied()) {
        Some(address) => Ok(address.with_port(port)),
        None if netdevs.is_empty() => Err(unknown("it has no network interface".to_owned())),
        None => Err(unknown(format!("its interface {} has no address", netdevs.join(", ")))),
    }
}

/// The GIDs of a device's port as IP addresses, the chosen one first, and its interfaces. An error is
/// the reason.
#[cfg(feature = "rdma")]
fn device_addresses(
    device: &DeviceName,
    gid_index: Option<u8>,
) -> Result<(Vec<IpAddr>, Vec<String>), String> {
    crate::transport::rc::port_addresses(device, gid_index).map_err(|error| error.detail)
}

#[cfg(not(feature = "rdma"))]
fn device_addresses(_: &DeviceName, _: Option<u8>) -> Result<(Vec<IpAddr>, Vec<String>), String> {
    Err("this program was built without RDMA".to_owned())
}

impl Config {
    /// The addresses at which [`bind_configured`](Self::bind_configured) listens.
    pub(crate) fn configured_addresses(&self) -> Result<Vec<SocketAddr>, LocalAddressError> {
        if let Some(host) = &self.bind_host {
            return of_host(host, self.port);
        }
        if let Some(name) = &self.bind_interface {
            let all = InterfaceAddress::all();
            return Ok(vec![of_interface(&all, name)?[0].with_port(self.port)]);
        }
        if let [device] = &self.devices[..] {
            let all = InterfaceAddress::all();
            return Ok(vec![of_device(device, self.gid_index, self.port, &all)?]);
        }
        Ok(vec![(Ipv4Addr::UNSPECIFIED, self.port).into()])
    }

    /// The local address of a client; `None` leaves it to the system's routes.
    pub(crate) fn source_address(&self, peer: SocketAddr) -> Result<Option<SocketAddr>, LocalAddressError> {
        let other_family = |name: &str| LocalAddressError::Family { name: name.to_owned(), peer };
        let is_of_family = |ip: IpAddr| ip.is_ipv4() == peer.is_ipv4();
        if let Some(host) = &self.bind_host {
            let found = of_host(host, 0)?.into_iter().find(|address| is_of_family(address.ip()));
            // The wildcard address of either family names no address.
            let is_wildcard = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
            return match found {
                _ if is_wildcard => Ok(None),
                Some(address) => Ok(Some(address)),
                None => Err(other_family(host)),
            };
        }
        let Some(name) = &self.bind_interface else { return Ok(None) };
        let all = InterfaceAddress::all();
        let own = of_interface(&all, name)?;
        let own = own.into_iter().filter(|address| is_of_family(address.ip));
        let best = own.min_by_key(|address| address.rank_towards(peer.ip()));
        best.map(|address| Some(address.with_port(0))).ok_or_else(|| other_family(name))
    }

    /// A socket of a client, bound to its local address; `None` without one.
    fn source_socket(&self, peer: SocketAddr) -> Result<Option<Socket>, LocalAddressError> {
        let Some(local) = self.source_address(peer)? else { return Ok(None) };
        let bound = || {
            let socket = Socket::new(Domain::for_address(peer), Type::STREAM, None)?;
            socket.bind(&local.into())?;
            Ok(socket)
        };
        bound().map(Some).map_err(|source| LocalAddressError::Bind { local: local.ip(), source })
    }

    /// Begins to connect by TCP, without waiting.
    pub(crate) fn start_tcp(&self, peer: SocketAddr) -> Result<mio::net::TcpStream, ConnectError> {
        let failed = |source| ConnectError::Tcp { address: peer, source };
        let Some(socket) = self.source_socket(peer)? else {
            return mio::net::TcpStream::connect(peer).map_err(failed);
        };
        socket.set_nonblocking(true).map_err(failed)?;
        match socket.connect(&peer.into()) {
            Err(error) if !is_in_progress(&error) => Err(failed(error)),
            _ => Ok(mio::net::TcpStream::from_std(socket.into())),
        }
    }

    /// Connects by TCP, in blocking mode and within the time of a handshake.
    pub(crate) fn connect_tcp(&self, peer: SocketAddr) -> Result<TcpStream, ConnectError> {
        let connected = match self.source_socket(peer)? {
            None => TcpStream::connect_timeout(&peer, self.handshake_deadline),
            Some(socket) => {
                socket.connect_timeout(&peer.into(), self.handshake_deadline).map(|()| socket.into())
            }
        };
        connected.map_err(|source| ConnectError::Tcp { address: peer, source })
    }
}

/// Whether a connect in non-blocking mode goes on.
fn is_in_progress(error: &io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::EINPROGRESS) {
        return true;
    }
    error.kind() == io::ErrorKind::WouldBlock
}

/// `HOST:PORT` for the clients of a listener at `local`.
pub(crate) fn advertised(hostname: Option<&str>, local: SocketAddr) -> String {
    let port = local.port();
    let of_host = |host: &str| match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    };
    match (hostname, local.ip()) {
        (Some(host), _) => of_host(host),
        (None, ip) if !ip.is_unspecified() => SocketAddr::new(ip, port).to_string(),
        (None, ip) => system_host_name().map_or_else(|| of_any_interface(ip, port), |name| of_host(&name)),
    }
}

/// The best address of this host that is not a loopback address.
fn of_any_interface(wildcard: IpAddr, port: u16) -> String {
    let mut all = InterfaceAddress::all();
    all.retain(|address| !address.ip.is_loopback() && (wildcard.is_ipv6() || address.ip.is_ipv4()));
    all.sort_by_key(InterfaceAddress::rank);
    SocketAddr::new(all.first().map_or(wildcard, |address| address.ip), port).to_string()
}

/// The system's host name (`uname`), unless nobody has set it.
fn system_host_name() -> Option<String> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let name = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    #[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
    let name = {
        let mut buffer = [0_u8; 256];
        // SAFETY: the pointer and the length describe the local `buffer`, which outlives the call.
        let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len()) };
        let name = std::ffi::CStr::from_bytes_until_nul(&buffer).ok().filter(|_| result == 0);
        name.and_then(|name| name.to_str().ok().map(str::to_owned))
    };
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").ok();
    name.filter(|name| !name.is_empty() && name != "(none)" && name != "localhost")
}

#[cfg(test)]
mod tests;
