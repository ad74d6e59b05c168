//! A client whose listener has a full backlog: it waits, and connects again until its time is up.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::RunningHandshake;
use crate::config::Config;
use crate::error::ConnectError;
use crate::handshake::HandshakeError;
use crate::transport::CqSlot;
use crate::wire::{Kind, RejectReason};

/// Pauses before the attempts. They double up to a limit. A listener leaves clients in the system's
/// queue for some time before it answers, so that few attempts are made.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// What is needed to begin another attempt.
pub(super) struct Reconnect {
    peer: SocketAddr,
    kind: Kind,
    /// The slot of a worker's completion queue.
    slot: Option<CqSlot>,
    /// When the first attempt began. The time limit counts from then.
    began: Instant,
    pause: Duration,
    /// The time of the next attempt, while none runs.
    next: Instant,
    /// The last answer of a busy listener, and the number of them.
    busy: Option<Busy>,
    answers: u32,
}

/// The peer's words, and its version.
struct Busy {
    text: String,
    major: u8,
    minor: u8,
}

impl Reconnect {
    pub(super) fn new(peer: SocketAddr, kind: Kind, slot: Option<CqSlot>) -> Self {
        let began = Instant::now();
        Self { peer, kind, slot, began, pause: FIRST_PAUSE, next: began, busy: None, answers: 0 }
    }

    /// Begins an attempt.
    pub(super) fn attempt(&self, config: &Config) -> io::Result<RunningHandshake> {
        RunningHandshake::connecting(self.peer, self.kind, self.began, config, self.slot.clone())
    }

    fn end(&self, config: &Config) -> Instant {
        self.began + config.handshake_deadline
    }

    /// When the next attempt begins, or the last answer becomes the error.
    pub(super) fn next_turn(&self, config: &Config) -> Instant {
        self.next.min(self.end(config))
    }

    /// Begins the next attempt if it is due.
    pub(super) fn resume(&self, config: &Config, now: Instant) -> io::Result<Option<RunningHandshake>> {
        if now >= self.end(config) {
            return Err(self.busy_error(config).unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
        }
        if now < self.next { Ok(None) } else { self.attempt(config).map(Some) }
    }

    /// Handles the end of an attempt. The error is the client's, unless the listener is busy and time
    /// is left.
    pub(super) fn failed(&mut self, error: io::Error, config: &Config, now: Instant) -> io::Result<()> {
        let Some(busy) = busy_answer(&error) else {
            // The listener has not answered this attempt, and the earlier answer says more.
            let timed_out = error.kind() == io::ErrorKind::TimedOut;
            return Err(self.busy_error(config).filter(|_| timed_out).unwrap_or(error));
        };
        tracing::debug!(peer = %self.peer, %error, "connects again in {:?}", self.pause);
        (self.busy, self.answers) = (Some(busy), self.answers + 1);
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn busy_error(&self, config: &Config) -> Option<io::Error> {
        let Busy { text, major, minor } = self.busy.as_ref()?;
        let (answers, within) = (self.answers, config.handshake_deadline);
        let text = format!("{text} (attempts within {within:?}: {answers})");
        let source =
            HandshakeError::Rejected { reason: RejectReason::Busy, text, major: *major, minor: *minor };
        Some(ConnectError::Handshake { address: self.peer, source }.into())
    }
}

/// The answer of a busy listener.
fn busy_answer(error: &io::Error) -> Option<Busy> {
    match error.get_ref()?.downcast_ref()? {
        ConnectError::Handshake {
            source: HandshakeError::Rejected { reason: RejectReason::Busy, text, major, minor },
            ..
        } => Some(Busy { text: text.clone(), major: *major, minor: *minor }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

    fn rejected(reason: RejectReason) -> io::Error {
        let source = HandshakeError::Rejected { reason, text: "it is full".into(), major: 1, minor: 0 };
        ConnectError::Handshake { address: ADDRESS, source }.into()
    }

    fn client() -> (Reconnect, Config) {
        (Reconnect::new(ADDRESS, Kind::Stream, None), Config::default())
    }

    #[test]
    fn a_busy_listener_is_asked_again_at_growing_intervals() {
        let (mut client, config) = client();
        let now = client.began;
        let pauses: Vec<_> = (0..6)
            .map(|_| {
                client.failed(rejected(RejectReason::Busy), &config, now).unwrap();
                (client.next_turn(&config) - now).as_millis()
            })
            .collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 160]);
        assert!(client.resume(&config, now).unwrap().is_none(), "it does not pause");
    }

    #[test]
    fn the_last_answer_is_the_error_when_the_time_is_up() {
        let (mut client, config) = client();
        let (now, end) = (client.began, client.end(&config));
        client.failed(rejected(RejectReason::Busy), &config, now).unwrap();
        let errors = [
            client.failed(io::ErrorKind::TimedOut.into(), &config, end).unwrap_err(),
            client.resume(&config, end).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(busy_answer(&error).is_some(), "{error}");
            assert!(error.to_string().ends_with("it is full (attempts within 5s: 1)"), "{error}");
        }
        client.failed(rejected(RejectReason::Busy), &config, end - Duration::from_millis(1)).unwrap();
        assert_eq!(client.next_turn(&config), end, "it waits beyond its time");
    }

    #[test]
    fn other_failures_are_final() {
        let (mut client, config) = client();
        let now = client.began;
        for kind in [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionRefused] {
            assert_eq!(client.failed(kind.into(), &config, now).unwrap_err().kind(), kind);
        }
        client.failed(rejected(RejectReason::Kind), &config, now).unwrap_err();
        client.failed(rejected(RejectReason::Busy), &config, now).unwrap();
        let refused = client.failed(io::ErrorKind::ConnectionRefused.into(), &config, now).unwrap_err();
        assert!(busy_answer(&refused).is_none(), "the listener has gone since: {refused}");
    }
}
