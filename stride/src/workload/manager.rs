//! Connecting queue pairs by rdma_cm (`-R`).
//!
//! The server listens at its device's address, and tells the client over the control connection where, with a number that
//! nobody else knows. The client's requests have that number, and that of the queue pair: others are rejected.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::ConnectOptions;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::LinkLayer;
use sideway::ibverbs::queue_pair::GenericQueuePair;
use sideway::rdmacm::{
    Address, ConnectError, Connection, ConnectionParameter, Connector, EventChannel, Identifier, Listener,
    PortSpace,
};

use crate::control::{Link, Message};
use crate::device::LocalDevice;
use crate::error::Error;
use crate::plan::Way;

/// How long one step of a connection may take.
const STEP_LIMIT: Duration = Duration::from_secs(10);

/// How long the client may take to ask for a connection.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// How often whoever waits for a request looks whether the client is still there.
const GLANCE: Duration = Duration::from_millis(100);

/// Where the server's connection manager listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// The address of its device, or that by which the client reached the server.
    pub address: IpAddr,
    /// The port, of rdma_cm's own.
    pub port: u16,
    /// What the client's requests have to have.
    pub token: u64,
}

/// rdma_cm made no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// No channel.
    #[error("-R: no channel of rdma_cm: {0}; load the kernel's rdma_ucm, or leave -R out")]
    Channel(#[source] sideway::Error),
    /// No identifier.
    #[error("-R: {0}; leave -R out")]
    Identifier(#[source] sideway::Error),
    /// There is nowhere to listen.
    #[error(
        "-R: cannot listen at {address}, the address of {device}: {source}; choose another GID with -x, or leave -R out"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The device's name.
        device: String,
        /// Why.
        source: sideway::Error,
    },
    /// An option is refused.
    #[error("-R: rdma_cm does not take {flag} {given}: {source}; leave {flag} out")]
    Option {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: u32,
        /// Why.
        source: sideway::Error,
    },
    /// A step failed.
    #[error(
        "-R: rdma_cm does not connect with {peer}: {source}; check the route to that address, or leave -R out"
    )]
    Step {
        /// The other end.
        peer: String,
        /// Why.
        source: ConnectError,
    },
    /// It is not known which device it is.
    #[error("-R: {0}")]
    Device(#[source] sideway::Error),
    /// The routing table leads elsewhere.
    #[error(
        "-R: the way to {peer} goes by {found}, not by {device}: give -d {found}, or -x for another address of {device}"
    )]
    OtherDevice {
        /// The other end.
        peer: String,
        /// The device that leads there.
        found: String,
        /// The one that was chosen.
        device: String,
    },
    /// Nobody asked.
    #[error("-R: the client asked for no connection within {} s; see what it printed", .limit.as_secs())]
    NoRequest {
        /// How long it had.
        limit: Duration,
    },
}

/// One end of the connections of a test that are still to be made.
pub struct Manager<'a> {
    device: &'a LocalDevice,
    link: &'a mut Link,
    meeting: Meeting,
    /// The server's.
    listener: Option<Listener>,
}

impl<'a> Manager<'a> {
    /// The server's: listens at the device's address.
    ///
    /// # Errors
    ///
    /// There is no connection manager, or it does not listen there.
    pub fn listen(device: &'a LocalDevice, link: &'a mut Link) -> Result<Self, Error> {
        let address = own_address(device).unwrap_or_else(|| link.local_ip());
        let id = identifier(device)?;
        let bound = SocketAddr::new(address, 0);
        id.bind_addr(bound).map_err(|source| ManagerError::Bind {
            address: bound,
            device: device.limits.device.clone(),
            source,
        })?;
        let listener = Listener::with_id(id, 64).map_err(|source| step(bound, source))?;
        let port = listener.local_addr().and_then(|address| address.port()).unwrap_or(0);
        let token = RandomState::new().hash_one(port);
        Ok(Self { device, link, meeting: Meeting { address, port, token }, listener: Some(listener) })
    }

    /// The client's: goes where the server listens.
    pub fn go(device: &'a LocalDevice, link: &'a mut Link, meeting: Meeting) -> Self {
        Self { device, link, meeting, listener: None }
    }

    /// Tells the client where the server listens.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn invite(&mut self) -> Result<(), Error> {
        Ok(self.link.send(&Message::Meeting(self.meeting))?)
    }

    /// Connects a queue pair to the peer's of the same number.
    ///
    /// # Errors
    ///
    /// There is no way to the peer, or it is gone.
    pub fn connect(
        &mut self,
        number: u32,
        queue_pair: &mut GenericQueuePair,
        options: &ConnectOptions,
        way: &Way,
    ) -> Result<Connection, Error> {
        let said = said(self.meeting.token, number);
        let mut parameter = ConnectionParameter::new();
        parameter
            .setup_private_data(&said)
            .setup_responder_resources(options.max_dest_read_atomic)
            .setup_initiator_depth(options.max_read_atomic)
            .setup_retry_count(options.retry_cnt)
            .setup_rnr_retry_count(options.rnr_retry);
        match self.listener.take() {
            Some(listener) => {
                let done = self.accept(&listener, &said, queue_pair, &parameter, way);
                self.listener = Some(listener);
                done
            }
            None => self.ask(queue_pair, &parameter, way),
        }
    }

    fn ask(
        &self,
        queue_pair: &mut GenericQueuePair,
        parameter: &ConnectionParameter,
        way: &Way,
    ) -> Result<Connection, Error> {
        let peer = SocketAddr::new(self.meeting.address, self.meeting.port);
        let id = identifier(self.device)?;
        told(&id, way)?;
        let source = own_address(self.device)
            .filter(|address| address.is_ipv4() == peer.is_ipv4())
            .map(|address| Address::from(SocketAddr::new(address, 0)));
        let mut connector =
            Connector::with_id(id, source, peer, STEP_LIMIT).map_err(|source| step(peer, source))?;
        self.check_device(&connector.get_device_context().map_err(ManagerError::Device)?, &peer.to_string())?;
        connector.set_timeout(Some(STEP_LIMIT));
        Ok(connector.connect(queue_pair, parameter).map_err(|source| step(peer, source))?)
    }

    fn accept(
        &mut self,
        listener: &Listener,
        said: &[u8],
        queue_pair: &mut GenericQueuePair,
        parameter: &ConnectionParameter,
        way: &Way,
    ) -> Result<Connection, Error> {
        let end = Instant::now() + REQUEST_LIMIT;
        let here = SocketAddr::new(self.meeting.address, self.meeting.port);
        loop {
            self.link.glance()?;
            let request = listener.get_request_timeout(GLANCE).map_err(|source| step(here, source))?;
            let Some(mut request) = request else {
                if Instant::now() > end {
                    return Err(ManagerError::NoRequest { limit: REQUEST_LIMIT }.into());
                }
                continue;
            };
            if !request.private_data().starts_with(said) {
                // Somebody else's, who is told so; or who is gone, and need not be.
                let _ = request.reject(b"not of this test");
                continue;
            }
            let peer = request.id().peer_addr().map_or(String::new(), |address| address.to_string());
            self.check_device(&request.get_device_context().map_err(ManagerError::Device)?, &peer)?;
            told(request.id(), way)?;
            request.set_timeout(Some(STEP_LIMIT));
            let accepted = request.accept(queue_pair, parameter);
            return Ok(accepted.map_err(|source| ManagerError::Step { peer, source })?);
        }
    }

    fn check_device(&self, found: &DeviceContext, peer: &str) -> Result<(), ManagerError> {
        let (found, device) = (found.name(), &self.device.limits.device);
        if found == *device {
            return Ok(());
        }
        Err(ManagerError::OtherDevice { peer: peer.to_owned(), found, device: device.clone() })
    }
}

/// What a request for the connection of a queue pair has in it.
fn said(token: u64, number: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&token.to_be_bytes());
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn identifier(device: &LocalDevice) -> Result<Identifier, ManagerError> {
    let channel = EventChannel::from_provider(device.context.provider()).map_err(ManagerError::Channel)?;
    channel.create_id(PortSpace::Tcp).map_err(ManagerError::Identifier)
}

/// Tells an identifier what it is to ask of the way.
fn told(id: &Identifier, way: &Way) -> Result<(), ManagerError> {
    // In range, which the plan has seen to.
    if let Some(given) = way.type_of_service {
        let set = id.set_type_of_service(given as u8);
        set.map_err(|source| ManagerError::Option { flag: "-T", given, source })?;
    }
    if let Some(given) = way.timeout {
        let set = id.set_ack_timeout(given as u8);
        set.map_err(|source| ManagerError::Option { flag: "-u", given, source })?;
    }
    Ok(())
}

/// The address that the device's GID stands for, if it is one that routes lead to.
fn own_address(device: &LocalDevice) -> Option<IpAddr> {
    let gid: Gid = device.path.gid().filter(|_| device.path.link_layer() == LinkLayer::Ethernet)?;
    match gid.to_ipv4_mapped() {
        Some(address) => Some(address.into()),
        // A link-local address is one only together with a network interface; what InfiniBand has is none.
        None if gid.is_unicast_link_local() || gid.is_zero() => None,
        None => Some(Ipv6Addr::from(gid).into()),
    }
}

fn step(peer: SocketAddr, source: ConnectError) -> ManagerError {
    ManagerError::Step { peer: peer.to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_whose_it_is() {
        assert_eq!(said(0x0102_0304_0506_0708, 9), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9]);
        assert_ne!(said(1, 2), said(2, 1));
    }
}
