//! epoll over the connection manager's events and completions, for programs with many connections.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use sideway::rdmacm::EventChannel;

use crate::program::Failure;

const CONNECTIONS: u64 = 0;
const MESSAGES: u64 = 1;

/// The sources that have something to take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready {
    /// The event channel has events.
    pub connections: bool,
    /// The completion channel has events.
    pub messages: bool,
}

/// Waits for connection manager events and completions.
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
}

impl Reactor {
    /// Watches an event channel.
    ///
    /// # Errors
    ///
    /// The process has too many descriptors.
    pub fn new(channel: &EventChannel) -> Result<Self, Failure> {
        let reactor = Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? };
        reactor.add(channel, CONNECTIONS)?;
        Ok(reactor)
    }

    /// Watches a completion channel, too.
    ///
    /// # Errors
    ///
    /// It watches one already.
    pub fn add_messages(&self, channel: &impl AsFd) -> Result<(), Failure> {
        self.add(channel, MESSAGES)
    }

    fn add(&self, descriptor: &impl AsFd, what: u64) -> Result<(), Failure> {
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(what), epoll::EventFlags::IN)?)
    }

    /// Sleeps until a source has something to take.
    ///
    /// # Errors
    ///
    /// Nothing happens within the time limit.
    pub fn wait(&self, patience: Option<Duration>) -> Result<Ready, Failure> {
        let limit = patience.map(Timespec::try_from).transpose()?;
        let mut ready = Vec::with_capacity(2);
        let wait = || epoll::wait(&self.epoll, spare_capacity(&mut ready), limit.as_ref());
        if rustix::io::retry_on_intr(wait)? == 0 {
            return Err(Failure::work(format_args!(
                "nothing happened for {:?}",
                patience.unwrap_or_default()
            )));
        }
        let found = |what| ready.iter().any(|event: &epoll::Event| event.data.u64() == what);
        Ok(Ready { connections: found(CONNECTIONS), messages: found(MESSAGES) })
    }
}
