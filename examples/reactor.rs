//! epoll over the two things that a program with many connections waits for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use sideway::rdmacm::EventChannel;

use crate::program::Failure;

const CONNECTIONS: u64 = 0;
const MESSAGES: u64 = 1;

/// What there is to see to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready {
    /// The event channel has events.
    pub connections: bool,
    /// The completion channel has.
    pub messages: bool,
}

/// Waits for events of the connection manager, and for completions.
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
}

impl Reactor {
    /// For an event channel at first.
    ///
    /// # Errors
    ///
    /// The process has too many descriptors.
    pub fn new(channel: &EventChannel) -> Result<Self, Failure> {
        let reactor = Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? };
        reactor.add(channel, CONNECTIONS)?;
        Ok(reactor)
    }

    /// For a completion channel as well.
    ///
    /// # Errors
    ///
    /// There is one already.
    pub fn add_messages(&self, channel: &impl AsFd) -> Result<(), Failure> {
        self.add(channel, MESSAGES)
    }

    fn add(&self, descriptor: &impl AsFd, what: u64) -> Result<(), Failure> {
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(what), epoll::EventFlags::IN)?)
    }

    /// Sleeps until there is something to see to.
    ///
    /// # Errors
    ///
    /// Nothing happens for so long.
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
