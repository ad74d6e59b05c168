//! Traits over the kinds of queues and queue pairs, to run one test with all of them.

use sideway::Error;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CompletionQueue, CompletionQueueBuilder, CreateCompletionQueueError,
    ExtendedCompletionQueue, GenericCompletionQueue, Notify, PollCompletionQueueError,
    WorkCompletionOperationType, WorkCompletionStatus,
};
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, CreateQueuePairError, ExtendedQueuePair, GenericQueuePair, QueuePair, QueuePairBuilder,
};
use sideway::memory::PoolCompletion;

/// The fields of a completion, copied out of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub wr_id: u64,
    pub status: WorkCompletionStatus,
    pub opcode: WorkCompletionOperationType,
    pub byte_len: Option<u32>,
    pub imm_data: Option<u32>,
    pub qp_num: Option<u32>,
    pub vendor_err: u32,
}

impl PoolCompletion for Completion {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn status(&self) -> WorkCompletionStatus {
        self.status
    }

    fn byte_len(&self) -> Option<u32> {
        self.byte_len
    }
}

/// A kind of completion queue.
pub trait CqFlavour: CompletionQueue + Sized {
    const NAME: &'static str;

    fn make(builder: &CompletionQueueBuilder) -> Result<Self, CreateCompletionQueueError>;

    /// Polls once, taking at most `limit` completions; allocates nothing by itself.
    fn poll_up_to(
        &mut self,
        limit: usize,
        visit: &mut dyn FnMut(Completion),
    ) -> Result<usize, PollCompletionQueueError>;

    /// Polls, takes `count` completions, and leaks the poller.
    fn leak_poller(&mut self, count: usize);

    /// Polls with a poller that is dropped without `finish`. Returns whether it yielded nothing.
    fn is_drained_by_a_dropped_poller(&mut self) -> bool;

    /// Arms the queue, and polls until it is empty.
    fn arm_and_poll(&mut self, notify: Notify, visit: &mut dyn FnMut(Completion)) -> Result<usize, Error>;

    fn resize_to(&mut self, cqe: u32) -> Result<(), Error>;

    /// Polls until the queue is empty.
    fn poll(&mut self, visit: &mut dyn FnMut(Completion)) -> Result<usize, PollCompletionQueueError> {
        self.poll_up_to(usize::MAX, visit)
    }
}

/// A kind of queue pair.
pub trait QpFlavour: QueuePair {
    const NAME: &'static str;

    /// Whether it posts with `ibv_post_send`.
    const IS_CLASSIC: bool;

    fn make(builder: &QueuePairBuilder) -> Result<Self, CreateQueuePairError>;
}

/// Copies a completion out of its queue.
macro_rules! copy {
    ($wc:ident) => {
        Completion {
            wr_id: $wc.wr_id(),
            status: $wc.status(),
            opcode: $wc.opcode(),
            byte_len: $wc.byte_len(),
            imm_data: if $wc.status() != WorkCompletionStatus::Success { None } else { $wc.imm_data() },
            qp_num: $wc.qp_num(),
            vendor_err: $wc.vendor_err(),
        }
    };
}

macro_rules! cq_flavour {
    ($($Queue:ty, $name:literal, $builder:ident => $make:expr;)*) => {$(
        impl CqFlavour for $Queue {
            const NAME: &'static str = $name;

            fn make($builder: &CompletionQueueBuilder) -> Result<Self, CreateCompletionQueueError> {
                $make
            }

            fn poll_up_to(
                &mut self,
                limit: usize,
                visit: &mut dyn FnMut(Completion),
            ) -> Result<usize, PollCompletionQueueError> {
                let mut poller = self.start_poll()?;
                let mut count = 0;
                while count < limit {
                    let Some(wc) = poller.next() else { break };
                    count += 1;
                    visit(copy!(wc));
                }
                poller.finish()?;
                Ok(count)
            }

            fn arm_and_poll(
                &mut self,
                notify: Notify,
                visit: &mut dyn FnMut(Completion),
            ) -> Result<usize, Error> {
                let mut poller = self.arm(notify)?;
                let mut count = 0;
                while let Some(wc) = poller.next() {
                    count += 1;
                    visit(copy!(wc));
                }
                poller.finish()?;
                Ok(count)
            }

            fn resize_to(&mut self, cqe: u32) -> Result<(), Error> {
                self.resize(cqe)
            }

            fn is_drained_by_a_dropped_poller(&mut self) -> bool {
                self.start_poll().is_ok_and(|mut poller| poller.next().is_none())
            }

            fn leak_poller(&mut self, count: usize) {
                let Ok(mut poller) = self.start_poll() else { return };
                for _ in 0..count {
                    let _ = poller.next();
                }
                std::mem::forget(poller);
            }
        }
    )*};
}

cq_flavour! {
    BasicCompletionQueue, "basic CQ", builder => builder.build();
    ExtendedCompletionQueue, "extended CQ", builder => builder.build_ex();
    GenericCompletionQueue, "generic CQ", builder => builder.build_generic();
}

macro_rules! qp_flavour {
    ($($Pair:ty, $name:literal, $classic:literal, $builder:ident => $make:expr;)*) => {$(
        impl QpFlavour for $Pair {
            const NAME: &'static str = $name;
            const IS_CLASSIC: bool = $classic;

            fn make($builder: &QueuePairBuilder) -> Result<Self, CreateQueuePairError> {
                $make
            }
        }
    )*};
}

qp_flavour! {
    BasicQueuePair, "basic QP", true, builder => builder.build();
    ExtendedQueuePair, "extended QP", false, builder => builder.build_ex();
    GenericQueuePair, "generic QP", false, builder => builder.build_generic();
}

/// Calls a generic function for every kind of queue pair.
macro_rules! for_each_qp {
    ($function:ident($($arg:expr),*)) => {{
        use sideway::ibverbs::queue_pair::{BasicQueuePair, ExtendedQueuePair, GenericQueuePair};
        $function::<BasicQueuePair>($($arg),*);
        $function::<ExtendedQueuePair>($($arg),*);
        $function::<GenericQueuePair>($($arg),*);
    }};
}

/// Calls a generic function for every kind of completion queue.
macro_rules! for_each_cq {
    ($function:ident($($arg:expr),*)) => {{
        use sideway::ibverbs::completion::{
            BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue,
        };
        $function::<BasicCompletionQueue>($($arg),*);
        $function::<ExtendedCompletionQueue>($($arg),*);
        $function::<GenericCompletionQueue>($($arg),*);
    }};
}
