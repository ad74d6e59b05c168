//! The counts and durations of operations on the peer's windows, and their periodic log line.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::WindowError;
use crate::Stream;
use crate::session::connection_info::ConnectionInfo;
use crate::session::times::{OperationCounts, OperationKind, OperationTimes};

/// The operations of this side on the peer's windows that have succeeded.
///
/// They are counted if calls are [timed](crate::Builder::trace_interval); otherwise all numbers are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowStats {
    /// Puts, also those that notify.
    pub puts: OperationCounts,
    /// Gets.
    pub gets: OperationCounts,
    /// Atomic operations, of 8 bytes each.
    pub atomics: OperationCounts,
}

/// The operations of a connection. `None` if they are not timed.
pub(super) struct WindowSummary(Option<Timed>);

struct Timed {
    connection: ConnectionInfo,
    every: Duration,
    times: Mutex<Times>,
}

struct Times {
    due: Instant,
    puts: OperationTimes,
    gets: OperationTimes,
    atomics: OperationTimes,
}

/// An operation that has begun at this time, if operations are timed.
#[derive(Clone, Copy)]
pub(super) struct Began(Option<Instant>);

impl WindowSummary {
    /// That of windows over a stream: timed if the stream's calls are.
    pub(super) fn of(stream: &Stream) -> Self {
        Self(stream.0.timed_interval().map(|every| Timed {
            connection: stream.0.info.clone(),
            every,
            times: Mutex::new(Times {
                due: Instant::now() + every,
                puts: OperationTimes::new(OperationKind::Put),
                gets: OperationTimes::new(OperationKind::Get),
                atomics: OperationTimes::new(OperationKind::Atomic),
            }),
        }))
    }

    pub(super) fn stats(&self) -> WindowStats {
        let Some(timed) = &self.0 else { return WindowStats::default() };
        let times = timed.times.lock().unwrap_or_else(PoisonError::into_inner);
        WindowStats { puts: times.puts.total(), gets: times.gets.total(), atomics: times.atomics.total() }
    }

    pub(super) fn begin(&self) -> Began {
        Began(self.0.is_some().then(Instant::now))
    }

    /// Records an operation that has succeeded, and logs the summary if it is due.
    pub(super) fn end(&self, began: Began, kind: OperationKind, bytes: usize) {
        if let (Some(timed), Began(Some(began))) = (&self.0, began) {
            timed.record(kind, bytes, began, Instant::now());
        }
    }

    /// Runs an operation, and records it if it succeeds.
    pub(super) fn run<T>(
        &self,
        kind: OperationKind,
        bytes: usize,
        operation: impl FnOnce() -> Result<T, WindowError>,
    ) -> Result<T, WindowError> {
        let Some(timed) = &self.0 else { return operation() };
        let began = Instant::now();
        let value = operation()?;
        timed.record(kind, bytes, began, Instant::now());
        Ok(value)
    }
}

impl Timed {
    fn record(&self, kind: OperationKind, bytes: usize, began: Instant, now: Instant) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.of(kind).record(bytes, now - began);
        if now < times.due {
            return;
        }
        times.due = now + self.every;
        let kinds = [OperationKind::Put, OperationKind::Get, OperationKind::Atomic];
        let intervals = kinds.map(|kind| times.of(kind).take_interval());
        // The subscriber is code of the program, and may use the windows.
        drop(times);
        for interval in intervals.into_iter().flatten() {
            interval.log(self.every, &self.connection);
        }
    }
}

impl Times {
    fn of(&mut self, kind: OperationKind) -> &mut OperationTimes {
        match kind {
            OperationKind::Get => &mut self.gets,
            OperationKind::Atomic => &mut self.atomics,
            _ => &mut self.puts,
        }
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use std::thread;

    use tracing::level_filters::LevelFilter;

    use super::*;
    use crate::config::log::captured;
    use crate::window::{Access, WindowConfig, WindowKey, Windows};
    use crate::{Builder, Policy};

    const EVERY: Duration = Duration::from_secs(1);

    /// Has a client use a window of 1024 bytes over TCP. Returns what the client logs.
    fn logged(
        interval: Option<Duration>,
        level: LevelFilter,
        client: impl FnOnce(&Windows, &WindowKey),
    ) -> String {
        let builder = || Builder::new().policy(Policy::TcpOnly).trace_interval(interval);
        let listener = builder().bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let owner = thread::spawn(move || {
            let windows = Windows::over(listener.accept().unwrap().0, &WindowConfig::new()).unwrap();
            let access = Access::READ | Access::WRITE | Access::ATOMIC;
            let window = windows.offer(windows.buffer(1024).unwrap(), 1024, access, None).unwrap();
            windows.send_message(&window.key().to_bytes()).unwrap();
            windows.serve().unwrap();
        });
        let text = captured(level, || {
            let windows = Windows::over(builder().connect(addr).unwrap(), &WindowConfig::new()).unwrap();
            let key = WindowKey::from_bytes(&windows.next_message().unwrap()).unwrap();
            client(&windows, &key);
        });
        owner.join().unwrap();
        text
    }

    fn all_kinds(windows: &Windows, key: &WindowKey) {
        windows.put(key, 0, &[1; 100]).unwrap();
        windows.put_strided(key, 0, 16, 8, &[2; 32]).unwrap();
        windows.put_notify(key, 8, &[3; 20], 7).unwrap();
        windows.start_put(key, 0, &[4; 48]).unwrap().wait().unwrap();
        let block = windows.put_block(key, 0, windows.buffer(64).unwrap(), 16).unwrap();
        windows.get_block(key, 0, block, 40).unwrap();
        windows.get(key, 0, &mut [0; 300]).unwrap();
        windows.get_strided(key, 0, 16, 8, &mut [0; 32]).unwrap();
        assert_eq!(windows.start_get(key, 16, 8).unwrap().wait().unwrap(), [4; 8]);
        windows.fetch_add(key, 512, 5).unwrap();
        windows.compare_swap(key, 512, 5, 6).unwrap();
        // Operations that fail do not count.
        windows.put(key, 1000, &[0; 100]).unwrap_err();
        windows.get(key, 1000, &mut [0; 100]).unwrap_err();
        windows.fetch_add(key, 1024, 1).unwrap_err();
    }

    #[test]
    fn windows_log_a_summary_of_each_kind() {
        let text = logged(Some(EVERY), LevelFilter::DEBUG, |windows, key| {
            all_kinds(windows, key);
            let stats = windows.stats();
            assert_eq!(stats.puts, OperationCounts { count: 5, bytes: 216 });
            assert_eq!(stats.gets, OperationCounts { count: 4, bytes: 380 });
            assert_eq!(stats.atomics, OperationCounts { count: 2, bytes: 16 });
            thread::sleep(EVERY);
            windows.fetch_add(key, 512, 1).unwrap();
        });
        let lines: Vec<&str> =
            text.lines().filter(|line| line.contains("operations in the last 1s")).collect();
        let of = |kind: &str| {
            let kind = format!(" operation={kind} ");
            let mut found = lines.iter().filter(|line| line.contains(&kind));
            let line = found.next().unwrap_or_else(|| panic!("no{kind}in {text}"));
            assert!(line.contains(" p50_us=") && line.contains(" p99_us="), "{line}");
            assert!(found.next().is_none(), "{text}");
            line
        };
        assert!(of("put").contains(" count=5 bytes=216 "), "{text}");
        assert!(of("get").contains(" count=4 bytes=380 "), "{text}");
        assert!(of("atomic").contains(" count=3 bytes=24 "), "{text}");
    }

    #[test]
    fn without_an_interval_or_a_reader_nothing_is_counted() {
        for (interval, level) in [(None, LevelFilter::DEBUG), (Some(EVERY), LevelFilter::INFO)] {
            let text = logged(interval, level, |windows, key| {
                all_kinds(windows, key);
                assert_eq!(windows.stats(), WindowStats::default());
            });
            assert!(!text.contains("operation="), "{text}");
        }
    }
}
