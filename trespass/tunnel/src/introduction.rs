//! What the two ends of a tunnel tell each other besides the bytes.
//!
//! Both put [`MARK`] into the handshake (`Builder::user_data`). The connecting end may name a target
//! behind it. If both have the mark, the serving end sends a verdict before the target's bytes: the
//! byte 0, or the byte 1 and a text until the end of the stream. Without the mark the other end is a
//! program that uses trespass itself, and the bytes go through as they are.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use trespass::tokio::Stream;

use crate::address::HostPort;

const MARK: &[u8] = b"trespass-tunnel/";
const VERSION: &[u8] = b"1";

const CONNECTED: u8 = 0;
const REFUSED: u8 = 1;
/// Bytes of a verdict's text that are read and sent.
const LONGEST_TEXT: usize = 512;
/// How long a refused peer has to read the verdict.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the other end told in the handshake.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Introduction {
    /// A program that uses trespass itself.
    Program,
    /// An end of a tunnel, with the target that it asks for.
    Tunnel(Option<HostPort>),
}

/// The bytes for the handshake of one end.
pub(crate) fn introduce(target: Option<&HostPort>) -> Vec<u8> {
    let mut bytes = [MARK, VERSION].concat();
    if let Some(target) = target {
        bytes.push(b' ');
        bytes.extend_from_slice(target.as_str().as_bytes());
    }
    bytes
}

impl Introduction {
    /// Reads the other end's bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let Some(rest) = bytes.strip_prefix(MARK) else {
            return Ok(Self::Program);
        };
        let (version, target) = match rest.iter().position(|byte| *byte == b' ') {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        if version != VERSION {
            return Err(format!(
                "the other end has the tunnel's version {:?}, and this one {:?}: use one release on both sides",
                String::from_utf8_lossy(version),
                String::from_utf8_lossy(VERSION),
            ));
        }
        target.map(|target| String::from_utf8_lossy(target).parse()).transpose().map(Self::Tunnel)
    }
}

/// Tells the connecting end that the target is connected.
pub(crate) async fn accept(stream: &mut Stream) -> io::Result<()> {
    stream.write_all(&[CONNECTED]).await
}

/// Tells the connecting end why its connection ends, and waits until it knows, for a limited time.
pub(crate) async fn refuse(stream: &mut Stream, why: &str) -> io::Result<()> {
    let mut verdict = vec![REFUSED];
    verdict.extend_from_slice(&why.as_bytes()[..why.len().min(LONGEST_TEXT)]);
    stream.write_all(&verdict).await?;
    stream.shutdown().await?;
    // Its bytes have no receiver. A drop with unread ones would reset the connection.
    let mut nowhere = tokio::io::sink();
    let _ = timeout(FAREWELL, tokio::io::copy(stream, &mut nowhere)).await;
    Ok(())
}

/// Reads the serving end's verdict: `None`, or why it refuses.
pub(crate) async fn verdict(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Option<String>> {
    match stream.read_u8().await? {
        CONNECTED => Ok(None),
        REFUSED => {
            let mut text = Vec::new();
            stream.take(LONGEST_TEXT as u64).read_to_end(&mut text).await?;
            Ok(Some(String::from_utf8_lossy(&text).replace(char::is_control, " ")))
        }
        other => {
            let words = format!("the serving end began with the byte {other}, which is no verdict");
            Err(io::Error::new(io::ErrorKind::InvalidData, words))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_introduction_is_read_as_it_was_made() {
        let target: HostPort = "db.example:5432".parse().expect("an address");
        for target in [None, Some(target)] {
            let bytes = introduce(target.as_ref());
            assert_eq!(Introduction::read(&bytes), Ok(Introduction::Tunnel(target)));
        }
        for bytes in [&b""[..], b"another program", b"trespass-tunnel"] {
            assert_eq!(Introduction::read(bytes), Ok(Introduction::Program));
        }
    }

    #[test]
    fn other_versions_and_other_texts_are_refused() {
        for bytes in [&b"trespass-tunnel/"[..], b"trespass-tunnel/2", b"trespass-tunnel/11 a:1"] {
            assert!(Introduction::read(bytes).expect_err("refused").contains("version"));
        }
        for bytes in [&b"trespass-tunnel/1 "[..], b"trespass-tunnel/1 \xff", b"trespass-tunnel/1 a"] {
            assert!(Introduction::read(bytes).expect_err("refused").contains("no address"));
        }
    }
}
