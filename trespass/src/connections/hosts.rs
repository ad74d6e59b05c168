//! The hosts of a pool, and the addresses that their names had.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Hosts that are tried in turn, beginning with the one that accepted last.
#[derive(Debug)]
pub(super) struct Hosts {
    names: Vec<String>,
    resolve_interval: Duration,
    preferred: AtomicUsize,
    resolved: Mutex<Vec<Option<Resolved>>>,
}

#[derive(Clone, Debug)]
struct Resolved {
    at: Instant,
    addresses: Vec<SocketAddr>,
}

impl Hosts {
    pub(super) fn new(names: Vec<String>, resolve_interval: Duration) -> Self {
        let resolved = Mutex::new(vec![None; names.len()]);
        Self { names, resolve_interval, preferred: AtomicUsize::new(0), resolved }
    }

    /// The hosts in the order to try them.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.names.len());
        (0..count).map(move |step| (first + step) % count)
    }

    /// Has the next connects begin with a host.
    pub(super) fn accepted(&self, host: usize) {
        self.preferred.store(host, Ordering::Relaxed);
    }

    /// The addresses of a host that are known without a question.
    pub(super) fn known(&self, host: usize, now: Instant) -> Option<Vec<SocketAddr>> {
        if let Ok(address) = self.names[host].parse() {
            return Some(vec![address]);
        }
        let resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let resolved = resolved[host].as_ref()?;
        let is_fresh = now.saturating_duration_since(resolved.at) < self.resolve_interval;
        is_fresh.then(|| resolved.addresses.clone())
    }

    /// The addresses of a host, which may ask the system, and wait. If the system does not know, a host
    /// keeps the addresses that it had.
    pub(super) fn resolve(&self, host: usize, now: Instant) -> io::Result<Vec<SocketAddr>> {
        self.resolve_by(host, now, |name| name.to_socket_addrs().map(Iterator::collect))
    }

    fn resolve_by(
        &self,
        host: usize,
        now: Instant,
        ask: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Some(known) = self.known(host, now) {
            return Ok(known);
        }
        let answer = ask(&self.names[host]);
        let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = match (answer, resolved[host].take()) {
            (Ok(addresses), _) => addresses,
            (Err(error), Some(before)) => {
                tracing::warn!(host = self.names[host], %error, "keeps its addresses: it does not resolve");
                before.addresses
            }
            (Err(error), None) => return Err(error),
        };
        resolved[host] = Some(Resolved { at: now, addresses: addresses.clone() });
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_resolved_again_after_the_interval() {
        let interval = Duration::from_secs(60);
        let hosts = Hosts::new(vec!["one.example:1".into(), "127.0.0.1:2".into()], interval);
        let one: SocketAddr = "10.0.0.1:1".parse().unwrap();
        let two: SocketAddr = "10.0.0.2:1".parse().unwrap();
        let begin = Instant::now();
        let fails = |_: &str| Err(io::ErrorKind::NotFound.into());
        assert!(hosts.resolve_by(0, begin, fails).is_err());
        let addresses = hosts.resolve_by(0, begin, |_| Ok(vec![one, two])).unwrap();
        assert_eq!(addresses, [one, two]);
        let soon = begin + interval - Duration::from_nanos(1);
        let kept = hosts.resolve_by(0, soon, |_| panic!("asked again too soon")).unwrap();
        assert_eq!(kept, [one, two]);
        let later = begin + interval;
        assert_eq!(hosts.known(0, later), None);
        assert_eq!(hosts.resolve_by(0, later, |_| Ok(vec![two])).unwrap(), [two]);
        let again = later + interval;
        assert_eq!(hosts.resolve_by(0, again, fails).unwrap(), [two], "it keeps what it had");
        let literal = hosts.resolve_by(1, begin, |_| panic!("an address needs no question")).unwrap();
        assert_eq!(literal, ["127.0.0.1:2".parse().unwrap()]);
    }

    #[test]
    fn the_host_that_accepted_last_is_tried_first() {
        let hosts = Hosts::new(["a:1", "b:1", "c:1"].map(str::to_owned).into(), Duration::ZERO);
        assert!(hosts.order().eq([0, 1, 2]));
        hosts.accepted(2);
        assert!(hosts.order().eq([2, 0, 1]));
    }
}
