//! A server and its client, which find each other by TCP on this host.

use std::time::Duration;

use crate::place::ProgramRunner;
use crate::process::{LIMIT, ProgramOutcome};

/// How long a server may run on after its client has failed.
const GRACE: Duration = Duration::from_secs(3);

/// One side: the launcher's options, the program and its flags.
#[derive(Clone, Copy)]
pub(crate) struct PairProgram<'a> {
    pub(crate) options: &'a [&'a str],
    pub(crate) program: &'a str,
    pub(crate) flags: &'a [&'a str],
}

/// Runs both until they exit successfully; returns the client's and the server's output.
pub(crate) fn play(
    place: &ProgramRunner,
    server: PairProgram<'_>,
    client: PairProgram<'_>,
) -> Result<(ProgramOutcome, ProgramOutcome), String> {
    let port = free_port()?;
    let port_flag = ["-p", &port.to_string()].map(str::to_owned);
    let port_flag = port_flag.each_ref().map(String::as_str);
    let serving = place
        .start(server.options, server.program, &[server.flags, &port_flag].concat())?
        .wait_until("listened", |_| test_harness::is_listening(port))?;
    let arguments = [client.flags, &port_flag, &["127.0.0.1"]].concat();
    let client = place.start(client.options, client.program, &arguments)?.finish_within(LIMIT);
    let limit = if client.as_ref().is_ok_and(|client| client.status.success()) { LIMIT } else { GRACE };
    match (client, serving.finish_within(limit)) {
        (Ok(client), Ok(server)) if client.status.success() && server.status.success() => {
            Ok((client, server))
        }
        (client, server) => {
            let words =
                |end: Result<ProgramOutcome, String>| end.map_or_else(|error| error, |end| end.to_string());
            Err(format!("client: {}\nserver: {}", words(client), words(server)))
        }
    }
}

/// A TCP port for a server, different for each call.
pub(crate) fn free_port() -> Result<u16, String> {
    test_harness::free_port().map_err(|error| format!("no TCP port is free: {error}"))
}
