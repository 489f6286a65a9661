//! Kernel-bypass poll-mode RDMA pipelines.

fn main() {}
