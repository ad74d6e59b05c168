//! Connecting two queue pairs by what both sides exchange over a TCP connection.
//!
//! Each side sends a greeting: the endpoint, how many READs it serves at a time, and a value of the
//! program's. Then it connects its queue pair, and tells the peer whether that worked, so that neither
//! side sends to a queue pair that cannot receive yet.
//!
//! | bytes | of each frame |
//! | ---: | --- |
//! | 7 | `sideway` |
//! | 1 | the version, 1; other versions keep this head |
//! | 1 | the kind: 1 greeting, 2 connected, 3 failed |
//! | 4 | the length of the rest, big-endian |
//! | rest | a greeting as JSON: endpoint, READs served at a time, value; nothing; the reason as text |

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde_core::Serialize;
use serde_core::de::DeserializeOwned;

use super::{ConnectError, ConnectOptions, Connection, Endpoint, LocalPath, connect};
use crate::ibverbs::queue_pair::QueuePair;
use crate::ibverbs::readiness::{Deadline, wait_all};

const NAME: &[u8; 7] = b"sideway";
const VERSION: u8 = 1;
const HEAD: usize = NAME.len() + 2 + 4;

const GREETING: u8 = 1;
const CONNECTED: u8 = 2;
const FAILED: u8 = 3;

/// The longest frame after its head. Sockets buffer as much, so that both sides can send first.
const LONGEST: usize = 64 * 1024;

/// The limit of a stream without a read timeout.
const LIMIT: Duration = Duration::from_secs(30);

/// The result of [`over_tcp`].
#[derive(Clone, Debug)]
pub struct TcpPeer<R> {
    /// The MTU and the addressing.
    pub connection: Connection,
    /// The peer's queue pair.
    pub endpoint: Endpoint,
    /// The value that the peer's program sent.
    pub extra: R,
    /// What differs between the two sides and was settled, in words.
    pub differences: Vec<String>,
}

/// Two queue pairs could not be connected over TCP.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OverTcpError {
    /// The peer sent something else.
    #[error(
        "the peer sent {}, not sideway's greeting: does it call `over_tcp` now, and nothing before?",
        .found.escape_ascii()
    )]
    NoGreeting {
        /// Its first bytes.
        found: [u8; 7],
    },
    /// The peer is of another version.
    #[error(
        "the peer's greeting is of version {theirs}, this side's of {VERSION}: use one version of sideway"
    )]
    OtherVersion {
        /// The peer's version.
        theirs: u8,
    },
    /// A frame is out of order.
    #[error("the peer sent a frame of kind {found} where it was to {step}")]
    OutOfOrder {
        /// The kind of the frame.
        found: u8,
        /// What was expected of it.
        step: &'static str,
    },
    /// A greeting is too long.
    #[error(
        "{side} sends {len} bytes, and {LONGEST} is the most: send large values over the connection itself"
    )]
    TooLong {
        /// `this side` or `the peer`.
        side: &'static str,
        /// The length in bytes.
        len: usize,
    },
    /// The peer did not answer in time.
    #[error(
        "the peer did not {step} within {limit:?}: is it there? (The stream's read timeout is the limit, or {LIMIT:?})"
    )]
    TimedOut {
        /// What it was to do.
        step: &'static str,
        /// The limit of the whole exchange.
        limit: Duration,
    },
    /// The peer closed the stream.
    #[error("the peer closed the stream and did not {step}: its own error says why")]
    Closed {
        /// What it was to do.
        step: &'static str,
    },
    /// The stream failed.
    #[error("cannot exchange endpoints: {0}")]
    Io(#[source] io::Error),
    /// The program's value has no JSON form.
    #[error("the value for the peer cannot be written as JSON: {0}")]
    Encode(#[source] serde_json::Error),
    /// The peer's value is of another type.
    #[error("the peer's value is not what this side expects ({0}): do both sides send the same type?")]
    Decode(#[source] serde_json::Error),
    /// The peer's greeting is malformed.
    #[error("the peer's greeting is malformed: {0}")]
    Malformed(#[source] serde_json::Error),
    /// This side could not connect its queue pair. The peer got the reason.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer could not connect its queue pair.
    #[error("the peer could not connect its queue pair: {reason}")]
    PeerFailed {
        /// What it says, as one printable line.
        reason: String,
    },
}

debug_as_text!(OverTcpError);

/// Exchanges endpoints with the peer at the other end of `stream`, which calls this too, and brings
/// both queue pairs up to ready-to-send. `extra` is a value for the peer's program, for example the
/// [`RemoteMemory`](crate::memory::RemoteMemory) that it may access; both values are at most 64 KiB of
/// JSON.
///
/// A peer that sends before this side has posted receives is told to retry
/// ([`ConnectOptions::rnr_retry`]).
///
/// The number of outstanding READs is limited to what the peer serves. Nothing behind the exchange is
/// read from the stream, and its settings stay. The exchange takes at most the stream's read timeout,
/// or 30 s without one. An error leaves the queue pair in any state on the way: drop it.
///
/// ```
/// # #[cfg(feature = "soft")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::net::{TcpListener, TcpStream};
/// use sideway::ibverbs::connect::over_tcp;
/// use sideway::prelude::*;
///
/// # sideway::set_default_provider(sideway::ProviderChoice::Soft.select()?.provider());
/// fn side(mut stream: TcpStream, word: String) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
///     let context = DeviceList::auto()?.first()?.open()?;
///     let cq = context.create_cq_builder().build_generic()?;
///     let mut qp = context.alloc_pd()?.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).build_generic()?;
///     let path = LocalPath::choose(&context, 1, None)?;
///     let peer = over_tcp(&mut stream, &mut qp, &path, &ConnectOptions::default(), &word)?;
///     println!("connected: {}", peer.connection);
///     Ok(peer.extra)
/// }
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let client = std::thread::spawn(move || side(TcpStream::connect(address)?, "hello".to_owned()));
/// assert_eq!(side(listener.accept()?.0, "welcome".to_owned()).map_err(|error| error.to_string())?, "hello");
/// assert_eq!(client.join().unwrap().map_err(|error| error.to_string())?, "welcome");
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
///
/// # Errors
///
/// [`OverTcpError`] says which side failed and why.
pub fn over_tcp<R: DeserializeOwned>(
    stream: &mut TcpStream,
    qp: &mut impl QueuePair,
    path: &LocalPath,
    options: &ConnectOptions,
    extra: &(impl Serialize + ?Sized),
) -> Result<TcpPeer<R>, OverTcpError> {
    let limit = stream.read_timeout().map_err(OverTcpError::Io)?.unwrap_or(LIMIT);
    let mut wire = Wire { stream, deadline: Deadline::after(limit), limit };
    let local = Endpoint::new(qp, path, random_packet_seq_num());
    let own = Greeting { endpoint: local.clone(), serves: options.max_dest_read_atomic };
    wire.write(GREETING, &own.encode(extra)?)?;
    let payload = wire.read(GREETING, "send its greeting")?;
    let connected = Greeting::decode(&payload).and_then(|(theirs, extra)| {
        let options =
            ConnectOptions { max_read_atomic: options.max_read_atomic.min(theirs.serves), ..*options };
        let connection = connect(qp, path, &local, &theirs.endpoint, &options)?;
        Ok((theirs, extra, connection))
    });
    let (theirs, extra, connection) = match connected {
        Ok(connected) => connected,
        Err(error) => {
            // The reason may quote the peer's value, and be longer than a frame. The peer may be gone, and
            // this side's error says more.
            let _ = wire.write(FAILED, printable(error.to_string().as_bytes()).as_bytes());
            return Err(error);
        }
    };
    wire.write(CONNECTED, &[])?;
    wire.read(CONNECTED, "say that it is connected")?;
    let differences = differences(&own, &theirs, options);
    Ok(TcpPeer { connection, endpoint: theirs.endpoint, extra, differences })
}

fn differences(own: &Greeting, theirs: &Greeting, options: &ConnectOptions) -> Vec<String> {
    let (here, there) = (own.endpoint.mtu, theirs.endpoint.mtu);
    let mtu = (here != there).then(|| format!("the MTU is {here} here and {there} at the peer"));
    let (asked, served) = (options.max_read_atomic, theirs.serves);
    let reads = (asked > served).then(|| {
        format!(
            "{asked} READs at a time were asked for, and the peer serves {served} (`max_dest_read_atomic`)"
        )
    });
    mtu.into_iter().chain(reads).collect()
}

/// A number that a stale packet of an earlier connection hardly has.
fn random_packet_seq_num() -> u32 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() as u32 & 0x00ff_ffff
}

/// What each side tells of itself.
struct Greeting {
    endpoint: Endpoint,
    /// READs and atomics of the peer that it serves at a time.
    serves: u8,
}

impl Greeting {
    fn encode(&self, extra: &(impl Serialize + ?Sized)) -> Result<Vec<u8>, OverTcpError> {
        serde_json::to_vec(&(&self.endpoint, self.serves, extra)).map_err(OverTcpError::Encode)
    }

    /// The peer's greeting, and its program's value.
    fn decode<R: DeserializeOwned>(payload: &[u8]) -> Result<(Self, R), OverTcpError> {
        let (endpoint, serves, extra): (Endpoint, u8, serde_json::Value) =
            serde_json::from_slice(payload).map_err(OverTcpError::Malformed)?;
        let extra = serde_json::from_value(extra).map_err(OverTcpError::Decode)?;
        Ok((Self { endpoint, serves }, extra))
    }
}

/// Frames on a stream, which is used without its settings.
struct Wire<'a> {
    stream: &'a TcpStream,
    deadline: Deadline,
    limit: Duration,
}

impl Wire<'_> {
    fn write(&mut self, kind: u8, payload: &[u8]) -> Result<(), OverTcpError> {
        if payload.len() > LONGEST {
            return Err(OverTcpError::TooLong { side: "this side", len: payload.len() });
        }
        let mut frame = Vec::with_capacity(HEAD + payload.len());
        frame.extend_from_slice(NAME);
        frame.extend_from_slice(&[VERSION, kind]);
        frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        frame.extend_from_slice(payload);
        let mut left = &frame[..];
        while !left.is_empty() {
            let sent = self.wait(PollFlags::OUT, "take this side's greeting", || {
                send(self.stream, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            })?;
            left = &left[sent..];
        }
        Ok(())
    }

    /// Reads a frame of this kind.
    fn read(&mut self, kind: u8, step: &'static str) -> Result<Vec<u8>, OverTcpError> {
        let mut head = [0; HEAD];
        self.fill(&mut head, step)?;
        let (name, rest) = head.split_first_chunk().expect("the head is longer than the name");
        if name != NAME {
            return Err(OverTcpError::NoGreeting { found: *name });
        }
        let &[theirs, found, ref len @ ..] = rest else { unreachable!("the head has its length") };
        if theirs != VERSION {
            return Err(OverTcpError::OtherVersion { theirs });
        }
        let len = u32::from_be_bytes(len.try_into().expect("four bytes are left")) as usize;
        if len > LONGEST {
            return Err(OverTcpError::TooLong { side: "the peer", len });
        }
        let mut payload = vec![0; len];
        self.fill(&mut payload, step)?;
        match found {
            _ if found == kind => Ok(payload),
            FAILED => Err(OverTcpError::PeerFailed { reason: printable(&payload) }),
            _ => Err(OverTcpError::OutOfOrder { found, step }),
        }
    }

    fn fill(&mut self, mut buffer: &mut [u8], step: &'static str) -> Result<(), OverTcpError> {
        while !buffer.is_empty() {
            let (read, _) =
                self.wait(PollFlags::IN, step, || recv(self.stream, &mut *buffer, RecvFlags::DONTWAIT))?;
            if read == 0 {
                return Err(OverTcpError::Closed { step });
            }
            buffer = &mut buffer[read..];
        }
        Ok(())
    }

    /// Makes a call that does not block, and waits while it would.
    fn wait<T>(
        &self,
        event: PollFlags,
        step: &'static str,
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, OverTcpError> {
        loop {
            match call() {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let stream = self.stream.as_fd();
                    let ready = wait_all(&mut [PollFd::new(&stream, event)], self.deadline);
                    if !ready.map_err(OverTcpError::Io)? {
                        return Err(OverTcpError::TimedOut { step, limit: self.limit });
                    }
                }
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(OverTcpError::Closed { step }),
                result => return result.map_err(|error| OverTcpError::Io(error.into())),
            }
        }
    }
}

/// One printable line of a reason, whatever it consists of: at most 1000 characters.
fn printable(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect()
}

#[cfg(test)]
mod tests;
