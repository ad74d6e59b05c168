//! Work that may take long, on a thread of its own.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

use crate::session::service::start_thread;

/// What the thread leaves, for the task that waits for it.
struct Answer<T> {
    value: Option<thread::Result<T>>,
    waker: Waker,
}

/// No code that can panic runs while it is locked.
fn lock<T>(answer: &Mutex<Answer<T>>) -> MutexGuard<'_, Answer<T>> {
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what may take long on a thread, and awaits its result. If the future is dropped, the thread
/// goes on, and its result is dropped. A panic is the caller's.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let answer = Arc::new(Mutex::new(Answer { value: None, waker: Waker::noop().clone() }));
    let left = answer.clone();
    start_thread("trespass-resolve", move || {
        let value = catch_unwind(AssertUnwindSafe(work));
        let waker = {
            let mut answer = lock(&left);
            answer.value = Some(value);
            answer.waker.clone()
        };
        waker.wake();
    })?;
    let value = poll_fn(|context| {
        let waker = context.waker().clone();
        let mut answer = lock(&answer);
        if let Some(value) = answer.value.take() {
            return Poll::Ready(value);
        }
        let before = std::mem::replace(&mut answer.waker, waker);
        drop(answer);
        drop(before);
        Poll::Pending
    });
    value.await.unwrap_or_else(|panic| resume_unwind(panic))
}
