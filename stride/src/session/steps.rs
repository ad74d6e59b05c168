//! What both sides do in every test, whatever carries it.

use super::RELEASE;
use crate::control::{ControlError, Greeting, Link, Message, Wire};
use crate::error::Error;
use crate::plan::{TestPlan, differences};
use crate::report::{Output, Row};

/// Plays a part, and tells the peer if that fails.
pub(super) fn over<W: Wire>(
    mut link: Link<W>,
    output: &mut Output,
    part: impl FnOnce(&mut Link<W>, &mut Output) -> Result<(), Error>,
) -> Result<(), Error> {
    part(&mut link, output).inspect_err(|error| {
        if !error.is_known_to_peer() {
            link.fail(&error.one_line());
        }
    })
}

/// Both sides in this process. Only the client's prints.
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
            // What the client only heard of is said best by the server itself.
            Err(error) if error.is_known_to_peer() => server.and(Err(error)),
            Err(error) => Err(error),
            Ok(()) => server,
        }
    })
}

/// What a side says first.
pub(super) fn greeting(test: &TestPlan) -> Greeting {
    Greeting { release: RELEASE.to_owned(), test: test.clone() }
}

/// The client's first words, and the server's to them.
pub(super) fn request<W: Wire>(
    link: &mut Link<W>,
    test: &TestPlan,
    output: &mut Output,
) -> Result<(), Error> {
    let theirs = match link.exchange(&Message::Request(greeting(test)))? {
        Message::Accept(greeting) => greeting,
        other => return Err(link.unexpected(&other, "accept").into()),
    };
    note_release(link.peer(), &theirs, output);
    note_differences(test, &theirs.test, output);
    Ok(())
}

/// The client's first words, which the server has not answered yet: what is to be measured.
pub(super) fn requested<W: Wire>(
    link: &mut Link<W>,
    ours: &TestPlan,
    output: &mut Output,
) -> Result<TestPlan, Error> {
    let theirs = match link.receive()? {
        Message::Request(greeting) => greeting,
        other => return Err(link.unexpected(&other, "request").into()),
    };
    note_release(link.peer(), &theirs, output);
    theirs.test.validate()?;
    note_differences(&theirs.test, ours, output);
    Ok(theirs.test)
}

/// Two releases that speak the same protocol may still measure a little differently.
fn note_release(peer: &str, theirs: &Greeting, output: &mut Output) {
    let release: String = theirs.release.chars().filter(char::is_ascii_graphic).take(40).collect();
    output.peer(peer, Some(&release));
    if theirs.release != RELEASE {
        output.note(format_args!("the peer is stride-perf {release}, this is {RELEASE}"));
    }
}

fn note_differences(client: &TestPlan, server: &TestPlan, output: &mut Output) {
    let found: Vec<_> = differences(client, server).iter().map(ToString::to_string).collect();
    if !found.is_empty() {
        output
            .note(format_args!("the two sides' parameters differ; the client's count: {}", found.join(", ")));
    }
}

/// Waits until both sides are about to measure messages of this size.
pub(super) fn begin<W: Wire>(link: &mut Link<W>, size: u64) -> Result<(), ControlError> {
    let mine = Message::Begin { size };
    match link.exchange(&mine)? {
        theirs if theirs == mine => Ok(()),
        Message::Begin { size } => Err(link.malformed(format!("the peer is at messages of {size} bytes"))),
        other => Err(link.unexpected(&other, mine.name())),
    }
}

pub(super) fn receive_row<W: Wire>(link: &mut Link<W>) -> Result<Row, ControlError> {
    match link.receive_result()? {
        Message::Row(row) => Ok(row),
        other => Err(link.unexpected(&other, "row")),
    }
}

/// Waits until neither side needs the other's memory any more.
pub(super) fn finish<W: Wire>(link: &mut Link<W>) -> Result<(), Error> {
    match link.exchange(&Message::Done)? {
        Message::Done => Ok(()),
        other => Err(link.unexpected(&other, Message::Done.name()).into()),
    }
}
