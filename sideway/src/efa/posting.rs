//! Requests of SRD pairs: datagrams that can be SENDs, READs and WRITEs.

use crate::ibverbs::address_handle::AddressHandle;
use crate::ibverbs::queue_pair::{
    Borrows, LocalBufferHandle, PostSendGuard, ReadBufferHandle, WorkRequestHandle,
};

impl<'guard, G: PostSendGuard> WorkRequestHandle<'guard, G> {
    /// Sets the destination of a request of an SRD pair (`ibv_wr_set_ud_addr`). Every request needs
    /// one.
    ///
    /// It works like [`setup_ud_address`](Self::setup_ud_address), and also borrows the address
    /// handle. But READs and WRITEs may follow; the list fails on pairs that do not support them.
    #[inline]
    pub fn setup_srd_address<'queue>(
        self,
        ah: &'queue AddressHandle,
        remote_qpn: u32,
        remote_qkey: u32,
    ) -> SrdHandle<'guard, G>
    where
        G: Borrows<'queue>,
    {
        SrdHandle(self.setup_ud_address(ah, remote_qpn, remote_qkey).into_request())
    }
}

/// A request of an SRD pair without an operation yet.
#[must_use = "a work request takes part only once its operation is set up"]
#[derive(Debug)]
pub struct SrdHandle<'guard, G>(WorkRequestHandle<'guard, G>);

impl<'guard, G: PostSendGuard> SrdHandle<'guard, G> {
    /// SEND into a receive buffer of the destination.
    #[inline]
    pub fn setup_send(self) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send()
    }

    /// SEND with 32 bits of immediate data in the peer's completion.
    #[inline]
    pub fn setup_send_imm(self, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send_imm(imm_data)
    }

    /// RDMA WRITE to the peer's memory at `remote_addr`, in the region with the key `rkey`.
    #[inline]
    pub fn setup_write(self, rkey: u32, remote_addr: u64) -> LocalBufferHandle<'guard, G> {
        self.0.setup_write(rkey, remote_addr)
    }

    /// RDMA WRITE with 32 bits of immediate data in a completion of the peer.
    #[inline]
    pub fn setup_write_imm(self, rkey: u32, remote_addr: u64, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.0.setup_write_imm(rkey, remote_addr, imm_data)
    }

    /// RDMA READ from the peer's memory into the local buffer.
    #[inline]
    pub fn setup_read(self, rkey: u32, remote_addr: u64) -> ReadBufferHandle<'guard, G> {
        self.0.setup_read(rkey, remote_addr)
    }
}
