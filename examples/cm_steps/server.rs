//! The server: accepts as many connections as the client makes, and goes through the steps with it.

use std::sync::atomic::Ordering;

use sideway::ibverbs::queue_pair::QueuePairState;
use sideway::rdmacm::{Event, EventType};

use super::client::{create_qp, destroy_ids, destroy_qps, table};
use super::run::{Job, Role, Run, Task};
use super::steps::Step;
use super::sync::Sync;
use super::{Plan, Shared};
use crate::program::{Failure, say};

/// Accepts connections: one to warm up, then all of them with queue pairs, then all without.
///
/// # Errors
///
/// A step fails.
pub fn run(shared: &Shared, plan: Plan, sync: &mut Sync, base: u32) -> Result<(), Failure> {
    let connections = plan.connections;
    say("Server warmup")?;
    let role = Role { route: None, work, event: handle };
    accept(&Run::new(Plan { connections: 1, ..plan }, role, shared), sync)?;
    say(format_args!("Accept ({connections}) QPs test"))?;
    say(accept(&Run::new(plan, role, shared), sync)?)?;
    say(format_args!("Accept ({connections}) test - no QPs"))?;
    say(accept(&Run::new(Plan { pretended: Some(base), ..plan }, role, shared), sync)?)
}

fn accept(run: &Run<'_>, sync: &mut Sync) -> Result<String, Failure> {
    run.go(|| {
        sync.agree(None)?;
        run.wait_for(Step::Connect)?;
        sync.agree(Some(Step::Connect))?;
        run.wait_for(Step::Disconnect)?;
        sync.agree(Some(Step::Disconnect))?;
        destroy_qps(run);
        destroy_ids(run);
        Ok(())
    })?;
    Ok(table(run))
}

fn work(run: &Run<'_>, Job { task, member }: Job) -> Result<(), Failure> {
    let member = &run.members[member];
    match task {
        Task::Accept => {
            create_qp(run, member)?;
            run.modify(member, QueuePairState::Init)?;
            run.modify(member, QueuePairState::ReadyToReceive)?;
            run.modify(member, QueuePairState::ReadyToSend)?;
            let parameter = run.parameter(member, 0);
            member.with_id(|id| id.accept(&parameter).map_err(Failure::work))
        }
        Task::HangUp => {
            // The client may have gone before it is answered.
            let _ = member.with_id(|id| Ok(member.timed(Step::Disconnect, || id.disconnect())))?;
            if run.hung_up.load(Ordering::Acquire) >= run.plan.connections {
                run.times.end(Step::Disconnect);
            }
            run.done(Step::Disconnect);
            Ok(())
        }
        other => Err(Failure::work(format_args!("a server has nothing to do with {other:?}"))),
    }
}

fn handle(run: &Run<'_>, event: &Event) -> Result<(), Failure> {
    match event.event_type() {
        EventType::ConnectRequest => {
            let number = run.requests.fetch_add(1, Ordering::Relaxed);
            if number == 0 {
                say("\tAccepting")?;
                run.times.start(Step::Connect);
            }
            // Who is one too many is rejected, as the event is dropped.
            let Some(member) = run.members.get(number) else { return Ok(()) };
            let id = event.cm_id().clone();
            id.setup_user_data(number as u64);
            *member.id() = Some(id);
            run.give(Job { task: Task::Accept, member: number });
        }
        EventType::Established => {
            if run.done(Step::Connect) >= run.plan.connections {
                run.times.end(Step::Connect);
            }
        }
        EventType::Disconnected => {
            if run.hung_up.fetch_add(1, Ordering::AcqRel) == 0 {
                say("\tDisconnecting")?;
                run.times.start(Step::Disconnect);
            }
            run.give(Job { task: Task::HangUp, member: event.cm_id().user_data() as usize });
        }
        _ => event.error().map_or(Ok(()), |error| Err(Failure::work(error)))?,
    }
    Ok(())
}
