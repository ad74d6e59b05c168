//! The demonstration: the bandwidth and the latency of RDMA WRITE.

/// Runs where any command runs, with the variables that any command has.
pub(super) const SCRIPT: &str = include_str!("demo.sh");
