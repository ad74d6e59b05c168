//! Name resolution by the library, and identifiers created from its result.

use std::ffi::{CString, c_char};
use std::net::SocketAddr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::super::handle::{RawHandle, errno};
use super::super::{Pd, QpInit};
use super::address::{SocketAddress, read};
use super::{Cm, CmId, Space, check};

/// The hints of a query.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hints {
    pub(crate) flags: u32,
    pub(crate) family: i32,
    pub(crate) qp_type: Option<ibv_qp_type>,
    pub(crate) space: Option<Space>,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
}

/// The result of a query.
#[derive(Clone, Debug)]
pub(crate) struct Info(Arc<InfoInner>);

#[derive(Debug)]
struct InfoInner {
    raw: RawHandle<rdma_addrinfo>,
    cm: Cm,
}

impl Drop for InfoInner {
    fn drop(&mut self) {
        // SAFETY: the list came from the library, and `RawHandle` calls this once.
        self.raw.drop(|info| unsafe {
            (self.cm.lib.rdma_freeaddrinfo)(info);
            0
        });
    }
}

/// The return value, and the error number if that is -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotFound(pub(crate) i32, pub(crate) i32);

/// Calls a function with node, service and hints in C's form, which live until it returns.
fn asked<R>(
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
    call: impl FnOnce(*const c_char, *const c_char, *const rdma_addrinfo) -> R,
) -> R {
    let text = |text: Option<&str>| text.map(|text| CString::new(text).unwrap());
    let (node, service) = (text(node), text(service));
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let mut source = hints.and_then(|hints| hints.source).map(SocketAddress::of);
    let mut destination = hints.and_then(|hints| hints.destination).map(SocketAddress::of);
    let hints = hints.map(|hints| rdma_addrinfo {
        ai_flags: hints.flags as i32,
        ai_family: hints.family,
        ai_qp_type: hints.qp_type.map_or(0, |qp_type| qp_type.0 as i32),
        ai_port_space: hints.space.map_or(0, |space| space.0 as i32),
        ai_src_len: source.as_ref().map_or(0, SocketAddress::len),
        ai_dst_len: destination.as_ref().map_or(0, SocketAddress::len),
        ai_src_addr: source.as_mut().map_or(std::ptr::null_mut(), SocketAddress::as_mut_ptr),
        ai_dst_addr: destination.as_mut().map_or(std::ptr::null_mut(), SocketAddress::as_mut_ptr),
        ..Default::default()
    });
    let hints = hints.as_ref().map_or(std::ptr::null(), |hints| &raw const *hints);
    call(pointer(&node), pointer(&service), hints)
}

impl CmId {
    /// `rdma_resolve_addrinfo`, which resolves asynchronously.
    pub(crate) fn resolve_info(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<(), i32> {
        let resolve = self.lib().rdma_resolve_addrinfo().map_err(|_| libc::EOPNOTSUPP)?;
        // SAFETY: `RawHandle` checks that the identifier lives. `asked` keeps the strings, hints
        // and addresses alive during the call.
        asked(node, service, hints, |node, service, hints| unsafe {
            check(resolve(self.raw(), node, service, hints))
        })
    }

    /// `rdma_query_addrinfo`: the result of the asynchronous resolution.
    pub(crate) fn query_info(&self) -> Result<Info, i32> {
        let query = self.lib().rdma_query_addrinfo().map_err(|_| libc::EOPNOTSUPP)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `RawHandle` checks that the result lives, the result is a local variable.
        check(unsafe { query(self.raw(), &raw mut raw) })?;
        Ok(Info(Arc::new(InfoInner { raw: RawHandle::new("address information", raw)?, cm: self.cm() })))
    }
}

impl Cm {
    /// `rdma_getaddrinfo`.
    pub(crate) fn info(
        self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<Info, NotFound> {
        let mut raw = std::ptr::null_mut();
        let get = self.lib.rdma_getaddrinfo;
        // SAFETY: `asked` keeps the strings, hints and addresses alive during the call; the result
        // is a local variable.
        let result = asked(node, service, hints, |node, service, hints| unsafe {
            get(node, service, hints, &raw mut raw)
        });
        if result != 0 {
            return Err(NotFound(result, if result == -1 { errno() } else { 0 }));
        }
        Ok(Info(Arc::new(InfoInner { raw: RawHandle::new("address information", raw).unwrap(), cm: self })))
    }

    /// Creates an identifier from the result, with a queue pair if `init` is given.
    pub(crate) fn endpoint(self, info: &Info, pd: Option<&Pd>, init: Option<&QpInit>) -> Result<CmId, i32> {
        let mut raw = std::ptr::null_mut();
        let mut init = init.map(super::objects::init_attr);
        let init = init.as_mut().map_or(std::ptr::null_mut(), |init| &raw mut *init);
        let pd = pd.map_or(std::ptr::null_mut(), Pd::raw);
        // SAFETY: `RawHandle` checks that result and domain live; everything else is local.
        check(unsafe { (self.lib.rdma_create_ep)(&raw mut raw, info.0.raw.get(), pd, init) })?;
        Ok(CmId::of(self, raw, None, true))
    }
}

impl Info {
    fn first(&self) -> rdma_addrinfo {
        // SAFETY: `RawHandle` checks that the result lives.
        unsafe { self.0.raw.get().read() }
    }

    pub(crate) fn flags(&self) -> u32 {
        self.first().ai_flags as u32
    }

    pub(crate) fn family(&self) -> i32 {
        self.first().ai_family
    }

    pub(crate) fn qp_type(&self) -> ibv_qp_type {
        ibv_qp_type(self.first().ai_qp_type as u32)
    }

    pub(crate) fn space(&self) -> Space {
        rdma_port_space(self.first().ai_port_space as u32)
    }

    pub(crate) fn source(&self) -> Option<SocketAddr> {
        // SAFETY: null, or an address of the list, which lives as long as `self`.
        unsafe { read(self.first().ai_src_addr) }
    }

    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        // SAFETY: null, or an address of the list, which lives as long as `self`.
        unsafe { read(self.first().ai_dst_addr) }
    }
}
