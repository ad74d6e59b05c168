//! Address handles: the destination of a datagram.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_ah, ibv_ah_attr, ibv_gid};

use super::c_object::CObject;
use super::context::{Context, CountGuard};
use super::protection_domain::Pd;
use super::use_ref::UseRef;

/// An address handle (`ibv_ah`).
#[derive(Debug)]
pub(crate) struct AddressHandle {
    counted: CountGuard,
    pd: UseRef<Pd>,
    dgid: [u8; 16],
    attributes: Address,
}

/// The plain fields of `ibv_ah_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) sgid_index: u8,
    pub(crate) port: u8,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
}

/// Checks that this device can use a route, for address handles and connected queue pairs.
///
/// # Errors
///
/// `EINVAL` if it has no GRH, or if the local port or GID index does not exist.
pub(crate) fn check_route(context: &Context, attributes: &ibv_ah_attr) -> Result<Address, c_int> {
    let grh = &attributes.grh;
    let port = context.device().port(attributes.port_num.into()).ok_or(libc::EINVAL)?;
    // RoCE has no addresses other than GIDs.
    if attributes.is_global == 0 || port.gid(grh.sgid_index.into()).is_none() {
        return Err(libc::EINVAL);
    }
    Ok(Address {
        sgid_index: grh.sgid_index,
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
        let dgid = gid_bytes(attributes.grh.dgid);
        Ok(Self { counted, pd: UseRef::new(pd), dgid, attributes: address })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    /// The number of its protection domain.
    pub(crate) fn pd(&self) -> u32 {
        self.pd.number()
    }

    pub(crate) fn dgid(&self) -> [u8; 16] {
        self.dgid
    }

    pub(crate) fn address(&self) -> Address {
        self.attributes
    }

    /// The GID that datagrams carry as their source.
    pub(crate) fn sgid(&self) -> [u8; 16] {
        let device = self.counted.context().device();
        let port = device.port(self.attributes.port.into());
        port.and_then(|port| port.gid(self.attributes.sgid_index.into())).map_or([0; 16], |gid| gid.raw)
    }
}
