//! Flags of queues, and of waiting for completions.

use clap::Args;

use super::heading;

/// The flags of queues, with perftest's names.
#[derive(Clone, Debug, Default, Args)]
pub struct QueueArgs {
    /// Sleep until a completion event, instead of polling
    #[arg(help_heading = heading::QUEUES, short, long)]
    pub events: bool,

    /// Share one receive queue among all queue pairs (of each thread, with --threads); -r gives its
    /// receives
    #[arg(help_heading = heading::QUEUES, long, alias = "use_srq")]
    pub use_srq: bool,

    /// Scatter-gather entries per message, at most one per byte [default: 1]
    #[arg(help_heading = heading::QUEUES, long, value_name = "COUNT")]
    pub sge: Option<u32>,

    /// Completions per poll (bw only) [default: 16]
    #[arg(help_heading = heading::QUEUES, long, alias = "cqe_poll", value_name = "COUNT")]
    pub cqe_poll: Option<u32>,

    /// Completion vector that handles the events of -e, counted from 0 [default: 0]
    #[arg(help_heading = heading::QUEUES, short = 'X', long, value_name = "NUMBER")]
    pub vector: Option<u32>,
}
