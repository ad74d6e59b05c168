//! The status, operation and flags of work completions.

use std::fmt;

use rdma_mummy_sys::types::{ibv_wc_flags as F, ibv_wc_opcode as O, ibv_wc_status as S};

c_enum! {
    /// How a work request ended (`ibv_wc_status`).
    pub struct WorkCompletionStatus(u32) {
        /// The request succeeded.
        Success = S::IBV_WC_SUCCESS.0,
        /// A local buffer is too short for the data.
        LocalLengthError = S::IBV_WC_LOC_LEN_ERR.0,
        /// The queue pair cannot execute the request.
        LocalQueuePairOperationError = S::IBV_WC_LOC_QP_OP_ERR.0,
        /// The end-to-end context cannot execute the request.
        LocalEndToEndContextOperationError = S::IBV_WC_LOC_EEC_OP_ERR.0,
        /// A local key does not allow the access, or does not cover the buffer.
        LocalProtectionError = S::IBV_WC_LOC_PROT_ERR.0,
        /// The request was still queued when the queue pair went to the error state.
        WorkRequestFlushedError = S::IBV_WC_WR_FLUSH_ERR.0,
        /// Binding a memory window failed.
        MemoryWindowBindError = S::IBV_WC_MW_BIND_ERR.0,
        /// The peer sent an unexpected response.
        BadResponseError = S::IBV_WC_BAD_RESP_ERR.0,
        /// A peer's access to local memory failed.
        LocalAccessError = S::IBV_WC_LOC_ACCESS_ERR.0,
        /// The peer rejected the request as invalid.
        RemoteInvalidRequestError = S::IBV_WC_REM_INV_REQ_ERR.0,
        /// The peer rejected the access: its key does not allow it, or does not cover the address.
        RemoteAccessError = S::IBV_WC_REM_ACCESS_ERR.0,
        /// The peer could not execute the request.
        RemoteOperationError = S::IBV_WC_REM_OP_ERR.0,
        /// The peer did not acknowledge within the retries.
        TransportRetryCounterExceeded = S::IBV_WC_RETRY_EXC_ERR.0,
        /// The peer posted no receive buffer within the RNR retries.
        ResponderNotReadyRetryCounterExceeded = S::IBV_WC_RNR_RETRY_EXC_ERR.0,
        /// The reliable datagram domain does not match.
        LocalRddViolationError = S::IBV_WC_LOC_RDD_VIOL_ERR.0,
        /// The peer rejected the reliable datagram request as invalid.
        RemoteInvalidRdRequest = S::IBV_WC_REM_INV_RD_REQ_ERR.0,
        /// The peer aborted the operation.
        RemoteAbortedError = S::IBV_WC_REM_ABORT_ERR.0,
        /// The end-to-end context does not exist.
        InvalidEndToEndContextNumber = S::IBV_WC_INV_EECN_ERR.0,
        /// The end-to-end context is in the wrong state.
        InvalidEndToEndContextState = S::IBV_WC_INV_EEC_STATE_ERR.0,
        /// The device failed.
        FatalError = S::IBV_WC_FATAL_ERR.0,
        /// The peer did not respond in time.
        ResponseTimeoutError = S::IBV_WC_RESP_TIMEOUT_ERR.0,
        /// An error that no other status describes.
        GeneralError = S::IBV_WC_GENERAL_ERR.0,
        /// Tag matching failed.
        TagMatchingError = S::IBV_WC_TM_ERR.0,
        /// Tag matching: a message came in unexpectedly and its rendezvous did not complete.
        TagMatchingRendezvousIncomplete = S::IBV_WC_TM_RNDV_INCOMPLETE.0,
    }
}

impl WorkCompletionStatus {
    /// The usual cause and what to check; `None` for success and for unknown values. The queue pair's
    /// [`hint`](crate::ibverbs::queue_pair::QueuePairControl::hint) knows the device, and says more.
    pub const fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::LocalLengthError => {
                "a message was longer than the receive buffer, or longer than the port's largest message, or \
                 the local buffer of an atomic does not have exactly 8 bytes"
            }
            Self::LocalQueuePairOperationError => {
                "the queue pair cannot do this operation: wrong type, too many scatter/gather entries, an \
                 atomic or READ beyond what max_rd_atomic allows, or an atomic whose result does not get \
                 exactly 8 bytes"
            }
            Self::LocalProtectionError => {
                "wrong lkey, a buffer outside of its memory region, a region of another protection domain, or \
                 a region without LocalWrite that is received into"
            }
            Self::WorkRequestFlushedError => {
                "the queue pair went to the error state: look at the first completion that failed, on either side"
            }
            Self::BadResponseError => {
                "the peer answered with an unexpected operation: mismatched queue pairs"
            }
            Self::LocalAccessError => "a peer's request touched memory that its key does not cover",
            Self::RemoteInvalidRequestError => {
                "the peer's queue pair does not take this operation: its access flags, its max_dest_rd_atomic, \
                 an atomic at an address that is no multiple of 8, or a message longer than its receive buffer"
            }
            Self::RemoteAccessError => {
                "wrong rkey or remote address, beyond the peer's region, or a region without the remote \
                 permission: exchange rkey() (not lkey()) and the region's address again. For an atomic: the \
                 peer's queue pair needs RemoteAtomic in its access flags, which ConnectOptions::default() \
                 lacks (`access_flags`), and so does its region; the remote address must be a multiple of 8"
            }
            Self::RemoteOperationError => {
                "the peer failed while it executed the request: look at its completions"
            }
            Self::TransportRetryCounterExceeded => {
                "the peer does not acknowledge: its queue pair is not in RTR or gone, wrong queue pair number, \
                 GID index or LID, GIDs of different types (RoCE v1 and v2), no route, a firewall on UDP port \
                 4791, an MTU beyond the path's, or packets lost under load, as without flow control (PFC). Over a \
                 software device: the peer's process is stopped or has ended, or it has another user, \
                 SOFT_RNIC_FABRIC or network namespace"
            }
            Self::ResponderNotReadyRetryCounterExceeded => {
                "the peer has no receive posted: post receives before the sender starts, or raise rnr_retry"
            }
            Self::RemoteAbortedError => "the peer's queue pair was destroyed or reset during the operation",
            Self::FatalError => "the device failed: look at the kernel log",
            Self::ResponseTimeoutError => "the peer is too slow or gone: raise the queue pair's timeout",
            Self::GeneralError => "the device gives no reason: see the vendor error",
            _ => return None,
        })
    }
}

impl fmt::Display for WorkCompletionStatus {
    /// Prints the name in words: `success`, `remote access error`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(&in_words(name)),
            None => f.pad(&format!("unknown status {}", self.raw())),
        }
    }
}

c_enum! {
    /// The kind of work request that ended (`ibv_wc_opcode`).
    pub struct WorkCompletionOperationType(u32) {
        /// A SEND of any kind (`IBV_WC_SEND`).
        Send = O::IBV_WC_SEND.0,
        /// An RDMA WRITE, with immediate data or without (`IBV_WC_RDMA_WRITE`).
        RdmaWrite = O::IBV_WC_RDMA_WRITE.0,
        /// An RDMA READ: the data is in local memory (`IBV_WC_RDMA_READ`).
        RdmaRead = O::IBV_WC_RDMA_READ.0,
        /// A compare-and-swap: the old value is in local memory (`IBV_WC_COMP_SWAP`).
        CompareAndSwap = O::IBV_WC_COMP_SWAP.0,
        /// A fetch-and-add: the old value is in local memory (`IBV_WC_FETCH_ADD`).
        FetchAndAdd = O::IBV_WC_FETCH_ADD.0,
        /// A memory window was bound (`IBV_WC_BIND_MW`).
        BindMemoryWindow = O::IBV_WC_BIND_MW.0,
        /// An invalidation of a local key.
        LocalInvalidate = O::IBV_WC_LOCAL_INV.0,
        /// A segmented TCP send.
        TcpSegmentationOffload = O::IBV_WC_TSO.0,
        /// An RDMA FLUSH of earlier writes (`IBV_WC_FLUSH`).
        Flush = O::IBV_WC_FLUSH.0,
        /// An RDMA ATOMIC WRITE of 8 bytes (`IBV_WC_ATOMIC_WRITE`).
        AtomicWrite = O::IBV_WC_ATOMIC_WRITE.0,
        /// A message was received.
        Receive = O::IBV_WC_RECV.0,
        /// A peer's RDMA WRITE with immediate data arrived.
        ReceiveWithImmediate = O::IBV_WC_RECV_RDMA_WITH_IMM.0,
        /// The first of the driver's own requests. On mlx5, a memory key was configured
        /// (`mlx5::MKeyConfiguration`).
        Driver1 = O::IBV_WC_DRIVER1.0,
        /// The second of the driver's own requests. On mlx5, a request in the device's own format.
        Driver2 = O::IBV_WC_DRIVER2.0,
        /// The third of the driver's own requests. On mlx5, the device copied memory.
        Driver3 = O::IBV_WC_DRIVER3.0,
        /// Not known: after an error, a device reports only the request's number and the status.
        NotTold = u32::MAX,
    }
}

impl fmt::Display for WorkCompletionOperationType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(&in_words(name)),
            None => f.pad(&format!("unknown opcode {}", self.raw())),
        }
    }
}

into_integer!(WorkCompletionStatus => u32, WorkCompletionOperationType => u32);

c_flags! {
    /// Optional parts of a completion (`ibv_wc_flags`).
    pub struct WorkCompletionFlags(u32) {
        /// A global routing header (UD: in the first 40 bytes of the buffer).
        Grh = F::IBV_WC_GRH.0,
        /// Immediate data.
        WithImmediate = F::IBV_WC_WITH_IMM.0,
        /// The device verified the checksum of the IP packet.
        IpChecksumOk = F::IBV_WC_IP_CSUM_OK.0,
        /// The peer's message invalidated a local key.
        WithInvalidate = F::IBV_WC_WITH_INV.0,
    }
}

/// The tag by which a message was matched, and the user's data (`ibv_wc_tm_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TagMatchingInfo {
    /// The tag in the message's header.
    pub tag: u64,
    /// The user's data in the message's header.
    pub private: u32,
}

/// Converts `RemoteAccessError` into `remote access error`.
fn in_words(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 8);
    for (n, c) in name.char_indices() {
        if c.is_uppercase() && n > 0 {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_in_words_whether_known_or_not() {
        assert_eq!(WorkCompletionStatus::Success.to_string(), "success");
        assert_eq!(WorkCompletionStatus::RemoteAccessError.to_string(), "remote access error");
        assert_eq!(WorkCompletionStatus::from_raw(4711).to_string(), "unknown status 4711");
        assert_eq!(format!("{:?}", WorkCompletionStatus::from_raw(4711)), "Unknown(4711)");
        assert_eq!(WorkCompletionOperationType::RdmaWrite.to_string(), "rdma write");
        assert_eq!(format!("{:?}", WorkCompletionFlags::WithImmediate), "WorkCompletionFlags[WithImmediate]");
        assert_eq!(
            format!("{:?}", WorkCompletionFlags::from_bits_retain(1 << 20 | 1)),
            "WorkCompletionFlags[Grh, 0x100000]"
        );
    }

    #[test]
    fn atomics_are_explained_by_each_status_that_they_end_with() {
        use WorkCompletionStatus as W;
        let says = |status: W, words: &[&str]| {
            let hint = status.hint().unwrap();
            words.iter().for_each(|word| assert!(hint.contains(word), "{status}: {word}: {hint}"));
        };
        says(W::RemoteAccessError, &["ConnectOptions::default() lacks", "RemoteAtomic", "multiple of 8"]);
        says(W::RemoteInvalidRequestError, &["atomic", "multiple of 8", "access flags"]);
        says(W::LocalQueuePairOperationError, &["exactly 8 bytes"]);
        says(W::LocalLengthError, &["exactly 8 bytes"]);
    }

    #[test]
    fn every_error_has_a_hint_but_the_obsolete_and_the_optional_ones() {
        use WorkCompletionStatus as W;
        // Statuses without a hint: end-to-end contexts, reliable datagrams, memory windows and tag
        // matching.
        let without = [
            W::Success,
            W::LocalEndToEndContextOperationError,
            W::MemoryWindowBindError,
            W::LocalRddViolationError,
            W::RemoteInvalidRdRequest,
            W::InvalidEndToEndContextNumber,
            W::InvalidEndToEndContextState,
            W::TagMatchingError,
            W::TagMatchingRendezvousIncomplete,
        ];
        let known: Vec<W> = (0..100).map(W::from_raw).filter(|status| status.name().is_some()).collect();
        assert_eq!(known.len(), 24);
        for status in known {
            assert_eq!(status.hint().is_none(), without.contains(&status), "{status}");
        }
    }
}
