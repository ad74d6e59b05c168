//! Address and route resolution, and the options of an id.

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rdma_mummy_sys::types as c;

use super::{CmStateMachine, IdState, MAX_BACKLOG};
use crate::cm::address_table::{gid_of, loopback, unspecified};
use crate::cm::ports::PortBinding;
use crate::cm::types::{CmEventKind, EventDetails, IdNumber, PortSpace};

/// The values used from a path that the program provides.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathOverride {
    pub(super) mtu: u8,
    pub(super) traffic_class: u8,
    pub(super) packet_life_time: u8,
}

/// Bytes of a path record; below, with the flags that precede it in `RDMA_OPTION_IB_PATH`.
const PATH_RECORD: usize = 64;
const PATH_DATA: usize = PATH_RECORD + 8;
/// The required flags: `IBV_PATH_FLAG_GMP`, `IBV_PATH_FLAG_PRIMARY` and
/// `IBV_PATH_FLAG_BIDIRECTIONAL`.
const WHOLE_PATH: u32 = 1 | 2 | 8 | 32;

impl CmStateMachine {
    /// See [`ConnectionManager::bind`](crate::cm::ConnectionManager::bind).
    pub(in crate::cm) fn bind(&mut self, number: IdNumber, address: SocketAddr) -> Result<(), c_int> {
        let id = self.ids.get(number.0).ok_or(libc::ENOENT)?;
        if id.state != IdState::Idle {
            return Err(libc::EINVAL);
        }
        let path = if self.addresses.is_any(address.ip()) {
            None
        } else {
            let path = self.addresses.path(address.ip()).ok_or(libc::EADDRNOTAVAIL)?;
            // IP over InfiniBand is not supported.
            Some(path).filter(|_| id.space != PortSpace::Ipoib).ok_or(libc::EINVAL)?.into()
        };
        let af_only = id.af_only.unwrap_or(address.is_ipv4());
        let owner = PortBinding { id: number, address, reuse: id.reuse, af_only, listens: false };
        let port = self.ports.bind(owner, id.space, &self.addresses, &*self.transport)?;
        let id = self.id_mut(number)?;
        let mut source = address;
        source.set_port(port);
        (id.source, id.path, id.has_port, id.state) = (Some(source), path, true, IdState::Bound);
        Ok(())
    }

    /// See [`ConnectionManager::resolve_addr`](crate::cm::ConnectionManager::resolve_addr).
    pub(in crate::cm) fn resolve_addr(
        &mut self,
        number: IdNumber,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
        now: Instant,
    ) -> Result<(), c_int> {
        if self.id(number)?.state == IdState::Idle {
            self.bind(number, source.unwrap_or_else(|| unspecified(destination)))?;
        }
        let id = self.id(number)?;
        let bound = id.source.filter(|_| id.state == IdState::Bound).ok_or(libc::EINVAL)?;
        if bound.is_ipv4() != destination.is_ipv4() {
            return Err(libc::EINVAL);
        }
        let to = destination.ip();
        if self.addresses.is_any(to) {
            return self.resolve_loopback(number, bound, destination);
        }
        if !self.addresses.reaches(to) {
            let timeout = self.scaled(timeout);
            let id = self.id_mut(number)?;
            (id.state, id.destination) = (IdState::AddrQuery, Some(destination));
            self.arm(number, now, timeout);
            return Ok(());
        }
        let ours = self.addresses.path(to).is_some();
        let from = match bound.ip() {
            bound if !self.addresses.is_any(bound) => bound,
            _ if ours => to,
            _ => self.addresses.default_source(to).ok_or(libc::ENODEV)?,
        };
        let space = self.id(number)?.space;
        let path = self.addresses.path(from).ok_or(libc::ENODEV);
        let path = path.and_then(|path| if space == PortSpace::Ipoib { Err(libc::EINVAL) } else { Ok(path) });
        let id = self.id_mut(number)?;
        id.destination = Some(destination);
        match path {
            Err(error) => self.raise(number, CmEventKind::AddrError, -error, EventDetails::Nothing),
            Ok(path) => {
                (id.path, id.dgid, id.state) = (Some(path), Some(gid_of(to)), IdState::AddrResolved);
                if from != bound.ip() {
                    id.source = Some(with_ip(bound, destination, from));
                }
                self.raise(number, CmEventKind::AddrResolved, 0, EventDetails::Nothing);
            }
        }
        Ok(())
    }

    /// Resolves an address that means this host but no particular port, by the first port.
    fn resolve_loopback(
        &mut self,
        number: IdNumber,
        bound: SocketAddr,
        destination: SocketAddr,
    ) -> Result<(), c_int> {
        let here = loopback(destination, destination.port());
        let there = if destination.ip().is_unspecified() { here } else { destination };
        let known = self.id(number)?.path;
        let path = known.or_else(|| self.addresses.path(here.ip())).or_else(|| self.addresses.any_path());
        let path = path.ok_or(libc::ENODEV)?;
        let dgid = self.addresses.path(there.ip()).map_or(path.sgid, |path| path.sgid);
        let id = self.id_mut(number)?;
        if known.is_none() {
            id.source = Some(loopback(destination, bound.port()));
        }
        (id.path, id.dgid) = (Some(path), Some(dgid));
        (id.destination, id.state) = (Some(there), IdState::AddrResolved);
        self.raise(number, CmEventKind::AddrResolved, 0, EventDetails::Nothing);
        Ok(())
    }

    /// See [`ConnectionManager::resolve_route`](crate::cm::ConnectionManager::resolve_route).
    pub(in crate::cm) fn resolve_route(&mut self, number: IdNumber) -> Result<(), c_int> {
        let (id, _) = self.placed(number)?;
        if id.state != IdState::AddrResolved {
            return Err(libc::EINVAL);
        }
        id.state = IdState::RouteResolved;
        self.raise(number, CmEventKind::RouteResolved, 0, EventDetails::Nothing);
        Ok(())
    }

    /// See [`ConnectionManager::listen`](crate::cm::ConnectionManager::listen).
    pub(in crate::cm) fn listen(&mut self, number: IdNumber, backlog: c_int) -> Result<(), c_int> {
        if self.id(number)?.state == IdState::Idle {
            self.bind(number, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let id = self.ids.get_mut(number.0).ok_or(libc::ENOENT)?;
        let source = id.source.filter(|_| id.state == IdState::Bound).ok_or(libc::EINVAL)?;
        self.ports.listen(number, id.space, source.port(), &self.addresses)?;
        let backlog = u32::try_from(backlog).ok().filter(|backlog| (1..MAX_BACKLOG).contains(backlog));
        (id.state, id.backlog) = (IdState::Listen, backlog.unwrap_or(MAX_BACKLOG));
        Ok(())
    }

    /// See [`ConnectionManager::set_option`](crate::cm::ConnectionManager::set_option).
    pub(in crate::cm) fn set_option(
        &mut self,
        id: IdNumber,
        level: c_int,
        name: c_int,
        value: &[u8],
    ) -> Result<(), c_int> {
        self.id(id)?;
        match (level as u32, name as u32) {
            (c::RDMA_OPTION_ID, c::RDMA_OPTION_ID_TOS) => {
                let [tos] = *value else { return Err(libc::EINVAL) };
                self.id_mut(id)?.tos = Some(tos);
                Ok(())
            }
            (c::RDMA_OPTION_ID, c::RDMA_OPTION_ID_REUSEADDR) => self.set_reuse(id, flag(value)?),
            (c::RDMA_OPTION_ID, c::RDMA_OPTION_ID_AFONLY) => self.set_af_only(id, flag(value)?),
            (c::RDMA_OPTION_ID, c::RDMA_OPTION_ID_ACK_TIMEOUT) => {
                let [timeout] = *value else { return Err(libc::EINVAL) };
                let id = self.id_mut(id)?;
                let reliable = [c::ibv_qp_type::IBV_QPT_RC, c::ibv_qp_type::IBV_QPT_XRC_SEND];
                if !reliable.contains(&id.qp_type) {
                    return Err(libc::EINVAL);
                }
                id.ack_timeout = Some(timeout.min(31));
                Ok(())
            }
            (c::RDMA_OPTION_IB, c::RDMA_OPTION_IB_PATH) => self.set_path(id, value),
            _ => Err(libc::ENOSYS),
        }
    }

    fn set_reuse(&mut self, number: IdNumber, reuse: bool) -> Result<(), c_int> {
        let id = self.ids.get_mut(number.0).ok_or(libc::ENOENT)?;
        // A listener can no longer share its address.
        let may_be = if reuse { id.state != IdState::Listen } else { id.state == IdState::Idle };
        if !may_be {
            return Err(libc::EINVAL);
        }
        id.reuse = reuse;
        if let Some(source) = id.source.filter(|_| id.has_port) {
            self.ports.set(number, id.space, source.port(), |owner| owner.reuse = reuse);
        }
        Ok(())
    }

    fn set_af_only(&mut self, number: IdNumber, af_only: bool) -> Result<(), c_int> {
        let id = self.ids.get_mut(number.0).ok_or(libc::ENOENT)?;
        if !matches!(id.state, IdState::Idle | IdState::Bound) {
            return Err(libc::EINVAL);
        }
        id.af_only = Some(af_only);
        if let Some(source) = id.source.filter(|_| id.has_port) {
            self.ports.set(number, id.space, source.port(), |owner| owner.af_only = af_only);
        }
        Ok(())
    }

    /// Sets the path from an array of paths, one of which must serve all purposes. The route is
    /// resolved then.
    fn set_path(&mut self, number: IdNumber, value: &[u8]) -> Result<(), c_int> {
        let (paths, rest) = value.as_chunks::<PATH_DATA>();
        let flags = |path: &&[u8; PATH_DATA]| path.first_chunk().copied().map(u32::from_ne_bytes);
        let whole = paths.iter().find(|path| flags(path) == Some(WHOLE_PATH));
        let whole = whole.filter(|_| rest.is_empty()).ok_or(libc::EINVAL)?;
        let (id, _) = self.placed(number)?;
        if id.state != IdState::AddrResolved {
            return Err(libc::EINVAL);
        }
        let record: &[u8; PATH_RECORD] = whole.last_chunk().expect("the record is shorter than that");
        // Byte offsets of the fields in a PathRecord (15.2.5.16).
        let (traffic_class, mtu, life_time) = (record[48], record[54] & 0x3f, record[56] & 0x3f);
        id.set_path = Some(PathOverride {
            mtu: if (1..=super::MTU).contains(&mtu) { mtu } else { super::MTU },
            traffic_class,
            packet_life_time: life_time.min(30),
        });
        id.state = IdState::RouteResolved;
        self.raise(number, CmEventKind::RouteResolved, 0, EventDetails::Nothing);
        Ok(())
    }
}

/// Decodes an `int` as a boolean.
fn flag(value: &[u8]) -> Result<bool, c_int> {
    let value: [u8; 4] = value.try_into().map_err(|_| libc::EINVAL)?;
    Ok(value != [0; 4])
}

/// The address `ip` with the port of `bound`, and the IPv6 scope of the destination.
fn with_ip(bound: SocketAddr, destination: SocketAddr, ip: std::net::IpAddr) -> SocketAddr {
    let mut address = destination;
    address.set_ip(ip);
    address.set_port(bound.port());
    address
}
