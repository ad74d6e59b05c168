//! librdmacm, the connection manager: connections by IP address and port.
//!
//! An [`EventChannel`] delivers events. An [`Identifier`] is a connection, a listener or a datagram
//! service. The active side resolves an address (which finds the device), then a route, then
//! [connects](Identifier::connect). A listener gets an event with a new identifier for each
//! request, and [accepts](Identifier::accept) or [rejects](Identifier::reject) it.
//!
//! The builders of [`ibverbs`](crate::ibverbs) make queue pairs on the identifier's
//! [device](Identifier::get_device_context). The identifier [supplies](Identifier::modify_qp) the
//! attributes for their state changes. [`Connector`] and [`Listener`] are for programs that prefer
//! blocking calls to events.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::net::Ipv4Addr;
//! use std::time::Duration;
//!
//! use sideway::ibverbs::device_context::DeviceContext;
//! use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, QueuePairState};
//! use sideway::rdmacm::{ConnectionParameter, EventChannel, EventType, PortSpace};
//!
//! fn make(context: &DeviceContext) -> Result<GenericQueuePair, Box<dyn std::error::Error>> {
//!     let cq = context.create_cq_builder().build_generic()?;
//!     Ok(context.alloc_pd()?.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?)
//! }
//!
//! // Both sides run in one thread, on one channel.
//! let channel = EventChannel::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let listener = channel.create_id(PortSpace::Tcp)?;
//! listener.bind_addr((Ipv4Addr::LOCALHOST, 0))?;
//! listener.listen(16)?;
//! let client = channel.create_id(PortSpace::Tcp)?;
//! let timeout = Duration::from_secs(2);
//! client.resolve_addr(None, (Ipv4Addr::LOCALHOST, listener.local_port().unwrap_or(0)), timeout)?;
//!
//! let (mut clients, mut servers, mut server) = (None, None, None);
//!
//! loop {
//!     let event = channel.get_cm_event()?;
//!     if let Some(error) = event.error() {
//!         return Err(error.into());
//!     }
//!     let (id, mut parameter) = (event.cm_id(), ConnectionParameter::new());
//!
//!     match event.event_type() {
//!         EventType::AddressResolved => id.resolve_route(timeout)?,
//!         EventType::RouteResolved => {
//!             let qp = clients.insert(make(&id.get_device_context()?)?);
//!             id.modify_qp(qp, QueuePairState::Init)?;
//!             id.connect(parameter.setup_queue_pair(qp.control()).setup_private_data(b"hello"))?;
//!         }
//!
//!         EventType::ConnectRequest => {
//!             println!("a peer sent {:?}", event.private_data());
//!             let qp = servers.insert(make(&id.get_device_context()?)?);
//!             use QueuePairState as State;
//!             for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
//!                 id.modify_qp(qp, state)?;
//!             }
//!             id.accept(parameter.setup_queue_pair(qp.control()))?;
//!             // Dropping the last handle would close the connection.
//!             server = Some(id.clone());
//!         }
//!
//!         EventType::ConnectResponse => {
//!             let qp = clients.as_mut().ok_or("no queue pair")?;
//!             id.modify_qp(qp, QueuePairState::ReadyToReceive)?;
//!             id.modify_qp(qp, QueuePairState::ReadyToSend)?;
//!             id.establish()?;
//!         }
//!         EventType::Established => break,
//!         other => println!("{other}"),
//!     }
//! }
//! assert_eq!(client.local_addr(), server.and_then(|server| server.peer_addr()));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```
//!
//! # Events and identifiers
//!
//! In C a program must acknowledge each event, and an identifier cannot be destroyed while one of
//! its events is not acknowledged. A program that destroys it with an event in hand deadlocks. Here
//! an [`Event`] is a plain value: everything in it is copied, and it is acknowledged before the
//! program gets it. So identifiers can be dropped at any time, also while other threads take
//! events.
//!
//! Dropping the last handle destroys the identifier. Its pending events are discarded, and its
//! pending requests are rejected, as is a request whose event is dropped.
//!
//! # Queue pairs
//!
//! This crate does not wrap `rdma_create_qp`, for two reasons. C would own the queue pair and
//! destroy it (`rdma_destroy_qp`), before the identifier but after the last completion, so that a
//! Rust handle would refer to an object with another owner. And `rdma_get_cm_event` would change
//! its state in any thread that takes events, while another thread posts to it.
//!
//! Instead, [the builder](crate::ibverbs::queue_pair::QueuePairBuilder) makes queue pairs. They
//! have one owner, and change their state only when the program requests it. `rdma_connect` and
//! `rdma_accept` get the queue pair's number, and `rdma_establish` completes the handshake. That
//! needs rdma-core 23 or newer.
//!
//! # Threads
//!
//! All types can be shared between threads. Calls for identifiers of one channel, and the taking of
//! its events, are serialised, because librdmacm writes into identifiers in both. None of them
//! sleeps under the lock. Channels are independent of one another.

mod address;
mod channel;
#[deprecated(note = "its types are in `sideway::rdmacm`")]
pub mod communication_manager;
mod connect;
mod devices;
mod event;
mod getaddrinfo;
mod identifier;
mod identifier_state;
mod multicast;
mod options;
mod parameter;
mod queue_pair;
mod resolve;
mod synchronous;

pub use address::{Address, IbAddress, UnknownAddress, missing_interface};
pub use channel::{EventChannel, GetEventError};
pub use devices::{get_devices, get_devices_of};
pub use event::{
    ConnectionInfo, DatagramInfo, Event, EventError, EventStatus, EventType, MulticastInfo, RejectReason,
};
pub use getaddrinfo::{AddressInfo, AddressInfoFlags, AddressInfoHints, getaddrinfo, getaddrinfo_of};
pub use identifier::{Identifier, PortSpace};
pub use identifier_state::IdentifierState;
pub use multicast::JoinFlags;
pub use parameter::ConnectionParameter;
pub use synchronous::{ConnectError, Connection, ConnectionRequest, Connector, Listener};
