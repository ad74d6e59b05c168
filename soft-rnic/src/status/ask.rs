//! Queries the other processes of this user for their statistics.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{STATUS_VERSION, Statistics};
use crate::node::{LAST_BLOCK, PeerRequest, REPLY, Reply, socket_name};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
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

/// Asks the processes of this user that have a software device open on this host (strictly: in this
/// network namespace), of one fabric or of all. The name of the default fabric is empty.
///
/// Each process is asked once, with a time limit. Nothing of it is changed or mapped.
///
/// # Errors
///
/// `/proc/net/unix` cannot be read, or no descriptor is left. `PermissionDenied` if this user
/// cannot be told from others, because it has no name in its user namespace.
pub fn processes(fabric: Option<&str>) -> io::Result<Vec<Process>> {
    let Some(user) = user::own() else {
        let message = "this user has no name in its user namespace, so no process can be trusted";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    };
    let sockets = std::fs::read("/proc/net/unix")
        .map_err(|error| io::Error::new(error.kind(), format!("/proc/net/unix: {error}")))?;
    let names = names(&String::from_utf8_lossy(&sockets), fabric);
    let mut found = FoundSockets::default();
    let mut queries = Vec::new();
    for (fabric, block) in names {
        queries.extend(found.call(user, fabric, block)?);
        if queries.len() == AT_A_TIME {
            found.wait_for_answers(core::mem::take(&mut queries))?;
        }
    }
    found.wait_for_answers(queries)?;
    Ok(found.processes)
}

/// The fabrics and blocks of listening sockets, from a table whose names any user may have chosen.
fn names(table: &str, fabric: Option<&str>) -> BTreeSet<(String, u16)> {
    let name = |line: &str| {
        let mut rest = line.split_once("@soft-rnic/")?.1.rsplitn(2, '/');
        let block = rest.next()?.parse().ok().filter(|block| (1..=LAST_BLOCK).contains(block))?;
        // Names with another `/` belong to ports and to other agreements between processes.
        let of = rest.next().filter(|of| !of.contains('/'))?;
        fabric.is_none_or(|fabric| fabric == of).then(|| (of.to_owned(), block))
    };
    table.lines().filter_map(name).collect()
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
    known: BTreeSet<(String, u32)>,
    /// The same for processes without a known process number.
    nameless: BTreeSet<[u8; 16]>,
}

impl FoundSockets {
    /// Asks the owner of a block, if it is a process of this user that was not asked yet.
    fn call(&mut self, user: u32, fabric: String, block: u16) -> io::Result<Option<StatusQuery>> {
        let mut socket = match Socket::connect(&socket_name(&fabric, block)) {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::names;

    #[test]
    fn socket_names_are_found_among_others() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20155 @soft-rnic//7\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20156 @soft-rnic/lab/1023\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20157 @soft-rnic/lab/1024\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20158 @soft-rnic/lab/0\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20159 @soft-rnic/lab/x\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20160 @soft-rnic\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20160 @soft-rnic/lab/xrc/1a-2b/7\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20160 @soft-rnic/lab/cm/1/p7\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 20161 /run/soft-rnic/lab/5\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 20162\n";
        let all = [(String::new(), 7), ("lab".to_owned(), 1023)];
        assert_eq!(names(table, None), all.clone().into());
        assert_eq!(names(table, Some("")), all[..1].iter().cloned().collect());
        assert_eq!(names(table, Some("lab")), all[1..].iter().cloned().collect());
        assert!(names(table, Some("la")).is_empty());
    }
}
