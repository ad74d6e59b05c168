//! In which order a device writes to memory, as the user wrote it.

use clap::{Args, ValueEnum};

/// The flags about order.
#[derive(Clone, Debug, Default, Args)]
pub struct OrderingArgs {
    /// Whether devices may reorder their writes on the bus [default: auto: as perftest, where the library knows of it and nobody waits
    /// for the last byte]
    #[arg(long, value_name = "WHEN")]
    pub relaxed_ordering: Option<OrderingArg>,

    /// The same as --relaxed-ordering off
    #[arg(long, alias = "disable_pcie_relaxed", conflicts_with = "relaxed_ordering")]
    pub disable_pcie_relaxed: bool,
}

/// Whether writes may be reordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderingArg {
    /// Where the library knows of it and nobody waits for the last byte
    Auto,
    /// They may, or nothing is measured
    On,
    /// They may not
    Off,
}
