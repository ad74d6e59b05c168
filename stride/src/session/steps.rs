//! Steps that every test has in common, whatever its transport.

use super::RELEASE;
use crate::control::{ControlError, ControlLink, ControlMessage, FrameTransport, Greeting, Secret};
use crate::error::Error;
use crate::plan::{Difference, TestPlan, differences};
use crate::report::{Measured, Output};

/// Runs a side, and tells the peer if it fails.
pub(super) fn over<W: FrameTransport>(
    mut link: ControlLink<W>,
    output: &mut Output,
    part: impl FnOnce(&mut ControlLink<W>, &mut Output) -> Result<(), Error>,
) -> Result<(), Error> {
    part(&mut link, output).inspect_err(|error| {
        if !error.is_known_to_peer() {
            link.fail(&error.one_line());
        }
    })
}

/// Runs both sides in this process. Only the client prints.
pub(super) fn both(
    server: impl FnOnce(&mut Output) -> Result<(), Error> + Send,
    client: impl FnOnce(&mut Output) -> Result<(), Error>,
    output: &mut Output,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let server = scope.spawn(|| server(&mut Output::silent()));
        let client = client(output);
        let server = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match client {
            // The client only learned of this error; the server's account is better.
            Err(error) if error.is_known_to_peer() => server.and(Err(error)),
            Err(error) => Err(error),
            Ok(()) => server,
        }
    })
}

/// A side's first message.
pub(super) fn greeting(test: &TestPlan) -> Greeting {
    Greeting { release: RELEASE.to_owned(), test: test.clone() }
}

/// Sends the client's request and receives the server's answer.
pub(super) fn request<W: FrameTransport>(
    link: &mut ControlLink<W>,
    test: &TestPlan,
    secret: Option<&Secret>,
    output: &mut Output,
) -> Result<(), Error> {
    if let Some(secret) = secret {
        link.prove(secret)?;
    }
    link.send(&ControlMessage::Request(greeting(test)))?;
    link.await_turn(|| output.note("the server has others to serve first: waiting"))?;
    let theirs = match link.receive()? {
        ControlMessage::Accept(greeting) => greeting,
        other => return Err(link.unexpected(&other, "accept").into()),
    };
    note_release(link.peer(), &theirs, output);
    note_differences(test, &theirs.test, output);
    Ok(())
}

/// Receives a client's valid request, which the server has not answered yet.
pub(super) fn asked<W: FrameTransport>(
    link: &mut ControlLink<W>,
    secret: Option<&Secret>,
) -> Result<Greeting, Error> {
    match link.asked(secret)? {
        ControlMessage::Request(greeting) => {
            greeting.test.validate()?;
            Ok(greeting)
        }
        other => Err(link.unexpected(&other, "request").into()),
    }
}

/// The test that a client requests.
pub(super) fn requested<W: FrameTransport>(
    link: &ControlLink<W>,
    theirs: Greeting,
    output: &mut Output,
) -> TestPlan {
    note_release(link.peer(), &theirs, output);
    theirs.test
}

/// The same for a server with a test on its command line.
pub(super) fn agreed<W: FrameTransport>(
    link: &ControlLink<W>,
    theirs: Greeting,
    ours: &TestPlan,
    output: &mut Output,
) -> TestPlan {
    let test = requested(link, theirs, output);
    note_differences(&test, ours, output);
    test
}

/// Warns if the releases differ: they speak the same protocol but may measure slightly differently.
fn note_release(peer: &str, theirs: &Greeting, output: &mut Output) {
    let release: String = theirs.release.chars().filter(char::is_ascii_graphic).take(40).collect();
    output.peer(peer, Some(&release));
    if theirs.release != RELEASE {
        output.note(format_args!("the peer is stride-perf {release}, this is {RELEASE}"));
    }
}

/// Prints all differing parameters as a table. The client's are used, so the server's command line
/// should be adapted.
fn note_differences(client: &TestPlan, server: &TestPlan, output: &mut Output) {
    let found = differences(client, server);
    if found.is_empty() {
        return;
    }
    let rows = found.iter().map(|Difference { name, client, server }| [*name, client, server]);
    let rows: Vec<_> = std::iter::once(["parameter", "client", "server"]).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, clients) = (width(0), width(1));
    let table =
        rows.iter().map(|[name, client, server]| format!("\n  {name:names$}  {client:clients$}  {server}"));
    output.note(format_args!(
        "the two sides' parameters differ, and the client's count; give the server the client's, or run \
         `stride-perf serve` there:{}",
        table.collect::<String>()
    ));
}

/// Waits until both sides are about to measure messages of this size.
pub(super) fn begin<W: FrameTransport>(link: &mut ControlLink<W>, size: u64) -> Result<(), ControlError> {
    let mine = ControlMessage::Begin { size };
    match link.exchange(&mine)? {
        theirs if theirs == mine => Ok(()),
        ControlMessage::Begin { size } => {
            Err(link.malformed(format!("the peer is at messages of {size} bytes")))
        }
        other => Err(link.unexpected(&other, mine.name())),
    }
}

pub(super) fn receive_row<W: FrameTransport>(link: &mut ControlLink<W>) -> Result<Measured, ControlError> {
    match link.receive_result()? {
        ControlMessage::Row(measured) => Ok(measured),
        other => Err(link.unexpected(&other, "row")),
    }
}

/// Waits until neither side needs the other's memory any more.
pub(super) fn finish<W: FrameTransport>(link: &mut ControlLink<W>) -> Result<(), Error> {
    match link.exchange(&ControlMessage::Done)? {
        ControlMessage::Done => Ok(()),
        other => Err(link.unexpected(&other, ControlMessage::Done.name()).into()),
    }
}
