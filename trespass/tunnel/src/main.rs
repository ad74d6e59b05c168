//! `trespass-tunnel`: carries the TCP connections of unmodified programs over RDMA, or over TCP where
//! there is no RDMA.
//!
//! `connect` accepts TCP clients ([`connect`]), `serve` connects to targets ([`serve`]), and between
//! them each connection is one trespass stream ([`relay`]).

mod address;
mod buffers;
mod connect;
mod introduction;
mod logging;
mod metrics;
mod relay;
mod serve;
mod session;
mod settings;
mod tasks;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime;
use trespass::ConfigError;

use connect::ConnectEnd;
use metrics::Metrics;
use serve::{OpenRelay, ServeEnd};
use settings::{Cli, Settings};
use tasks::{Signals, Tasks};

/// The exit status of a mistake in the arguments, the configuration file or the environment.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let settings = match Settings::from_cli(Cli::parse()) {
        Ok(settings) => settings,
        Err(mistake) => {
            eprintln!("trespass-tunnel: {mistake}");
            return ExitCode::from(USAGE);
        }
    };
    logging::start();
    raise_descriptor_limit();
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trespass-tunnel: {error:#}");
            let is_mistake = error.is::<OpenRelay>() || error.is::<ConfigError>();
            if is_mistake { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// Each connection over RDMA has four descriptors, and the usual limit of 1,024 is for `select`.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of descriptors (ulimit -n)");
    }
}

fn run(settings: &Settings) -> anyhow::Result<()> {
    let mut runtime = runtime::Builder::new_multi_thread();
    runtime.worker_threads(settings.threads).enable_all().build()?.block_on(tunnel(settings))
}

/// Starts all ends, and runs until a signal ends them.
async fn tunnel(settings: &Settings) -> anyhow::Result<()> {
    let signals = Signals::catch()?;
    let (tasks, metrics) = (Tasks::default(), Arc::new(Metrics::new()));
    let mut connect = Vec::new();
    for route in &settings.connect {
        connect.push(ConnectEnd::bind(route, settings.builder(), &metrics).await?);
    }
    let mut serve = Vec::new();
    for route in &settings.serve {
        serve.push(ServeEnd::bind(route, settings.builder(), &metrics).await?);
    }
    if let Some(addr) = settings.metrics {
        tokio::spawn(metrics::serve(metrics::bind(addr).await?, metrics));
    }
    connect.into_iter().for_each(|end| tasks.spawn_accepting(end.run(tasks.clone())));
    serve.into_iter().for_each(|end| tasks.spawn_accepting(end.run(tasks.clone())));
    tasks.end_by_signal(signals, settings.grace).await;
    Ok(())
}
