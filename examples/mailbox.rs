//! A channel of the standard library whose receiver can sleep until a letter comes or a descriptor is readable, whichever is first.
//!
//! A thread that polls completion queues cannot wait in [`Receiver::recv`], which no completion ends. So there is an eventfd beside the
//! channel, to which who sends a letter writes if the receiver sleeps: a system call for each time that it sleeps, none while it
//! is at work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, write};

/// Where letters are sent from. Clones send to the same mailbox.
#[derive(Debug)]
pub struct Slot<T> {
    letters: Sender<T>,
    bell: Arc<Bell>,
}

/// Where they are taken out.
#[derive(Debug)]
pub struct Mailbox<T> {
    letters: Receiver<T>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Bell {
    sleeps: AtomicBool,
    eventfd: OwnedFd,
}

/// A mailbox, and the slot that leads to it.
///
/// # Errors
///
/// The process has too many descriptors.
pub fn mailbox<T>() -> io::Result<(Slot<T>, Mailbox<T>)> {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let bell = Arc::new(Bell { sleeps: AtomicBool::new(false), eventfd });
    let (sender, receiver) = mpsc::channel();
    Ok((Slot { letters: sender, bell: Arc::clone(&bell) }, Mailbox { letters: receiver, bell }))
}

impl<T> Slot<T> {
    /// Sends a letter; false if the mailbox is gone.
    pub fn send(&self, letter: T) -> bool {
        let is_there = self.letters.send(letter).is_ok();
        // The letter is there before this looks; the receiver says that it sleeps before it looks for letters. So
        // one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.bell.sleeps.swap(false, Ordering::Relaxed) {
            // It fails if nobody has read 2^64 of them, and then the receiver is awake.
            let _ = write(&self.bell.eventfd, &1_u64.to_ne_bytes());
        }
        is_there
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self { letters: self.letters.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T> Mailbox<T> {
    /// The next letter, if there is one.
    pub fn take(&mut self) -> Option<T> {
        self.letters.try_recv().ok()
    }

    /// Sleeps until there is a letter, which it takes, or the descriptor is readable. It may wake for nothing.
    ///
    /// # Errors
    ///
    /// The system does not wait.
    pub fn sleep(&mut self, other: BorrowedFd<'_>) -> io::Result<Option<T>> {
        self.bell.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut letter = self.take();
        if letter.is_none() {
            let bell = self.bell.eventfd.as_fd();
            let mut ready = [
                PollFd::from_borrowed_fd(bell, PollFlags::IN),
                PollFd::from_borrowed_fd(other, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                // Being woken for nothing does no harm.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            letter = self.take();
        }
        if !self.bell.sleeps.swap(false, Ordering::Relaxed) {
            // Somebody has rung, or is about to: then it wakes once more, for nothing.
            let _ = read(&self.bell.eventfd, &mut [0; 8]);
        }
        Ok(letter)
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
    fn no_letter_is_overslept() {
        const LETTERS: u64 = 2000;
        let (slot, mut mailbox) = mailbox().unwrap();
        let (done, all) = mpsc::channel();
        thread::spawn(move || {
            let other = silent();
            let mut letters = Vec::new();
            while letters.len() < 2 * LETTERS as usize {
                letters.extend(mailbox.sleep(other.as_fd()).unwrap());
            }
            done.send(letters).unwrap();
        });
        let senders = [0, 1].map(|sender| {
            let slot = slot.clone();
            thread::spawn(move || (0..LETTERS).all(|n| slot.send(2 * n + sender)))
        });
        assert!(senders.into_iter().all(|sender| sender.join().unwrap()));
        let mut letters = all.recv_timeout(Duration::from_secs(30)).expect("a letter was overslept");
        letters.sort_unstable();
        assert!(letters.into_iter().eq(0..2 * LETTERS));
    }

    #[test]
    fn a_descriptor_ends_the_sleep() {
        let (_slot, mut mailbox) = mailbox::<()>().unwrap();
        let other = silent();
        write(&other, &1_u64.to_ne_bytes()).unwrap();
        assert!(mailbox.sleep(other.as_fd()).unwrap().is_none());
    }

    #[test]
    fn a_mailbox_that_is_gone_takes_no_letters() {
        let (slot, mailbox) = mailbox().unwrap();
        drop(mailbox);
        assert!(!slot.send(1));
    }
}
