//! A mux of tasks of `trespass::local`.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::task::{Context, Poll};
use std::time::Instant;

use super::awaited::{InTask, MuxTask};
use crate::local::{self, Sleep, Stream};

impl InTask for Stream {
    type Sleep = Sleep;

    fn prepare(&self) -> io::Result<()> {
        self.0.check_runs()
    }

    fn spawn(task: MuxTask<Self>) {
        drop(local::spawn_local(task.run()));
    }

    fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_read(context, buffer)
    }

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(context, bytes)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    fn drained(&self) -> impl Future<Output = io::Result<()>> {
        self.drain()
    }

    /// The task of the mux runs with the tasks of its runtime.
    fn check_waits(&self) -> io::Result<()> {
        self.0.check_runs()
    }

    fn sleep_until(at: Instant) -> Sleep {
        local::sleep_until(at)
    }
}
