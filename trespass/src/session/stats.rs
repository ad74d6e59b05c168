//! The statistics of a connection, and their periodic log line.

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant};

use crate::protocol::ConnectionCounters;

/// Counters of a connection since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Payload bytes sent, with the length fields of messages that share a frame.
    pub bytes_sent: u64,
    /// Payload bytes received, with the length fields of messages that share a frame.
    pub bytes_received: u64,
    /// Frames sent of every kind, credit grants included.
    pub frames_sent: u64,
    /// Frames received of every kind, credit grants included.
    pub frames_received: u64,
    /// Frames sent only to grant credits.
    pub credits_sent: u64,
    /// RDMA READs posted.
    pub reads: u64,
    /// System calls that moved data, or doorbells.
    pub posts: u64,
    /// How often the connection slept.
    pub sleeps: u64,
    /// How often the pool had no block for it.
    pub pool_empty: u64,
    /// Over several devices: queue pairs that were added after the first, also in place of failed ones.
    pub rails_joined: u64,
    /// Over several devices: queue pairs that were given up, because a device, the path or the peer's
    /// end of it failed.
    pub rails_failed: u64,
    /// Over several devices: frames and READs that were posted again over another queue pair.
    pub repeated: u64,
}

impl Stats {
    pub(crate) fn count(counters: ConnectionCounters, posts: u64, sleeps: u64, pool_empty: u64) -> Self {
        Self {
            bytes_sent: counters.bytes_sent + counters.bytes_announced,
            bytes_received: counters.bytes_received + counters.bytes_read,
            frames_sent: counters.frames_sent,
            frames_received: counters.frames_received,
            credits_sent: counters.credits_sent,
            reads: counters.reads,
            posts,
            sleeps,
            pool_empty,
            rails_joined: 0,
            rails_failed: 0,
            repeated: 0,
        }
    }

    /// The difference to an earlier state.
    fn since(self, earlier: Self) -> Self {
        self.with_each(earlier, |now, then| now - then)
    }

    fn with_each(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            bytes_sent: combine(self.bytes_sent, other.bytes_sent),
            bytes_received: combine(self.bytes_received, other.bytes_received),
            frames_sent: combine(self.frames_sent, other.frames_sent),
            frames_received: combine(self.frames_received, other.frames_received),
            credits_sent: combine(self.credits_sent, other.credits_sent),
            reads: combine(self.reads, other.reads),
            posts: combine(self.posts, other.posts),
            sleeps: combine(self.sleeps, other.sleeps),
            pool_empty: combine(self.pool_empty, other.pool_empty),
            rails_joined: combine(self.rails_joined, other.rails_joined),
            rails_failed: combine(self.rails_failed, other.rails_failed),
            repeated: combine(self.repeated, other.repeated),
        }
    }
}

/// Sums of several connections.
impl Add for Stats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with_each(other, |one, other| one + other)
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// Logs a connection's statistics at an interval. It wakes nobody, so an idle connection logs
/// nothing.
#[derive(Debug)]
pub(crate) struct StatsSummary {
    every: Option<Duration>,
    due: Option<Instant>,
    reported: Stats,
}

impl StatsSummary {
    pub(crate) fn new(every: Option<Duration>, now: Instant) -> Self {
        Self { every, due: every.map(|every| now + every), reported: Stats::default() }
    }

    /// Whether the interval has passed.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now >= due)
    }

    pub(crate) fn log(&mut self, now: Instant, stats: Stats, connection: &impl std::fmt::Display) {
        let news = stats.since(self.reported);
        (self.reported, self.due) = (stats, self.every.map(|every| now + every));
        tracing::debug!(
            %connection,
            sent = news.bytes_sent,
            received = news.bytes_received,
            frames_sent = news.frames_sent,
            frames_received = news.frames_received,
            posts = news.posts,
            sleeps = news.sleeps,
            pool_empty = news.pool_empty,
            rails_failed = news.rails_failed,
            repeated = news.repeated,
            "in the last {:?}",
            self.every.unwrap_or_default(),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::thread;

    use tracing::level_filters::LevelFilter;

    use super::*;
    use crate::config::log::captured;
    use crate::{Builder, Policy};

    #[test]
    fn sums_have_every_counter() {
        let one = Stats {
            bytes_sent: 1,
            bytes_received: 2,
            frames_sent: 3,
            frames_received: 4,
            credits_sent: 5,
            reads: 6,
            posts: 7,
            sleeps: 8,
            pool_empty: 9,
            rails_joined: 10,
            rails_failed: 11,
            repeated: 12,
        };
        let mut twice = one;
        twice += one;
        assert_eq!(twice.since(one), one);
        assert_eq!([one, one, Stats::default()].into_iter().sum::<Stats>(), twice);
    }

    #[test]
    fn a_summary_is_logged_once_in_each_interval() {
        let (began, every) = (Instant::now(), Duration::from_secs(20));
        let mut summary = StatsSummary::new(Some(every), began);
        let mut stats = Stats::default();
        let text = captured(LevelFilter::DEBUG, || {
            for second in 0..60 {
                stats.bytes_sent += 10;
                stats.posts += 1;
                let now = began + Duration::from_secs(second);
                if summary.is_due(now) {
                    summary.log(now, stats, &"a - b");
                }
            }
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines.iter().all(|line| line.contains("in the last 20s") && line.contains("connection=a - b")),
            "{text}"
        );
        assert!(
            lines[0].contains("sent=210 ")
                && lines[1].contains("sent=200 ")
                && lines[1].contains("posts=20 "),
            "{text}"
        );
        assert!(!StatsSummary::new(None, began).is_due(began + 1000 * every));
    }

    /// The summary needs no call of the program.
    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn a_connection_logs_its_summary() {
        let every = Duration::from_secs(1);
        let builder = || Builder::new().policy(Policy::TcpOnly).trace_interval(Some(every));
        let listener = builder().bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound");
        let reader = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).map(|_| bytes)
        });
        let text = captured(LevelFilter::DEBUG, || {
            let mut stream = builder().connect(addr).expect("a connection");
            stream.write_all(b"something").expect("written");
            thread::sleep(every + Duration::from_millis(10));
            drop(stream);
        });
        assert_eq!(reader.join().expect("no panic").expect("all of it"), b"something");
        let summaries: Vec<_> = text.lines().filter(|line| line.contains("in the last 1s")).collect();
        assert!(summaries.iter().any(|line| line.contains(" sent=9 ")), "{text}");
        assert!(summaries.iter().all(|line| line.contains(&format!(" - {addr} "))), "{text}");
    }
}
