//! How messages arrive.

use clap::Args;

/// The flags of what the peer's receives, or its memory, take.
#[derive(Clone, Debug, Args)]
pub struct DeliveryArgs {
    /// Receives posted at a time, of sends and of writes with --imm [default: 512; where messages may be lost, as many as there
    /// are, up to 16000]
    #[arg(short, long, value_name = "COUNT")]
    pub rx_depth: Option<u32>,

    /// Receives posted by one call, of sends and of writes with --imm [default: 1]
    #[arg(long, alias = "recv_post_list", value_name = "COUNT")]
    pub recv_post_list: Option<u32>,

    /// The largest message that is copied into the work request [default: 0 for bandwidth, perftest's
    /// choice for the device for latency]
    #[arg(short = 'I', long, alias = "inline_size", value_name = "BYTES")]
    pub inline_size: Option<u32>,
}
