//! What comes from the other side of a connection, or from nobody.

use std::time::Instant;

use rdma_mummy_sys::types::ibv_qp_type;

use super::{Handshake, State, Switch, milliseconds, reason, sidr};
use crate::cm::message::{Body, Ends, Message, REJ_DATA, REP_DATA, REQ_DATA, Req, Service, Side};
use crate::cm::ports::Missing;
use crate::cm::types::{Data, Details, Ece, Event, IdNumber, Kind, Parameters, Path};

/// How long a program may think, as the kernel tells the other side.
const SERVICE_TIMEOUT: u8 = 24;

/// Private data as the program sees it: as long as the message's field.
pub(super) fn padded(data: &[u8], len: usize) -> Data {
    let mut padded: Data = data.iter().copied().take(len).collect();
    padded.extend(core::iter::repeat_n(0, len - padded.len()));
    padded
}

/// What the program is told of the other side. What one side offers the other may use, and the other way round.
fn parameters(side: &Side, retry_count: u8, data_len: usize) -> Details {
    Details::Connection(Parameters {
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

impl Switch {
    /// A packet of another process.
    pub(in crate::cm) fn hear(&mut self, peer: u16, packet: &[u8], now: Instant) {
        match Message::decode(packet) {
            Some(message) => {
                self.receive(peer, message, now);
                self.full_fence(now);
            }
            None => {
                log::debug!(
                    "{} bytes from block {peer} are no message of a connection manager",
                    packet.len()
                );
            }
        }
    }

    pub(super) fn receive(&mut self, peer: u16, message: Message, now: Instant) {
        let Message { from, to, body } = message;
        match body {
            Body::Req(req) => return self.hear_req(peer, from, req),
            Body::SidrReq { ends, gid, data } => return self.hear_sidr_req(peer, from, ends, gid, &data),
            _ => {}
        }
        let Some(number) = self.find(peer, from, to) else {
            if body == Body::Dreq {
                self.send(peer, Message { from: to, to: from, body: Body::Drep });
            }
            return;
        };
        match body {
            Body::Mra => self.hear_mra(number, now),
            Body::Rep(side) => self.hear_rep(number, from, &side),
            Body::Rtu => self.hear_rtu(number),
            Body::Rej { reason, data } => self.hear_rej(number, reason, &data, now),
            Body::Dreq => self.hear_dreq(number),
            Body::Drep => self.hear_drep(number, now),
            Body::SidrRep { status, qp_num, qkey, ece, data } => {
                self.hear_sidr_rep(number, status, qp_num, qkey, ece, &data);
            }
            Body::Req(_) | Body::SidrReq { .. } => {}
        }
    }

    /// The id that a message is for. It may come from the right process only, and of its connection only.
    fn find(&self, peer: u16, from: u64, to: u64) -> Option<IdNumber> {
        let number = if to == 0 { *self.requests.get(&(peer, from))? } else { IdNumber(to) };
        let connection = &self.id(number).ok()?.connection;
        let fits = connection.peer == Some(peer) && (connection.remote == from || connection.remote == 0);
        fits.then_some(number)
    }

    fn hear_req(&mut self, peer: u16, from: u64, req: Req) {
        if let Some(number) = self.requests.get(&(peer, from)).copied() {
            return self.hear_req_again(number);
        }
        if let Err(reason) = self.admit(peer, from, &req) {
            let body = Body::Rej { reason, data: Data::new() };
            self.send(peer, Message { from: 0, to: from, body });
        }
    }

    fn hear_req_again(&mut self, number: IdNumber) {
        match self.id(number).map(|id| id.connection.handshake) {
            Ok(Handshake::ReqReceived) => self.tell(number, Body::Mra),
            Ok(Handshake::RepSent) => self.send_unanswered(number),
            _ => {}
        }
    }

    /// Makes an id for a request, if there is a listener. Says for what reason the request is to be rejected.
    fn admit(&mut self, peer: u16, from: u64, req: &Req) -> Result<(), u8> {
        let pair = (peer, req.gid, req.side.qp_num);
        // It belongs to a connection that has not ended here (12.9.8.3.1). Queue pair 0 is no connection's: who names it has none.
        if req.side.qp_num != 0 && self.pairs.contains_key(&pair) {
            return Err(reason::STALE_CONNECTION);
        }
        let (listener, path) = self.listener(&req.ends).map_err(|missing| match missing {
            Missing::Port => reason::INVALID_SERVICE_ID,
            Missing::Address => reason::CONSUMER_DEFINED,
        })?;
        let id = self.id(listener).map_err(|_| reason::INVALID_SERVICE_ID)?;
        let (qp_type, fits) = match req.service {
            Service::Reliable => (ibv_qp_type::IBV_QPT_RC, id.qp_type == ibv_qp_type::IBV_QPT_RC),
            Service::Unreliable => (ibv_qp_type::IBV_QPT_UC, id.qp_type == ibv_qp_type::IBV_QPT_UC),
            Service::Xrc => (
                ibv_qp_type::IBV_QPT_XRC_RECV,
                [ibv_qp_type::IBV_QPT_XRC_RECV, ibv_qp_type::IBV_QPT_XRC_SEND].contains(&id.qp_type),
            ),
        };
        if !fits {
            return Err(reason::CONSUMER_DEFINED);
        }
        // As if the request had been lost: there may be room when it comes again.
        let Some(number) = self.admit_id(listener, qp_type, &req.ends, path, req.gid) else { return Ok(()) };
        let id = self.id_mut(number).map_err(|_| reason::CONSUMER_DEFINED)?;
        let connection = &mut id.connection;
        connection.handshake = Handshake::ReqReceived;
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

    /// Who listens to what was asked for, and the port that has the address.
    pub(super) fn listener(&self, ends: &Ends) -> Result<(IdNumber, Path), Missing> {
        let listener = self.ports.listener(ends.space, ends.destination, &self.fabric)?;
        let to = ends.destination.ip();
        let path =
            self.fabric.path(to).or_else(|| to.is_loopback().then(|| self.fabric.any_path()).flatten());
        Ok((listener, path.ok_or(Missing::Address)?))
    }

    /// An id for a request, if there is room for another.
    pub(super) fn admit_id(
        &mut self,
        listener: IdNumber,
        qp_type: ibv_qp_type,
        ends: &Ends,
        path: Path,
        gid: [u8; 16],
    ) -> Option<IdNumber> {
        let asked = self.id_mut(listener).ok()?;
        asked.backlog = asked.backlog.checked_sub(1)?;
        let (queue, space, tos, timeout) = (asked.queue, asked.space, asked.tos, asked.ack_timeout);
        let number = self.insert(queue, 0, space, qp_type);
        let id = self.id_mut(number).ok()?;
        (id.source, id.destination) = (Some(ends.destination), Some(ends.source));
        (id.path, id.dgid, id.state) = (Some(path), Some(gid), State::Connect);
        (id.tos, id.ack_timeout) = (tos, timeout);
        Some(number)
    }

    /// Tells the listener's program of a request.
    pub(super) fn announce(&mut self, listener: IdNumber, request: IdNumber, details: Details, ece: Ece) {
        let uid = self.id(listener).map_or(0, |id| id.uid);
        let (kind, request) = (Kind::ConnectRequest, Some(request));
        self.queue_event(Event { id: listener, uid, kind, status: 0, details, ece, request, join: None });
    }

    /// The other side has heard, but has nothing to say yet.
    fn hear_mra(&mut self, number: IdNumber, now: Instant) {
        let Ok(id) = self.id(number) else { return };
        let connection = &id.connection;
        if !matches!(connection.handshake, Handshake::ReqSent | Handshake::RepSent) {
            return;
        }
        let wait = self.scaled(milliseconds(SERVICE_TIMEOUT) + milliseconds(connection.ack_timeout));
        if let Ok(id) = self.id_mut(number) {
            id.connection.interval = wait;
        }
        self.arm(number, now, wait);
    }

    fn hear_rep(&mut self, number: IdNumber, from: u64, side: &Side) {
        let Ok(id) = self.id_mut(number) else { return };
        let connection = &mut id.connection;
        match connection.handshake {
            Handshake::ReqSent => {}
            // The answer was lost, or is late.
            Handshake::Established => return self.tell(number, Body::Rtu),
            Handshake::RepReceived => return self.tell(number, Body::Mra),
            _ => return,
        }
        connection.handshake = Handshake::RepReceived;
        connection.remote = from;
        (connection.remote_qp_num, connection.remote_psn) = (side.qp_num, side.psn);
        connection.responder_resources = side.initiator_depth;
        connection.initiator_depth = side.responder_resources;
        connection.rnr_retry_count = side.rnr_retry_count;
        self.answered(number);
        self.raise_ece(number, Kind::ConnectResponse, 0, parameters(side, 0, REP_DATA), side.ece);
    }

    fn hear_rtu(&mut self, number: IdNumber) {
        if self.id(number).is_ok_and(|id| id.connection.handshake == Handshake::RepSent) {
            self.established(number);
        }
    }

    fn hear_rej(&mut self, number: IdNumber, why: u8, data: &[u8], now: Instant) {
        let Ok(id) = self.id_mut(number) else { return };
        match id.connection.handshake {
            // Somebody else has the port now, perhaps.
            Handshake::ReqSent if why == reason::INVALID_SERVICE_ID && id.connection.remembered => {
                return self.ask_afresh(number, now);
            }
            Handshake::ReqSent | Handshake::ReqReceived | Handshake::RepSent => self.end(number),
            Handshake::RepReceived | Handshake::DreqSent | Handshake::Established => {
                self.enter_timewait(number, now);
            }
            _ => return,
        }
        if self.id(number).is_ok_and(|id| id.state == State::Connect) {
            let private_data = padded(data, REJ_DATA);
            let details = Details::Connection(Parameters { private_data, ..Parameters::default() });
            self.raise(number, Kind::Rejected, why.into(), details);
        }
    }

    /// What was remembered of who has the port is not true.
    fn ask_afresh(&mut self, number: IdNumber, now: Instant) {
        let Some(ends) = self.asked(number) else { return };
        if let Ok(id) = self.id_mut(number) {
            (id.connection.peer, id.connection.remembered) = (None, false);
        }
        self.ask_for_peer(number, ends, now, true);
    }

    fn hear_dreq(&mut self, number: IdNumber) {
        let Ok(id) = self.id_mut(number) else { return };
        match id.connection.handshake {
            Handshake::RepSent | Handshake::RepReceived | Handshake::Established | Handshake::DreqSent => {}
            // The answer was lost, or is late.
            Handshake::Timewait => return self.tell(number, Body::Drep),
            _ => return,
        }
        id.connection.handshake = Handshake::DreqReceived;
        self.answered(number);
        self.disconnected(number, 0);
    }

    fn hear_drep(&mut self, number: IdNumber, now: Instant) {
        let handshake = self.id(number).map(|id| id.connection.handshake);
        if let Ok(Handshake::DreqSent | Handshake::DreqReceived) = handshake {
            self.enter_timewait(number, now);
            self.disconnected(number, 0);
        }
    }

    /// Nobody has the port that was asked for.
    pub(super) fn nobody_there(&mut self, number: IdNumber, now: Instant) {
        match self.id(number).map(|id| id.connection.handshake) {
            Ok(Handshake::ReqSent) => self.hear_rej(number, reason::INVALID_SERVICE_ID, &[], now),
            Ok(Handshake::SidrReqSent) => {
                self.hear_sidr_rep(number, sidr::UNSUPPORTED, 0, 0, Ece::default(), &[]);
            }
            _ => {}
        }
    }

    /// A process is gone, or cannot be reached: its ids end as if their program had destroyed them.
    pub(in crate::cm) fn gone(&mut self, peer: u16, now: Instant) {
        self.lose(peer, now);
        self.full_fence(now);
    }

    pub(super) fn lose(&mut self, peer: u16, now: Instant) {
        let there = self.ids.iter().filter(|(_, id)| id.connection.peer == Some(peer));
        let there: Vec<_> = there.map(|(number, id)| (IdNumber(number), id.connection.handshake)).collect();
        for (number, handshake) in there {
            let remembered = self.id(number).is_ok_and(|id| id.connection.remembered);
            match handshake {
                Handshake::ReqSent | Handshake::SidrReqSent if remembered => self.ask_afresh(number, now),
                Handshake::ReqReceived => self.hear_rej(number, reason::TIMEOUT, &[], now),
                Handshake::ReqSent | Handshake::RepSent | Handshake::RepReceived => {
                    self.hear_rej(number, reason::CONSUMER_DEFINED, &[], now);
                }
                Handshake::Established => self.hear_dreq(number),
                Handshake::DreqSent | Handshake::DreqReceived => self.hear_drep(number, now),
                Handshake::SidrReqSent => {
                    self.hear_sidr_rep(number, sidr::REJECT, 0, 0, Ece::default(), &[]);
                }
                Handshake::SidrReqReceived => self.end(number),
                Handshake::None | Handshake::Idle | Handshake::Timewait => {}
            }
            // Who has the block next is another. What is said to nobody needs no answer.
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
