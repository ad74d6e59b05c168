//! One round trip a second.

use std::path::PathBuf;

use clap::Args;

use super::{RunArgs, Size};

/// Whom to reach, and how often.
#[derive(Clone, Debug, Args)]
pub struct PingArgs {
    /// Host name or address of the server (`stride-perf serve`, or `ping` without an address); without it, this side is the server
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,

    /// Run server and client in this process, over one device
    #[arg(long, conflicts_with = "server")]
    pub loopback: bool,

    /// So many round trips [default: until interrupted]
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,

    /// Seconds from one to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,

    /// Bytes of a message, with K or M if you like
    #[arg(short = 's', long, value_name = "BYTES", default_value = "64")]
    pub msg_size: Size,

    /// RDMA device [default: the first one with an active port]
    #[arg(short, long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device [default: the first active one]
    #[arg(short, long, value_name = "NUMBER")]
    pub ib_port: Option<u32>,

    /// Index in the port's GID table [default: the best one, and stderr says why]
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<u32>,

    /// TCP port of the control connection; 0 makes the server choose
    #[arg(short, long, value_name = "PORT", default_value_t = crate::plan::DEFAULT_PORT)]
    pub port: u16,

    /// This file has a secret that both sides share: who does not know it is not served [default: that of STRIDE_SECRET, if
    /// it is set]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

impl PingArgs {
    /// What every test has of these.
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
