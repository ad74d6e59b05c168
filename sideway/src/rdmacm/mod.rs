//! librdmacm, the connection manager: connections by IP address and port.
//!
//! An [`EventChannel`] says what happens; an [`Identifier`] is a connection, a listener or a datagram service. Whoever connects resolves an
//! address (which finds the device), then a route, then [connects](Identifier::connect); whoever listens gets an event with a new
//! identifier for each request, and [accepts](Identifier::accept) or [rejects](Identifier::reject) it. Queue pairs are made by the
//! builders of [`ibverbs`](crate::ibverbs), of the identifier's [device](Identifier::get_device_context), and brought to their states
//! by what the identifier [knows](Identifier::modify_qp). For programs that rather wait than handle events there are [`Connector`] and
//! [`Listener`].
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
//! // Both sides in one thread, on one channel.
//! let channel = EventChannel::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let listener = channel.create_id(PortSpace::Tcp)?;
//! listener.bind_addr((Ipv4Addr::LOCALHOST, 0))?;
//! listener.listen(16)?;
//! let client = channel.create_id(PortSpace::Tcp)?;
//! let timeout = Duration::from_secs(2);
//! client.resolve_addr(None, (Ipv4Addr::LOCALHOST, listener.local_port().unwrap_or(0)), timeout)?;
//!
//! let (mut clients, mut servers, mut server) = (None, None, None);
//! loop {
//!     let event = channel.get_cm_event()?;
//!     if let Some(error) = event.error() {
//!         return Err(error.into());
//!     }
//!     let (id, mut parameter) = (event.cm_id(), ConnectionParameter::new());
//!     match event.event_type() {
//!         EventType::AddressResolved => id.resolve_route(timeout)?,
//!         EventType::RouteResolved => {
//!             let qp = clients.insert(make(&id.get_device_context()?)?);
//!             id.modify_qp(qp, QueuePairState::Init)?;
//!             id.connect(parameter.setup_queue_pair(qp.control()).setup_private_data(b"hello"))?;
//!         }
//!         EventType::ConnectRequest => {
//!             println!("somebody says {:?}", event.private_data());
//!             let qp = servers.insert(make(&id.get_device_context()?)?);
//!             for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
//!                 id.modify_qp(qp, state)?;
//!             }
//!             id.accept(parameter.setup_queue_pair(qp.control()))?;
//!             // Without a handle the connection would be closed.
//!             server = Some(id.clone());
//!         }
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
//! In C an event has to be acknowledged, and an identifier cannot be destroyed while one of its events is not: a program that destroys
//! it with an event in hand waits for itself. Here an [`Event`] is a value: everything in it is copied, and it is acknowledged before it is
//! given out. So identifiers can be dropped at any time, also while other threads take events. The last handle's end is the
//! identifier's: its events that nobody took are forgotten, its requests that nobody took are rejected, as is a request whose event is dropped.
//!
//! # Queue pairs
//!
//! There is no `rdma_create_qp`. A queue pair that it makes is C's to destroy (`rdma_destroy_qp`), before the identifier but after the last
//! completion; whoever holds a handle of it would hold one of something that another owns; and `rdma_get_cm_event` would change its state
//! while it is being posted to, in whichever thread takes events. So queue pairs are made by
//! [the builder](crate::ibverbs::queue_pair::QueuePairBuilder), have one owner, and change their state when the program says so; `rdma_connect`
//! and `rdma_accept` are told the number, and `rdma_establish` does the rest. That needs rdma-core 23 or newer.
//!
//! # Threads
//!
//! Everything can be shared between threads. Calls for identifiers of one channel, and the taking of its events, go one after the other, because
//! librdmacm writes into identifiers in both; none of them sleeps. Channels do not wait for one another.

mod address;
mod channel;
mod connect;
mod devices;
mod event;
mod getaddrinfo;
mod identifier;
mod multicast;
mod options;
mod parameter;
mod queue_pair;
mod resolve;
mod synchronous;

pub use address::{Address, IbAddress, UnknownAddress};
pub use channel::{EventChannel, GetEventError};
pub use devices::{get_devices, get_devices_of};
pub use event::{
    ConnectionInfo, DatagramInfo, Event, EventError, EventStatus, EventType, MulticastInfo, RejectReason,
};
pub use getaddrinfo::{AddressInfo, AddressInfoFlags, AddressInfoHints, getaddrinfo, getaddrinfo_of};
pub use identifier::{Identifier, IdentifierState, PortSpace};
pub use multicast::JoinFlags;
pub use parameter::ConnectionParameter;
pub use synchronous::{ConnectError, Connection, ConnectionRequest, Connector, Listener};
