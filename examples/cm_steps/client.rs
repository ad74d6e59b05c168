//! The client: all connections perform a step before the next one begins.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use sideway::ibverbs::queue_pair::QueuePairState;
use sideway::rdmacm::{Event, EventType, Identifier, PortSpace};

use super::run::{PendingConnection, Route, RunHandlers, StepJob, StepRun, StepTask};
use super::steps::{self, CmStep};
use super::sync::Sync;
use super::{RunContext, StepOptions};
use crate::program::{Failure, say};

/// Opens and closes connections: one to warm up, then all with queue pairs, then all without.
///
/// # Errors
///
/// A step fails.
pub fn run(
    context: &RunContext,
    options: StepOptions,
    route: Route,
    sync: &mut Sync,
    base: u32,
) -> Result<(), Failure> {
    let connections = options.connections;
    say("Client warmup")?;
    let handlers = RunHandlers { route: Some(route), work, event: handle };
    connect(&StepRun::new(StepOptions { connections: 1, ..options }, handlers, context), sync)?;
    say(format_args!("Connect ({connections}) QPs test"))?;
    say(connect(&StepRun::new(options, handlers, context), sync)?)?;
    say(format_args!("Connect ({connections}) test - no QPs"))?;
    say(connect(&StepRun::new(StepOptions { pretended: Some(base), ..options }, handlers, context), sync)?)
}

/// The destination of a client.
pub(super) fn route(run: &StepRun<'_>) -> Result<Route, Failure> {
    run.handlers.route.ok_or_else(|| Failure::work("a server has no destination"))
}

/// The table of a run.
pub(super) fn table(run: &StepRun<'_>) -> String {
    let each: Vec<_> = run.connections.iter().map(|connection| &connection.times).collect();
    steps::table(&run.times, &each, run.options.threads, run.options.pretended.is_none())
}

fn connect(run: &StepRun<'_>, sync: &mut Sync) -> Result<String, Failure> {
    run.go(|| steps(run, sync))?;
    Ok(table(run))
}

fn steps(run: &StepRun<'_>, sync: &mut Sync) -> Result<(), Failure> {
    sync.propose(None)?;
    run.times.start(CmStep::FullConnect);
    say("\tCreating IDs")?;
    create_ids(run)?;
    if let Some(source) = route(run)?.source {
        say("\tBinding addresses")?;
        bind(run, source)?;
    }
    together(run, "Resolving addresses", CmStep::ResolveAddr, StepTask::ResolveAddr)?;
    together(run, "Resolving routes", CmStep::ResolveRoute, StepTask::ResolveRoute)?;
    together(run, "Creating QPs", CmStep::CreateQp, StepTask::CreateQp)?;
    together(run, "Modify QPs to INIT", CmStep::InitQp, StepTask::Init)?;
    say("\tConnecting")?;
    run.times.start(CmStep::Connect);
    for connection in &run.connections {
        let parameter = run.parameter(connection, 0);
        connection.times.start(CmStep::Connect);
        connection.with_id(|id| id.connect(&parameter).map_err(Failure::work))?;
    }
    run.wait_for(CmStep::Connect)?;
    run.times.end(CmStep::Connect);
    run.times.end(CmStep::FullConnect);
    sync.propose(Some(CmStep::Connect))?;
    together(run, "Disconnecting", CmStep::Disconnect, StepTask::Disconnect)?;
    sync.propose(Some(CmStep::Disconnect))?;
    say("\tDestroying QPs")?;
    destroy_qps(run);
    say("\tDestroying IDs")?;
    destroy_ids(run);
    Ok(())
}

pub(super) fn create_ids(run: &StepRun<'_>) -> Result<(), Failure> {
    let mut ids = Vec::with_capacity(run.connections.len());
    run.times.start(CmStep::CreateId);
    for (number, connection) in run.connections.iter().enumerate() {
        let id = connection.timed(CmStep::CreateId, || {
            let id = run.context.channel.create_id(PortSpace::Tcp)?;
            id.setup_user_data(number as u64);
            Ok::<_, Failure>(id)
        })?;
        connection.times.start_with(CmStep::FullConnect, CmStep::CreateId);
        ids.push(id);
    }
    run.times.end(CmStep::CreateId);
    for (connection, id) in run.connections.iter().zip(ids) {
        *connection.id() = Some(id);
    }
    Ok(())
}

pub(super) fn bind(run: &StepRun<'_>, source: SocketAddr) -> Result<(), Failure> {
    run.times.start(CmStep::Bind);
    for connection in &run.connections {
        connection.with_id(|id| Ok(connection.timed(CmStep::Bind, || id.bind_addr(source))?))?;
    }
    run.times.end(CmStep::Bind);
    Ok(())
}

/// Runs a step on the worker threads.
fn together(run: &StepRun<'_>, title: &str, step: CmStep, task: StepTask) -> Result<(), Failure> {
    say(format_args!("\t{title}"))?;
    run.times.start(step);
    for connection in 0..run.connections.len() {
        run.push(StepJob { task, connection });
    }
    run.wait_for(step)?;
    run.times.end(step);
    Ok(())
}

pub(super) fn destroy_qps(run: &StepRun<'_>) {
    run.times.start(CmStep::DestroyQp);
    for connection in &run.connections {
        let qp = connection.qp().take();
        connection.timed(CmStep::DestroyQp, || drop(qp));
    }
    run.times.end(CmStep::DestroyQp);
}

pub(super) fn destroy_ids(run: &StepRun<'_>) {
    run.times.start(CmStep::DestroyId);
    for connection in &run.connections {
        let id = connection.id().take();
        connection.timed(CmStep::DestroyId, || drop(id));
    }
    run.times.end(CmStep::DestroyId);
}

/// Runs a job for one connection.
fn work(run: &StepRun<'_>, StepJob { task, connection }: StepJob) -> Result<(), Failure> {
    let connection = &run.connections[connection];
    match task {
        StepTask::ResolveAddr => connection.with_id(|id| resolve_addr(run, connection, id)),
        StepTask::ResolveRoute => connection.with_id(|id| resolve_route(run, connection, id)),
        StepTask::CreateQp => create_qp(run, connection),
        StepTask::Init => run.modify(connection, QueuePairState::Init),
        StepTask::Establish => {
            run.modify(connection, QueuePairState::ReadyToReceive)?;
            run.modify(connection, QueuePairState::ReadyToSend)?;
            connection.with_id(|id| {
                connection.timed(CmStep::Establish, || id.establish()).map_err(Failure::work)
            })?;
            connection.times.end(CmStep::Connect);
            connection.times.end(CmStep::FullConnect);
            run.done(CmStep::Connect);
            Ok(())
        }
        StepTask::Disconnect => {
            connection.with_id(|id| {
                connection.timed(CmStep::Disconnect, || id.disconnect()).map_err(Failure::work)
            })?;
            run.done(CmStep::Disconnect);
            Ok(())
        }
        StepTask::Accept | StepTask::HangUp => Err(Failure::work("a client accepts no connections")),
    }
}

pub(super) fn resolve_addr(
    run: &StepRun<'_>,
    connection: &PendingConnection,
    id: &Identifier,
) -> Result<(), Failure> {
    let route = route(run)?;
    connection.attempts.store(run.options.retries, Ordering::Relaxed);
    connection.times.start(CmStep::ResolveAddr);
    Ok(id.resolve_addr(route.source.map(Into::into), route.server, run.options.timeout)?)
}

pub(super) fn resolve_route(
    run: &StepRun<'_>,
    connection: &PendingConnection,
    id: &Identifier,
) -> Result<(), Failure> {
    connection.attempts.store(run.options.retries, Ordering::Relaxed);
    connection.times.start(CmStep::ResolveRoute);
    Ok(id.resolve_route(run.options.timeout)?)
}

/// Without queue pairs this takes next to no time.
pub(super) fn create_qp(run: &StepRun<'_>, connection: &PendingConnection) -> Result<(), Failure> {
    if run.options.pretended.is_some() {
        connection.timed(CmStep::CreateQp, || {});
    } else {
        let qp = connection.with_id(|id| {
            run.context.verbs(id)?;
            connection.timed(CmStep::CreateQp, || run.context.create_qp(id))
        })?;
        *connection.qp() = Some(qp);
    }
    run.done(CmStep::CreateQp);
    Ok(())
}

fn handle(run: &StepRun<'_>, event: &Event) -> Result<(), Failure> {
    let connection = event.cm_id().user_data() as usize;
    if is_resolved(run, event, connection)? {
        return Ok(());
    }
    match event.event_type() {
        EventType::ConnectResponse => run.push(StepJob { task: StepTask::Establish, connection }),
        // Each side disconnects; the client need not wait for the server.
        _ => event.error().map_or(Ok(()), |error| Err(Failure::work(error)))?,
    }
    Ok(())
}

/// Handles an event of address or route resolution; false for other events. A failed resolution is
/// retried.
pub(super) fn is_resolved(run: &StepRun<'_>, event: &Event, number: usize) -> Result<bool, Failure> {
    let Some(connection) = run.connections.get(number) else { return Ok(true) };
    let tries_again = || {
        let attempts = &connection.attempts;
        attempts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    };
    let step = match event.event_type() {
        EventType::AddressResolved => CmStep::ResolveAddr,
        EventType::RouteResolved => CmStep::ResolveRoute,
        EventType::AddressError if tries_again() => {
            let route = route(run)?;
            let source = route.source.map(Into::into);
            event.cm_id().resolve_addr(source, route.server, run.options.timeout)?;
            return Ok(true);
        }
        EventType::RouteError if tries_again() => {
            event.cm_id().resolve_route(run.options.timeout)?;
            return Ok(true);
        }
        _ => return Ok(false),
    };
    connection.times.end(step);
    run.done(step);
    Ok(true)
}
