//! The abstract names at which SEQPACKET sockets of this network namespace listen, and their users.
//!
//! `sock_diag(7)` tells both, and any user may ask it. Where it is missing, `/proc/self/net/unix` tells
//! the names; then only a connection tells the user.
//!
//! A name that is bound from before the question until after the answer is in the answer, except
//! that a long answer comes in pieces: a socket that vanishes between two of them may hide another.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedSocket {
    /// Its abstract name, without the leading NUL.
    pub(crate) name: Vec<u8>,
    /// The user who made it; `None` if the system does not tell.
    pub(crate) user: Option<u32>,
}

/// The state of a socket that listens (`TCP_LISTEN`).
const LISTEN: u8 = 10;
/// The message type of a request and of each answer.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_NAME` and `UDIAG_SHOW_UID`. Kernels before 5.3 lack the second.
const SHOW: u32 = 0x1 | 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// The bytes of the headers of a netlink message, of an answer, and of an attribute.
const HEADER: usize = 16;
const ANSWER: usize = 16;
const ATTRIBUTE: usize = 4;
/// The kernel fills no more bytes at a time.
const BUFFER: usize = 32 << 10;

/// All sockets that listen at names with this beginning.
///
/// # Errors
///
/// No descriptor is left, or neither source can be read.
pub(crate) fn all(beginning: &[u8]) -> io::Result<Vec<ListedSocket>> {
    let mut found = Vec::new();
    let mut add = |name: &[u8], user| {
        if name.starts_with(beginning) {
            found.push(ListedSocket { name: name.to_owned(), user });
        }
    };
    match ask_kernel(&mut add) {
        Err(error) if error == rustix::io::Errno::MFILE || error == rustix::io::Errno::NFILE => {
            Err(error.into())
        }
        Err(error) => {
            log::debug!("sock_diag: {error}; names are read from /proc/self/net/unix");
            let table = std::fs::read("/proc/self/net/unix")
                .map_err(|error| io::Error::new(error.kind(), format!("/proc/self/net/unix: {error}")))?;
            found.clear();
            let names = table.split(|byte| *byte == b'\n').filter_map(name_in_table);
            found.extend(
                names
                    .filter(|name| name.starts_with(beginning))
                    .map(|name| ListedSocket { name: name.to_owned(), user: None }),
            );
            Ok(found)
        }
        Ok(()) => Ok(found),
    }
}

/// For tests: behave as on a kernel without `sock_diag`.
#[cfg(test)]
pub(crate) static WITHOUT_DIAG: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

fn ask_kernel(add: &mut impl FnMut(&[u8], Option<u32>)) -> rustix::io::Result<()> {
    #[cfg(test)]
    if WITHOUT_DIAG.load(core::sync::atomic::Ordering::Relaxed) {
        return Err(rustix::io::Errno::NOENT);
    }
    let (raw, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, raw, flags, Some(netlink::SOCK_DIAG))?;
    rustix::net::send(&socket, &request(), SendFlags::empty())?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (_, len) = rustix::net::recv(&socket, &mut *buffer, RecvFlags::TRUNC)?;
        let mut rest = buffer.get(..len).ok_or(rustix::io::Errno::MSGSIZE)?;
        while let Some((kind, body, next)) = message(rest) {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(()),
                libc::NLMSG_ERROR => {
                    let error = number(body, 0).map_or(0, |error| (error as i32).wrapping_neg());
                    return Err(rustix::io::Errno::from_raw_os_error(error));
                }
                _ => read_answer(body, add),
            }
            rest = next;
        }
    }
}

/// Asks for the sockets that listen.
fn request() -> [u8; HEADER + 24] {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut request = [0; HEADER + 24];
    let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &((HEADER + 24) as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &flags.to_ne_bytes());
    put(HEADER, &[libc::AF_UNIX as u8]);
    put(HEADER + 4, &(1_u32 << LISTEN).to_ne_bytes());
    put(HEADER + 12, &SHOW.to_ne_bytes());
    put(HEADER + 16, &[0xff; 8]);
    request
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The kind of the first message, its body, and the messages behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = number(bytes, 0)? as usize;
    let kind = bytes.get(4..)?.first_chunk().map(|kind| u16::from_ne_bytes(*kind))?;
    let next = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, bytes.get(HEADER..len)?, next))
}

/// Adds the socket of an answer if it has an abstract name and keeps the bounds of packets.
fn read_answer(body: &[u8], add: &mut impl FnMut(&[u8], Option<u32>)) {
    if body.get(1) != Some(&(libc::SOCK_SEQPACKET as u8)) || body.get(2) != Some(&LISTEN) {
        return;
    }
    let (mut name, mut user) = (None, None);
    let mut rest = body.get(ANSWER..).unwrap_or_default();
    while let Some([len, kind]) = number(rest, 0).map(|both| {
        let [a, b, c, d] = both.to_ne_bytes();
        [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
    }) {
        let len = usize::from(len);
        let Some(value) = rest.get(ATTRIBUTE..len) else { break };
        match kind {
            UNIX_DIAG_NAME => name = value.strip_prefix(&[0]),
            UNIX_DIAG_UID => user = number(value, 0),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    if let Some(name) = name {
        add(name, user);
    }
}

/// The name of a socket that listens, from a line of `/proc/self/net/unix`. Accepted connections have
/// their listener's name, too.
fn name_in_table(line: &[u8]) -> Option<&[u8]> {
    let mut fields = line.splitn(8, |byte| *byte == b' ');
    let listens = fields.nth(3)? == b"00010000";
    let packets = fields.next()? == b"0005";
    let name = fields.nth(2)?.trim_ascii_start().split(|byte| *byte == b'@').nth(1);
    name.filter(|_| listens && packets)
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;
    use crate::platform::socket::Socket;

    #[test]
    fn the_kernel_and_the_table_list_the_same_names() {
        let name = |number: u32| format!("soft-rnic-listed/{}/{number}", std::process::id());
        let sockets: Vec<_> =
            (0..300).map(|number| Socket::listen(name(number).as_bytes()).expect("free")).collect();
        let connected = Socket::connect(name(7).as_bytes()).expect("it listens");
        let accepted = sockets[7].accept().expect("it has connected");
        let beginning = format!("soft-rnic-listed/{}/", std::process::id());
        let mut listed = all(beginning.as_bytes()).expect("names");
        listed.sort_by_key(|listener| listener.name.clone());
        let mut expected: Vec<_> = (0..300).map(|number| name(number).into_bytes()).collect();
        expected.sort();
        assert!(listed.iter().map(|listener| &listener.name).eq(&expected));
        let table = std::fs::read("/proc/self/net/unix").expect("proc");
        let mut names: Vec<_> =
            table.split(|byte| *byte == b'\n').filter_map(name_in_table).map(<[u8]>::to_vec).collect();
        names.retain(|name| name.starts_with(beginning.as_bytes()));
        names.sort();
        assert_eq!(names, expected);
        let user = rustix::process::geteuid().as_raw();
        assert!(listed.iter().all(|listener| listener.user.is_none_or(|found| found == user)));
        drop((connected, accepted, sockets));
        assert_eq!(all(beginning.as_bytes()).expect("names"), []);
    }

    #[test]
    fn answers_that_make_no_sense_are_passed_over() {
        let mut found = 0;
        for len in 0..64 {
            for byte in [0, 1, 5, 10, 0xff] {
                let mut body = vec![byte; len];
                if let [family, kind, state, ..] = &mut *body {
                    (*family, *kind, *state) = (1, 5, LISTEN);
                }
                read_answer(&body, &mut |_, _| found += 1);
                let _ = message(&body);
                let _ = name_in_table(&body);
            }
        }
        assert_eq!(found, 0);
    }
}
