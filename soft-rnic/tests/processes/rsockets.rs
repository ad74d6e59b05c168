//! Rsockets of two processes, one of which is killed while bytes go both ways. The tests check the
//! survivor's errors, and that nothing remains.

use std::mem;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use libc::{sockaddr_in, socklen_t};
use libtest_mimic::{Failed, Trial};
use rustix::process::Signal;

use crate::cm::{CmCounts, cm};
use crate::role::{ChildRole, PATIENCE, fabric, run, say, told};
use crate::soak::Resources;

const PORT: u16 = 7500;
/// The length of one send, in bytes.
const CHUNK: usize = 50_000;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for mode in ["inline", "deferred"] {
        for path in ["auto", "call"] {
            for (name, survivor, victim) in [
                ("a_writer_killed_under_a_reader", "read", "write"),
                ("a_reader_killed_under_a_writer", "write", "read"),
                ("one_of_two_killed_who_do_both", "both", "both"),
                ("an_idle_one_killed", "read", "idle"),
                ("a_reader_who_never_reads_killed", "write", "idle"),
                ("one_killed_whose_child_lives", "read", "fork"),
            ] {
                let test = move || killed(mode, path, survivor, victim);
                trials.push(Trial::test(format!("rsockets::{name}_{mode}_by_{path}"), test));
            }
        }
        trials.push(Trial::test(format!("rsockets::nothing_is_left_{mode}"), move || whole_lives(mode)));
    }
    trials.push(Trial::test("rsockets::a_number_that_the_program_closed_is_the_next_ones", || {
        run("rsocket close - 1", &[])
    }));
    trials
}

fn start(fabric: &str, mode: &str, path: &str, arguments: &str) -> ChildRole {
    let variables = [("SOFT_RNIC_FABRIC", fabric), ("SOFT_RNIC_MODE", mode), ("SOFT_RNIC_PATH", path)];
    ChildRole::start(&format!("rsocket {arguments}"), &variables)
}

fn killed(mode: &str, path: &str, survivor_does: &str, victim_does: &str) -> Result<(), Failed> {
    let fabric = fabric();
    // Either side may be the listener.
    for (first, second) in [(survivor_does, victim_does), (victim_does, survivor_does)] {
        let listener = start(&fabric, mode, path, &format!("listen {first} 1"));
        assert_eq!(listener.hear(), "ready");
        let connecter = start(&fabric, mode, path, &format!("connect {second} 1"));
        assert_eq!(connecter.hear(), "ready");
        for role in [&listener, &connecter] {
            assert_eq!(role.hear(), "connected");
        }
        let (mut survivor, mut victim) =
            if first == survivor_does { (listener, connecter) } else { (connecter, listener) };
        if first == second {
            mem::swap(&mut survivor, &mut victim);
        }
        if victim_does == "fork" {
            assert_eq!(victim.hear(), "out");
        }
        // Kill the process in the middle of the transfer.
        std::thread::sleep(Duration::from_millis(30));
        victim.signal(Signal::KILL);
        victim.wait_dead();
        let line = survivor.hear();
        let told: Vec<i32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let well = [libc::ECONNRESET, libc::EPIPE];
        if told.is_empty() || !told.iter().all(|error| well.contains(error)) {
            return Err(format!("wrong report of the other's death: {line:?}").into());
        }
        assert_eq!(survivor.hear(), "clean");
        survivor.finish();
    }
    Ok(())
}

/// Many connections of two processes, one after another, each with bytes both ways.
fn whole_lives(mode: &str) -> Result<(), Failed> {
    const LIVES: u32 = 40;
    let fabric = fabric();
    let listener = start(&fabric, mode, "auto", &format!("listen some {LIVES}"));
    assert_eq!(listener.hear(), "ready");
    let connecter = start(&fabric, mode, "auto", &format!("connect some {LIVES}"));
    assert_eq!(connecter.hear(), "ready");
    for role in [&listener, &connecter] {
        for _ in 0..LIVES {
            assert_eq!((role.hear(), role.hear()), ("connected".to_owned(), "0 0".to_owned()));
        }
        assert_eq!(role.hear(), "clean");
    }
    connecter.finish();
    listener.finish();
    Ok(())
}

fn address() -> (sockaddr_in, socklen_t) {
    let address = sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: PORT.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    (address, size_of::<sockaddr_in>() as socklen_t)
}

fn error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn rsocket() -> i32 {
    // SAFETY: the function takes only numbers.
    let socket = unsafe { (cm().rsocket)(libc::AF_INET, libc::SOCK_STREAM, 0) };
    assert!(socket >= 0, "error {}", error());
    socket
}

/// Makes this thread sleep once, so that it has its waker, an eventfd that it keeps until it ends.
/// Otherwise chance would decide whether it sleeps in its first connection, and the resource counts
/// would differ.
fn have_a_bell() {
    let events = || Resources::now().descriptors.get("anon_inode:[eventfd]").copied().unwrap_or(0);
    let before = events();
    // A call that finds its time over does not sleep.
    while events() == before {
        // SAFETY: the array has no entries.
        assert_eq!(unsafe { (cm().rpoll)(std::ptr::null_mut(), 0, 10) }, 0, "error {}", error());
    }
}

/// The side role: makes this number of connections, one after another.
pub(crate) fn side(arguments: &[String]) {
    let [role, does, times] = arguments else { panic!("{arguments:?}?") };
    let times: u32 = times.parse().expect("a number");
    if role == "close" {
        return closed_by_the_program();
    }
    let (c, length) = address();
    let c = (&raw const c).cast();
    let listens = role == "listen";
    have_a_bell();
    // Make the objects that stay after a process's first connection: a context, a port group.
    let listener = rsocket();
    // SAFETY: the address is a local, and null means that the peer's address is not wanted.
    unsafe {
        if listens {
            assert_eq!((cm().rbind)(listener, c, length), 0, "error {}", error());
            assert_eq!((cm().rlisten)(listener, 8), 0, "error {}", error());
        }
        say("ready");
        let mut before = None;
        for _ in 0..times {
            let connection = if listens {
                (cm().raccept)(listener, std::ptr::null_mut(), std::ptr::null_mut())
            } else {
                let socket = rsocket();
                assert_eq!((cm().rconnect)(socket, c, length), 0, "error {}", error());
                socket
            };
            assert!(connection >= 0, "error {}", error());
            say("connected");
            let told = work(connection, does);
            say(&told.iter().map(i32::to_string).collect::<Vec<_>>().join(" "));
            assert_eq!((cm().rclose)(connection), 0, "error {}", error());
            before.get_or_insert_with(CmCounts::now);
        }
        if let Some(before) = before.filter(|_| does == "some") {
            before.expect_no_more();
        }
        assert_eq!((cm().rclose)(listener), 0, "error {}", error());
    }
    if does != "some" {
        // Nothing of the connection remains that would wait for the dead process.
        let begin = Instant::now();
        let has_left = || {
            soft_rnic::statistics().is_some_and(|all| {
                !all.queue_pairs.is_empty() && all.queue_pairs.iter().any(|kind| kind.count != 0)
            })
        };
        while has_left() {
            assert!(begin.elapsed() < PATIENCE, "queue pairs remain");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    say("clean");
    while told().is_some() {}
}

/// Performs the operation until it fails or is done (0). Returns the result of each direction.
fn work(socket: i32, does: &str) -> Vec<i32> {
    match does {
        "read" => vec![read(socket, usize::MAX)],
        "write" => vec![write(socket, usize::MAX)],
        "idle" => {
            while told().is_some() {}
            vec![]
        }
        "fork" => {
            // SAFETY: this process's only other thread is the service thread, and the child opens a
            // device for itself.
            if unsafe { libc::fork() } == 0 {
                say(&shut_out(socket));
                while told().is_some() {}
                // SAFETY: the child ends here.
                unsafe { libc::_exit(0) };
            }
            assert_eq!(write(socket, 3), 0, "the parent's connection still works");
            while told().is_some() {}
            vec![]
        }
        _ => {
            let total = if does == "some" { 20 * CHUNK } else { usize::MAX };
            let writer = std::thread::spawn(move || write(socket, total));
            let read = read(socket, total);
            vec![read, writer.join().expect("no panic")]
        }
    }
}

/// Reads and checks the expected bytes. A stream that ends without the peer's end message is an
/// error.
fn read(socket: i32, total: usize) -> i32 {
    let mut bytes = vec![0_u8; CHUNK];
    let mut got = 0;
    while got < total {
        let length = bytes.len().min(total - got);
        // SAFETY: `bytes` is writable for `length` bytes.
        match unsafe { (cm().rrecv)(socket, bytes.as_mut_ptr().cast(), length, 0) } {
            0 => return libc::ENODATA,
            -1 => return error(),
            length => {
                for byte in &bytes[..length as usize] {
                    assert_eq!(*byte, (got % 251) as u8, "byte {got}");
                    got += 1;
                }
            }
        }
    }
    0
}

fn write(socket: i32, total: usize) -> i32 {
    let bytes: Vec<u8> = (0..251 + CHUNK).map(|at| (at % 251) as u8).collect();
    let mut sent = 0;
    while sent < total {
        let from = sent % 251;
        let length = CHUNK.min(total - sent);
        // SAFETY: `bytes` has `length` readable bytes after `from`.
        match unsafe { (cm().rsend)(socket, bytes[from..].as_ptr().cast(), length, 0) } {
            -1 => return error(),
            length => sent += length as usize,
        }
    }
    0
}

/// A forked child cannot use its parent's rsocket, but can make new ones.
fn shut_out(socket: i32) -> String {
    // SAFETY: the other arguments are numbers, and the pointers point to locals.
    let results = unsafe {
        let mut byte = 0_u8;
        let byte = (&raw mut byte).cast();
        [
            (cm().rrecv)(socket, byte, 1, 0),
            (cm().rsend)(socket, byte, 1, 0),
            (cm().rshutdown)(socket, libc::SHUT_RDWR) as isize,
            (cm().rclose)(socket) as isize,
        ]
        .map(|result| (result, error()))
    };
    let mut fd = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry; the other arguments are numbers.
    let own = unsafe {
        (cm().rpoll)(&raw mut fd, 1, 0);
        let own = rsocket();
        (cm().rlisten)(own, 1) == 0 && (cm().rclose)(own) == 0
    };
    if results == [(-1, libc::EBADF); 4] && fd.revents == libc::POLLNVAL && own {
        "out".into()
    } else {
        format!("{results:?} {fd:?} {own}")
    }
}

/// A program closes an rsocket with `close`, and the next rsocket gets its number.
fn closed_by_the_program() {
    let first = rsocket();
    let control = cm().rfcntl.expect("it is there");
    // SAFETY: this function made the descriptor; the other calls take only numbers.
    unsafe {
        assert_eq!(libc::close(first), 0);
        let second = rsocket();
        assert_eq!(first, second, "the lowest free descriptor");
        assert_eq!((cm().rlisten)(second, 1), 0, "error {}", error());
        assert!(control(second, libc::F_GETFD) >= 0, "error {}", error());
        let identifiers = soft_rnic::statistics().expect("a device exists").identifiers;
        assert_eq!((identifiers.count, identifiers.listening), (1, 1), "the first rsocket is closed");
        assert_eq!((cm().rclose)(second), 0);
        assert_eq!((cm().rclose)(second), -1);
    }
}
