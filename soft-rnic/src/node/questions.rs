//! Who has a port: asking at its name, in the background.

use std::io;
use std::time::{Duration, Instant};

use super::mailbox::Command;
use super::message::Reply;
use super::ports::Port;
use super::service::{EventSource, ServiceThread};
use super::{ALONE, Node};
use crate::platform::socket::{Received, Socket};
use crate::platform::user;

/// How soon somebody is asked again who has too many callers.
const BUSY: Duration = Duration::from_millis(2);
/// So many are asked at a time, each over a descriptor. The others are asked when those have answered.
const AT_A_TIME: usize = 128;

/// Who has a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// This process.
    Here,
    /// The process with this block.
    Block(u16),
    /// No process of this user.
    Nobody,
    /// Somebody who did not answer in time: it is stopped, or has too much to do.
    Silent,
}

/// Somebody who wants to know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeker {
    token: u64,
    until: Instant,
}

/// A port that somebody was asked for, or is about to be.
#[derive(Debug)]
pub(crate) struct Question {
    port: Port,
    socket: Option<Socket>,
    seekers: Vec<Seeker>,
}

impl Node {
    /// Finds out who has a port. `None`: the handler's `cm_port_owner` will be called with the token, at `until` or a little later at the
    /// latest. What is said at once may be out of date; `fresh` has it asked for in any case.
    pub(crate) fn find_port(
        &self,
        space: u8,
        port: u16,
        until: Instant,
        token: u64,
        fresh: bool,
    ) -> Option<Found> {
        let port = Port { space, number: port };
        if self.state.ports.has(port) {
            return Some(Found::Here);
        }
        if ALONE {
            return Some(Found::Nobody);
        }
        if fresh {
            self.state.ports.remember(port, None);
        } else if let Some(block) = self.state.ports.known_owner(port) {
            return Some(Found::Block(block));
        }
        if let Err(error) = self.ensure_service() {
            log::warn!("no service thread: {error}; nobody can be asked for a port");
            return Some(Found::Silent);
        }
        self.state.common.mailbox.post(Command::Question { port, seeker: Seeker { token, until } });
        None
    }
}

impl ServiceThread {
    pub(crate) fn ask(&mut self, port: Port, seeker: Seeker) {
        let open = self.sources.iter_mut().find_map(|(token, source)| match source {
            EventSource::Question(question) if question.port == port => Some((*token, question)),
            _ => None,
        });
        if let Some((token, question)) = open {
            question.seekers.push(seeker);
            return self.set_deadline(seeker.until, token);
        }
        let token = self.new_token();
        self.set_deadline(seeker.until, token);
        self.ask_again(token, Question { port, socket: None, seekers: vec![seeker] });
    }

    /// Asks, if nobody has been asked yet; those whose time is over are told so.
    pub(crate) fn ask_again(&mut self, token: u64, mut question: Question) {
        let now = Instant::now();
        let late: Vec<_> = question.seekers.extract_if(.., |seeker| seeker.until <= now).collect();
        self.tell_found(&late, Found::Silent);
        if question.seekers.is_empty() {
            question.socket.iter().for_each(|socket| self.unwatch(socket));
            return;
        }
        if question.socket.is_none() {
            match self.call_port(token, question.port) {
                Ok(Some(socket)) => question.socket = Some(socket),
                Ok(None) => self.set_deadline(now + BUSY, token),
                Err(found) => return self.tell_found(&question.seekers, found),
            }
        }
        self.sources.insert(token, EventSource::Question(question));
    }

    /// Connects to a port's owner; `None` if that is to be tried again.
    fn call_port(&self, token: u64, port: Port) -> Result<Option<Socket>, Found> {
        let is_open = |source: &&EventSource| matches!(source, EventSource::Question(Question { socket: Some(_), .. }));
        if self.sources.values().filter(is_open).count() >= AT_A_TIME {
            return Ok(None);
        }
        let socket = match Socket::connect(&port.name(&self.state.common.settings.fabric)) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(Found::Nobody),
            // Something else has the name.
            Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => return Err(Found::Nobody),
            Err(error) => {
                log::warn!("the owner of port {} cannot be asked: {error}", port.number);
                return Err(Found::Silent);
            }
        };
        // Nothing that another user's process says is heard.
        if !socket.credentials().is_ok_and(|who| user::own() == Some(who.user)) {
            return Err(Found::Nobody);
        }
        match self.watch(&socket, token) {
            Ok(()) => Ok(Some(socket)),
            Err(error) => {
                log::warn!("epoll_ctl: {error}");
                Err(Found::Silent)
            }
        }
    }

    pub(crate) fn hear_question(&mut self, question: Question) -> Option<EventSource> {
        let socket = question.socket.as_ref()?;
        let found = match socket.receive(&mut self.buffer) {
            Received::Nothing => return Some(EventSource::Question(question)),
            Received::Packet(len, _) => match Reply::decode(&self.buffer[..len]) {
                Some(Reply::Block { block }) if self.state.blocks.has(block) => Found::Here,
                Some(Reply::Block { block }) => Found::Block(block),
                _ => {
                    log::warn!(
                        "the owner of port {} is of another version, or not one of ours",
                        question.port.number
                    );
                    Found::Nobody
                }
            },
            // The port was let go.
            Received::End => Found::Nobody,
        };
        self.unwatch(socket);
        if let Found::Block(block) = found {
            self.state.ports.remember(question.port, Some(block));
        }
        self.tell_found(&question.seekers, found);
        None
    }

    /// At the end.
    pub(crate) fn give_up_asking(&self, question: &Question) {
        self.tell_found(&question.seekers, Found::Silent);
    }

    fn tell_found(&self, seekers: &[Seeker], found: Found) {
        let Some(handler) = self.state.handler() else { return };
        seekers.iter().for_each(|seeker| handler.cm_port_owner(seeker.token, found));
    }
}
