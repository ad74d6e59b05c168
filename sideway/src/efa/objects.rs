//! EFA's attributes of address handles and memory regions.

use rdma_mummy_sys::types::{
    EFADV_MR_ATTR_VALIDITY_RDMA_READ_IC_ID, EFADV_MR_ATTR_VALIDITY_RDMA_RECV_IC_ID,
    EFADV_MR_ATTR_VALIDITY_RECV_IC_ID, efadv_ah_attr, efadv_mr_attr,
};

use super::DirectVerbs;
use crate::direct::check;
use crate::error::Error;
use crate::ibverbs::Unsupported;
use crate::ibverbs::address_handle::AddressHandle;
use crate::ibverbs::memory_region::MemoryRegion;

/// The physical interconnects by which the device reaches a memory region (`efadv_mr_attr`); `None`
/// if it does not report one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterconnectIds {
    /// The interconnect for receives into it.
    pub recv: Option<u16>,
    /// The interconnect for READs into it.
    pub rdma_read: Option<u16>,
    /// The interconnect for peers' WRITEs to it.
    pub rdma_recv: Option<u16>,
}

impl DirectVerbs {
    /// The device's number of an address handle (`efadv_query_ah`).
    ///
    /// # Errors
    ///
    /// Fails if the handle belongs to another context, if the library is too old ([`Unsupported`]),
    /// or if it does not answer.
    ///
    /// # References
    ///
    /// `man efadv_query_ah`
    pub fn query_ah(&self, ah: &AddressHandle) -> Result<u16, Error> {
        const WHAT: &str = "numbers of address handles";
        if ah.pd().context() != self.context() {
            return Err(Error::other_context(
                "efadv_query_ah",
                "the address handle belongs to another context than the direct verbs",
            ));
        }
        let query = self.as_raw().efadv_query_ah();
        let query = query.map_err(|symbol| Unsupported::missing(self.context(), WHAT, symbol))?;
        let mut attr = efadv_ah_attr::default();
        // SAFETY: the borrow keeps the handle alive, which belongs to EFA; `attr` has the size that
        // is passed.
        let result = unsafe { query(ah.as_raw().as_ptr(), &raw mut attr, size_of_val(&attr) as u32) };
        check(result).map_err(|source| Error::of_device(self.context(), "efadv_query_ah", WHAT, source))?;
        Ok(attr.ahn)
    }

    /// The interconnects by which the device reaches a memory region (`efadv_query_mr`).
    ///
    /// # Errors
    ///
    /// Fails if the region belongs to another context, if the library is too old ([`Unsupported`]),
    /// or if it does not answer.
    ///
    /// # References
    ///
    /// `man efadv_query_mr`
    pub fn query_mr(&self, mr: &MemoryRegion) -> Result<InterconnectIds, Error> {
        const WHAT: &str = "interconnects of memory regions";
        if mr.pd().context() != self.context() {
            return Err(Error::other_context(
                "efadv_query_mr",
                "the memory region belongs to another context than the direct verbs",
            ));
        }
        let query = self.as_raw().efadv_query_mr();
        let query = query.map_err(|symbol| Unsupported::missing(self.context(), WHAT, symbol))?;
        let mut attr = efadv_mr_attr::default();
        // SAFETY: the borrow keeps the region alive, which belongs to EFA; `attr` has the size that
        // is passed.
        let result = unsafe { query(mr.as_raw().as_ptr(), &raw mut attr, size_of_val(&attr) as u32) };
        check(result).map_err(|source| Error::of_device(self.context(), "efadv_query_mr", WHAT, source))?;
        let told = |mask, id| (u32::from(attr.ic_id_validity) & mask != 0).then_some(id);
        Ok(InterconnectIds {
            recv: told(EFADV_MR_ATTR_VALIDITY_RECV_IC_ID, attr.recv_ic_id),
            rdma_read: told(EFADV_MR_ATTR_VALIDITY_RDMA_READ_IC_ID, attr.rdma_read_ic_id),
            rdma_recv: told(EFADV_MR_ATTR_VALIDITY_RDMA_RECV_IC_ID, attr.rdma_recv_ic_id),
        })
    }
}
