//! Tests of trespass: both sides agree over the measured connection itself, which trespass's
//! handshake establishes. It carries messages, or a mux.

use std::io::{self, ErrorKind};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sideway::provider::set_default_provider;
use trespass::mux::MuxConfig;
use trespass::{Builder, Config, HandshakeError, Listener, Policy, RejectReason, Transport};

use super::reception::{self, Acceptor};
use super::{secret, steps};
use crate::control::{
    ClosableTransport, ControlError, ControlLink, ControlMessage, Greeting, MAGIC, MuxFrames, Secret,
    SeqPacketFrames,
};
use crate::device;
use crate::error::Error;
use crate::interrupt;
use crate::plan::{
    Api, LARGEST_BLOCK, LONGEST, MOST_REQUESTS, Measure, RunPlan, SideRole, TestOperation, TestPlan,
    TestPoint,
};
use crate::report::{Measured, Output, ResultRow, software};
use crate::result::SizeDetails;
use crate::statistics::Timer;
use crate::workload::{Messages, TestProgress};

/// Size of the receive buffer: four of the longest messages that are received without a copy.
const RECEIVE_BUFFER: usize = 4 * LARGEST_BLOCK as usize;

/// The smallest size of the buffer for requests that wait to be sent.
const SEND_BUFFER: usize = 1 << 20;

/// Spin time with --poll: the most that [`Builder::spin`] accepts.
const POLL: Duration = Duration::from_secs(1);

/// How often a loopback test looks whether its client still wants to connect.
const ACCEPT_LIMIT: Duration = Duration::from_millis(100);

/// One end of a connection of trespass, which is measured.
trait MessagesWire: ClosableTransport + Sized {
    /// Whether the connection is one of `--api mux`.
    const IS_MUX: bool;

    fn connect(config: &Config, server: (&str, u16)) -> io::Result<Self>;

    fn accept(listener: &Listener) -> io::Result<(Self, SocketAddr)>;

    fn path(&self) -> MessagesPath;

    fn measure(
        &mut self,
        messages: &mut Messages<'_>,
        point: TestPoint,
        progress: &TestProgress,
    ) -> io::Result<ResultRow>;

    fn answer(&mut self, messages: &mut Messages<'_>, point: TestPoint, delay: Duration) -> io::Result<()>;
}

/// What carries a connection, and why.
struct MessagesPath {
    transport: Transport,
    device: Option<String>,
    fallback: Option<String>,
}

/// The path of a connection of either type.
macro_rules! path_of {
    ($connection:expr) => {{
        let connection = $connection;
        MessagesPath {
            transport: connection.transport(),
            device: connection.device().map(ToOwned::to_owned),
            fallback: connection.fallback_reason().map(ToString::to_string),
        }
    }};
}

impl MessagesWire for SeqPacketFrames {
    const IS_MUX: bool = false;

    fn connect(config: &Config, server: (&str, u16)) -> io::Result<Self> {
        Ok(Self::new(config.connect_seq_packet(server)?))
    }

    fn accept(listener: &Listener) -> io::Result<(Self, SocketAddr)> {
        listener.accept_seq_packet().map(|(socket, peer)| (Self::new(socket), peer))
    }

    fn path(&self) -> MessagesPath {
        path_of!(&self.socket)
    }

    fn measure(
        &mut self,
        messages: &mut Messages<'_>,
        point: TestPoint,
        progress: &TestProgress,
    ) -> io::Result<ResultRow> {
        messages.measure(point, progress, &mut self.socket)
    }

    fn answer(&mut self, messages: &mut Messages<'_>, point: TestPoint, _: Duration) -> io::Result<()> {
        messages.answer(point, &mut self.socket)
    }
}

impl MessagesWire for MuxFrames {
    const IS_MUX: bool = true;

    fn connect(config: &Config, server: (&str, u16)) -> io::Result<Self> {
        Self::over(config.connect(server)?, &mux_config())
    }

    fn accept(listener: &Listener) -> io::Result<(Self, SocketAddr)> {
        let (stream, peer) = listener.accept()?;
        Ok((Self::over(stream, &mux_config())?, peer))
    }

    fn path(&self) -> MessagesPath {
        path_of!(self.mux.stream())
    }

    fn measure(
        &mut self,
        messages: &mut Messages<'_>,
        point: TestPoint,
        progress: &TestProgress,
    ) -> io::Result<ResultRow> {
        messages.measure_requests(point, progress, &self.mux)
    }

    fn answer(&mut self, messages: &mut Messages<'_>, point: TestPoint, delay: Duration) -> io::Result<()> {
        messages.answer_requests(point, delay, &self.mux)
    }
}

fn mux_config() -> MuxConfig {
    MuxConfig::new().max_requests(MOST_REQUESTS).max_message(LONGEST as usize)
}

/// Runs the plan on its side.
pub(super) fn run(plan: &RunPlan, output: &mut Output) -> Result<(), Error> {
    match plan.test.operation {
        TestOperation::Messages(Api::Mux) => run_over::<MuxFrames>(plan, output),
        _ => run_over::<SeqPacketFrames>(plan, output),
    }
}

fn run_over<W: MessagesWire>(plan: &RunPlan, output: &mut Output) -> Result<(), Error> {
    if plan.local.transport != Policy::TcpOnly {
        set_default_provider(device::provider(output)?);
    }
    let config = config(plan)?;
    let secret = secret::find(&plan.local, output)?;
    let session = MessagesSession {
        test: &plan.test,
        secret: secret.as_ref(),
        timer: Timer::new(),
        cork: plan.local.cork,
        delay: plan.local.delay,
    };
    let port = plan.local.tcp_port;
    match &plan.role {
        SideRole::Server => {
            let listener = MessagesListener::<W>::bind(&config, &["[::]", "0.0.0.0"], port)?;
            output.note(format_args!("waiting for a client on TCP port {}", listener.port()?));
            let (link, greeting) = reception::first_request(listener, session.secret, output)?;
            output.note(format_args!("serving {}", link.peer()));
            steps::over(link, output, |link, output| session.server(link, greeting, output))
        }
        SideRole::Client(host) => session.connect::<W>(&config, host, port, output),
        SideRole::Loopback => {
            let listener = MessagesListener::<W>::bind(&config, &["127.0.0.1"], 0)?;
            let (port, gone) = (listener.port()?, AtomicBool::new(false));
            steps::both(
                |output| {
                    let accepted = accept_unless(&listener, &gone)?;
                    steps::over(accepted, output, |link, output| {
                        let greeting = steps::asked(link, session.secret)?;
                        session.server(link, greeting, output)
                    })
                },
                |output| {
                    let done = session.connect::<W>(&config, "127.0.0.1", port, output);
                    gone.store(true, Ordering::Relaxed);
                    done
                },
                output,
            )
        }
    }
}

fn config(RunPlan { local, test, .. }: &RunPlan) -> Result<Config, Error> {
    let mut builder = Builder::new().policy(local.transport);
    if test.operation != TestOperation::Messages(Api::Mux) {
        builder = builder.rcvbuf(RECEIVE_BUFFER);
    }
    if let (Measure::Echo(_), false) = (test.measure, test.operation == TestOperation::Messages(Api::Mux)) {
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

/// A listener for connections of one type.
struct MessagesListener<W> {
    listener: Listener,
    wire: PhantomData<fn() -> W>,
}

impl<W> MessagesListener<W> {
    /// Listens on the first of these addresses that the system has.
    fn bind(config: &Config, hosts: &[&str], port: u16) -> Result<Self, Error> {
        let mut last = None;
        for host in hosts {
            match config.bind(format!("{host}:{port}")) {
                Ok(listener) => return Ok(Self { listener, wire: PhantomData }),
                Err(error) => last = Some(last.unwrap_or(error)),
            }
        }
        let source = last.unwrap_or_else(|| ErrorKind::InvalidInput.into());
        Err(Error::Messages(source))
    }

    fn port(&self) -> Result<u16, Error> {
        Ok(self.listener.local_addr()?.port())
    }
}

/// Explains a failed connection: the server may run another test.
fn not_connected(error: io::Error, server: &str, is_mux: bool) -> Error {
    let outermost = error.get_ref().map(|error| error as &(dyn std::error::Error + 'static));
    let mut causes = std::iter::successors(outermost, |error| error.source());
    let server = server.to_owned();
    match causes.find_map(|cause| cause.downcast_ref()) {
        Some(HandshakeError::OtherProtocol(MAGIC)) => Error::ServesPairs { server },
        Some(HandshakeError::Kind { .. } | HandshakeError::Rejected { reason: RejectReason::Kind, .. }) => {
            Error::OtherApi { server, is_mux }
        }
        _ => Error::Messages(error),
    }
}

impl<W: MessagesWire> Acceptor for MessagesListener<W> {
    type Wire = W;

    fn accept_within(&self, limit: Duration) -> Result<Option<ControlLink<W>>, ControlError> {
        interrupt::check()?;
        self.listener.set_accept_timeout(Some(limit)).map_err(ControlError::Accept)?;
        match W::accept(&self.listener) {
            Ok((wire, peer)) => {
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                Ok(Some(ControlLink::new(wire, peer.to_string())))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(error) => Err(ControlError::Accept(error)),
        }
    }

    /// A wait ends by its limit.
    fn shut_down(&self) {}
}

/// Accepts a client in this process, which may fail before it connects.
fn accept_unless<W: MessagesWire>(
    listener: &MessagesListener<W>,
    gone: &AtomicBool,
) -> Result<ControlLink<W>, Error> {
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
    /// How long the server of a mux waits before it answers.
    delay: Duration,
}

impl MessagesSession<'_> {
    fn connect<W: MessagesWire>(
        &self,
        config: &Config,
        host: &str,
        port: u16,
        output: &mut Output,
    ) -> Result<(), Error> {
        let server = format!("{host}:{port}");
        let connected = W::connect(config, (host, port));
        let wire = connected.map_err(|error| not_connected(error, &server, W::IS_MUX))?;
        let link = ControlLink::new(wire, server);
        steps::over(link, output, |link, output| self.client(link, output))
    }

    fn client<W: MessagesWire>(&self, link: &mut ControlLink<W>, output: &mut Output) -> Result<(), Error> {
        steps::request(link, self.test, self.secret, output)?;
        let path = link.wire().path();
        tell(&path, self.test, output);
        let corked = if self.cork { ", short ones go together (--cork)" } else { "" };
        output.heading(self.test, Some(over(path) + corked))?;
        let mut messages = Messages::new(self.test, &self.timer).corked(self.cork);
        for point in self.test.cells() {
            steps::begin(link, point.size)?;
            let progress = output.begin(point, self.test);
            let row = link.wire().measure(&mut messages, point, &progress);
            let row = row.map_err(|error| link.lost(error))?;
            link.send(&ControlMessage::Row(Measured { row, cpu_ns_per_msg: None }))?;
            let details = SizeDetails { histogram: messages.distribution(), ..SizeDetails::default() };
            output.measured(&row, details)?;
        }
        steps::finish(link)
    }

    fn server<W: MessagesWire>(
        &self,
        link: &mut ControlLink<W>,
        greeting: Greeting,
        output: &mut Output,
    ) -> Result<(), Error> {
        let test = steps::agreed(link, greeting, self.test, output);
        let is_mux = test.operation == TestOperation::Messages(Api::Mux);
        if !matches!(test.operation, TestOperation::Messages(_)) || is_mux != W::IS_MUX {
            return Err(link
                .malformed(format!("a request for {}, by the way of `msg`", test.operation))
                .into());
        }
        link.send(&ControlMessage::Accept(steps::greeting(self.test)))?;
        let path = link.wire().path();
        tell(&path, &test, output);
        output.heading(&test, Some(over(path)))?;
        let mut messages = Messages::new(&test, &self.timer);
        for point in test.cells() {
            steps::begin(link, point.size)?;
            let answered = link.wire().answer(&mut messages, point, self.delay);
            answered.map_err(|error| link.lost(error))?;
            output.row(&steps::receive_row(link)?.row)?;
        }
        steps::finish(link)
    }
}

fn tell(path: &MessagesPath, test: &TestPlan, output: &mut Output) {
    output.connection(&path.transport.to_string(), &describe(path, test));
}

/// The test and its transport, in one line.
fn describe(path: &MessagesPath, test: &TestPlan) -> String {
    let (TestPlan { operation, measure, sizes, .. }, length) = (test, test.length());
    let mut line = format!("{operation} {measure} of {sizes} bytes, {length}, over {}", path.transport);
    if let Some(device) = &path.device {
        line += &format!(" ({device})");
    }
    if let Some(reason) = &path.fallback {
        line += &format!(": no RDMA, as {reason}");
    }
    line
}

/// The transport, for the table.
fn over(path: MessagesPath) -> String {
    match path.device {
        // Software devices are called that everywhere.
        Some(device) if device.starts_with("soft") => software(&device),
        Some(device) => format!("{}, {device}", path.transport),
        None => path.transport.to_string(),
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
