//! The control connection: what the two sides tell each other over TCP, beside the RDMA traffic.
//!
//! ```text
//! client                                server
//!   Request: the client's test     ->
//!                                  <-     Accept: the server's own test
//!   Resources                     <->     Resources      for each queue pair: its address, and that of its memory
//!                                  <-     Meeting        if rdma_cm connects them: where the server listens
//!   Ready                         <->     Ready          both queue pairs can send
//!   Begin                         <->     Begin          for each size: both are about to measure
//!   Row                            ->                    for each size: what the client measured; if both measure,
//!                                  <-     Row            the server, too
//!   Arrived                       <->     Arrived        for each size, where it is asked: how many messages came
//!   Done                          <->     Done           nobody needs the other's memory any more
//! ```
//!
//! The system's TCP is measured over a connection of its own: in the place of `Resources` and `Ready` the server says by `Stream` where it is.
//!
//! Messages of trespass are measured over the connection that the two sides agree on: each of these words is one
//! message of it, there are no resources, and `Ready` alone is left out.
//!
//! Where a secret is shared, each side first proves that it knows it (`secret`).
//!
//! Over TCP each side says once a second that it is there, measuring or not, so that the other one notices within seconds when it is not.
//!
//! Either side may send a failure in place of any message. Frames carry a magic number and the protocol's
//! version, so that a peer of another release and a stranger on the port are told apart.

mod error;
mod frame;
mod link;
mod message;
mod packets;
mod secret;
mod socket;
mod tcp;

pub use error::ControlError;
pub use frame::{
    Frame, FrameError, FrameKind, HEADER_LENGTH, MAGIC, MAX_PAYLOAD, VERSION, read_frame, write_frame,
};
pub use link::{ControlLink, FrameTransport, PeerStatus};
pub use message::{CmAddress, ControlMessage, Greeting, Resources, XrcTargetInfo};
pub use packets::SeqPacketFrames;
pub use secret::nonce;
pub use secret::{LONGEST_SECRET, Nonce, Proof, SHORTEST_SECRET, Secret, SecretError, SecretRefusal};
pub use socket::link;
pub use socket::{ControlListener, connect};
pub use tcp::Tcp;
