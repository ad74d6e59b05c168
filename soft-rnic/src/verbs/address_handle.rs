//! Verbs of address handles.

use std::ffi::c_int;
use std::net::Ipv4Addr;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::protection_domain::pd_of;
use super::{admit, failure, minus_one, null};
use crate::config::Link;
use crate::objects::address_handle::{AddressHandle, AhObject, ah_of};
use crate::objects::context::Context;

pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: `ibv_create_ah` requires a live protection domain and valid attributes.
    let (state, context, attr) = unsafe { (pd_of(pd), (*pd).context, attr.read()) };
    admit!(state.context(), CreateAh, null);
    match AddressHandle::new(state, &attr) {
        Ok(ah) => AhObject::create(ibv_ah { context, pd, handle: 0 }, ah),
        Err(error) => null(error),
    }
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: `ibv_destroy_ah` requires a live address handle.
    admit!(unsafe { ah_of(ah) }.context(), DestroyAh, failure);
    // SAFETY: `create` of the same type made the object, and `ibv_destroy_ah` forbids any later
    // use.
    drop(unsafe { AhObject::destroy(ah) });
    0
}

/// The fields of a datagram's header that a reply needs.
struct GrhSource {
    source: [u8; 16],
    destination: [u8; 16],
    flow_label: u32,
    traffic_class: u8,
    hop_limit: u8,
}

/// Whether twenty bytes are an IPv4 header without options, by its checksum.
fn is_ipv4_header(header: &[u8; 20]) -> bool {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Reads the forty bytes before a datagram's payload: an IPv6 header, or on Ethernet an IPv4 header
/// in the second half.
fn origin(grh: &[u8; 40], link: Link) -> Option<GrhSource> {
    let ipv4: &[u8; 20] = grh.last_chunk()?;
    if link == Link::Ethernet && is_ipv4_header(ipv4) {
        let address = |at: usize| {
            Ipv4Addr::new(ipv4[at], ipv4[at + 1], ipv4[at + 2], ipv4[at + 3]).to_ipv6_mapped().octets()
        };
        return Some(GrhSource {
            source: address(12),
            destination: address(16),
            flow_label: 0,
            traffic_class: ipv4[1],
            hop_limit: ipv4[8],
        });
    }
    let first = u32::from_be_bytes(*grh.first_chunk()?);
    (first >> 28 == 6).then(|| GrhSource {
        source: *grh[8..].first_chunk().expect("thirty-two bytes are left"),
        destination: *grh[24..].first_chunk().expect("sixteen bytes are left"),
        flow_label: first & 0xf_ffff,
        traffic_class: (first >> 20) as u8,
        hop_limit: grh[7],
    })
}

/// The index of a GID at a port.
fn index_of(context: &Context, port: u8, gid: [u8; 16]) -> Option<u8> {
    let gids = &context.device().port(port.into())?.gids;
    gids.iter().position(|own| own.raw == gid).and_then(|index| u8::try_from(index).ok())
}

pub(super) unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: `ibv_init_ah_from_wc` requires an open context and a valid completion.
    let (context, wc) = unsafe { (context_of(context), wc.read()) };
    let mut answer = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..ibv_ah_attr::default()
    };
    let mut result = 0;
    if wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0 {
        // SAFETY: the flag says that the header exists. It is forty bytes of any value and
        // alignment.
        let header = unsafe { grh.cast::<[u8; 40]>().read() };
        answer.is_global = 1;
        match origin(&header, context.device().link) {
            None => result = minus_one(libc::EPROTONOSUPPORT),
            Some(origin) => {
                answer.grh.dgid = ibv_gid { raw: origin.source };
                answer.grh.flow_label = origin.flow_label;
                answer.grh.traffic_class = origin.traffic_class;
                answer.grh.hop_limit = origin.hop_limit;
                match index_of(&context, port, origin.destination) {
                    Some(index) => answer.grh.sgid_index = index,
                    None => result = minus_one(libc::EINVAL),
                }
            }
        }
    }
    // SAFETY: `ibv_init_ah_from_wc` requires a valid result pointer.
    unsafe { attr.write(answer) };
    result
}

pub(super) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: `ibv_create_ah_from_wc` requires a live protection domain, a valid completion, and
    // the header if the completion has one.
    unsafe {
        let context = (*pd).context;
        if init_ah_from_wc(context, port, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        create_ah(pd, &raw mut attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_ipv4_by_its_checksum() {
        // The usual textbook example of RFC 1071's algorithm.
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        let mut grh = [0; 40];
        grh[20..].copy_from_slice(&header);
        let read = origin(&grh, Link::Ethernet).unwrap();
        assert_eq!(read.source, Ipv4Addr::new(192, 168, 0, 1).to_ipv6_mapped().octets());
        assert_eq!(read.destination, Ipv4Addr::new(192, 168, 0, 199).to_ipv6_mapped().octets());
        assert_eq!((read.hop_limit, read.traffic_class), (0x40, 0));
        grh[20 + 8] ^= 1;
        assert!(origin(&grh, Link::Ethernet).is_none());
        grh[0] = 0x60;
        assert!(origin(&grh, Link::Ethernet).is_some());
    }
}
