//! Identifiers in the states that cases need, up to a connected pair.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::super::{Flavour, Node, NodeOptions};
use super::super::{Skip, TestDevice};
use super::{Cm, CmChannel, CmId, EventCopy, Kind, Param, Space};

/// The time limit for resolving an address or a route, in milliseconds.
pub(crate) const MILLISECONDS: i32 = 4000;

/// The test device as the connection manager sees it.
#[derive(Clone, Debug)]
pub(crate) struct CmDevice {
    pub(crate) cm: Cm,
    pub(crate) ip: IpAddr,
    pub(crate) device: String,
    pub(crate) gid: [u8; 16],
}

/// An identifier and its event channel.
#[derive(Clone, Debug)]
pub(crate) struct IdWithChannel {
    pub(crate) id: CmId,
    pub(crate) channel: CmChannel,
}

/// A listener, and a client whose connection request has arrived there.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    pub(crate) server: CmId,
    pub(crate) seen: EventCopy,
    pub(crate) client: IdWithChannel,
    pub(crate) listener: IdWithChannel,
}

/// A connected pair. The library created both queue pairs and changed their states.
#[derive(Debug)]
pub(crate) struct ConnectedPair {
    pub(crate) client_node: Node,
    pub(crate) server_node: Node,
    pub(crate) client_seen: EventCopy,
    pub(crate) server_seen: EventCopy,
    pub(crate) server: CmId,
    pub(crate) client: IdWithChannel,
    pub(crate) listener: IdWithChannel,
}

/// The IP address that a GID stands for.
fn ip(gid: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(gid);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

impl CmDevice {
    /// The device under test.
    pub(crate) fn of(dut: &TestDevice) -> Result<Self, Skip> {
        let cm = dut.cm()?;
        let (gid, _) = dut.open().find_gid().unwrap();
        Ok(Self { cm, ip: ip(gid), device: dut.name.clone(), gid })
    }

    /// The second device.
    pub(crate) fn of_peer(dut: &TestDevice) -> Result<Self, Skip> {
        let cm = dut.cm()?;
        let device = dut.open_peer()?;
        let (gid, _) = device.find_gid().unwrap();
        Ok(Self { cm, ip: ip(gid), device: device.name().to_owned(), gid })
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// An IPv6 address of the device with port 0. The scope of a link-local one is its network
    /// interface.
    pub(crate) fn ipv6(&self, dut: &TestDevice) -> Option<SocketAddr> {
        let device = dut.open();
        let gids = (0..8).filter_map(|index| Some((index, device.gid(1, index).ok()?)));
        let (index, gid) =
            gids.into_iter().find(|(_, gid)| *gid != [0; 16] && matches!(ip(*gid), IpAddr::V6(_)))?;
        let entry = device.gid_ex(1, index as u32, 0).ok()?;
        Some(SocketAddrV6::new(gid.into(), 0, 0, entry.ndev_ifindex).into())
    }

    /// An address that no host answers.
    ///
    /// It is in the device's network. The whole loopback network belongs to this host, so that an
    /// address for documentation (192.0.2.0/24) takes its place there.
    pub(crate) fn nobody(&self) -> Option<SocketAddr> {
        let IpAddr::V4(ip) = self.ip else { return None };
        let [a, b, c, _] = if ip.is_loopback() { [192, 0, 2, 0] } else { ip.octets() };
        Some(([a, b, c, 250], 7471).into())
    }

    pub(crate) fn channel(&self) -> CmChannel {
        self.cm.channel().unwrap()
    }

    /// Creates an identifier with a new channel.
    pub(crate) fn create_id(&self, space: Space) -> IdWithChannel {
        let channel = self.channel();
        IdWithChannel { id: channel.id(space, 0).unwrap(), channel }
    }

    /// An identifier that is bound to the device, with a port that the library chose.
    pub(crate) fn bound(&self, space: Space) -> IdWithChannel {
        let end = self.create_id(space);
        end.id.bind(self.at(0)).unwrap();
        end
    }

    /// An identifier that listens at the device's address.
    pub(crate) fn listener(&self, space: Space) -> IdWithChannel {
        let end = self.bound(space);
        end.id.listen(16).unwrap();
        end
    }

    /// An identifier whose address and route are resolved.
    pub(crate) fn resolved(&self, space: Space, to: SocketAddr) -> IdWithChannel {
        let end = self.create_id(space);
        end.resolve(to);
        end
    }

    /// A connection request from a client without a queue pair.
    pub(crate) fn request(&self, space: Space, param: &Param) -> ConnectRequest {
        let listener = self.listener(space);
        let client = self.resolved(space, self.at(listener.id.src_port()));
        client.id.connect(Some(param)).unwrap();
        let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
        ConnectRequest::of(seen, client, listener)
    }

    /// Connects two nodes of this device.
    pub(crate) fn pair(&self, options: &NodeOptions) -> ConnectedPair {
        self.pair_with(options, &Param { qp_num: 0, ..Param::of(0) }, self)
    }

    /// Connects a node of this device to one of another.
    pub(crate) fn pair_with(&self, options: &NodeOptions, param: &Param, to: &Self) -> ConnectedPair {
        let listener = to.listener(Space::RDMA_PS_TCP);
        let client = self.resolved(Space::RDMA_PS_TCP, to.at(listener.id.src_port()));
        let client_node = client.id.node(options);
        client.id.connect(Some(param)).unwrap();
        let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
        let request = ConnectRequest::of(seen, client, listener);
        request.accepted(client_node, options, param)
    }

    /// Options of reliable connected pairs with classic posting.
    pub(crate) fn options() -> NodeOptions {
        NodeOptions::rc(Flavour::Classic)
    }
}

impl IdWithChannel {
    /// Resolves the address and the route.
    pub(crate) fn resolve(&self, to: SocketAddr) {
        self.id.resolve_addr(None, to, MILLISECONDS).unwrap();
        assert!(self.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED).is_for(&self.id));
        self.id.resolve_route(MILLISECONDS).unwrap();
        assert!(self.channel.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED).is_for(&self.id));
    }
}

impl ConnectRequest {
    /// The request that the event announces.
    pub(crate) fn of(mut seen: EventCopy, client: IdWithChannel, listener: IdWithChannel) -> Self {
        let server = seen.new.take().expect("a request has a new identifier");
        Self { server, seen, client, listener }
    }

    /// Accepts with a node whose queue pair the library creates and changes.
    pub(crate) fn accepted(self, client_node: Node, options: &NodeOptions, param: &Param) -> ConnectedPair {
        let Self { server, client, listener, .. } = self;
        let server_node = server.node(options);
        server.accept(Some(param)).unwrap();
        let client_seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
        let server_seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
        ConnectedPair { client_node, server_node, client_seen, server_seen, server, client, listener }
    }
}

impl ConnectedPair {
    /// Sends a message in each direction.
    pub(crate) fn talks(&self) {
        use super::super::{Wr, pattern};
        for (n, (from, to)) in
            [(&self.client_node, &self.server_node), (&self.server_node, &self.client_node)]
                .into_iter()
                .enumerate()
        {
            to.recv(7, 0, 256);
            from.mr.buf.set(1024, &pattern(n as u8, 200));
            from.done(Wr::send(8).sge(from.mr.at(1024, 200)));
            let wc = to.recv_cq.ok();
            assert_eq!((wc.id, wc.len), (7, 200));
            assert_eq!(to.mr.buf.get(0, 200), pattern(n as u8, 200));
        }
    }
}
