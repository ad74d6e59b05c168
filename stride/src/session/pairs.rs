//! Tests of queue pairs, agreed on over TCP.

use super::{memory, roles, secret, steps};
use crate::control::{ControlError, Link, Message, Resources, Secret};
use crate::device::{self, LocalDevice};
use crate::error::Error;
use crate::plan::{Plan, Sizes, TestPlan};
use crate::report::{Output, Row};
use crate::statistics::Timer;
use crate::workload::{Arrived, Side, Watch, Workload};

/// Runs the plan on the side that it says.
pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<(), Error> {
    let device = LocalDevice::open(device::provider(output)?, &plan.local)?;
    let test = plan.test.fitted(&device.limits, plan.local.any_size);
    test.check(&device.limits)?;
    output.device(&device);
    let secret = secret::find(&plan.local, output)?;
    let session = Session { device: &device, test: &test, secret: secret.as_ref(), timer: Timer::new() };
    roles::play(
        plan,
        output,
        |link, output| session.server(link, output),
        |link, output| session.client(link, output),
    )
}

/// One side's part of a test.
pub(super) struct Session<'a> {
    pub(super) device: &'a LocalDevice,
    pub(super) test: &'a TestPlan,
    pub(super) secret: Option<&'a Secret>,
    pub(super) timer: Timer,
}

impl Session<'_> {
    fn client(&self, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        steps::request(link, self.test, self.secret, output)?;
        self.measure(self.test, true, link, output)
    }

    pub(super) fn server(&self, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        let test = steps::requested(link, self.test, self.secret, output)?;
        memory::check_beside(&test, self.test)?;
        self.answer(&test, link, output)
    }

    /// Does what a client asked for.
    pub(super) fn answer(&self, test: &TestPlan, link: &mut Link, output: &mut Output) -> Result<(), Error> {
        if !test.operation.is_of_pairs() {
            let what = format!("a request for {}, by the way of queue pairs", test.operation);
            return Err(link.malformed(what).into());
        }
        test.check(&self.device.limits)?;
        link.send(&Message::Accept(steps::greeting(self.test)))?;
        self.measure(test, false, link, output)
    }

    /// Plays a side's parts, size by size.
    fn measure(
        &self,
        test: &TestPlan,
        is_client: bool,
        link: &mut Link,
        output: &mut Output,
    ) -> Result<(), Error> {
        let parts = test.parts(is_client);
        let mut workload = self.set_up(test, link)?;
        output.connection(&test.connection.to_string(), workload.description());
        output.heading(test, software(self.device))?;
        for cell in test.cells() {
            let size = cell.size;
            workload.prepare(size, parts)?;
            steps::begin(link, size)?;
            let own = match parts.measures {
                true => {
                    let progress = output.begin(cell, test);
                    Some(workload.measure(size, &mut Watch::new(link, &self.timer).counting(&progress))?)
                }
                false => None,
            };
            if let Some(row) = own {
                link.send(&Message::Row(row))?;
            }
            let theirs = match parts.serves {
                true => {
                    workload.answer(&mut Watch::new(link, &self.timer))?;
                    Some(steps::receive_row(link)?)
                }
                false => None,
            };
            if test.asks_what_arrived() {
                tell_losses(workload.arrived(size)?, test, link, output)?;
            }
            if matches!(test.sizes, Sizes::Again { .. }) {
                // They have no end: the client's user sees them.
                continue;
            }
            let distribution = own.and_then(|_| workload.distribution());
            output.measured(&sum(own, theirs, link)?, distribution)?;
        }
        steps::finish(link)
    }

    /// Makes this side's queue pairs and memory, and connects them to the peer's.
    pub(super) fn set_up(&self, test: &TestPlan, link: &mut Link) -> Result<Workload, Error> {
        let side = Side::new(self.device, test)?;
        let mut remotes = Vec::new();
        for own in side.resources() {
            let remote = match link.exchange(&Message::Resources(own))? {
                Message::Resources(resources) => resources,
                other => return Err(link.unexpected(&other, "resources").into()),
            };
            check_resources(&remote, &side, link)?;
            remotes.push(remote);
        }
        let workload = side.connect(&remotes, test, &self.timer)?;
        match link.exchange(&Message::Ready)? {
            Message::Ready => Ok(workload),
            other => Err(link.unexpected(&other, "ready").into()),
        }
    }
}

/// Both sides tell each other how many messages they sent and took, and their users how many were lost.
fn tell_losses(own: Arrived, test: &TestPlan, link: &mut Link, output: &mut Output) -> Result<(), Error> {
    let theirs = match link.exchange(&Message::Arrived { sent: own.sent, taken: own.taken })? {
        Message::Arrived { sent, taken } => Arrived { sent, taken },
        other => return Err(link.unexpected(&other, "arrived").into()),
    };
    if !test.operation.takes_receives() {
        return Ok(());
    }
    for (sent, taken, whose) in
        [(own.sent, theirs.taken, "this side's"), (theirs.sent, own.taken, "the peer's")]
    {
        if taken < sent {
            output.note(format_args!(
                "warning: {} of {sent} messages were lost, {whose}: the figures are of what was sent; give more -r or less -t",
                sent - taken
            ));
        }
    }
    Ok(())
}

/// What one side measured; or both, at the same time: then they moved the same number of messages, and their rates are added.
fn sum(own: Option<Row>, theirs: Option<Row>, link: &Link) -> Result<Row, ControlError> {
    match (own, theirs) {
        (Some(Row::Bandwidth(own)), Some(Row::Bandwidth(theirs))) => Ok(Row::Bandwidth(own.with(&theirs))),
        (Some(row), None) | (None, Some(row)) => Ok(row),
        _ => Err(link.malformed("a row of another kind".to_owned())),
    }
}

/// What figures have to be read with, where the device is a software one.
fn software(device: &LocalDevice) -> Option<String> {
    device.is_soft.then(|| crate::report::software(&device.limits.device))
}

/// Refuses memory that is too short for the messages, before anything is done there.
fn check_resources(remote: &Resources, side: &Side, link: &Link) -> Result<(), ControlError> {
    let needed = side.layout().half();
    if remote.length >= needed && remote.address.checked_add(remote.length).is_some() {
        return Ok(());
    }
    Err(link.malformed(format!("{} bytes at {:#x} for messages of {needed}", remote.length, remote.address)))
}
