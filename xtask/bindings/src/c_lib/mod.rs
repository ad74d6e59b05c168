//! The generated half of the C companion's sources.

mod declare;
mod functions;
mod headers;

pub(crate) use functions::MINUS_ONE;
pub(crate) use headers::generate;
