//! TCP ports for servers that a test starts.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};
use std::{fs, io, process};

use crate::children::may_choose;

/// Below the ports that the kernel gives to outgoing connections (`ip_local_port_range`). One of
/// those may be taken between this search and the server's `bind`.
const RANGE: Range<u16> = 10_000..30_000;

/// The ports already given.
static GIVEN: AtomicU16 = AtomicU16::new(0);

/// A TCP port that no socket uses, different for each call, and from those of other runs of this
/// program at the same time.
///
/// # Errors
///
/// If every port of the range is taken: the error of the last `bind`.
pub fn free_port() -> io::Result<u16> {
    // Other test programs begin elsewhere.
    let first = process::id() % 199 * 100;
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        let offset = (first + u32::from(given)) % RANGE.len() as u32;
        let port = RANGE.start + u16::try_from(offset).expect("it is within the range");
        if !may_choose(port) {
            continue;
        }
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            Ok(_) => return Ok(port),
            Err(error) if usize::from(given) >= RANGE.len() => return Err(error),
            Err(_) => (),
        }
    }
}

/// Whether a socket listens on a TCP port. Asks the kernel, because a server would take a probe's
/// connection for its client.
#[must_use]
pub fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let socket: Vec<_> = line.split_whitespace().collect();
            socket.get(1).is_some_and(|address| address.ends_with(&port)) && socket.get(3) == Some(&LISTEN)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_and_is_free() {
        let (first, second) = (free_port().unwrap(), free_port().unwrap());
        assert_ne!(first, second);
        assert!(!is_listening(second));
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, second)).unwrap();
        assert!(is_listening(second));
        GIVEN.fetch_sub(1, Ordering::Relaxed);
        assert_ne!(free_port().unwrap(), second);
    }
}
