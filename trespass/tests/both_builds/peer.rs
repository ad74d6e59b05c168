//! Both ends of a connection: one echoes, and the other verifies the echo. `both_builds.rs`
//! includes this file, and also builds it as a program without the feature `rdma`:
//!
//!     peer listen KIND            prints `listening at ADDR`, and echoes for the first client
//!     peer connect KIND ADDR      sends bytes or messages and verifies the echo
//!     peer require                builds a configuration that requires RDMA
//!
//! Each prints its outcome in one line at the end.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use trespass::{
    Builder, ConfigError, ConnectError, FallbackReason, HandshakeError, Listener, Policy, SeqPacket, Stream,
    Transport,
};

/// A limit far above the duration of any working call.
const LONG: Duration = Duration::from_secs(60);

/// Sizes of a client's messages: empty ones, one that shares a frame with others, and one that
/// takes many frames.
const MESSAGES: [usize; 5] = [0, 1, 8192, 70_000, 700_000];

#[allow(dead_code, reason = "where it is not a program of its own")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["listen", kind] => Builder::new().bind("127.0.0.1:0").and_then(|mut listener| {
            println!("listening at {}", listener.local_addr()?);
            serve(&mut listener, kind)
        }),
        ["connect", kind, addr] => use_server(Builder::new(), kind, addr.parse().expect("an address")),
        ["require"] => Builder::new()
            .policy(Policy::RequireRdma)
            .build()
            .map(|_| "a configuration".to_owned())
            .map_err(Into::into),
        _ => panic!("what is {words:?}?"),
    };
    println!("{}", outcome.unwrap_or_else(|error| refusal(&error)));
}

/// Accepts a client, echoes until it ends, and returns the transport.
pub(crate) fn serve(listener: &mut Listener, kind: &str) -> io::Result<String> {
    listener.set_accept_timeout(Some(LONG))?;
    if kind == "messages" {
        let mut packets = listener.accept_seq_packet()?.0;
        packets.set_read_timeout(Some(LONG))?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match packets.recv(&mut buffer) {
                Ok(len) => packets.send(&buffer[..len])?,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        Ok(told(packets.transport(), packets.fallback_reason()))
    } else {
        let mut stream = listener.accept()?.0;
        stream.set_read_timeout(Some(LONG))?;
        let mut buffer = vec![0; 100_000];
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                len => stream.write_all(&buffer[..len])?,
            }
        }
        Ok(told(stream.transport(), stream.fallback_reason()))
    }
}

/// Connects, verifies that all data returns as it was sent, and returns the transport.
pub(crate) fn use_server(builder: Builder, kind: &str, addr: SocketAddr) -> io::Result<String> {
    match kind {
        "messages" => use_messages(builder.connect_seq_packet(addr)?),
        _ => use_stream(builder.connect(addr)?),
    }
}

fn use_messages(mut packets: SeqPacket) -> io::Result<String> {
    packets.set_read_timeout(Some(LONG))?;
    let mut buffer = vec![0; 1 << 20];
    for len in MESSAGES {
        packets.send(&pattern(len))?;
        let came = packets.recv(&mut buffer)?;
        assert!(buffer[..came] == pattern(len), "another message than that of {len} bytes");
    }
    packets.shutdown(Shutdown::Write)?;
    assert_eq!(packets.recv(&mut buffer).map_err(|error| error.kind()), Err(ErrorKind::UnexpectedEof));
    Ok(told(packets.transport(), packets.fallback_reason()))
}

fn use_stream(mut stream: Stream) -> io::Result<String> {
    stream.set_read_timeout(Some(LONG))?;
    let sent = pattern(300_000);
    stream.write_all(&sent)?;
    stream.shutdown(Shutdown::Write)?;
    let mut came = Vec::new();
    stream.read_to_end(&mut came)?;
    assert!(came == sent, "{} bytes came back of {}, or others", came.len(), sent.len());
    Ok(told(stream.transport(), stream.fallback_reason()))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// `RDMA`, or `TCP: Peer BuiltWithout: ` followed by the reason's text.
fn told(transport: Transport, reason: Option<&FallbackReason>) -> String {
    match reason {
        Some(reason) => format!("{transport}: {:?} {:?}: {reason}", reason.side(), reason.cause()),
        None => transport.to_string(),
    }
}

/// An error's type and text.
pub(crate) fn refusal(error: &io::Error) -> String {
    let inner: Option<&(dyn Error + 'static)> = error.get_ref().map(|inner| inner as _);
    if let Some(error) = inner.and_then(|inner| inner.downcast_ref::<ConfigError>()) {
        return format!("config {}: {error}", error.parameter());
    }
    match inner.and_then(|inner| inner.downcast_ref()) {
        Some(ConnectError::Handshake { source: HandshakeError::Rejected { reason, text, .. }, .. }) => {
            format!("rejected {reason:?}: {text}")
        }
        Some(ConnectError::Handshake { source: HandshakeError::RdmaRequired { by, reason }, .. }) => {
            format!("required by {by:?}: {:?} {:?}: {reason}", reason.side(), reason.cause())
        }
        _ => format!("{:?}: {error}", error.kind()),
    }
}
