//! The client: goes through the steps with all connections, one step after the other.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use sideway::ibverbs::queue_pair::QueuePairState;
use sideway::rdmacm::{Event, EventType, Identifier, PortSpace};

use super::run::{Job, Member, Role, Route, Run, Task};
use super::steps::{self, Step};
use super::sync::Sync;
use super::{Plan, Shared};
use crate::program::{Failure, say};

/// Makes and ends connections: one to warm up, then all of them with queue pairs, then all without.
///
/// # Errors
///
/// A step fails.
pub fn run(shared: &Shared, plan: Plan, route: Route, sync: &mut Sync, base: u32) -> Result<(), Failure> {
    let connections = plan.connections;
    say("Client warmup")?;
    let role = Role { route: Some(route), work, event: handle };
    connect(&Run::new(Plan { connections: 1, ..plan }, role, shared), sync)?;
    say(format_args!("Connect ({connections}) QPs test"))?;
    say(connect(&Run::new(plan, role, shared), sync)?)?;
    say(format_args!("Connect ({connections}) test - no QPs"))?;
    say(connect(&Run::new(Plan { pretended: Some(base), ..plan }, role, shared), sync)?)
}

/// Where a client goes.
pub(super) fn route(run: &Run<'_>) -> Result<Route, Failure> {
    run.role.route.ok_or_else(|| Failure::work("a server goes nowhere"))
}

/// The table of a run.
pub(super) fn table(run: &Run<'_>) -> String {
    let each: Vec<_> = run.members.iter().map(|member| &member.times).collect();
    steps::table(&run.times, &each, run.plan.threads, run.plan.pretended.is_none())
}

fn connect(run: &Run<'_>, sync: &mut Sync) -> Result<String, Failure> {
    run.go(|| steps(run, sync))?;
    Ok(table(run))
}

fn steps(run: &Run<'_>, sync: &mut Sync) -> Result<(), Failure> {
    sync.propose(None)?;
    run.times.start(Step::FullConnect);
    say("\tCreating IDs")?;
    create_ids(run)?;
    if let Some(source) = route(run)?.source {
        say("\tBinding addresses")?;
        bind(run, source)?;
    }
    together(run, "Resolving addresses", Step::ResolveAddr, Task::ResolveAddr)?;
    together(run, "Resolving routes", Step::ResolveRoute, Task::ResolveRoute)?;
    together(run, "Creating QPs", Step::CreateQp, Task::CreateQp)?;
    together(run, "Modify QPs to INIT", Step::InitQp, Task::Init)?;
    say("\tConnecting")?;
    run.times.start(Step::Connect);
    for member in &run.members {
        let parameter = run.parameter(member, 0);
        member.times.start(Step::Connect);
        member.with_id(|id| id.connect(&parameter).map_err(Failure::work))?;
    }
    run.wait_for(Step::Connect)?;
    run.times.end(Step::Connect);
    run.times.end(Step::FullConnect);
    sync.propose(Some(Step::Connect))?;
    together(run, "Disconnecting", Step::Disconnect, Task::Disconnect)?;
    sync.propose(Some(Step::Disconnect))?;
    say("\tDestroying QPs")?;
    destroy_qps(run);
    say("\tDestroying IDs")?;
    destroy_ids(run);
    Ok(())
}

pub(super) fn create_ids(run: &Run<'_>) -> Result<(), Failure> {
    let mut ids = Vec::with_capacity(run.members.len());
    run.times.start(Step::CreateId);
    for (number, member) in run.members.iter().enumerate() {
        let id = member.timed(Step::CreateId, || {
            let id = run.shared.channel.create_id(PortSpace::Tcp)?;
            id.setup_user_data(number as u64);
            Ok::<_, Failure>(id)
        })?;
        member.times.start_with(Step::FullConnect, Step::CreateId);
        ids.push(id);
    }
    run.times.end(Step::CreateId);
    for (member, id) in run.members.iter().zip(ids) {
        *member.id() = Some(id);
    }
    Ok(())
}

pub(super) fn bind(run: &Run<'_>, source: SocketAddr) -> Result<(), Failure> {
    run.times.start(Step::Bind);
    for member in &run.members {
        member.with_id(|id| Ok(member.timed(Step::Bind, || id.bind_addr(source))?))?;
    }
    run.times.end(Step::Bind);
    Ok(())
}

/// A step that the threads do.
fn together(run: &Run<'_>, title: &str, step: Step, task: Task) -> Result<(), Failure> {
    say(format_args!("\t{title}"))?;
    run.times.start(step);
    for member in 0..run.members.len() {
        run.give(Job { task, member });
    }
    run.wait_for(step)?;
    run.times.end(step);
    Ok(())
}

pub(super) fn destroy_qps(run: &Run<'_>) {
    run.times.start(Step::DestroyQp);
    for member in &run.members {
        let qp = member.qp().take();
        member.timed(Step::DestroyQp, || drop(qp));
    }
    run.times.end(Step::DestroyQp);
}

pub(super) fn destroy_ids(run: &Run<'_>) {
    run.times.start(Step::DestroyId);
    for member in &run.members {
        let id = member.id().take();
        member.timed(Step::DestroyId, || drop(id));
    }
    run.times.end(Step::DestroyId);
}

/// What is to be done for a connection.
fn work(run: &Run<'_>, Job { task, member }: Job) -> Result<(), Failure> {
    let member = &run.members[member];
    match task {
        Task::ResolveAddr => member.with_id(|id| resolve_addr(run, member, id)),
        Task::ResolveRoute => member.with_id(|id| resolve_route(run, member, id)),
        Task::CreateQp => create_qp(run, member),
        Task::Init => run.modify(member, QueuePairState::Init),
        Task::Establish => {
            run.modify(member, QueuePairState::ReadyToReceive)?;
            run.modify(member, QueuePairState::ReadyToSend)?;
            member.with_id(|id| member.timed(Step::Establish, || id.establish()).map_err(Failure::work))?;
            member.times.end(Step::Connect);
            member.times.end(Step::FullConnect);
            run.done(Step::Connect);
            Ok(())
        }
        Task::Disconnect => {
            member.with_id(|id| member.timed(Step::Disconnect, || id.disconnect()).map_err(Failure::work))?;
            run.done(Step::Disconnect);
            Ok(())
        }
        Task::Accept | Task::HangUp => Err(Failure::work("a client has nothing to accept")),
    }
}

pub(super) fn resolve_addr(run: &Run<'_>, member: &Member, id: &Identifier) -> Result<(), Failure> {
    let route = route(run)?;
    member.attempts.store(run.plan.retries, Ordering::Relaxed);
    member.times.start(Step::ResolveAddr);
    Ok(id.resolve_addr(route.source.map(Into::into), route.server, run.plan.timeout)?)
}

pub(super) fn resolve_route(run: &Run<'_>, member: &Member, id: &Identifier) -> Result<(), Failure> {
    member.attempts.store(run.plan.retries, Ordering::Relaxed);
    member.times.start(Step::ResolveRoute);
    Ok(id.resolve_route(run.plan.timeout)?)
}

/// Without queue pairs this takes next to no time.
pub(super) fn create_qp(run: &Run<'_>, member: &Member) -> Result<(), Failure> {
    if run.plan.pretended.is_some() {
        member.timed(Step::CreateQp, || {});
    } else {
        let qp = member.with_id(|id| {
            run.shared.verbs(id)?;
            member.timed(Step::CreateQp, || run.shared.create_qp(id))
        })?;
        *member.qp() = Some(qp);
    }
    run.done(Step::CreateQp);
    Ok(())
}

fn handle(run: &Run<'_>, event: &Event) -> Result<(), Failure> {
    let member = event.cm_id().user_data() as usize;
    if is_resolved(run, event, member)? {
        return Ok(());
    }
    match event.event_type() {
        EventType::ConnectResponse => run.give(Job { task: Task::Establish, member }),
        // Each side hangs up; when the server has, the client need not know.
        _ => event.error().map_or(Ok(()), |error| Err(Failure::work(error)))?,
    }
    Ok(())
}

/// Whether the event is of an address or a route. One that was not found is looked for again.
pub(super) fn is_resolved(run: &Run<'_>, event: &Event, number: usize) -> Result<bool, Failure> {
    let Some(member) = run.members.get(number) else { return Ok(true) };
    let tries_again = || {
        let attempts = &member.attempts;
        attempts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    };
    let step = match event.event_type() {
        EventType::AddressResolved => Step::ResolveAddr,
        EventType::RouteResolved => Step::ResolveRoute,
        EventType::AddressError if tries_again() => {
            let route = route(run)?;
            let source = route.source.map(Into::into);
            event.cm_id().resolve_addr(source, route.server, run.plan.timeout)?;
            return Ok(true);
        }
        EventType::RouteError if tries_again() => {
            event.cm_id().resolve_route(run.plan.timeout)?;
            return Ok(true);
        }
        _ => return Ok(false),
    };
    member.times.end(step);
    run.done(step);
    Ok(true)
}
