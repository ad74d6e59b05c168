//! The end of an id.

use std::ffi::c_int;
use std::time::Instant;

use super::{Handshake, Id, State, Switch, reason, sidr};
use crate::cm::message::Body;
use crate::cm::types::{Data, Details, Ece, IdNumber, JoinNumber, Kind};

impl Switch {
    /// As [`Manager::destroy`](crate::cm::Manager::destroy).
    pub(in crate::cm) fn destroy(&mut self, number: IdNumber, now: Instant) -> Result<u32, c_int> {
        self.id(number)?;
        for request in self.untaken_requests(number) {
            // They are there: only taking the event would have given them to anybody.
            let _ = self.destroy_one(request);
        }
        let reported = self.destroy_one(number)?;
        self.full_fence(now);
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
        let Id { queue, reported, has_port, source, space, .. } = id;
        if let Some(source) = source.filter(|_| has_port) {
            self.ports.release(number, space, source.port());
        }
        if let Some(queue) = self.queues.get_mut(queue.0) {
            queue.ids -= 1;
        }
        Ok(reported)
    }

    /// A device is gone: its ids end, as far as others see, and wait to be destroyed.
    pub(in crate::cm) fn remove_device(&mut self, device: u8, now: Instant) {
        let its = self.ids.iter().filter(|(_, id)| id.path.is_some_and(|path| path.device.number == device));
        let its: Vec<_> = its.map(|(number, _)| IdNumber(number)).collect();
        for number in its {
            let Ok(id) = self.id_mut(number) else { continue };
            (id.state, id.path) = (State::Removed, None);
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
            self.raise(number, Kind::DeviceRemoval, 0, Details::Nothing);
        }
        self.full_fence(now);
    }

    /// Says to the other side of a connection that there is nobody any more.
    pub(super) fn part(&mut self, number: IdNumber) {
        let Ok(handshake) = self.id(number).map(|id| id.connection.handshake) else { return };
        let rej = |reason| Body::Rej { reason, data: Data::new() };
        let farewell = match handshake {
            Handshake::ReqSent => rej(reason::TIMEOUT),
            Handshake::ReqReceived | Handshake::RepSent | Handshake::RepReceived => {
                rej(reason::CONSUMER_DEFINED)
            }
            Handshake::Established => Body::Dreq,
            Handshake::DreqReceived => Body::Drep,
            Handshake::SidrReqReceived => {
                let (qp_num, qkey, ece) = (0, 0, Ece::default());
                Body::SidrRep { status: sidr::REJECT, qp_num, qkey, ece, data: Data::new() }
            }
            Handshake::None
            | Handshake::Idle
            | Handshake::DreqSent
            | Handshake::Timewait
            | Handshake::SidrReqSent => return,
        };
        self.tell(number, farewell);
    }
}
