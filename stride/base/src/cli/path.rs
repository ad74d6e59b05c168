//! Flags of the path between two queue pairs.

use clap::Args;

use super::heading;

/// The flags of the path between two queue pairs, with perftest's names.
#[derive(Clone, Debug, Default, Args)]
pub struct PathArgs {
    /// MTU of the path: 256, 512, 1024, 2048 or 4096 bytes [default: the smaller MTU of both ports]
    #[arg(help_heading = heading::PACKETS, short, long, value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// Service level, 0 to 15 [default: 0]
    #[arg(help_heading = heading::PACKETS, short = 'S', long, value_name = "LEVEL")]
    pub sl: Option<u32>,

    /// Traffic class in the global header, which RoCE always has, 0 to 255 [default: 0]
    #[arg(help_heading = heading::PACKETS, long, value_name = "CLASS")]
    pub tclass: Option<u32>,

    /// Index in the port's table of partition keys [default: 0]
    #[arg(help_heading = heading::PACKETS, long, alias = "pkey_index", value_name = "INDEX")]
    pub pkey_index: Option<u32>,

    /// Acknowledgement timeout of 4.096 us times 2 to the power of EXPONENT, 1 to 31; 0 waits for
    /// ever [default: 14]
    #[arg(help_heading = heading::PACKETS, short = 'u', long, value_name = "EXPONENT")]
    pub qp_timeout: Option<u32>,

    /// Retransmissions of an unacknowledged message, 0 to 7 [default: 7]
    #[arg(help_heading = heading::PACKETS, long, alias = "retry_count", value_name = "COUNT")]
    pub retry_count: Option<u32>,

    /// Connect the queue pairs by rdma_cm
    #[arg(help_heading = heading::CONNECTION, short = 'R', long, alias = "rdma_cm")]
    pub rdma_cm: bool,

    /// Type of service (with -R), 0 to 255 [default: 0]
    #[arg(help_heading = heading::PACKETS, short = 'T', long, value_name = "CLASS")]
    pub tos: Option<u32>,
}
