//! Verbs of ports: attributes, GIDs, partitions.

use std::ffi::c_int;

use rdma_mummy_sys::types::*;

use super::context::context_of;
use super::{admit, failure, minus_one, number, write_prefix};
use crate::config::MAX_MESSAGE;
use crate::faults::Call;
use crate::objects::address_handle::gid_bytes;
use crate::objects::context::Context;
use crate::objects::device::{Device, DevicePort, GID_TABLE};
use crate::objects::lid;
use crate::objects::setup::ProcessSetup;

/// The size of `ibv_port_attr` that old programs were compiled with.
const CLASSIC_SIZE: usize = 48;
/// Four lanes of 25 Gb/s each.
const WIDTH_4X: u8 = 2;
const SPEED_25: u8 = 32;
const SPEED_IN_100_MBPS: u64 = 1000;
const LINK_UP: u8 = 5;
const LINK_DISABLED: u8 = 3;

fn attributes(device: &Device, port: &DevicePort) -> ibv_port_attr {
    let state = port.state();
    let (sm_lid, caps, link_layer, flags) = if device.is_infiniband() {
        (lid::SUBNET_MANAGER, 0, IBV_LINK_LAYER_INFINIBAND, 0)
    } else {
        let caps = ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS.0;
        (0, caps, IBV_LINK_LAYER_ETHERNET, IBV_QPF_GRH_REQUIRED.0)
    };
    ibv_port_attr {
        state,
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: ibv_mtu::IBV_MTU_4096,
        gid_tbl_len: GID_TABLE as c_int,
        port_cap_flags: ibv_port_cap_flags::IBV_PORT_CM_SUP.0 | caps,
        max_msg_sz: MAX_MESSAGE,
        pkey_tbl_len: device.pkeys().len() as u16,
        lid: port.lid,
        sm_lid,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_25,
        active_speed_ex: SPEED_25.into(),
        phys_state: if state == ibv_port_state::IBV_PORT_ACTIVE { LINK_UP } else { LINK_DISABLED },
        link_layer: link_layer as u8,
        flags: flags as u8,
        ..ibv_port_attr::default()
    }
}

/// Writes the attributes of a port.
///
/// # Safety
///
/// - The context is open, and `attr` is writable for `room` bytes.
unsafe fn query(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, room: usize) -> c_int {
    // SAFETY: the caller guarantees an open context and `room` writable bytes at `attr`.
    unsafe {
        let context = context_of(context);
        admit!(context, QueryPort, failure);
        let Some(port) = context.device().port(port.into()) else { return number(Err(libc::EINVAL)) };
        write_prefix(attr, room, &attributes(context.device(), port));
    }
    0
}

pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: `ibv_query_port` requires an open context and a writable struct, which has at least
    // this size.
    unsafe { query(context, port, attr.cast(), CLASSIC_SIZE) }
}

pub(super) unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the operation `query_port` requires an open context and `size` writable bytes.
    unsafe { query(context, port, attr, size) }
}

pub(super) unsafe extern "C" fn query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    // SAFETY: `ibv_query_port_speed` requires an open context.
    let context = unsafe { context_of(context) };
    admit!(context, QueryPort, failure);
    if context.device().port(port).is_none() {
        return number(Err(libc::EINVAL));
    }
    // SAFETY: `ibv_query_port_speed` requires a valid result pointer.
    unsafe { speed.write(SPEED_IN_100_MBPS) };
    0
}

/// The GID at an index; `Ok(None)` if the entry is empty.
fn gid(context: &Context, port: u32, index: usize) -> Result<Option<ibv_gid_entry>, c_int> {
    let device = context.device();
    let port = device.port(port).filter(|_| index < GID_TABLE).ok_or(libc::EINVAL)?;
    let gid_type = if device.is_infiniband() {
        ibv_gid_type::IBV_GID_TYPE_IB
    } else {
        ibv_gid_type::IBV_GID_TYPE_ROCE_V2
    };
    Ok(port.gid(index).map(|gid| ibv_gid_entry {
        gid: ibv_gid { raw: gid.raw },
        gid_index: index as u32,
        port_num: port.number.into(),
        gid_type: gid_type.0,
        ndev_ifindex: gid.interface,
    }))
}

pub(super) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut ibv_gid,
) -> c_int {
    // SAFETY: `ibv_query_gid` requires an open context.
    let context = unsafe { context_of(context) };
    admit!(context, QueryGid, minus_one);
    match usize::try_from(index).map_err(|_| libc::EINVAL).and_then(|index| gid(&context, port.into(), index))
    {
        Ok(entry) => {
            // SAFETY: `ibv_query_gid` requires a valid result pointer. An empty entry reads as
            // zero.
            unsafe { to.write(entry.map_or(ibv_gid { raw: [0; 16] }, |entry| entry.gid)) };
            0
        }
        Err(error) => minus_one(error),
    }
}

pub(super) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    // SAFETY: `ibv_query_gid_ex` requires an open context.
    let context = unsafe { context_of(context) };
    admit!(context, QueryGid, failure);
    if flags != 0 || entry_size == 0 {
        return number(Err(libc::EINVAL));
    }
    match gid(&context, port, index as usize).and_then(|entry| entry.ok_or(libc::ENODATA)) {
        Ok(found) => {
            // SAFETY: `ibv_query_gid_ex` requires an entry of `entry_size` bytes.
            unsafe { write_prefix(entry, entry_size, &found) };
            0
        }
        Err(error) => number(Err(error)),
    }
}

pub(super) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // SAFETY: `ibv_query_gid_table` requires an open context.
    let context = unsafe { context_of(context) };
    if let Err(error) = context.admit(Call::QueryGid) {
        return -(failure(error) as isize);
    }
    let ports = context.device().ports.iter();
    let found = ports.flat_map(|port| (0..port.gids.len()).map(move |index| (u32::from(port.number), index)));
    let found: Vec<_> = found.filter_map(|(port, index)| gid(&context, port, index).ok().flatten()).collect();
    if flags != 0 || entry_size == 0 || found.len() > max_entries {
        return -(number(Err(libc::EINVAL)) as isize);
    }
    for (place, entry) in found.iter().enumerate() {
        // SAFETY: `ibv_query_gid_table` requires a table of `max_entries` entries of this size.
        unsafe { write_prefix(entries.byte_add(place * entry_size), entry_size, entry) };
    }
    found.len() as isize
}

pub(super) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    // SAFETY: `ibv_query_pkey` requires an open context.
    let context = unsafe { context_of(context) };
    admit!(context, QueryPort, minus_one);
    let table = context.device().port(port.into()).map(|_| context.device().pkeys());
    let found = table.and_then(|table| table.get(usize::try_from(index).ok()?));
    let Some(found) = found else { return minus_one(libc::EINVAL) };
    // SAFETY: `ibv_query_pkey` requires a valid result pointer.
    unsafe { pkey.write(found.to_be()) };
    0
}

pub(super) unsafe extern "C" fn get_pkey_index(context: *mut ibv_context, port: u8, pkey: __be16) -> c_int {
    // SAFETY: `ibv_get_pkey_index` requires an open context.
    let context = unsafe { context_of(context) };
    admit!(context, QueryPort, minus_one);
    let table = context.device().port(port.into()).map(|_| context.device().pkeys());
    let index = table.and_then(|table| table.iter().position(|own| own.to_be() == pkey));
    index.map_or_else(|| minus_one(libc::EINVAL), |index| index as c_int)
}

/// The Ethernet address for a GID: that of a port of this host's devices, or the one in a
/// link-local address.
fn mac_of(gid: [u8; 16]) -> Option<[u8; 6]> {
    let ports = ProcessSetup::get().ok()?.devices.iter().flat_map(|device| &device.ports);
    let known = ports.filter(|port| port.gids.iter().any(|own| own.raw == gid)).map(|port| port.mac).next();
    let in_address = || match gid {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
        _ => None,
    };
    known.or_else(in_address)
}

pub(super) unsafe extern "C" fn resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut u8,
    vlan: *mut u16,
) -> c_int {
    const NO_VLAN: u16 = 0xffff;
    // SAFETY: `ibv_resolve_eth_l2_from_gid` requires an open context and valid attributes.
    let (context, attr) = unsafe { (context_of(context), attr.read()) };
    if let Err(error) = gid(&context, attr.port_num.into(), attr.grh.sgid_index.into()) {
        return minus_one(error);
    }
    let Some(found) = mac_of(gid_bytes(attr.grh.dgid)) else { return -libc::EHOSTUNREACH };
    // SAFETY: `ibv_resolve_eth_l2_from_gid` requires room for an Ethernet address, and for a VLAN
    // number unless that is null.
    unsafe {
        mac.copy_from_nonoverlapping(found.as_ptr(), found.len());
        if !vlan.is_null() {
            vlan.write(NO_VLAN);
        }
    }
    0
}
