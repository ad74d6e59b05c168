//! Single work requests with slices, each posted as a list of one.

use super::{Pool, Slice};
use crate::ibverbs::queue_pair::{
    AttachPoolError, PostRecvError, PostSendError, PostSendGuard, QueuePair, WorkRequestFlags,
};
use crate::memory::RemotePlace;

/// A single request could not be posted. Its slice went back to the pool.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PoolRequestError {
    /// The queue pair cannot have slices of this pool.
    #[error(transparent)]
    Attach(#[from] AttachPoolError),
    /// The send request was refused.
    #[error(transparent)]
    Send(#[from] PostSendError),
    /// The receive was refused.
    #[error(transparent)]
    Receive(#[from] PostRecvError),
    /// The lengths of the slice and of the peer's bytes differ.
    #[error(
        "the slice has {slice} bytes, and the peer's place {place}: take as many (`take_len`, `RemoteMemory::at`)"
    )]
    OtherLength {
        /// The length of the slice.
        slice: usize,
        /// The length of the peer's bytes.
        place: u32,
    },
}

debug_as_text!(PoolRequestError);

/// Single requests. `wr_id` comes back with the slice ([`reclaim`](Pool::reclaim)). Several requests
/// are posted at once by a [list](Pool::attach), which costs the device one doorbell.
impl Pool {
    /// Posts a SEND of the slice's bytes.
    ///
    /// # Errors
    ///
    /// The queue is full, or the pair belongs to another context.
    #[inline]
    pub fn send(&self, qp: &mut impl QueuePair, wr_id: u64, slice: Slice) -> Result<(), PoolRequestError> {
        let mut list = self.attach(qp.start_post_send())?;
        list.construct_wr(wr_id, WorkRequestFlags::Signaled).setup_send().setup_slice(slice);
        Ok(list.post()?)
    }

    /// Posts a receive into the slice.
    ///
    /// # Errors
    ///
    /// The queue is full, or the pair belongs to another context.
    #[inline]
    pub fn recv(&self, qp: &mut impl QueuePair, wr_id: u64, slice: Slice) -> Result<(), PoolRequestError> {
        let mut list = self.attach_recv(qp.start_post_recv())?;
        list.construct_wr(wr_id).setup_slice(slice);
        Ok(list.post()?)
    }

    /// Posts an RDMA WRITE of the slice's bytes to `place` in the peer's memory.
    ///
    /// # Errors
    ///
    /// The lengths differ, the queue is full, or the pair belongs to another context.
    #[inline]
    pub fn write(
        &self,
        qp: &mut impl QueuePair,
        wr_id: u64,
        slice: Slice,
        place: RemotePlace,
    ) -> Result<(), PoolRequestError> {
        check_length(&slice, place)?;
        let mut list = self.attach(qp.start_post_send())?;
        list.construct_wr(wr_id, WorkRequestFlags::Signaled).setup_write_at(place).setup_slice(slice);
        Ok(list.post()?)
    }

    /// Posts an RDMA READ of `place` in the peer's memory into the slice.
    ///
    /// # Errors
    ///
    /// The lengths differ, the queue is full, or the pair belongs to another context.
    #[inline]
    pub fn read(
        &self,
        qp: &mut impl QueuePair,
        wr_id: u64,
        slice: Slice,
        place: RemotePlace,
    ) -> Result<(), PoolRequestError> {
        check_length(&slice, place)?;
        let mut list = self.attach(qp.start_post_send())?;
        list.construct_wr(wr_id, WorkRequestFlags::Signaled).setup_read_at(place).setup_slice(slice);
        Ok(list.post()?)
    }
}

fn check_length(slice: &Slice, place: RemotePlace) -> Result<(), PoolRequestError> {
    match slice.len() == place.len() as usize {
        true => Ok(()),
        false => Err(PoolRequestError::OtherLength { slice: slice.len(), place: place.len() }),
    }
}
