//! Why a queue pair gets no acknowledgement: looks for the process that has the queue pair at the
//! other end.

use std::fmt;

use crate::node::block_of;
use crate::objects::rnic::Rnic;
use crate::platform::listeners;
use crate::platform::socket::Socket;

/// The process that has the queue pair at the other end, as far as this process can see.
///
/// [`unanswered`] compares user, fabric and network namespace, in this order of precedence: a
/// process of this user and fabric, of another fabric, of another user.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// It can be reached, but it is stopped.
    #[error(
        "process {pid}, which has the peer's queue pair {qp_num:#x}, is stopped (by a debugger or Ctrl-Z): continue it"
    )]
    Stopped {
        /// The peer's queue pair number.
        qp_num: u32,
        /// Its process number.
        pid: u32,
    },
    /// It can be reached, and it runs.
    #[error(
        "{} has the peer's number {qp_num:#x}, and can be reached: its queue pair is not in RTR, is connected to \
         another one, or is gone; compare queue pair numbers, P_Keys and GIDs or LIDs on both \
         sides, and look at its completions",
        Owner(*.pid)
    )]
    Reachable {
        /// The peer's queue pair number.
        qp_num: u32,
        /// Its process number; `None` if that is not visible in this pid namespace.
        pid: Option<u32>,
    },
    /// It is in another fabric.
    #[error(
        "the peer's queue pair {qp_num:#x} is in {}, and this process in {}: set SOFT_RNIC_FABRIC to the same name on \
         both sides",
        Fabric(.fabric),
        Fabric(.own)
    )]
    OtherFabric {
        /// The peer's queue pair number.
        qp_num: u32,
        /// The name of the peer's fabric.
        fabric: String,
        /// The name of this process's fabric.
        own: String,
    },
    /// It is a process of another user.
    #[error(
        "the peer's queue pair {qp_num:#x} belongs to user {user}, and this process to user {own}: a software device \
         connects processes of one user only"
    )]
    OtherUser {
        /// The peer's queue pair number.
        qp_num: u32,
        /// The peer's user.
        user: u32,
        /// This process's user.
        own: u32,
    },
    /// No process of this network namespace has it.
    #[error(
        "no process has the peer's queue pair {qp_num:#x}: the peer has ended, or runs on another host or in another \
         network namespace (a container has one of its own: use the host's, `--network host`)"
    )]
    Nobody {
        /// The peer's queue pair number.
        qp_num: u32,
    },
}

debug_as_text!(Unanswered);

struct Owner(Option<u32>);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) if pid == std::process::id() => f.write_str("this process itself"),
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("a process of another pid namespace"),
        }
    }
}

struct Fabric<'a>(&'a str);

impl fmt::Display for Fabric<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("the default fabric"),
            name => write!(f, "fabric {name:?}"),
        }
    }
}

/// Says why a queue pair of this process gets no acknowledgement (`IBV_WC_RETRY_EXC_ERR`).
///
/// It looks at the sockets of this network namespace, connects to the peer's for a moment, and
/// changes nothing. It is for the path of a failure.
///
/// `None` if this process has no such queue pair, if that is not connected, or if the sockets cannot
/// be looked at.
pub fn unanswered(qp_num: u32) -> Option<Unanswered> {
    let rnic = Rnic::current().filter(|rnic| !rnic.node().is_forked())?;
    let qp = rnic.queue_pairs().get(rnic.node().own_index(qp_num)?)?;
    let peer = qp.descriptor().dest_qpn;
    let block = block_of(peer)?;
    let own_user = rustix::process::geteuid().as_raw();
    let own_fabric = &rnic.config().fabric;
    let (mut other_fabric, mut other_user) = (None, None);
    for listed in listeners::all(b"soft-rnic/").ok()? {
        let Some(fabric) = str::from_utf8(&listed.name).ok().and_then(|name| fabric_of(block, name)) else {
            continue;
        };
        if let Some(user) = listed.user.filter(|user| *user != own_user) {
            other_user = Some(user);
            continue;
        }
        // A socket that is gone or busy tells nothing of its process.
        let Ok(mut socket) = Socket::connect(&listed.name) else { continue };
        match socket.peer_of(Some(own_user)) {
            Ok(_) if fabric != own_fabric => other_fabric = Some(fabric.to_owned()),
            Ok(owner) => {
                let pid = (owner.pid != 0).then_some(owner.pid);
                return Some(match pid.filter(|pid| is_stopped(*pid)) {
                    Some(pid) => Unanswered::Stopped { qp_num: peer, pid },
                    None => Unanswered::Reachable { qp_num: peer, pid },
                });
            }
            Err(owner) => other_user = owner.map(|owner| owner.user).or(other_user),
        }
    }
    Some(match (other_fabric, other_user) {
        (Some(fabric), _) => Unanswered::OtherFabric { qp_num: peer, fabric, own: own_fabric.clone() },
        (None, Some(user)) => Unanswered::OtherUser { qp_num: peer, user, own: own_user },
        (None, None) => Unanswered::Nobody { qp_num: peer },
    })
}

/// The fabric in the name of a socket of this block's owner, which ends with a random number
/// (`node::names`). Any user may have chosen the name.
fn fabric_of(block: u16, name: &str) -> Option<&str> {
    let (thing, number) = name.strip_prefix("soft-rnic/")?.rsplit_once('/')?;
    let is_number = number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (fabric, found) = thing.rsplit_once('/')?;
    (is_number && !fabric.contains('/') && found.parse() == Ok(block)).then_some(fabric)
}

/// Whether a process is stopped, by a signal or a debugger (`man proc_pid_stat`).
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may contain any character.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_owners_of_a_block_are_found_in_every_fabric() {
        let of = |name: &str| fabric_of(7, name).map(str::to_owned);
        assert_eq!(of("soft-rnic//7/00ff00ff00ff00ff"), Some(String::new()));
        assert_eq!(of("soft-rnic/lab/7/00ff00ff00ff00ff"), Some("lab".to_owned()));
        for other in [
            "soft-rnic/lab/77/00ff00ff00ff00ff",
            "soft-rnic/lab/7/+00ff00ff00ff00ff",
            "soft-rnic/lab/7",
            "soft-rnic/lab/xrc/1a-2b/7/00ff00ff00ff00ff",
            "/run/soft-rnic/lab/7/00ff00ff00ff00ff",
            "soft-rnic",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn each_reason_names_its_remedy() {
        let (qp_num, pid, own) = (0x4001, 77, String::new());
        let texts = [
            Unanswered::Stopped { qp_num, pid },
            Unanswered::Reachable { qp_num, pid: Some(pid) },
            Unanswered::Reachable { qp_num, pid: None },
            Unanswered::OtherFabric { qp_num, fabric: "lab".into(), own },
            Unanswered::OtherUser { qp_num, user: 1000, own: 0 },
            Unanswered::Nobody { qp_num },
        ]
        .map(|reason| {
            assert_eq!(format!("{reason:?}"), reason.to_string());
            reason.to_string()
        });
        let expected = [
            "process 77, which has the peer's queue pair 0x4001, is stopped (by a debugger or Ctrl-Z): \
             continue it",
            "process 77 has the peer's number 0x4001, and can be reached: its queue pair is not in RTR, is \
             connected to another one, or is gone; compare queue pair numbers, P_Keys and GIDs or LIDs on \
             both sides, and look at its completions",
            "a process of another pid namespace has the peer's number 0x4001, and can be reached: its queue \
             pair is not in RTR, is connected to another one, or is gone; compare queue pair numbers, \
             P_Keys and GIDs or LIDs on both sides, and look at its completions",
            "the peer's queue pair 0x4001 is in fabric \"lab\", and this process in the default fabric: set \
             SOFT_RNIC_FABRIC to the same name on both sides",
            "the peer's queue pair 0x4001 belongs to user 1000, and this process to user 0: a software \
             device connects processes of one user only",
            "no process has the peer's queue pair 0x4001: the peer has ended, or runs on another host or in \
             another network namespace (a container has one of its own: use the host's, `--network host`)",
        ];
        assert_eq!(texts, expected);
    }
}
