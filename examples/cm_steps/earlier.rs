//! Both sides as before rdma-core 52: they do not synchronise, and a server runs until it is
//! killed.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use sideway::ibverbs::queue_pair::{BasicQueuePair, QueuePair, QueuePairState};
use sideway::rdmacm::{ConnectionParameter, Event, EventType, Identifier};

use super::client::{bind, create_ids, destroy_ids, is_resolved, resolve_addr, resolve_route, route};
use super::run::{Route, RunHandlers, StepRun};
use super::steps::{self, CmStep};
use super::{RunContext, StepOptions};
use crate::program::{Failure, note, say};

/// Opens and closes connections, and prints the time of each step.
///
/// # Errors
///
/// A step fails.
pub fn run_client(context: &RunContext, options: StepOptions, route: Route) -> Result<(), Failure> {
    let handlers = RunHandlers { route: Some(route), work: |_, _| Ok(()), event: handle };
    let run = StepRun::new(options, handlers, context);
    go_through(&run)?;
    let each: Vec<_> = run.connections.iter().map(|connection| &connection.times).collect();
    say(steps::earlier_table(&run.times, &each))
}

fn go_through(run: &StepRun<'_>) -> Result<(), Failure> {
    say("creating id")?;
    create_ids(run)?;
    if let Some(source) = route(run)?.source {
        say("binding source address")?;
        bind(run, source)?;
    }
    say("resolving address")?;
    run.times.start(CmStep::ResolveAddr);
    for connection in &run.connections {
        connection.with_id(|id| resolve_addr(run, connection, id))?;
    }
    run.handle_events_until(CmStep::ResolveAddr)?;
    run.times.end(CmStep::ResolveAddr);
    say("resolving route")?;
    run.times.start(CmStep::ResolveRoute);
    for connection in &run.connections {
        connection.with_id(|id| resolve_route(run, connection, id))?;
    }
    run.handle_events_until(CmStep::ResolveRoute)?;
    run.times.end(CmStep::ResolveRoute);
    // The C program allocates its protection domain when the addresses are resolved.
    if let Some(first) = run.connections.first() {
        first.with_id(|id| run.context.verbs(id).map(drop))?;
    }
    say("creating qp")?;
    run.times.start(CmStep::CreateQp);
    for connection in &run.connections {
        let qp =
            connection.with_id(|id| connection.timed(CmStep::CreateQp, || create_qp(run.context, id)))?;
        *connection.qp() = Some(qp);
    }
    run.times.end(CmStep::CreateQp);
    say("connecting")?;
    run.times.start(CmStep::Connect);
    for connection in &run.connections {
        let parameter = run.parameter(connection, u8::try_from(run.options.retries).unwrap_or(7).min(7));
        connection.times.start(CmStep::Connect);
        connection.with_id(|id| id.connect(&parameter).map_err(Failure::work))?;
    }
    run.handle_events_until(CmStep::Connect)?;
    run.times.end(CmStep::Connect);
    say("disconnecting")?;
    run.times.start(CmStep::Disconnect);
    for connection in &run.connections {
        connection.times.start(CmStep::Disconnect);
        connection.with_id(|id| id.disconnect().map_err(Failure::work))?;
        drop(connection.qp().take());
    }
    run.handle_events_until(CmStep::Disconnect)?;
    run.times.end(CmStep::Disconnect);
    say("destroying id")?;
    destroy_ids(run);
    Ok(())
}

/// A queue pair that can receive, as `rdma_create_qp` creates it.
fn create_qp(context: &RunContext, id: &Identifier) -> Result<BasicQueuePair, Failure> {
    let mut qp = context.create_qp(id)?;
    id.modify_qp(&mut qp, QueuePairState::Init)?;
    Ok(qp)
}

fn handle(run: &StepRun<'_>, event: &Event) -> Result<(), Failure> {
    let id = event.cm_id();
    let number = id.user_data() as usize;
    if is_resolved(run, event, number)? {
        return Ok(());
    }
    let Some(connection) = run.connections.get(number) else { return Ok(()) };
    let step = match event.event_type() {
        EventType::ConnectResponse => {
            if let Some(qp) = &mut *connection.qp() {
                id.modify_qp(qp, QueuePairState::ReadyToReceive)?;
                id.modify_qp(qp, QueuePairState::ReadyToSend)?;
            }
            id.establish()?;
            CmStep::Connect
        }
        EventType::Disconnected => CmStep::Disconnect,
        _ => return event.error().map_or(Ok(()), |error| Err(Failure::work(error))),
    };
    connection.times.end(step);
    run.done(step);
    Ok(())
}

/// The established connections, by the numbers of their queue pairs.
type ConnectedClients = Mutex<HashMap<u32, (BasicQueuePair, Identifier)>>;

/// Accepts every client until the program is killed.
///
/// # Errors
///
/// Reading an event fails.
pub fn serve(context: &RunContext) -> Result<(), Failure> {
    let clients = ConnectedClients::default();
    let (requests, to_accept) = channel();
    let (goodbyes, to_end) = channel();
    thread::scope(|scope| {
        scope.spawn(|| accept_all(context, &clients, to_accept));
        scope.spawn(|| end_all(&clients, to_end));
        loop {
            let event = match context.channel.get_cm_event() {
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

fn accept_all(context: &RunContext, clients: &ConnectedClients, requests: Receiver<Identifier>) {
    let accept = |id: &Identifier| -> Result<(), Failure> {
        let mut qp = create_qp(context, id)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToReceive)?;
        id.modify_qp(&mut qp, QueuePairState::ReadyToSend)?;
        let number = qp.qp_number();
        let mut parameter = ConnectionParameter::new();
        parameter.setup_queue_pair(qp.control());
        id.setup_user_data(number.into());
        // Before the accept, because the client may disconnect right after it.
        clients.lock().unwrap_or_else(PoisonError::into_inner).insert(number, (qp, id.clone()));
        Ok(id.accept(&parameter)?)
    };
    for id in requests {
        if let Err(Failure::Setup(reason) | Failure::Work(reason)) = accept(&id) {
            note(format_args!("failing connection request: {reason}"));
        }
    }
}

fn end_all(clients: &ConnectedClients, goodbyes: Receiver<Identifier>) {
    for id in goodbyes {
        // The client may have exited before it gets the answer.
        let _ = id.disconnect();
        let number = id.user_data() as u32;
        let gone = clients.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        drop(gone);
    }
}
