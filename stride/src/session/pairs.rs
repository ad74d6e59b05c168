//! Tests of queue pairs, agreed on over TCP.

use super::steps;
use crate::control::{ControlError, Link, Listener, Message, Resources, connect};
use crate::device::{self, LocalDevice};
use crate::error::Error;
use crate::plan::{Operation, Plan, Role, TestPlan};
use crate::report::Output;
use crate::statistics::Timer;
use crate::workload::{Side, Watch, Workload};

/// Runs the plan on the side that it says.
pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<(), Error> {
    let device = LocalDevice::open(device::provider(output)?, &plan.local)?;
    plan.test.check(&device.limits)?;
    output.device(&device);
    let session = Session { device: &device, test: &plan.test, timer: Timer::new() };
    match &plan.role {
        Role::Server => session.serve_one(plan.local.tcp_port, output),
        Role::Client(host) => {
            let link = connect(host, plan.local.tcp_port)?;
            session.client_over(link, output)
        }
        Role::Loopback => session.loopback(output),
    }
}

/// One side's part of a test.
pub(super) struct Session<'a> {
    pub(super) device: &'a LocalDevice,
    pub(super) test: &'a TestPlan,
    pub(super) timer: Timer,
}

impl Session<'_> {
    fn client_over(&self, link: Link, output: &mut Output) -> Result<(), Error> {
        steps::over(link, output, |link, output| self.client(link, output))
    }

    fn server_over(&self, link: Link, output: &mut Output) -> Result<(), Error> {
        steps::over(link, output, |link, output| self.server(link, output))
    }

    fn serve_one(&self, port: u16, output: &mut Output) -> Result<(), Error> {
        let listener = Listener::bind(port)?;
        output.note(format_args!("waiting for a client on TCP port {}", listener.port()));
        let link = listener.accept()?;
        output.note(format_args!("serving {}", link.peer()));
        self.server_over(link, output)
    }

    /// Both sides, over a connection of this process with itself.
    fn loopback(&self, output: &mut Output) -> Result<(), Error> {
        let listener = Listener::bind_local()?;
        let client = connect("127.0.0.1", listener.port())?;
        let server = listener.accept()?;
        steps::both(
            |output| self.server_over(server, output),
            |output| self.client_over(client, output),
            output,
        )
    }

    fn client(&self, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        steps::request(link, self.test, output)?;
        let mut workload = self.set_up(self.test, link)?;
        output.connection("RC", workload.description());
        output.heading(self.test, software(self.device))?;
        for size in self.test.sizes.iter() {
            workload.prepare(size);
            steps::begin(link, size)?;
            let row = workload.measure(size, &mut Watch::new(link, &self.timer))?;
            link.send(&Message::Row(row))?;
            output.measured(&row, workload.distribution())?;
        }
        steps::finish(link)
    }

    fn server(&self, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        let test = steps::requested(link, self.test, output)?;
        self.answer(&test, link, output)
    }

    /// Does what a client asked for.
    pub(super) fn answer(&self, test: &TestPlan, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        if test.operation != Operation::Write {
            return Err(link
                .malformed(format!("a request for {}, by the way of `write`", test.operation))
                .into());
        }
        test.check(&self.device.limits)?;
        link.send(&Message::Accept(steps::greeting(self.test)))?;
        let mut workload = self.set_up(test, link)?;
        output.connection("RC", workload.description());
        output.heading(test, software(self.device))?;
        for size in test.sizes.iter() {
            workload.prepare(size);
            steps::begin(link, size)?;
            workload.answer(size, &mut Watch::new(link, &self.timer))?;
            output.row(&steps::receive_row(link)?)?;
        }
        steps::finish(link)
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

/// What figures have to be read with, where the device is a software one.
fn software(device: &LocalDevice) -> Option<String> {
    device.is_soft.then(|| crate::report::software(&device.limits.device))
}

/// Refuses memory that is too short for the messages, before anything is written there.
fn check_resources(remote: &Resources, side: &Side, link: &Link) -> Result<(), ControlError> {
    let needed = side.layout().half();
    if remote.length >= needed && remote.address.checked_add(remote.length).is_some() {
        return Ok(());
    }
    Err(link.malformed(format!("{} bytes at {:#x} for messages of {needed}", remote.length, remote.address)))
}
