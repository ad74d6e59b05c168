//! Connect, accept, reject and disconnect, as the program calls them.

use std::ffi::c_int;
use std::time::Instant;

use rdma_mummy_sys::types::{ibv_event_type, ibv_qp_type};

use super::{CmConnection, CmStateMachine, HERE, HandshakeState, IdState, RETRIES, milliseconds, reason};
use crate::cm::message::{
    CmMad, EndpointParams, Endpoints, MadBody, QpService, REJ_DATA, REP_DATA, REQ_DATA, ReqBody,
};
use crate::cm::transport::PortLocation;
use crate::cm::types::{CmEventKind, ConnParams, Ece, EventDetails, IdNumber, PrivateData};

/// The exponent of a peer's response time, which both sides send in the kernel.
pub(super) const RESPONSE_TIMEOUT: u8 = 20;

impl CmStateMachine {
    /// See [`ConnectionManager::connect`](crate::cm::ConnectionManager::connect).
    pub(in crate::cm) fn connect(
        &mut self,
        number: IdNumber,
        parameters: &ConnParams,
        ece: Ece,
        now: Instant,
    ) -> Result<(), c_int> {
        let (id, path) = self.placed(number)?;
        let (Some(source), Some(destination)) = (id.source, id.destination) else { return Err(libc::EINVAL) };
        if id.state != IdState::RouteResolved {
            return Err(libc::EINVAL);
        }
        let ends = Endpoints { space: id.space, source, destination };
        (id.qp_num, id.srq, id.ece) = (parameters.qp_num & 0xff_ffff, parameters.srq, ece);
        if id.is_datagram() {
            return self.ask_for_datagrams(number, ends, path, parameters, now);
        }
        let service = match id.qp_type {
            ibv_qp_type::IBV_QPT_RC => QpService::Reliable,
            ibv_qp_type::IBV_QPT_UC => QpService::Unreliable,
            ibv_qp_type::IBV_QPT_XRC_SEND => QpService::Xrc,
            _ => return Err(libc::EINVAL),
        };
        if parameters.private_data.len() > REQ_DATA {
            return Err(libc::EINVAL);
        }
        let life_time = id.packet_life_time();
        let mut connection = CmConnection::new(HandshakeState::ReqSent);
        connection.responder_resources = parameters.responder_resources;
        connection.initiator_depth = parameters.initiator_depth;
        connection.retry_count = parameters.retry_count.min(7);
        connection.rnr_retry_count = parameters.rnr_retry_count.min(7);
        connection.ack_timeout = life_time + 1;
        connection.traffic_class = id.traffic_class();
        connection.mtu = id.set_path.map_or(super::MTU, |path| path.mtu);
        let req = ReqBody {
            ends,
            service,
            gid: path.sgid,
            mtu: connection.mtu,
            traffic_class: connection.traffic_class,
            ack_timeout: connection.ack_timeout,
            retry_count: connection.retry_count,
            side: id.side(parameters),
        };
        (id.connection, id.state) = (connection, IdState::Connect);
        let wait = milliseconds(life_time) * 2 + milliseconds(RESPONSE_TIMEOUT);
        self.ask_until_answered(number, MadBody::Req(req), wait, now);
        self.ask_for_peer(number, ends, now, false);
        self.run_inbox(now);
        Ok(())
    }

    /// Prepares a message that is sent repeatedly until an answer arrives.
    pub(super) fn ask_until_answered(
        &mut self,
        number: IdNumber,
        body: MadBody,
        wait: std::time::Duration,
        now: Instant,
    ) {
        let interval = self.scaled(wait);
        let Ok(id) = self.id_mut(number) else { return };
        let connection = &mut id.connection;
        connection.unanswered = Some(Box::new(CmMad { from: number.0, to: connection.remote, body }));
        (connection.tries, connection.interval) = (RETRIES, interval);
        self.arm(number, now, interval);
    }

    /// Sends the message that waits for an answer, if its receiver is known.
    pub(super) fn send_unanswered(&mut self, number: IdNumber) {
        let Ok(id) = self.id(number) else { return };
        if let (Some(peer), Some(message)) = (id.connection.peer, &id.connection.unanswered) {
            let message = CmMad::clone(message);
            self.send(peer, message);
        }
    }

    /// Retries after a timeout without an answer.
    pub(super) fn send_again(&mut self, number: IdNumber, now: Instant) {
        let Ok(id) = self.id(number) else { return };
        let interval = id.connection.interval;
        if id.connection.peer.is_some() {
            self.send_unanswered(number);
        } else if let Some(ends) = self.asked(number) {
            self.ask_for_peer(number, ends, now, true);
        }
        self.arm(number, now, interval);
    }

    /// The ends in the pending request of an id that waits for its first answer.
    pub(super) fn asked(&self, number: IdNumber) -> Option<Endpoints> {
        match &self.id(number).ok()?.connection.unanswered.as_ref()?.body {
            MadBody::Req(ReqBody { ends, .. }) | MadBody::SidrReq { ends, .. } => Some(*ends),
            _ => None,
        }
    }

    /// Finds the process that has the destination's port, and sends it the request as soon as it is
    /// known.
    pub(super) fn ask_for_peer(&mut self, number: IdNumber, ends: Endpoints, now: Instant, fresh: bool) {
        let (space, port) = (ends.space, ends.destination.port());
        if self.ports.has(space, port) {
            return self.peer_found(number, PortLocation::ThisProcess, false, now);
        }
        let Ok(interval) = self.id(number).map(|id| id.connection.interval) else { return };
        if let Some(found) = self.transport.find_port(space, port, now + interval, number.0, fresh) {
            self.peer_found(number, found, !fresh, now);
        }
    }

    /// The answer to [`Transport::find_port`](crate::cm::transport::Transport::find_port).
    pub(in crate::cm) fn found(&mut self, token: u64, found: PortLocation, now: Instant) {
        let waits = self.id(IdNumber(token)).is_ok_and(|id| id.connection.peer.is_none());
        if waits && self.asked(IdNumber(token)).is_some() {
            self.peer_found(IdNumber(token), found, false, now);
            self.run_inbox(now);
        }
    }

    fn peer_found(&mut self, number: IdNumber, found: PortLocation, remembered: bool, now: Instant) {
        let peer = match found {
            PortLocation::ThisProcess => HERE,
            PortLocation::Block(block) => block,
            PortLocation::Unresponsive => return,
            PortLocation::Nobody => return self.nobody_there(number, now),
        };
        if let Ok(id) = self.id_mut(number) {
            id.connection.peer = Some(peer);
            id.connection.remembered = remembered && peer != HERE;
            self.send_unanswered(number);
        }
    }

    /// See [`ConnectionManager::accept`](crate::cm::ConnectionManager::accept).
    pub(in crate::cm) fn accept(
        &mut self,
        number: IdNumber,
        parameters: Option<&ConnParams>,
        ece: Ece,
        now: Instant,
    ) -> Result<(), c_int> {
        let (id, _) = self.placed(number)?;
        if id.state != IdState::Connect {
            return Err(libc::EINVAL);
        }
        id.ece = ece;
        if let Some(parameters) = parameters {
            (id.qp_num, id.srq) = (parameters.qp_num & 0xff_ffff, parameters.srq);
        }
        let accepted = match parameters {
            _ if id.is_datagram() => self.offer_datagrams(number, parameters),
            Some(parameters) => self.reply(number, parameters, now),
            None => self.establish(number),
        };
        if accepted.is_err() {
            // Reject the request, so that the peer does not wait. This fails if the connection has
            // ended, in which case nothing needs to be sent.
            let _ = self.reject(number, reason::CONSUMER_DEFINED, &[], now);
        }
        self.run_inbox(now);
        accepted
    }

    fn reply(&mut self, number: IdNumber, parameters: &ConnParams, now: Instant) -> Result<(), c_int> {
        let id = self.id_mut(number)?;
        if id.connection.handshake != HandshakeState::ReqReceived || parameters.private_data.len() > REP_DATA
        {
            return Err(libc::EINVAL);
        }
        let side = id.side(parameters);
        let connection = &mut id.connection;
        connection.handshake = HandshakeState::RepSent;
        connection.responder_resources = parameters.responder_resources;
        connection.initiator_depth = parameters.initiator_depth;
        self.ask_until_answered(number, MadBody::Rep(side), milliseconds(RESPONSE_TIMEOUT), now);
        self.send_unanswered(number);
        Ok(())
    }

    /// Completes the active side.
    fn establish(&mut self, number: IdNumber) -> Result<(), c_int> {
        let connection = &mut self.id_mut(number)?.connection;
        if connection.handshake != HandshakeState::RepReceived {
            return Err(libc::EINVAL);
        }
        connection.handshake = HandshakeState::Established;
        self.tell(number, MadBody::Rtu);
        Ok(())
    }

    /// Sends a message that needs no answer to the peer.
    pub(super) fn tell(&mut self, number: IdNumber, body: MadBody) {
        let Ok(id) = self.id(number) else { return };
        if let Some(peer) = id.connection.peer {
            let to = id.connection.remote;
            self.send(peer, CmMad { from: number.0, to, body });
        }
    }

    /// See [`ConnectionManager::reject`](crate::cm::ConnectionManager::reject).
    pub(in crate::cm) fn reject(
        &mut self,
        number: IdNumber,
        reason: u8,
        data: &[u8],
        now: Instant,
    ) -> Result<(), c_int> {
        let (id, _) = self.placed(number)?;
        if id.is_datagram() {
            self.refuse_datagrams(number, data)?;
            self.run_inbox(now);
            return Ok(());
        }
        let data =
            PrivateData::try_from(data).ok().filter(|data| data.len() <= REJ_DATA).ok_or(libc::EINVAL)?;
        match id.connection.handshake {
            HandshakeState::ReqSent | HandshakeState::ReqReceived | HandshakeState::RepReceived => {
                self.tell(number, MadBody::Rej { reason, data });
                self.end(number);
            }
            HandshakeState::RepSent => {
                self.tell(number, MadBody::Rej { reason, data });
                self.enter_timewait(number, now);
            }
            _ => return Err(libc::EINVAL),
        }
        self.run_inbox(now);
        Ok(())
    }

    /// See [`ConnectionManager::disconnect`](crate::cm::ConnectionManager::disconnect).
    pub(in crate::cm) fn disconnect(&mut self, number: IdNumber, now: Instant) -> Result<(), c_int> {
        let (id, _) = self.placed(number)?;
        match id.connection.handshake {
            HandshakeState::None if id.state != IdState::Listen => return Err(libc::EINVAL),
            HandshakeState::Established => {
                id.connection.handshake = HandshakeState::DreqSent;
                let wait = milliseconds(RESPONSE_TIMEOUT);
                self.ask_until_answered(number, MadBody::Dreq, wait, now);
                self.send_unanswered(number);
            }
            HandshakeState::DreqReceived => {
                self.tell(number, MadBody::Drep);
                self.enter_timewait(number, now);
            }
            // In all other states no connection needs to be ended. The kernel also returns success
            // then.
            _ => {}
        }
        self.run_inbox(now);
        Ok(())
    }

    /// See [`ConnectionManager::notify`](crate::cm::ConnectionManager::notify).
    pub(in crate::cm) fn notify(&mut self, number: IdNumber, event: u32) -> Result<(), c_int> {
        let (id, _) = self.placed(number)?;
        let handshake = id.connection.handshake;
        match (ibv_event_type(event), handshake) {
            (_, HandshakeState::None) => Err(libc::EINVAL),
            (ibv_event_type::IBV_EVENT_COMM_EST, HandshakeState::RepSent) => {
                self.established(number);
                Ok(())
            }
            (ibv_event_type::IBV_EVENT_COMM_EST, HandshakeState::Established) => Err(libc::EISCONN),
            (ibv_event_type::IBV_EVENT_PATH_MIG, HandshakeState::Established) => Ok(()),
            _ => Err(libc::EINVAL),
        }
    }

    /// The passive side learns, by a message or by its queue pair, that the active side is ready.
    pub(super) fn established(&mut self, number: IdNumber) {
        self.answered(number);
        if let Ok(id) = self.id_mut(number) {
            id.connection.handshake = HandshakeState::Established;
        }
        self.raise_connected(number, CmEventKind::Established, 0);
    }

    /// Stops repeating the message that waited for an answer.
    pub(super) fn answered(&mut self, number: IdNumber) {
        self.disarm(number);
        if let Ok(id) = self.id_mut(number) {
            id.connection.unanswered = None;
        }
    }

    /// Ends the connection; its number may be reused at once.
    pub(super) fn end(&mut self, number: IdNumber) {
        self.answered(number);
        self.forget_request(number);
        if let Ok(id) = self.id_mut(number) {
            id.connection.handshake = HandshakeState::Idle;
        }
    }

    /// Ends the connection, while its packets may still be on their way.
    pub(super) fn enter_timewait(&mut self, number: IdNumber, now: Instant) {
        self.answered(number);
        self.forget_request(number);
        let Ok(id) = self.id_mut(number) else { return };
        id.connection.handshake = HandshakeState::Timewait;
        let wait = milliseconds(id.connection.ack_timeout);
        let wait = self.scaled(wait);
        self.arm(number, now, wait);
    }

    /// Reports the end of the connection to the program, once.
    pub(super) fn disconnected(&mut self, number: IdNumber, status: c_int) {
        if let Ok(id) = self.id_mut(number)
            && id.state == IdState::Connect
        {
            id.state = IdState::Disconnect;
            self.raise(number, CmEventKind::Disconnected, status, EventDetails::Nothing);
        }
    }

    /// Forgets a request, so that a repetition of it counts as a new one.
    pub(super) fn forget_request(&mut self, number: IdNumber) {
        let Ok(id) = self.id(number) else { return };
        let connection = &id.connection;
        let Some(peer) = connection.peer else { return };
        let who = (peer, connection.remote);
        let pair = (peer, id.dgid.unwrap_or_default(), connection.remote_qp_num);
        if self.requests.get(&who) == Some(&number) {
            self.requests.remove(&who);
        }
        if self.pairs.get(&pair) == Some(&number) {
            self.pairs.remove(&pair);
        }
    }
}

impl super::CmId {
    fn side(&self, parameters: &ConnParams) -> EndpointParams {
        EndpointParams {
            qp_num: self.qp_num,
            psn: self.psn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            flow_control: parameters.flow_control.min(1),
            rnr_retry_count: parameters.rnr_retry_count.min(7),
            srq: self.srq,
            ece: self.ece,
            data: parameters.private_data.clone(),
        }
    }
}
