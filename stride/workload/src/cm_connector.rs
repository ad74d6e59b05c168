//! Connecting queue pairs by rdma_cm (`-R`).
//!
//! The server listens at its device's address, and tells the client over the control connection where, with a number that
//! nobody else knows. The client's requests have that number, and that of the queue pair: others are rejected.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use sideway::ibverbs::address::Gid;
use sideway::ibverbs::connect::ConnectOptions;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::LinkLayer;
use sideway::ibverbs::queue_pair::GenericQueuePair;
use sideway::rdmacm::{
    Address, Connection, ConnectionParameter, Connector, EventChannel, Identifier, Listener, PortSpace,
    SynchronousError,
};

use stride_base::control::{CmAddress, ControlLink, ControlMessage};
use stride_base::device::LocalDevice;
use stride_base::error::{CmError, Error};
use stride_base::plan::PathOptions;

/// How long one step of a connection may take.
const STEP_LIMIT: Duration = Duration::from_secs(10);

/// How long the client may take to ask for a connection.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// How often whoever waits for a request looks whether the client is still there.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// One end of the connections of a test that are still to be made.
pub struct CmConnector<'a> {
    device: &'a LocalDevice,
    link: &'a mut ControlLink,
    meeting: CmAddress,
    /// The server's.
    listener: Option<Listener>,
}

impl<'a> CmConnector<'a> {
    /// The server's: listens at the device's address.
    ///
    /// # Errors
    ///
    /// There is no connection manager, or it does not listen there.
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

    /// The client's: goes where the server listens.
    pub fn go(device: &'a LocalDevice, link: &'a mut ControlLink, meeting: CmAddress) -> Self {
        Self { device, link, meeting, listener: None }
    }

    /// Tells the client where the server listens.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn invite(&mut self) -> Result<(), Error> {
        Ok(self.link.send(&ControlMessage::Meeting(self.meeting))?)
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
        way: &PathOptions,
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
        way: &PathOptions,
    ) -> Result<Connection, Error> {
        let peer = SocketAddr::new(self.meeting.address, self.meeting.port);
        let id = identifier(self.device)?;
        told(&id, way)?;
        let source = own_address(self.device)
            .filter(|address| address.is_ipv4() == peer.is_ipv4())
            .map(|address| Address::from(SocketAddr::new(address, 0)));
        let mut connector =
            Connector::with_id(id, source, peer, STEP_LIMIT).map_err(|source| step(peer, source))?;
        self.check_device(&connector.get_device_context().map_err(CmError::from)?, &peer.to_string())?;
        connector.set_timeout(Some(STEP_LIMIT));
        Ok(connector.connect(queue_pair, parameter).map_err(|source| step(peer, source))?)
    }

    fn accept(
        &mut self,
        listener: &Listener,
        said: &[u8],
        queue_pair: &mut GenericQueuePair,
        parameter: &ConnectionParameter,
        way: &PathOptions,
    ) -> Result<Connection, Error> {
        let end = Instant::now() + REQUEST_LIMIT;
        let here = SocketAddr::new(self.meeting.address, self.meeting.port);
        loop {
            self.link.peer_status()?;
            let request =
                listener.get_request_timeout(PEER_CHECK_INTERVAL).map_err(|source| step(here, source))?;
            let Some(mut request) = request else {
                if Instant::now() > end {
                    return Err(CmError::NoRequest { limit: REQUEST_LIMIT }.into());
                }
                continue;
            };
            if !request.private_data().starts_with(said) {
                // Somebody else's, who is told so; or who is gone, and need not be.
                let _ = request.reject(b"not of this test");
                continue;
            }
            let peer = request.id().peer_addr().map_or(String::new(), |address| address.to_string());
            self.check_device(&request.get_device_context().map_err(CmError::from)?, &peer)?;
            told(request.id(), way)?;
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

/// What a request for the connection of a queue pair has in it.
fn said(token: u64, number: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&token.to_be_bytes());
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn identifier(device: &LocalDevice) -> Result<Identifier, CmError> {
    let channel = EventChannel::from_provider(device.context.provider())?;
    Ok(channel.create_id(PortSpace::Tcp)?)
}

/// Tells an identifier what it is to ask of the way.
fn told(id: &Identifier, way: &PathOptions) -> Result<(), CmError> {
    // In range, which the plan has seen to.
    if let Some(given) = way.type_of_service {
        let set = id.set_type_of_service(given as u8);
        set.map_err(|source| CmError::Option { flag: "-T", given, source })?;
    }
    if let Some(given) = way.timeout {
        let set = id.set_ack_timeout(given as u8);
        set.map_err(|source| CmError::Option { flag: "-u", given, source })?;
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

fn step(peer: SocketAddr, source: SynchronousError) -> CmError {
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
