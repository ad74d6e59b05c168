//! Requests of SRD pairs: datagrams that can be more than sends.

use crate::ibverbs::address_handle::AddressHandle;
use crate::ibverbs::queue_pair::{
    Borrows, LocalBufferHandle, PostSendGuard, ReadBufferHandle, WorkRequestHandle,
};

impl<'guard, G: PostSendGuard> WorkRequestHandle<'guard, G> {
    /// Where a request of an SRD pair goes (`ibv_wr_set_ud_addr`): every one needs that.
    ///
    /// It is [`setup_ud_address`](Self::setup_ud_address), and borrows the address handle as that does; but READs and WRITEs
    /// may follow, which the list refuses on pairs that have none.
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
        SrdHandle(self.setup_ud_address(ah, remote_qpn, remote_qkey).request())
    }
}

/// A request of an SRD pair, whose kind is to be chosen.
#[must_use = "a work request takes part only once its operation is set up"]
#[derive(Debug)]
pub struct SrdHandle<'guard, G>(WorkRequestHandle<'guard, G>);

impl<'guard, G: PostSendGuard> SrdHandle<'guard, G> {
    /// SEND: into a receive buffer of the pair that it goes to.
    #[inline]
    pub fn setup_send(self) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send()
    }

    /// SEND, with 32 bits that come with the peer's completion.
    #[inline]
    pub fn setup_send_imm(self, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.0.setup_send_imm(imm_data)
    }

    /// RDMA WRITE: to the peer's memory at `remote_addr`, in the region that `rkey` names.
    #[inline]
    pub fn setup_write(self, rkey: u32, remote_addr: u64) -> LocalBufferHandle<'guard, G> {
        self.0.setup_write(rkey, remote_addr)
    }

    /// RDMA WRITE, with 32 bits that come with a completion of the peer's.
    #[inline]
    pub fn setup_write_imm(self, rkey: u32, remote_addr: u64, imm_data: u32) -> LocalBufferHandle<'guard, G> {
        self.0.setup_write_imm(rkey, remote_addr, imm_data)
    }

    /// RDMA READ: from the peer's memory into the local buffer.
    #[inline]
    pub fn setup_read(self, rkey: u32, remote_addr: u64) -> ReadBufferHandle<'guard, G> {
        self.0.setup_read(rkey, remote_addr)
    }
}
