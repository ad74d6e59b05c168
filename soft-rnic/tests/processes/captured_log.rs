//! A logger that keeps the messages of a role.

use std::sync::Mutex;

/// A logger that keeps the messages.
struct CapturedLog(Mutex<Vec<String>>);

impl log::Log for CapturedLog {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().expect("nobody panics here").push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

static LOG: CapturedLog = CapturedLog(Mutex::new(Vec::new()));

pub(crate) fn keep_log() {
    log::set_logger(&LOG).expect("nobody else logs");
    log::set_max_level(log::LevelFilter::Warn);
}

/// Takes the messages logged since the last call.
pub(crate) fn logged() -> Vec<String> {
    std::mem::take(&mut *LOG.0.lock().expect("nobody panics there"))
}
