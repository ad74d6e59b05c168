//! Tests of the operating system's TCP, as a reference for RDMA.
//!
//! Both sides agree over the control connection, and measure a separate connection, so that control
//! messages do not disturb it. The server sends its port and a token, and the client presents the
//! token when it connects.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{memory, roles, secret, steps};
use crate::control::{ControlError, ControlLink, ControlMessage, Nonce, Secret, nonce};
use crate::error::Error;
use crate::interrupt;
use crate::plan::{RunPlan, TestOperation, TestPlan};
use crate::report::{Measured, Output};
use crate::result::SizeDetails;
use crate::statistics::Timer;
use crate::workload::TcpMessages;

/// The time that the client has to connect and to present the token.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The most connections without the token, of which the oldest makes room for the next one.
const MOST_SILENT: usize = 64;

/// How often a waiting side checks for signals.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the plan on its side.
pub(super) fn run(plan: &RunPlan, output: &mut Output) -> Result<(), Error> {
    let secret = secret::find(&plan.local, output)?;
    let session = TcpSession { test: &plan.test, secret: secret.as_ref(), timer: &Timer::new() };
    roles::play(
        plan,
        session.secret,
        output,
        |link, greeting, output| {
            let test = steps::agreed(link, greeting, session.test, output);
            memory::check_beside(&test, session.test)?;
            session.answer(&test, link, output)
        },
        |link, output| session.ask(link, output),
    )
}

/// One side's part of a test.
pub(super) struct TcpSession<'a> {
    pub(super) test: &'a TestPlan,
    pub(super) secret: Option<&'a Secret>,
    pub(super) timer: &'a Timer,
}

impl TcpSession<'_> {
    fn ask(&self, link: &mut ControlLink, output: &mut Output) -> Result<(), Error> {
        steps::request(link, self.test, self.secret, output)?;
        let (port, token) = match link.receive()? {
            ControlMessage::Stream { port, token } => (port, token),
            other => return Err(link.unexpected(&other, "stream").into()),
        };
        let socket = connect(link, port, &token)?;
        let mut stream = TcpMessages::new(socket, self.test, self.timer).map_err(|error| link.lost(error))?;
        tell(&stream, self.test, output)?;
        for point in self.test.cells() {
            steps::begin(link, point.size)?;
            let progress = output.begin(point, self.test);
            let row = stream.measure(point.size, progress.of(0), link)?;
            link.send(&ControlMessage::Row(Measured { row, cpu_ns_per_msg: None }))?;
            let details = SizeDetails { histogram: stream.distribution(), ..SizeDetails::default() };
            output.measured(&row, details)?;
        }
        steps::finish(link)
    }

    /// Runs the test that a client requested.
    pub(super) fn answer(
        &self,
        test: &TestPlan,
        link: &mut ControlLink,
        output: &mut Output,
    ) -> Result<(), Error> {
        if test.operation != TestOperation::Tcp {
            return Err(link
                .malformed(format!("a request for {}, by the way of `tcp`", test.operation))
                .into());
        }
        link.send(&ControlMessage::Accept(steps::greeting(self.test)))?;
        let socket = accept(link)?;
        let mut stream = TcpMessages::new(socket, test, self.timer).map_err(|error| link.lost(error))?;
        tell(&stream, test, output)?;
        for point in test.cells() {
            steps::begin(link, point.size)?;
            stream.answer(point.size, link)?;
            output.row(&steps::receive_row(link)?.row)?;
        }
        steps::finish(link)
    }
}

fn tell(stream: &TcpMessages<'_>, test: &TestPlan, output: &mut Output) -> Result<(), Error> {
    let path = stream.description();
    let (TestPlan { operation, measure, sizes, .. }, length) = (test, test.length());
    output.connection("TCP", &format!("{operation} {measure} of {sizes} bytes, {length}, over TCP {path}"));
    Ok(output.heading(test, Some(format!("TCP, the system's, {path}")))?)
}

/// Connects to the server's port for the measurement.
fn connect(link: &mut ControlLink, port: u16, token: &Nonce) -> Result<TcpStream, ControlError> {
    let server = link.wire().peer_address().map_err(|error| link.lost(error))?;
    let address = at_port(server, port);
    let failed = |source| ControlError::NoStream { peer: address.to_string(), source };
    let mut socket = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(failed)?;
    socket.write_all(token).map_err(failed)?;
    Ok(socket)
}

/// The same host at another port. The address keeps its interface, which a link-local one needs.
fn at_port(mut host: SocketAddr, port: u16) -> SocketAddr {
    host.set_port(port);
    host
}

/// Waits for the client, and rejects other connections.
fn accept(link: &mut ControlLink) -> Result<TcpStream, ControlError> {
    let deadline = Instant::now() + CONNECT_LIMIT;
    let here = link.wire().local_address().map_err(|error| link.lost(error))?;
    let at = at_port(here, 0);
    let failed = |source| ControlError::NoStream { peer: at.ip().to_string(), source };
    let mut arrivals = TokenArrivals::listen(at).map_err(failed)?;
    let (token, port) = (nonce()?, arrivals.listener.local_addr().map_err(failed)?.port());
    link.send(&ControlMessage::Stream { port, token })?;
    loop {
        interrupt::check()?;
        link.peer_status()?;
        if Instant::now() >= deadline {
            return Err(failed(ErrorKind::TimedOut.into()));
        }
        if let Some(client) = arrivals.next_with(&token).map_err(failed)? {
            return Ok(client);
        }
    }
}

/// Connections that have not presented the token. None of them waits for another one's words.
struct TokenArrivals {
    listener: TcpListener,
    /// The oldest first, each with what it has said.
    silent: VecDeque<(TcpStream, Vec<u8>)>,
}

impl TokenArrivals {
    fn listen(at: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, silent: VecDeque::new() })
    }

    /// Waits for an event, and takes the connections that have come and what they say. Returns the
    /// one that presents the token.
    fn next_with(&mut self, token: &Nonce) -> io::Result<Option<TcpStream>> {
        self.wait()?;
        for _ in 0..MOST_SILENT {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(true)?;
                    self.silent.push_back((socket, Vec::new()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It has disconnected already.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
        self.silent.retain_mut(|(socket, said)| may_present(socket, said, token));
        if let Some(at) = self.silent.iter().position(|(_, said)| said == token) {
            let client = self.silent.remove(at).map(|(client, _)| client);
            client.as_ref().map_or(Ok(()), |client| client.set_nonblocking(false))?;
            return Ok(client);
        }
        // Only those make room that have been heard.
        self.silent.drain(..self.silent.len().saturating_sub(MOST_SILENT));
        Ok(None)
    }

    fn wait(&self) -> io::Result<()> {
        let sockets = self.silent.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN));
        let mut all: Vec<_> =
            [PollFd::new(&self.listener, PollFlags::IN)].into_iter().chain(sockets).collect();
        let limit = Timespec { tv_sec: 0, tv_nsec: PEER_CHECK_INTERVAL.subsec_nanos().into() };
        match poll(&mut all, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Takes what a connection says. Returns whether it has presented the token, or still may.
fn may_present(socket: &mut TcpStream, said: &mut Vec<u8>, token: &Nonce) -> bool {
    let left = token.len() - said.len();
    match Read::take(&mut *socket, left as u64).read_to_end(said) {
        // It has said enough, or has ended.
        Ok(_) => said == token,
        // Only a whole token is judged, so that nobody can find it byte by byte.
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_connection_keeps_the_interface_of_a_link_local_address() {
        let [given, expected] = ["[fe80::1%3]:18515", "[fe80::1%3]:7"].map(|text| text.parse().unwrap());
        assert_eq!(at_port(given, 7), expected);
    }
}
