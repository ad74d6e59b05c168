//! One side of a test: its queue pairs, its memory, and its tasks.

use std::sync::atomic::AtomicU32;

use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::connect::{ConnectOptions, Endpoint, activate_ud, connect};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::GenericQueuePair;
use sideway::ibverbs::srq::SharedReceiveQueue;
use sideway::rdmacm::Connection;

use super::bandwidth::SendTotals;
use super::channel::{ConnectedSide, GenericCompletionQueues, TestPair, receives};
use super::cm_connector::CmConnector;
use super::device_clock::DeviceClock;
use super::latency::LatencyPart;
use super::request::{MessageLocation, QKEY};
use super::resources::{access, completion_queues, inline_size, queue_pair, shared_queue};
use super::sleep::Sleeper;
use super::validate::{SWAP, Seeds, Validation, pattern};
use super::xrc::{XrcReceivers, receivers as xrc_receivers};
use super::{
    Chain, PhaseClock, SampleTimes, TestChannel, Watch, bandwidth, device_clock, latency, open_loop,
};
use stride_base::buffers::BufferLayout;
use stride_base::control::{ControlError, Resources};
use stride_base::device::LocalDevice;
use stride_base::error::{Error, ValidationError};
use stride_base::memory::TestMemory;
use stride_base::plan::{
    ConnectionType, LatencyDefinition, Measure, PlanError, Rate, SideTasks, TestOperation, TestPlan,
};
use stride_base::statistics::LatencyRecorder;

/// A side whose queue pairs are not connected yet.
#[derive(Debug)]
pub struct UnconnectedSide<'a> {
    device: &'a LocalDevice,
    pd: ProtectionDomain,
    pairs: Vec<(GenericQueuePair, Endpoint)>,
    ends: GenericCompletionQueues,
    targets: Option<XrcReceivers>,
    srq: Option<SharedReceiveQueue>,
    sleeper: Option<Sleeper>,
    memory: TestMemory,
    layout: BufferLayout,
    is_relaxed: bool,
    inline_size: u32,
    answered: u8,
}

impl<'a> UnconnectedSide<'a> {
    /// Creates the objects that the test needs.
    ///
    /// # Errors
    ///
    /// The device lacks a resource.
    pub fn new(device: &'a LocalDevice, test: &TestPlan) -> Result<Self, Error> {
        let inline_size = inline_size(device, test);
        let pd = device.context.alloc_pd()?;
        let largest = test.sizes.largest() + test.connection.header();
        let layout = BufferLayout::new(largest, test.queue_pairs);
        device.buffer.check(test).map_err(PlanError::from)?;
        let is_known = device.context.provider().verbs().ibv_reg_mr_iova2().is_ok();
        let is_relaxed = test.relaxes_ordering(is_known).map_err(PlanError::from)?;
        let memory = TestMemory::new(device, layout, &pd, access(test, is_relaxed))?;
        let channel = match test.queues.events {
            true => Some(device.context.create_comp_channel()?),
            false => None,
        };
        let ends = completion_queues(device, test, channel.as_ref())?;
        let (targets, srq) = match test.connection {
            ConnectionType::Xrc => {
                let (targets, srq) = xrc_receivers(device, &pd, &ends, test, packet_sequence_number())?;
                (Some(targets), Some(srq))
            }
            _ => (None, shared_queue(&pd, test)?),
        };
        let own_srq = srq.as_ref().filter(|_| targets.is_none());
        let pair = |_| {
            let queue_pair = queue_pair(device, &pd, (&ends, own_srq), test, inline_size)?;
            let endpoint = Endpoint::new(&queue_pair, &device.path, packet_sequence_number());
            Ok((queue_pair, endpoint))
        };
        let pairs = (0..test.queue_pairs).map(pair).collect::<Result<_, Error>>()?;
        let answered = test.answered(&device.limits);
        Ok(Self {
            device,
            pd,
            pairs,
            ends,
            targets,
            srq,
            sleeper: channel.map(Sleeper),
            memory,
            layout,
            is_relaxed,
            inline_size,
            answered,
        })
    }

    /// The layout of messages in the memory.
    pub fn layout(&self) -> BufferLayout {
        self.layout
    }

    /// The information that the peer needs about each queue pair.
    pub fn resources(&self) -> Vec<Resources> {
        let of_pair = |(index, (_, endpoint)): (usize, &(_, Endpoint))| Resources {
            endpoint: endpoint.clone(),
            rkey: self.memory.rkey(),
            address: self.memory.address() + self.layout.receive_offset(index),
            length: self.layout.half(),
            answered: self.answered,
            marked: if self.memory.is_seen() { u64::MAX } else { self.inline_size.into() },
            xrc: self.targets.as_ref().and_then(|targets| targets.target(index)),
        };
        self.pairs.iter().enumerate().map(of_pair).collect()
    }

    /// Connects each queue pair to one of the peer's, by rdma_cm if a connector is given.
    /// `all_pairs` counts the queue pairs of all threads.
    ///
    /// # Errors
    ///
    /// The peer cannot be reached.
    pub fn connect(
        self,
        remotes: &[Resources],
        test: &TestPlan,
        all_pairs: u32,
        mut manager: Option<CmConnector<'_>>,
    ) -> Result<Workload, Error> {
        let Self {
            device,
            pd,
            pairs: own,
            ends,
            mut targets,
            srq,
            sleeper,
            memory,
            layout,
            is_relaxed,
            inline_size,
            answered,
        } = self;
        let calls = match own.first() {
            Some((pair, _)) if pair.is_extended() => "ibv_wr_*",
            _ => "ibv_post_send",
        };
        let (mut pairs, mut seeds) = (Vec::new(), Vec::new());
        let (mut address, mut path, mut connections) = (None, String::new(), Vec::new());
        for (index, ((mut queue_pair, endpoint), remote)) in own.into_iter().zip(remotes).enumerate() {
            let options = test.path_options.applied_to(ConnectOptions {
                access_flags: access(test, false),
                max_read_atomic: test.outstanding(&device.limits, remote.answered),
                max_dest_read_atomic: answered,
                ..ConnectOptions::default()
            });
            if let Some(manager) = &mut manager {
                let connection =
                    manager.connect(index as u32, &mut queue_pair, &options, &test.path_options)?;
                path = format!("by rdma_cm, from {}", device.path.reason());
                connections.push(connection);
            } else if test.connection == ConnectionType::Ud {
                activate_ud(&mut queue_pair, &device.path, QKEY, endpoint.packet_seq_num, &options)?;
                if address.is_none() {
                    address = Some(datagram_address(device, &pd, remote, &options)?);
                }
                path = format!("datagrams from {}", device.path.reason());
            } else {
                if let Some(targets) = &mut targets {
                    targets.connect(index, device, &remote.endpoint, &options)?;
                }
                let remote = remote.xrc.as_ref().map_or(&remote.endpoint, |target| &target.endpoint);
                let connection = connect(&mut queue_pair, &device.path, &endpoint, remote, &options)?;
                path = connection.to_string();
            }
            if test.operation.fetches() {
                path += &format!(", {} outstanding", options.max_read_atomic);
            }
            let location = MessageLocation {
                local: memory.address() + layout.send_offset(index),
                remote: remote.address,
                rkey: remote.rkey,
                queue: remote.xrc.as_ref().map_or(remote.endpoint.qp_number, |target| target.srqn),
            };
            seeds.push(Seeds { own: seed(&endpoint), peer: seed(&remote.endpoint) });
            pairs.push(TestPair { queue_pair, location });
        }
        let (buffer, ordering) = (device.buffer, if is_relaxed { "relaxed" } else { "strict" });
        let description = format!(
            "inline up to {inline_size} bytes, by {calls}, {ordering} ordering, buffer {buffer}; {path}"
        );
        let channel = TestChannel::new(
            ConnectedSide { pairs, targets, srq, address },
            ends,
            memory,
            layout,
            test,
            inline_size,
        );
        let recorder = LatencyRecorder::new();
        let clock = test.device_clock.then(|| DeviceClock::of(&device.context)).transpose()?;
        Ok(Workload {
            description,
            test: test.clone(),
            channel,
            layout,
            parts: SideTasks { measures: true, serves: true },
            seeds,
            marked: remotes.first().map_or(u64::MAX, |remote| remote.marked),
            sent: 0,
            notes: SampleTimes::new(),
            recorder,
            clock,
            all_pairs,
            sleeper,
            _connections: connections,
        })
    }
}

/// The numbers of messages of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCounts {
    /// Messages that this side sent.
    pub sent: u64,
    /// Messages of the peer that consumed a receive here.
    pub taken: u64,
}

/// A side that is ready to run. It shares no cache line with another thread's.
#[derive(Debug)]
#[repr(align(128))]
pub struct Workload {
    description: String,
    test: TestPlan,
    channel: TestChannel,
    layout: BufferLayout,
    parts: SideTasks,
    seeds: Vec<Seeds>,
    /// The largest size for which the peer writes the last byte as a mark.
    marked: u64,
    /// Messages sent of the last size.
    sent: u64,
    notes: SampleTimes,
    recorder: LatencyRecorder,
    /// The device's clock, if it measures instead of the program's.
    clock: Option<DeviceClock>,
    /// Queue pairs of all threads.
    all_pairs: u32,
    /// Sleeps until a completion event, unless the side polls.
    sleeper: Option<Sleeper>,
    /// rdma_cm connections, which disconnect when they are dropped.
    _connections: Vec<Connection>,
}

impl Workload {
    /// The connection of the two sides, in one line.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Changes the length of the test, whose other parameters are the same.
    pub(super) fn set_length(&mut self, test: &TestPlan) {
        let TestPlan { iterations, duration, tx_depth, rx_depth, .. } = *test;
        self.test = TestPlan { iterations, duration, tx_depth, rx_depth, ..self.test.clone() };
    }

    /// Prepares messages of this size and this side's tasks, before either side begins to measure.
    ///
    /// # Errors
    ///
    /// The device refuses a receive.
    ///
    /// # Panics
    ///
    /// If the plan does not contain the size.
    pub fn prepare(&mut self, size: u64, parts: SideTasks) -> Result<(), Error> {
        (self.parts, self.sent) = (parts, 0);
        let own = self.seeds.first().map_or(0, |seeds| seeds.own);
        self.channel.resize(size as u32, |place| pattern(own, size, place));
        if self.test.data_validation {
            self.prepare_validation(size)?;
        }
        if self.test.operation == TestOperation::Write {
            self.channel.flag(self.layout.receive_offset(0) + size - 1).store(latency::UNMARKED);
        }
        if self.test.operation.takes_receives() && self.test.messages_come_to(parts) {
            self.channel.prepare_receives(&self.test)?;
        }
        Ok(())
    }

    /// Measures messages of this size. The client calls it, and the server too if both measure. The
    /// recorder then holds the latencies.
    pub(super) fn measure(
        &mut self,
        pace: &PhaseClock,
        size: u64,
        watch: &mut Watch<'_>,
    ) -> Result<SendTotals, Error> {
        if let Some(rate) = self.test.rate {
            return self.measure_at(rate, pace, size, watch);
        }
        let part = match self.test.measure {
            Measure::Latency(LatencyDefinition::PingPong) => LatencyPart::Ping,
            Measure::Latency(LatencyDefinition::Completion) => LatencyPart::Complete,
            _ => {
                let chain = Chain::new(&self.test, self.layout.cycle(size));
                let (batch, takes) = (self.test.poll_batch(), self.takes());
                let tally = watch.sleeping(&mut self.sleeper, |watch| {
                    self.channel.run(bandwidth::BandwidthRun { chain, batch, takes, pace, watch })
                })?;
                self.sent = tally.sent;
                return Ok(tally);
            }
        };
        let begin = watch.now();
        match (&self.clock, part) {
            (Some(clock), LatencyPart::Complete) => {
                let iterations = self.test.most_messages();
                let recorder = &mut self.recorder;
                let channel = &mut self.channel;
                watch.sleeping(&mut self.sleeper, |watch| {
                    channel.run(device_clock::DeviceClockRun { iterations, clock, pace, recorder, watch })
                })?;
            }
            _ => self.run_latency(part, pace, watch)?,
        }
        self.sent = self.recorder.len();
        Ok(SendTotals { sent: self.sent, counted: self.sent, begin, end: watch.now() })
    }

    /// Measures at a given rate, of which this thread has its queue pairs' share.
    fn measure_at(
        &mut self,
        rate: Rate,
        pace: &PhaseClock,
        size: u64,
        watch: &mut Watch<'_>,
    ) -> Result<SendTotals, Error> {
        let part = f64::from(self.test.queue_pairs) / f64::from(self.all_pairs);
        let run = open_loop::OpenLoopRun {
            iterations: self.test.most_messages(),
            depth: self.test.depth(),
            batch: self.test.poll_batch(),
            cycle: self.layout.cycle(size),
            ticks: watch.ticks_of_a_second() / (rate.messages_per_second(size) * part),
            burst: rate.burst,
            pace,
            recorder: &mut self.recorder,
            watch,
        };
        let tally = self.channel.run(run)?;
        self.sent = tally.sent;
        Ok(tally)
    }

    /// The last measurement's latencies.
    pub(super) fn recorder(&self) -> &LatencyRecorder {
        &self.recorder
    }

    /// Receives the peer's messages while other threads of this side measure, if both sides do.
    pub(super) fn keep_taking(&mut self, measuring: &AtomicU32, watch: &mut Watch<'_>) -> Result<(), Error> {
        if self.test.thread_count() == 1 || !self.takes() {
            return Ok(());
        }
        self.take(Some(measuring), watch)
    }

    /// Whether the peer's messages consume receives while this side measures bandwidth.
    fn takes(&self) -> bool {
        self.test.measure == Measure::Bandwidth && self.parts.serves && self.test.operation.takes_receives()
    }

    fn take(&mut self, measuring: Option<&AtomicU32>, watch: &mut Watch<'_>) -> Result<(), Error> {
        let all_arrive = self.test.connection.is_reliable() && self.test.duration.is_none();
        let batch = self.test.poll_batch();
        let taken = watch.sleeping(&mut self.sleeper, |watch| {
            self.channel.run(bandwidth::ReceiveRun { all_arrive, measuring, batch, watch })
        });
        taken.map(drop)
    }

    /// Runs the server's part: answers messages, or receives them.
    ///
    /// # Errors
    ///
    /// A message failed, or the peer ended.
    pub(super) fn answer(&mut self, watch: &mut Watch<'_>) -> Result<(), Error> {
        match self.test.measure {
            Measure::Latency(LatencyDefinition::PingPong) if self.test.duration.is_some() => {
                watch.end_with_peer();
                match self.run_latency(LatencyPart::Pong, &PhaseClock::steady(), watch) {
                    Err(Error::Control(ControlError::PeerIsDone { .. })) => Ok(()),
                    ended => ended,
                }
            }
            Measure::Latency(LatencyDefinition::PingPong) => {
                self.run_latency(LatencyPart::Pong, &PhaseClock::steady(), watch)
            }
            _ => self.take(None, watch),
        }
    }

    /// The numbers of messages of this size after the measurement. It also validates their bytes,
    /// if the test asks for that.
    ///
    /// # Errors
    ///
    /// The bytes differ.
    pub fn arrived(&self, size: u64) -> Result<MessageCounts, Error> {
        let taken = self.channel.taken();
        if self.test.data_validation {
            let expected =
                match self.test.operation.takes_receives() && self.test.messages_come_to(self.parts) {
                    true => self.test.iterations.saturating_mul(self.test.queue_pairs.into()),
                    false => 0,
                };
            if taken < expected {
                return Err(ValidationError::Lost { lost: expected - taken, size }.into());
            }
            let validation = self.validation(size);
            (0..self.seeds.len()).try_for_each(|pair| {
                let seeds = self.seeds[if validation.is_inline { 0 } else { pair }];
                validation.verify(pair, seeds, self.parts)
            })?;
        }
        Ok(MessageCounts { sent: self.sent, taken })
    }

    fn validation(&self, size: u64) -> Validation<'_> {
        let Self { test, layout, .. } = self;
        let (cycle, _) = receives(test, *layout, size);
        let is_inline = size <= u64::from(test.inline_size.unwrap_or(0)) && !test.operation.fetches();
        let receives = (cycle, test.connection.header());
        let is_marked = is_inline || size <= self.marked;
        Validation {
            test,
            memory: self.channel.memory(),
            layout: *layout,
            size,
            is_marked,
            is_inline,
            receives,
        }
    }

    fn prepare_validation(&mut self, size: u64) -> Result<(), Error> {
        if self.test.operation == TestOperation::CompareSwap {
            self.channel.set_swap(SWAP.0, SWAP.1);
        }
        let validation = self.validation(size);
        self.seeds.iter().enumerate().try_for_each(|(pair, seeds)| validation.prepare(pair, *seeds))
    }

    fn run_latency(
        &mut self,
        part: LatencyPart,
        pace: &PhaseClock,
        watch: &mut Watch<'_>,
    ) -> Result<(), Error> {
        if !self.test.connection.is_reliable() {
            watch.expect_losses();
        }
        let Self { channel, notes, recorder, test, sleeper, .. } = self;
        let iterations = test.most_messages();
        watch.sleeping(sleeper, |watch| {
            channel.run(latency::LatencyRun { part, iterations, pace, notes, recorder, watch })
        })
    }
}

/// The peer's address for datagrams.
fn datagram_address(
    device: &LocalDevice,
    pd: &ProtectionDomain,
    remote: &Resources,
    options: &ConnectOptions,
) -> Result<AddressHandle, Error> {
    Ok(pd.create_ah(&device.path.address_to(&remote.endpoint, options)?)?)
}

/// The seed of a queue pair's pattern for validation.
fn seed(endpoint: &Endpoint) -> u64 {
    u64::from(endpoint.qp_number) << 24 | u64::from(endpoint.packet_seq_num)
}

/// A start that differs from run to run, so that the queue pair rejects packets of an earlier
/// connection.
fn packet_sequence_number() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.subsec_nanos()) & 0xff_ffff
}
