//! How packets find their way, as the user wrote it.

use clap::Args;

/// The flags about the way between two queue pairs, by perftest's names.
#[derive(Clone, Debug, Default, Args)]
pub struct PathArgs {
    /// The largest packet: 256, 512, 1024, 2048 or 4096 bytes [default: the smaller of both ports' MTUs]
    #[arg(short, long, value_name = "BYTES")]
    pub mtu: Option<u32>,

    /// Service level of the packets, 0 to 15 [default: 0]
    #[arg(short = 'S', long, value_name = "LEVEL")]
    pub sl: Option<u32>,

    /// Traffic class of the packets that have a global header (RoCE has it always), 0 to 255 [default: 0]
    #[arg(long, value_name = "CLASS")]
    pub tclass: Option<u32>,

    /// Index in the port's table of partition keys [default: 0]
    #[arg(long, alias = "pkey_index", value_name = "INDEX")]
    pub pkey_index: Option<u32>,

    /// How long to wait for an acknowledgement: 4.096 us times 2 to the power of this, 1 to 31; 0 is for ever [default: 14]
    #[arg(short = 'u', long, value_name = "EXPONENT")]
    pub qp_timeout: Option<u32>,

    /// How often a message is sent again that is not acknowledged, 0 to 7 [default: 7]
    #[arg(long, alias = "retry_count", value_name = "COUNT")]
    pub retry_count: Option<u32>,

    /// Have rdma_cm connect the queue pairs
    #[arg(short = 'R', long, alias = "rdma_cm")]
    pub rdma_cm: bool,

    /// Type of service of the packets (with -R), 0 to 255 [default: 0]
    #[arg(short = 'T', long, value_name = "CLASS")]
    pub tos: Option<u32>,
}
