//! The tasks of the program, and the two steps in which they end.

use std::time::Duration;

use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// All tasks that accept or carry.
#[derive(Clone, Default)]
pub(crate) struct Tasks {
    running: TaskTracker,
    /// No task accepts any more.
    ending: CancellationToken,
    /// Open connections are reset.
    cut: CancellationToken,
}

impl Tasks {
    /// Starts a task that ends by itself after [`cut`](Self::cut).
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(task);
    }

    /// Starts a task that ends with the accepting.
    pub(crate) fn spawn_accepting(&self, task: impl Future<Output = ()> + Send + 'static) {
        let ending = self.ending.clone();
        self.running.spawn(async move { ending.run_until_cancelled(task).await });
    }

    /// Waits until open connections are to be reset.
    pub(crate) async fn cut(&self) {
        self.cut.cancelled().await;
    }

    /// Waits for the first signal, and ends everything: accepting at once, connections by themselves
    /// within the grace, and the rest by a reset, also at the next signal.
    pub(crate) async fn end_by_signal(&self, mut signals: Signals, grace: Duration) {
        let name = signals.next().await;
        self.ending.cancel();
        self.running.close();
        tracing::info!(signal = name, grace = grace.as_secs(), "no new connections are accepted");
        select! {
            ended = timeout(grace, self.running.wait()) => if ended.is_err() {
                tracing::warn!("the grace is over: open connections are reset");
            },
            name = signals.next() => tracing::warn!(signal = name, "open connections are reset"),
        }
        self.cut.cancel();
        self.running.wait().await;
    }
}

/// The signals that end the program.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on the signals do not end the process by themselves.
    pub(crate) fn catch() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
