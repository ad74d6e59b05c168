//! The log on standard error.

use std::env;
use std::io;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

/// The variable that sets the level of all lines. trespass checks its value.
const LEVEL: &str = "TRESPASS_LOG";

/// Writes lines of the chosen level: by default one for each connection, and trespass's warnings.
pub(crate) fn start() {
    let chosen = env::var(LEVEL).ok().and_then(|level| LevelFilter::from_str(&level).ok());
    let targets = Targets::new()
        .with_target("trespass", chosen.unwrap_or(LevelFilter::WARN))
        .with_target(env!("CARGO_CRATE_NAME"), chosen.unwrap_or(LevelFilter::INFO));
    registry()
        .with(fmt::layer().with_target(false).with_ansi(false).with_writer(io::stderr))
        .with(targets)
        .init();
}
