//! `rdma_resolve_addrinfo`: name lookups on a background thread.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use libc::{sockaddr, socklen_t};
use rdma_mummy_sys::types::*;

use super::addrinfo::{AddrinfoError, duplicate, find, freeaddrinfo};
use super::id::{id_of, name};
use super::{event, finish};
use crate::cm::CmEventKind;
use crate::platform::{errno, threads};

/// The result of an id's latest lookup, once it is complete. The lookup thread may outlive the id.
pub(super) type ResolvedNames = Arc<Mutex<Option<AddrinfoList>>>;

/// A list of addresses, which `Drop` frees.
pub(super) struct AddrinfoList(*mut rdma_addrinfo);

// SAFETY: the list's memory has no other owner.
unsafe impl Send for AddrinfoList {}

impl Drop for AddrinfoList {
    fn drop(&mut self) {
        // SAFETY: the list comes from `find`, and is freed only here.
        unsafe { freeaddrinfo(self.0) };
    }
}

/// The question of a lookup.
struct NameQuery {
    node: Option<CString>,
    service: Option<CString>,
    hints: Option<Hints>,
}

/// The hints that the lookup uses, copied from the program.
struct Hints {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    source: Vec<u8>,
    destination: Vec<u8>,
}

/// # Safety
///
/// - `text` is a C string, or null.
unsafe fn owned(text: *const c_char) -> Option<CString> {
    // SAFETY: the caller guarantees that `text` is a C string, or null.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned())
}

/// # Safety
///
/// - `address` is readable for `length` bytes, or null.
unsafe fn bytes(address: *const sockaddr, length: socklen_t) -> Vec<u8> {
    if address.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller guarantees that `address` is readable for `length` bytes.
    unsafe { std::slice::from_raw_parts(address.cast(), length as usize) }.to_vec()
}

impl Hints {
    /// # Safety
    ///
    /// - The addresses in `hints` are readable for their lengths, or null.
    unsafe fn of(hints: &rdma_addrinfo) -> Self {
        // SAFETY: the caller guarantees that the addresses are readable for their lengths, or null.
        let (source, destination) = unsafe {
            (bytes(hints.ai_src_addr, hints.ai_src_len), bytes(hints.ai_dst_addr, hints.ai_dst_len))
        };
        Self {
            flags: hints.ai_flags,
            family: hints.ai_family,
            qp_type: hints.ai_qp_type,
            port_space: hints.ai_port_space,
            source,
            destination,
        }
    }

    /// The hints as the C struct; its pointers are valid as long as `self`.
    fn to_c(&self) -> rdma_addrinfo {
        let address = |bytes: &Vec<u8>| -> (*mut sockaddr, socklen_t) {
            (bytes.as_ptr().cast_mut().cast(), bytes.len() as socklen_t)
        };
        let ((ai_src_addr, ai_src_len), (ai_dst_addr, ai_dst_len)) =
            (address(&self.source), address(&self.destination));
        rdma_addrinfo {
            ai_flags: self.flags,
            ai_family: self.family,
            ai_qp_type: self.qp_type,
            ai_port_space: self.port_space,
            ai_src_addr,
            ai_src_len,
            ai_dst_addr,
            ai_dst_len,
            ..rdma_addrinfo::default()
        }
    }
}

impl NameQuery {
    /// Performs the lookup, and blocks as long as the C library does.
    fn ask(&self) -> Result<AddrinfoList, c_int> {
        let text = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let hints = self.hints.as_ref().map(Hints::to_c);
        let hints = hints.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the arguments borrow from `self` and from locals, and `find` only copies the
        // addresses.
        let found = unsafe { find(text(&self.node), text(&self.service), hints) };
        found.map(AddrinfoList).map_err(|refusal| match refusal {
            AddrinfoError::Number(error) => error,
            AddrinfoError::Name(libc::EAI_AGAIN) => libc::EAGAIN,
            AddrinfoError::Name(libc::EAI_MEMORY) => libc::ENOMEM,
            AddrinfoError::Name(libc::EAI_SYSTEM) => errno::of(&std::io::Error::last_os_error()),
            AddrinfoError::Name(_) => libc::ENOENT,
        })
    }
}

/// # Safety
///
/// - `id` is live; the others are valid or null.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live, and that the others are valid or null.
    let (state, query) = unsafe {
        let hints = hints.as_ref().map(|hints| Hints::of(hints));
        (id_of(id), NameQuery { node: owned(node), service: owned(service), hints })
    };
    let asks = |flag: u32| query.hints.as_ref().is_some_and(|hints| hints.flags & flag as c_int != 0);
    match (asks(RAI_SA), asks(RAI_DNS)) {
        (true, true) => return Err(libc::EINVAL),
        // Ethernet has no subnet administrator to ask.
        (true, false) => return Err(libc::EOPNOTSUPP),
        (false, _) if query.node.is_none() && query.service.is_none() && query.hints.is_none() => {
            return Err(libc::EINVAL);
        }
        (false, _) => {}
    }
    // This fails in a forked child, which must not use its parent's id.
    // SAFETY: the caller guarantees that `id` is live.
    unsafe { name(id)? };
    let (manager, number) = (Arc::clone(&state.manager), state.number());
    let answer = Arc::clone(&state.settings().names);
    let work = move || {
        let found = query.ask();
        let (kind, status) = match &found {
            Ok(_) => (CmEventKind::AddrinfoResolved, 0),
            Err(error) => (CmEventKind::AddrinfoError, -error),
        };
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = found.ok();
        if let Err(error) = manager.write(number, kind, status, 0) {
            log::debug!("the result of a name lookup was dropped, because its id is gone: error {error}");
        }
    };
    threads::spawn("soft-rnic-names", work)
        .map_err(|error| errno::refused("rdma_resolve_addrinfo", &error))?;
    // SAFETY: the caller guarantees that `id` is live.
    unsafe { event::complete(id) }
}

pub(super) unsafe extern "C" fn resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: `rdma_resolve_addrinfo` requires that `id` is live, and that the others are valid or
    // null.
    finish(unsafe { resolve(id, node, service, hints) })
}

/// `rdma_query_addrinfo`: each call returns a new list, which the program frees with
/// `rdma_freeaddrinfo`.
pub(super) unsafe extern "C" fn query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    if info.is_null() {
        return finish(Err(libc::EINVAL));
    }
    // SAFETY: `rdma_query_addrinfo` requires a live id.
    let state = unsafe { id_of(id) };
    let answer = Arc::clone(&state.settings().names);
    let answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
    let found = answer.as_ref().ok_or(libc::ENODATA);
    // SAFETY: the list does not change while the lock is held; `rdma_query_addrinfo` requires that
    // `info` is writable.
    finish(found.and_then(|list| unsafe { duplicate(&*list.0) }).map(|copied| unsafe { info.write(copied) }))
}
