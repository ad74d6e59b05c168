//! Peers of other protocols, recognized by their first bytes: how they are named, and what a server
//! answers them in their own protocol.

use std::fmt;

/// What a server answers to programs that read lines.
const LINE: &[u8] = b"This port speaks trespass, and no other protocol.\r\n";

/// The answer to an HTTP request.
const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 51\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks trespass, and no other protocol.\r\n";

/// A fatal alert of TLS: the handshake has failed (RFC 8446, 6.2).
const TLS_ALERT: &[u8] = &[21, 3, 1, 0, 2, 2, 40];

/// The first bytes of the methods of HTTP/1 and of the preface of HTTP/2.
const HTTP_METHODS: [&[u8; 4]; 10] =
    [b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI "];

/// A program of another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    HttpClient,
    HttpServer,
    TlsClient,
    TlsServer,
    Ssh,
    MailOrFtpServer,
}

impl Program {
    /// The program that begins with these bytes.
    fn of(first: [u8; 4]) -> Option<Self> {
        Some(match &first {
            b"HTTP" => Self::HttpServer,
            b"SSH-" => Self::Ssh,
            b"220 " | b"220-" => Self::MailOrFtpServer,
            // A record of a handshake, or an alert.
            [22, 3, 0..=4, _] => Self::TlsClient,
            [21, 3, 0..=4, _] => Self::TlsServer,
            method if HTTP_METHODS.contains(&method) => Self::HttpClient,
            _ => return None,
        })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HttpClient => "an HTTP client",
            Self::HttpServer => "an HTTP server",
            Self::TlsClient => "a TLS client",
            Self::TlsServer => "a TLS server",
            Self::Ssh => "an SSH program",
            Self::MailOrFtpServer => "a mail or FTP server",
        })
    }
}

/// A server's answer to a client that begins with these bytes. It is empty if the client would
/// understand none.
pub(crate) fn answer(first: [u8; 4]) -> &'static [u8] {
    match Program::of(first) {
        Some(Program::HttpClient) => HTTP,
        Some(Program::TlsClient) => TLS_ALERT,
        _ if first.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n')) => LINE,
        _ => b"",
    }
}

/// Bytes of a peer as text: printable ones as they are, others escaped.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The first bytes of a peer, and what they tell about it.
pub(super) struct Beginning(pub(super) [u8; 4]);

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.0).fmt(f)?;
        match Program::of(self.0) {
            Some(program) => write!(f, ", as {program} does,"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_by_their_first_bytes() {
        for (first, named) in [
            (*b"GET ", "\"GET \", as an HTTP client does,"),
            (*b"PRI ", "\"PRI \", as an HTTP client does,"),
            (*b"HTTP", "\"HTTP\", as an HTTP server does,"),
            ([22, 3, 1, 2], "\"\\x16\\x03\\x01\\x02\", as a TLS client does,"),
            ([21, 3, 3, 0], "\"\\x15\\x03\\x03\\x00\", as a TLS server does,"),
            (*b"SSH-", "\"SSH-\", as an SSH program does,"),
            (*b"220 ", "\"220 \", as a mail or FTP server does,"),
            ([0, b'"', 0xff, b'\n'], "\"\\x00\\\"\\xff\\n\""),
        ] {
            assert_eq!(Beginning(first).to_string(), named);
        }
    }

    #[test]
    fn answers_are_in_the_clients_protocol() {
        let http = std::str::from_utf8(answer(*b"POST")).unwrap();
        let (head, body) = http.split_once("\r\n\r\n").unwrap();
        assert_eq!(body.as_bytes(), LINE);
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert_eq!(answer([22, 3, 1, 0]), TLS_ALERT);
        for text in [b"SSH-", b"EHLO", b"\r\n\r\n"] {
            assert_eq!(answer(*text), LINE);
        }
        assert_eq!(answer([0; 4]), b"");
    }
}
