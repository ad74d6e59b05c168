//! Write order: whether the bytes of a message appear in memory in order
//! (`ibv_query_qp_data_in_order`).

use rdma_mummy_sys::types::{
    ibv_query_qp_data_in_order_caps as Caps, ibv_query_qp_data_in_order_flags as Flags, ibv_wr_opcode,
};

use super::Unsupported;
use super::queue_pair::{QueuePairControl, WorkRequestOperationType};

c_flags! {
    /// What a device guarantees about the order of a message's bytes
    /// (`ibv_query_qp_data_in_order_caps`).
    pub struct DataInOrder(u32) {
        /// All bytes of a message are written in order: when the last byte is visible, all are.
        WholeMessage = Caps::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG.0,
        /// Within each aligned block of 128 bytes, the bytes are written in order.
        Aligned128Bytes = Caps::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES.0,
    }
}

c_flags! {
    /// The components that the guarantee must cover (`ibv_query_qp_data_in_order_flags`).
    pub struct DataInOrderQuery(u32) {
        /// The device only, without this host's processors. Use it for memory that is not this
        /// host's.
        DeviceOnly = Flags::IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY.0,
    }
}

impl QueuePairControl {
    /// Queries the order in which the bytes of one message appear in this host's memory
    /// (`ibv_query_qp_data_in_order`).
    ///
    /// This applies to READs that the pair posts, and to WRITEs and SENDs that it receives. With
    /// [`DataInOrder::WholeMessage`], a program may wait for the last byte instead of a completion.
    /// The result says nothing about the order of two messages. A library that does not know a flag
    /// guarantees nothing.
    ///
    /// # Errors
    ///
    /// Fails if the library is older than rdma-core 36 ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_query_qp_data_in_order`
    pub fn query_data_in_order(
        &self,
        operation: WorkRequestOperationType,
        query: DataInOrderQuery,
    ) -> Result<DataInOrder, Unsupported> {
        const ALL: u32 = Flags::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS.0;
        let function = self.context().provider().verbs().ibv_query_qp_data_in_order();
        let function = function
            .map_err(|symbol| Unsupported::missing(self.context(), "knowledge of data in order", symbol))?;
        let _control = self.lock();
        let ask = |flags| {
            let operation = ibv_wr_opcode(operation.raw());
            // SAFETY: `self` keeps the queue pair alive, and its control is locked.
            let answer = unsafe { function(self.as_raw().as_ptr(), operation, flags) };
            // The manual page documents no failure; a negative answer counts as no guarantee.
            u32::try_from(answer).unwrap_or(0)
        };
        let mut found = ask(query.bits() | ALL);
        if found == 0 && query.is_empty() && ask(0) == 1 {
            // A library older than the flags returns 1 for the whole message.
            found = DataInOrder::WholeMessage.bits();
        }
        Ok(DataInOrder::from_bits_retain(found))
    }
}
