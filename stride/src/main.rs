//! `stride-perf`: bandwidth and latency of RDMA, as perftest defines them.

fn main() {}
