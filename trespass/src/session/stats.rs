//! The statistics of a connection, and their periodic log line.

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant};

use super::times::{OperationCounts, OperationKind, OperationTimes};
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
    /// Calls that sent bytes or a message, if calls are [timed](crate::Builder::trace_interval), or 0.
    /// A long message is one call, unless the program sends it in parts.
    pub sends: OperationCounts,
    /// Calls that received bytes or a message, if calls are [timed](crate::Builder::trace_interval), or
    /// 0. A peek does not count.
    pub receives: OperationCounts,
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
            sends: OperationCounts::default(),
            receives: OperationCounts::default(),
        }
    }

    /// The difference to an earlier state.
    fn since(self, earlier: Self) -> Self {
        self.with_each(earlier, |now, then| now - then)
    }

    fn with_each(self, other: Self, combine: impl Fn(u64, u64) -> u64 + Copy) -> Self {
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
            sends: self.sends.with_each(other.sends, combine),
            receives: self.receives.with_each(other.receives, combine),
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
    /// `None` if the program's calls are not timed.
    calls: Option<Box<CallTimes>>,
}

/// The program's calls that moved its bytes.
#[derive(Debug)]
struct CallTimes {
    sends: OperationTimes,
    receives: OperationTimes,
}

impl StatsSummary {
    pub(crate) fn new(every: Option<Duration>, now: Instant) -> Self {
        Self { every, due: every.map(|every| now + every), reported: Stats::default(), calls: None }
    }

    /// Has the program's calls timed, if the calling thread's subscriber takes the summary, because
    /// nothing else shows the times.
    pub(crate) fn time_calls(&mut self) {
        let is_shown = self.every.is_some() && tracing::enabled!(tracing::Level::DEBUG);
        if is_shown && self.calls.is_none() {
            let (sends, receives) = (OperationKind::Send, OperationKind::Receive);
            let (sends, receives) = (OperationTimes::new(sends), OperationTimes::new(receives));
            self.calls = Some(Box::new(CallTimes { sends, receives }));
        }
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.calls.is_some()
    }

    /// The interval, if the program's calls are timed.
    pub(crate) fn timed_interval(&self) -> Option<Duration> {
        self.every.filter(|_| self.is_timed())
    }

    /// Records a call that sent or received.
    pub(crate) fn record(&mut self, kind: OperationKind, bytes: usize, took: Duration) {
        let Some(calls) = &mut self.calls else { return };
        let times = if kind == OperationKind::Send { &mut calls.sends } else { &mut calls.receives };
        times.record(bytes, took);
    }

    /// Adds the recorded calls.
    pub(crate) fn count_calls(&self, stats: Stats) -> Stats {
        match &self.calls {
            Some(calls) => Stats { sends: calls.sends.total(), receives: calls.receives.total(), ..stats },
            None => stats,
        }
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
        let Some(calls) = &mut self.calls else { return };
        let intervals = [calls.sends.take_interval(), calls.receives.take_interval()];
        for interval in intervals.into_iter().flatten() {
            interval.log(self.every.unwrap_or_default(), connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, IoSlice, Read, Write};
    use std::net::SocketAddr;
    use std::thread;

    use tracing::level_filters::LevelFilter;

    use super::*;
    use crate::config::log::captured;
    use crate::{Builder, Listener, Policy, Worker};

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
            sends: OperationCounts { count: 13, bytes: 14 },
            receives: OperationCounts { count: 15, bytes: 16 },
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

    const EVERY: Duration = Duration::from_secs(1);

    /// Both ends of a connection over TCP.
    fn pair<S>(
        interval: Option<Duration>,
        connect: impl FnOnce(Builder, SocketAddr) -> io::Result<S>,
        accept: impl FnOnce(&Listener) -> io::Result<(S, SocketAddr)>,
    ) -> (S, S) {
        let builder = || Builder::new().policy(Policy::TcpOnly).trace_interval(interval);
        let listener = builder().bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound");
        // The service thread answers the client.
        let client = connect(builder(), addr).expect("a connection");
        (client, accept(&listener).expect("a connection").0)
    }

    /// The counts and bytes of the lines of one kind of call.
    fn logged(text: &str, kind: &str) -> Vec<String> {
        let kind = format!(" operation={kind} ");
        let lines = text.lines().filter(|line| line.contains("operations in the last 1s"));
        let lines = lines.filter_map(|line| line.split_once(&kind));
        lines.map(|(_, values)| values.split(" p50_us=").next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn a_stream_logs_how_many_calls_moved_how_much() {
        let mut reads = 0;
        let text = captured(LevelFilter::DEBUG, || {
            let (mut client, mut server) = pair(Some(EVERY), |b, addr| b.connect(addr), Listener::accept);
            client.write_all(&[1; 9]).expect("written");
            (&client).write_all(&[2; 5]).expect("written");
            let slices = [IoSlice::new(&[3; 10]), IoSlice::new(&[4; 6])];
            assert_eq!(client.write_vectored(&slices).expect("written"), 16);
            let block = client.buffer(32).expect("a block");
            client.send_buf(block, 20).expect("lent");
            // None of these moves a byte of the program.
            assert_eq!(client.write(&[]).expect("written"), 0);
            client.flush().expect("flushed");
            let mut read = 0;
            while read < 50 {
                let peeked = server.peek(&mut [0; 50]).expect("bytes");
                assert!(peeked > 0);
                read += server.read(&mut [0; 50]).expect("bytes");
                reads += 1;
            }
            client.shutdown(std::net::Shutdown::Write).expect("shut down");
            assert_eq!(server.read(&mut [0; 50]).expect("the end"), 0);
            let stats = client.stats();
            assert_eq!(stats.sends, OperationCounts { count: 4, bytes: 50 });
            assert_eq!(stats.receives, OperationCounts::default());
            assert_eq!(server.stats().receives, OperationCounts { count: reads, bytes: 50 });
            thread::sleep(EVERY);
            client.readiness().expect("no failure");
            server.readiness().expect("no failure");
        });
        assert_eq!(logged(&text, "send"), ["count=4 bytes=50"], "{text}");
        assert_eq!(logged(&text, "receive"), [format!("count={reads} bytes=50")], "{text}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn messages_are_logged_whatever_their_length() {
        let text = captured(LevelFilter::DEBUG, || {
            let accept = Listener::accept_seq_packet;
            let (mut client, server) = pair(Some(EVERY), |b, addr| b.connect_seq_packet(addr), accept);
            let echo = thread::spawn(move || {
                let mut server = server;
                while let Ok(len) = server.recv_buf().map(|message| message.len()) {
                    server.send(&vec![8; len]).expect("sent");
                }
            });
            let mut buffer = vec![0; 100_000];
            // An empty one, and one that goes in parts.
            for len in [0, 64, 100_000] {
                client.send(&vec![7; len]).expect("sent");
                assert_eq!(client.recv(&mut buffer).expect("the answer"), len);
            }
            let stats = client.stats();
            let counts = OperationCounts { count: 3, bytes: 100_064 };
            assert_eq!((stats.sends, stats.receives), (counts, counts));
            thread::sleep(EVERY);
            client.readiness().expect("no failure");
            drop(client);
            echo.join().expect("no panic");
        });
        assert_eq!(logged(&text, "send"), ["count=3 bytes=100064"], "{text}");
        assert_eq!(logged(&text, "receive"), ["count=3 bytes=100064"], "{text}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn calls_of_a_worker_are_counted() {
        captured(LevelFilter::DEBUG, || {
            let (client, mut server) = pair(Some(EVERY), |b, addr| b.connect(addr), Listener::accept);
            let config = Builder::new().policy(Policy::TcpOnly).build().expect("allowed");
            let mut worker = Worker::new(&config).expect("a worker");
            let key = worker.add(client).expect("added");
            assert_eq!(worker.write(key, &[1; 30]).expect("written"), 30);
            let (mut reads, mut events) = (0, Vec::new());
            worker.poll(&mut events, Some(Duration::ZERO)).expect("polled");
            server.read_exact(&mut [0; 30]).expect("read");
            server.write_all(&[2; 12]).expect("written");
            while worker.stats(key).expect("open").receives.bytes < 12 {
                worker.poll(&mut events, Some(Duration::from_millis(10))).expect("polled");
                match worker.read(key, &mut [0; 12]) {
                    Ok(len) => reads += u64::from(len > 0),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            let stats = worker.stats(key).expect("open");
            assert_eq!(stats.sends, OperationCounts { count: 1, bytes: 30 });
            assert_eq!(stats.receives, OperationCounts { count: reads, bytes: 12 });
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn calls_that_nobody_reads_about_are_not_timed() {
        for (interval, level) in [(None, LevelFilter::DEBUG), (Some(EVERY), LevelFilter::INFO)] {
            captured(level, || {
                let (mut client, mut server) = pair(interval, |b, addr| b.connect(addr), Listener::accept);
                client.write_all(&[1; 9]).expect("written");
                server.read_exact(&mut [0; 9]).expect("read");
                let stats = client.stats();
                assert_eq!((stats.bytes_sent, stats.sends), (9, OperationCounts::default()));
            });
        }
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
