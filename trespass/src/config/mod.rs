//! The configuration: the builder, the parameters with their checks, and the environment variables.

mod builder;
mod check;
pub(crate) mod environment;
mod error;
pub(crate) mod log;
mod parameters;
mod secure;

#[cfg(test)]
pub(crate) mod tests;

pub use builder::Builder;
pub use error::ConfigError;
pub(crate) use parameters::ONE_PROCESSOR;
pub use parameters::{Bootstrap, Config};
