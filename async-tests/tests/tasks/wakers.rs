//! Wakers that are written by hand: they call the connection whose call wakes them.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Instant;

use test_harness::{Outcome, cases, skip};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use trespass::tokio::{OwnedReadHalf, OwnedWriteHalf};

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: a_waker_reads_in_the_call_that_wakes_it, a_waker_writes_when_the_service_thread_wakes_it,
        a_waker_reads_when_the_runtime_wakes_it_after_a_look);
}

/// A half that its waker polls.
struct Polled<T> {
    half: Mutex<T>,
    /// It was woken, and no poll has begun since.
    is_woken: AtomicBool,
    moved: AtomicUsize,
    wakes: Sender<thread::ThreadId>,
    /// Polls once. Returns how many bytes moved.
    poll: fn(&mut T, &mut Context<'_>) -> Poll<usize>,
}

impl<T: Send + 'static> Polled<T> {
    fn new(
        half: T,
        poll: fn(&mut T, &mut Context<'_>) -> Poll<usize>,
    ) -> (Arc<Self>, Receiver<thread::ThreadId>) {
        let (half, is_woken, moved) = (Mutex::new(half), AtomicBool::new(false), AtomicUsize::new(0));
        let (wakes, woken) = channel();
        (Arc::new(Self { half, is_woken, moved, wakes, poll }), woken)
    }

    /// Polls until nothing moves, or that often. A wake-up within does not begin again, but goes on here.
    fn go_on(self: &Arc<Self>, mut polls: usize) {
        self.is_woken.store(true, Ordering::SeqCst);
        while self.is_woken.load(Ordering::SeqCst) {
            let Ok(mut half) = self.half.try_lock() else { return };
            self.is_woken.store(false, Ordering::SeqCst);
            let waker = Waker::from(self.clone());
            while let Poll::Ready(count) = (self.poll)(&mut half, &mut Context::from_waker(&waker)) {
                self.moved.fetch_add(count, Ordering::SeqCst);
                polls -= 1;
                if count == 0 || polls == 0 {
                    return;
                }
            }
        }
    }

    fn moved(&self) -> usize {
        self.moved.load(Ordering::SeqCst)
    }
}

impl<T: Send + 'static> Wake for Polled<T> {
    fn wake(self: Arc<Self>) {
        self.go_on(4);
        let _ = self.wakes.send(thread::current().id());
    }
}

fn read_once(half: &mut OwnedReadHalf, context: &mut Context<'_>) -> Poll<usize> {
    let mut bytes = [0; 64];
    let mut buffer = ReadBuf::new(&mut bytes);
    Pin::new(half).poll_read(context, &mut buffer).map(|read| read.map_or(0, |()| buffer.filled().len()))
}

fn write_once(half: &mut OwnedWriteHalf, context: &mut Context<'_>) -> Poll<usize> {
    Pin::new(half).poll_write(context, &[7; 8192]).map(|written| written.unwrap_or(0))
}

/// Fails if the case does not end, because a thread that waits for itself runs no timer.
fn watched(case: impl FnOnce() + Send + 'static) {
    let (ended, watch) = channel();
    let running = thread::spawn(move || {
        case();
        ended.send(()).unwrap();
    });
    if let Err(RecvTimeoutError::Timeout) = watch.recv_timeout(LONG / 2) {
        panic!("the waker waits for the call that runs it");
    }
    if let Err(panic) = running.join() {
        resume_unwind(panic);
    }
}

/// The call finds bytes, and wakes the reader.
fn a_waker_reads_in_the_call_that_wakes_it(fixture: &Fixture) -> Outcome {
    if !fixture.is_one_thread() {
        skip!("another thread of the runtime may wake the reader first");
    }
    let fixture = *fixture;
    watched(move || {
        fixture.run(async move {
            let (client, server) = fixture.streams().await;
            let (half, writer) = client.into_split();
            let (reader, woken) = Polled::new(half, read_once);
            reader.go_on(usize::MAX);
            assert_eq!(reader.moved(), 0);
            let mut server = server.into_blocking().unwrap();
            let sending = thread::spawn(move || {
                std::io::Write::write_all(&mut server, b"hello").unwrap();
                server
            });
            let server = sending.join().unwrap();
            // The runtime's thread is here, so that none but this call can find the bytes.
            let begin = Instant::now();
            while reader.moved() < 5 {
                assert!(writer.as_ref().take_error().unwrap().is_none());
                assert!(begin.elapsed() < LONG / 4, "{} bytes", reader.moved());
            }
            assert_eq!(woken.try_recv(), Ok(thread::current().id()));
            drop(server);
        });
    });
    Ok(())
}

/// The service thread sends what the writer has left, and then there is room.
fn a_waker_writes_when_the_service_thread_wakes_it(fixture: &Fixture) -> Outcome {
    if !fixture.is_one_thread() {
        skip!("another thread of the runtime may wake the writer first");
    }
    let fixture = *fixture;
    watched(move || {
        fixture.run(async move {
            let (client, server) = fixture.streams().await;
            let (_half, writer) = client.into_split();
            let (writer, woken) = Polled::new(writer, write_once);
            // Elsewhere than in the runtime, which would end this after some polls.
            let filling = writer.clone();
            thread::spawn(move || filling.go_on(usize::MAX)).join().unwrap();
            let full = writer.moved();
            assert!(full > 0);
            let mut server = server.into_blocking().unwrap();
            thread::spawn(move || std::io::copy(&mut server, &mut std::io::sink()));
            // The runtime's thread waits here, so that it wakes nobody.
            let by = woken.recv_timeout(LONG / 4).expect("the service thread wakes the writer");
            assert_ne!(by, thread::current().id());
            assert!(writer.moved() > full, "the waker has not written");
        });
    });
    Ok(())
}

/// The runtime wakes whom a look has let wait while it holds their list. So a waker that looks at once
/// must not be put there.
fn a_waker_reads_when_the_runtime_wakes_it_after_a_look(fixture: &Fixture) -> Outcome {
    if !fixture.is_one_thread() {
        skip!("the two connections must be on one thread");
    }
    let fixture = *fixture;
    // In a task, and outside of any.
    watched(move || fixture.run(async move { tokio::spawn(wake_after_looks(fixture)).await.unwrap() }));
    watched(move || fixture.run(wake_after_looks(fixture)));
    Ok(())
}

async fn wake_after_looks(fixture: Fixture) {
    let (client, mut server) = fixture.streams().await;
    let (other_client, mut other_server) = fixture.streams().await;
    let ((half, _writer), (other_half, _other_writer)) = (client.into_split(), other_client.into_split());
    let (reader, _wakes) = Polled::new(half, read_once);
    let (other_reader, _other_wakes) = Polled::new(other_half, read_once);
    for round in 1..=20 {
        // Some reads are made by this task, and the others by its wakers.
        reader.go_on(usize::MAX);
        other_reader.go_on(usize::MAX);
        other_server.write_all(b"hello").await.unwrap();
        server.write_all(b"hello").await.unwrap();
        let begin = Instant::now();
        while reader.moved().min(other_reader.moved()) < 5 * round {
            tokio::task::yield_now().await;
            assert!(begin.elapsed() < LONG / 4, "round {round}");
        }
    }
}
