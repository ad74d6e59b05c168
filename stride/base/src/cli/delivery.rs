//! Flags of receives and inline sends.

use clap::Args;

use super::heading;

/// The flags of operations that arrive at the peer.
#[derive(Clone, Debug, Args)]
pub struct DeliveryArgs {
    /// Receives posted at a time, for sends and for writes with --imm [default: 512; over UC and UD
    /// one per message, up to 16000]
    #[arg(help_heading = heading::QUEUES, short, long, value_name = "COUNT")]
    pub rx_depth: Option<u32>,

    /// Receives per call, for sends and for writes with --imm [default: 1]
    #[arg(help_heading = heading::QUEUES, long, alias = "recv_post_list", value_name = "COUNT")]
    pub recv_post_list: Option<u32>,

    /// Largest message that is sent inline [default: 0 for bandwidth, perftest's choice for the
    /// device for latency]
    #[arg(help_heading = heading::QUEUES, short = 'I', long, alias = "inline_size", value_name = "BYTES")]
    pub inline_size: Option<u32>,
}
