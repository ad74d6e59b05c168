//! Peers that connect to a server and send no valid request: they are logged and forgotten.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::control::{ControlLink, FrameTransport};
use crate::error::Error;
use crate::report::Output;

/// The most lines in each [`PERIOD`], so that strangers do not fill the disk with a log.
const MOST_LINES: u32 = 100;

const PERIOD: Duration = Duration::from_secs(10);

/// The log of a server's strangers. No record of a run keeps its lines.
#[derive(Debug)]
pub(super) struct StrangerLog {
    output: Output,
    /// What the server does next, for the end of each line.
    then: &'static str,
    /// When the current period began, and its lines.
    lines: Mutex<(Instant, u32)>,
}

impl StrangerLog {
    pub(super) fn new(output: &Output, then: &'static str) -> Self {
        Self { output: output.clone(), then, lines: Mutex::new((Instant::now(), 0)) }
    }

    /// Logs a peer that is not served, and tells it the reason.
    pub(super) fn send_away<W: FrameTransport>(&self, link: &mut ControlLink<W>, error: &Error) {
        if !error.is_known_to_peer() {
            link.fail(&error.one_line());
        }
        if error.interrupted().is_none() {
            let (peer, words) = (link.peer(), error.one_line());
            // Errors of the connection name the peer already.
            let named = if words.contains(peer) { String::new() } else { format!("{peer}: ") };
            self.log(format_args!("{named}{words}{}", self.then));
        }
    }

    /// Logs a line, unless there were too many.
    pub(super) fn log(&self, line: impl fmt::Display) {
        // The two numbers change together, before anything can panic.
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.0.elapsed() >= PERIOD {
            *lines = (Instant::now(), 0);
        }
        lines.1 = lines.1.saturating_add(1);
        match lines.1 {
            ..MOST_LINES => self.output.log(line),
            MOST_LINES => self.output.log(format_args!(
                "{line}; further connections without a request are not logged for {} s",
                PERIOD.as_secs()
            )),
            _ => {}
        }
    }
}
