//! A zero-cost wrapper of modern RDMA verbs.
