//! The command line, as the user wrote it.
//!
//! Nothing is judged here beyond syntax; [`plan`](crate::plan) decides what the values mean together.

mod count;
mod delivery;
mod expectation;
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

/// What chooses among devices, besides the flags.
const PROVIDERS: &str = "\
Environment:
  SIDEWAY_PROVIDER=system  the devices of rdma-core
  SIDEWAY_PROVIDER=soft    software devices: soft0 and so on
  SIDEWAY_PROVIDER=auto    the former if there are any, else the latter, and stderr says so [default]
  STRIDE_SECRET=WORDS      a secret that both sides share, where --secret-file names no file with one

Exit codes: 0 all measured, 1 a figure is not as --expect-bw or --expect-p99 has it, 2 an error, 130 interrupted";

/// A side's part in one test.
#[derive(Clone, Debug)]
pub struct TestArgs {
    /// What the queue pairs do.
    pub operation: OperationArgs,
    /// What becomes of the figures.
    pub output: OutputArgs,
}

/// The operation.
#[derive(Clone, Debug, Subcommand)]
pub enum OperationArgs {
    /// RDMA write, into the peer's memory.
    Write {
        /// What is measured.
        #[command(subcommand)]
        measure: MeasureArgs<WriteArgs>,
    },
    /// Send, into the peer's receives.
    Send {
        /// What is measured.
        #[command(subcommand)]
        measure: MeasureArgs<SendArgs>,
    },
    /// RDMA read, from the peer's memory.
    Read {
        /// What is measured.
        #[command(subcommand)]
        measure: MeasureArgs<ReadArgs>,
    },
    /// Atomic operations on 8 bytes of the peer's memory.
    Atomic {
        /// What is measured.
        #[command(subcommand)]
        measure: MeasureArgs<AtomicArgs>,
    },
    /// RDMA reads and writes in one test.
    Mix {
        /// What is measured.
        #[command(subcommand)]
        measure: MeasureArgs<MixArgs>,
    },
    /// Messages of trespass, which RDMA or TCP carries.
    #[command(name = "msg", visible_alias = "messages")]
    Messages {
        /// What is measured.
        #[command(subcommand)]
        measure: MessagesArgs,
    },
    /// The system's TCP, which RDMA is compared with.
    Tcp {
        /// What is measured.
        #[command(subcommand)]
        measure: TcpArgs,
    },
}

/// What is measured of the system's TCP.
#[derive(Clone, Debug, Subcommand)]
pub enum TcpArgs {
    /// Bandwidth and message rate over one connection, until the receiving program has the last message.
    #[command(name = "bw", visible_alias = "bandwidth")]
    Bandwidth(RunArgs),
    /// Half the round trip of a ping-pong of the two programs.
    #[command(name = "lat", visible_alias = "latency")]
    Latency(RunArgs),
}

/// What is measured of messages.
#[derive(Clone, Debug, Subcommand)]
pub enum MessagesArgs {
    /// Bandwidth and message rate, until the receiving program has the last message.
    #[command(name = "bw", visible_alias = "bandwidth", after_help = PROVIDERS)]
    Bandwidth(MessageArgs),
    /// Half the round trip of a ping-pong of the two programs.
    #[command(name = "lat", visible_alias = "latency", after_help = PROVIDERS)]
    Latency(MessageArgs),
    /// Requests, each with an answer of its size: from 128 bytes to 8 MiB, with 1 to 256 in flight over one connection.
    ///
    /// A request's time begins when it may be sent, as a place among those in flight is free, and ends when its answer was received: that the
    /// connection has no room for it yet is part of it. Bandwidth and rate are of the requests: their answers come on top. With several in flight
    /// both sides cork: what is sent before one of them waits goes together. The client of trespass's example echo measures the same.
    ///
    /// -s and -t choose one size and one number in flight. Unless -n says how many, there are 100000 requests of a size, of long ones fewer.
    #[command(name = "grid", after_help = PROVIDERS)]
    Grid(MessageArgs),
}

/// The flags of a test of messages.
#[derive(Clone, Debug, Args)]
pub struct MessageArgs {
    /// The flags that every test has.
    #[command(flatten)]
    pub run: RunArgs,

    /// What carries the messages: rdma where both sides have it, else tcp, or one of them alone
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub transport: TransportArg,

    /// The calls that send and receive
    #[arg(long, value_name = "KIND", default_value = "copy")]
    pub api: ApiArg,

    /// Look for completions until they come, as perftest does, rather than sleep after a while
    ///
    /// trespass's own start value, of Builder::spin, is 200 us, or nothing where the process may use one processor only. --poll sets it to 1 s,
    /// the most there is, which begins anew with each completion. Within that trespass learns how long is worth it: a side's first wait may
    /// still sleep, and so may those that last longer. Each side has its own, so give it to both. Over TCP threads sleep at once.
    #[arg(long)]
    pub poll: bool,

    /// Of bw: hold back what does not fill a frame until more is sent, as SeqPacket::set_cork does, so that short messages go together
    ///
    /// Without it each message leaves when its call returns, whether another one follows or not. The client says it; grid does it by itself.
    #[arg(long)]
    pub cork: bool,
}

/// What carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportArg {
    /// RDMA where both sides have it, else TCP
    Auto,
    /// RDMA, or nothing
    Rdma,
    /// TCP
    Tcp,
}

/// The calls that send and receive messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApiArg {
    /// Out of and into the program's own memory
    Copy,
    /// In blocks of trespass's pool, which nothing is copied to or from
    Pool,
}

/// What is measured, with the flags that only this kind of operation has.
#[derive(Clone, Debug, Subcommand)]
pub enum MeasureArgs<A: Args> {
    /// Bandwidth and message rate.
    #[command(name = "bw", visible_alias = "bandwidth", after_help = PROVIDERS)]
    Bandwidth(BandwidthArgs<A>),
    /// Latency.
    #[command(name = "lat", visible_alias = "latency", after_help = PROVIDERS)]
    Latency(LatencyArgs<A>),
}

/// The flags of a bandwidth test.
#[derive(Clone, Debug, Args)]
pub struct BandwidthArgs<A: Args> {
    /// The flags that every test has.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The operation's own.
    #[command(flatten)]
    pub own: A,
}

/// The flags of a latency test.
#[derive(Clone, Debug, Args)]
pub struct LatencyArgs<A: Args> {
    /// The flags that every test has.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The operation's own.
    #[command(flatten)]
    pub own: A,
    /// What counts as the latency of a message [default: pingpong where the peer can answer, else completion]
    #[arg(long = "latency", value_name = "DEFINITION")]
    pub definition: Option<DefinitionArg>,
    /// Which clock takes the time (of --latency completion)
    #[arg(long, value_name = "CLOCK", default_value = "program")]
    pub clock: ClockArg,
}

/// The flags of writes.
#[derive(Clone, Debug, Args)]
pub struct WriteArgs {
    /// With immediate data, which takes a receive of the peer's
    #[arg(long, alias = "write_with_imm")]
    pub imm: bool,

    /// How messages arrive.
    #[command(flatten)]
    pub delivery: DeliveryArgs,
}

/// The flags of sends.
#[derive(Clone, Debug, Args)]
pub struct SendArgs {
    /// With immediate data
    #[arg(long, alias = "send_with_imm")]
    pub imm: bool,

    /// How messages arrive.
    #[command(flatten)]
    pub delivery: DeliveryArgs,
}

/// The flags of reads.
#[derive(Clone, Debug, Args)]
pub struct ReadArgs {
    /// Reads under way at the peer's at a time [default: as many as both devices can]
    #[arg(short, long = "outs", value_name = "COUNT")]
    pub outstanding: Option<u8>,
}

/// The flags of a mix.
#[derive(Clone, Debug, Args)]
pub struct MixArgs {
    /// How many messages of a hundred are of which kind
    #[arg(long = "ratio", visible_alias = "mix", value_name = "RATIO", default_value = "read=50,write=50")]
    pub ratio: MixArg,

    /// Reads under way at the peer's at a time [default: as many as both devices can]
    #[arg(short, long = "outs", value_name = "COUNT")]
    pub outstanding: Option<u8>,
}

/// The flags of atomic operations.
#[derive(Clone, Debug, Args)]
pub struct AtomicArgs {
    /// Which operation
    #[arg(short = 'A', long, alias = "atomic_type", value_name = "TYPE", default_value = "fetch-add")]
    pub atomic_type: AtomicTypeArg,

    /// Operations under way at the peer's at a time [default: as many as both devices can]
    #[arg(short, long = "outs", value_name = "COUNT")]
    pub outstanding: Option<u8>,
}

/// The atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtomicTypeArg {
    /// Adds to the peer's number
    #[value(alias = "FETCH_AND_ADD")]
    FetchAdd,
    /// Replaces the peer's number if it is the one that is expected
    #[value(alias = "CMP_AND_SWAP")]
    CompareSwap,
}

/// What counts as the latency of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefinitionArg {
    /// Half the round trip of a ping-pong seen in memory, as perftest has it
    Pingpong,
    /// From the post to the completion
    Completion,
}

/// What takes the time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockArg {
    /// The processor's clock, when the program sees the completion
    Program,
    /// The device's clock, when the device writes the completion, as its timestamp says
    Device,
}

/// How queue pairs are connected.
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
    /// ibv_wr_* and ibv_start_poll, where the device has them
    Extended,
}

/// The flags that every test has.
#[derive(Clone, Debug, Default, Args)]
pub struct RunArgs {
    /// Host name or address of the server; without it, this side is the server
    #[arg(value_name = "SERVER")]
    pub server: Option<String>,

    /// Run server and client in this process, over one device
    #[arg(long, conflicts_with = "server")]
    pub loopback: bool,

    /// RDMA device, or several (NAME,NAME, each with its port behind it if you like: NAME:PORT), which share the threads; msg has one
    /// [default: the first one with an active port; of msg: the one with this side's address]
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

    /// This file has a secret that both sides share: who does not know it is not served [default: that of
    /// STRIDE_SECRET, if it is set]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// Messages for each size, of each queue pair [default: 5000 for bandwidth of writes and messages, else 1000]
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub iters: Option<u64>,

    /// Send for so long, in place of a number of messages; of queue pairs a quarter at the beginning and at the end does not count
    #[arg(short = 'D', long, value_name = "SECONDS")]
    pub duration: Option<u32>,

    /// Bytes of a message, with K or M if you like [default: 64K for bandwidth, 2 for latency; atomics are of 8]
    #[arg(short = 's', long, value_name = "BYTES")]
    pub msg_size: Option<Size>,

    /// Measure every power of two from 2 to --max-msg-size, or the sizes that --min-msg-size, --step-factor and --step-addition make
    #[arg(short, long)]
    pub all_sizes: bool,

    /// The first size of --all-sizes [default: 2]
    #[arg(long, value_name = "BYTES")]
    pub min_msg_size: Option<Size>,

    /// The last size of --all-sizes [default: 8M; of msg --api pool: 1M]
    #[arg(long, value_name = "BYTES")]
    pub max_msg_size: Option<Size>,

    /// Each size of --all-sizes is the one before times this, rounded up [default: 2; with --step-addition: 1]
    #[arg(long, value_name = "FACTOR")]
    pub step_factor: Option<Millionths>,

    /// Each size of --all-sizes has so many bytes more than the factor makes it
    #[arg(long, value_name = "BYTES")]
    pub step_addition: Option<Size>,

    /// Messages under way at a time, or auto: by the message size, and stderr says how many [default: 128 for bandwidth, 1 for
    /// latency; of msg --api pool: 2 to 16, for 2 MiB]
    #[arg(short, long, value_name = "COUNT")]
    pub tx_depth: Option<CountOrAuto>,
}

/// The flags of a test of queue pairs.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// The flags that every test has.
    #[command(flatten)]
    pub run: RunArgs,

    /// The memory.
    #[command(flatten)]
    pub memory: MemoryArgs,

    /// Calls that post and poll [default: perftest's choice for the device]
    #[arg(long, value_name = "KIND")]
    pub calls: Option<CallsArg>,

    /// Messages handed to the device by one doorbell (bandwidth only) [default: 1]
    #[arg(short = 'l', long, value_name = "COUNT")]
    pub post_list: Option<u32>,

    /// Messages for each completion (bandwidth only) [default: 100, or 1 above 8 KiB without -a, or
    /// the post list]
    #[arg(short = 'Q', long, value_name = "COUNT")]
    pub cq_mod: Option<u32>,

    /// Queue pairs (bandwidth only) [default: 1]
    #[arg(short, long, value_name = "COUNT")]
    pub qp: Option<u32>,

    /// Use ports 1 and 2 of the device, as perftest has it
    #[arg(short = 'O', long)]
    pub dualport: bool,

    /// Threads that share the queue pairs, each on a processor near the device, or auto: by message size and processors, and
    /// stderr says how many [default: the one that there is, on any processor]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<CountOrAuto>,

    /// Before each size, send so many messages that do not count, or for so many seconds with an s behind the number
    #[arg(long, value_name = "COUNT")]
    pub warmup: Option<WarmUpArg>,

    /// Before each size, send as many messages that do not count as are under way at a time, as perftest has it
    #[arg(long, alias = "perform_warm_up")]
    pub perform_warm_up: bool,

    /// Send at this rate, of all queue pairs together, however late messages are through: so many a second, or NUMBERGb/s.
    /// Latency counts from when a message was meant to be sent
    #[arg(long, value_name = "RATE")]
    pub rate: Option<RateArg>,

    /// The same as perftest has it: a number of --rate_units
    #[arg(long, alias = "rate_limit", value_name = "NUMBER")]
    pub rate_limit: Option<Millionths>,

    /// What --rate_limit is in [default: g]
    #[arg(long, alias = "rate_units", value_name = "UNIT")]
    pub rate_units: Option<RateUnitsArg>,

    /// Messages of a rate that are sent together, with as long a pause in between [default: 1]
    #[arg(long, alias = "burst_size", value_name = "COUNT")]
    pub burst_size: Option<u32>,

    /// The server measures, and the client answers
    #[arg(long)]
    pub reversed: bool,

    /// How the queue pairs are connected
    #[arg(short, long, value_name = "TYPE", default_value = "RC", ignore_case = true)]
    pub connection: ConnectionArg,

    /// Look whether what arrives is what was sent, when all of a size has: no part of the measurement
    #[arg(long, alias = "data_validation")]
    pub data_validation: bool,

    /// Both sides measure at the same time, and the sum counts (bandwidth only)
    #[arg(short, long)]
    pub bidirectional: bool,

    /// The way of the packets.
    #[command(flatten)]
    pub way: PathArgs,

    /// The queues.
    #[command(flatten)]
    pub queues: QueueArgs,

    /// The order of the device's writes.
    #[command(flatten)]
    pub ordering: OrderingArgs,
}
