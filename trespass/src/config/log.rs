//! A `tracing` subscriber that writes to standard error, for programs without one (`TRESPASS_LOG`).
//!
//! If the program has set a subscriber before its first configuration, the variable has no effect.

use std::fmt::{self, Debug, Write as _};
use std::io::Write;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Level, Metadata, Subscriber, dispatcher};

/// Installs the subscriber, unless the program has one.
pub(crate) fn install(level: LevelFilter) {
    if level == LevelFilter::OFF || dispatcher::has_been_set() {
        return;
    }
    // Another thread may have set a subscriber first, which then stays.
    let _ = set_global_default(StderrSubscriber { level, to: Mutex::new(std::io::stderr()) });
}

/// Writes a line for each event of this crate.
struct StderrSubscriber<W> {
    level: LevelFilter,
    to: Mutex<W>,
}

/// The id of every span, because spans are not told apart.
const SPAN: u64 = 1;

impl<W: Write + Send + 'static> Subscriber for StderrSubscriber<W> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target().split("::").next() == Some(env!("CARGO_PKG_NAME"));
        ours && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = EventText { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let text = line.finish(*event.metadata().level());
        // If standard error cannot be written, there is nowhere to report it.
        if let Ok(mut to) = self.to.lock() {
            let _ = to.write_all(text.as_bytes());
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(SPAN)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct EventText {
    message: String,
    fields: String,
}

impl EventText {
    fn finish(self, level: Level) -> String {
        let Self { message, fields } = self;
        format!("{} {}: {message}{fields}\n", env!("CARGO_PKG_NAME"), level_name(level))
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let result: fmt::Result = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        // Writing to a string fails only if the value's own `Debug` does. The text so far is kept.
        let _ = result;
    }
}

/// Returns the text that `emit` logs in this thread.
#[cfg(test)]
pub(crate) fn captured(level: LevelFilter, emit: impl FnOnce()) -> String {
    // While there is one subscriber only, `tracing` asks just the thread that reaches an event first
    // whether anyone wants it, and a thread without a subscriber would answer no for all.
    let second = StderrSubscriber { level: LevelFilter::TRACE, to: Mutex::new(std::io::sink()) };
    let _second = tracing::Dispatch::new(second);
    let page = tests::CapturedText::default();
    let lines = StderrSubscriber { level, to: Mutex::new(page.clone()) };
    tracing::subscriber::with_default(lines, emit);
    page.text()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The written text.
    #[derive(Clone, Default)]
    pub(super) struct CapturedText(Arc<Mutex<Vec<u8>>>);

    impl CapturedText {
        pub(super) fn text(&self) -> String {
            let bytes = self.0.lock().expect("nobody panics").clone();
            String::from_utf8(bytes).expect("text")
        }
    }

    impl Write for CapturedText {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("nobody panics").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_are_lines_with_their_fields() {
        let text = captured(LevelFilter::INFO, || {
            tracing::info!(device = "soft0", gid = %"::1", depth = 64, "RDMA activated");
            tracing::warn!("no {}", "device");
            let _span = tracing::info_span!("a span changes nothing").entered();
            tracing::error!(code = ?Some(7), "failed");
        });
        assert_eq!(
            text,
            "trespass info: RDMA activated device=\"soft0\" gid=::1 depth=64\n\
             trespass warning: no device\n\
             trespass error: failed code=Some(7)\n"
        );
    }

    #[test]
    fn events_below_the_level_or_of_other_crates_are_dropped() {
        let text = captured(LevelFilter::INFO, || {
            tracing::debug!("too detailed");
            tracing::info!(target: "elsewhere", "not ours");
            tracing::info!(target: "trespassing", "not ours either");
            tracing::info!(target: "trespass::stream", "ours");
        });
        assert_eq!(text, "trespass info: ours\n");
        assert_eq!(captured(LevelFilter::OFF, || tracing::error!("nothing")), "");
    }
}
