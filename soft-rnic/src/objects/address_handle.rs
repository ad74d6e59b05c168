//! Address handles: the destination of a datagram.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_ah, ibv_ah_attr, ibv_gid};

use super::c_object::CObject;
use super::context::{Context, CountGuard};
use super::device::Device;
use super::lid;
use super::protection_domain::Pd;
use super::use_ref::UseRef;

/// An address handle (`ibv_ah`).
#[derive(Debug)]
pub(crate) struct AddressHandle {
    counted: CountGuard,
    pd: UseRef<Pd>,
    route: Route,
    attributes: Address,
}

/// The plain fields of `ibv_ah_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) port: u8,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
}

/// The two ends of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
    /// The LID of the destination; `None` on Ethernet.
    pub(crate) dest_lid: Option<u16>,
    /// Whether packets carry the GIDs.
    pub(crate) has_grh: bool,
}

impl Route {
    /// The route that attributes describe. Without a global route, which InfiniBand alone permits,
    /// the first GIDs of the two ports stand for their LIDs.
    pub(crate) fn of(device: &Device, attributes: &ibv_ah_attr) -> Self {
        let (grh, has_grh) = (&attributes.grh, attributes.is_global != 0);
        let port = device.port(attributes.port_num.into());
        let dest_lid = device.is_infiniband().then_some(attributes.dlid);
        if !has_grh && device.is_infiniband() {
            let of_lid = |lid| lid::first_gid(lid).unwrap_or_default();
            let source = of_lid(port.map_or(0, |port| port.lid));
            return Self { source, destination: of_lid(attributes.dlid), dest_lid, has_grh };
        }
        let source = port.and_then(|port| port.gid(grh.sgid_index.into())).map_or([0; 16], |gid| gid.raw);
        Self { source, destination: gid_bytes(grh.dgid), dest_lid, has_grh }
    }
}

/// Checks that this device can use a route, for address handles and connected queue pairs.
///
/// # Errors
///
/// `EINVAL` if it has no GRH on Ethernet, or if the local port or GID index does not exist.
pub(crate) fn check_route(context: &Context, attributes: &ibv_ah_attr) -> Result<Address, c_int> {
    let grh = &attributes.grh;
    let port = context.device().port(attributes.port_num.into()).ok_or(libc::EINVAL)?;
    let has_grh = attributes.is_global != 0;
    // RoCE has no addresses other than GIDs.
    if !has_grh && !context.device().is_infiniband() {
        return Err(libc::EINVAL);
    }
    if has_grh && port.gid(grh.sgid_index.into()).is_none() {
        return Err(libc::EINVAL);
    }
    Ok(Address {
        port: port.number,
        service_level: attributes.sl,
        traffic_class: grh.traffic_class,
        hop_limit: grh.hop_limit,
        flow_label: grh.flow_label & 0xf_ffff,
    })
}

pub(crate) fn gid_bytes(gid: ibv_gid) -> [u8; 16] {
    // SAFETY: both members of the union are the same sixteen bytes, of any value.
    unsafe { gid.raw }
}

pub(crate) type AhObject = CObject<ibv_ah, AddressHandle>;

/// The address handle of a pointer.
///
/// # Safety
///
/// - `ah` is live while the reference is used.
#[inline]
pub(crate) unsafe fn ah_of<'a>(ah: *mut ibv_ah) -> &'a AddressHandle {
    // SAFETY: every address handle of this crate is an `AhObject`, and the caller guarantees that
    // `ah` is live.
    unsafe { AhObject::state(ah) }
}

impl AddressHandle {
    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// As [`check_route`] and [`Context::count`].
    pub(crate) fn new(pd: &Arc<Pd>, attributes: &ibv_ah_attr) -> Result<Self, c_int> {
        let context = pd.context();
        let address = check_route(context, attributes)?;
        let counted = context.count(|counts| &counts.ah, context.rnic().limits().max_ah)?;
        let route = Route::of(context.device(), attributes);
        Ok(Self { counted, pd: UseRef::new(pd), route, attributes: address })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    /// The number of its protection domain.
    pub(crate) fn pd(&self) -> u32 {
        self.pd.number()
    }

    pub(crate) fn route(&self) -> Route {
        self.route
    }

    pub(crate) fn address(&self) -> Address {
        self.attributes
    }
}
