//! Helpers for two sides that connect through the connection manager.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use sideway::ErrorKind;
use sideway::ibverbs::address::GidEntry;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::queue_pair::{QueuePair, QueuePairState, QueuePairType};
use sideway::rdmacm::{Address, ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace};

use crate::harness::{Skip, TestDevice};
use crate::node::{Node, NodeOptions};
use crate::support::flavour::QpFlavour;

/// The maximum time until an event arrives.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The maximum time to resolve an address or a route.
pub(crate) const RESOLUTION: Duration = Duration::from_secs(5);

pub(crate) type CmNode<Q> = Node<Q, GenericCompletionQueue>;

/// The address and provider that the identifiers of a test use.
pub(crate) struct CmTestDevice {
    ip: IpAddr,
    scope: u32,
    pub(crate) device: String,
}

impl CmTestDevice {
    /// The test device's address, if its provider has a connection manager.
    pub(crate) fn of(test_device: &TestDevice) -> Result<Self, Skip> {
        match EventChannel::new() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Library => skip!("{error}"),
            Err(error) => panic!("{error}"),
        }
        let context = test_device.open();
        let entries = context.query_gid_table().unwrap();
        let usable =
            |entry: &&GidEntry| !entry.gid().is_zero() && entry.port_num() == u32::from(test_device.port);
        let v4 = entries.iter().filter(usable).find(|entry| entry.gid().to_ipv4_mapped().is_some());
        let entry = v4.or_else(|| entries.iter().find(usable)).expect("the device has an address");
        let ip = Ipv6Addr::from(entry.gid());
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        Ok(Self { ip, scope: entry.ndev_ifindex(), device: test_device.name.clone() })
    }

    pub(crate) fn at(&self, port: u16) -> Address {
        match self.ip {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope).into(),
        }
    }

    /// An unused address, in the device's own network if that has one.
    pub(crate) fn nobody(&self) -> Result<Address, Skip> {
        let IpAddr::V4(ip) = self.ip else { skip!("the device {} has no IPv4 address", self.device) };
        // In the loopback network all addresses are in use, so this is one reserved for
        // documentation.
        let [a, b, c, _] = if ip.is_loopback() { [192, 0, 2, 0] } else { ip.octets() };
        Ok(SocketAddr::from(([a, b, c, 250], 7471)).into())
    }

    pub(crate) fn listener(&self, channel: &EventChannel, space: PortSpace) -> Identifier {
        let id = channel.create_id(space).unwrap();
        id.bind_addr(self.at(0)).unwrap();
        id.listen(64).unwrap();
        assert_ne!(id.local_port(), Some(0));
        id
    }

    /// An identifier with a route to a listener. It is moved to `channel` once the route is
    /// resolved.
    pub(crate) fn resolved(&self, channel: &EventChannel, to: &Identifier) -> Identifier {
        let own = channel_of_ones_own();
        let id = own.create_id(to.port_space()).unwrap();
        id.resolve_addr(None, self.at(to.local_port().unwrap()), RESOLUTION).unwrap();
        expect(&own, EventType::AddressResolved);
        id.resolve_route(RESOLUTION).unwrap();
        expect(&own, EventType::RouteResolved);
        id.migrate(channel).unwrap();
        id
    }

    /// A listener, the identifier that requests a connection, and the request; each with a separate
    /// channel.
    pub(crate) fn requested(&self, data: &[u8]) -> Requested {
        let (channel, theirs) = (channel_of_ones_own(), channel_of_ones_own());
        let listener = self.listener(&theirs, PortSpace::Tcp);
        let active = self.resolved(&channel, &listener);
        active.connect(ConnectionParameter::new().setup_private_data(data).setup_qp_number(17)).unwrap();
        let request = expect(&theirs, EventType::ConnectRequest);
        assert_eq!(request.listener_id(), Some(&listener));
        Requested { active, channel, listener, theirs, request }
    }
}

pub(crate) struct Requested {
    pub(crate) active: Identifier,
    pub(crate) channel: EventChannel,
    pub(crate) listener: Identifier,
    pub(crate) theirs: EventChannel,
    pub(crate) request: Event,
}

pub(crate) fn channel_of_ones_own() -> EventChannel {
    EventChannel::new().unwrap()
}

/// Takes the next event, which must be of this type.
pub(crate) fn expect(channel: &EventChannel, wanted: EventType) -> Event {
    let event =
        channel.get_cm_event_timeout(PATIENCE).unwrap().unwrap_or_else(|| panic!("no {wanted} comes"));
    assert_eq!(event.event_type(), wanted, "{event:?}");
    event
}

/// Checks that data arrived unchanged, followed by zeros only.
pub(crate) fn assert_data(found: &[u8], sent: &[u8]) {
    let (data, rest) = found.split_at_checked(sent.len()).unwrap_or_else(|| panic!("{found:?} is too short"));
    assert_eq!(data, sent);
    assert!(rest.iter().all(|byte| *byte == 0), "{rest:?} is behind the data");
}

/// A node on an identifier's device, in a state that accepts receives.
pub(crate) fn node<Q: QpFlavour>(id: &Identifier) -> CmNode<Q> {
    let datagram = id.port_space() == PortSpace::Udp;
    let options = NodeOptions::with(|options| {
        if datagram {
            options.qp_type = QueuePairType::UnreliableDatagram;
        }
    });
    let mut node = CmNode::<Q>::new(&id.get_device_context().unwrap(), id.port().unwrap(), &options);
    id.modify_qp(&mut node.qp, QueuePairState::Init).unwrap();
    if datagram {
        id.modify_qp(&mut node.qp, QueuePairState::ReadyToReceive).unwrap();
        id.modify_qp(&mut node.qp, QueuePairState::ReadyToSend).unwrap();
    }
    node
}

/// Brings a pair to ready-to-send with the identifier's attributes.
pub(crate) fn ready<Q: QueuePair>(id: &Identifier, qp: &mut Q) {
    id.modify_qp(qp, QueuePairState::ReadyToReceive).unwrap();
    id.modify_qp(qp, QueuePairState::ReadyToSend).unwrap();
}
