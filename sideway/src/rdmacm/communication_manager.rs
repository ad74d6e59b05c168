//! Types of [`rdmacm`](super), under the paths that they have in sideway 0.4.

/// [`rdmacm::ConnectionParameter`](super::ConnectionParameter).
pub type ConnectionParameter = super::ConnectionParameter;

/// [`rdmacm::Event`](super::Event).
pub type Event = super::Event;

/// [`rdmacm::EventChannel`](super::EventChannel).
pub type EventChannel = super::EventChannel;

/// [`rdmacm::EventType`](super::EventType).
pub type EventType = super::EventType;

/// [`rdmacm::GetEventError`](super::GetEventError).
pub type GetEventError = super::GetEventError;

/// [`rdmacm::Identifier`](super::Identifier).
pub type Identifier = super::Identifier;

/// [`rdmacm::PortSpace`](super::PortSpace).
pub type PortSpace = super::PortSpace;
