//! The error of a refused configuration.

use std::io;

/// A configuration that is refused: by [`Builder::build`](crate::Builder::build), or because of the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} = {value} is refused: it must be {bound}; {remedy}")]
pub struct ConfigError {
    parameter: &'static str,
    value: String,
    bound: String,
    remedy: String,
}

impl ConfigError {
    pub(crate) fn new(
        parameter: &'static str,
        value: impl Into<String>,
        bound: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { parameter, value: value.into(), bound: bound.into(), remedy: remedy.into() }
    }

    /// The builder's method, or the environment's variable.
    pub fn parameter(&self) -> &str {
        self.parameter
    }

    /// What it was set to.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What it may be set to.
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
