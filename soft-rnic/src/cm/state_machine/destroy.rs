//! Destroying ids, and removing a device.

use std::ffi::c_int;
use std::time::Instant;

use super::{CmId, CmStateMachine, HandshakeState, IdState, reason, sidr};
use crate::cm::message::MadBody;
use crate::cm::types::{CmEventKind, Ece, EventDetails, IdNumber, JoinNumber, PrivateData};

impl CmStateMachine {
    /// See [`ConnectionManager::destroy`](crate::cm::ConnectionManager::destroy).
    pub(in crate::cm) fn destroy(&mut self, number: IdNumber, now: Instant) -> Result<u32, c_int> {
        self.id(number)?;
        for request in self.untaken_requests(number) {
            // This cannot fail: an id of an untaken request exists, because a program learns of it
            // only by taking the event.
            let _ = self.destroy_one(request);
        }
        let reported = self.destroy_one(number)?;
        self.run_inbox(now);
        Ok(reported)
    }

    fn destroy_one(&mut self, number: IdNumber) -> Result<u32, c_int> {
        let joins = core::mem::take(&mut self.id_mut(number)?.joins);
        for join in joins {
            self.forget_join(JoinNumber(join));
        }
        self.part(number);
        self.end(number);
        self.forget_events(number);
        let id = self.ids.remove(number.0).ok_or(libc::ENOENT)?;
        let CmId { queue, reported, has_port, source, space, .. } = id;
        if let Some(source) = source.filter(|_| has_port) {
            self.ports.release(number, space, source.port());
        }
        if let Some(queue) = self.queues.get_mut(queue.0) {
            queue.ids -= 1;
        }
        Ok(reported)
    }

    /// Removes a device. Its ids end their connections, and stay until the program destroys them.
    pub(in crate::cm) fn remove_device(&mut self, device: u8, now: Instant) {
        let its = self.ids.iter().filter(|(_, id)| id.path.is_some_and(|path| path.device.number == device));
        let its: Vec<_> = its.map(|(number, _)| IdNumber(number)).collect();
        for number in its {
            let Ok(id) = self.id_mut(number) else { continue };
            (id.state, id.path) = (IdState::Removed, None);
            let port = id.source.filter(|_| core::mem::take(&mut id.has_port)).map(|source| source.port());
            let (space, joins) = (id.space, core::mem::take(&mut id.joins));
            for join in joins {
                self.forget_join(JoinNumber(join));
            }
            if let Some(port) = port {
                self.ports.release(number, space, port);
            }
            self.part(number);
            self.end(number);
            self.raise(number, CmEventKind::DeviceRemoval, 0, EventDetails::Nothing);
        }
        self.run_inbox(now);
    }

    /// Tells the peer that this end of the connection is gone.
    pub(super) fn part(&mut self, number: IdNumber) {
        let Ok(handshake) = self.id(number).map(|id| id.connection.handshake) else { return };
        let rej = |reason| MadBody::Rej { reason, data: PrivateData::new() };
        let farewell = match handshake {
            HandshakeState::ReqSent => rej(reason::TIMEOUT),
            HandshakeState::ReqReceived | HandshakeState::RepSent | HandshakeState::RepReceived => {
                rej(reason::CONSUMER_DEFINED)
            }
            HandshakeState::Established => MadBody::Dreq,
            HandshakeState::DreqReceived => MadBody::Drep,
            HandshakeState::SidrReqReceived => {
                let (qp_num, qkey, ece) = (0, 0, Ece::default());
                MadBody::SidrRep { status: sidr::REJECT, qp_num, qkey, ece, data: PrivateData::new() }
            }
            HandshakeState::None
            | HandshakeState::Idle
            | HandshakeState::DreqSent
            | HandshakeState::Timewait
            | HandshakeState::SidrReqSent => return,
        };
        self.tell(number, farewell);
    }
}
