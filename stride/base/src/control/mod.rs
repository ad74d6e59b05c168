//! The control connection: the messages that the two sides exchange over TCP, beside the RDMA
//! traffic.
//!
//! ```text
//! client                                server
//!   Request: the client's test     ->
//!                                  <-     Accept: the server's test
//!   Resources                     <->     Resources      per queue pair: address and memory
//!                                  <-     Meeting        with rdma_cm: the server's address
//!   Ready                         <->     Ready          both queue pairs can send
//!   Begin                         <->     Begin          per size: both are about to measure
//!   Row                            ->                    per size: the client's measurement
//!                                  <-     Row            per size: the server's, if both measure
//!   Arrived                       <->     Arrived        on request: messages received
//!   Done                          <->     Done           neither needs the other's memory
//! ```
//!
//! A test of TCP measures a separate connection: in place of `Resources` and `Ready` the server
//! sends its port in `Stream`.
//!
//! A test of trespass's messages measures the connection that also carries the control messages:
//! each of them is one message, or a one-way message of a mux. Resources are not exchanged, and
//! `Ready` is left out.
//!
//! With a shared secret, each side first proves that it knows it (`secret`).
//!
//! Over TCP each side sends a beat once a second, measuring or not, so that the other one notices
//! its end within seconds.
//!
//! Either side may send a failure in place of any message. Frames carry a magic number and the
//! protocol's version, so that a peer can tell another release from another program.

mod error;
mod frame;
mod link;
mod message;
mod mux;
mod packets;
mod queue;
mod secret;
mod socket;
mod tcp;

pub use error::ControlError;
pub use frame::{
    Frame, FrameError, FrameKind, HEADER_LENGTH, MAGIC, MAX_PAYLOAD, VERSION, read_frame, write_frame,
};
pub use link::{ClosableTransport, ControlLink, FrameTransport, LinkCloser, PeerStatus};
pub use message::{CmAddress, ControlMessage, Greeting, Resources, XrcTargetInfo};
pub use mux::MuxFrames;
pub use packets::SeqPacketFrames;
pub use secret::nonce;
pub use secret::{LONGEST_SECRET, Nonce, Proof, SHORTEST_SECRET, Secret, SecretError, SecretRefusal};
pub use socket::{ControlListener, connect};
pub use tcp::Tcp;
