//! Fake domains, multicast groups, options, imports, flows and counters. Their dependencies are
//! checked.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use sideway::sys::Verbs;
use sideway::sys::types::*;

use super::device::world_of;
use super::{FakeWorld, refuses, set_errno, world};

/// The existing objects, by their addresses.
#[derive(Debug, Default)]
pub struct Extras {
    /// The dependencies: an object, and an object that uses it.
    uses: Mutex<Vec<(usize, usize)>>,
    imported: Mutex<Vec<usize>>,
    /// The bytes of the last rule that was made.
    pub rule: Mutex<Vec<u8>>,
    /// What the counters count: index and description.
    pub points: Mutex<Vec<(u32, u32)>>,
    /// The memberships: queue pair, GID of the group, LID.
    groups: Mutex<Vec<(usize, [u8; 16], u16)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeWorld {
    pub(super) fn uses<A, B>(&self, used: *mut A, by: *mut B) {
        lock(&self.extras.uses).push((used.addr(), by.addr()));
    }

    /// Removes an object, which nothing may use any more, and its dependencies.
    pub(super) fn goes<T>(&self, object: *mut T, what: &str) {
        let mut uses = lock(&self.extras.uses);
        let used = uses.iter().any(|(used, _)| *used == object.addr());
        uses.retain(|(_, by)| *by != object.addr());
        self.check(!used, &format!("a {what} goes after what uses it"));
    }

    /// Checks that a queue pair that is destroyed is in no group.
    pub(super) fn leaves_no_group(&self, qp: *mut ibv_qp) {
        let member = lock(&self.extras.groups).iter().any(|(of, ..)| *of == qp.addr());
        self.check(!member, "a queue pair leaves its groups before it goes");
        self.goes(qp, "queue pair");
    }

    pub(super) fn is_imported<T>(&self, object: *mut T) {
        lock(&self.extras.imported).push(object.addr());
    }

    /// Records that a domain or a region is destroyed or unimported.
    pub(super) fn was_imported<T>(&self, object: *mut T, unimported: bool) {
        let mut imported = lock(&self.extras.imported);
        let place = imported.iter().position(|of| *of == object.addr());
        self.check(place.is_some() == unimported, "what was imported is unimported, and nothing else");
        if let Some(place) = place {
            imported.swap_remove(place);
        }
    }
}

pub(super) fn add_to(table: Verbs) -> Verbs {
    Verbs {
        ibv_query_pkey: query_pkey,
        ibv_get_pkey_index: Some(get_pkey_index),
        ibv_get_device_index: Some(get_device_index),
        ibv_query_port_speed: Some(query_port_speed),
        ibv_fork_init: fork_init,
        ibv_is_fork_initialized: Some(is_fork_initialized),
        ibv_attach_mcast: attach_mcast,
        ibv_detach_mcast: detach_mcast,
        ibv_query_ece: Some(query_ece),
        ibv_set_ece: Some(set_ece),
        ibv_import_device: Some(import_device),
        ibv_import_pd: Some(import_pd),
        ibv_unimport_pd: Some(unimport_pd),
        ibv_import_mr: Some(import_mr),
        ibv_unimport_mr: Some(unimport_mr),
        _ibv_query_comp_cntr_caps: Some(query_comp_cntr_caps),
        ibv_create_comp_cntr: Some(create_comp_cntr),
        ibv_destroy_comp_cntr: Some(destroy_comp_cntr),
        ibv_set_comp_cntr: Some(set_comp_cntr),
        ibv_set_err_comp_cntr: Some(set_err_comp_cntr),
        ibv_inc_comp_cntr: Some(inc_comp_cntr),
        ibv_inc_err_comp_cntr: Some(inc_err_comp_cntr),
        ibv_read_comp_cntr: Some(read_comp_cntr),
        ibv_read_err_comp_cntr: Some(read_err_comp_cntr),
        ibv_qp_attach_comp_cntr: Some(attach_comp_cntr),
        ..table
    }
}

pub(super) fn install(verbs: &mut verbs_context) {
    verbs.alloc_td = Some(alloc_td);
    verbs.dealloc_td = Some(dealloc_td);
    verbs.alloc_parent_domain = Some(alloc_parent_domain);
    verbs.ibv_create_flow = Some(create_flow);
    verbs.ibv_destroy_flow = Some(destroy_flow);
    verbs.create_counters = Some(create_counters);
    verbs.destroy_counters = Some(destroy_counters);
    verbs.attach_counters_point_flow = Some(attach_counters);
    verbs.read_counters = Some(read_counters);
}

unsafe extern "C" fn query_pkey(context: *mut ibv_context, port: u8, index: c_int, to: *mut __be16) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer, as C requires.
    unsafe {
        let lies = &world_of(context).lies;
        if lies.extras != 0 || port != 1 || !(0..3).contains(&index) {
            set_errno(if lies.extras != 0 { lies.extras } else { libc::EINVAL });
            return -1;
        }
        to.write([0xffff_u16, 0, 0x8123][index as usize].to_be());
    }
    0
}

unsafe extern "C" fn get_pkey_index(context: *mut ibv_context, port: u8, pkey: __be16) -> c_int {
    // SAFETY: the caller passes an open context, as C requires.
    let lies = unsafe { world_of(context) };
    let found = match u16::from_be(pkey) {
        0xffff => 0,
        0x8123 => 2,
        _ => -1,
    };
    if lies.lies.extras != 0 || port != 1 || found < 0 {
        set_errno(if lies.lies.extras != 0 { lies.lies.extras } else { libc::EINVAL });
        return -1;
    }
    found
}

unsafe extern "C" fn get_device_index(_: *mut ibv_device) -> c_int {
    if world().lies.extras != 0 { -1 } else { 7 }
}

unsafe extern "C" fn query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer, as C requires.
    unsafe {
        let lies = &world_of(context).lies;
        if lies.extras != 0 {
            return lies.extras;
        }
        speed.write(if lies.garbage_attributes { u64::MAX } else { 4000 });
    }
    if port == 1 { 0 } else { libc::EINVAL }
}

unsafe extern "C" fn fork_init() -> c_int {
    world().lies.extras
}

unsafe extern "C" fn is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status(if world().lies.garbage_attributes { 4711 } else { 2 })
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, init: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, mask) = unsafe { (world_of(context), (*init).comp_mask) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.check(mask == 0, "a mask names known fields only");
    world.born();
    Box::into_raw(Box::new(ibv_td { context }))
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller passes a live domain, as C requires.
    let world = unsafe { world_of((*td).context) };
    world.goes(td, "thread domain");
    if !world.dies("td") {
        return world.lies.destroy;
    }
    // SAFETY: the domain was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(td) });
    0
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, attr) = unsafe { (world_of(context), attr.read()) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.check(!attr.pd.is_null(), "a parent domain has a domain");
    world.born();
    let pd = Box::into_raw(Box::new(ibv_pd { context, handle: 0 }));
    world.uses(attr.pd, pd);
    if !attr.td.is_null() {
        world.uses(attr.td, pd);
    }
    pd
}

unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the caller passes a live queue pair and a valid GID, as C requires.
    let (world, group) = unsafe { (world_of((*qp).context), (qp.addr(), (*gid).raw, lid)) };
    if world.lies.extras != 0 {
        return world.lies.extras;
    }
    let mut groups = lock(&world.extras.groups);
    world.check(!groups.contains(&group), "a queue pair joins a group once");
    groups.push(group);
    0
}

unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the caller passes a live queue pair and a valid GID, as C requires.
    let (world, group) = unsafe { (world_of((*qp).context), (qp.addr(), (*gid).raw, lid)) };
    let mut groups = lock(&world.extras.groups);
    world.check(groups.contains(&group), "a queue pair leaves a group that it is in");
    if world.lies.destroy != 0 {
        return world.lies.destroy;
    }
    groups.retain(|of| *of != group);
    0
}

unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a live queue pair and a valid pointer, as C requires.
    unsafe {
        let world = world_of((*qp).context);
        ece.write(ibv_ece { vendor_id: 0x1234, options: 0b111, comp_mask: u32::MAX });
        world.lies.extras
    }
}

unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes a live queue pair and valid options, as C requires.
    unsafe {
        let world = world_of((*qp).context);
        world.check((*ece).comp_mask == 0, "a mask names known fields only");
        (*ece).options &= 0b101;
        world.lies.extras
    }
}

unsafe extern "C" fn import_device(descriptor: c_int) -> *mut ibv_context {
    let world = world();
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.check(descriptor >= 0, "a descriptor is open");
    *lock(&world.imported_descriptor) = Some(descriptor);
    // SAFETY: the fake accepts any device pointer.
    unsafe { super::device::open_device(ptr::null_mut()) }
}

unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.born();
    let pd = Box::into_raw(Box::new(ibv_pd { context, handle }));
    lock(&world.extras.imported).push(pd.addr());
    pd
}

unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the caller passes a live domain that nothing else uses, as C requires.
    unsafe {
        let world = world_of((*pd).context);
        world.was_imported(pd, true);
        world.goes(pd, "protection domain");
        world.live.fetch_sub(1, Relaxed);
        drop(Box::from_raw(pd));
    }
}

unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the caller passes a live domain, as C requires.
    let (context, world) = unsafe { ((*pd).context, world_of((*pd).context)) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.born();
    let (lkey, rkey) = (world.number(), world.number());
    let mr = Box::into_raw(Box::new(ibv_mr {
        context,
        pd,
        addr: ptr::null_mut(),
        length: 99,
        handle,
        lkey,
        rkey,
    }));
    world.uses(pd, mr);
    lock(&world.extras.imported).push(mr.addr());
    mr
}

unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller passes a live region that nothing else uses, as C requires.
    unsafe {
        let world = world_of((*mr).context);
        world.was_imported(mr, true);
        world.goes(mr, "memory region");
        world.live.fetch_sub(1, Relaxed);
        drop(Box::from_raw(mr));
    }
}

unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    // SAFETY: the caller passes a live queue pair, and attributes of the size that they state.
    unsafe {
        let (context, world) = ((*qp).context, world_of((*qp).context));
        if let Some(null) = refuses(world.lies.extras) {
            return null;
        }
        let bytes = std::slice::from_raw_parts(attr.cast::<u8>(), (*attr).size.into());
        world.born();
        let flow = Box::into_raw(Box::new(ibv_flow { comp_mask: 0, context, handle: 0 }));
        world.uses(qp, flow);
        let mut at = size_of::<ibv_flow_attr>();
        for _ in 0..(*attr).num_of_specs {
            let spec = bytes[at..].as_ptr();
            let spec_type = spec.cast::<u32>().read_unaligned();
            let size = spec.byte_add(4).cast::<u16>().read_unaligned();
            if spec_type == ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_COUNT.0 {
                let counters = spec.byte_add(8).cast::<*mut ibv_counters>().read_unaligned();
                world.uses(counters, flow);
            }
            at += usize::from(size);
        }
        world.check(at == bytes.len(), "a rule is as long as its parts");
        // The values of pointer bytes differ in each run, so they are compared separately.
        if lock(&world.extras.uses).iter().filter(|(_, by)| *by == flow.addr()).count() == 1 {
            *lock(&world.extras.rule) = bytes.to_vec();
        }
        flow
    }
}

unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: the caller passes a live flow, as C requires.
    let world = unsafe { world_of((*flow).context) };
    if !world.dies("flow") {
        return world.lies.destroy;
    }
    world.goes(flow, "flow");
    // SAFETY: the flow was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(flow) });
    0
}

unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    init: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    // SAFETY: the caller passes an open context and valid attributes, as C requires.
    let (world, mask) = unsafe { (world_of(context), (*init).comp_mask) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.check(mask == 0, "a mask names known fields only");
    world.born();
    Box::into_raw(Box::new(ibv_counters { context }))
}

unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    // SAFETY: the caller passes live counters, as C requires.
    let world = unsafe { world_of((*counters).context) };
    if !world.dies("counters") {
        return world.lies.destroy;
    }
    world.goes(counters, "set of counters");
    // SAFETY: the counters were boxed, and their owner destroys them once.
    drop(unsafe { Box::from_raw(counters) });
    0
}

unsafe extern "C" fn attach_counters(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    _: *mut ibv_flow,
) -> c_int {
    // SAFETY: the caller passes live counters and valid attributes, as C requires.
    unsafe {
        let world = world_of((*counters).context);
        lock(&world.extras.points).push(((*attr).index, (*attr).counter_desc.0));
        world.lies.counters
    }
}

unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    // SAFETY: the caller passes live counters, and an array of this many values.
    unsafe {
        let world = world_of((*counters).context);
        for index in 0..count {
            values.add(index as usize).write(1000 * u64::from(flags) + u64::from(index));
        }
        world.lies.counters
    }
}

/// A completion counter: successes and failures.
#[repr(C)]
struct Cntr {
    c: ibv_comp_cntr,
    values: [u64; 2],
}

unsafe extern "C" fn query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    _: usize,
) -> c_int {
    // SAFETY: the caller passes an open context and a valid pointer, as C requires.
    unsafe {
        caps.write(ibv_comp_cntr_caps { max_value: 99, max_counters: 4, supported_qp_attach_ops: 3 });
        world_of(context).lies.extras
    }
}

unsafe extern "C" fn create_comp_cntr(
    context: *mut ibv_context,
    _: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    if let Some(null) = refuses(world.lies.extras) {
        return null;
    }
    world.born();
    Box::into_raw(Box::new(Cntr { c: ibv_comp_cntr { context, handle: 0 }, values: [0; 2] })).cast()
}

unsafe extern "C" fn destroy_comp_cntr(cntr: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: the caller passes a live counter, as C requires.
    let world = unsafe { world_of((*cntr).context) };
    if !world.dies("comp_cntr") {
        return world.lies.destroy;
    }
    world.goes(cntr, "completion counter");
    // SAFETY: the counter was boxed, and its owner destroys it once.
    drop(unsafe { Box::from_raw(cntr.cast::<Cntr>()) });
    0
}

/// Defines functions that change one of a counter's values.
macro_rules! changes {
    ($($name:ident: $which:literal, |$value:ident, $by:ident| $new:expr;)*) => {$(
        unsafe extern "C" fn $name(cntr: *mut ibv_comp_cntr, $by: u64) -> c_int {
            // SAFETY: the caller passes a live counter, as C requires.
            unsafe {
                let place = &raw mut (*cntr.cast::<Cntr>()).values[$which];
                let $value = place.read();
                let _ = $value;
                place.write($new);
                world_of((*cntr).context).lies.counters
            }
        }
    )*};
}

changes! {
    set_comp_cntr: 0, |value, by| by;
    set_err_comp_cntr: 1, |value, by| by;
    inc_comp_cntr: 0, |value, by| value + by;
    inc_err_comp_cntr: 1, |value, by| value + by;
}

unsafe extern "C" fn read_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller passes a live counter and a valid pointer, as C requires.
    unsafe {
        value.write((*cntr.cast::<Cntr>()).values[0]);
        world_of((*cntr).context).lies.counters
    }
}

unsafe extern "C" fn read_err_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller passes a live counter and a valid pointer, as C requires.
    unsafe {
        value.write((*cntr.cast::<Cntr>()).values[1]);
        world_of((*cntr).context).lies.counters
    }
}

unsafe extern "C" fn attach_comp_cntr(
    qp: *mut ibv_qp,
    cntr: *mut ibv_comp_cntr,
    _: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair and counter, as C requires.
    let world = unsafe { world_of((*qp).context) };
    if world.lies.counters == 0 {
        world.uses(cntr, qp);
    }
    world.lies.counters
}
