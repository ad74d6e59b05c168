//! Atomics: compare and swap, fetch and add, and atomic write.

use rdma_mummy_sys::types::{ibv_access_flags, ibv_wr_opcode};

use super::TransferCtx;
use super::connected::{Nak, TransferError};
use super::payload::{LocalPiece, RemotePlace};
use super::rpc::{RpcOperation, atomic_by_rpc};
use crate::faults::Step;
use crate::faults::injected::reach;
use crate::node::PayloadPath;
use crate::platform::copy;
use crate::queue_pair::Qp;
use crate::queue_pair::post::VALUE_GIVEN;
use crate::queue_pair::send_queue::PostedSend;

impl Qp {
    pub(super) fn atomic(&self, posted: &PostedSend<'_>, ctx: TransferCtx<'_>) -> Result<(), TransferError> {
        let peer = ctx.peer;
        let request = posted.request;
        if peer.descriptor.max_dest_rd_atomic == 0 || !request.remote_addr.is_multiple_of(8) {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)?;
        reach(Step::BeforeCopy);
        let swaps = request.opcode == ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        let [first, second] = request.operands;
        let (before, path) = match remote.place {
            RemotePlace::Mapped(at) if at.addr().is_multiple_of(8) => {
                // SAFETY: eight aligned bytes of the region. The hazards are set and `revalidate`
                // has compared the snapshots.
                let before = unsafe {
                    if swaps {
                        copy::compare_and_swap(at.cast(), first, second)
                    } else {
                        copy::fetch_and_add(at.cast(), first)
                    }
                };
                (before, ctx.mapped())
            }
            RemotePlace::Mapped(_) => return Err(TransferError::Nak(Nak::InvalidRequest)),
            // The kernel has no atomic operation on another process's memory. The owner executes
            // it, so that all of them are atomic to each other. It refuses implicit regions, whose
            // memory only the kernel may touch.
            _ if ctx.peer.process.is_own() => return Err(TransferError::Nak(Nak::RemoteOperation)),
            _ => {
                let operation = if swaps { RpcOperation::CompareSwap } else { RpcOperation::FetchAdd };
                let before = atomic_by_rpc(ctx, &remote, operation, request.operands);
                (before?, PayloadPath::Call)
            }
        };
        ctx.count(path, 8);
        let mut before = before.to_ne_bytes();
        let from = (&raw mut before).cast::<u8>();
        let mut offset = 0;
        for piece in &ctx.gather_list.pieces {
            let len = piece.len.min(8 - offset);
            let from = from.wrapping_add(offset);
            // SAFETY: local pieces of eight bytes in total, whose keys allow writing (`gather`).
            // The hazards are set and a full fence has followed.
            unsafe { LocalPiece { at: piece.at, len }.write(ctx.gather_list.by_system, from)? };
            offset += len;
        }
        Ok(())
    }

    /// Executes an ATOMIC WRITE: no reader sees a part of the eight bytes.
    pub(super) fn atomic_write(
        &self,
        posted: &PostedSend<'_>,
        ctx: TransferCtx<'_>,
    ) -> Result<(), TransferError> {
        let request = posted.request;
        if ctx.peer.descriptor.max_dest_rd_atomic == 0 || !request.remote_addr.is_multiple_of(8) {
            return Err(TransferError::Nak(Nak::InvalidRequest));
        }
        let remote = self.validate_remote(posted, ctx, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        reach(Step::BeforeCopy);
        let value = match request.operands {
            [value, VALUE_GIVEN] => value,
            _ => {
                let mut value = [0; 8];
                // SAFETY: local pieces of eight bytes in total (`check_requester`). The hazards are
                // set and a full fence has followed.
                unsafe { ctx.gather_list.read_all(value.as_mut_ptr())? };
                u64::from_ne_bytes(value)
            }
        };
        let path = match remote.place {
            RemotePlace::Mapped(at) if at.addr().is_multiple_of(8) => {
                // SAFETY: eight aligned bytes of the region. The hazards are set and `revalidate`
                // has compared the snapshots.
                unsafe { copy::atomic_store(at.cast(), value) };
                ctx.mapped()
            }
            RemotePlace::Mapped(_) => return Err(TransferError::Nak(Nak::InvalidRequest)),
            _ if ctx.peer.process.is_own() => return Err(TransferError::Nak(Nak::RemoteOperation)),
            _ => {
                let answer = atomic_by_rpc(ctx, &remote, RpcOperation::AtomicWrite, [value, 0]);
                answer?;
                PayloadPath::Call
            }
        };
        ctx.count(path, 8);
        Ok(())
    }
}
