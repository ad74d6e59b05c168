//! A mux of tasks of tokio.

use std::future::Future;
use std::io;
use std::task::{Context, Poll};
use std::time::Instant;

use ::tokio::io::ReadBuf;
use ::tokio::time::{self, Sleep};

use super::awaited::{InTask, MuxTask};
use crate::tokio::Stream;

impl InTask for Stream {
    type Sleep = Sleep;

    fn prepare(&self) -> io::Result<()> {
        self.set_cork(false)
    }

    fn spawn(task: MuxTask<Self>) {
        ::tokio::spawn(task.run());
    }

    fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = self.poll_read_shared(context, &mut buffer);
        read.map_ok(|()| buffer.filled().len())
    }

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_shared(context, &[io::IoSlice::new(bytes)])
    }

    fn shutdown_write(&self) -> io::Result<()> {
        Stream::shutdown_write(self)
    }

    fn drained(&self) -> impl Future<Output = io::Result<()>> {
        self.drain()
    }

    fn sleep_until(at: Instant) -> Sleep {
        time::sleep_until(at.into())
    }
}
