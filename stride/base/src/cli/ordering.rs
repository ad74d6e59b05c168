//! Flags of the order in which a device writes to memory.

use clap::{Args, ValueEnum};

use super::heading;

/// The flags about relaxed ordering.
#[derive(Clone, Debug, Default, Args)]
pub struct OrderingArgs {
    /// Allow devices to reorder their writes on the bus [default: auto]
    #[arg(help_heading = heading::DEVICE, long, value_name = "WHEN")]
    pub relaxed_ordering: Option<OrderingArg>,

    /// Same as --relaxed-ordering off
    #[arg(help_heading = heading::DEVICE, long, alias = "disable_pcie_relaxed", conflicts_with = "relaxed_ordering")]
    pub disable_pcie_relaxed: bool,
}

/// The permission to reorder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderingArg {
    /// If the library supports it and the test does not wait for the last byte, like perftest
    Auto,
    /// Always; fail if the library does not support it
    On,
    /// Never
    Off,
}
