//! Either flavour, behind one interface.

use std::io::IoSlice;

use super::post::sealed::{Build, Step};
use super::{
    BasicPostSendGuard, BasicQueuePair, BasicSendQueue, ExtendedPostSendGuard, ExtendedQueuePair,
    ExtendedSendQueue, PostSendError, PostSendGuard, QueuePair, QueuePairControl, ScatterGatherEntry,
    SendQueue, WorkRequestFlags,
};

/// A queue pair of either flavour.
#[derive(Debug)]
pub struct GenericQueuePair {
    halves: super::Halves<GenericSendQueue>,
}

super::impl_queue_pair!(GenericQueuePair, GenericSendQueue);

impl GenericQueuePair {
    /// Whether it posts with `ibv_wr_*`.
    pub fn is_extended(&self) -> bool {
        matches!(self.halves.send, GenericSendQueue::Extended(_))
    }
}

impl From<BasicQueuePair> for GenericQueuePair {
    fn from(qp: BasicQueuePair) -> Self {
        let (send, receive) = qp.into_split();
        Self { halves: super::Halves { send: GenericSendQueue::Basic(send), receive } }
    }
}

impl From<ExtendedQueuePair> for GenericQueuePair {
    fn from(qp: ExtendedQueuePair) -> Self {
        let (send, receive) = qp.into_split();
        Self { halves: super::Halves { send: GenericSendQueue::Extended(send), receive } }
    }
}

/// The sending half of a [`GenericQueuePair`].
#[derive(Debug)]
pub enum GenericSendQueue {
    /// Posts with `ibv_post_send`.
    Basic(BasicSendQueue),
    /// Posts with `ibv_wr_*`.
    Extended(ExtendedSendQueue),
}

impl SendQueue for GenericSendQueue {
    type Guard<'queue> = GenericPostSendGuard<'queue>;

    #[inline]
    fn start_post_send(&mut self) -> GenericPostSendGuard<'_> {
        match self {
            Self::Basic(queue) => GenericPostSendGuard::Basic(queue.start_post_send()),
            Self::Extended(queue) => GenericPostSendGuard::Extended(queue.start_post_send()),
        }
    }

    fn control(&self) -> &QueuePairControl {
        match self {
            Self::Basic(queue) => queue.control(),
            Self::Extended(queue) => queue.control(),
        }
    }
}

/// A list of work requests that is being built for a [`GenericQueuePair`].
#[must_use = "a list that is not posted is forgotten"]
#[derive(Debug)]
pub enum GenericPostSendGuard<'queue> {
    /// For `ibv_post_send`.
    Basic(BasicPostSendGuard<'queue>),
    /// For `ibv_wr_*`.
    Extended(ExtendedPostSendGuard<'queue>),
}

impl PostSendGuard for GenericPostSendGuard<'_> {
    #[inline]
    fn post(self) -> Result<(), PostSendError> {
        match self {
            Self::Basic(guard) => guard.post(),
            Self::Extended(guard) => guard.post(),
        }
    }
}

/// Steps that go to whichever flavour it is.
macro_rules! steps {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[inline]
        fn $name(&mut self, step: Step, $($arg: $ty),*) {
            match self {
                Self::Basic(guard) => guard.$name(step, $($arg),*),
                Self::Extended(guard) => guard.$name(step, $($arg),*),
            }
        }
    )*};
}

impl Build for GenericPostSendGuard<'_> {
    steps! {
        fn begin(wr_id: u64, flags: WorkRequestFlags);
        fn send();
        fn send_imm(imm_data: u32);
        fn write(rkey: u32, remote_addr: u64);
        fn write_imm(rkey: u32, remote_addr: u64, imm_data: u32);
        fn read(rkey: u32, remote_addr: u64);
        fn compare_and_swap(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
        fn fetch_and_add(rkey: u32, remote_addr: u64, add: u64);
        fn inline_data(data: &[u8]);
        fn inline_data_list(list: &[IoSlice<'_>]);
    }

    #[inline]
    unsafe fn sge(&mut self, step: Step, lkey: u32, addr: u64, length: u32) {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe {
            match self {
                Self::Basic(guard) => guard.sge(step, lkey, addr, length),
                Self::Extended(guard) => guard.sge(step, lkey, addr, length),
            }
        }
    }

    #[inline]
    unsafe fn sge_list(&mut self, step: Step, list: &[ScatterGatherEntry]) {
        // SAFETY: the caller keeps this function's contract, which is that one's.
        unsafe {
            match self {
                Self::Basic(guard) => guard.sge_list(step, list),
                Self::Extended(guard) => guard.sge_list(step, list),
            }
        }
    }
}
