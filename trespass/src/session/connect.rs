//! Making connections and listeners from a configuration, over TCP or rdma_cm.

use std::io;
use std::iter;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

#[cfg(not(feature = "rdma"))]
use super::cm_error::CmError;
use crate::config::{Bootstrap, Config};
use crate::error::ConnectError;
use crate::handshake::Terms;
#[cfg(feature = "rdma")]
use crate::pool::DomainSet;
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::connecting::PendingConnect;
use crate::session::connection::{self, Connection};
#[cfg(feature = "rdma")]
use crate::session::port_events;
use crate::transport::pools::pool_of;
#[cfg(feature = "rdma")]
use crate::transport::pools::pool_over;
#[cfg(feature = "rdma")]
use crate::transport::rc::{DevicePort, QpParameters, RailsOffer, find, find_rails};
use crate::transport::{CqSlot, RdmaPath};
#[cfg(feature = "rdma")]
use crate::wire::Features;
use crate::wire::{Kind, Policy, Unavailable};

/// Delays between attempts to listen on a port in use. They double up to a limit.
fn retry_delays() -> impl Iterator<Item = Duration> {
    const FIRST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(1);
    iter::successors(Some(FIRST), |delay| Some((*delay * 2).min(LONGEST)))
}

/// The most receives of a connection over several devices.
#[cfg(feature = "rdma")]
const RAILS_RX_SLOTS: u32 = 4096;

/// These receives: 96 KiB, or 192 KiB over SoftRoCE, whose slots are larger.
const FEW_SLOTS: u32 = 12;

impl Config {
    /// Connects to the first address that accepts.
    pub(crate) fn connect_kind(&self, addr: impl ToSocketAddrs, kind: Kind) -> io::Result<Connection> {
        let pool = pool_of(self)?;
        let mut last = None;
        for address in addr.to_socket_addrs().map_err(ConnectError::Resolve)? {
            let pending = PendingConnect::start_unexported(self, address, kind, &pool);
            match pending.and_then(PendingConnect::wait) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    /// Whether a listener takes clients of plain TCP.
    pub(crate) fn takes_plain_tcp(&self) -> bool {
        self.plain_tcp && self.policy != Policy::RequireRdma
    }

    /// Makes a non-blocking acceptor.
    pub(crate) fn listen(&self, addr: impl ToSocketAddrs) -> io::Result<Acceptor> {
        let until = Instant::now() + self.bind_patience;
        let addresses: Vec<_> = addr.to_socket_addrs().map_err(ConnectError::Resolve)?.collect();
        let mut delays = retry_delays();
        loop {
            let mut last = None;
            for address in &addresses {
                match self.listen_on(*address) {
                    Ok(acceptor) => return Ok(acceptor),
                    Err(error) => last = Some(error),
                }
            }
            let error = last.map_or_else(no_address, io::Error::from);
            let left = until.saturating_duration_since(Instant::now());
            if error.kind() != io::ErrorKind::AddrInUse || left.is_zero() {
                return Err(error);
            }
            let delay = delays.next().map_or(left, |delay| delay.min(left));
            tracing::info!(%error, "trying again in {delay:?}");
            thread::sleep(delay);
        }
    }

    fn listen_on(&self, address: SocketAddr) -> Result<Acceptor, ConnectError> {
        match self.bootstrap {
            #[cfg(feature = "rdma")]
            Bootstrap::RdmaCm => crate::session::acceptor::CmListener::at(address)
                .map(Acceptor::RdmaCm)
                .map_err(|source| ConnectError::BindRdmaCm { address, source: source.into() }),
            #[cfg(not(feature = "rdma"))]
            Bootstrap::RdmaCm => {
                Err(ConnectError::BindRdmaCm { address, source: CmError::built_without().into() })
            }
            Bootstrap::Tcp => self
                .bind_socket(address)
                .map(|socket| Acceptor::Tcp(mio::net::TcpListener::from_std(socket)))
                .map_err(|source| ConnectError::Bind { address, source }),
        }
    }

    fn bind_socket(&self, address: SocketAddr) -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // Elsewhere than on Unix this option would take over a port in use.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        #[cfg(unix)]
        if self.reuse_port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(self.backlog).unwrap_or(i32::MAX))?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    /// Makes an acceptor of a listening socket of the program.
    pub(crate) fn acceptor_of(socket: std::net::TcpListener) -> io::Result<Acceptor> {
        socket.set_nonblocking(true)?;
        Ok(Acceptor::Tcp(mio::net::TcpListener::from_std(socket)))
    }

    /// Has the system probe the peer of a connection while it is silent. A handshake has a deadline
    /// and needs no probes.
    pub(crate) fn set_keepalive(&self, socket: &TcpStream) -> io::Result<()> {
        if let Some(idle) = self.keepalive {
            // The system counts in seconds.
            let idle = idle.max(Duration::from_secs(1));
            SockRef::from(socket)
                .set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(idle))?;
        }
        Ok(())
    }

    /// The receives that a connection begins with: all, or a few if the process has many
    /// connections, of which most are idle. More come when its peer has more to send.
    pub(super) fn first_slots(&self) -> Option<u32> {
        (!self.slots_are_chosen && connection::is_one_of_many()).then_some(FEW_SLOTS)
    }

    /// The terms for a handshake over a socket with that address, and the RDMA path to try. A
    /// worker's connection brings the slot of its completion queue.
    pub(crate) fn offer(
        &self,
        kind: Kind,
        local: SocketAddr,
        pool: &Pool,
        slot: Option<CqSlot>,
    ) -> (Terms, Result<RdmaPath, Unavailable>) {
        let mut terms = self.terms(kind);
        if slot.is_none() || !self.srq {
            // This connection shares no receives.
            terms.first_slots = self.first_slots();
        }
        let path = match self.without_rdma() {
            Some(reason) => Err(reason),
            None => self.path(&mut terms, local, pool, slot),
        };
        (terms, path)
    }

    #[cfg(feature = "rdma")]
    fn path(
        &self,
        terms: &mut Terms,
        local: SocketAddr,
        pool: &Pool,
        slot: Option<CqSlot>,
    ) -> Result<RdmaPath, Unavailable> {
        let port = find(local, &self.devices, self.gid_index)?;
        if let Some(offer) = self.rails_offer(&port, local, pool, slot.is_some()) {
            let mut with_rails = terms.clone();
            match self.path_over(&mut with_rails, &port, pool, None, Some(offer)) {
                Ok(path) => {
                    *terms = with_rails;
                    return Ok(path);
                }
                Err(error) => tracing::info!(?error, "the connection uses one device"),
            }
        }
        self.path_over(terms, &port, pool, slot, None)
    }

    /// The path over a port, and over further ones that are offered.
    #[cfg(feature = "rdma")]
    fn path_over(
        &self,
        terms: &mut Terms,
        port: &DevicePort,
        pool: &Pool,
        slot: Option<CqSlot>,
        rails: Option<RailsOffer>,
    ) -> Result<RdmaPath, Unavailable> {
        if let Some(offer) = &rails {
            terms.features = terms.features.with(Features::RAILS);
            terms.devices = Some(offer.ports.len() as u8);
        }
        let domains = match &rails {
            None => port.device.domain().into(),
            Some(offer) => domains_of(&offer.ports),
        };
        let suited = if port.device.wants_long_frames() { self.with_long_frames() } else { None };
        let (config, pool) = match &suited {
            None => (self, pool_over(&domains, Some(pool), self)?),
            Some(config) => {
                terms.limits = config.limits();
                // This pool has other slots, but the program may send blocks of the other one.
                // Unregistered blocks are copied.
                if let Err(error) = pool.register_in(&domains) {
                    tracing::debug!(%error, "the pool's blocks will be copied");
                }
                (config, pool_over(&domains, None, config)?)
            }
        };
        port.device.limit(terms);
        for further in rails.iter().flat_map(|offer| &offer.ports) {
            further.device.limit(terms);
        }
        let path = RdmaPath::new(port.clone(), QpParameters::of(config), pool).at(slot);
        Ok(match rails {
            Some(offer) => path.with_rails(offer),
            None => path,
        })
    }

    /// The ports and times for further rails, if a connection may have them.
    ///
    /// A worker's connections share one completion queue, and shared receives belong to one device.
    /// A number in immediate data has 13 bits, of which frames from other rails may be ahead.
    #[cfg(feature = "rdma")]
    fn rails_offer(
        &self,
        port: &DevicePort,
        local: SocketAddr,
        pool: &Pool,
        in_worker: bool,
    ) -> Option<RailsOffer> {
        if in_worker || self.srq || self.rx_slots > RAILS_RX_SLOTS || self.devices.len() == 1 {
            return None;
        }
        let ports = find_rails(port, local, &self.devices, self.gid_index);
        // A pool of the program may have other devices.
        let is_usable =
            |ports: &[_]| self.given_pool.is_none() || pool.register_in(&domains_of(ports)).is_ok();
        if ports.len() < 2 || !is_usable(&ports) {
            return None;
        }
        if let Err(error) = port_events::watch(&ports) {
            tracing::info!(%error, "the connection uses one device");
            return None;
        }
        Some(RailsOffer {
            ports,
            join_after: self.rails_after,
            request_timeout: self.rail_timeout,
            probe_timeout: self.probe_timeout,
            backoff: self.rail_backoff,
            keepalive: self.keepalive,
        })
    }

    #[cfg(not(feature = "rdma"))]
    fn path(
        &self,
        _: &mut Terms,
        _: SocketAddr,
        _: &Pool,
        _: Option<CqSlot>,
    ) -> Result<RdmaPath, Unavailable> {
        Err(Unavailable::new(crate::wire::Cause::BuiltWithout, ""))
    }
}

/// The protection domains of a connection's devices.
#[cfg(feature = "rdma")]
fn domains_of(ports: &[DevicePort]) -> DomainSet {
    DomainSet::new(ports.iter().map(|port| port.device.domain().clone()).collect())
}

pub(crate) fn no_address() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the address names no host: there is nothing to connect with, or to listen at",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_port_is_tried_again_at_growing_intervals() {
        let delays: Vec<_> = retry_delays().take(9).map(|delay| delay.as_millis()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }
}
