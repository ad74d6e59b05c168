//! Both sides as they were before rdma-core 52: nobody agrees on anything, and a server answers until it is killed.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use sideway::ibverbs::queue_pair::{BasicQueuePair, QueuePair, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, Event, EventType, Identifier};

use super::client::{bind, create_ids, destroy_ids, is_resolved, resolve_addr, resolve_route, route};
use super::run::{Role, Route, Run};
use super::steps::{self, Step};
use super::{Plan, Shared};
use crate::program::{Failure, note, say};

/// Makes and ends connections, and says how long each step took.
///
/// # Errors
///
/// A step fails.
pub fn call(shared: &Shared, plan: Plan, route: Route) -> Result<(), Failure> {
    let role = Role { route: Some(route), work: |_, _| Ok(()), event: handle };
    let run = Run::new(plan, role, shared);
    go_through(&run)?;
    let each: Vec<_> = run.members.iter().map(|member| &member.times).collect();
    say(steps::earlier_table(&run.times, &each))
}

fn go_through(run: &Run<'_>) -> Result<(), Failure> {
    say("creating id")?;
    create_ids(run)?;
    if let Some(source) = route(run)?.source {
        say("binding source address")?;
        bind(run, source)?;
    }
    say("resolving address")?;
    run.times.start(Step::ResolveAddr);
    for member in &run.members {
        member.with_id(|id| resolve_addr(run, member, id))?;
    }
    run.take_events_for(Step::ResolveAddr)?;
    run.times.end(Step::ResolveAddr);
    say("resolving route")?;
    run.times.start(Step::ResolveRoute);
    for member in &run.members {
        member.with_id(|id| resolve_route(run, member, id))?;
    }
    run.take_events_for(Step::ResolveRoute)?;
    run.times.end(Step::ResolveRoute);
    // C has its protection domain since the addresses were resolved.
    if let Some(first) = run.members.first() {
        first.with_id(|id| run.shared.verbs(id).map(drop))?;
    }
    say("creating qp")?;
    run.times.start(Step::CreateQp);
    for member in &run.members {
        let qp = member.with_id(|id| member.timed(Step::CreateQp, || create_qp(run.shared, id)))?;
        *member.qp() = Some(qp);
    }
    run.times.end(Step::CreateQp);
    say("connecting")?;
    run.times.start(Step::Connect);
    for member in &run.members {
        let parameter = run.parameter(member, u8::try_from(run.plan.retries).unwrap_or(7).min(7));
        member.times.start(Step::Connect);
        member.with_id(|id| id.connect(&parameter).map_err(Failure::work))?;
    }
    run.take_events_for(Step::Connect)?;
    run.times.end(Step::Connect);
    say("disconnecting")?;
    run.times.start(Step::Disconnect);
    for member in &run.members {
        member.times.start(Step::Disconnect);
        member.with_id(|id| id.disconnect().map_err(Failure::work))?;
        drop(member.qp().take());
    }
    run.take_events_for(Step::Disconnect)?;
    run.times.end(Step::Disconnect);
    say("destroying id")?;
    destroy_ids(run);
    Ok(())
}

/// A queue pair that takes receives, as `rdma_create_qp` makes it.
fn create_qp(shared: &Shared, id: &Identifier) -> Result<BasicQueuePair, Failure> {
    let mut qp = shared.create_qp(id)?;
    id.modify_qp(&mut qp, QueuePairState::Init)?;
    Ok(qp)
}

fn handle(run: &Run<'_>, event: &Event) -> Result<(), Failure> {
    let id = event.cm_id();
    let number = id.user_data() as usize;
    if is_resolved(run, event, number)? {
        return Ok(());
    }
    let Some(member) = run.members.get(number) else { return Ok(()) };
    let step = match event.event_type() {
        EventType::ConnectResponse => {
            if let Some(qp) = &mut *member.qp() {
                id.modify_qp(qp, QueuePairState::ReadyToReceive)?;
                id.modify_qp(qp, QueuePairState::ReadyToSend)?;
            }
            id.establish()?;
            Step::Connect
        }
        EventType::Disconnected => Step::Disconnect,
        _ => return event.error().map_or(Ok(()), |error| Err(Failure::work(error))),
    };
    member.times.end(step);
    run.done(step);
    Ok(())
}

/// The connections that are there, by the numbers of their queue pairs.
type Guests = Mutex<HashMap<u32, (BasicQueuePair, Identifier)>>;

/// Answers whoever wants to connect, until it is killed.
///
/// # Errors
///
/// No events come any more.
pub fn serve(shared: &Shared) -> Result<(), Failure> {
    let guests = Guests::default();
    let (requests, to_accept) = channel();
    let (goodbyes, to_end) = channel();
    thread::scope(|scope| {
        scope.spawn(|| accept_all(shared, &guests, to_accept));
        scope.spawn(|| end_all(&guests, to_end));
        loop {
            let event = match shared.channel.get_cm_event() {
                Ok(event) => event,
                Err(error) => return Err(Failure::work(error)),
            };
            // Both threads live as long as this loop.
            let _ = match event.event_type() {
                EventType::ConnectRequest => requests.send(event.into_cm_id()),
                EventType::Disconnected => goodbyes.send(event.into_cm_id()),
                _ => {
                    if let Some(error) = event.error() {
                        note(error);
                    }
                    Ok(())
                }
            };
        }
    })
}

fn accept_all(shared: &Shared, guests: &Guests, requests: Receiver<Identifier>) {
    let accept = |id: &Identifier| -> Result<(), Failure> {
        let mut qp = create_qp(shared, id)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToReceive)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToSend)?;
        let number = qp.qp_number();
        let mut parameter = ConnectionParameter::new();
        parameter.setup_queue_pair(qp.control());
        id.setup_user_data(number.into());
        // Before the answer, after which the client may hang up.
        guests.lock().unwrap_or_else(PoisonError::into_inner).insert(number, (qp, id.clone()));
        Ok(id.accept(&parameter)?)
    };
    for id in requests {
        if let Err(Failure::Setup(reason) | Failure::Work(reason)) = accept(&id) {
            note(format_args!("failing connection request: {reason}"));
        }
    }
}

fn end_all(guests: &Guests, goodbyes: Receiver<Identifier>) {
    for id in goodbyes {
        // The client may have gone before it is answered.
        let _ = id.disconnect();
        let number = id.user_data() as u32;
        let gone = guests.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        drop(gone);
    }
}
