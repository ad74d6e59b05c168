//! Connects queue pairs by rdma_cm (`-R`).
//!
//! The server listens at its device's address, and sends the client that address and a random token
//! over the control connection. The client's requests carry the token and the queue pair's number;
//! the server rejects others.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::ConnectOptions;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::LinkLayer;
use sideway::ibverbs::queue_pair::GenericQueuePair;
use sideway::rdmacm::{
    Address, ConnectError, Connection, ConnectionParameter, Connector, EventChannel, Identifier, Listener,
    PortSpace,
};

use stride_base::control::{CmAddress, ControlLink, ControlMessage};
use stride_base::device::LocalDevice;
use stride_base::error::{CmError, Error};
use stride_base::plan::PathOptions;

/// The time limit of one step of a connection.
const STEP_LIMIT: Duration = Duration::from_secs(10);

/// The time that the client has to request a connection.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// How often a server that waits for a request checks that the client still lives.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Makes one side's connections.
pub struct CmConnector<'a> {
    device: &'a LocalDevice,
    link: &'a mut ControlLink,
    meeting: CmAddress,
    /// The server's listener.
    listener: Option<Listener>,
}

impl<'a> CmConnector<'a> {
    /// Creates the server's end, which listens at the device's address.
    ///
    /// # Errors
    ///
    /// The connection manager is not available, or cannot listen there.
    pub fn listen(device: &'a LocalDevice, link: &'a mut ControlLink) -> Result<Self, Error> {
        let address = own_address(device).unwrap_or_else(|| link.local_ip());
        let id = identifier(device)?;
        let bound = SocketAddr::new(address, 0);
        id.bind_addr(bound).map_err(|source| CmError::Bind {
            address: bound,
            device: device.limits.device.clone(),
            source,
        })?;
        let listener = Listener::with_id(id, 64).map_err(|source| step(bound, source))?;
        let port = listener.local_addr().and_then(|address| address.port()).unwrap_or(0);
        let token = RandomState::new().hash_one(port);
        Ok(Self { device, link, meeting: CmAddress { address, port, token }, listener: Some(listener) })
    }

    /// Creates the client's end, which connects to the server's address.
    pub fn go(device: &'a LocalDevice, link: &'a mut ControlLink, meeting: CmAddress) -> Self {
        Self { device, link, meeting, listener: None }
    }

    /// Sends the client the address.
    ///
    /// # Errors
    ///
    /// The control connection ended.
    pub fn invite(&mut self) -> Result<(), Error> {
        Ok(self.link.send(&ControlMessage::Meeting(self.meeting))?)
    }

    /// Connects a queue pair to the peer's with the same index.
    ///
    /// # Errors
    ///
    /// The peer has no route, or it ended.
    pub fn connect(
        &mut self,
        number: u32,
        queue_pair: &mut GenericQueuePair,
        options: &ConnectOptions,
        path: &PathOptions,
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
                let done = self.accept(&listener, &said, queue_pair, &parameter, path);
                self.listener = Some(listener);
                done
            }
            None => self.ask(queue_pair, &parameter, path),
        }
    }

    fn ask(
        &self,
        queue_pair: &mut GenericQueuePair,
        parameter: &ConnectionParameter,
        path: &PathOptions,
    ) -> Result<Connection, Error> {
        let peer = SocketAddr::new(self.meeting.address, self.meeting.port);
        let id = identifier(self.device)?;
        apply_options(&id, path)?;
        let source = own_address(self.device)
            .filter(|address| address.is_ipv4() == peer.is_ipv4())
            .map(|address| Address::from(SocketAddr::new(address, 0)));
        let mut connector =
            Connector::with_id(id, source, peer, STEP_LIMIT).map_err(|source| step(peer, source))?;
        self.check_device(&connector.get_device_context().map_err(CmError::Device)?, &peer.to_string())?;
        connector.set_timeout(Some(STEP_LIMIT));
        Ok(connector.connect(queue_pair, parameter).map_err(|source| step(peer, source))?)
    }

    fn accept(
        &mut self,
        listener: &Listener,
        said: &[u8],
        queue_pair: &mut GenericQueuePair,
        parameter: &ConnectionParameter,
        path: &PathOptions,
    ) -> Result<Connection, Error> {
        let begun = Instant::now();
        let here = SocketAddr::new(self.meeting.address, self.meeting.port);
        loop {
            self.link.peer_status()?;
            let request =
                listener.get_request_timeout(PEER_CHECK_INTERVAL).map_err(|source| step(here, source))?;
            let Some(mut request) = request else {
                let limit = self.link.limit_now(REQUEST_LIMIT);
                if begun.elapsed() > limit {
                    return Err(CmError::NoRequest { limit }.into());
                }
                continue;
            };
            if !request.private_data().starts_with(said) {
                // The request belongs to another program, which receives a rejection; a failure to
                // send it is ignored.
                let _ = request.reject(b"not of this test");
                continue;
            }
            let peer = request.id().peer_addr().map_or(String::new(), |address| address.to_string());
            self.check_device(&request.get_device_context().map_err(CmError::Device)?, &peer)?;
            apply_options(request.id(), path)?;
            request.set_timeout(Some(STEP_LIMIT));
            let accepted = request.accept(queue_pair, parameter);
            return Ok(accepted.map_err(|source| CmError::Step { peer, source })?);
        }
    }

    fn check_device(&self, found: &DeviceContext, peer: &str) -> Result<(), CmError> {
        let (found, device) = (found.name(), &self.device.limits.device);
        if found == *device {
            return Ok(());
        }
        Err(CmError::OtherDevice { peer: peer.to_owned(), found, device: device.clone() })
    }
}

/// The private data of a request for a queue pair.
fn said(token: u64, number: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&token.to_be_bytes());
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn identifier(device: &LocalDevice) -> Result<Identifier, CmError> {
    let channel = EventChannel::from_provider(device.context.provider()).map_err(CmError::Channel)?;
    channel.create_id(PortSpace::Tcp).map_err(CmError::Identifier)
}

/// Sets an identifier's path options.
fn apply_options(id: &Identifier, path: &PathOptions) -> Result<(), CmError> {
    // The plan has checked the range.
    if let Some(given) = path.type_of_service {
        let set = id.set_type_of_service(given as u8);
        set.map_err(|source| CmError::Option { flag: "-T", given, source })?;
    }
    if let Some(given) = path.timeout {
        let set = id.set_ack_timeout(given as u8);
        set.map_err(|source| CmError::Option { flag: "-u", given, source })?;
    }
    Ok(())
}

/// The IP address of the device's GID, if it is routable.
fn own_address(device: &LocalDevice) -> Option<IpAddr> {
    let gid: Gid = device.path.gid().filter(|_| device.path.link_layer() == LinkLayer::Ethernet)?;
    match gid.to_ipv4_mapped() {
        Some(address) => Some(address.into()),
        // A link-local address needs a network interface, and InfiniBand's GIDs are not IP
        // addresses.
        None if gid.is_unicast_link_local() || gid.is_zero() => None,
        None => Some(Ipv6Addr::from(gid).into()),
    }
}

fn step(peer: SocketAddr, source: ConnectError) -> CmError {
    CmError::Step { peer: peer.to_string(), source }
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
