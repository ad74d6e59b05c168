//! Carries the bytes of one connection both ways between a TCP socket and a trespass stream, with
//! half-closes, and finds failures on either side.
//!
//! Both sockets are *armed*: their drop resets the connection. Only a clean end disarms
//! them. So a task that is cancelled or panics, and a process that is killed, never make a
//! peer believe that it has read all bytes.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, tcp};
use tokio::select;
use tokio::time::{MissedTickBehavior, interval};
use trespass::tokio::Stream;

use crate::buffers::RelayBuffer;
use crate::introduction;

/// How often a stream that nobody reads is asked whether it has failed.
const LOOK: Duration = Duration::from_secs(1);

/// Payload bytes of one direction, counted when they have been written.
pub(crate) struct ByteCount {
    of_connection: AtomicU64,
    of_route: Counter,
}

impl ByteCount {
    pub(crate) fn new(of_route: Counter) -> Self {
        Self { of_connection: AtomicU64::new(0), of_route }
    }

    /// The bytes of this connection.
    pub(crate) fn get(&self) -> u64 {
        self.of_connection.load(Ordering::Relaxed)
    }

    fn add(&self, count: usize) {
        self.of_connection.fetch_add(count as u64, Ordering::Relaxed);
        self.of_route.inc_by(count as u64);
    }
}

/// The bytes of both directions.
pub(crate) struct Carried {
    /// From the TCP socket to the stream.
    pub(crate) up: ByteCount,
    /// From the stream to the TCP socket.
    pub(crate) down: ByteCount,
}

/// Why no more bytes are carried.
pub(crate) enum Broken {
    Tcp(io::Error),
    Stream(io::Error),
    /// The serving end has no target, and says why.
    Refused(String),
}

/// Makes a drop of the socket a reset, and its segments leave at once.
pub(crate) fn arm_tcp(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    // Finds a host that has vanished, in the system's time.
    socket.set_keepalive(true)?;
    socket.set_linger(Some(Duration::ZERO))
}

/// Makes a drop of the stream a reset.
pub(crate) fn arm_stream(stream: &Stream) -> io::Result<()> {
    stream.set_linger(Some(Duration::ZERO))
}

/// Carries bytes between two armed sockets until both directions have ended, and closes both.
/// `has_verdict` says that the stream begins with one.
pub(crate) async fn carry(
    mut tcp: TcpStream,
    mut stream: Stream,
    has_verdict: bool,
    carried: &Carried,
) -> Result<(), Broken> {
    both_ways(&mut tcp, &mut stream, has_verdict, carried).await?;
    // What was written is still sent.
    SockRef::from(&tcp).set_linger(None).map_err(Broken::Tcp)?;
    stream.set_linger(None).map_err(Broken::Stream)
}

async fn both_ways(
    tcp: &mut TcpStream,
    stream: &mut Stream,
    has_verdict: bool,
    carried: &Carried,
) -> Result<(), Broken> {
    let (tcp_reads, tcp_writes) = tcp.split();
    let (mut stream_reads, stream_writes) = stream.split();
    let mut up = pin!(one_way(tcp_reads, stream_writes, &carried.up));
    // The client's bytes do not wait for the verdict.
    let mut down = pin!(async {
        if has_verdict
            && let Some(why) = introduction::verdict(&mut stream_reads).await.map_err(OneWayError::Source)?
        {
            return Err(OneWayError::Refused(why));
        }
        one_way(stream_reads, tcp_writes, &carried.down).await
    });
    // The direction that still runs does not read from the side that has ended.
    select! {
        ended = &mut up => {
            let tcp_reads = ended.map_err(OneWayError::upwards)?;
            select! {
                ended = down => ended.map_err(OneWayError::downwards).map(drop),
                error = tcp_reads.failure() => Err(Broken::Tcp(error)),
            }
        }
        ended = &mut down => {
            let stream_reads = ended.map_err(OneWayError::downwards)?;
            select! {
                ended = up => ended.map_err(OneWayError::upwards).map(drop),
                error = stream_reads.failure() => Err(Broken::Stream(error)),
            }
        }
    }
}

/// The failure of one end of a direction.
enum OneWayError {
    Source(io::Error),
    Sink(io::Error),
    Refused(String),
}

impl OneWayError {
    fn upwards(self) -> Broken {
        match self {
            Self::Source(error) => Broken::Tcp(error),
            Self::Sink(error) => Broken::Stream(error),
            Self::Refused(why) => Broken::Refused(why),
        }
    }

    fn downwards(self) -> Broken {
        match self {
            Self::Source(error) => Broken::Stream(error),
            Self::Sink(error) => Broken::Tcp(error),
            Self::Refused(why) => Broken::Refused(why),
        }
    }
}

/// Carries bytes until the source ends, and passes the end on. Returns the source.
async fn one_way<S: Source>(
    mut source: S,
    mut sink: impl AsyncWrite + Unpin,
    carried: &ByteCount,
) -> Result<S, OneWayError> {
    let mut buffer = None;
    loop {
        let count = read(&mut source, &mut buffer).await.map_err(OneWayError::Source)?;
        let Some(bytes) = buffer.as_deref().filter(|_| count > 0) else {
            sink.shutdown().await.map_err(OneWayError::Sink)?;
            return Ok(source);
        };
        select! {
            // A write that need not wait does not ask the source.
            biased;
            written = sink.write_all(&bytes[..count]) => written.map_err(OneWayError::Sink)?,
            error = source.failure() => return Err(OneWayError::Source(error)),
        }
        carried.add(count);
    }
}

/// Reads into the buffer, and has none while it waits.
async fn read(source: &mut (impl AsyncRead + Unpin), buffer: &mut Option<RelayBuffer>) -> io::Result<usize> {
    poll_fn(|context| {
        let mut unread = ReadBuf::new(buffer.get_or_insert_with(RelayBuffer::take));
        match Pin::new(&mut *source).poll_read(context, &mut unread) {
            Poll::Pending => {
                *buffer = None;
                Poll::Pending
            }
            Poll::Ready(read) => Poll::Ready(read.map(|()| unread.filled().len())),
        }
    })
    .await
}

/// The half of a socket that reads.
trait Source: AsyncRead + Unpin {
    /// Waits until the socket has failed, without reading.
    async fn failure(&self) -> io::Error;
}

impl Source for tcp::ReadHalf<'_> {
    async fn failure(&self) -> io::Error {
        let tcp: &TcpStream = self.as_ref();
        let taken =
            tcp.async_io(Interest::ERROR, || tcp.take_error()?.ok_or(io::ErrorKind::WouldBlock.into()));
        taken.await.unwrap_or_else(|error| error)
    }
}

impl Source for trespass::tokio::ReadHalf<'_> {
    async fn failure(&self) -> io::Error {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            match self.as_ref().take_error() {
                Ok(None) => (),
                Ok(Some(error)) | Err(error) => return error,
            }
        }
    }
}
