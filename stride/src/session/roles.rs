//! The roles of the two sides when they connect over TCP.

use super::{reception, steps};
use crate::control::{ControlLink, ControlListener, Greeting, Secret, connect};
use crate::error::Error;
use crate::plan::{RunPlan, SideRole};
use crate::report::Output;

/// Runs the side that the plan names; with --loopback both, connected to each other. The server
/// begins with the client's request.
pub(super) fn play(
    plan: &RunPlan,
    secret: Option<&Secret>,
    output: &mut Output,
    server: impl FnOnce(&mut ControlLink, Greeting, &mut Output) -> Result<(), Error> + Send,
    client: impl FnOnce(&mut ControlLink, &mut Output) -> Result<(), Error>,
) -> Result<(), Error> {
    match &plan.role {
        SideRole::Server => {
            let listener = ControlListener::bind(plan.local.tcp_port)?;
            output.note(format_args!("waiting for a client on TCP port {}", listener.port()));
            let (link, greeting) = reception::first_request(listener, secret, output)?;
            output.note(format_args!("serving {}", link.peer()));
            steps::over(link, output, |link, output| server(link, greeting, output))
        }
        SideRole::Client(host) => steps::over(connect(host, plan.local.tcp_port)?, output, client),
        SideRole::Loopback => {
            let listener = ControlListener::bind_local()?;
            let here = connect("127.0.0.1", listener.port())?;
            let there = listener.accept()?;
            steps::both(
                |output| {
                    steps::over(there, output, |link, output| {
                        let greeting = steps::asked(link, secret)?;
                        server(link, greeting, output)
                    })
                },
                |output| steps::over(here, output, client),
                output,
            )
        }
    }
}
