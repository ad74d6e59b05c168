//! Flags of `ping`.

use std::path::PathBuf;

use clap::Args;

use super::{RunArgs, Size, heading};

/// The flags of `ping`.
#[derive(Clone, Debug, Args)]
pub struct PingArgs {
    /// Host name or address of the server, which runs `stride-perf serve`, or `ping` without an
    /// address; without it, this side is the server
    #[arg(value_name = "SERVER", value_parser = super::host::server)]
    pub server: Option<String>,

    /// Run server and client in this process, over one device
    #[arg(help_heading = heading::CONNECTION, long, conflicts_with = "server")]
    pub loopback: bool,

    /// Number of round trips [default: until interrupted]
    #[arg(help_heading = heading::LOAD, short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,

    /// Seconds between round trips
    #[arg(help_heading = heading::LOAD, long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,

    /// Message size in bytes; K, M and G are units
    #[arg(help_heading = heading::MEASUREMENT, short = 's', long, value_name = "BYTES", default_value = "64")]
    pub msg_size: Size,

    /// RDMA device [default: the first with an active port]
    #[arg(help_heading = heading::DEVICE, short, long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device [default: the first active one]
    #[arg(help_heading = heading::DEVICE, short, long, value_name = "NUMBER")]
    pub ib_port: Option<u32>,

    /// Index in the port's GID table [default: the best one; stderr gives the reason]
    #[arg(help_heading = heading::DEVICE, short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<u32>,

    /// TCP port of the control connection; 0 lets the server choose
    #[arg(help_heading = heading::CONNECTION, short, long, value_name = "PORT", default_value_t = crate::plan::DEFAULT_PORT)]
    pub port: u16,

    /// Read the shared secret from FILE; reject peers that cannot prove they know it [default:
    /// STRIDE_SECRET, if it is set]
    #[arg(help_heading = heading::CONNECTION, long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

impl PingArgs {
    /// The flags that every test has.
    pub fn run_args(&self) -> RunArgs {
        let Self { server, loopback, msg_size, device, ib_port, gid_index, port, secret_file, .. } =
            self.clone();
        RunArgs {
            server,
            loopback,
            device,
            ib_port,
            gid_index,
            port,
            secret_file,
            msg_size: Some(msg_size),
            ..RunArgs::default()
        }
    }
}
