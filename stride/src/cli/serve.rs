//! A server that stays.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::{
    CallsArg, MemoryArgs, OperationArgs, OutputArgs, PROVIDERS, PingArgs, Size, SuiteArgs, TestArgs,
};

/// What the program is asked to do.
#[derive(Clone, Debug)]
pub enum StrideCommand {
    /// To play a part in one test.
    Test(Box<TestArgs>),
    /// To serve clients until it is told to end.
    Serve(Box<ServeArgs>, Box<OutputArgs>),
    /// To see whether a server is there.
    Ping(Box<PingArgs>, Box<OutputArgs>),
    /// To run several tests.
    Suite(Box<SuiteArgs>, Box<OutputArgs>),
}

/// Measures bandwidth and latency of RDMA, as perftest defines them.
///
/// Without a server address this is the server: it waits for one client, whose parameters count. `serve` stays, and
/// knows nothing of the tests in advance.
#[derive(Clone, Debug, Parser)]
#[command(name = "stride-perf", version, disable_help_subcommand = true)]
pub(super) struct CommandLine {
    #[command(subcommand)]
    what: Subcommands,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of them, for a moment")]
enum Subcommands {
    #[command(flatten)]
    Test(Box<OperationArgs>),
    /// Serve clients, one after the other, until interrupted; each says what is measured, msg excepted.
    #[command(after_help = PROVIDERS)]
    Serve(ServeArgs),
    /// Reach a server over the chosen device once a second, and say how far away it is.
    #[command(after_help = PROVIDERS)]
    Ping(PingArgs),
    /// Run the tests of a file, or of a suite that comes with the program, one after the other.
    #[command(after_help = PROVIDERS)]
    Suite(SuiteArgs),
}

/// The flags of a server that stays: what it uses, and how much of it.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// RDMA device [default: the first one with an active port]
    #[arg(short, long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device [default: the first active one]
    #[arg(short, long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: Option<u8>,

    /// Index in the port's GID table [default: the best one, and stderr says why]
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<u32>,

    /// TCP port of the control connections; 0 makes the system choose
    #[arg(short, long, value_name = "PORT", default_value_t = crate::plan::DEFAULT_PORT)]
    pub port: u16,

    /// The memory.
    #[command(flatten)]
    pub memory: MemoryArgs,

    /// Calls that post and poll [default: perftest's choice for the device]
    #[arg(long, value_name = "KIND")]
    pub calls: Option<CallsArg>,

    /// Clients that are served at the same time; others wait, and are told so
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: u32,

    /// Bytes that the messages and queues of one client may take here
    #[arg(long, value_name = "BYTES", default_value = "1024M")]
    pub max_memory: Size,

    /// This file has a secret that both sides share: who does not know it is not served [default: that of
    /// STRIDE_SECRET, if it is set]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

impl From<CommandLine> for StrideCommand {
    fn from(CommandLine { what, output }: CommandLine) -> Self {
        match what {
            Subcommands::Test(operation) => Self::Test(Box::new(TestArgs { operation: *operation, output })),
            Subcommands::Ping(args) => Self::Ping(Box::new(args), Box::new(output)),
            Subcommands::Suite(args) => Self::Suite(Box::new(args), Box::new(output)),
            Subcommands::Serve(args) => Self::Serve(Box::new(args), Box::new(output)),
        }
    }
}
