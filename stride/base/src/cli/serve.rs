//! The program's subcommands, and the flags of `serve`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::{
    AFTER_PING, AFTER_SERVE, AFTER_SUITE, CallsArg, MemoryArgs, OperationArgs, OutputArgs, PingArgs, Size,
    SuiteArgs, TestArgs, heading,
};

/// The parsed command line.
#[derive(Clone, Debug)]
pub enum StrideCommand {
    /// Run one side of a test.
    Test(Box<TestArgs>),
    /// Serve clients until a signal.
    Serve(Box<ServeArgs>, Box<OutputArgs>),
    /// Ping a server.
    Ping(Box<PingArgs>, Box<OutputArgs>),
    /// Run several tests.
    Suite(Box<SuiteArgs>, Box<OutputArgs>),
}

/// Measure bandwidth and latency of RDMA by perftest's definitions
///
/// Without a server address a test waits for one client, whose parameters are used. `serve` waits
/// for many clients, which say what to measure.
#[derive(Clone, Debug, Parser)]
#[command(name = "stride-perf", version, disable_help_subcommand = true, max_term_width = 100)]
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
    /// Serve clients until interrupted; each client says what to measure (any test but msg)
    #[command(after_help = AFTER_SERVE)]
    Serve(ServeArgs),
    /// Ping a server over the chosen device once a second, and print the round-trip time
    #[command(after_help = AFTER_PING)]
    Ping(PingArgs),
    /// Run the tests of a file or of a built-in suite, one after the other
    #[command(after_help = AFTER_SUITE)]
    Suite(SuiteArgs),
}

/// The flags of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// RDMA device [default: the first with an active port]
    #[arg(help_heading = heading::DEVICE, short, long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device [default: the first active one]
    #[arg(help_heading = heading::DEVICE, short, long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    pub ib_port: Option<u8>,

    /// Index in the port's GID table [default: the best one; stderr gives the reason]
    #[arg(help_heading = heading::DEVICE, short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<u32>,

    /// TCP port of the control connections; 0 lets the system choose
    #[arg(help_heading = heading::CONNECTION, short, long, value_name = "PORT", default_value_t = crate::plan::DEFAULT_PORT)]
    pub port: u16,

    /// Flags that choose the memory of messages.
    #[command(flatten)]
    pub memory: MemoryArgs,

    /// Calls that post and poll [default: perftest's choice for the device]
    #[arg(help_heading = heading::DEVICE, long, value_name = "KIND")]
    pub calls: Option<CallsArg>,

    /// Clients served at the same time; others wait and are told about it
    #[arg(help_heading = heading::LOAD, short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: u32,

    /// Bytes that the messages and queues of one client may use
    #[arg(help_heading = heading::LOAD, long, value_name = "BYTES", default_value = "1024M")]
    pub max_memory: Size,

    /// Read the shared secret from FILE; reject clients that cannot prove they know it [default:
    /// STRIDE_SECRET, if it is set]
    #[arg(help_heading = heading::CONNECTION, long, value_name = "FILE")]
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
