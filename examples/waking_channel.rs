//! A standard channel whose receiver can sleep until a message arrives or a file descriptor becomes
//! readable.
//!
//! A thread that polls completion queues cannot block in [`Receiver::recv`], because a completion
//! does not wake it. Therefore the channel has an eventfd, to which the sender writes if the
//! receiver sleeps. This costs one system call each time the receiver sleeps, and none while it is
//! busy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, write};

/// The sending half. Clones send to the same receiver.
#[derive(Debug)]
pub struct WakingSender<T> {
    messages: Sender<T>,
    wakeup: Arc<Wakeup>,
}

/// The receiving half.
#[derive(Debug)]
pub struct WakingReceiver<T> {
    messages: Receiver<T>,
    wakeup: Arc<Wakeup>,
}

#[derive(Debug)]
struct Wakeup {
    sleeping: AtomicBool,
    eventfd: OwnedFd,
}

/// Creates a channel.
///
/// # Errors
///
/// The process has too many descriptors.
pub fn channel<T>() -> io::Result<(WakingSender<T>, WakingReceiver<T>)> {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let wakeup = Arc::new(Wakeup { sleeping: AtomicBool::new(false), eventfd });
    let (sender, receiver) = mpsc::channel();
    let sender = WakingSender { messages: sender, wakeup: Arc::clone(&wakeup) };
    Ok((sender, WakingReceiver { messages: receiver, wakeup }))
}

impl<T> WakingSender<T> {
    /// Sends a message; false if the receiver is gone.
    pub fn send(&self, message: T) -> bool {
        let sent = self.messages.send(message).is_ok();
        // The sender enqueues the message and then reads `sleeping`. The receiver sets `sleeping`
        // and then looks for messages. The fences order both pairs, so that at least one of the two
        // sees the other.
        fence(Ordering::SeqCst);
        if self.wakeup.sleeping.swap(false, Ordering::Relaxed) {
            // The write fails only if the counter is at 2^64 - 2, and then the receiver wakes
            // anyway.
            let _ = write(&self.wakeup.eventfd, &1_u64.to_ne_bytes());
        }
        sent
    }
}

impl<T> Clone for WakingSender<T> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), wakeup: Arc::clone(&self.wakeup) }
    }
}

impl<T> WakingReceiver<T> {
    /// The next message, without waiting.
    pub fn take(&mut self) -> Option<T> {
        self.messages.try_recv().ok()
    }

    /// Sleeps until a message arrives, which it returns, or the descriptor is readable. Spurious
    /// wakeups are possible.
    ///
    /// # Errors
    ///
    /// `poll` fails.
    pub fn sleep(&mut self, other: BorrowedFd<'_>) -> io::Result<Option<T>> {
        self.wakeup.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut message = self.take();
        if message.is_none() {
            let wakeup = self.wakeup.eventfd.as_fd();
            let mut ready = [
                PollFd::from_borrowed_fd(wakeup, PollFlags::IN),
                PollFd::from_borrowed_fd(other, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                // A spurious wakeup is harmless.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            message = self.take();
        }
        if !self.wakeup.sleeping.swap(false, Ordering::Relaxed) {
            // A sender has written to the eventfd or is about to. In the second case the next sleep
            // wakes once without a message.
            let _ = read(&self.wakeup.eventfd, &mut [0; 8]);
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn silent() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn a_sleeping_receiver_misses_no_message() {
        const MESSAGES: u64 = 2000;
        let (sender, mut receiver) = channel().unwrap();
        let (done, all) = mpsc::channel();
        thread::spawn(move || {
            let other = silent();
            let mut messages = Vec::new();
            while messages.len() < 2 * MESSAGES as usize {
                messages.extend(receiver.sleep(other.as_fd()).unwrap());
            }
            done.send(messages).unwrap();
        });
        let senders = [0, 1].map(|index| {
            let sender = sender.clone();
            thread::spawn(move || (0..MESSAGES).all(|n| sender.send(2 * n + index)))
        });
        assert!(senders.into_iter().all(|sender| sender.join().unwrap()));
        let mut messages = all.recv_timeout(Duration::from_secs(30)).expect("the receiver missed a message");
        messages.sort_unstable();
        assert!(messages.into_iter().eq(0..2 * MESSAGES));
    }

    #[test]
    fn a_readable_descriptor_ends_the_sleep() {
        let (_sender, mut receiver) = channel::<()>().unwrap();
        let other = silent();
        write(&other, &1_u64.to_ne_bytes()).unwrap();
        assert!(receiver.sleep(other.as_fd()).unwrap().is_none());
    }

    #[test]
    fn sending_to_a_dropped_receiver_fails() {
        let (sender, receiver) = channel().unwrap();
        drop(receiver);
        assert!(!sender.send(1));
    }
}
