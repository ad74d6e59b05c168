//! The plan of a run: its parameters, checked and completed.
//!
//! A plan is made in two stages. [`RunPlan::new`] checks the command line by itself;
//! [`TestPlan::check`] checks the test against a device's limits. The part that both sides must
//! agree on, [`TestPlan`], travels over the control connection, and the receiver validates it
//! again.

mod calls;
mod devices;
mod differences;
mod echo;
mod error;
mod inline;
mod limits;
mod messages;
mod mix;
mod operation;
mod ordering;
mod path_options;
mod queues;
mod rate;
mod rules;
mod size_sweep;
mod sizes;
mod tcp;
mod test_plan;
mod test_point;
mod threads;
mod warm_up;

use std::path::PathBuf;
use std::time::Duration;

use trespass::Policy;

use crate::cli::{
    ApiArg, AtomicArgs, AtomicTypeArg, BandwidthArgs, CallsArg, ClockArg, ConnectionArg, CountOrAuto,
    DefinitionArg, DeliveryArgs, GridArgs, LatencyArgs, MeasureArgs, MessageArgs, MessagesArgs, MixArgs,
    OperationArgs, PingArgs, ReadArgs, RunArgs, SendArgs, Size, TcpArgs, TestArgs, TransportArg, WriteArgs,
};

use crate::memory::MemoryKind;

pub use calls::PostingCalls;
pub use devices::DeviceChoice;
pub use differences::{Difference, differences};
pub use echo::{Echo, InFlight};
pub use error::PlanError;
pub use inline::default_inline_size;
pub use limits::DeviceLimits;
pub use messages::{LONGEST, MOST_REQUESTS};
pub use mix::{MIX_PERIOD, Mix};
pub use operation::{ATOMIC_SIZE, Api, LARGEST_BLOCK, TestOperation};
pub use ordering::{Ordering, OrderingError};
pub use path_options::{PathOptions, PathOptionsError};
pub use queues::{MOST_ENTRIES, QueueError, Queues};
pub use rate::{Rate, RateOf};
pub use rules::{LEAST_ITERATIONS, MODERATED_SIZE_LIMIT, MOST_QUEUE_PAIRS};
pub use size_sweep::{SizeSweep, SizeSweepError};
pub use sizes::Sizes;
pub use test_plan::{ConnectionType, LatencyDefinition, Measure, SideTasks, TestPlan};
pub use test_point::TestPoint;
pub use threads::{ChoiceInputs, MOST_THREADS, OpenChoices};
pub use warm_up::WarmUp;

/// Round trips of a ping, whose median counts because the first ones find cold caches.
const PINGS: u64 = 30;

/// perftest's port of the control connection.
pub const DEFAULT_PORT: u16 = 18515;

/// This process's side of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideRole {
    /// Waits for a client.
    Server,
    /// Connects to the server at this address.
    Client(String),
    /// Both sides, over one device.
    Loopback,
}

/// The options that concern this side only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalOptions {
    /// The device's name, if the user gave one.
    pub device: Option<String>,
    /// All devices and ports, if the user named several.
    pub devices: Vec<DeviceChoice>,
    /// The device's port, if the user gave one.
    pub ib_port: Option<u8>,
    /// The index in the GID table, if the user gave one.
    pub gid_index: Option<u32>,
    /// The kind of memory, if the user gave one.
    pub buffer: Option<MemoryKind>,
    /// The calls that post and poll, if the user gave them.
    pub calls: Option<PostingCalls>,
    /// TCP port of the control connection.
    pub tcp_port: u16,
    /// The file with the shared secret, if the user named one.
    pub secret_file: Option<PathBuf>,
    /// The transports that messages of trespass may use.
    pub transport: Policy,
    /// Messages of trespass are polled for instead of waited for.
    pub poll: bool,
    /// Messages shorter than a frame are held back until more are sent.
    pub cork: bool,
    /// How long the server waits before it answers a request.
    pub delay: Duration,
    /// Whether the user left the size open, so that it may be adapted to the device.
    pub any_size: bool,
    /// The parameters that are chosen once the device is known.
    pub choices: OpenChoices,
}

/// A complete command line, checked as far as possible without a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPlan {
    /// The side that this process plays.
    pub role: SideRole,
    /// The options that concern this side only.
    pub local: LocalOptions,
    /// The part that both sides must agree on.
    pub test: TestPlan,
    /// Warnings for the user, one line each.
    pub warnings: Vec<String>,
}

impl RunPlan {
    /// Checks and completes a command line.
    pub fn new(cli: TestArgs) -> Result<Self, PlanError> {
        match cli.operation {
            OperationArgs::Write { measure } => Self::of_pairs(measure),
            OperationArgs::Send { measure } => Self::of_pairs(measure),
            OperationArgs::Read { measure } => Self::of_pairs(measure),
            OperationArgs::Atomic { measure } => Self::of_pairs(measure),
            OperationArgs::Mix { measure } => Self::of_pairs(measure),
            OperationArgs::Tcp { measure: TcpArgs::Bandwidth(args) } => {
                Self::of_tcp(Measure::Bandwidth, &args)
            }
            OperationArgs::Tcp { measure: TcpArgs::Latency(args) } => {
                Self::of_tcp(Measure::Latency(LatencyDefinition::PingPong), &args)
            }
            OperationArgs::Messages { measure: MessagesArgs::Bandwidth(args) } => {
                Self::of_messages(Measure::Bandwidth, &args)
            }
            OperationArgs::Messages { measure: MessagesArgs::Latency(args) } => {
                Self::of_messages(Measure::Latency(LatencyDefinition::PingPong), &args)
            }
            OperationArgs::Messages { measure: MessagesArgs::Grid(args) } => Self::of_grid(&args),
        }
    }

    /// The plan of a ping: sends and their answers, repeated.
    ///
    /// # Errors
    ///
    /// The size is invalid.
    pub fn of_ping(args: &PingArgs) -> Result<Self, PlanError> {
        let (run, Size(size)) = (args.run_args(), args.msg_size);
        let sizes = Sizes::Again { size, count: args.count.unwrap_or(u32::MAX) };
        let measure = Measure::Latency(LatencyDefinition::PingPong);
        let test = TestPlan { iterations: PINGS, ..TestPlan::new(TestOperation::Send, measure, sizes) };
        test.validate()?;
        Ok(Self { role: role(&run), local: local_options(&run)?, test, warnings: Vec::new() })
    }

    fn of_tcp(measure: Measure, args: &RunArgs) -> Result<Self, PlanError> {
        let test = test_plan(TestOperation::Tcp, measure, args);
        test.validate()?;
        let mut warnings = size_warnings(args, &test);
        warnings.extend(tcp::warnings(args));
        Ok(Self { role: role(args), local: local_options(args)?, test, warnings })
    }

    fn of_pairs<A: clap::Args + OperationFlags>(measure: MeasureArgs<A>) -> Result<Self, PlanError> {
        let (measure, common, own, device_clock) = match measure {
            MeasureArgs::Bandwidth(BandwidthArgs { common, own }) => (Measure::Bandwidth, common, own, false),
            MeasureArgs::Latency(LatencyArgs { common, own, definition, clock }) => {
                // An answer has no scheduled time, so a rate does not apply to it.
                let is_rated =
                    common.rate.is_some() || common.rate_limit.is_some() || clock == ClockArg::Device;
                let default =
                    if is_rated { LatencyDefinition::Completion } else { own.operation().default_latency() };
                let definition = definition.map_or(default, Into::into);
                (Measure::Latency(definition), common, own, clock == ClockArg::Device)
            }
        };
        let test = test_plan(own.operation(), measure, &common.run);
        let devices = devices::asked(&common)?;
        let several = u32::try_from(devices.len()).ok().filter(|devices| *devices > 1);
        let threads = CountOrAuto::given(common.threads).or(several);
        let test = own.complete(TestPlan {
            post_list: common.post_list.unwrap_or(test.post_list),
            tx_depth: match common.run.tx_depth {
                // A placeholder that passes the other checks until the depth is chosen.
                Some(CountOrAuto::Auto) => test.tx_depth.max(common.post_list.unwrap_or(1)),
                _ => test.tx_depth,
            },
            cq_mod: common.cq_mod,
            queue_pairs: common.qp.or(threads.filter(|threads| *threads > 0)).unwrap_or(test.queue_pairs),
            threads,
            warm_up: WarmUp::asked(&common)?,
            rate: Rate::asked(&common)?,
            device_clock,
            bidirectional: common.bidirectional,
            reversed: common.reversed,
            data_validation: common.data_validation,
            connection: common.connection.into(),
            path_options: PathOptions::from(&common.path),
            queues: Queues::from(&common.queues),
            ordering: Ordering::from(&common.ordering),
            ..test
        })?;
        test.validate_devices(several.unwrap_or(1))?;
        test.validate()?;
        let (buffer, calls) = (common.memory.kind(), common.calls.map(PostingCalls::from));
        buffer.map_or(Ok(()), |kind| kind.check(&test))?;
        let any_size = common.run.msg_size.is_none() && common.run.max_msg_size.is_none();
        let choices = OpenChoices::new(&common);
        let local = LocalOptions { buffer, calls, any_size, choices, devices, ..local_options(&common.run)? };
        let mut warnings = size_warnings(&common.run, &test);
        warnings.extend(moderation_warnings(&test));
        Ok(Self { role: role(&common.run), local, test, warnings })
    }

    fn of_grid(GridArgs { messages, delay_us }: &GridArgs) -> Result<Self, PlanError> {
        let in_flight =
            CountOrAuto::given(messages.run.tx_depth).map_or(InFlight::Grid, |count| InFlight::One { count });
        let measure = Measure::Echo(Echo { in_flight, counted: messages.run.iters.is_some() });
        let mut plan = Self::of_messages(measure, messages)?;
        if let Some(given) = *delay_us {
            plan.local.delay = Duration::from_micros(given.into());
            plan.warnings.extend(messages::delay_warning(given, &plan)?);
        }
        Ok(plan)
    }

    fn of_messages(measure: Measure, args: &MessageArgs) -> Result<Self, PlanError> {
        let test = test_plan(TestOperation::Messages(args.api.into()), measure, &args.run);
        test.validate()?;
        let uncorked = messages::uncorked(&test).filter(|_| args.cork);
        let local = LocalOptions {
            transport: args.transport.into(),
            poll: args.poll,
            cork: args.cork && uncorked.is_none(),
            ..local_options(&args.run)?
        };
        let mut warnings = size_warnings(&args.run, &test);
        warnings.extend(messages::warnings(&args.run, &test, &local)?);
        warnings.extend(uncorked.map(|why| format!("--cork has no effect on {why}")));
        Ok(Self { role: role(&args.run), local, test, warnings })
    }
}

/// The flags of one kind of operation.
trait OperationFlags {
    /// The operation that they select.
    fn operation(&self) -> TestOperation;
    /// Adds the flags' parameters to a plan.
    ///
    /// # Errors
    ///
    /// The flags conflict.
    fn complete(&self, test: TestPlan) -> Result<TestPlan, PlanError>;
}

impl OperationFlags for WriteArgs {
    fn operation(&self) -> TestOperation {
        if self.imm { TestOperation::WriteImm } else { TestOperation::Write }
    }

    fn complete(&self, test: TestPlan) -> Result<TestPlan, PlanError> {
        if let (TestOperation::Write, Some(given)) = (test.operation, self.delivery.rx_depth) {
            return Err(PlanError::NoReceives { given, operation: test.operation });
        }
        Ok(delivered(&self.delivery, test))
    }
}

impl OperationFlags for SendArgs {
    fn operation(&self) -> TestOperation {
        if self.imm { TestOperation::SendImm } else { TestOperation::Send }
    }

    fn complete(&self, test: TestPlan) -> Result<TestPlan, PlanError> {
        Ok(delivered(&self.delivery, test))
    }
}

impl OperationFlags for ReadArgs {
    fn operation(&self) -> TestOperation {
        TestOperation::Read
    }

    fn complete(&self, test: TestPlan) -> Result<TestPlan, PlanError> {
        Ok(TestPlan { outstanding: self.outstanding, ..test })
    }
}

impl OperationFlags for MixArgs {
    fn operation(&self) -> TestOperation {
        TestOperation::Mix(Mix { reads: self.ratio.reads })
    }

    fn complete(&self, test: TestPlan) -> Result<TestPlan, PlanError> {
        Ok(TestPlan { outstanding: self.outstanding, ..test })
    }
}

impl OperationFlags for AtomicArgs {
    fn operation(&self) -> TestOperation {
        match self.atomic_type {
            AtomicTypeArg::FetchAdd => TestOperation::FetchAdd,
            AtomicTypeArg::CompareSwap => TestOperation::CompareSwap,
        }
    }

    fn complete(&self, test: TestPlan) -> Result<TestPlan, PlanError> {
        Ok(TestPlan { outstanding: self.outstanding, ..test })
    }
}

fn delivered(args: &DeliveryArgs, test: TestPlan) -> TestPlan {
    let &DeliveryArgs { rx_depth, recv_post_list, inline_size } = args;
    let recv_post_list = recv_post_list.unwrap_or(test.recv_post_list);
    TestPlan { inline_size, rx_depth, recv_post_list, ..test }
}

impl From<TransportArg> for Policy {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Auto => Self::Auto,
            TransportArg::Rdma => Self::RequireRdma,
            TransportArg::Tcp => Self::TcpOnly,
        }
    }
}

impl From<ApiArg> for Api {
    fn from(arg: ApiArg) -> Self {
        match arg {
            ApiArg::Copy => Self::Copy,
            ApiArg::Pool => Self::Pool,
            ApiArg::Mux => Self::Mux,
        }
    }
}

impl From<DefinitionArg> for LatencyDefinition {
    fn from(arg: DefinitionArg) -> Self {
        match arg {
            DefinitionArg::Pingpong => Self::PingPong,
            DefinitionArg::Completion => Self::Completion,
        }
    }
}

impl From<ConnectionArg> for ConnectionType {
    fn from(arg: ConnectionArg) -> Self {
        match arg {
            ConnectionArg::Rc => Self::Rc,
            ConnectionArg::Uc => Self::Uc,
            ConnectionArg::Ud => Self::Ud,
            ConnectionArg::Xrc => Self::Xrc,
        }
    }
}

impl From<CallsArg> for PostingCalls {
    fn from(arg: CallsArg) -> Self {
        match arg {
            CallsArg::Classic => Self::Classic,
            CallsArg::Extended => Self::Extended,
        }
    }
}

fn role(args: &RunArgs) -> SideRole {
    match &args.server {
        Some(server) => SideRole::Client(server.clone()),
        None if args.loopback => SideRole::Loopback,
        None => SideRole::Server,
    }
}

fn local_options(args: &RunArgs) -> Result<LocalOptions, PlanError> {
    let ib_port = match args.ib_port.map(u8::try_from) {
        None => None,
        Some(Ok(port @ 1..)) => Some(port),
        Some(_) => return Err(PlanError::NoSuchPortNumber { given: args.ib_port.unwrap_or_default() }),
    };
    let (device, gid_index) = (args.device.clone(), args.gid_index);
    let secret_file = args.secret_file.clone();
    Ok(LocalOptions {
        device,
        ib_port,
        gid_index,
        tcp_port: args.port,
        secret_file,
        ..LocalOptions::default()
    })
}

fn test_plan(operation: TestOperation, measure: Measure, args: &RunArgs) -> TestPlan {
    let size = args.msg_size.map_or(operation.default_size(measure), |Size(size)| size);
    let max = args.max_msg_size.map_or(operation.default_max_size(), |Size(size)| size);
    let sizes = match measure {
        _ if args.all_sizes => SizeSweep::asked(args, max).map_or(Sizes::PowersOfTwo { max }, Sizes::Sweep),
        Measure::Echo(_) if args.msg_size.is_none() => Sizes::Grid { max },
        _ => Sizes::One { size },
    };
    let defaults = TestPlan::new(operation, measure, sizes);
    TestPlan {
        iterations: args.iters.unwrap_or(defaults.iterations),
        duration: args.duration,
        tx_depth: CountOrAuto::given(args.tx_depth).unwrap_or(defaults.tx_depth),
        ..defaults
    }
}

/// Warnings about sizes and counts without effect.
fn size_warnings(args: &RunArgs, test: &TestPlan) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (Some(seconds), Some(count)) = (args.duration, args.iters) {
        warnings.push(format!("-n {count} has no effect with -D {seconds}: leave one of them out"));
    }
    if let (true, Some(Size(size))) = (args.all_sizes, args.msg_size) {
        warnings.push(format!("-s {size} has no effect with -a: leave one of them out"));
    }
    let of_ladder = [
        ("--min-msg-size", args.min_msg_size.is_some()),
        ("--step-factor", args.step_factor.is_some()),
        ("--step-addition", args.step_addition.is_some()),
    ];
    if let (false, Some((flag, _))) = (args.all_sizes, of_ladder.iter().find(|(_, given)| *given)) {
        warnings.push(format!("{flag} has no effect without -a: add -a, or leave it out"));
    }
    if let (Sizes::One { .. }, Some(Size(size))) = (test.sizes, args.max_msg_size) {
        warnings.push(format!("--max-msg-size {size} has no effect without -a: add -a, or use -s"));
    }
    warnings
}

/// Warnings about completion moderation that has no effect, or may mislead.
fn moderation_warnings(test: &TestPlan) -> Vec<String> {
    let mut warnings = Vec::new();
    if let (Measure::Latency(_), Some(cq_mod @ 2..)) = (test.measure, test.cq_mod) {
        warnings.push(format!("-Q {cq_mod} has no effect on latency: every message is completed"));
    }
    if test.moderates_large_messages() {
        warnings.push(format!(
            "-Q {} with messages above {MODERATED_SIZE_LIMIT} bytes makes the bandwidth less exact: \
             leave -Q out",
            test.completion_interval()
        ));
    }
    warnings
}

#[cfg(test)]
mod tests;
