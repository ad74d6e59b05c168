//! Multicast: an id joins groups. On Ethernet there is nobody to ask: whoever sends to the address of a group sends to the group.

use std::ffi::c_int;
use std::net::SocketAddr;

use super::datagram::address_handle;
use super::{CmStateMachine, HOPS, IdState};
use crate::cm::address_table::gid_of;
use crate::cm::types::{
    CmEvent, CmEventKind, Ece, EventDetails, IdNumber, JoinNumber, PrivateData, UdAddress,
};

/// The number by which every queue pair of a group is meant.
const MULTICAST_QP: u32 = 0xff_ffff;

/// A membership.
#[derive(Debug)]
pub(in crate::cm) struct McastJoin {
    pub(super) id: IdNumber,
    pub(super) uid: u64,
    /// Events that were taken.
    pub(super) reported: u32,
}

impl CmStateMachine {
    /// As [`ConnectionManager::join`](crate::cm::ConnectionManager::join).
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
        // Groups of IPv4 may be routed; those of IPv6 say by their scope where they end.
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

    /// As [`ConnectionManager::leave`](crate::cm::ConnectionManager::leave).
    pub(in crate::cm) fn leave(&mut self, join: JoinNumber) -> Result<u32, c_int> {
        let gone = self.forget_join(join).ok_or(libc::ENOENT)?;
        if let Ok(id) = self.id_mut(gone.id) {
            id.joins.retain(|of| *of != join.0);
        }
        Ok(gone.reported)
    }
}
