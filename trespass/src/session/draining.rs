//! The thread that destroys queue pairs, because a device may wait for seconds in such a call. Neither
//! the program's threads nor the service thread wait with it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::time::{Duration, Instant};

use crate::pool::flush_thread;
use crate::process::PerProcess;
use crate::session::service;
use crate::transport::rc::{Drainer, Draining, set_drainer};

/// The pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

static QUEUE: PerProcess<Sender<Box<dyn Draining>>> = PerProcess::new();

static HAND_OVER: Drainer = hand_over;

/// Starts the thread, if this process has none.
pub(super) fn start() -> io::Result<()> {
    let (queue, queued) = channel();
    service::start_thread("trespass-free", move || run(&queued))?;
    // If another thread was faster, this queue is gone, and its thread ends.
    let _ = QUEUE.set(queue);
    set_drainer(&HAND_OVER);
    Ok(())
}

fn hand_over(draining: Box<dyn Draining>) -> Result<(), Box<dyn Draining>> {
    match QUEUE.made() {
        Some(queue) => queue.send(draining).map_err(|SendError(draining)| draining),
        None => Err(draining),
    }
}

fn run(queued: &Receiver<Box<dyn Draining>>) {
    let mut draining = Vec::new();
    loop {
        let next = if draining.is_empty() {
            queued.recv().map_err(RecvTimeoutError::from)
        } else {
            queued.recv_timeout(POLL_INTERVAL)
        };
        match next {
            Ok(next) => draining.push(next),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        draining.extend(queued.try_iter());
        draining = draining.into_iter().filter_map(turn).collect();
        flush_thread();
    }
}

/// Destroys what is free, and returns what is not.
fn turn(mut draining: Box<dyn Draining>) -> Option<Box<dyn Draining>> {
    let Ok(is_free) = catch_unwind(AssertUnwindSafe(|| draining.poll(Instant::now()))) else {
        tracing::error!("draining queue pairs has panicked: their memory is lost");
        // The device may still access it.
        std::mem::forget(draining);
        return None;
    };
    if !is_free {
        return Some(draining);
    }
    if catch_unwind(AssertUnwindSafe(|| drop(draining))).is_err() {
        tracing::error!("destroying queue pairs has panicked");
    }
    None
}
