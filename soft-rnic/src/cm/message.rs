//! CM messages (MADs): encoding and decoding (InfiniBand specification, chapter 12).
//!
//! A message comes from another process of this user. It is decoded as a whole or rejected, and no
//! field in it is trusted.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::types::{Ece, PortSpace, PrivateData};
use crate::faults::CmMessage;

/// The most private data of each message: the room that the kernel's messages have behind the
/// addresses.
pub(super) const REQ_DATA: usize = 56;
pub(super) const REP_DATA: usize = 196;
pub(super) const REJ_DATA: usize = 148;
pub(super) const SIDR_REQ_DATA: usize = 180;
pub(super) const SIDR_REP_DATA: usize = 136;

/// The longest message, in bytes.
pub(super) const MESSAGE: usize = 512;

/// The version of the encoding.
const VERSION: u8 = 1;

/// The type of a connection's queue pairs, which must be the same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum QpService {
    Reliable = 2,
    Unreliable = 3,
    /// Sent by the initiator of an XRC connection.
    Xrc = 9,
}

/// The two ends of a connection, as its active side names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoints {
    pub(super) space: PortSpace,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
}

/// The queue pair of one end, with its capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointParams {
    pub(super) qp_num: u32,
    /// The packet sequence number with which the other end begins to send.
    pub(super) psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: bool,
    pub(super) ece: Ece,
    pub(super) data: PrivateData,
}

/// A connection request (REQ).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReqBody {
    pub(super) ends: Endpoints,
    pub(super) service: QpService,
    pub(super) gid: [u8; 16],
    /// `ibv_mtu`.
    pub(super) mtu: u8,
    pub(super) traffic_class: u8,
    /// An exponent: the time is 4.096 us times two to the power of this.
    pub(super) ack_timeout: u8,
    pub(super) retry_count: u8,
    pub(super) side: EndpointParams,
}

/// The message type, with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MadBody {
    Req(ReqBody),
    /// The request or reply has arrived, and the program has not decided yet.
    Mra,
    Rep(EndpointParams),
    Rtu,
    Rej {
        reason: u8,
        data: PrivateData,
    },
    Dreq,
    Drep,
    SidrReq {
        ends: Endpoints,
        gid: [u8; 16],
        data: PrivateData,
    },
    SidrRep {
        status: u8,
        qp_num: u32,
        qkey: u32,
        ece: Ece,
        data: PrivateData,
    },
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CmMad {
    /// The sender's number of the connection.
    pub(super) from: u64,
    /// The receiver's number of the connection; 0 until the sender has learned it.
    pub(super) to: u64,
    pub(super) body: MadBody,
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    let (ip, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    out.extend(ip.octets());
    out.extend(scope.to_le_bytes());
    out.extend(address.port().to_le_bytes());
}

fn put_data(out: &mut Vec<u8>, data: &[u8]) {
    out.push(data.len() as u8);
    out.extend(data);
}

impl Endpoints {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.space as u8);
        put_address(out, self.source);
        put_address(out, self.destination);
    }
}

impl Ece {
    fn encode(self, out: &mut Vec<u8>) {
        out.extend(self.vendor_id.to_le_bytes());
        out.extend(self.options.to_le_bytes());
    }
}

impl EndpointParams {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.qp_num.to_le_bytes());
        out.extend(self.psn.to_le_bytes());
        out.extend([
            self.responder_resources,
            self.initiator_depth,
            self.flow_control,
            self.rnr_retry_count,
            self.srq.into(),
        ]);
        self.ece.encode(out);
        put_data(out, &self.data);
    }
}

impl MadBody {
    /// The message type in fault rules.
    pub(super) fn kind(&self) -> CmMessage {
        match self {
            Self::Req(_) => CmMessage::Req,
            Self::Mra => CmMessage::Mra,
            Self::Rep(_) => CmMessage::Rep,
            Self::Rtu => CmMessage::Rtu,
            Self::Rej { .. } => CmMessage::Rej,
            Self::Dreq => CmMessage::Dreq,
            Self::Drep => CmMessage::Drep,
            Self::SidrReq { .. } => CmMessage::SidrReq,
            Self::SidrRep { .. } => CmMessage::SidrRep,
        }
    }
}

impl CmMad {
    /// Encodes the message into an empty buffer.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let kind = match &self.body {
            MadBody::Req(_) => 1,
            MadBody::Mra => 2,
            MadBody::Rep(_) => 3,
            MadBody::Rtu => 4,
            MadBody::Rej { .. } => 5,
            MadBody::Dreq => 6,
            MadBody::Drep => 7,
            MadBody::SidrReq { .. } => 8,
            MadBody::SidrRep { .. } => 9,
        };
        out.extend([VERSION, kind]);
        out.extend(self.from.to_le_bytes());
        out.extend(self.to.to_le_bytes());
        match &self.body {
            MadBody::Req(req) => {
                req.ends.encode(out);
                out.extend([req.service as u8, req.mtu, req.traffic_class, req.ack_timeout, req.retry_count]);
                out.extend(req.gid);
                req.side.encode(out);
            }
            MadBody::Rep(side) => side.encode(out),
            MadBody::Rej { reason, data } => {
                out.push(*reason);
                put_data(out, data);
            }
            MadBody::SidrReq { ends, gid, data } => {
                ends.encode(out);
                out.extend(gid);
                put_data(out, data);
            }
            MadBody::SidrRep { status, qp_num, qkey, ece, data } => {
                out.push(*status);
                out.extend(qp_num.to_le_bytes());
                out.extend(qkey.to_le_bytes());
                ece.encode(out);
                put_data(out, data);
            }
            MadBody::Mra | MadBody::Rtu | MadBody::Dreq | MadBody::Drep => {}
        }
    }

    /// Decodes a packet; `None` if it is not a valid message.
    pub(super) fn decode(packet: &[u8]) -> Option<Self> {
        let mut packet = MadReader(packet);
        (packet.byte()? == VERSION).then_some(())?;
        let kind = packet.byte()?;
        let (from, to) = (packet.u64()?, packet.u64()?);
        let body = match kind {
            1 => MadBody::Req(packet.req()?),
            2 => MadBody::Mra,
            3 => MadBody::Rep(packet.side(REP_DATA)?),
            4 => MadBody::Rtu,
            5 => MadBody::Rej { reason: packet.byte()?, data: packet.data(REJ_DATA)? },
            6 => MadBody::Dreq,
            7 => MadBody::Drep,
            8 => MadBody::SidrReq {
                ends: packet.ends()?,
                gid: packet.bytes()?,
                data: packet.data(SIDR_REQ_DATA)?,
            },
            9 => MadBody::SidrRep {
                status: packet.byte()?,
                qp_num: packet.u24()?,
                qkey: packet.u32()?,
                ece: packet.ece()?,
                data: packet.data(SIDR_REP_DATA)?,
            },
            _ => return None,
        };
        packet.0.is_empty().then_some(Self { from, to, body })
    }
}

/// The undecoded rest of a packet.
struct MadReader<'a>(&'a [u8]);

impl MadReader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A 24-bit value: the number of a queue pair or of a packet.
    fn u24(&mut self) -> Option<u32> {
        self.u32().filter(|number| *number <= 0xff_ffff)
    }

    /// A byte that must not exceed `most`.
    fn at_most(&mut self, most: u8) -> Option<u8> {
        self.byte().filter(|byte| *byte <= most)
    }

    fn data(&mut self, most: usize) -> Option<PrivateData> {
        let len = usize::from(self.byte()?);
        let (data, rest) = self.0.split_at_checked(len).filter(|_| len <= most)?;
        self.0 = rest;
        PrivateData::try_from(data).ok()
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let ip = Ipv6Addr::from(self.bytes::<16>()?);
        let (scope, port) = (self.u32()?, self.bytes().map(u16::from_le_bytes)?);
        Some(match ip.to_canonical() {
            IpAddr::V4(v4) => (v4, port).into(),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
        })
    }

    fn ends(&mut self) -> Option<Endpoints> {
        let space = match self.byte()? {
            0 => PortSpace::Tcp,
            1 => PortSpace::Udp,
            2 => PortSpace::Ib,
            3 => PortSpace::Ipoib,
            _ => return None,
        };
        let ends = Endpoints { space, source: self.address()?, destination: self.address()? };
        (ends.source.is_ipv4() == ends.destination.is_ipv4()).then_some(ends)
    }

    fn ece(&mut self) -> Option<Ece> {
        Some(Ece { vendor_id: self.u32()?, options: self.u32()? })
    }

    fn side(&mut self, most: usize) -> Option<EndpointParams> {
        Some(EndpointParams {
            qp_num: self.u24()?,
            psn: self.u24()?,
            responder_resources: self.byte()?,
            initiator_depth: self.byte()?,
            flow_control: self.at_most(1)?,
            rnr_retry_count: self.at_most(7)?,
            srq: self.at_most(1)? == 1,
            ece: self.ece()?,
            data: self.data(most)?,
        })
    }

    fn req(&mut self) -> Option<ReqBody> {
        let ends = self.ends()?;
        let service = match self.byte()? {
            2 => QpService::Reliable,
            3 => QpService::Unreliable,
            9 => QpService::Xrc,
            _ => return None,
        };
        Some(ReqBody {
            ends,
            service,
            mtu: self.byte().filter(|mtu| (1..=5).contains(mtu))?,
            traffic_class: self.byte()?,
            ack_timeout: self.at_most(31)?,
            retry_count: self.at_most(7)?,
            gid: self.bytes()?,
            side: self.side(REQ_DATA)?,
        })
    }
}
