//! The attributes of an identifier's queue pair, and the options of its vendor.

use std::io;

use rdma_mummy_sys::types::{ibv_ece, ibv_qp_attr_mask, ibv_qp_state};

use super::identifier::{CallError, Identifier};
use crate::error::Error;
use crate::ibverbs::Unsupported;
use crate::ibverbs::ece::Ece;
use crate::ibverbs::queue_pair::{
    ModifyQueuePairError, QueuePair, QueuePairAttribute, QueuePairAttributeMask, QueuePairState,
    QueuePairType,
};

/// Bits of the mask that are the kernel's own, which some kernels let through, and `ibv_modify_qp` refuses.
const KERNELS_OWN: u32 = ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0 - (ibv_qp_attr_mask::IBV_QP_DEST_QPN.0 << 1);

const _: () = assert!(KERNELS_OWN == 0x01e0_0000);

impl Identifier {
    /// The attributes that bring the identifier's queue pair to a state (`rdma_init_qp_attr`): `Init` once there is a device; `ReadyToReceive`
    /// and `ReadyToSend` with a request, or with the peer's response.
    ///
    /// # Errors
    ///
    /// The identifier has not come that far, or the library is too old ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man rdma_init_qp_attr`
    pub fn get_qp_attr(&self, state: QueuePairState) -> Result<QueuePairAttribute, Error> {
        let mut attribute = QueuePairAttribute::new();
        self.init_qp_attr(state, &mut attribute)?;
        Ok(attribute)
    }

    /// As [`get_qp_attr`](Self::get_qp_attr), into attributes that are there: for those who make many connections, as attributes are as
    /// large as three cache lines. What they were before is forgotten, also where this fails.
    ///
    /// # Errors
    ///
    /// As [`get_qp_attr`](Self::get_qp_attr).
    ///
    /// # References
    ///
    /// `man rdma_init_qp_attr`
    pub fn init_qp_attr(
        &self,
        state: QueuePairState,
        attribute: &mut QueuePairAttribute,
    ) -> Result<(), Error> {
        attribute.mask = QueuePairAttributeMask::empty();
        let init = self.lib().rdma_init_qp_attr();
        let init = init.map_err(|symbol| Unsupported::of_library(ATTRIBUTES, symbol))?;
        attribute.attr.qp_state = ibv_qp_state(state.raw());
        let mut mask = 0;
        let got = self.call_with_device(None, |_, id| {
            // SAFETY: the identifier lives, has a device, and is called for alone; both places are the caller's and this function's own.
            unsafe { init(id, &raw mut attribute.attr, &raw mut mask) }
        });
        if let Err(error) = got {
            return Err(self.no_attribute(state, error));
        }
        attribute.mask = QueuePairAttributeMask::from_bits_retain(mask as u32 & !KERNELS_OWN);
        Ok(())
    }

    /// Why there are no attributes.
    #[cold]
    fn no_attribute(&self, state: QueuePairState, error: CallError) -> Error {
        match error {
            CallError::NoDevice(lacking) => lacking.error("rdma_init_qp_attr"),
            CallError::Rdmacm(source) => Error::of_system("rdma_init_qp_attr", ATTRIBUTES, source)
                .with("queue_pair", state)
                .with("identifier", self.state()),
        }
    }

    /// Brings a queue pair to a state, with [the attributes](Self::get_qp_attr) that the identifier has for it.
    ///
    /// Before `ReadyToReceive` it is brought to `Init` once more, as librdmacm does: what the peer may do in this side's memory is agreed upon
    /// with the request and its answer, so that before them the attributes allow it nothing. Of a datagram pair, the states after `Init` need
    /// nothing of the identifier's.
    ///
    /// # Errors
    ///
    /// There are no attributes for the state, or the pair does not take them.
    pub fn modify_qp<Q: QueuePair>(
        &self,
        qp: &mut Q,
        state: QueuePairState,
    ) -> Result<(), ModifyQueuePairError> {
        let is_datagram = qp.qp_type() == QueuePairType::UnreliableDatagram;
        let attr = if is_datagram && state != QueuePairState::Init {
            let mut attr = QueuePairAttribute::new();
            attr.setup_state(state);
            if state == QueuePairState::ReadyToSend {
                attr.setup_sq_psn(0);
            }
            attr
        } else {
            if state == QueuePairState::ReadyToReceive {
                qp.modify(&self.get_qp_attr(QueuePairState::Init)?)?;
            }
            self.get_qp_attr(state)?
        };
        qp.modify(&attr)
    }

    /// The vendor's options to tell the peer (`rdma_set_local_ece`), before connecting or accepting: see [`ece`](crate::ibverbs::ece).
    /// An answer is of the vendor whom the request named, whatever is said here.
    ///
    /// # Errors
    ///
    /// The library is too old ([`Unsupported`]), or refuses.
    ///
    /// # References
    ///
    /// `man rdma_set_local_ece`
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        let set = self.lib().rdma_set_local_ece();
        let set = set.map_err(|symbol| Unsupported::of_library(ECE, symbol))?;
        let mut raw = ibv_ece { vendor_id: ece.vendor_id, options: ece.options, comp_mask: 0 };
        // SAFETY: the identifier lives, and is called for alone; the options outlive the call.
        let result = self.call(None, |_, id| unsafe { set(id, &raw mut raw) });
        result.map_err(|source| self.ece_error("rdma_set_local_ece", source))
    }

    /// The vendor's options that the peer told (`rdma_get_remote_ece`), with its request or its response: see [`ece`](crate::ibverbs::ece).
    /// All zero if it told none.
    ///
    /// # Errors
    ///
    /// The library is too old ([`Unsupported`]), or refuses.
    ///
    /// # References
    ///
    /// `man rdma_get_remote_ece`
    pub fn get_remote_ece(&self) -> Result<Ece, Error> {
        let get = self.lib().rdma_get_remote_ece();
        let get = get.map_err(|symbol| Unsupported::of_library(ECE, symbol))?;
        let mut raw = ibv_ece::default();
        // SAFETY: the identifier lives, and is called for alone; the place is this function's own.
        let result = self.call(None, |_, id| unsafe { get(id, &raw mut raw) });
        result.map_err(|source| self.ece_error("rdma_get_remote_ece", source))?;
        Ok(Ece { vendor_id: raw.vendor_id, options: raw.options })
    }

    #[cold]
    fn ece_error(&self, call: &'static str, source: io::Error) -> Error {
        Error::of_system(call, ECE, source).with("state", self.state())
    }
}

const ATTRIBUTES: &str = "attributes for queue pairs made elsewhere";
const ECE: &str = "enhanced connection establishment";
