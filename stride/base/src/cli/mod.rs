//! The command line, as the user wrote it.
//!
//! This module checks the syntax only; [`plan`](crate::plan) checks the values and their
//! combination.

mod count;
mod delivery;
mod expectation;
mod host;
mod memory;
mod mix;
mod ordering;
mod output;
mod path;
mod ping;
mod queues;
mod rate;
mod serve;
mod size;
mod suite;
mod usage;
mod warm_up;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::seconds::Seconds;

pub use count::{CountError, CountOrAuto};
pub use delivery::DeliveryArgs;
pub use expectation::{Expectation, ExpectationError};
pub use memory::{BufferArg, MemoryArgs};
pub use mix::{MixArg, MixError};
pub use ordering::{OrderingArg, OrderingArgs};
pub use output::{CompatArg, OutputArgs};
pub use path::PathArgs;
pub use ping::PingArgs;
pub use queues::QueueArgs;
pub use rate::{Millionths, RateArg, RateError, RateUnitsArg};
pub use serve::{ServeArgs, StrideCommand};
pub use size::{Size, SizeError};
pub use suite::SuiteArgs;
pub use usage::{Usage, command, parse, parse_lenient};
pub use warm_up::{WarmUpArg, WarmUpError};

/// The headings of the flags in the help, in their order.
mod heading {
    pub(super) const CONNECTION: &str = "Connection";
    pub(super) const MEASUREMENT: &str = "What is measured";
    pub(super) const LOAD: &str = "Load";
    pub(super) const DEVICE: &str = "Device and memory";
    pub(super) const QUEUES: &str = "Queues";
    pub(super) const PACKETS: &str = "Packets";
    pub(super) const PLACEMENT: &str = "Placement";
    pub(super) const OUTPUT: &str = "Output";
    pub(super) const PASS_OR_FAIL: &str = "Pass or fail";
}

/// The environment and the exit codes, as the end of every help text shows them.
macro_rules! environment {
    () => {
        "\
Environment:
  SIDEWAY_PROVIDER=system  Use the devices of rdma-core
  SIDEWAY_PROVIDER=soft    Use software devices: soft0 and so on
  SIDEWAY_PROVIDER=auto    Use rdma-core's devices if it lists any, else software devices [default]
  STRIDE_SECRET=SECRET     The shared secret, unless --secret-file names a file

Exit codes:
  0    All measurements are complete
  1    A result misses its --expect-bw or --expect-p99 threshold
  2    An error
  130  Interrupted
"
    };
}

/// The end of the help of a test of queue pairs.
const AFTER_TEST: &str = concat!(
    environment!(),
    "
Examples:
  stride-perf write bw -a                        Wait for one client, as the server
  stride-perf write bw -a 192.0.2.1              Measure all sizes against that server
  stride-perf send lat -s 64 -n 10000 --loopback Run both sides in one process
  stride-perf read bw -d mlx5_0 -q 8 192.0.2.1   Use 8 queue pairs on mlx5_0
  stride-perf write bw --expect-bw 90 192.0.2.1  Exit with 1 below 90 Gb/s"
);

/// The end of the help of a test of messages.
const AFTER_MESSAGES: &str = concat!(
    environment!(),
    "
Examples:
  stride-perf msg bw -a                          Wait for one client, as the server
  stride-perf msg bw -a 192.0.2.1                Measure all sizes against that server
  stride-perf msg lat --transport tcp 192.0.2.1  Measure over TCP
  stride-perf msg grid --loopback                Measure requests with 1 to 256 in flight"
);

/// The end of the help of a test of TCP.
const AFTER_TCP: &str = concat!(
    environment!(),
    "
Examples:
  stride-perf tcp bw -a              Wait for one client, as the server
  stride-perf tcp bw -a 192.0.2.1    Measure all sizes against that server"
);

/// The end of the help of `serve`.
const AFTER_SERVE: &str = concat!(
    environment!(),
    "
Examples:
  stride-perf serve                     Serve clients on the default port
  stride-perf serve -d mlx5_0 --jobs 4  Serve four clients at a time on mlx5_0"
);

/// The end of the help of `ping`.
const AFTER_PING: &str = concat!(
    environment!(),
    "
Examples:
  stride-perf ping 192.0.2.1         Ping a server once a second
  stride-perf ping -c 5 --loopback   Ping five times within this process"
);

/// The end of the help of `suite`.
const AFTER_SUITE: &str = concat!(
    environment!(),
    "
Examples:
  stride-perf suite --list              List the built-in suites
  stride-perf suite FILE.toml 192.0.2.1 Run a file's tests against a server
  stride-perf suite FILE.toml --loopback --json out.json"
);

/// The command line of one side of a test.
#[derive(Clone, Debug)]
pub struct TestArgs {
    /// The operation and its flags.
    pub operation: OperationArgs,
    /// The flags of the output.
    pub output: OutputArgs,
}

/// The operation, the first word of a test's command line.
#[derive(Clone, Debug, Subcommand)]
pub enum OperationArgs {
    /// Measure RDMA writes into the peer's memory
    Write {
        /// The measurement and its flags.
        #[command(subcommand)]
        measure: MeasureArgs<WriteArgs>,
    },
    /// Measure sends into the peer's receives
    Send {
        /// The measurement and its flags.
        #[command(subcommand)]
        measure: MeasureArgs<SendArgs>,
    },
    /// Measure RDMA reads from the peer's memory
    Read {
        /// The measurement and its flags.
        #[command(subcommand)]
        measure: MeasureArgs<ReadArgs>,
    },
    /// Measure atomic operations on 8 bytes of the peer's memory
    Atomic {
        /// The measurement and its flags.
        #[command(subcommand)]
        measure: MeasureArgs<AtomicArgs>,
    },
    /// Measure RDMA reads and writes in one test
    Mix {
        /// The measurement and its flags.
        #[command(subcommand)]
        measure: MeasureArgs<MixArgs>,
    },
    /// Measure messages of trespass, over RDMA or TCP
    #[command(name = "msg", visible_alias = "messages")]
    Messages {
        /// The measurement and its flags.
        #[command(subcommand)]
        measure: MessagesArgs,
    },
    /// Measure the operating system's TCP, as a reference for RDMA
    Tcp {
        /// The measurement and its flags.
        #[command(subcommand)]
        measure: TcpArgs,
    },
}

/// The measurements of TCP.
#[derive(Clone, Debug, Subcommand)]
pub enum TcpArgs {
    /// Measure bandwidth and message rate of one connection, until the receiver has the last
    /// message
    #[command(name = "bw", visible_alias = "bandwidth", after_help = AFTER_TCP)]
    Bandwidth(RunArgs),
    /// Measure half the round trip of a ping-pong
    #[command(name = "lat", visible_alias = "latency", after_help = AFTER_TCP)]
    Latency(RunArgs),
}

/// The measurements of messages.
#[derive(Clone, Debug, Subcommand)]
pub enum MessagesArgs {
    /// Measure bandwidth and message rate, until the receiver has the last message
    #[command(name = "bw", visible_alias = "bandwidth", after_help = AFTER_MESSAGES)]
    Bandwidth(MessageArgs),
    /// Measure half the round trip of a ping-pong
    #[command(name = "lat", visible_alias = "latency", after_help = AFTER_MESSAGES)]
    Latency(MessageArgs),
    /// Measure requests with answers: 128 bytes to 8 MiB, with 1 to 256 in flight
    ///
    /// Each request gets an answer of the same size over the same connection. A request's time
    /// starts when a place among those in flight becomes free and ends when its answer arrives, so
    /// it includes waiting for room in the connection. Bandwidth and rate count requests only. With
    /// several in flight both sides cork, so that messages sent before a wait share frames.
    /// trespass's example `echo` measures the same.
    ///
    /// -s and -t select one size and one number in flight. Without -n each size has 100000
    /// requests, and fewer if they are long.
    #[command(name = "grid", after_help = AFTER_MESSAGES)]
    Grid(GridArgs),
}

/// The flags of tests of messages.
#[derive(Clone, Debug, Args)]
pub struct MessageArgs {
    /// The flags that every test has.
    #[command(flatten)]
    pub run: RunArgs,

    /// Transport of the messages
    #[arg(help_heading = heading::MEASUREMENT, long, value_name = "KIND", default_value = "auto")]
    pub transport: TransportArg,

    /// Calls that send and receive
    #[arg(help_heading = heading::MEASUREMENT, long, value_name = "KIND", default_value = "copy")]
    pub api: ApiArg,

    /// Poll for completions like perftest, instead of sleeping after a while
    ///
    /// Sets Builder::spin to its maximum of 1 s, which restarts with each completion; trespass's
    /// default is 200 us, or 0 if the process may use one processor only. Within that limit
    /// trespass learns how long to spin, so the first wait of a side may still sleep. Each side has
    /// a separate setting: give the flag to both. Over TCP threads sleep at once.
    #[arg(help_heading = heading::LOAD, long)]
    pub poll: bool,

    /// Hold back messages that do not fill a frame until more are sent (bw only), like
    /// SeqPacket::set_cork
    ///
    /// Without it each message leaves when its call returns. The client gives it; grid always
    /// corks.
    #[arg(help_heading = heading::LOAD, long)]
    pub cork: bool,
}

/// The flags of tests of requests with answers.
#[derive(Clone, Debug, Args)]
pub struct GridArgs {
    /// The flags of tests of messages.
    #[command(flatten)]
    pub messages: MessageArgs,

    /// Answer each request after this many microseconds (server with --api mux only), as a server
    /// does that works or waits for others
    ///
    /// The times of requests in flight overlap.
    #[arg(help_heading = heading::LOAD, long, value_name = "MICROSECONDS")]
    pub delay_us: Option<u32>,
}

/// The transports of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportArg {
    /// RDMA if both sides support it, else TCP
    Auto,
    /// RDMA; fail if it does not work
    Rdma,
    /// TCP, even if RDMA would work
    Tcp,
}

/// The calls that send and receive messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApiArg {
    /// Copy from and to the program's memory
    Copy,
    /// Use blocks of trespass's pool, without a copy
    Pool,
    /// Requests of trespass::mux (grid only); give it to both sides
    Mux,
}

/// The measurement, with the flags of its kind of operation.
#[derive(Clone, Debug, Subcommand)]
pub enum MeasureArgs<A: Args> {
    /// Measure bandwidth and message rate
    #[command(name = "bw", visible_alias = "bandwidth", after_help = AFTER_TEST)]
    Bandwidth(BandwidthArgs<A>),
    /// Measure latency
    #[command(name = "lat", visible_alias = "latency", after_help = AFTER_TEST)]
    Latency(LatencyArgs<A>),
}

/// The flags of a bandwidth test.
#[derive(Clone, Debug, Args)]
pub struct BandwidthArgs<A: Args> {
    /// The flags that every test has.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The flags of the operation.
    #[command(flatten)]
    pub own: A,
}

/// The flags of a latency test.
#[derive(Clone, Debug, Args)]
pub struct LatencyArgs<A: Args> {
    /// The flags that every test has.
    #[command(flatten)]
    pub common: CommonArgs,

    /// The flags of the operation.
    #[command(flatten)]
    pub own: A,

    /// Definition of a message's latency [default: pingpong if the peer can answer, else
    /// completion]
    #[arg(help_heading = heading::MEASUREMENT, long = "latency", value_name = "DEFINITION")]
    pub definition: Option<DefinitionArg>,

    /// Clock that measures the latency (--latency completion only)
    #[arg(help_heading = heading::MEASUREMENT, long, value_name = "CLOCK", default_value = "program")]
    pub clock: ClockArg,
}

/// The flags of writes.
#[derive(Clone, Debug, Args)]
pub struct WriteArgs {
    /// Send immediate data, which consumes a receive of the peer
    #[arg(help_heading = heading::MEASUREMENT, long, alias = "write_with_imm")]
    pub imm: bool,

    /// The flags of receives and inline sends.
    #[command(flatten)]
    pub delivery: DeliveryArgs,
}

/// The flags of sends.
#[derive(Clone, Debug, Args)]
pub struct SendArgs {
    /// Send immediate data
    #[arg(help_heading = heading::MEASUREMENT, long, alias = "send_with_imm")]
    pub imm: bool,

    /// The flags of receives and inline sends.
    #[command(flatten)]
    pub delivery: DeliveryArgs,
}

/// The flags of reads.
#[derive(Clone, Debug, Args)]
pub struct ReadArgs {
    /// READs outstanding at the peer [default: as many as both devices support]
    #[arg(help_heading = heading::LOAD, short, long = "outs", value_name = "COUNT")]
    pub outstanding: Option<u8>,
}

/// The flags of a mix.
#[derive(Clone, Debug, Args)]
pub struct MixArgs {
    /// Percentages of reads and writes
    #[arg(help_heading = heading::MEASUREMENT, long = "ratio", visible_alias = "mix", value_name = "RATIO", default_value = "read=50,write=50")]
    pub ratio: MixArg,

    /// READs outstanding at the peer [default: as many as both devices support]
    #[arg(help_heading = heading::LOAD, short, long = "outs", value_name = "COUNT")]
    pub outstanding: Option<u8>,
}

/// The flags of atomic operations.
#[derive(Clone, Debug, Args)]
pub struct AtomicArgs {
    /// The atomic operation
    #[arg(help_heading = heading::MEASUREMENT, short = 'A', long, alias = "atomic_type", value_name = "TYPE", default_value = "fetch-add")]
    pub atomic_type: AtomicTypeArg,

    /// Operations outstanding at the peer [default: as many as both devices support]
    #[arg(help_heading = heading::LOAD, short, long = "outs", value_name = "COUNT")]
    pub outstanding: Option<u8>,
}

/// The atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtomicTypeArg {
    /// Add to the peer's number
    #[value(alias = "FETCH_AND_ADD")]
    FetchAdd,
    /// Replace the peer's number if it has the expected value
    #[value(alias = "CMP_AND_SWAP")]
    CompareSwap,
}

/// The definitions of latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefinitionArg {
    /// Half the round trip of a ping-pong that polls memory, like perftest
    Pingpong,
    /// The time from the post to the completion
    Completion,
}

/// The clocks that measure a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockArg {
    /// The processor's clock, read when the program sees the completion
    Program,
    /// The device's clock: the timestamp of the completion
    Device,
}

/// The transports of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConnectionArg {
    /// Reliable connection
    #[value(name = "RC")]
    Rc,
    /// Unreliable connection: writes and sends
    #[value(name = "UC")]
    Uc,
    /// Unreliable datagrams: sends of up to the MTU
    #[value(name = "UD")]
    Ud,
    /// Extended reliable connection, with one shared receive queue for all
    #[value(name = "XRC")]
    Xrc,
}

/// The calls that post and poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallsArg {
    /// ibv_post_send and ibv_poll_cq
    Classic,
    /// ibv_wr_* and ibv_start_poll, as far as the device supports them
    Extended,
}

/// The flags that every test has.
#[derive(Clone, Debug, Default, Args)]
pub struct RunArgs {
    /// Host name or address of the server; without it, this side is the server
    #[arg(value_name = "SERVER", value_parser = host::server)]
    pub server: Option<String>,

    /// Run server and client in this process, over one device
    #[arg(help_heading = heading::CONNECTION, long, conflicts_with = "server")]
    pub loopback: bool,

    /// TCP port of the control connection; 0 lets the server choose
    #[arg(help_heading = heading::CONNECTION, short, long, value_name = "PORT", default_value_t = crate::plan::DEFAULT_PORT)]
    pub port: u16,

    /// Read the shared secret from FILE; reject peers that cannot prove they know it [default:
    /// STRIDE_SECRET, if it is set]
    #[arg(help_heading = heading::CONNECTION, long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// Message size in bytes; K, M and G are units [default: 64K for bandwidth, 2 for latency;
    /// atomics always 8]
    #[arg(help_heading = heading::MEASUREMENT, short = 's', long, value_name = "BYTES")]
    pub msg_size: Option<Size>,

    /// Measure every power of two from 2 to --max-msg-size, or the sizes that --min-msg-size,
    /// --step-factor and --step-addition select
    #[arg(help_heading = heading::MEASUREMENT, short, long)]
    pub all_sizes: bool,

    /// First size of --all-sizes [default: 2]
    #[arg(help_heading = heading::MEASUREMENT, long, value_name = "BYTES")]
    pub min_msg_size: Option<Size>,

    /// Largest size of --all-sizes [default: 8M; msg --api pool: 1M]
    #[arg(help_heading = heading::MEASUREMENT, long, value_name = "BYTES")]
    pub max_msg_size: Option<Size>,

    /// Multiply each size of --all-sizes by FACTOR, rounding up, to get the next [default: 2; with
    /// --step-addition: 1]
    #[arg(help_heading = heading::MEASUREMENT, long, value_name = "FACTOR")]
    pub step_factor: Option<Millionths>,

    /// Add BYTES to each size of --all-sizes after applying --step-factor
    #[arg(help_heading = heading::MEASUREMENT, long, value_name = "BYTES")]
    pub step_addition: Option<Size>,

    /// Messages per size and queue pair [default: 5000 for bandwidth of writes and messages, else
    /// 1000]
    #[arg(help_heading = heading::LOAD, short = 'n', long, value_name = "COUNT")]
    pub iters: Option<u64>,

    /// Send for SECONDS, such as 10 or 0.5, instead of a number of messages; with queue pairs, the
    /// first and the last quarter, in whole seconds, do not count
    #[arg(help_heading = heading::LOAD, short = 'D', long, value_name = "SECONDS")]
    pub duration: Option<Seconds>,

    /// Messages in flight per queue pair; auto chooses by message size and prints the choice
    /// [default: 128 for bandwidth, 1 for latency; msg --api pool: 2 to 16, for 2 MiB]
    #[arg(help_heading = heading::LOAD, short, long, value_name = "COUNT")]
    pub tx_depth: Option<CountOrAuto>,

    /// RDMA device, or several that share the threads: NAME,NAME or NAME:PORT,NAME:PORT; msg
    /// accepts one [default: the first with an active port; msg: the one with this side's address]
    #[arg(help_heading = heading::DEVICE, short, long, value_name = "NAME")]
    pub device: Option<String>,

    /// Port of the device [default: the first active one]
    #[arg(help_heading = heading::DEVICE, short, long, value_name = "NUMBER")]
    pub ib_port: Option<u32>,

    /// Index in the port's GID table [default: the best one; stderr gives the reason]
    #[arg(help_heading = heading::DEVICE, short = 'x', long, value_name = "INDEX")]
    pub gid_index: Option<u32>,
}

/// The flags of a test of queue pairs.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// The flags that every test has.
    #[command(flatten)]
    pub run: RunArgs,

    /// The flags of the memory.
    #[command(flatten)]
    pub memory: MemoryArgs,

    /// Calls that post and poll [default: perftest's choice for the device]
    #[arg(help_heading = heading::DEVICE, long, value_name = "KIND")]
    pub calls: Option<CallsArg>,

    /// Messages per doorbell (bw only) [default: 1]
    #[arg(help_heading = heading::LOAD, short = 'l', long, value_name = "COUNT")]
    pub post_list: Option<u32>,

    /// Messages per completion (bw only) [default: 100, or 1 above 8 KiB without -a, or the post
    /// list]
    #[arg(help_heading = heading::QUEUES, short = 'Q', long, value_name = "COUNT")]
    pub cq_mod: Option<u32>,

    /// Number of queue pairs (bw only) [default: 1]
    #[arg(help_heading = heading::LOAD, short, long, value_name = "COUNT")]
    pub qp: Option<u32>,

    /// Use ports 1 and 2 of the device, like perftest
    #[arg(help_heading = heading::DEVICE, short = 'O', long)]
    pub dualport: bool,

    /// Threads that share the queue pairs, each pinned to a processor near the device; auto chooses
    /// by message size and processors and prints the choice [default: 1, not pinned]
    #[arg(help_heading = heading::PLACEMENT, long, value_name = "COUNT")]
    pub threads: Option<CountOrAuto>,

    /// Send COUNT uncounted messages before each size, or uncounted messages for COUNT seconds if
    /// it ends with s
    #[arg(help_heading = heading::LOAD, long, value_name = "COUNT")]
    pub warmup: Option<WarmUpArg>,

    /// Send as many uncounted messages before each size as may be in flight, like perftest
    #[arg(help_heading = heading::LOAD, long, alias = "perform_warm_up")]
    pub perform_warm_up: bool,

    /// Send at this rate over all queue pairs, independent of completions: messages per second, or
    /// NUMBERGb/s; latency counts from a message's scheduled time
    #[arg(help_heading = heading::LOAD, long, value_name = "RATE")]
    pub rate: Option<RateArg>,

    /// Send at this rate in --rate_units, like perftest
    #[arg(help_heading = heading::LOAD, long, alias = "rate_limit", value_name = "NUMBER")]
    pub rate_limit: Option<Millionths>,

    /// Unit of --rate_limit [default: g]
    #[arg(help_heading = heading::LOAD, long, alias = "rate_units", value_name = "UNIT")]
    pub rate_units: Option<RateUnitsArg>,

    /// Messages sent back to back at a given rate, with a proportional pause after them [default:
    /// 1]
    #[arg(help_heading = heading::LOAD, long, alias = "burst_size", value_name = "COUNT")]
    pub burst_size: Option<u32>,

    /// Measure on the server, and answer on the client
    #[arg(help_heading = heading::MEASUREMENT, long)]
    pub reversed: bool,

    /// Transport of the queue pairs
    #[arg(help_heading = heading::CONNECTION, short, long, value_name = "TYPE", default_value = "RC", ignore_case = true)]
    pub connection: ConnectionArg,

    /// Compare the received bytes with those sent after each size, outside of the measurement
    #[arg(help_heading = heading::MEASUREMENT, long, alias = "data_validation")]
    pub data_validation: bool,

    /// Measure on both sides at the same time, and report the sum (bw only)
    #[arg(help_heading = heading::MEASUREMENT, short, long)]
    pub bidirectional: bool,

    /// The flags of the path.
    #[command(flatten)]
    pub path: PathArgs,

    /// The flags of queues.
    #[command(flatten)]
    pub queues: QueueArgs,

    /// The flags of relaxed ordering.
    #[command(flatten)]
    pub ordering: OrderingArgs,
}
