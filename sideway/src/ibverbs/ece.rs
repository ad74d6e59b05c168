//! Enhanced connection establishment (ECE): what two ends of one vendor agree on beyond the specification.
//!
//! Before the queue pairs are connected, one end tells its [options](QueuePairControl::query_ece) to the other, which
//! [sets](QueuePairControl::set_ece) them on its own pair; what it accepted goes back, and is set at the first end. From then on
//! both ends have the same options, which take effect as the pairs are modified towards ready-to-send.
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

/// Options of a vendor (`ibv_ece`). They mean nothing to another vendor's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor's identifier on the network.
    pub vendor_id: u32,
    /// The vendor's own bits.
    pub options: u32,
}

impl QueuePairControl {
    /// The options that the pair has (`ibv_query_ece`): at first those that its device supports.
    ///
    /// # Errors
    ///
    /// The device has no options ([`Unsupported`]), or does not answer.
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
        // SAFETY: the queue pair lives, its control is locked, and `ece` is a valid place.
        let result = check(unsafe { query(self.as_raw().as_ptr(), &raw mut ece) });
        result.map_err(|source| {
            Error::of_device(self.context(), "ibv_query_ece", WHAT, source).of_queue_pair(self.qp_number())
        })?;
        Ok(Ece { vendor_id: ece.vendor_id, options: ece.options })
    }

    /// Wishes for these options, and says which of them were accepted (`ibv_set_ece`).
    ///
    /// # Errors
    ///
    /// The device has no options ([`Unsupported`]), or these are not its vendor's, or make no sense to it in this state.
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
        // SAFETY: the queue pair lives, its control is locked, and `ece` is valid.
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
