//! The error of a refused configuration.

use std::io;

/// The error of [`Builder::build`](crate::Builder::build) for an invalid parameter or environment
/// variable.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} = {value} is refused: it must be {bound}; {remedy}")]
pub struct ConfigError {
    parameter: &'static str,
    value: String,
    bound: String,
    remedy: String,
}

debug_as_text!(ConfigError);

impl ConfigError {
    pub(crate) fn new(
        parameter: &'static str,
        value: impl Into<String>,
        bound: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { parameter, value: value.into(), bound: bound.into(), remedy: remedy.into() }
    }

    /// The builder method or the environment variable.
    pub fn parameter(&self) -> &str {
        self.parameter
    }

    /// The refused value.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The accepted values.
    pub fn bound(&self) -> &str {
        &self.bound
    }

    /// What to do.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl From<ConfigError> for io::Error {
    fn from(error: ConfigError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
