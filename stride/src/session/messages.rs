//! Tests of trespass: both sides agree over the measured connection itself, which trespass's
//! handshake establishes.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sideway::provider::set_default_provider;
use trespass::{Builder, Config, HandshakeError, Listener, Policy, SeqPacket};

use super::reception::{self, Acceptor};
use super::{secret, steps};
use crate::control::{ControlError, ControlLink, ControlMessage, Greeting, MAGIC, Secret, SeqPacketFrames};
use crate::device;
use crate::error::Error;
use crate::interrupt;
use crate::plan::{LARGEST_BLOCK, Measure, RunPlan, SideRole, TestOperation, TestPlan};
use crate::report::{Measured, Output, software};
use crate::result::SizeDetails;
use crate::statistics::Timer;
use crate::workload::Messages;

/// Size of the receive buffer: four of the longest messages that are received without a copy.
const RECEIVE_BUFFER: usize = 4 * LARGEST_BLOCK as usize;

/// The smallest size of the buffer for requests that wait to be sent.
const SEND_BUFFER: usize = 1 << 20;

/// Spin time with --poll: the most that [`Builder::spin`] accepts.
const POLL: Duration = Duration::from_secs(1);

/// How often a loopback test looks whether its client still wants to connect.
const ACCEPT_LIMIT: Duration = Duration::from_millis(100);

/// One end of a connection of trespass.
type MessagesLink = ControlLink<SeqPacketFrames>;

/// Runs the plan on its side.
pub(super) fn run(plan: &RunPlan, output: &mut Output) -> Result<(), Error> {
    if plan.local.transport != Policy::TcpOnly {
        set_default_provider(device::provider(output)?);
    }
    let config = config(plan)?;
    let secret = secret::find(&plan.local, output)?;
    let cork = plan.local.cork;
    let session = MessagesSession { test: &plan.test, secret: secret.as_ref(), timer: Timer::new(), cork };
    let port = plan.local.tcp_port;
    match &plan.role {
        SideRole::Server => {
            let listener = listen(&config, &["[::]", "0.0.0.0"], port)?;
            output.note(format_args!("waiting for a client on TCP port {}", listener.local_addr()?.port()));
            let (link, greeting) = reception::first_request(listener, session.secret, output)?;
            output.note(format_args!("serving {}", link.peer()));
            steps::over(link, output, |link, output| session.server(link, greeting, output))
        }
        SideRole::Client(host) => session.connect(&config, host, port, output),
        SideRole::Loopback => {
            let listener = listen(&config, &["127.0.0.1"], 0)?;
            let (port, gone) = (listener.local_addr()?.port(), AtomicBool::new(false));
            steps::both(
                |output| {
                    let accepted = accept_unless(&listener, &gone)?;
                    steps::over(accepted, output, |link, output| {
                        let greeting = steps::asked(link, session.secret)?;
                        session.server(link, greeting, output)
                    })
                },
                |output| {
                    let done = session.connect(&config, "127.0.0.1", port, output);
                    gone.store(true, Ordering::Relaxed);
                    done
                },
                output,
            )
        }
    }
}

fn config(RunPlan { local, test, .. }: &RunPlan) -> Result<Config, Error> {
    let mut builder = Builder::new().policy(local.transport).rcvbuf(RECEIVE_BUFFER);
    if let Measure::Echo(_) = test.measure {
        // A non-blocking send needs room for the whole message; with room for two, one is sent
        // while the other is filled.
        let room = usize::try_from(test.sizes.largest().saturating_mul(2)).unwrap_or(usize::MAX);
        builder = builder.sndbuf(room.max(SEND_BUFFER)).rcvbuf(room.max(RECEIVE_BUFFER));
    }
    if local.poll {
        builder = builder.spin(POLL);
    }
    if let Some(device) = &local.device {
        builder = match local.ib_port {
            Some(port) => builder.device(format!("{device}:{port}")),
            None => builder.device(device),
        };
    }
    if let Some(index) = local.gid_index {
        let index = u8::try_from(index).map_err(|_| Error::GidIndex { given: index })?;
        builder = builder.gid_index(Some(index));
    }
    Ok(builder.build()?)
}

/// Listens on the first of these addresses that the system has.
fn listen(config: &Config, hosts: &[&str], port: u16) -> Result<Listener, Error> {
    let mut last = None;
    for host in hosts {
        match config.bind(format!("{host}:{port}")) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(last.unwrap_or(error)),
        }
    }
    let source = last.unwrap_or_else(|| ErrorKind::InvalidInput.into());
    Err(Error::Messages(source))
}

/// Explains a failed connection: the server may run a test of queue pairs.
fn not_connected(error: io::Error, server: &str) -> Error {
    let outermost = error.get_ref().map(|error| error as &(dyn std::error::Error + 'static));
    let mut causes = std::iter::successors(outermost, |error| error.source());
    match causes.any(|cause| matches!(cause.downcast_ref(), Some(HandshakeError::OtherProtocol(MAGIC)))) {
        true => Error::ServesPairs { server: server.to_owned() },
        false => Error::Messages(error),
    }
}

impl Acceptor for Listener {
    type Wire = SeqPacketFrames;

    fn accept_within(&self, limit: Duration) -> Result<Option<MessagesLink>, ControlError> {
        interrupt::check()?;
        self.set_accept_timeout(Some(limit)).map_err(ControlError::Accept)?;
        match self.accept_seq_packet() {
            Ok((socket, peer)) => {
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                Ok(Some(ControlLink::new(SeqPacketFrames::new(socket), peer.to_string())))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(ControlError::Accept(error)),
        }
    }

    /// A wait ends by its limit.
    fn shut_down(&self) {}
}

/// Accepts a client in this process, which may fail before it connects.
fn accept_unless(listener: &Listener, gone: &AtomicBool) -> Result<MessagesLink, Error> {
    loop {
        if let Some(link) = listener.accept_within(ACCEPT_LIMIT)? {
            return Ok(link);
        }
        if gone.load(Ordering::Relaxed) {
            return Err(ControlError::Accept(ErrorKind::ConnectionAborted.into()).into());
        }
    }
}

/// One side's part of a test.
struct MessagesSession<'a> {
    test: &'a TestPlan,
    secret: Option<&'a Secret>,
    timer: Timer,
    /// Whether the client corks its stream.
    cork: bool,
}

impl MessagesSession<'_> {
    fn connect(&self, config: &Config, host: &str, port: u16, output: &mut Output) -> Result<(), Error> {
        let server = format!("{host}:{port}");
        let connected = config.connect_seq_packet((host, port));
        let socket = connected.map_err(|error| not_connected(error, &server))?;
        let link = ControlLink::new(SeqPacketFrames::new(socket), server);
        steps::over(link, output, |link, output| self.client(link, output))
    }

    fn client(&self, link: &mut MessagesLink, output: &mut Output) -> Result<(), Error> {
        steps::request(link, self.test, self.secret, output)?;
        tell(&link.wire().socket, self.test, output);
        let corked = if self.cork { ", short ones go together (--cork)" } else { "" };
        output.heading(self.test, Some(over(&link.wire().socket) + corked))?;
        let mut messages = Messages::new(self.test, &self.timer).corked(self.cork);
        for point in self.test.cells() {
            steps::begin(link, point.size)?;
            let progress = output.begin(point, self.test);
            let row = messages.measure(point, &progress, link)?;
            link.send(&ControlMessage::Row(Measured { row, cpu_ns_per_msg: None }))?;
            let details = SizeDetails { histogram: messages.distribution(), ..SizeDetails::default() };
            output.measured(&row, details)?;
        }
        steps::finish(link)
    }

    fn server(&self, link: &mut MessagesLink, greeting: Greeting, output: &mut Output) -> Result<(), Error> {
        let test = steps::agreed(link, greeting, self.test, output);
        if !matches!(test.operation, TestOperation::Messages(_)) {
            return Err(link
                .malformed(format!("a request for {}, by the way of `msg`", test.operation))
                .into());
        }
        link.send(&ControlMessage::Accept(steps::greeting(self.test)))?;
        tell(&link.wire().socket, &test, output);
        output.heading(&test, Some(over(&link.wire().socket)))?;
        let mut messages = Messages::new(&test, &self.timer);
        for point in test.cells() {
            steps::begin(link, point.size)?;
            messages.answer(point, link)?;
            output.row(&steps::receive_row(link)?.row)?;
        }
        steps::finish(link)
    }
}

fn tell(socket: &SeqPacket, test: &TestPlan, output: &mut Output) {
    output.connection(&socket.transport().to_string(), &describe(socket, test));
}

/// The test and its transport, in one line.
fn describe(socket: &SeqPacket, test: &TestPlan) -> String {
    let (TestPlan { operation, measure, sizes, .. }, length) = (test, test.length());
    let mut line = format!("{operation} {measure} of {sizes} bytes, {length}, over {}", socket.transport());
    if let Some(device) = socket.device() {
        line += &format!(" ({device})");
    }
    if let Some(reason) = socket.fallback_reason() {
        line += &format!(": no RDMA, as {reason}");
    }
    line
}

/// The transport, for the table.
fn over(socket: &SeqPacket) -> String {
    match socket.device() {
        // Software devices are called that everywhere.
        Some(device) if device.starts_with("soft") => software(device),
        Some(device) => format!("{}, {device}", socket.transport()),
        None => socket.transport().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn configured(line: &str) -> Config {
        let words = ["stride-perf", "msg"].into_iter().chain(line.split_whitespace());
        config(&RunPlan::new(cli::parse(words).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn polling_sets_the_spin_time() {
        let builder = || Builder::new().policy(Policy::RequireRdma).rcvbuf(RECEIVE_BUFFER);
        let built = builder().build().unwrap();
        let polling = builder().spin(Duration::from_secs(1)).build().unwrap();
        assert_ne!(built, polling);
        for line in ["lat --transport rdma", "bw --transport rdma --api pool"] {
            assert_eq!(configured(line), built, "{line}");
            assert_eq!(configured(&format!("{line} --poll")), polling, "{line}");
        }
        assert_ne!(configured("grid"), configured("grid --poll"));
        assert!(builder().spin(POLL + Duration::from_millis(1)).build().is_err(), "it is the most");
    }
}
