//! Abstract socket names that a process of this user has for itself, whatever other users bind.
//!
//! A name ends with a random number, so nobody else can take it first. The names of one thing (a
//! block, a port) have the rest in common. Its owner is found in the list of all sockets that
//! listen, which tells their users ([`listeners`]); sockets of other users do not count.
//!
//! Two processes of a user never own one thing. Each that wants it first listens at a name that is
//! a *claim*, and then looks at the list:
//!
//! - If the thing has an owner, or a claim with a smaller number, the process gives up.
//! - If it has claims with larger numbers, the process waits until they are gone. Their processes
//!   have given up then, or one of them is the owner.
//! - Otherwise the process listens at the owner's name, and ends its claim.
//!
//! Of two processes, one claims before the other looks, and finds it. An owner listens before its
//! claim ends. A look that comes upon the two names in the wrong order may miss both, but the next
//! look finds the owner. Therefore a process looks twice.

use std::io;
use std::time::{Duration, Instant};

use super::probe::random;
use crate::platform::listeners::{self, ListedSocket};
use crate::platform::socket::{Credentials, Socket};

/// How long a process waits for a claim with a larger number. Its process may be stopped.
const PATIENCE: Duration = Duration::from_secs(1);
/// The interval between looks at the list.
const LOOK_AGAIN: Duration = Duration::from_micros(500);
/// Marks a claim.
const CLAIM: char = '+';

/// Makes this process the owner of a thing. `None` if another process of the user is its owner, or
/// becomes it. The name of the socket begins with `thing` and `/`.
///
/// # Errors
///
/// The system has no descriptor left, or lists no sockets.
pub(crate) fn claim(thing: &str, user: u32) -> io::Result<Option<Socket>> {
    let own = number();
    let claimed = Socket::listen(format!("{thing}/{CLAIM}{own:016x}").as_bytes())?;
    let deadline = Instant::now() + PATIENCE;
    let mut looks = 0;
    while looks < 2 {
        looks += 1;
        for name in names(thing, user)? {
            match parse(thing, &name) {
                Some((true, other)) if other == own => {}
                Some((true, other)) if other > own && Instant::now() < deadline => {
                    looks = 0;
                    std::thread::sleep(LOOK_AGAIN);
                    break;
                }
                Some(_) => return Ok(None),
                None => {}
            }
        }
    }
    // Not the number of the claim, which others have seen.
    let owner = present(thing)?;
    drop(claimed);
    Ok(Some(owner))
}

/// Listens at a name that begins with `thing` and `/`, as any number of processes may.
///
/// # Errors
///
/// The system has no descriptor left.
pub(crate) fn present(thing: &str) -> io::Result<Socket> {
    Socket::listen(format!("{thing}/{:016x}", number()).as_bytes())
}

/// The names at which this user's owners of a thing listen, normally one. Where the system does not
/// tell users, those of others are among them.
///
/// # Errors
///
/// The system has no descriptor left, or lists no sockets.
pub(crate) fn owners(thing: &str, user: u32) -> io::Result<Vec<Vec<u8>>> {
    let mut names = candidates(&format!("{thing}/"), user)?;
    names.retain(|name| matches!(parse(thing, name), Some((false, _))));
    Ok(names)
}

/// The outcome of connecting to the owner of a thing.
pub(crate) enum Found {
    Owner(Socket, Credentials),
    /// Its backlog is full.
    Busy,
    /// No process of this user.
    Nobody,
}

/// Connects to the owner of a thing, which listens at one of these names. A process of another user
/// is never trusted.
///
/// # Errors
///
/// The system has no descriptor left.
pub(crate) fn connect(names: &[Vec<u8>], user: Option<u32>) -> io::Result<Found> {
    let mut found = Found::Nobody;
    for name in names {
        match Socket::connect(name) {
            Ok(mut socket) => {
                if let Ok(who) = socket.peer_of(user) {
                    return Ok(Found::Owner(socket, who));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => found = Found::Busy,
            // It has just ended.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Whether the thing has an owner of this user.
///
/// # Errors
///
/// As [`owners`].
pub(crate) fn has_owner(thing: &str, user: u32) -> io::Result<bool> {
    Ok(names(thing, user)?.iter().any(|name| matches!(parse(thing, name), Some((false, _)))))
}

/// The names with this beginning at which this user's owners of things listen, each with its thing.
///
/// # Errors
///
/// As [`owners`].
pub(crate) fn things(beginning: &str, user: u32) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut things = Vec::new();
    for name in candidates(beginning, user)? {
        let thing = str::from_utf8(&name).ok().and_then(|text| text.rsplit_once('/'));
        if let Some((thing, _)) = thing.filter(|(thing, _)| matches!(parse(thing, &name), Some((false, _)))) {
            things.push((thing.to_owned(), name));
        }
    }
    Ok(things)
}

fn number() -> u64 {
    random().first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Whether a thing's name is a claim, and its number.
fn parse(thing: &str, name: &[u8]) -> Option<(bool, u64)> {
    let number = str::from_utf8(name).ok()?.strip_prefix(thing)?.strip_prefix('/')?;
    let digits = number.strip_prefix(CLAIM).unwrap_or(number);
    let is_plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let value = u64::from_str_radix(digits, 16).ok().filter(|_| is_plain)?;
    Some((digits.len() != number.len(), value))
}

/// The names with this beginning that may be this user's.
fn candidates(beginning: &str, user: u32) -> io::Result<Vec<Vec<u8>>> {
    let listeners = listeners::all(beginning.as_bytes())?.into_iter();
    let of_user = listeners.filter(|listener| listener.user.is_none_or(|found| found == user));
    Ok(of_user.map(|listener| listener.name).collect())
}

/// This user's names of a thing. Asks the kernel about each whose user is not in the list.
fn names(thing: &str, user: u32) -> io::Result<Vec<Vec<u8>>> {
    let is_of_user = |listener: &ListedSocket| match listener.user {
        Some(found) => found == user,
        None => match Socket::connect(&listener.name) {
            Ok(mut socket) => socket.peer_of(Some(user)).is_ok(),
            // It cannot be told, so it counts.
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        },
    };
    let mut listeners = listeners::all(format!("{thing}/").as_bytes())?;
    listeners.retain(is_of_user);
    Ok(listeners.into_iter().map(|listener| listener.name).collect())
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_thing_has_one_owner_however_many_claim_it() {
        for round in 0..20 {
            let thing = format!("soft-rnic-claimed/{}/{round}", std::process::id());
            let start = std::sync::Barrier::new(8);
            let owners_found: Vec<_> = std::thread::scope(|scope| {
                let claim = || {
                    start.wait();
                    claim(&thing, user()).expect("descriptors")
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
                threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
            });
            assert_eq!(owners_found.len(), 1, "round {round}");
            assert_eq!(owners(&thing, user()).expect("names").len(), 1);
            assert!(claim(&thing, user()).expect("descriptors").is_none());
            drop(owners_found);
            // A child that another test starts has the socket open until it runs its program.
            let is_free = || claim(&thing, user()).expect("descriptors").is_some();
            let mut tries = (0..10_000).inspect(|_| std::thread::sleep(LOOK_AGAIN));
            assert!(tries.any(|_| is_free()));
        }
    }

    #[test]
    fn names_are_read_as_they_are_made() {
        assert_eq!(parse("a/1", b"a/1/00000000000000ff"), Some((false, 255)));
        assert_eq!(parse("a/1", b"a/1/+00000000000000ff"), Some((true, 255)));
        for other in [
            "a/1/ff",
            "a/1",
            "a/1/",
            "a/11/00000000000000ff",
            "a/1/+0000000000000+ff",
            "a/1/x/00000000000000ff",
        ] {
            assert_eq!(parse("a/1", other.as_bytes()), None, "{other}");
        }
    }
}
