//! The command line and the configuration file, which become the same [`Settings`].

use std::fs;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;
use trespass::{Builder, Policy};

use crate::address::HostPort;

/// How long open connections may end by themselves after the first signal, in seconds.
const GRACE: u64 = 30;

/// Carries TCP connections of unmodified programs over RDMA, or over TCP where there is no RDMA.
///
/// Each connection that `connect` accepts becomes one connection to the `serve` end, which connects
/// to its target.
#[derive(Parser)]
#[command(name = "trespass-tunnel", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Accepts TCP connections, and carries them to a serving end.
    Connect {
        #[command(flatten)]
        route: ConnectRoute,
        #[command(flatten)]
        options: Options,
    },
    /// Accepts connections of connecting ends, and carries them to a target by TCP.
    Serve {
        #[command(flatten)]
        route: ServeRoute,
        #[command(flatten)]
        options: Options,
    },
    /// Runs all connecting and serving ends of a configuration file.
    Run {
        /// The configuration file. Other options override it.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        options: Options,
    },
}

/// A connecting end.
#[derive(Args, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectRoute {
    /// The address for TCP clients.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: HostPort,
    /// The address of the serving end, or of a program that uses trespass itself.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) to: HostPort,
    /// Asks the serving end for one of its allowed targets, instead of its first one.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: Option<HostPort>,
}

/// A serving end.
#[derive(Args, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServeRoute {
    /// The address for connecting ends.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: HostPort,
    /// The target of connections that ask for none.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) to: HostPort,
    /// Another target that connecting ends may ask for, exactly as written here. May be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(default)]
    pub(crate) allow: Vec<HostPort>,
    /// Listens beyond loopback, although nobody is authenticated: every host that reaches the
    /// address can use the targets.
    #[arg(long)]
    #[serde(default)]
    pub(crate) insecure: bool,
}

/// Options of all commands.
#[derive(Args, Default)]
struct Options {
    /// Whether RDMA may, must or must not be used [default: auto].
    #[arg(long, value_enum)]
    transport: Option<Transport>,
    /// Serves metrics for Prometheus over HTTP at this address.
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// After SIGTERM or SIGINT, lets open connections end for this time; 0 resets them at once
    /// [default: 30].
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
    /// Threads that carry bytes [default: a quarter of the processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Auto,
    Rdma,
    Tcp,
}

/// The contents of a configuration file.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    transport: Option<Transport>,
    metrics: Option<SocketAddr>,
    grace: Option<u64>,
    threads: Option<u16>,
    #[serde(default)]
    connect: Vec<ConnectRoute>,
    #[serde(default)]
    serve: Vec<ServeRoute>,
}

/// What the program does.
pub(crate) struct Settings {
    pub(crate) connect: Vec<ConnectRoute>,
    pub(crate) serve: Vec<ServeRoute>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) grace: Duration,
    pub(crate) threads: usize,
    policy: Policy,
}

impl Settings {
    pub(crate) fn from_cli(cli: Cli) -> Result<Self, String> {
        let (file, options) = match cli.command {
            Command::Connect { route, options } => {
                (ConfigFile { connect: vec![route], ..ConfigFile::default() }, options)
            }
            Command::Serve { route, options } => {
                (ConfigFile { serve: vec![route], ..ConfigFile::default() }, options)
            }
            Command::Run { config, options } => (ConfigFile::open(&config)?, options),
        };
        let transport = options.transport.or(file.transport).unwrap_or(Transport::Auto);
        Ok(Self {
            connect: file.connect,
            serve: file.serve,
            metrics: options.metrics.or(file.metrics),
            grace: Duration::from_secs(options.grace.or(file.grace).unwrap_or(GRACE)),
            threads: options.threads.or(file.threads).map_or_else(default_threads, usize::from),
            policy: match transport {
                Transport::Auto => Policy::Auto,
                Transport::Rdma => Policy::RequireRdma,
                Transport::Tcp => Policy::TcpOnly,
            },
        })
    }

    /// Parameters of trespass for one end.
    pub(crate) fn builder(&self) -> Builder {
        Builder::new().policy(self.policy)
    }
}

/// The host's other processors are for the programs whose bytes are carried. More threads than needed
/// wake each other.
fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).div_ceil(4)
}

impl ConfigFile {
    fn open(path: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        // The error shows the line.
        let file: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.threads == Some(0) {
            return Err("`threads` is 0: it must be at least 1".into());
        }
        if file.connect.is_empty() && file.serve.is_empty() {
            return Err("it has neither [[connect]] nor [[serve]]: add an end".into());
        }
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_several_ends() {
        let text = "
            transport = 'tcp'
            metrics = '127.0.0.1:9100'
            grace = 5
            threads = 2
            [[connect]]
            listen = '127.0.0.1:1'
            to = 'server:7000'
            [[connect]]
            listen = '127.0.0.1:2'
            to = 'server:7000'
            target = 'db:5432'
            [[serve]]
            listen = '0.0.0.0:7000'
            to = '127.0.0.1:3'
            allow = ['db:5432']
            insecure = true
        ";
        let file = ConfigFile::parse(text).expect("a valid file");
        assert_eq!((file.connect.len(), file.serve.len()), (2, 1));
        assert_eq!(file.connect[1].target.as_ref().map(HostPort::as_str), Some("db:5432"));
        assert_eq!((file.serve[0].allow[0].as_str(), file.serve[0].insecure), ("db:5432", true));
        assert_eq!((file.transport, file.grace, file.threads), (Some(Transport::Tcp), Some(5), Some(2)));
    }

    #[test]
    fn mistakes_are_errors_with_their_line() {
        for (text, words) in [
            ("grace = 1\nmetricks = '127.0.0.1:1'", "metricks"),
            ("grace = 1\nmetrics = 'here'", "line 2"),
            ("grace = 1\n[[serve]]\nlisten = 'a:1'\nto = 'b:2'\nallowed = []", "line 5"),
            ("[[connect]]\nlisten = '7000'\nto = 'b:2'", "HOST:PORT"),
            ("[[connect]]\nlisten = 'a:1'", "missing field `to`"),
            ("transport = 'udp'", "udp"),
            ("grace = 1", "add an end"),
            ("threads = 0\n[[connect]]\nlisten = 'a:1'\nto = 'b:2'", "at least 1"),
        ] {
            let error = ConfigFile::parse(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
