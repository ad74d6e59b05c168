//! Tests of queue pairs, whose sides agree over TCP.

use std::sync::Arc;

use super::{memory, roles, secret, steps};
use crate::control::{ControlError, ControlLink, ControlMessage, Greeting, Resources, Secret};
use crate::device::{self, LocalDevice};
use crate::error::Error;
use crate::placement::{Neighbours, Processors};
use crate::plan::{
    ChoiceInputs, ConnectionType, DeviceLimits, LocalOptions, RunPlan, SideRole, SideTasks, Sizes, TestPlan,
};
use crate::report::{Measured, Output, ResultRow};
use crate::result::{PortCounters, SideResult, SizeDetails, troubles};
use crate::statistics::Timer;
use crate::workload::{
    CmConnector, MeasuringThreads, MessageCounts, PeerWatch, TestProgress, UnconnectedSides,
};

/// Runs the plan on its side.
pub(super) fn run(plan: &RunPlan, output: &mut Output) -> Result<(), Error> {
    let provider = device::provider(output)?;
    let open = |options: LocalOptions| LocalDevice::open(provider, &options);
    let devices: Vec<_> = plan.local.of_each_device().into_iter().map(open).collect::<Result<_, _>>()?;
    let processors = Processors::near(&devices.iter().map(|device| device.numa_node).collect::<Vec<_>>());
    let neighbours = if plan.role == SideRole::Loopback { Neighbours::Peer } else { Neighbours::None };
    let fit = |test: TestPlan, device: &LocalDevice| test.fitted(&device.limits, plan.local.any_size);
    let test = devices.iter().fold(plan.test.clone(), fit);
    let (test, chosen) = plan.local.choices.settle(test, circumstances(&devices, &processors, neighbours));
    devices.iter().try_for_each(|device| test.check(&device.limits))?;
    devices.iter().for_each(|device| output.device(device));
    chosen.iter().for_each(|choice| output.note(choice));
    let secret = secret::find(&plan.local, output)?;
    let (secret, timer) = (secret.as_ref(), Timer::new());
    let session = PairsSession { devices: &devices, test: &test, secret, timer, processors, neighbours };
    roles::play(
        plan,
        session.secret,
        output,
        |link, greeting, output| session.server(link, greeting, output),
        |link, output| session.client(link, output),
    )
}

/// One side's part of a test.
pub(super) struct PairsSession<'a> {
    pub(super) devices: &'a [LocalDevice],
    pub(super) test: &'a TestPlan,
    pub(super) secret: Option<&'a Secret>,
    pub(super) timer: Timer,
    pub(super) processors: Processors,
    pub(super) neighbours: Neighbours,
}

fn circumstances(devices: &[LocalDevice], processors: &Processors, neighbours: Neighbours) -> ChoiceInputs {
    let least =
        |of: fn(&DeviceLimits) -> u32| devices.iter().map(|device| of(&device.limits)).min().unwrap_or(1);
    ChoiceInputs {
        processors: processors.count(),
        is_software: devices.iter().any(|device| device.is_soft),
        has_peer: neighbours == Neighbours::Peer,
        devices: devices.len() as u32,
        max_qp_wr: least(|limits| limits.max_qp_wr),
        max_cqe: least(|limits| limits.max_cqe),
    }
}

impl PairsSession<'_> {
    fn client(&self, link: &mut ControlLink, output: &mut Output) -> Result<(), Error> {
        steps::request(link, self.test, self.secret, output)?;
        self.measure(self.test, true, link, output)
    }

    pub(super) fn server(
        &self,
        link: &mut ControlLink,
        greeting: Greeting,
        output: &mut Output,
    ) -> Result<(), Error> {
        let test = steps::agreed(link, greeting, self.test, output);
        memory::check_beside(&test, self.test)?;
        self.answer(&test, link, output)
    }

    /// Runs the test that a client requested.
    pub(super) fn answer(
        &self,
        test: &TestPlan,
        link: &mut ControlLink,
        output: &mut Output,
    ) -> Result<(), Error> {
        if !test.operation.is_of_pairs() {
            let what = format!("a request for {}, by the way of queue pairs", test.operation);
            return Err(link.malformed(what).into());
        }
        self.devices.iter().try_for_each(|device| test.check(&device.limits))?;
        if let Some(unused) = self.devices.get(test.thread_count() as usize) {
            let unused = &unused.limits.device;
            output.note(format_args!("warning: {unused} is not used, as the client has too few --threads"));
        }
        link.send(&ControlMessage::Accept(steps::greeting(self.test)))?;
        self.measure(test, false, link, output)
    }

    /// Runs a side's tasks, size by size.
    fn measure(
        &self,
        test: &TestPlan,
        is_client: bool,
        link: &mut ControlLink,
        output: &mut Output,
    ) -> Result<(), Error> {
        let parts = test.parts(is_client);
        let mut threads = self.set_up(test, is_client, link)?;
        output.connection(&test.connection.to_string(), threads.description());
        output.heading(test, software(self.devices))?;
        for point in test.cells() {
            let size = point.size;
            if let Some(warm_up) = test.warming() {
                let nobody = || Arc::new(TestProgress::of_threads(test.thread_count()));
                threads.set_length(&warm_up);
                pass(&mut threads, size, parts, link, nobody)?;
                threads.set_length(test);
            }
            let before = PortCounters::of(self.devices);
            let both = pass(&mut threads, size, parts, link, || output.begin(point, test))?;
            let counters = before.map(|before| before.until_now());
            if let Some(troubles) = counters.as_ref().and_then(troubles) {
                output.note(format_args!(
                    "warning: with messages of {size} bytes this side's port counted {troubles}"
                ));
            }
            if let Some(warning) = both.own.as_ref().and_then(|own| test.missed_rate(&own.row)) {
                output.note(warning);
            }
            if test.asks_what_arrived() {
                tell_losses(threads.arrived(size)?, test, link, output)?;
            }
            if matches!(test.sizes, Sizes::Again { .. }) {
                // A ping repeats until the client's user ends it.
                continue;
            }
            let histogram = both.own.and_then(|_| threads.distribution());
            let (row, cpu_ns_per_msg) = both.sum(link)?;
            let details = SizeDetails { histogram, cpu_ns_per_msg, counters, sides: both.sides(is_client) };
            output.measured(&row, details)?;
        }
        output.footer()?;
        steps::finish(link)
    }

    /// Creates this side's queue pairs and memory, and connects them to the peer's.
    pub(super) fn set_up(
        &self,
        test: &TestPlan,
        is_client: bool,
        link: &mut ControlLink,
    ) -> Result<MeasuringThreads, Error> {
        let processors = self.processors.place(test, is_client, self.neighbours);
        let side = UnconnectedSides::new(self.devices, test, &processors)?;
        let mut remotes = Vec::new();
        for own in side.resources() {
            let remote = match link.exchange(&ControlMessage::Resources(own))? {
                ControlMessage::Resources(resources) => resources,
                other => return Err(link.unexpected(&other, "resources").into()),
            };
            check_resources(&remote, &side, test, link)?;
            remotes.push(remote);
        }
        let manager = match test.path_options.rdma_cm {
            true => Some(self.meet(is_client, link)?),
            false => None,
        };
        let threads = side.connect(&remotes, test, &self.timer, manager)?;
        match link.exchange(&ControlMessage::Ready)? {
            ControlMessage::Ready => Ok(threads),
            other => Err(link.unexpected(&other, "ready").into()),
        }
    }
}

impl<'a> PairsSession<'a> {
    /// Agrees with the peer on the address of the connection manager, which connects the queue
    /// pairs of one thread over the first device.
    fn meet<'link>(&self, is_client: bool, link: &'link mut ControlLink) -> Result<CmConnector<'link>, Error>
    where
        'a: 'link,
    {
        let device = &self.devices[0];
        if is_client {
            return match link.receive()? {
                ControlMessage::Meeting(meeting) => Ok(CmConnector::go(device, link, meeting)),
                other => Err(link.unexpected(&other, "meeting").into()),
            };
        }
        let mut manager = CmConnector::listen(device, link)?;
        manager.invite()?;
        Ok(manager)
    }
}

/// Runs both sides' tasks for a size: this side's measurement, and the peer's.
fn pass(
    threads: &mut MeasuringThreads,
    size: u64,
    parts: SideTasks,
    link: &mut ControlLink,
    begin: impl FnOnce() -> Arc<TestProgress>,
) -> Result<BothSides, Error> {
    threads.prepare(size, parts)?;
    steps::begin(link, size)?;
    let own = match parts.measures {
        true => {
            let progress = begin();
            Some(threads.measure(size, &PeerWatch::new(link), &progress)?)
        }
        false => None,
    };
    if let Some(measured) = own {
        link.send(&ControlMessage::Row(measured))?;
    }
    let theirs = match parts.serves {
        true => {
            threads.answer(&PeerWatch::new(link))?;
            Some(steps::receive_row(link)?)
        }
        false => None,
    };
    Ok(BothSides { own, theirs })
}

/// Exchanges the numbers of messages sent and received; each side tells its user how many were
/// lost.
fn tell_losses(
    own: MessageCounts,
    test: &TestPlan,
    link: &mut ControlLink,
    output: &mut Output,
) -> Result<(), Error> {
    let theirs = match link.exchange(&ControlMessage::Arrived { sent: own.sent, taken: own.taken })? {
        ControlMessage::Arrived { sent, taken } => MessageCounts { sent, taken },
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

/// The figures of one side, or of both if they measured at the same time: then they moved the same
/// number of messages, and their rates are added.
struct BothSides {
    own: Option<Measured>,
    theirs: Option<Measured>,
}

impl BothSides {
    /// The combined row, and the cost of a message.
    fn sum(&self, link: &ControlLink) -> Result<(ResultRow, Option<f64>), ControlError> {
        match (self.own, self.theirs) {
            (Some(own), Some(theirs)) => {
                let (ResultRow::Bandwidth(row), ResultRow::Bandwidth(other)) = (own.row, theirs.row) else {
                    return Err(link.malformed("a row of another kind".to_owned()));
                };
                // A message costs as much as on the two sides together.
                let cpu = own.cpu_ns_per_msg.zip(theirs.cpu_ns_per_msg).map(|(own, theirs)| {
                    let [mine, others] =
                        [row.iterations, other.iterations].map(|messages| messages.max(1) as f64);
                    (own * mine + theirs * others) / (mine + others)
                });
                Ok((ResultRow::Bandwidth(row.with(&other)), cpu))
            }
            (Some(Measured { row, cpu_ns_per_msg }), None)
            | (None, Some(Measured { row, cpu_ns_per_msg })) => Ok((row, cpu_ns_per_msg)),
            (None, None) => Err(link.malformed("no row at all".to_owned())),
        }
    }

    /// Each side's figures, if both measured.
    fn sides(&self, is_client: bool) -> Vec<SideResult> {
        let (Some(own), Some(theirs)) = (self.own, self.theirs) else { return Vec::new() };
        let [client, server] = if is_client { [own, theirs] } else { [theirs, own] };
        [("client", client), ("server", server)]
            .into_iter()
            .filter_map(|(side, Measured { row, cpu_ns_per_msg })| match row {
                ResultRow::Bandwidth(row) => Some(SideResult {
                    side: side.to_owned(),
                    iterations: row.iterations,
                    duration_s: row.seconds,
                    bw_gbps: row.gigabits_per_second,
                    msg_rate_mpps: row.million_messages_per_second,
                    cpu_ns_per_msg,
                }),
                _ => None,
            })
            .collect()
    }
}

/// The notice about figures of a software device.
fn software(devices: &[LocalDevice]) -> Option<String> {
    let names: Vec<_> = devices.iter().map(|device| &*device.limits.device).collect();
    devices.iter().any(|device| device.is_soft).then(|| crate::report::software(&names.join(" and ")))
}

/// Refuses memory of the peer that is too short for the messages, before any message is sent.
fn check_resources(
    remote: &Resources,
    side: &UnconnectedSides<'_>,
    test: &TestPlan,
    link: &ControlLink,
) -> Result<(), ControlError> {
    if remote.xrc.is_some() != (test.connection == ConnectionType::Xrc) {
        return Err(link.malformed(format!("resources of another connection than {}", test.connection)));
    }
    let needed = side.layout().half();
    if remote.length >= needed && remote.address.checked_add(remote.length).is_some() {
        return Ok(());
    }
    Err(link.malformed(format!("{} bytes at {:#x} for messages of {needed}", remote.length, remote.address)))
}
