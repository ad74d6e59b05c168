//! A run, from the plan to the last row.

use crate::control::{ControlError, Greeting, Link, Listener, Message, Resources, connect};
use crate::device::{self, LocalDevice};
use crate::error::Error;
use crate::plan::{Plan, Role, TestPlan, differences};
use crate::report::{Output, Row};
use crate::statistics::Timer;
use crate::workload::{Side, Watch, Workload};

/// This release of stride-perf, for people.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Runs the plan on the side that it says.
pub fn run(plan: &Plan, output: &mut Output) -> Result<(), Error> {
    for warning in &plan.warnings {
        output.note(format_args!("warning: {warning}"));
    }
    let device = LocalDevice::open(device::provider(output)?, &plan.local)?;
    plan.test.check(&device.limits)?;
    output.note(&device.description);
    let session = Session { device: &device, test: &plan.test, timer: Timer::new() };
    match &plan.role {
        Role::Server => session.serve_one(plan.local.tcp_port, output),
        Role::Client(host) => {
            let link = connect(host, plan.local.tcp_port)?;
            session.over(link, Session::client, output)
        }
        Role::Loopback => session.loopback(output),
    }
}

/// One side's part of a test.
struct Session<'a> {
    device: &'a LocalDevice,
    test: &'a TestPlan,
    timer: Timer,
}

/// What a side does over its end of the control connection.
type Part<'a> = fn(&Session<'a>, &mut Link, &mut Output) -> Result<(), Error>;

impl<'a> Session<'a> {
    /// Plays a part, and tells the peer if that fails.
    fn over(&self, mut link: Link, part: Part<'a>, output: &mut Output) -> Result<(), Error> {
        part(self, &mut link, output).inspect_err(|error| {
            if !error.is_known_to_peer() {
                link.fail(&error.one_line());
            }
        })
    }

    fn serve_one(&self, port: u16, output: &mut Output) -> Result<(), Error> {
        let listener = Listener::bind(port)?;
        output.note(format_args!("waiting for a client on TCP port {}", listener.port()));
        let link = listener.accept()?;
        output.note(format_args!("serving {}", link.peer()));
        self.over(link, Session::server, output)
    }

    /// Both sides, over a connection of this process with itself. Only the client's side prints.
    fn loopback(&self, output: &mut Output) -> Result<(), Error> {
        let listener = Listener::bind_local()?;
        let client = connect("127.0.0.1", listener.port())?;
        let server = listener.accept()?;
        std::thread::scope(|scope| {
            let server = scope.spawn(|| self.over(server, Session::server, &mut Output::silent()));
            let client = self.over(client, Session::client, output);
            let server = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match client {
                // What the client only heard of is said best by the server itself.
                Err(error) if error.is_known_to_peer() => server.and(Err(error)),
                Err(error) => Err(error),
                Ok(()) => server,
            }
        })
    }

    fn client(&self, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        let theirs = match link.exchange(&Message::Request(self.greeting()))? {
            Message::Accept(greeting) => greeting,
            other => return Err(link.unexpected(&other, "accept").into()),
        };
        note_release(&theirs, output);
        note_differences(self.test, &theirs.test, output);
        let mut workload = self.set_up(self.test, link)?;
        output.note(workload.description());
        output.heading(self.test, self.device)?;
        for size in self.test.sizes.iter() {
            workload.prepare(size);
            begin(link, size)?;
            let row = workload.measure(size, &mut Watch::new(link, &self.timer))?;
            link.send(&Message::Row(row))?;
            output.row(&row)?;
        }
        finish(link)
    }

    fn server(&self, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        let theirs = match link.receive()? {
            Message::Request(greeting) => greeting,
            other => return Err(link.unexpected(&other, "request").into()),
        };
        note_release(&theirs, output);
        let test = theirs.test;
        test.validate()?;
        test.check(&self.device.limits)?;
        note_differences(&test, self.test, output);
        link.send(&Message::Accept(self.greeting()))?;
        let mut workload = self.set_up(&test, link)?;
        output.note(workload.description());
        output.heading(&test, self.device)?;
        for size in test.sizes.iter() {
            workload.prepare(size);
            begin(link, size)?;
            workload.answer(size, &mut Watch::new(link, &self.timer))?;
            output.row(&receive_row(link)?)?;
        }
        finish(link)
    }

    fn greeting(&self) -> Greeting {
        Greeting { release: RELEASE.to_owned(), test: self.test.clone() }
    }

    /// Makes this side's queue pair and memory, and connects them to the peer's.
    fn set_up(&self, test: &TestPlan, link: &mut Link) -> Result<Workload, Error> {
        let side = Side::new(self.device, test)?;
        let remote = match link.exchange(&Message::Resources(side.resources()))? {
            Message::Resources(resources) => resources,
            other => return Err(link.unexpected(&other, "resources").into()),
        };
        check_resources(&remote, &side, link)?;
        let workload = side.connect(remote, test, &self.timer)?;
        match link.exchange(&Message::Ready)? {
            Message::Ready => Ok(workload),
            other => Err(link.unexpected(&other, "ready").into()),
        }
    }
}

/// Two releases that speak the same protocol may still measure a little differently.
fn note_release(theirs: &Greeting, output: &mut Output) {
    if theirs.release != RELEASE {
        let release: String = theirs.release.chars().filter(char::is_ascii_graphic).take(40).collect();
        output.note(format_args!("the peer is stride-perf {release}, this is {RELEASE}"));
    }
}

fn note_differences(client: &TestPlan, server: &TestPlan, output: &mut Output) {
    let found: Vec<_> = differences(client, server).iter().map(ToString::to_string).collect();
    if !found.is_empty() {
        output
            .note(format_args!("the two sides' parameters differ; the client's count: {}", found.join(", ")));
    }
}

/// Refuses memory that is too short for the messages, before anything is written there.
fn check_resources(remote: &Resources, side: &Side, link: &Link) -> Result<(), ControlError> {
    let needed = side.layout().half();
    if remote.length >= needed && remote.address.checked_add(remote.length).is_some() {
        return Ok(());
    }
    Err(link.malformed(format!("{} bytes at {:#x} for messages of {needed}", remote.length, remote.address)))
}

/// Waits until both sides are about to measure messages of this size.
fn begin(link: &mut Link, size: u64) -> Result<(), ControlError> {
    let mine = Message::Begin { size };
    match link.exchange(&mine)? {
        theirs if theirs == mine => Ok(()),
        Message::Begin { size } => Err(link.malformed(format!("the peer is at messages of {size} bytes"))),
        other => Err(link.unexpected(&other, mine.name())),
    }
}

fn receive_row(link: &mut Link) -> Result<Row, ControlError> {
    match link.receive_result()? {
        Message::Row(row) => Ok(row),
        other => Err(link.unexpected(&other, "row")),
    }
}

/// Waits until neither side needs the other's memory any more.
fn finish(link: &mut Link) -> Result<(), Error> {
    match link.exchange(&Message::Done)? {
        Message::Done => Ok(()),
        other => Err(link.unexpected(&other, Message::Done.name()).into()),
    }
}
