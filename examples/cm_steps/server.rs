//! The server: accepts as many connections as the client opens, and performs the steps with it.

use std::sync::atomic::Ordering;

use sideway::ibverbs::queue_pair::QueuePairState;
use sideway::rdmacm::{Event, EventType};

use super::client::{create_qp, destroy_ids, destroy_qps, table};
use super::run::{RunHandlers, StepJob, StepRun, StepTask};
use super::steps::CmStep;
use super::sync::Sync;
use super::{RunContext, StepOptions};
use crate::program::{Failure, say};

/// Accepts connections: one to warm up, then all with queue pairs, then all without.
///
/// # Errors
///
/// A step fails.
pub fn run(context: &RunContext, options: StepOptions, sync: &mut Sync, base: u32) -> Result<(), Failure> {
    let connections = options.connections;
    say("Server warmup")?;
    let handlers = RunHandlers { route: None, work, event: handle };
    accept(&StepRun::new(StepOptions { connections: 1, ..options }, handlers, context), sync)?;
    say(format_args!("Accept ({connections}) QPs test"))?;
    say(accept(&StepRun::new(options, handlers, context), sync)?)?;
    say(format_args!("Accept ({connections}) test - no QPs"))?;
    say(accept(&StepRun::new(StepOptions { pretended: Some(base), ..options }, handlers, context), sync)?)
}

fn accept(run: &StepRun<'_>, sync: &mut Sync) -> Result<String, Failure> {
    run.go(|| {
        sync.agree(None)?;
        run.wait_for(CmStep::Connect)?;
        sync.agree(Some(CmStep::Connect))?;
        run.wait_for(CmStep::Disconnect)?;
        sync.agree(Some(CmStep::Disconnect))?;
        destroy_qps(run);
        destroy_ids(run);
        Ok(())
    })?;
    Ok(table(run))
}

fn work(run: &StepRun<'_>, StepJob { task, connection }: StepJob) -> Result<(), Failure> {
    let connection = &run.connections[connection];
    match task {
        StepTask::Accept => {
            create_qp(run, connection)?;
            run.modify(connection, QueuePairState::Init)?;
            run.modify(connection, QueuePairState::ReadyToReceive)?;
            run.modify(connection, QueuePairState::ReadyToSend)?;
            let parameter = run.parameter(connection, 0);
            connection.with_id(|id| id.accept(&parameter).map_err(Failure::work))
        }
        StepTask::HangUp => {
            // The client may have exited before it gets the answer.
            let _ = connection.with_id(|id| Ok(connection.timed(CmStep::Disconnect, || id.disconnect())))?;
            if run.hung_up.load(Ordering::Acquire) >= run.options.connections {
                run.times.end(CmStep::Disconnect);
            }
            run.done(CmStep::Disconnect);
            Ok(())
        }
        other => Err(Failure::work(format_args!("a server has no job {other:?}"))),
    }
}

fn handle(run: &StepRun<'_>, event: &Event) -> Result<(), Failure> {
    match event.event_type() {
        EventType::ConnectRequest => {
            let number = run.requests.fetch_add(1, Ordering::Relaxed);
            if number == 0 {
                say("\tAccepting")?;
                run.times.start(CmStep::Connect);
            }
            // Dropping the event rejects a request beyond the expected number.
            let Some(connection) = run.connections.get(number) else { return Ok(()) };
            let id = event.cm_id().clone();
            id.setup_user_data(number as u64);
            *connection.id() = Some(id);
            run.push(StepJob { task: StepTask::Accept, connection: number });
        }
        EventType::Established => {
            if run.done(CmStep::Connect) >= run.options.connections {
                run.times.end(CmStep::Connect);
            }
        }
        EventType::Disconnected => {
            if run.hung_up.fetch_add(1, Ordering::AcqRel) == 0 {
                say("\tDisconnecting")?;
                run.times.start(CmStep::Disconnect);
            }
            run.push(StepJob { task: StepTask::HangUp, connection: event.cm_id().user_data() as usize });
        }
        _ => event.error().map_or(Ok(()), |error| Err(Failure::work(error)))?,
    }
    Ok(())
}
