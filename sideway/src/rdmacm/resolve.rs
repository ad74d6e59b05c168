//! Binding, and resolution of addresses and routes.

use std::io;
use std::ptr;
use std::time::Duration;

use super::address::{Address, RawAddress};
use super::identifier::{Identifier, IdentifierState, NoDevice, NoDeviceOr};

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
    pub fn bind_addr(&self, address: impl Into<Address>) -> Result<(), BindAddrError> {
        let address = address.into();
        let mut raw = RawAddress::from(&address);
        // SAFETY: `call` passes a live identifier, under its channel's lock; the address outlives
        // the call.
        let result = self.call(Some(IdentifierState::Bound), |lib, id| unsafe {
            (lib.rdma_bind_addr)(id, raw.as_mut_ptr())
        });
        result.map_err(|source| match source.raw_os_error() {
            Some(libc::EADDRINUSE) => BindAddrError::AddressInUse { address, source },
            Some(libc::EADDRNOTAVAIL | libc::ENODEV) => BindAddrError::NotLocal { address, source },
            Some(libc::EAFNOSUPPORT) => BindAddrError::AddressFamily { address, source },
            Some(libc::EINVAL) if matches!(address, Address::Unknown(_)) => {
                BindAddrError::AddressFamily { address, source }
            }
            Some(libc::EINVAL) if self.state() != IdentifierState::Idle => {
                BindAddrError::State { address, state: self.state(), source }
            }
            _ => BindAddrError::Rdmacm { address, source },
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
    ) -> Result<(), ResolveAddrError> {
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
            let state = self.state();
            let of_no_family = |address: &Address| matches!(address, Address::Unknown(_));
            let of_no_family = of_no_family(&destination) || source.as_ref().is_some_and(of_no_family);
            match (error.raw_os_error(), source) {
                (Some(libc::EADDRNOTAVAIL | libc::ENODEV), Some(source)) => {
                    ResolveAddrError::NotLocal { source_address: source, source: error }
                }
                (Some(libc::EAFNOSUPPORT), _) => {
                    ResolveAddrError::AddressFamily { destination, source: error }
                }
                (Some(libc::EINVAL), _) if of_no_family => {
                    ResolveAddrError::AddressFamily { destination, source: error }
                }
                (Some(libc::EINVAL), _) if !matches!(state, S::Idle | S::Bound) => {
                    ResolveAddrError::State { destination, state, source: error }
                }
                (_, source_address) => {
                    ResolveAddrError::Rdmacm { source_address, destination, timeout, source: error }
                }
            }
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
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), ResolveRouteError> {
        let result = self.call_with_device(Some(IdentifierState::ResolvingRoute), |lib, id| {
            // SAFETY: `call_with_device` passes a live identifier with a device, under its
            // channel's lock.
            unsafe { (lib.rdma_resolve_route)(id, milliseconds(timeout)) }
        });
        result.map_err(|error| match error {
            NoDeviceOr::NoDevice(lacking) => lacking.into(),
            NoDeviceOr::Rdmacm(source) => match source.raw_os_error() {
                Some(libc::EINVAL) if self.state() != IdentifierState::AddressResolved => {
                    ResolveRouteError::State { state: self.state(), source }
                }
                _ => ResolveRouteError::Rdmacm { destination: self.peer_addr(), timeout, source },
            },
        })
    }
}

/// The timeout in whole milliseconds, rounded up, and limited to the largest value of C's type.
fn milliseconds(timeout: Duration) -> core::ffi::c_int {
    let rest = timeout.subsec_nanos().div_ceil(1_000_000);
    let whole = timeout.as_secs().saturating_mul(1000).saturating_add(rest.into());
    core::ffi::c_int::try_from(whole).unwrap_or(core::ffi::c_int::MAX)
}

/// An identifier did not get the address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindAddrError {
    /// Somebody else has it.
    #[error("cannot bind to {address}: the port is in use")]
    AddressInUse {
        /// What was asked for.
        address: Address,
        /// What the library said.
        source: io::Error,
    },
    /// No RDMA device has it.
    #[error(
        "cannot bind to {address}: no RDMA device of this machine has this address ({source}); `rdma link` shows which network \
         interfaces have one"
    )]
    NotLocal {
        /// What was asked for.
        address: Address,
        /// What the library said.
        source: io::Error,
    },
    /// The library does not know the address's family.
    #[error("cannot bind to {address}: the library does not know its family ({source})")]
    AddressFamily {
        /// What was asked for.
        address: Address,
        /// What the library said.
        source: io::Error,
    },
    /// The identifier has an address.
    #[error("cannot bind to {address}: the identifier is {state} ({source})")]
    State {
        /// What was asked for.
        address: Address,
        /// How far the identifier had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused.
    #[error("rdma_bind_addr failed for {address}: {source}")]
    Rdmacm {
        /// What was asked for.
        address: Address,
        /// What the library said.
        source: io::Error,
    },
}

/// An address is not being resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveAddrError {
    /// No RDMA device has the source's address.
    #[error(
        "cannot connect from {source_address}: no RDMA device of this machine has this address ({source})"
    )]
    NotLocal {
        /// The local address that was asked for.
        source_address: Address,
        /// What the library said.
        source: io::Error,
    },
    /// The library does not know the address's family.
    #[error("cannot resolve {destination}: the library does not know its family, or the source's ({source})")]
    AddressFamily {
        /// The peer's address.
        destination: Address,
        /// What the library said.
        source: io::Error,
    },
    /// The identifier is for something else by now.
    #[error("cannot resolve {destination}: the identifier is {state} ({source})")]
    State {
        /// The peer's address.
        destination: Address,
        /// How far the identifier had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused.
    #[error(
        "rdma_resolve_addr failed for {destination} from {source_address:?}, within {timeout:?}: {source}"
    )]
    Rdmacm {
        /// The local address that was asked for.
        source_address: Option<Address>,
        /// The peer's address.
        destination: Address,
        /// How long to look for it.
        timeout: Duration,
        /// What the library said.
        source: io::Error,
    },
}

/// A route is not being resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveRouteError {
    /// There is no device.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The address is not resolved.
    #[error("cannot resolve a route: the identifier is {state} ({source})")]
    State {
        /// How far the identifier had come.
        state: IdentifierState,
        /// What the library said.
        source: io::Error,
    },
    /// The library refused.
    #[error("rdma_resolve_route failed for {}, within {timeout:?}: {source}", super::address::perhaps(.destination))]
    Rdmacm {
        /// The peer's address.
        destination: Option<Address>,
        /// How long to look for it.
        timeout: Duration,
        /// What the library said.
        source: io::Error,
    },
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
