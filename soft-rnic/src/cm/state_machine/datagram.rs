//! SIDR: service ID
//! resolution for datagrams (12.11).

use std::ffi::c_int;
use std::time::Instant;

use rdma_mummy_sys::types::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_type};

use super::connect::RESPONSE_TIMEOUT;
use super::receive::padded;
use super::{CmConnection, CmId, CmStateMachine, HandshakeState, IdState, UDP_QKEY, milliseconds, sidr};
use crate::cm::message::{CmMad, Endpoints, MadBody, SIDR_REP_DATA, SIDR_REQ_DATA};
use crate::cm::ports::ListenerMissing;
use crate::cm::types::{
    CmEventKind, CmPath, ConnParams, Ece, EventDetails, IdNumber, PrivateData, UdAddress,
};
use crate::objects::lid;

impl CmStateMachine {
    pub(super) fn ask_for_datagrams(
        &mut self,
        number: IdNumber,
        ends: Endpoints,
        path: CmPath,
        parameters: &ConnParams,
        now: Instant,
    ) -> Result<(), c_int> {
        let data = parameters.private_data.clone();
        if data.len() > SIDR_REQ_DATA {
            return Err(libc::EINVAL);
        }
        let id = self.id_mut(number)?;
        (id.connection, id.state) = (CmConnection::new(HandshakeState::SidrReqSent), IdState::Connect);
        let body = MadBody::SidrReq { ends, gid: path.sgid, data };
        self.ask_until_answered(number, body, milliseconds(RESPONSE_TIMEOUT), now);
        self.ask_for_peer(number, ends, now, false);
        self.run_inbox(now);
        Ok(())
    }

    pub(super) fn receive_sidr_req(
        &mut self,
        peer: u16,
        from: u64,
        ends: Endpoints,
        gid: [u8; 16],
        data: &[u8],
    ) {
        // A repetition, while the program has not answered yet.
        if self.requests.contains_key(&(peer, from)) {
            return;
        }
        let status = match self.listener(&ends) {
            Err(ListenerMissing::Port) => sidr::UNSUPPORTED,
            Err(ListenerMissing::Address) => sidr::REJECT,
            Ok((listener, path)) => match self.admit_datagrams(listener, &ends, path, gid) {
                None => sidr::REJECT,
                Some(number) => {
                    if let Ok(id) = self.id_mut(number) {
                        id.connection.handshake = HandshakeState::SidrReqReceived;
                        (id.connection.peer, id.connection.remote) = (Some(peer), from);
                    }
                    self.requests.insert((peer, from), number);
                    let private_data = padded(data, SIDR_REQ_DATA);
                    let details = EventDetails::Datagram { private_data, address: UdAddress::default() };
                    return self.announce(listener, number, details, Ece::default());
                }
            },
        };
        let (qp_num, qkey, ece) = (0, 0, Ece::default());
        let body = MadBody::SidrRep { status, qp_num, qkey, ece, data: PrivateData::new() };
        self.send(peer, CmMad { from: 0, to: from, body });
    }

    fn admit_datagrams(
        &mut self,
        listener: IdNumber,
        ends: &Endpoints,
        path: CmPath,
        gid: [u8; 16],
    ) -> Option<IdNumber> {
        self.id(listener).ok().filter(|id| id.is_datagram())?;
        self.admit_id(listener, ibv_qp_type::IBV_QPT_UD, ends, path, gid)
    }

    /// Answers with the queue pair and key for the id's datagrams.
    pub(super) fn offer_datagrams(
        &mut self,
        number: IdNumber,
        parameters: Option<&ConnParams>,
    ) -> Result<(), c_int> {
        let id = self.id_mut(number)?;
        let data = parameters.map(|parameters| parameters.private_data.clone()).unwrap_or_default();
        let waits = id.connection.handshake == HandshakeState::SidrReqReceived;
        let qkey = id.agree_on_qkey(parameters.map_or(0, |parameters| parameters.qkey))?;
        if !waits || data.len() > SIDR_REP_DATA {
            return Err(libc::EINVAL);
        }
        let (qp_num, ece) = (id.qp_num, id.ece);
        self.tell(number, MadBody::SidrRep { status: sidr::SUCCESS, qp_num, qkey, ece, data });
        self.end(number);
        Ok(())
    }

    pub(super) fn refuse_datagrams(&mut self, number: IdNumber, data: &[u8]) -> Result<(), c_int> {
        let waits = self.id(number)?.connection.handshake == HandshakeState::SidrReqReceived;
        let data = PrivateData::try_from(data).ok().filter(|data| waits && data.len() <= SIDR_REP_DATA);
        let (data, ece) = (data.ok_or(libc::EINVAL)?, Ece::default());
        self.tell(number, MadBody::SidrRep { status: sidr::REJECT, qp_num: 0, qkey: 0, ece, data });
        self.end(number);
        Ok(())
    }

    pub(super) fn receive_sidr_rep(
        &mut self,
        number: IdNumber,
        status: u8,
        qp_num: u32,
        qkey: u32,
        ece: Ece,
        data: &[u8],
    ) {
        if self.id(number).is_ok_and(|id| id.connection.handshake == HandshakeState::SidrReqSent) {
            self.end(number);
            let Ok(id) = self.id_mut(number) else { return };
            let private_data = padded(data, SIDR_REP_DATA);
            let agreed = if status == sidr::SUCCESS { id.agree_on_qkey(qkey) } else { Ok(0) };
            let (kind, status, address) = match agreed {
                _ if status != sidr::SUCCESS => {
                    (CmEventKind::Unreachable, status.into(), UdAddress::default())
                }
                Err(error) => (CmEventKind::AddrError, -error, UdAddress::default()),
                Ok(_) => {
                    (CmEventKind::Established, 0, UdAddress { ah_attr: id.address_handle(), qp_num, qkey })
                }
            };
            self.raise_ece(number, kind, status, EventDetails::Datagram { private_data, address }, ece);
        }
    }
}

impl CmId {
    /// Determines the key of the id's datagrams: the current one if it is set, or else `qkey`, or
    /// the default if that is 0.
    pub(super) fn agree_on_qkey(&mut self, qkey: u32) -> Result<u32, c_int> {
        match self.qkey {
            Some(agreed) if qkey != 0 && qkey != agreed => Err(libc::EINVAL),
            Some(agreed) => Ok(agreed),
            None => {
                let qkey = if qkey == 0 { UDP_QKEY } else { qkey };
                self.qkey = Some(qkey);
                Ok(qkey)
            }
        }
    }

    /// The address handle for the destination.
    pub(super) fn address_handle(&self) -> ibv_ah_attr {
        let (Some(path), Some(dgid)) = (self.path, self.dgid) else { return ibv_ah_attr::default() };
        address_handle(path, dgid, self.traffic_class(), super::HOPS)
    }
}

/// The address handle for a GID.
pub(super) fn address_handle(path: CmPath, dgid: [u8; 16], traffic_class: u8, hop_limit: u8) -> ibv_ah_attr {
    ibv_ah_attr {
        dlid: if path.device.is_infiniband() { lid::of_gid(dgid) } else { 0 },
        grh: ibv_global_route {
            dgid: ibv_gid { raw: dgid },
            flow_label: 0,
            sgid_index: path.sgid_index,
            hop_limit,
            traffic_class,
        },
        is_global: 1,
        port_num: path.port,
        ..ibv_ah_attr::default()
    }
}
