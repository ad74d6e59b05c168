//! The demonstration: the bandwidth and the latency of RDMA WRITE.

/// The script, which gets the same variables as every command.
pub(super) const SCRIPT: &str = include_str!("demo.sh");
