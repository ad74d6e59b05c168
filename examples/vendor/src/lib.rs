//! Direct verbs of a made-up vendor: an example of a crate that adds a vendor to
//! [`sideway`](sideway::direct).
//!
//! `libacme.so.1` does not exist. Its functions would add to libibverbs:
//!
//! - a **pace** of a queue pair, in Mbit/s, which the device does not exceed ([`PairBuilder`]),
//! - **signals**: requests that write 64 bits to the peer's memory, without a local buffer
//!   ([`SignalRequest::setup_signal`]),
//! - attributes of the [device](DirectVerbs::query_device).
//!
//! [`DirectVerbs::of`] is the entry point. It fails for a device that is not Acme's, and names the
//! library if that is missing.
//!
//! ```no_run
//! use acme_direct::{DirectVerbs, SignalRequest};
//! use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, QueuePairBuilder, WorkRequestFlags};
//!
//! # fn notify(
//! #     context: &sideway::DeviceContext, description: &QueuePairBuilder, rkey: u32, remote: u64,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let acme = DirectVerbs::of(context)?;
//! let mut qp = acme.create_pair_builder(description).setup_pace(10_000).build()?;
//! // ... connect, as any queue pair ...
//!
//! let mut guard = qp.start_post_send();
//! guard.construct_wr(1, WorkRequestFlags::Signaled).setup_signal(rkey, remote, 42);
//! guard.post()?;
//! # Ok(()) }
//! ```

mod device;
mod library;
mod queue_pair;
mod signal;

pub use device::{DeviceAttributes, DirectVerbs};
pub use library::{ACME_CAP_SIGNAL, ACME_QP_SIGNAL, Acme, acme_device_attr, acme_qp_ex, acme_qp_init_attr};
pub use queue_pair::PairBuilder;
pub use signal::{SignalGuard, SignalQueuePair, SignalRequest, SignalSendQueue};
