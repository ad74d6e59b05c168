//! Binding, and resolution of addresses and routes.

use std::io;
use std::ptr;
use std::time::Duration;

use super::address::{Address, RawAddress, perhaps};
use super::identifier::{CallError, Identifier, wrong_state};
use super::identifier_state::IdentifierState;
use crate::error::{Error, ErrorKind};

impl Identifier {
    /// Binds to a local address (`rdma_bind_addr`), and to the device that the address belongs to.
    /// With any address (`0.0.0.0`, `[::]`) there is no device. For port 0 the system chooses a
    /// port ([`local_port`](Self::local_port)).
    ///
    /// # Errors
    ///
    /// Fails if the address does not belong to an RDMA device, or if the port is in use.
    ///
    /// # References
    ///
    /// `man rdma_bind_addr`
    pub fn bind_addr(&self, address: impl Into<Address>) -> Result<(), Error> {
        let address = address.into();
        let mut raw = RawAddress::from(&address);
        // SAFETY: `call` passes a live identifier, under its channel's lock; the address outlives
        // the call.
        let result = self.call(Some(IdentifierState::Bound), |lib, id| unsafe {
            (lib.rdma_bind_addr)(id, raw.as_mut_ptr())
        });
        result.map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    Error::os(BIND, source).of_kind(ErrorKind::AddressInUse).reason("the port is in use")
                }
                Some(libc::EADDRNOTAVAIL | libc::ENODEV) => of_link_local(not_local(BIND, source), &address),
                Some(libc::EAFNOSUPPORT) => of_no_family(BIND, source),
                Some(libc::EINVAL) if matches!(address, Address::Unknown(_)) => of_no_family(BIND, source),
                Some(libc::EINVAL) if self.state() != IdentifierState::Idle => {
                    wrong_state(BIND, self.state(), source)
                }
                _ => of_link_local(Error::os(BIND, source), &address),
            }
            .with("address", address)
        })
    }

    /// Starts the resolution of an address to a device (`rdma_resolve_addr`), for at most
    /// `timeout`. The event [`AddressResolved`](super::EventType::AddressResolved) or
    /// [`AddressError`](super::EventType::AddressError) follows.
    ///
    /// An identifier that is not bound is bound to `source`, or to the address that the system's
    /// routes select.
    ///
    /// # Errors
    ///
    /// Fails if `source` does not belong to an RDMA device, or if the library does not know the
    /// family of an address.
    ///
    /// # References
    ///
    /// `man rdma_resolve_addr`
    pub fn resolve_addr(
        &self,
        source: Option<Address>,
        destination: impl Into<Address>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let destination = destination.into();
        let mut raw_source = source.as_ref().map(RawAddress::from);
        let mut raw_destination = RawAddress::from(&destination);
        let result = self.call(Some(IdentifierState::ResolvingAddress), |lib, id| {
            let from = raw_source.as_mut().map_or(ptr::null_mut(), RawAddress::as_mut_ptr);
            // SAFETY: `call` passes a live identifier, under its channel's lock; the addresses
            // outlive the call.
            unsafe { (lib.rdma_resolve_addr)(id, from, raw_destination.as_mut_ptr(), milliseconds(timeout)) }
        });
        result.map_err(|error| {
            use IdentifierState as S;
            const VERB: &str = "rdma_resolve_addr";
            let state = self.state();
            let is_unknown = |address: &Address| matches!(address, Address::Unknown(_));
            let has_no_family = is_unknown(&destination) || source.as_ref().is_some_and(is_unknown);
            match error.raw_os_error() {
                Some(libc::EADDRNOTAVAIL | libc::ENODEV) if source.is_some() => not_local(VERB, error),
                Some(libc::EAFNOSUPPORT) => of_no_family(VERB, error),
                Some(libc::EINVAL) if has_no_family => of_no_family(VERB, error),
                Some(libc::EINVAL) if !matches!(state, S::Idle | S::Bound) => wrong_state(VERB, state, error),
                _ => of_link_local(Error::os(VERB, error), &destination),
            }
            .with("destination", destination)
            .with("source", perhaps(&source))
            .debug("timeout", timeout)
        })
    }

    /// Starts the resolution of a route to the resolved address (`rdma_resolve_route`), for at most
    /// `timeout`. The event [`RouteResolved`](super::EventType::RouteResolved) or
    /// [`RouteError`](super::EventType::RouteError) follows.
    ///
    /// # Errors
    ///
    /// Fails if the address is not resolved.
    ///
    /// # References
    ///
    /// `man rdma_resolve_route`
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        let result = self.call_with_device(Some(IdentifierState::ResolvingRoute), |lib, id| {
            // SAFETY: `call_with_device` passes a live identifier with a device, under its
            // channel's lock.
            unsafe { (lib.rdma_resolve_route)(id, milliseconds(timeout)) }
        });
        result.map_err(|error| match error {
            CallError::NoDevice(lacking) => lacking.error("rdma_resolve_route"),
            CallError::Rdmacm(source) => match source.raw_os_error() {
                Some(libc::EINVAL) if self.state() != IdentifierState::AddressResolved => {
                    wrong_state("rdma_resolve_route", self.state(), source)
                }
                _ => Error::os("rdma_resolve_route", source)
                    .with("destination", perhaps(&self.peer_addr()))
                    .debug("timeout", timeout),
            },
        })
    }
}

const BIND: &str = "rdma_bind_addr";

#[cold]
fn not_local(verb: &'static str, source: io::Error) -> Error {
    Error::os(verb, source)
        .of_kind(ErrorKind::AddressNotLocal)
        .reason("no RDMA device of this machine has this address")
        .remedy("`rdma link` shows which network interfaces have a device")
}

/// Says what a link-local address lacks, if it names no interface.
#[cold]
fn of_link_local(error: Error, address: &Address) -> Error {
    match address.missing_interface() {
        Some(remedy) => error.remedy(remedy),
        None => error,
    }
}

#[cold]
fn of_no_family(verb: &'static str, source: io::Error) -> Error {
    let error = Error::os(verb, source).of_kind(ErrorKind::AddressFamily);
    error.reason("the library does not know the address family")
}

/// The timeout in whole milliseconds, rounded up, and limited to the largest value of C's type.
fn milliseconds(timeout: Duration) -> core::ffi::c_int {
    let rest = timeout.subsec_nanos().div_ceil(1_000_000);
    let whole = timeout.as_secs().saturating_mul(1000).saturating_add(rest.into());
    core::ffi::c_int::try_from(whole).unwrap_or(core::ffi::c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_never_shorter_than_asked_for() {
        let ms = |d: Duration| milliseconds(d);
        assert_eq!(ms(Duration::ZERO), 0);
        assert_eq!(ms(Duration::from_nanos(1)), 1);
        assert_eq!(ms(Duration::from_millis(2000)), 2000);
        assert_eq!(ms(Duration::from_micros(2001)), 3);
        assert_eq!(ms(Duration::from_micros(1_999_999)), 2000);
        assert_eq!(ms(Duration::MAX), i32::MAX);
    }
}
