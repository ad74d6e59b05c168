//! Tests of the operating system's TCP, as a reference for RDMA.
//!
//! Both sides agree over the control connection, and measure a separate connection, so that control
//! messages do not disturb it. The server sends its port and a token, and the client presents the
//! token when it connects.

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
    let address = SocketAddr::new(server.ip(), port);
    let failed = |source| ControlError::NoStream { peer: address.to_string(), source };
    let mut socket = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(failed)?;
    socket.write_all(token).map_err(failed)?;
    Ok(socket)
}

/// Waits for the client, and rejects other connections.
fn accept(link: &mut ControlLink) -> Result<TcpStream, ControlError> {
    let deadline = Instant::now() + CONNECT_LIMIT;
    let here = link.wire().local_address().map_err(|error| link.lost(error))?;
    let at = SocketAddr::new(here.ip(), 0);
    let failed = |source| ControlError::NoStream { peer: at.ip().to_string(), source };
    let listener = TcpListener::bind(at).map_err(failed)?;
    let (token, port) = (nonce()?, listener.local_addr().map_err(failed)?.port());
    link.send(&ControlMessage::Stream { port, token })?;
    loop {
        interrupt::check()?;
        link.peer_status()?;
        if Instant::now() >= deadline {
            return Err(failed(ErrorKind::TimedOut.into()));
        }
        if !is_readable(&listener).map_err(failed)? {
            continue;
        }
        let (mut socket, _) = listener.accept().map_err(failed)?;
        if says(&mut socket, &token, deadline).unwrap_or(false) {
            return Ok(socket);
        }
    }
}

fn is_readable(listener: &TcpListener) -> io::Result<bool> {
    let limit = Timespec { tv_sec: 0, tv_nsec: PEER_CHECK_INTERVAL.subsec_nanos().into() };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the connection presents the token before the deadline.
fn says(socket: &mut TcpStream, token: &Nonce, deadline: Instant) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
    socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
    let mut said = Nonce::default();
    socket.read_exact(&mut said)?;
    Ok(said == *token)
}
