//! Opening and closing a device, and querying an open one.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::device::device_of;
use super::{admit, failure, write_prefix};
use super::{
    completion_queue, completion_queue_ex, device_memory, memory_region, memory_window, null, number, port,
    queue_pair, thread_domain, xrc,
};
use crate::faults::{self, effects};
use crate::objects::context::Context;
use crate::platform::{clock, command, errno};

/// The C part of a context. The last reference to the private part frees it.
#[repr(C)]
struct ContextObject {
    verbs: verbs_context,
    /// The program's reference, until it closes the context. Every object holds another one.
    state: *const Context,
    /// The command descriptor, kept here because the program may overwrite the C field.
    command: c_int,
}

const OFFSET: usize = offset_of!(ContextObject, verbs) + offset_of!(verbs_context, context);

/// The context of a pointer.
///
/// # Safety
///
/// - `context` is open, or an object that was created in it lives.
#[inline]
pub(crate) unsafe fn context_of(context: *mut ibv_context) -> Arc<Context> {
    // SAFETY: every context of this crate is part of a `ContextObject`, and the pointer is valid
    // for all of it. The state lives as long as the object, and came from an `Arc`.
    unsafe {
        let state = (&raw const (*context.byte_sub(OFFSET).cast::<ContextObject>()).state).read();
        Arc::increment_strong_count(state);
        Arc::from_raw(state)
    }
}

/// Frees the C part.
///
/// # Safety
///
/// - Nobody uses the context any more.
unsafe fn free(context: *mut ibv_context) {
    // SAFETY: `enter` boxed it, and the caller guarantees that nobody uses it any more.
    drop(unsafe { Box::from_raw(context.byte_sub(OFFSET).cast::<ContextObject>()) });
}

pub(super) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(device) = device_of(device) else { return null(libc::ENODEV) };
    let rules = if faults::active() { effects::admit_opening(device) } else { Ok(Vec::new()) };
    let rules = match rules {
        Ok(rules) => rules,
        Err(error) => return null(error),
    };
    let state = match Context::open(device, free) {
        Ok(state) => state,
        Err(error) => return null(errno::refused("ibv_open_device", &error)),
    };
    let handle = enter(&state, state.command().descriptor());
    effects::opened(&state, &rules);
    handle
}

/// Creates a C part with a reference to the context. It owns `command`, unless that is the
/// context's descriptor.
pub(super) fn enter(state: &Arc<Context>, command: c_int) -> *mut ibv_context {
    let mut verbs = verbs_context { sz: size_of::<verbs_context>(), ..verbs_context::default() };
    verbs.context.device = state.device().object();
    verbs.context.cmd_fd = command;
    verbs.context.async_fd = state.events().descriptor();
    verbs.context.num_comp_vectors = completion_queue::comp_vectors();
    verbs.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    verbs.context.ops.poll_cq = Some(completion_queue::poll_cq);
    verbs.context.ops.req_notify_cq = Some(completion_queue::req_notify_cq);
    verbs.query_port = Some(port::query_port_ex);
    verbs.query_device_ex = Some(query_device_ex);
    verbs.query_rt_values = Some(query_rt_values);
    verbs.create_cq_ex = Some(completion_queue_ex::create_cq_ex);
    verbs.modify_cq = Some(completion_queue::modify_cq);
    verbs.alloc_buf = Some(memory_region::alloc_buf);
    verbs.free_buf = Some(memory_region::free_buf);
    verbs.reg_mr_ex = Some(memory_region::reg_mr_ex);
    verbs.alloc_null_mr = Some(memory_region::alloc_null_mr);
    verbs.advise_mr = Some(memory_region::advise_mr);
    device_memory::install(&mut verbs);
    xrc::install(&mut verbs);
    thread_domain::install(&mut verbs);
    memory_window::install(&mut verbs);
    queue_pair::install(&mut verbs);
    let object = Box::into_raw(Box::new(ContextObject { verbs, state: Arc::as_ptr(state), command }));
    // SAFETY: the object was boxed above, and the pointer stays valid for all of it.
    let handle = unsafe { &raw mut (*object).verbs.context };
    state.add_handle(handle);
    // The program's reference; `close_device` takes it back.
    let _ = Arc::into_raw(Arc::clone(state));
    handle
}

/// Succeeds even if objects are left, as in libibverbs. Closes the descriptor that a context was
/// imported by (`man ibv_import_device`).
pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: `ibv_close_device` requires an open context and forbids any later use, so its
    // reference can be dropped.
    unsafe {
        let state = context_of(context);
        let imported = (&raw const (*context.byte_sub(OFFSET).cast::<ContextObject>()).command).read();
        if imported != state.command().descriptor() {
            command::close(imported);
        }
        drop(Arc::from_raw(Arc::as_ptr(&state)));
        state.close();
    }
    0
}

/// Extended capabilities by the kernel's numbers (`ib_user_verbs.h`, `IB_UVERBS_DEVICE_*`), which
/// no header of libibverbs repeats.
mod cap_ex {
    pub(super) const FLUSH_GLOBAL: u64 = 1 << 38;
    pub(super) const ATOMIC_WRITE: u64 = 1 << 40;
}

fn attributes(context: &Context) -> ibv_device_attr {
    let limits = context.rnic().limits();
    let device = context.device();
    let signed = |limit: u32| c_int::try_from(limit).unwrap_or(c_int::MAX);
    let mut attr = ibv_device_attr {
        node_guid: device.guid.to_be(),
        sys_image_guid: device.guid.to_be(),
        max_mr_size: limits.max_mr_size,
        page_size_cap: 0xffff_f000,
        vendor_id: device.traits.vendor_id,
        vendor_part_id: device.traits.vendor_part_id,
        hw_ver: device.traits.hw_ver,
        max_qp: signed(limits.max_qp),
        max_qp_wr: signed(limits.max_qp_wr),
        device_cap_flags: ibv_device_cap_flags::IBV_DEVICE_CURR_QP_STATE_MOD.0
            | ibv_device_cap_flags::IBV_DEVICE_PORT_ACTIVE_EVENT.0
            | ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID.0
            | ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN.0
            | ibv_device_cap_flags::IBV_DEVICE_XRC.0
            | ibv_device_cap_flags::IBV_DEVICE_N_NOTIFY_CQ.0
            | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0
            | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0
            | ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0,
        max_sge: signed(limits.max_sge),
        max_sge_rd: signed(limits.max_sge),
        max_cq: signed(limits.max_cq),
        max_cqe: signed(limits.max_cqe),
        max_mr: signed(limits.max_mr),
        max_mw: signed(limits.max_mw),
        max_pd: signed(limits.max_pd),
        max_qp_rd_atom: signed(limits.max_qp_rd_atom),
        max_res_rd_atom: signed(limits.max_qp_rd_atom.saturating_mul(limits.max_qp)),
        max_qp_init_rd_atom: signed(limits.max_qp_rd_atom),
        atomic_cap: if device.traits.no_atomics {
            ibv_atomic_cap::IBV_ATOMIC_NONE
        } else {
            ibv_atomic_cap::IBV_ATOMIC_HCA
        },
        max_mcast_grp: signed(limits.max_mcast_grp),
        max_mcast_qp_attach: signed(limits.max_mcast_qp_attach),
        max_total_mcast_qp_attach: signed(limits.max_total_mcast_qp_attach),
        max_ah: signed(limits.max_ah),
        max_srq: signed(limits.max_srq),
        max_srq_wr: signed(limits.max_srq_wr),
        max_srq_sge: signed(limits.max_srq_sge),
        max_pkeys: device.pkeys().len() as u16,
        local_ca_ack_delay: 15,
        phys_port_cnt: device.ports.len() as u8,
        ..ibv_device_attr::default()
    };
    let version = concat!("soft-", env!("CARGO_PKG_VERSION"));
    for (to, from) in attr.fw_ver.iter_mut().zip(version.bytes()) {
        *to = from as c_char;
    }
    attr
}

/// The device never pins a page, so all memory is paged on demand. Implicit regions need a system
/// that copies within the process.
///
/// Returns the capabilities, and apart from them those of extended reliable connections.
fn odp_caps(implicit: bool) -> (ibv_odp_caps, u32) {
    use ibv_odp_transport_cap_bits as Bits;
    let datagrams = Bits::IBV_ODP_SUPPORT_SEND | Bits::IBV_ODP_SUPPORT_RECV | Bits::IBV_ODP_SUPPORT_SRQ_RECV;
    let unreliable = datagrams | Bits::IBV_ODP_SUPPORT_WRITE;
    let reliable = unreliable | Bits::IBV_ODP_SUPPORT_READ | Bits::IBV_ODP_SUPPORT_ATOMIC;
    let general = ibv_odp_general_caps::IBV_ODP_SUPPORT.0
        | if implicit { ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT.0 } else { 0 };
    let mut caps = ibv_odp_caps { general_caps: u64::from(general), ..ibv_odp_caps::default() };
    caps.per_transport_caps.rc_odp_caps = reliable.0;
    caps.per_transport_caps.uc_odp_caps = unreliable.0;
    caps.per_transport_caps.ud_odp_caps = datagrams.0;
    (caps, reliable.0)
}

pub(super) unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: `ibv_query_device` requires an open context.
    let context = unsafe { context_of(context) };
    admit!(context, QueryDevice, failure);
    // SAFETY: `ibv_query_device` requires a valid pointer for the attributes.
    unsafe { attr.write(attributes(&context)) };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: `ibv_query_device_ex` requires null or valid input.
    let unknown_input = !input.is_null() && unsafe { (*input).comp_mask } != 0;
    if unknown_input || attr_size < size_of::<ibv_device_attr>() {
        return number(Err(libc::EINVAL));
    }
    // SAFETY: `ibv_query_device_ex` requires an open context.
    let context = unsafe { context_of(context) };
    admit!(context, QueryDevice, failure);
    let orig_attr = attributes(&context);
    let (odp_caps, xrc_odp_caps) = odp_caps(context.rnic().node().own_vm().is_some());
    let extended = ibv_device_attr_ex {
        orig_attr,
        odp_caps,
        xrc_odp_caps,
        max_dm_size: context.rnic().limits().max_dm_size,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: clock::TICKS_A_MILLISECOND,
        device_cap_flags_ex: u64::from(orig_attr.device_cap_flags)
            | cap_ex::FLUSH_GLOBAL
            | if context.device().traits.no_atomics { 0 } else { cap_ex::ATOMIC_WRITE },
        cq_mod_caps: ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX },
        phys_port_cnt_ex: orig_attr.phys_port_cnt.into(),
        ..ibv_device_attr_ex::default()
    };
    // SAFETY: `ibv_query_device_ex` requires `attr_size` writable bytes.
    unsafe { write_prefix(attr, attr_size, &extended) };
    0
}

/// The raw clock counts ticks, all of them in `tv_nsec`, as on other devices.
unsafe extern "C" fn query_rt_values(_: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    const RAW_CLOCK: u32 = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    // SAFETY: `ibv_query_rt_values_ex` requires valid values.
    unsafe {
        let requested = (*values).comp_mask & RAW_CLOCK;
        if requested != 0 {
            (*values).raw_clock.tv_sec = 0;
            (*values).raw_clock.tv_nsec = clock::now() as i64;
        }
        (*values).comp_mask = requested;
    }
    0
}
