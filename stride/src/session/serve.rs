//! A server for many clients: it learns each test from its client, and survives clients that fail.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use super::memory::MemoryEstimate;
use super::pairs::PairsSession;
use super::reception::{ArrivalPlace, Arrivals};
use super::strangers::StrangerLog;
use super::{secret, steps, tcp};
use crate::cli::{ServeArgs, Size};
use crate::control::{ControlError, ControlLink, ControlListener, Greeting, PeerStatus, Secret};
use crate::device::{self, LocalDevice};
use crate::error::Error;
use crate::placement::{Neighbours, Processors};
use crate::plan::{LocalOptions, TestOperation};
use crate::report::Output;
use crate::statistics::Timer;

/// The most clients with a request that may wait.
const MOST_WAITING: u32 = 64;

/// The time that a client has for a step of its set-up while others wait, and a second more for each
/// GiB of memory that a server grants.
const STEP_LIMIT: Duration = Duration::from_secs(10);

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
        admitted: ClientSlots::new(options.jobs + MOST_WAITING),
        arrivals: Arrivals::default(),
        strangers: StrangerLog::new(output, ""),
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
    /// Those that are served and those that wait.
    admitted: ClientSlots,
    arrivals: Arrivals,
    strangers: StrangerLog,
}

impl ServerState<'_> {
    fn accept_all<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        listener: &ControlListener,
        output: &Output,
    ) -> Result<(), Error> {
        self.arrivals.accept(listener, &self.strangers, |link, arrival| {
            let clients = output.clone();
            let client = thread::Builder::new().spawn_scoped(scope, move || {
                self.receive(link, arrival, &clients);
            });
            if let Err(error) = client {
                self.strangers.log(format_args!("warning: no thread for a client: {error}"));
            }
        })
    }

    /// Serves a connection if a client is at its other end.
    fn receive(&self, mut link: ControlLink, arrival: ArrivalPlace<'_>, clients: &Output) {
        let (greeting, _admitted) = match self.admit(&mut link, &arrival) {
            Ok(admitted) => admitted,
            Err(error) => return self.strangers.send_away(&mut link, &error),
        };
        let mut output = clients.of_client(link.peer(), self.options.jobs > 1);
        let done = steps::over(link, &mut output, |link, output| self.serve_one(link, greeting, output));
        match output.finish(done) {
            Ok(_) => output.note("done"),
            Err(error) => output.note(error.one_line()),
        }
    }

    /// Waits for a client's request. A connection that is not admitted keeps its place among the
    /// arrivals until it has been told.
    fn admit(
        &self,
        link: &mut ControlLink,
        arrival: &ArrivalPlace<'_>,
    ) -> Result<(Greeting, ClientSlot<'_>), Error> {
        let asked = steps::asked(link, self.secret);
        let greeting = asked.map_err(|error| arrival.explain(link.peer(), error))?;
        let admitted = self.admitted.try_take();
        let admitted = admitted.ok_or(ControlError::TurnedAway { waiting: MOST_WAITING })?;
        arrival.leave(link.peer())?;
        Ok((greeting, admitted))
    }

    fn serve_one(
        &self,
        link: &mut ControlLink,
        greeting: Greeting,
        output: &mut Output,
    ) -> Result<(), Error> {
        let test = steps::requested(link, greeting, output);
        MemoryEstimate::of(&test).check(self.options.max_memory)?;
        let _place = self.served.take(link)?;
        // The longest step is the registration of the memory that this server grants.
        let step_limit = STEP_LIMIT + Duration::from_secs(self.options.max_memory >> 30);
        link.wire().give_way_to(Arc::clone(&self.served.waiting), step_limit);
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

/// The clients that are measured at a time: at most as many as `--jobs` allows.
struct ClientSlots {
    free: Mutex<u32>,
    freed: Condvar,
    /// The clients that wait for a slot.
    waiting: Arc<AtomicU32>,
}

/// A slot, which becomes free when this is dropped.
struct ClientSlot<'a>(&'a ClientSlots);

/// A client that waits for a slot, until this is dropped.
struct WaitingClient<'a>(&'a AtomicU32);

impl ClientSlots {
    fn new(count: u32) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new(), waiting: Arc::default() }
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
    ///
    /// # Errors
    ///
    /// The client has gone, or does not wait for its answer.
    fn take(&self, link: &mut ControlLink) -> Result<ClientSlot<'_>, ControlError> {
        let _waiting = WaitingClient::new(&self.waiting);
        loop {
            if let Some(place) = self.try_take() {
                link.wire().keep_waiting(false);
                return Ok(place);
            }
            link.wire().keep_waiting(true);
            if link.peer_status()? == PeerStatus::MessageWaiting {
                return Err(link.malformed("a message before its turn".to_owned()));
            }
            let free = self.free();
            if *free == 0 {
                drop(self.freed.wait_timeout(free, PEER_CHECK_INTERVAL));
            }
        }
    }
}

impl<'a> WaitingClient<'a> {
    fn new(waiting: &'a AtomicU32) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for WaitingClient<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ClientSlot<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.freed.notify_one();
    }
}
