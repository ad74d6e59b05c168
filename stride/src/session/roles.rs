//! Who connects to whom, where both sides agree over TCP.

use super::steps;
use crate::control::{Link, Listener, connect};
use crate::error::Error;
use crate::plan::{Plan, Role};
use crate::report::Output;

/// Plays the part that the plan says; in one process both, over a connection with itself.
pub(super) fn play(
    plan: &Plan,
    output: &mut Output,
    server: impl FnOnce(&mut Link, &mut Output) -> Result<(), Error> + Send,
    client: impl FnOnce(&mut Link, &mut Output) -> Result<(), Error>,
) -> Result<(), Error> {
    match &plan.role {
        Role::Server => {
            let listener = Listener::bind(plan.local.tcp_port)?;
            output.note(format_args!("waiting for a client on TCP port {}", listener.port()));
            let link = listener.accept()?;
            output.note(format_args!("serving {}", link.peer()));
            steps::over(link, output, server)
        }
        Role::Client(host) => steps::over(connect(host, plan.local.tcp_port)?, output, client),
        Role::Loopback => {
            let listener = Listener::bind_local()?;
            let here = connect("127.0.0.1", listener.port())?;
            let there = listener.accept()?;
            steps::both(
                |output| steps::over(there, output, server),
                |output| steps::over(here, output, client),
                output,
            )
        }
    }
}
