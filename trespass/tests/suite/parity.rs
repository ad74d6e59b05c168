//! Errors match `std::net`: each scenario runs over `std::net` and over this crate, and both return
//! the same kinds of error.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use trespass::Stream;

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: the_same_goes_wrong_in_the_same_way_as_over_std_net);
}

/// The common interface of both kinds of stream.
trait Socket: Read + Write + Sized + Send {
    fn wait(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()>;
    fn nonblocking(&self) -> io::Result<()>;
    fn shut(&mut self, how: Shutdown) -> io::Result<()>;
    /// Resets the connection.
    fn reset(self);
}

impl Socket for TcpStream {
    fn wait(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(read).and_then(|()| self.set_write_timeout(write))
    }

    fn nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn shut(&mut self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }

    fn reset(self) {
        socket2::SockRef::from(&self).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

impl Socket for Stream {
    fn wait(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(read).and_then(|()| self.set_write_timeout(write))
    }

    fn nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn shut(&mut self, how: Shutdown) -> io::Result<()> {
        self.shutdown(how)
    }

    fn reset(self) {
        self.set_linger(Some(Duration::ZERO)).unwrap();
    }
}

type Kinds = Vec<Result<usize, ErrorKind>>;

fn kind(outcome: io::Result<usize>) -> Result<usize, ErrorKind> {
    outcome.map_err(|error| error.kind())
}

const SHORT: Option<Duration> = Some(Duration::from_millis(30));

/// Writes until a write fails, because over TCP a write to a closed peer may succeed at first.
fn write_until_it_fails(socket: &mut impl Write) -> Result<usize, ErrorKind> {
    let deadline = Instant::now() + LONG;
    loop {
        match socket.write(&[0; 10]) {
            Ok(_) => assert!(Instant::now() < deadline, "every write is taken"),
            Err(error) => return Err(error.kind()),
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn reads_with_nothing_there<S: Socket>(mut one: S, _other: S) -> Kinds {
    one.wait(SHORT, None).unwrap();
    let timed = kind(one.read(&mut [0; 8]));
    one.nonblocking().unwrap();
    vec![timed, kind(one.read(&mut [0; 8]))]
}

fn a_timeout_of_zero<S: Socket>(one: S, _other: S) -> Kinds {
    vec![
        kind(one.wait(Some(Duration::ZERO), None).map(|()| 0)),
        kind(one.wait(None, Some(Duration::ZERO)).map(|()| 0)),
    ]
}

fn writes_to_a_full_peer<S: Socket>(mut one: S, _other: S) -> Kinds {
    one.nonblocking().unwrap();
    let error = loop {
        if let Err(error) = one.write(&[0; 100_000]) {
            break error.kind();
        }
    };
    vec![Err(error), kind(one.write(&[]))]
}

fn a_write_after_shutdown<S: Socket>(mut one: S, mut other: S) -> Kinds {
    let shut = kind(one.shut(Shutdown::Write).map(|()| 0));
    let written = kind(one.write(b"x"));
    let end = kind(other.read(&mut [0; 8]));
    vec![
        shut,
        written,
        end,
        kind(other.write(b"xy")),
        kind(one.read(&mut [0; 8])),
        kind(one.read_exact(&mut []).map(|()| 0)),
    ]
}

fn a_read_after_shutdown<S: Socket>(mut one: S, _other: S) -> Kinds {
    vec![kind(one.shut(Shutdown::Read).map(|()| 0)), kind(one.read(&mut [0; 8]))]
}

fn the_peer_closes<S: Socket>(mut one: S, mut other: S) -> Kinds {
    other.write_all(b"bye").unwrap();
    drop(other);
    let mut bye = [0; 8];
    let short = one.read_exact(&mut bye).map(|()| 8);
    vec![kind(short), kind(one.read(&mut bye)), write_until_it_fails(&mut one)]
}

fn the_peer_resets<S: Socket>(mut one: S, other: S) -> Kinds {
    one.wait(Some(LONG), None).unwrap();
    other.reset();
    let read = kind(one.read(&mut [0; 8]));
    vec![read, kind(one.write(b"x").map(|_| 0))]
}

fn std_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

macro_rules! scenarios {
    ($fixture:ident: $($scenario:ident),* $(,)?) => {$({
        let (one, other) = std_pair();
        let (here, there) = $fixture.streams();
        let (std, own) = ($scenario(one, other), $scenario(here, there));
        assert_eq!(own, std, "{}: this crate, and std::net", stringify!($scenario));
    })*};
}

fn the_same_goes_wrong_in_the_same_way_as_over_std_net(fixture: &Fixture) -> Outcome {
    scenarios!(fixture: reads_with_nothing_there, a_timeout_of_zero, writes_to_a_full_peer, a_write_after_shutdown,
        a_read_after_shutdown, the_peer_closes, the_peer_resets);
    let nobody: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(
        fixture.builder().connect(fixture.nobody()).map(|_| ()).unwrap_err().kind(),
        TcpStream::connect(nobody).map(|_| ()).unwrap_err().kind()
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let (own_addr, _own_taken) = fixture.taken();
    assert_eq!(
        fixture.builder().bind(own_addr).map(|_| ()).unwrap_err().kind(),
        TcpListener::bind(addr).map(|_| ()).unwrap_err().kind()
    );
    let (listener, _) = fixture.listener();
    listener.set_nonblocking(true).unwrap();
    taken.set_nonblocking(true).unwrap();
    assert_eq!(
        listener.accept().map(|_| ()).unwrap_err().kind(),
        taken.accept().map(|_| ()).unwrap_err().kind()
    );
    Ok(())
}
