//! The states of an identifier.

use std::fmt;

/// The progress of an identifier, according to the events that were taken. Errors report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdentifierState {
    /// New.
    Idle,
    /// It has a local address.
    Bound,
    /// It takes connection requests at its local address.
    Listening,
    /// The address is being resolved.
    ResolvingAddress,
    /// The peer's address and the local device are known.
    AddressResolved,
    /// The route is being resolved.
    ResolvingRoute,
    /// A path to the peer is known: it can connect.
    RouteResolved,
    /// It belongs to a request that is not answered yet.
    Requested,
    /// The connection is being established.
    Connecting,
    /// The peer has accepted; the connection must be [established](super::Identifier::establish).
    Responded,
    /// The connection or the datagram service is established.
    Connected,
    /// This side or the peer rejected the connection.
    Rejected,
    /// The connection could not be established.
    Failed,
    /// The connection is closed.
    Disconnected,
    /// The device was removed.
    DeviceRemoved,
}

impl IdentifierState {
    /// All states, ordered by their numbers.
    pub(super) const ALL: [Self; 15] = [
        Self::Idle,
        Self::Bound,
        Self::Listening,
        Self::ResolvingAddress,
        Self::AddressResolved,
        Self::ResolvingRoute,
        Self::RouteResolved,
        Self::Requested,
        Self::Connecting,
        Self::Responded,
        Self::Connected,
        Self::Rejected,
        Self::Failed,
        Self::Disconnected,
        Self::DeviceRemoved,
    ];
}

// Checks that the conversion to a number and back yields the same state.
const _: () = {
    let mut index = 0;
    while index < IdentifierState::ALL.len() {
        assert!(IdentifierState::ALL[index] as usize == index);
        index += 1;
    }
};

impl fmt::Display for IdentifierState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "not bound",
            Self::Bound => "bound",
            Self::Listening => "listening",
            Self::ResolvingAddress => "resolving its address",
            Self::AddressResolved => "without a route",
            Self::ResolvingRoute => "resolving its route",
            Self::RouteResolved => "ready to connect",
            Self::Requested => "requested by a peer",
            Self::Connecting => "connecting",
            Self::Responded => "waiting to be established",
            Self::Connected => "connected",
            Self::Rejected => "rejected",
            Self::Failed => "not connected, as that failed",
            Self::Disconnected => "disconnected",
            Self::DeviceRemoved => "without a device, as that was removed",
        })
    }
}
