//! Address handles.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sideway::sys::Verbs;
use sideway::sys::types::*;

use super::device::world_of;
use super::{World, refuses};

/// What there is of such objects.
#[derive(Debug, Default)]
pub struct Objects {
    /// The addresses of the address handles that live.
    handles: Mutex<Vec<usize>>,
    /// Where the last datagram went: number and key.
    pub last_datagram: Mutex<Option<(u32, u32)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A datagram is given to the device.
    pub(super) fn goes_to(&self, ah: usize, remote_qpn: u32, remote_qkey: u32) {
        self.check(
            lock(&self.objects.handles).contains(&ah),
            "a datagram goes by an address handle that lives",
        );
        *lock(&self.objects.last_datagram) = Some((remote_qpn, remote_qkey));
    }
}

pub(super) fn add_to(table: Verbs) -> Verbs {
    Verbs {
        ibv_create_ah: create_ah,
        ibv_init_ah_from_wc: init_ah_from_wc,
        ibv_destroy_ah: destroy_ah,
        ..table
    }
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the domain lives and the attributes are valid.
    let (context, world, port) = unsafe { ((*pd).context, world_of((*pd).context), (*attr).port_num) };
    if let Some(null) = refuses(world.lies.create_ah) {
        return null;
    }
    world.born();
    let ah = Box::into_raw(Box::new(ibv_ah { context, pd, handle: u32::from(port) }));
    world.uses(pd, ah);
    lock(&world.objects.handles).push(ah.addr());
    ah
}

unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the context is open and the rest is valid.
    unsafe {
        let world = world_of(context);
        *attr = ibv_ah_attr { port_num: port, dlid: (*wc).slid, sl: (*wc).sl, ..ibv_ah_attr::default() };
        if (*wc).wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0 {
            (*attr).is_global = 1;
            (*attr).grh.dgid = (*grh).sgid;
        }
        world.lies.create_ah
    }
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the handle lives.
    let world = unsafe { world_of((*ah).context) };
    if !world.dies("ah") {
        return world.lies.destroy;
    }
    world.goes(ah, "address handle");
    let mut handles = lock(&world.objects.handles);
    let place = handles.iter().position(|of| *of == ah.addr());
    world.check(place.is_some(), "an address handle is destroyed once");
    if let Some(place) = place {
        handles.swap_remove(place);
    }
    // SAFETY: nothing uses the handle any more.
    drop(unsafe { Box::from_raw(ah) });
    0
}
