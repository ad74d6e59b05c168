//! A server for many clients: it learns each test from its client, and survives clients that fail.

use std::net::TcpStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use super::memory::MemoryEstimate;
use super::pairs::PairsSession;
use super::{secret, steps, tcp};
use crate::cli::{ServeArgs, Size};
use crate::control::{ControlError, ControlLink, ControlListener, Secret, link};
use crate::device::{self, LocalDevice};
use crate::error::Error;
use crate::placement::{Neighbours, Processors};
use crate::plan::{LocalOptions, TestOperation};
use crate::report::Output;
use crate::statistics::Timer;

/// The most clients that may be connected and waiting.
const MOST_WAITING: u32 = 64;

/// How often a waiting side checks for signals.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The options of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The device, and the TCP port.
    pub local: LocalOptions,
    /// Clients that are served at the same time.
    pub jobs: u32,
    /// Bytes that one client's test may use.
    pub max_memory: u64,
}

impl From<ServeArgs> for ServeOptions {
    fn from(args: ServeArgs) -> Self {
        let ServeArgs { device, ib_port, gid_index, port, memory, calls, jobs, max_memory, secret_file } =
            args;
        let Size(max_memory) = max_memory;
        let (buffer, calls) = (memory.kind(), calls.map(Into::into));
        let local = LocalOptions {
            device,
            ib_port,
            gid_index,
            buffer,
            calls,
            tcp_port: port,
            secret_file,
            ..LocalOptions::default()
        };
        Self { local, jobs, max_memory }
    }
}

/// Serves clients until a signal ends the process.
///
/// # Errors
///
/// The signal, or a reason why no client can be served: no device, no port. An error of a client
/// concerns that client alone.
pub fn serve(options: &ServeOptions, output: &mut Output) -> Result<(), Error> {
    let device = LocalDevice::open(device::provider(output)?, &options.local)?;
    output.device(&device);
    let secret = secret::find(&options.local, output)?;
    let listener = ControlListener::bind(options.local.tcp_port)?;
    let at_a_time = match options.jobs {
        1 => "one after the other".to_owned(),
        jobs => format!("{jobs} at a time"),
    };
    let whom = if secret.is_some() { ", those alone that know the secret" } else { "" };
    output.note(format_args!("waiting for clients on TCP port {}, {at_a_time}{whom}", listener.port()));
    let server = ServerState {
        device: &device,
        options,
        secret: secret.as_ref(),
        timer: Timer::new(),
        served: ClientSlots::new(options.jobs),
        connected: ClientSlots::new(options.jobs + MOST_WAITING),
    };
    thread::scope(|scope| server.accept_all(scope, &listener, output))
}

/// The state that all clients share.
struct ServerState<'a> {
    device: &'a LocalDevice,
    options: &'a ServeOptions,
    secret: Option<&'a Secret>,
    timer: Timer,
    served: ClientSlots,
    connected: ClientSlots,
}

impl ServerState<'_> {
    fn accept_all<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        listener: &ControlListener,
        output: &mut Output,
    ) -> Result<(), Error> {
        loop {
            let (stream, peer) = match listener.accept_within(PEER_CHECK_INTERVAL) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => continue,
                Err(error @ ControlError::Interrupted(_)) => return Err(error.into()),
                // For example, too many open files: when clients end, descriptors become free.
                Err(error) => {
                    output.note(format_args!("warning: {error}"));
                    thread::sleep(PEER_CHECK_INTERVAL);
                    continue;
                }
            };
            let Some(place) = self.connected.try_take() else {
                self.turn_away(stream, peer, output);
                continue;
            };
            let mut output = output.of_client(&peer, self.options.jobs > 1);
            let client = thread::Builder::new().spawn_scoped(scope, move || {
                let done = link(stream, peer).map_err(Error::from);
                let done = done.and_then(|link| {
                    steps::over(link, &mut output, |link, output| self.serve_one(link, output))
                });
                match output.finish(done) {
                    Ok(_) => output.note("done"),
                    Err(error) => output.note(error.one_line()),
                }
                drop(place);
            });
            if let Err(error) = client {
                eprintln!("warning: no thread for a client: {error}");
            }
        }
    }

    fn turn_away(&self, stream: TcpStream, peer: String, output: &mut Output) {
        output.note(format_args!("{peer}: turned away, as {MOST_WAITING} clients wait already"));
        if let Ok(mut link) = link(stream, peer) {
            link.fail(&format!("{MOST_WAITING} clients wait already; try again later"));
        }
    }

    fn serve_one(&self, link: &mut ControlLink, output: &mut Output) -> Result<(), Error> {
        // Before the client takes a slot, so that a client that never sends its request occupies
        // none.
        let test = steps::asked(link, self.secret, output)?;
        MemoryEstimate::of(&test).check(self.options.max_memory)?;
        let _place = self.served.take(link)?;
        output.note(format_args!("serving {test}"));
        if test.operation == TestOperation::Tcp {
            let session = tcp::TcpSession { test: &test, secret: self.secret, timer: &self.timer };
            return session.answer(&test, link, output);
        }
        let session = PairsSession {
            devices: std::slice::from_ref(self.device),
            test: &test,
            secret: self.secret,
            timer: self.timer.clone(),
            processors: Processors::near(&[self.device.numa_node]),
            neighbours: if self.options.jobs > 1 { Neighbours::Others } else { Neighbours::None },
        };
        session.answer(&test, link, output)
    }
}

/// The number of clients that are served at a time.
struct ClientSlots {
    free: Mutex<u32>,
    freed: Condvar,
}

/// A slot, which becomes free when this is dropped.
struct ClientSlot<'a>(&'a ClientSlots);

impl ClientSlots {
    fn new(count: u32) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self) -> Option<ClientSlot<'_>> {
        let mut free = self.free();
        *free = free.checked_sub(1)?;
        Some(ClientSlot(self))
    }

    /// Waits for a slot while the client waits, too; the client is told about it.
    fn take(&self, link: &mut ControlLink) -> Result<ClientSlot<'_>, ControlError> {
        loop {
            if let Some(place) = self.try_take() {
                link.wire().keep_waiting(false);
                return Ok(place);
            }
            link.wire().keep_waiting(true);
            link.peer_status()?;
            let free = self.free();
            if *free == 0 {
                drop(self.freed.wait_timeout(free, PEER_CHECK_INTERVAL));
            }
        }
    }
}

impl Drop for ClientSlot<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.freed.notify_one();
    }
}
