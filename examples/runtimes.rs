//! A server with a runtime of [`trespass::local`] on each of several threads, which share a port.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

use trespass::local::{Listener, Runtime, Stream};
use trespass::{Builder, Config};

use crate::program::{Failure, note, say};

/// The clients that have come and gone, on all threads.
#[derive(Default)]
pub struct ServedClients {
    count: u64,
    /// The server ends with this one.
    last: Option<u64>,
    /// Of the runtimes that wait for the end.
    wakers: Vec<Waker>,
}

impl ServedClients {
    /// Counts one more.
    pub fn count(served: &Mutex<Self>) {
        let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
        served.count += 1;
        if served.is_over() {
            served.wakers.drain(..).for_each(Waker::wake);
        }
    }

    fn is_over(&self) -> bool {
        self.last.is_some_and(|last| self.count >= last)
    }

    /// Waits for the last client.
    async fn end(served: &Mutex<Self>) {
        poll_fn(|context| {
            let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
            if served.is_over() {
                return Poll::Ready(());
            }
            served.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Serves the clients of a port on `threads` threads, until `clients` clients have gone. `serve`
/// spawns a task for each, which then [counts](ServedClients::count) it. Returns their number.
///
/// # Errors
///
/// The address cannot be listened at, or the system cannot wait.
pub fn run_on_each_core(
    addr: SocketAddr,
    threads: usize,
    clients: Option<u64>,
    serve: impl Fn(Stream, Arc<Mutex<ServedClients>>) + Sync,
) -> Result<u64, Failure> {
    let config = Builder::new().reuse_port(true).build()?;
    let served = Arc::new(Mutex::new(ServedClients { last: clients, ..ServedClients::default() }));
    // The first thread's port is everyone's.
    let first = Runtime::new(&config)?;
    let listener = first.block_on(async { Listener::bind(addr) })??;
    let addr = listener.local_addr()?;
    say(format_args!("listening at {addr}"))?;
    thread::scope(|scope| {
        let others: Vec<_> =
            (1..threads).map(|_| scope.spawn(|| listen(&config, addr, &served, &serve))).collect();
        first.block_on(accept(listener, &served, &serve))?;
        for other in others {
            other.join().map_err(|_| io::Error::other("a thread panicked"))??;
        }
        Ok::<_, io::Error>(())
    })
    .map_err(Failure::work)?;
    let served = served.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(served.count)
}

fn listen(
    config: &Config,
    addr: SocketAddr,
    served: &Arc<Mutex<ServedClients>>,
    serve: &impl Fn(Stream, Arc<Mutex<ServedClients>>),
) -> io::Result<()> {
    Runtime::new(config)?.block_on(async {
        accept(Listener::bind(addr)?, served, serve).await;
        Ok(())
    })?
}

/// Accepts clients until the last one has gone. The tasks of others end with their runtime, which
/// sends what is left.
async fn accept(
    mut listener: Listener,
    served: &Arc<Mutex<ServedClients>>,
    serve: &impl Fn(Stream, Arc<Mutex<ServedClients>>),
) {
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => serve(stream, served.clone()),
                Err(error) => note(format_args!("a client was not accepted: {error}")),
            }
        }
    };
    let (mut accepting, mut end) = (pin!(accepting), pin!(ServedClients::end(served)));
    poll_fn(|context| match end.as_mut().poll(context) {
        Poll::Pending => accepting.as_mut().poll(context),
        over => over,
    })
    .await
}
