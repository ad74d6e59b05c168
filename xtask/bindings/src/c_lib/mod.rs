//! The generated half of the C companion's sources.

mod declare;
mod functions;
mod headers;

pub(crate) use headers::generate;
