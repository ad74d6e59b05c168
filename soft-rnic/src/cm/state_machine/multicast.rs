//! Multicast: an id joins groups. On Ethernet no subnet manager needs to be asked, because a packet
//! to a group's address reaches the group.

use std::ffi::c_int;
use std::net::SocketAddr;

use super::datagram::address_handle;
use super::{CmStateMachine, HOPS, IdState};
use crate::cm::address_table::gid_of;
use crate::cm::types::{
    CmEvent, CmEventKind, Ece, EventDetails, IdNumber, JoinNumber, PrivateData, UdAddress,
};

/// The queue pair number that addresses all members of a group.
const MULTICAST_QP: u32 = 0xff_ffff;

/// A membership.
#[derive(Debug)]
pub(in crate::cm) struct McastJoin {
    pub(super) id: IdNumber,
    pub(super) uid: u64,
    /// The number of taken events.
    pub(super) reported: u32,
}

impl CmStateMachine {
    /// See [`ConnectionManager::join`](crate::cm::ConnectionManager::join).
    pub(in crate::cm) fn join(
        &mut self,
        number: IdNumber,
        group: SocketAddr,
        uid: u64,
    ) -> Result<JoinNumber, c_int> {
        let (id, path) = self.placed(number)?;
        let may_join = id.is_datagram() && matches!(id.state, IdState::Bound | IdState::AddrResolved);
        if !may_join || group.ip().is_unspecified() {
            return Err(libc::EINVAL);
        }
        let agreed = id.agree_on_qkey(super::UDP_QKEY);
        // IPv4 groups may be routed. IPv6 groups define by their scope how far they reach.
        let hops = if group.is_ipv4() { HOPS } else { 1 };
        let ah_attr = address_handle(path, gid_of(group.ip()), 0, hops);
        let join = JoinNumber(self.joins.insert(McastJoin { id: number, uid, reported: 0 }));
        self.id_mut(number)?.joins.push(join.0);
        let (kind, status, address) = match agreed {
            Ok(qkey) => (CmEventKind::MulticastJoin, 0, UdAddress { ah_attr, qp_num: MULTICAST_QP, qkey }),
            Err(error) => (CmEventKind::MulticastError, -error, UdAddress::default()),
        };
        let details = EventDetails::Datagram { private_data: PrivateData::new(), address };
        let (uid, ece) = (self.id(number)?.uid, Ece::default());
        let join_uid = Some((join, 0));
        self.queue_event(CmEvent {
            id: number,
            uid,
            kind,
            status,
            details,
            ece,
            request: None,
            join: join_uid,
        });
        Ok(join)
    }

    /// See [`ConnectionManager::leave`](crate::cm::ConnectionManager::leave).
    pub(in crate::cm) fn leave(&mut self, join: JoinNumber) -> Result<u32, c_int> {
        let gone = self.forget_join(join).ok_or(libc::ENOENT)?;
        if let Ok(id) = self.id_mut(gone.id) {
            id.joins.retain(|of| *of != join.0);
        }
        Ok(gone.reported)
    }
}
