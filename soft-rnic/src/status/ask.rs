//! Queries the other processes of this user for their statistics.

use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{STATUS_VERSION, Statistics};
use crate::node::{BlockOwner, PeerRequest, REPLY, Reply, block_owners};
use crate::platform::socket::{Received, Socket};
use crate::platform::user;

/// How long a process has to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// How many processes are asked at a time, each over one descriptor.
const AT_A_TIME: usize = 128;

/// A process that has the device open.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Process {
    /// Its process number; `None` if it lives in another pid namespace, or could not be connected
    /// to.
    pub pid: Option<u32>,
    /// The name of its fabric. It can reach the processes of the same fabric.
    pub fabric: String,
    /// Its statistics, or why it did not send them.
    pub answer: Result<Statistics, NoAnswer>,
}

/// Why a process did not send its statistics.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// It did not answer in time, because it is stopped or overloaded.
    #[error("no answer within {} ms; is it stopped?", ANSWER.as_millis())]
    Late,
    /// Its backlog is full, so that this process could not connect.
    #[error("its backlog is full; is it stopped?")]
    Busy,
    /// It closed the connection: it is exiting, or its release cannot answer.
    #[error("it closed the connection; it has just exited, or its soft-rnic is too old")]
    HungUp,
    /// It sends another version of the statistics.
    #[error("it sends its status in version {0}, this soft-rnic reads version {STATUS_VERSION}")]
    OtherVersion(u64),
    /// Its answer is malformed.
    #[error("its answer is malformed")]
    Nonsense,
}

debug_as_text!(NoAnswer);

/// Asks the processes of this user that have a software device open on this host (strictly: in this
/// network namespace), of one fabric or of all. The name of the default fabric is empty.
///
/// Each process is asked once, with a time limit. Nothing of it is changed or mapped.
///
/// # Errors
///
/// The system does not list sockets, or no descriptor is left. `PermissionDenied` if this user
/// cannot be told from others, because it has no name in its user namespace.
pub fn processes(fabric: Option<&str>) -> io::Result<Vec<Process>> {
    let Some(user) = user::own() else {
        let message = "this user has no name in its user namespace, so no process can be trusted";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    };
    let mut found = FoundSockets::default();
    let mut queries = Vec::new();
    for owner in block_owners(fabric, user)? {
        queries.extend(found.call(user, owner)?);
        if queries.len() == AT_A_TIME {
            found.wait_for_answers(core::mem::take(&mut queries))?;
        }
    }
    found.wait_for_answers(queries)?;
    Ok(found.processes)
}

/// A process that was asked.
struct StatusQuery {
    socket: Socket,
    pid: Option<u32>,
    fabric: String,
}

#[derive(Default)]
struct FoundSockets {
    processes: Vec<Process>,
    /// The processes that were asked already, under any of their blocks.
    known: HashSet<(String, u32)>,
    /// The same for processes without a known process number.
    nameless: HashSet<[u8; 16]>,
}

impl FoundSockets {
    /// Asks the owner of a block, if it is a process of this user that was not asked yet.
    fn call(&mut self, user: u32, owner: BlockOwner) -> io::Result<Option<StatusQuery>> {
        let BlockOwner { fabric, name, .. } = owner;
        let mut socket = match Socket::connect(&name) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.processes.push(Process { pid: None, fabric, answer: Err(NoAnswer::Busy) });
                return Ok(None);
            }
            // The process has exited, or the name is not one of this device's sockets.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::InvalidInput | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(None);
            }
            Err(error) if error.raw_os_error() == Some(libc::EPROTOTYPE) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Ok(credentials) = socket.peer_of(Some(user)) else { return Ok(None) };
        let pid = (credentials.pid != 0).then_some(credentials.pid);
        if pid.is_some_and(|pid| !self.known.insert((fabric.clone(), pid))) {
            return Ok(None);
        }
        let sent = socket.send(&PeerRequest::Status { version: STATUS_VERSION }.encode());
        if sent.is_err() {
            self.processes.push(Process { pid, fabric, answer: Err(NoAnswer::HungUp) });
            return Ok(None);
        }
        Ok(Some(StatusQuery { socket, pid, fabric }))
    }

    /// Waits until all have answered or `ANSWER` has passed. The silent ones count as late.
    fn wait_for_answers(&mut self, mut waiting: Vec<StatusQuery>) -> io::Result<()> {
        let deadline = Instant::now() + ANSWER;
        let mut buffer = vec![0; REPLY];
        loop {
            for query in core::mem::take(&mut waiting) {
                match query.socket.receive(&mut buffer) {
                    Received::Nothing => waiting.push(query),
                    Received::Packet(len, _) => self.answered(query, &buffer[..len]),
                    Received::End => self.add(query, Err(NoAnswer::HungUp)),
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if waiting.is_empty() || left.is_zero() {
                break;
            }
            let mut files: Vec<_> = waiting
                .iter()
                .map(|query| PollFd::from_borrowed_fd(query.socket.as_fd(), PollFlags::IN))
                .collect();
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut files, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        waiting.into_iter().for_each(|query| self.add(query, Err(NoAnswer::Late)));
        Ok(())
    }

    fn answered(&mut self, query: StatusQuery, packet: &[u8]) {
        let answer = match Reply::decode(packet) {
            Some(Reply::Status { process, statistics }) => {
                if query.pid.is_none() && !self.nameless.insert(process) {
                    return;
                }
                Ok(*statistics)
            }
            Some(Reply::OtherVersion { version }) => Err(NoAnswer::OtherVersion(version)),
            _ => Err(NoAnswer::Nonsense),
        };
        self.add(query, answer);
    }

    fn add(&mut self, StatusQuery { pid, fabric, .. }: StatusQuery, answer: Result<Statistics, NoAnswer>) {
        self.processes.push(Process { pid, fabric, answer });
    }
}
