//! The parameters of a pool.

use std::marker::PhantomData;
use std::time::Duration;

use super::handle::{Configured, Pooled};
use super::hosts::Hosts;
use super::pool::{ConnectionPool, Target};
use super::retry::Retry;
use super::state::Limits;
use crate::config::{Builder, Config, ConfigError};

/// Sets the parameters of a [`ConnectionPool`].
#[derive(Debug)]
#[must_use]
pub struct ConnectionPoolBuilder<C> {
    hosts: Vec<String>,
    config: Option<Config>,
    limits: Limits,
    retry: Retry,
    timeout: Duration,
    resolve_interval: Duration,
    kind: PhantomData<fn() -> C>,
}

impl<C: Pooled> ConnectionPoolBuilder<C> {
    pub(super) fn new(host: String) -> Self {
        Self {
            hosts: vec![host],
            config: None,
            limits: Limits { minimum: 0, maximum: 100, idle_timeout: Some(Duration::from_secs(60)) },
            retry: Retry { retries: 3, pause: Duration::from_secs(1) },
            timeout: Duration::from_secs(30),
            resolve_interval: Duration::from_secs(60),
            kind: PhantomData,
        }
    }

    /// Adds a host with the same service, `HOST:PORT`, to try if the ones before do not accept.
    pub fn host(mut self, host: impl ToString) -> Self {
        self.hosts.push(host.to_string());
        self
    }

    /// The connections that [`ConnectionPool::maintain`] connects up to, and that stay open when they
    /// are idle. Default: 0.
    pub fn minimum(mut self, minimum: usize) -> Self {
        self.limits.minimum = minimum;
        self
    }

    /// The connections that exist at most, at least 1. Default: 100.
    pub fn maximum(mut self, maximum: usize) -> Self {
        self.limits.maximum = maximum;
        self
    }

    /// How long a connection may be idle before it is closed. `None` has no limit. Default: 60 s.
    pub fn idle_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.limits.idle_timeout = timeout;
        self
    }

    /// How long `get` waits while all connections are in use. It also bounds the retries: none begins
    /// later. A connect that has begun takes as long as
    /// [`handshake_deadline`](Builder::handshake_deadline) allows for each address. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often all hosts are tried again after none has accepted. Default: 3.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retry.retries = retries;
        self
    }

    /// The shortest pause before a retry. Each takes 1.0 to 1.2 times as long, by chance. Default: 1 s.
    pub fn retry_pause(mut self, pause: Duration) -> Self {
        self.retry.pause = pause;
        self
    }

    /// How long the addresses of a name are used before the name is resolved again. A name that did not
    /// resolve is asked for at each attempt. Default: 60 s.
    pub fn resolve_interval(mut self, interval: Duration) -> Self {
        self.resolve_interval = interval;
        self
    }

    /// Makes the pool. It connects when it is used.
    ///
    /// # Errors
    ///
    /// The maximum is 0 or less than the minimum, or an environment variable has an invalid value
    /// ([`Builder::build`]).
    pub fn build(self) -> Result<ConnectionPool<C>, ConfigError> {
        let Limits { minimum, maximum, .. } = self.limits;
        if maximum == 0 || maximum < minimum {
            let least = format!("at least {}", minimum.max(1));
            return Err(ConfigError::new(
                "maximum",
                maximum.to_string(),
                least,
                "set `ConnectionPoolBuilder::maximum` to it, or lower `minimum`",
            ));
        }
        let config = match self.config {
            Some(config) => config,
            None => Builder::new().build()?,
        };
        let hosts = Hosts::new(self.hosts, self.resolve_interval);
        let target = Target { hosts, config, retry: self.retry, timeout: self.timeout };
        Ok(ConnectionPool::new(target, self.limits))
    }
}

/// For connections that have no runtime with parameters: all but those of `trespass::local`.
impl<C: Configured> ConnectionPoolBuilder<C> {
    /// The configuration of all connections. Default: that of [`Builder::new`].
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }
}
