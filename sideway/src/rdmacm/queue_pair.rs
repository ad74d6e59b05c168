//! Attributes of an identifier's queue pair, and vendor options (ECE).

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

/// Mask bits that only the kernel uses. Some kernels return them, and `ibv_modify_qp` rejects them.
const KERNELS_OWN: u32 = ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0 - (ibv_qp_attr_mask::IBV_QP_DEST_QPN.0 << 1);

const _: () = assert!(KERNELS_OWN == 0x01e0_0000);

impl Identifier {
    /// The attributes that bring the identifier's queue pair to a state (`rdma_init_qp_attr`). They
    /// are available for `Init` once the identifier has a device; for `ReadyToReceive` and
    /// `ReadyToSend` with a request or the peer's response.
    ///
    /// # Errors
    ///
    /// Fails if the identifier has not come that far, or if the library is too old
    /// ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man rdma_init_qp_attr`
    pub fn get_qp_attr(&self, state: QueuePairState) -> Result<QueuePairAttribute, Error> {
        let mut attribute = QueuePairAttribute::new();
        self.init_qp_attr(state, &mut attribute)?;
        Ok(attribute)
    }

    /// As [`get_qp_attr`](Self::get_qp_attr), but into existing attributes. Attributes take three
    /// cache lines, so this helps programs that make many connections. The previous contents are
    /// lost, even if this fails.
    ///
    /// # Errors
    ///
    /// Fails as [`get_qp_attr`](Self::get_qp_attr) does.
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
            // SAFETY: `call_with_device` passes a live identifier with a device, under its
            // channel's lock. The attributes belong to the caller, and `mask` is a local variable.
            unsafe { init(id, &raw mut attribute.attr, &raw mut mask) }
        });
        if let Err(error) = got {
            return Err(self.no_attribute(state, error));
        }
        attribute.mask = QueuePairAttributeMask::from_bits_retain(mask as u32 & !KERNELS_OWN);
        Ok(())
    }

    /// The error for missing attributes.
    #[cold]
    fn no_attribute(&self, state: QueuePairState, error: CallError) -> Error {
        match error {
            CallError::NoDevice(lacking) => lacking.error("rdma_init_qp_attr"),
            CallError::Rdmacm(source) => Error::of_system("rdma_init_qp_attr", ATTRIBUTES, source)
                .with("queue_pair", state)
                .with("identifier", self.state()),
        }
    }

    /// Brings a queue pair to a state, with the identifier's [attributes](Self::get_qp_attr).
    ///
    /// Before `ReadyToReceive` it brings the pair to `Init` once more, as librdmacm does. The
    /// reason is that the request and its response determine the peer's access to local memory, so
    /// that earlier attributes allow none. For a datagram pair, the states after `Init` need no
    /// attributes of the identifier.
    ///
    /// # Errors
    ///
    /// Fails if the identifier has no attributes for the state, or if the pair rejects them.
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

    /// Sets the vendor options to send to the peer (`rdma_set_local_ece`), before connecting or
    /// accepting: see [`ece`](crate::ibverbs::ece). A response always has the vendor of the
    /// request, whatever is set here.
    ///
    /// # Errors
    ///
    /// Fails if the library is too old ([`Unsupported`]) or rejects the request.
    ///
    /// # References
    ///
    /// `man rdma_set_local_ece`
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        let set = self.lib().rdma_set_local_ece();
        let set = set.map_err(|symbol| Unsupported::of_library(ECE, symbol))?;
        let mut raw = ibv_ece { vendor_id: ece.vendor_id, options: ece.options, comp_mask: 0 };
        // SAFETY: `call` passes a live identifier, under its channel's lock; the options outlive
        // the call.
        let result = self.call(None, |_, id| unsafe { set(id, &raw mut raw) });
        result.map_err(|source| self.ece_error("rdma_set_local_ece", source))
    }

    /// The vendor options of the peer's request or response (`rdma_get_remote_ece`): see
    /// [`ece`](crate::ibverbs::ece). All zero if it sent none.
    ///
    /// # Errors
    ///
    /// Fails if the library is too old ([`Unsupported`]) or rejects the request.
    ///
    /// # References
    ///
    /// `man rdma_get_remote_ece`
    pub fn get_remote_ece(&self) -> Result<Ece, Error> {
        let get = self.lib().rdma_get_remote_ece();
        let get = get.map_err(|symbol| Unsupported::of_library(ECE, symbol))?;
        let mut raw = ibv_ece::default();
        // SAFETY: `call` passes a live identifier, under its channel's lock; the result is a local
        // variable.
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
