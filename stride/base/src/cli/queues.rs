//! How queues are made and waited for, as the user wrote it.

use clap::Args;

/// The flags about queues, by perftest's names.
#[derive(Clone, Debug, Default, Args)]
pub struct QueueArgs {
    /// Sleep until there is a completion, in place of polling
    #[arg(short, long)]
    pub events: bool,

    /// One receive queue for all queue pairs (of each thread, with --threads); -r is how many receives it holds
    #[arg(long, alias = "use_srq")]
    pub use_srq: bool,

    /// Pieces of memory that a message is sent from, or read into; of one that has fewer bytes, as many as those [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub sge: Option<u32>,

    /// Completions taken at a time (bandwidth only) [default: 16]
    #[arg(long, alias = "cqe_poll", value_name = "COUNT")]
    pub cqe_poll: Option<u32>,

    /// Completion vector of the device that handles the events of -e; they count from 0 [default: 0]
    #[arg(short = 'X', long, value_name = "NUMBER")]
    pub vector: Option<u32>,
}
