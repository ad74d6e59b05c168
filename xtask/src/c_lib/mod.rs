//! The C companion of rdma-mummy-sys: the half that is generated.

mod declare;
mod functions;
mod headers;

pub(crate) use headers::generate;
