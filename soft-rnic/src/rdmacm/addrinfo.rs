//! `rdma_getaddrinfo`.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::{addrinfo, sockaddr, socklen_t};
use rdma_mummy_sys::types::*;

use super::finish;
use crate::platform::errno;

/// What the C library is asked for.
fn c_hints(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: integers and null pointers.
    let mut c: addrinfo = unsafe { core::mem::zeroed() };
    let flag = |rdma: u32, c: c_int| if hints.ai_flags & rdma as c_int != 0 { c } else { 0 };
    c.ai_flags = flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
    c.ai_family = hints.ai_family;
    c.ai_socktype = match ibv_qp_type(hints.ai_qp_type as u32) {
        ibv_qp_type::IBV_QPT_RC
        | ibv_qp_type::IBV_QPT_UC
        | ibv_qp_type::IBV_QPT_XRC_SEND
        | ibv_qp_type::IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        ibv_qp_type::IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    c.ai_protocol = match (rdma_port_space(hints.ai_port_space as u32), c.ai_socktype) {
        (rdma_port_space::RDMA_PS_TCP, _) | (rdma_port_space::RDMA_PS_IB, libc::SOCK_STREAM) => {
            libc::IPPROTO_TCP
        }
        (rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB, _)
        | (rdma_port_space::RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    c
}

/// The program frees it by `rdma_freeaddrinfo`, but may have put memory of its own into it: so all is `malloc`'s.
fn allocate<T>(count: usize) -> Result<*mut T, c_int> {
    // SAFETY: any sizes.
    let memory: *mut T = unsafe { libc::calloc(count, size_of::<T>()) }.cast();
    if memory.is_null() { Err(libc::ENOMEM) } else { Ok(memory) }
}

/// Copies an address.
///
/// # Safety
///
/// - `from` is readable for this length; the others are valid.
unsafe fn copy(
    from: *const sockaddr,
    length: socklen_t,
    to: &mut *mut sockaddr,
    to_length: &mut socklen_t,
) -> Result<(), c_int> {
    if from.is_null() || length == 0 {
        return Ok(());
    }
    let memory = allocate::<u8>(length as usize)?;
    // SAFETY: `from` is readable for this length; the others are valid, by the contract of `copy`,
    // and the new memory's length.
    unsafe { memory.copy_from_nonoverlapping(from.cast(), length as usize) };
    (*to, *to_length) = (memory.cast(), length);
    Ok(())
}

/// Makes an entry of what the C library found.
///
/// # Safety
///
/// - `found` is valid.
unsafe fn fill(info: &mut rdma_addrinfo, hints: &rdma_addrinfo, found: &addrinfo) -> Result<(), c_int> {
    let or = |hint: c_int, found: u32| if hint == 0 { found as c_int } else { hint };
    info.ai_qp_type = or(
        hints.ai_qp_type,
        match found.ai_socktype {
            libc::SOCK_DGRAM => ibv_qp_type::IBV_QPT_UD.0,
            _ => ibv_qp_type::IBV_QPT_RC.0,
        },
    );
    info.ai_port_space = or(
        hints.ai_port_space,
        match found.ai_protocol {
            libc::IPPROTO_UDP => rdma_port_space::RDMA_PS_UDP.0,
            _ => rdma_port_space::RDMA_PS_TCP.0,
        },
    );
    info.ai_family = found.ai_family;
    // SAFETY: what the C library found is valid.
    unsafe {
        let name =
            if found.ai_canonname.is_null() { ptr::null_mut() } else { libc::strdup(found.ai_canonname) };
        if found.ai_flags & libc::AI_PASSIVE != 0 {
            info.ai_flags = RAI_PASSIVE as c_int;
            info.ai_src_canonname = name;
            copy(found.ai_addr, found.ai_addrlen, &mut info.ai_src_addr, &mut info.ai_src_len)
        } else {
            info.ai_dst_canonname = name;
            copy(found.ai_addr, found.ai_addrlen, &mut info.ai_dst_addr, &mut info.ai_dst_len)
        }
    }
}

/// What the hints themselves say.
///
/// # Safety
///
/// - The addresses of the hints are readable.
unsafe fn fill_from_hints(info: &mut rdma_addrinfo, hints: &rdma_addrinfo) -> Result<(), c_int> {
    info.ai_flags = hints.ai_flags;
    info.ai_family = hints.ai_family;
    info.ai_qp_type = hints.ai_qp_type;
    info.ai_port_space = hints.ai_port_space;
    // SAFETY: the addresses of the hints are readable, by the contract of `fill_from_hints`.
    unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len, &mut info.ai_dst_addr, &mut info.ai_dst_len) }
}

/// Why there is no information: an error number, or one of `getaddrinfo`'s own, which is returned as it is.
pub(super) enum AddrinfoError {
    Number(c_int),
    Name(c_int),
}

/// # Safety
///
/// - As of `getaddrinfo`.
pub(super) unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, AddrinfoError> {
    if node.is_null() && service.is_null() && hints.is_null() {
        return Err(AddrinfoError::Number(libc::EINVAL));
    }
    let none = rdma_addrinfo::default();
    // SAFETY: `node`, `service` and `hints` are null or valid, by the contract of `getaddrinfo`;
    // what the C library found is freed once.
    unsafe {
        let (hints, c_hints) = hints.as_ref().map_or((&none, None), |hints| (hints, Some(c_hints(hints))));
        let info = allocate::<rdma_addrinfo>(1).map_err(AddrinfoError::Number)?;
        let filled = if node.is_null() && service.is_null() {
            fill_from_hints(&mut *info, hints).map_err(AddrinfoError::Number)
        } else {
            let mut found = ptr::null_mut();
            let c_hints = c_hints.as_ref().map_or(ptr::null(), ptr::from_ref);
            match libc::getaddrinfo(node, service, c_hints, &raw mut found) {
                0 => {
                    // As librdmacm, the first one only: programs look at no other.
                    let filled = fill(&mut *info, hints, &*found).map_err(AddrinfoError::Number);
                    libc::freeaddrinfo(found);
                    filled
                }
                error => Err(AddrinfoError::Name(error)),
            }
        };
        let filled = filled.and_then(|()| {
            let info = &mut *info;
            let (to, length) = (&mut info.ai_src_addr, &mut info.ai_src_len);
            if *length != 0 {
                return Ok(());
            }
            copy(hints.ai_src_addr, hints.ai_src_len, to, length).map_err(AddrinfoError::Number)
        });
        if filled.is_err() {
            freeaddrinfo(info);
        }
        filled.map(|()| info)
    }
}

/// The same once more, for somebody else to free.
///
/// # Safety
///
/// - `info` is an entry of the library's.
pub(super) unsafe fn duplicate(info: &rdma_addrinfo) -> Result<*mut rdma_addrinfo, c_int> {
    let copied = allocate::<rdma_addrinfo>(1)?;
    // SAFETY: the new entry is zeroed, which is a value; the entry's addresses and names are valid.
    unsafe {
        let name = |from: *mut c_char| if from.is_null() { from } else { libc::strdup(from) };
        let to = &mut *copied;
        to.ai_flags = info.ai_flags;
        to.ai_family = info.ai_family;
        to.ai_qp_type = info.ai_qp_type;
        to.ai_port_space = info.ai_port_space;
        to.ai_src_canonname = name(info.ai_src_canonname);
        to.ai_dst_canonname = name(info.ai_dst_canonname);
        let filled = copy(info.ai_src_addr, info.ai_src_len, &mut to.ai_src_addr, &mut to.ai_src_len)
            .and_then(|()| copy(info.ai_dst_addr, info.ai_dst_len, &mut to.ai_dst_addr, &mut to.ai_dst_len));
        match filled {
            Ok(()) => Ok(copied),
            Err(error) => {
                freeaddrinfo(copied);
                Err(error)
            }
        }
    }
}

/// Returns -1 and `errno`, or an error of the C library's `getaddrinfo`.
pub(super) unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the arguments are valid, by the contract of the C function `getaddrinfo`.
    match unsafe { find(node, service, hints).map(|info| result.write(info)) } {
        Ok(()) => 0,
        Err(AddrinfoError::Number(error)) => finish(Err(error)),
        Err(AddrinfoError::Name(error)) => {
            if error != libc::EAI_SYSTEM {
                errno::set(libc::EINVAL);
            }
            error
        }
    }
}

pub(super) unsafe extern "C" fn freeaddrinfo(mut info: *mut rdma_addrinfo) {
    // SAFETY: the caller's list is from `getaddrinfo`, or null.
    unsafe {
        while !info.is_null() {
            let entry = info.read();
            for part in [
                entry.ai_src_addr.cast(),
                entry.ai_dst_addr.cast(),
                entry.ai_src_canonname.cast(),
                entry.ai_dst_canonname.cast(),
                entry.ai_route,
                entry.ai_connect,
            ] {
                libc::free(part);
            }
            libc::free(info.cast());
            info = entry.ai_next;
        }
    }
}
