//! Enhanced connection establishment (ECE): vendor-specific options that both ends of a connection
//! agree on.
//!
//! Before the queue pairs are connected, one end sends its [options](QueuePairControl::query_ece)
//! to the other. That end [sets](QueuePairControl::set_ece) them on its own pair, and sends back
//! the accepted ones, which the first end sets. Then both ends have the same options, which take
//! effect as the pairs are modified towards ready-to-send.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! use sideway::ibverbs::queue_pair::QueuePair;
//!
//! let cq = context.create_cq_builder().build_generic()?;
//! let mut builder = context.alloc_pd()?.create_qp_builder();
//! builder.setup_send_cq(&cq).setup_recv_cq(&cq);
//! let (here, there) = (builder.build_generic()?, builder.build_generic()?);
//! let wanted = here.control().query_ece()?;
//! let accepted = there.control().set_ece(wanted)?;
//! here.control().set_ece(accepted)?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use rdma_mummy_sys::types::ibv_ece;

use super::queue_pair::QueuePairControl;
use super::{Unsupported, check};
use crate::error::Error;

/// Options of a vendor (`ibv_ece`). They have no meaning for another vendor's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor ID that is exchanged between both ends.
    pub vendor_id: u32,
    /// Vendor-specific bits.
    pub options: u32,
}

impl QueuePairControl {
    /// Queries the pair's options (`ibv_query_ece`). At first these are all that its device
    /// supports.
    ///
    /// # Errors
    ///
    /// Fails if the device has no options ([`Unsupported`]), or does not answer.
    ///
    /// # References
    ///
    /// `man ibv_query_ece`
    pub fn query_ece(&self) -> Result<Ece, Error> {
        const WHAT: &str = "enhanced connection establishment";
        let query = self.context().provider().verbs().ibv_query_ece();
        let query = query.map_err(|symbol| Unsupported::missing(self.context(), WHAT, symbol))?;
        let mut ece = ibv_ece::default();
        let _control = self.lock();
        // SAFETY: `self` keeps the queue pair alive, its control is locked, and `ece` is a local
        // variable.
        let result = check(unsafe { query(self.as_raw().as_ptr(), &raw mut ece) });
        result.map_err(|source| {
            Error::of_device(self.context(), "ibv_query_ece", WHAT, source).of_queue_pair(self.qp_number())
        })?;
        Ok(Ece { vendor_id: ece.vendor_id, options: ece.options })
    }

    /// Requests options, and returns those that the device accepted (`ibv_set_ece`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no options ([`Unsupported`]). Also fails if the options are of
    /// another vendor, or if they are not allowed in the pair's state.
    ///
    /// # References
    ///
    /// `man ibv_set_ece`
    pub fn set_ece(&self, wanted: Ece) -> Result<Ece, Error> {
        const WHAT: &str = "enhanced connection establishment";
        let set = self.context().provider().verbs().ibv_set_ece();
        let set = set.map_err(|symbol| Unsupported::missing(self.context(), WHAT, symbol))?;
        let mut ece = ibv_ece { vendor_id: wanted.vendor_id, options: wanted.options, comp_mask: 0 };
        let _control = self.lock();
        // SAFETY: `self` keeps the queue pair alive, its control is locked, and `ece` is
        // initialised.
        let result = check(unsafe { set(self.as_raw().as_ptr(), &raw mut ece) });
        result.map_err(|source| {
            Error::of_device(self.context(), "ibv_set_ece", WHAT, source)
                .of_queue_pair(self.qp_number())
                .with("vendor_id", format_args!("{:#x}", wanted.vendor_id))
                .with("options", format_args!("{:#x}", wanted.options))
        })?;
        Ok(Ece { vendor_id: ece.vendor_id, options: ece.options })
    }
}
