//! One side of a test: its queue pair, its memory, and what it does with them.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, connect};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, GenericQueuePair, QueuePairType, SendOperationFlags,
};
use sideway::memory::{BufferKind, RegisteredBuffer};

use super::latency::Part;
use super::{Channel, Notes, Target, Watch, bandwidth, latency};
use crate::buffers::BufferLayout;
use crate::control::Resources;
use crate::device::{DeviceError, LocalDevice};
use crate::error::Error;
use crate::plan::{Calls, LatencyDefinition, Measure, TestPlan, default_inline_size};
use crate::report::{BandwidthRow, LatencyRow, Row};
use crate::result::Distribution;
use crate::statistics::{BandwidthSummary, LatencyRecorder, Timer};

/// A side whose queue pair is not connected yet.
#[derive(Debug)]
pub struct Side<'a> {
    device: &'a LocalDevice,
    queue_pair: GenericQueuePair,
    completions: GenericCompletionQueue,
    memory: RegisteredBuffer,
    layout: BufferLayout,
    endpoint: Endpoint,
    inline_size: u32,
}

impl<'a> Side<'a> {
    /// Makes what the test needs.
    ///
    /// # Errors
    ///
    /// The device lacks something.
    pub fn new(device: &'a LocalDevice, test: &TestPlan) -> Result<Self, Error> {
        let inline_size = inline_size(device, test);
        let pd = device.context.alloc_pd()?;
        let layout = BufferLayout::new(test.sizes.largest());
        let memory = pd.reg_buffer(layout.allocate(device.buffer)?, access(test))?;
        let completions = completion_queue(device, test)?;
        let queue_pair = queue_pair(device, &pd, &completions, test.depth(), inline_size)?;
        let endpoint = Endpoint::new(&queue_pair, &device.path, packet_sequence_number());
        Ok(Self { device, queue_pair, completions, memory, layout, endpoint, inline_size })
    }

    /// Where messages lie in the memory.
    pub fn layout(&self) -> BufferLayout {
        self.layout
    }

    /// What the peer needs to know.
    pub fn resources(&self) -> Resources {
        Resources {
            endpoint: self.endpoint.clone(),
            rkey: self.memory.rkey(),
            address: self.memory.as_ptr().addr() as u64 + self.layout.receive_offset(),
            length: self.layout.half(),
        }
    }

    /// Connects the queue pair to the peer's.
    ///
    /// # Errors
    ///
    /// There is no way to the peer.
    pub fn connect(self, remote: Resources, test: &TestPlan, timer: &Timer) -> Result<Workload, Error> {
        let Self { device, mut queue_pair, completions, memory, layout, endpoint, inline_size } = self;
        let connection =
            connect(&mut queue_pair, &device.path, &endpoint, &remote.endpoint, &ConnectOptions::default())?;
        let buffer = match memory.buffer().kind() {
            BufferKind::Shared => "shared",
            _ => "malloc",
        };
        let calls = if queue_pair.is_extended() { "ibv_wr_*" } else { "ibv_post_send" };
        let description =
            format!("{test}, inline up to {inline_size} bytes, by {calls}, buffer {buffer}; {connection}");
        let target = Target { rkey: remote.rkey, address: remote.address };
        let channel = Channel::new(queue_pair, completions, memory, target, inline_size);
        let recorder = LatencyRecorder::new();
        Ok(Workload {
            description,
            test: test.clone(),
            channel,
            layout,
            notes: Notes::new(),
            recorder,
            timer: timer.clone(),
        })
    }
}

/// A side that is ready to run.
#[derive(Debug)]
pub struct Workload {
    description: String,
    test: TestPlan,
    channel: Channel,
    layout: BufferLayout,
    notes: Notes,
    recorder: LatencyRecorder,
    timer: Timer,
}

impl Workload {
    /// What is going to be measured and how the two sides are connected, in one line.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Gets ready for messages of this size, before either side begins to measure them.
    ///
    /// # Panics
    ///
    /// If the plan has no such size.
    pub fn prepare(&mut self, size: u64) {
        self.channel.resize(size as u32);
        self.channel.flag(self.layout.receive_offset() + size - 1).store(latency::UNMARKED);
    }

    /// Measures messages of this size: the client's part.
    ///
    /// # Errors
    ///
    /// A message failed, or the peer is gone.
    pub fn measure(&mut self, size: u64, watch: &mut Watch<'_>) -> Result<Row, Error> {
        let iterations = self.test.iterations;
        let Measure::Latency(definition) = self.test.measure else {
            let chain = bandwidth::Chain::new(&self.test, self.layout.cycle(size));
            let ticks = self.channel.run(bandwidth::Run { chain, watch })?;
            let summary = BandwidthSummary::new(size, iterations, ticks, &self.timer);
            return Ok(Row::Bandwidth(BandwidthRow::new(size, iterations, summary)));
        };
        let part = match definition {
            LatencyDefinition::PingPong => Part::Ping,
            LatencyDefinition::Completion => Part::Complete,
        };
        self.run_latency(size, part, watch)?;
        let summary = self.recorder.summary(self.sample_nanoseconds(definition));
        Ok(Row::Latency(LatencyRow::new(size, iterations, summary)))
    }

    /// The latencies that were measured last, if this side measures any.
    pub fn distribution(&self) -> Option<Distribution> {
        let Measure::Latency(definition) = self.test.measure else { return None };
        Some(self.recorder.distribution(self.sample_nanoseconds(definition)))
    }

    /// How many nanoseconds of latency a tick of a sample stands for.
    fn sample_nanoseconds(&self, definition: LatencyDefinition) -> f64 {
        let tick = self.timer.nanoseconds_per_tick();
        match definition {
            LatencyDefinition::PingPong => tick / 2.0,
            LatencyDefinition::Completion => tick,
        }
    }

    /// Answers messages of this size, where they want an answer: the server's part.
    ///
    /// # Errors
    ///
    /// A message failed, or the peer is gone.
    pub fn answer(&mut self, size: u64, watch: &mut Watch<'_>) -> Result<(), Error> {
        match self.test.measure {
            Measure::Latency(LatencyDefinition::PingPong) => self.run_latency(size, Part::Pong, watch),
            Measure::Bandwidth | Measure::Latency(LatencyDefinition::Completion) => Ok(()),
        }
    }

    fn run_latency(&mut self, size: u64, part: Part, watch: &mut Watch<'_>) -> Result<(), Error> {
        let Self { channel, notes, recorder, layout, test, .. } = self;
        let arrival = layout.receive_offset() + size - 1;
        channel.run(latency::Run { part, iterations: test.iterations, arrival, notes, recorder, watch })?;
        Ok(())
    }
}

fn completion_queue(device: &LocalDevice, test: &TestPlan) -> Result<GenericCompletionQueue, Error> {
    let mut builder = device.context.create_cq_builder();
    builder.setup_cqe(test.depth()).setup_poll_batch(poll_batch(test));
    Ok(match device.calls {
        Calls::Classic => builder.build()?.into(),
        Calls::Extended => builder.build_generic()?,
    })
}

fn queue_pair(
    device: &LocalDevice,
    pd: &ProtectionDomain,
    queue: &GenericCompletionQueue,
    depth: u32,
    inline_size: u32,
) -> Result<GenericQueuePair, Error> {
    let mut builder = pd.create_qp_builder();
    builder
        .setup_qp_type(QueuePairType::ReliableConnection)
        .setup_max_send_wr(depth)
        .setup_max_recv_wr(1)
        .setup_max_inline_data(inline_size)
        .setup_send_ops_flags(SendOperationFlags::Write)
        .setup_send_cq(queue)
        .setup_recv_cq(queue);
    let built = match device.calls {
        Calls::Classic => builder.build().map(Into::into),
        Calls::Extended => builder.build_generic(),
    };
    built.map_err(|error| match error {
        // No device says how much it copies, other than by refusing.
        CreateQueuePairError::Ibverbs { source, .. } if inline_size > 0 => {
            let (given, device) = (inline_size, device.limits.device.clone());
            DeviceError::QueuePairRefused { given, depth, device, reason: source.to_string() }.into()
        }
        error => error.into(),
    })
}

/// What may be done with the memory. The device may reorder its writes on the bus where only amounts matter,
/// as perftest has it; who waits for the last byte needs it to come last.
fn access(test: &TestPlan) -> AccessFlags {
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    match test.measure {
        Measure::Bandwidth => access | AccessFlags::RelaxedOrdering,
        Measure::Latency(_) => access,
    }
}

/// As many completions as perftest takes at a time.
fn poll_batch(test: &TestPlan) -> u32 {
    match test.measure {
        Measure::Bandwidth => bandwidth::POLL_BATCH,
        Measure::Latency(_) => 1,
    }
}

fn inline_size(device: &LocalDevice, test: &TestPlan) -> u32 {
    let default = match test.measure {
        Measure::Bandwidth => 0,
        Measure::Latency(_) => default_inline_size(device.vendor_id),
    };
    test.inline_size.unwrap_or(default)
}

/// A start that differs from run to run, so that packets of an earlier connection are not taken for ours.
fn packet_sequence_number() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.subsec_nanos()) & 0xff_ffff
}
