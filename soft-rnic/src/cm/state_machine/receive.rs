//! Receiving CM messages: REQ, REP, RTU, REJ, DREQ, DREP, MRA, SIDR.

use std::time::Instant;

use rdma_mummy_sys::types::ibv_qp_type;

use super::{CmStateMachine, HandshakeState, IdState, milliseconds, reason, sidr};
use crate::cm::message::{
    CmMad, EndpointParams, Endpoints, MadBody, QpService, REJ_DATA, REP_DATA, REQ_DATA, ReqBody,
};
use crate::cm::ports::ListenerMissing;
use crate::cm::types::{CmEvent, CmEventKind, CmPath, ConnParams, Ece, EventDetails, IdNumber, PrivateData};

/// The exponent of the time that a program may take to answer, as the kernel announces it.
const SERVICE_TIMEOUT: u8 = 24;

/// Private data as the program sees it: padded with zeros to the length of the message's field.
pub(super) fn padded(data: &[u8], len: usize) -> PrivateData {
    let mut padded: PrivateData = data.iter().copied().take(len).collect();
    padded.extend(core::iter::repeat_n(0, len - padded.len()));
    padded
}

/// The parameters of the peer as the program sees them. The resources that one side offers are
/// those that the other may use, so the two fields are exchanged.
fn parameters(side: &EndpointParams, retry_count: u8, data_len: usize) -> EventDetails {
    EventDetails::Connection(ConnParams {
        private_data: padded(&side.data, data_len),
        responder_resources: side.initiator_depth,
        initiator_depth: side.responder_resources,
        flow_control: side.flow_control,
        retry_count,
        rnr_retry_count: side.rnr_retry_count,
        srq: side.srq,
        qp_num: side.qp_num,
        qkey: 0,
    })
}

impl CmStateMachine {
    /// Handles a packet of another process.
    pub(in crate::cm) fn receive_packet(&mut self, peer: u16, packet: &[u8], now: Instant) {
        match CmMad::decode(packet) {
            Some(message) => {
                self.receive(peer, message, now);
                self.run_inbox(now);
            }
            None => {
                log::debug!(
                    "block {peer} sent an invalid connection manager message of {} bytes",
                    packet.len()
                );
            }
        }
    }

    pub(super) fn receive(&mut self, peer: u16, message: CmMad, now: Instant) {
        let CmMad { from, to, body } = message;
        match body {
            MadBody::Req(req) => return self.receive_req(peer, from, req),
            MadBody::SidrReq { ends, gid, data } => {
                return self.receive_sidr_req(peer, from, ends, gid, &data);
            }
            _ => {}
        }
        let Some(number) = self.find(peer, from, to) else {
            if body == MadBody::Dreq {
                self.send(peer, CmMad { from: to, to: from, body: MadBody::Drep });
            }
            return;
        };
        match body {
            MadBody::Mra => self.receive_mra(number, now),
            MadBody::Rep(side) => self.receive_rep(number, from, &side),
            MadBody::Rtu => self.receive_rtu(number),
            MadBody::Rej { reason, data } => self.receive_rej(number, reason, &data, now),
            MadBody::Dreq => self.receive_dreq(number),
            MadBody::Drep => self.receive_drep(number, now),
            MadBody::SidrRep { status, qp_num, qkey, ece, data } => {
                self.receive_sidr_rep(number, status, qp_num, qkey, ece, &data);
            }
            MadBody::Req(_) | MadBody::SidrReq { .. } => {}
        }
    }

    /// The id that a message is for. The message must come from the right process and belong to the
    /// id's connection.
    fn find(&self, peer: u16, from: u64, to: u64) -> Option<IdNumber> {
        let number = if to == 0 { *self.requests.get(&(peer, from))? } else { IdNumber(to) };
        let connection = &self.id(number).ok()?.connection;
        let fits = connection.peer == Some(peer) && (connection.remote == from || connection.remote == 0);
        fits.then_some(number)
    }

    fn receive_req(&mut self, peer: u16, from: u64, req: ReqBody) {
        if let Some(number) = self.requests.get(&(peer, from)).copied() {
            return self.receive_req_again(number);
        }
        if let Err(reason) = self.admit(peer, from, &req) {
            let body = MadBody::Rej { reason, data: PrivateData::new() };
            self.send(peer, CmMad { from: 0, to: from, body });
        }
    }

    fn receive_req_again(&mut self, number: IdNumber) {
        match self.id(number).map(|id| id.connection.handshake) {
            Ok(HandshakeState::ReqReceived) => self.tell(number, MadBody::Mra),
            Ok(HandshakeState::RepSent) => self.send_unanswered(number),
            _ => {}
        }
    }

    /// Creates an id for a request, if it has a listener. An error is the reason for rejecting the
    /// request.
    fn admit(&mut self, peer: u16, from: u64, req: &ReqBody) -> Result<(), u8> {
        let pair = (peer, req.gid, req.side.qp_num);
        // The queue pair belongs to a connection that has not ended here (12.9.8.3.1). Queue
        // pair 0 stands for "none", so it never matches.
        if req.side.qp_num != 0 && self.pairs.contains_key(&pair) {
            return Err(reason::STALE_CONNECTION);
        }
        let (listener, path) = self.listener(&req.ends).map_err(|missing| match missing {
            ListenerMissing::Port => reason::INVALID_SERVICE_ID,
            ListenerMissing::Address => reason::CONSUMER_DEFINED,
        })?;
        let id = self.id(listener).map_err(|_| reason::INVALID_SERVICE_ID)?;
        let (qp_type, fits) = match req.service {
            QpService::Reliable => (ibv_qp_type::IBV_QPT_RC, id.qp_type == ibv_qp_type::IBV_QPT_RC),
            QpService::Unreliable => (ibv_qp_type::IBV_QPT_UC, id.qp_type == ibv_qp_type::IBV_QPT_UC),
            QpService::Xrc => (
                ibv_qp_type::IBV_QPT_XRC_RECV,
                [ibv_qp_type::IBV_QPT_XRC_RECV, ibv_qp_type::IBV_QPT_XRC_SEND].contains(&id.qp_type),
            ),
        };
        if !fits {
            return Err(reason::CONSUMER_DEFINED);
        }
        // Drop the request as if it had been lost; the listener may have room when it is repeated.
        let Some(number) = self.admit_id(listener, qp_type, &req.ends, path, req.gid) else { return Ok(()) };
        let id = self.id_mut(number).map_err(|_| reason::CONSUMER_DEFINED)?;
        let connection = &mut id.connection;
        connection.handshake = HandshakeState::ReqReceived;
        (connection.peer, connection.remote) = (Some(peer), from);
        (connection.remote_qp_num, connection.remote_psn) = (req.side.qp_num, req.side.psn);
        connection.responder_resources = req.side.initiator_depth;
        connection.initiator_depth = req.side.responder_resources;
        (connection.retry_count, connection.rnr_retry_count) = (req.retry_count, req.side.rnr_retry_count);
        (connection.mtu, connection.traffic_class) = (req.mtu, req.traffic_class);
        connection.ack_timeout = req.ack_timeout;
        self.requests.insert((peer, from), number);
        self.pairs.insert(pair, number);
        let details = parameters(&req.side, req.retry_count, REQ_DATA);
        self.announce(listener, number, details, req.side.ece);
        Ok(())
    }

    /// The listener for a request, and the port that has the address.
    pub(super) fn listener(&self, ends: &Endpoints) -> Result<(IdNumber, CmPath), ListenerMissing> {
        let listener = self.ports.listener(ends.space, ends.destination, &self.addresses)?;
        let to = ends.destination.ip();
        let path =
            self.addresses.path(to).or_else(|| to.is_loopback().then(|| self.addresses.any_path()).flatten());
        Ok((listener, path.ok_or(ListenerMissing::Address)?))
    }

    /// Creates an id for a request, if the backlog has room.
    pub(super) fn admit_id(
        &mut self,
        listener: IdNumber,
        qp_type: ibv_qp_type,
        ends: &Endpoints,
        path: CmPath,
        gid: [u8; 16],
    ) -> Option<IdNumber> {
        let asked = self.id_mut(listener).ok()?;
        asked.backlog = asked.backlog.checked_sub(1)?;
        let (queue, space, tos, timeout) = (asked.queue, asked.space, asked.tos, asked.ack_timeout);
        let number = self.insert(queue, 0, space, qp_type);
        let id = self.id_mut(number).ok()?;
        (id.source, id.destination) = (Some(ends.destination), Some(ends.source));
        (id.path, id.dgid, id.state) = (Some(path), Some(gid), IdState::Connect);
        (id.tos, id.ack_timeout) = (tos, timeout);
        Some(number)
    }

    /// Raises the request at the listener.
    pub(super) fn announce(
        &mut self,
        listener: IdNumber,
        request: IdNumber,
        details: EventDetails,
        ece: Ece,
    ) {
        let uid = self.id(listener).map_or(0, |id| id.uid);
        let (kind, request) = (CmEventKind::ConnectRequest, Some(request));
        self.queue_event(CmEvent { id: listener, uid, kind, status: 0, details, ece, request, join: None });
    }

    /// The peer has received the message, but its program has not answered yet.
    fn receive_mra(&mut self, number: IdNumber, now: Instant) {
        let Ok(id) = self.id(number) else { return };
        let connection = &id.connection;
        if !matches!(connection.handshake, HandshakeState::ReqSent | HandshakeState::RepSent) {
            return;
        }
        let wait = self.scaled(milliseconds(SERVICE_TIMEOUT) + milliseconds(connection.ack_timeout));
        if let Ok(id) = self.id_mut(number) {
            id.connection.interval = wait;
        }
        self.arm(number, now, wait);
    }

    fn receive_rep(&mut self, number: IdNumber, from: u64, side: &EndpointParams) {
        let Ok(id) = self.id_mut(number) else { return };
        let connection = &mut id.connection;
        match connection.handshake {
            HandshakeState::ReqSent => {}
            // The answer was lost or late: repeat it.
            HandshakeState::Established => return self.tell(number, MadBody::Rtu),
            HandshakeState::RepReceived => return self.tell(number, MadBody::Mra),
            _ => return,
        }
        connection.handshake = HandshakeState::RepReceived;
        connection.remote = from;
        (connection.remote_qp_num, connection.remote_psn) = (side.qp_num, side.psn);
        connection.responder_resources = side.initiator_depth;
        connection.initiator_depth = side.responder_resources;
        connection.rnr_retry_count = side.rnr_retry_count;
        self.answered(number);
        self.raise_ece(number, CmEventKind::ConnectResponse, 0, parameters(side, 0, REP_DATA), side.ece);
    }

    fn receive_rtu(&mut self, number: IdNumber) {
        if self.id(number).is_ok_and(|id| id.connection.handshake == HandshakeState::RepSent) {
            self.established(number);
        }
    }

    fn receive_rej(&mut self, number: IdNumber, why: u8, data: &[u8], now: Instant) {
        let Ok(id) = self.id_mut(number) else { return };
        match id.connection.handshake {
            // Another process may have the port now.
            HandshakeState::ReqSent if why == reason::INVALID_SERVICE_ID && id.connection.remembered => {
                return self.ask_afresh(number, now);
            }
            HandshakeState::ReqSent | HandshakeState::ReqReceived | HandshakeState::RepSent => {
                self.end(number)
            }
            HandshakeState::RepReceived | HandshakeState::DreqSent | HandshakeState::Established => {
                self.enter_timewait(number, now);
            }
            _ => return,
        }
        if self.id(number).is_ok_and(|id| id.state == IdState::Connect) {
            let private_data = padded(data, REJ_DATA);
            let details = EventDetails::Connection(ConnParams { private_data, ..ConnParams::default() });
            self.raise(number, CmEventKind::Rejected, why.into(), details);
        }
    }

    /// Looks up the owner of the port again, because the cached one was wrong.
    fn ask_afresh(&mut self, number: IdNumber, now: Instant) {
        let Some(ends) = self.asked(number) else { return };
        if let Ok(id) = self.id_mut(number) {
            (id.connection.peer, id.connection.remembered) = (None, false);
        }
        self.ask_for_peer(number, ends, now, true);
    }

    fn receive_dreq(&mut self, number: IdNumber) {
        let Ok(id) = self.id_mut(number) else { return };
        match id.connection.handshake {
            HandshakeState::RepSent
            | HandshakeState::RepReceived
            | HandshakeState::Established
            | HandshakeState::DreqSent => {}
            // The answer was lost or late: repeat it.
            HandshakeState::Timewait => return self.tell(number, MadBody::Drep),
            _ => return,
        }
        id.connection.handshake = HandshakeState::DreqReceived;
        self.answered(number);
        self.disconnected(number, 0);
    }

    fn receive_drep(&mut self, number: IdNumber, now: Instant) {
        let handshake = self.id(number).map(|id| id.connection.handshake);
        if let Ok(HandshakeState::DreqSent | HandshakeState::DreqReceived) = handshake {
            self.enter_timewait(number, now);
            self.disconnected(number, 0);
        }
    }

    /// No process has the port of the request.
    pub(super) fn nobody_there(&mut self, number: IdNumber, now: Instant) {
        match self.id(number).map(|id| id.connection.handshake) {
            Ok(HandshakeState::ReqSent) => self.receive_rej(number, reason::INVALID_SERVICE_ID, &[], now),
            Ok(HandshakeState::SidrReqSent) => {
                self.receive_sidr_rep(number, sidr::UNSUPPORTED, 0, 0, Ece::default(), &[]);
            }
            _ => {}
        }
    }

    /// Handles a process that is gone or unreachable: its ids end as if its program had destroyed
    /// them.
    pub(in crate::cm) fn gone(&mut self, peer: u16, now: Instant) {
        self.lose(peer, now);
        self.run_inbox(now);
    }

    pub(super) fn lose(&mut self, peer: u16, now: Instant) {
        let there = self.ids.iter().filter(|(_, id)| id.connection.peer == Some(peer));
        let there: Vec<_> = there.map(|(number, id)| (IdNumber(number), id.connection.handshake)).collect();
        for (number, handshake) in there {
            let remembered = self.id(number).is_ok_and(|id| id.connection.remembered);
            match handshake {
                HandshakeState::ReqSent | HandshakeState::SidrReqSent if remembered => {
                    self.ask_afresh(number, now)
                }
                HandshakeState::ReqReceived => self.receive_rej(number, reason::TIMEOUT, &[], now),
                HandshakeState::ReqSent | HandshakeState::RepSent | HandshakeState::RepReceived => {
                    self.receive_rej(number, reason::CONSUMER_DEFINED, &[], now);
                }
                HandshakeState::Established => self.receive_dreq(number),
                HandshakeState::DreqSent | HandshakeState::DreqReceived => self.receive_drep(number, now),
                HandshakeState::SidrReqSent => {
                    self.receive_sidr_rep(number, sidr::REJECT, 0, 0, Ece::default(), &[]);
                }
                HandshakeState::SidrReqReceived => self.end(number),
                HandshakeState::None | HandshakeState::Idle | HandshakeState::Timewait => {}
            }
            // Another process may own the block next. A message without a peer needs no answer.
            if let Ok(id) = self.id_mut(number)
                && id.connection.peer == Some(peer)
            {
                id.connection.peer = None;
            }
        }
        self.requests.retain(|(of, _), _| *of != peer);
        self.pairs.retain(|(of, ..), _| *of != peer);
    }
}
