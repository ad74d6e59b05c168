//! What cannot be run, and what to do instead.

use super::{
    ATOMIC_SIZE, ConnectionType, LEAST_ITERATIONS, MOST_QUEUE_PAIRS, MOST_THREADS, OrderingError,
    PathOptionsError, QueueError, SizeSweepError, TestOperation,
};
use crate::memory::UnseenError;

/// A test that cannot be run: the value, the limit and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A message without bytes.
    #[error("-s 0 is below the smallest message, 1 byte: give -s 1 or more")]
    ZeroSize,
    /// No power of two to measure.
    #[error("--max-msg-size {given} is below the first size of -a, 2: give --max-msg-size 2 or more")]
    MaxSizeTooSmall {
        /// What the user gave.
        given: u64,
    },
    /// No size of the grid to measure.
    #[error(
        "--max-msg-size {given} is below the first size of the grid, 128: give --max-msg-size 128 or more, or -s"
    )]
    BelowTheGrid {
        /// What the user gave.
        given: u64,
    },
    /// What queue pairs move has no answer.
    #[error("{operation} has no grid: measure msg grid")]
    EchoOfPairs {
        /// The operation.
        operation: TestOperation,
    },
    /// Too few messages for a figure.
    #[error(
        "-n {given} is below the least number of iterations, {LEAST_ITERATIONS}: give -n {LEAST_ITERATIONS} or more"
    )]
    TooFewIterations {
        /// What the user gave.
        given: u64,
    },
    /// A count that must not be 0.
    #[error("{flag} 0 is below the least count, 1: give {flag} 1 or more")]
    ZeroCount {
        /// The flag.
        flag: &'static str,
    },
    /// Ports are counted from 1.
    #[error("-i {given} is outside the numbers of ports, 1 to 255: give -i 1 for the first port")]
    NoSuchPortNumber {
        /// What the user gave.
        given: u32,
    },
    /// A chain that never fits into the queue.
    #[error(
        "-l {post_list} is above the number of messages under way, -t {tx_depth}: \
         give -l {tx_depth} or less, or -t {post_list} or more"
    )]
    PostListAboveDepth {
        /// Messages for each doorbell.
        post_list: u32,
        /// Messages under way.
        tx_depth: u32,
    },
    /// A chain would be left over.
    #[error(
        "-n {iterations} is not a multiple of -l {post_list}: give -n {}",
        iterations.next_multiple_of(u64::from(*post_list))
    )]
    IterationsNotInLists {
        /// Messages for each size.
        iterations: u64,
        /// Messages for each doorbell.
        post_list: u32,
    },
    /// A chain's last message would go without a completion.
    #[error("-l {post_list} is not a multiple of -Q {cq_mod}: give -Q {post_list} or leave -Q out")]
    PostListNotInIntervals {
        /// Messages for each doorbell.
        post_list: u32,
        /// Messages for each completion.
        cq_mod: u32,
    },
    /// Latency is measured one message at a time.
    #[error("-l {given} is above the limit of a latency test, 1: leave -l out, or measure bw")]
    PostListInLatency {
        /// What the user gave.
        given: u32,
    },
    /// Messages of trespass are not that long, or no block of its pool is.
    #[error(
        "{flag} {given} is above the longest message, {limit}: give {flag} {limit} or less{}",
        if *limit < (1 << 30) { ", or --api copy" } else { "" }
    )]
    MessageTooLong {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size.
        given: u64,
        /// The longest.
        limit: u64,
    },
    /// A connection of trespass takes fewer blocks at a time.
    #[error(
        "-t {given} is above the blocks that a connection takes at a time, {limit}: give -t {limit} or less"
    )]
    TooManyBlocks {
        /// Messages under way.
        given: u32,
        /// The limit.
        limit: u32,
    },
    /// Messages find their device by this side's address.
    #[error("-i {given} of which device? Name it with -d, or leave -i out")]
    PortWithoutDevice {
        /// The port.
        given: u8,
    },
    /// One connection, and a number of messages.
    #[error(
        "tcp is measured over one connection, one way, by a number of messages: run the same release on both sides"
    )]
    NotOfTcp,
    /// An atomic operation has one size.
    #[error("{given} with atomic operations, which are of {ATOMIC_SIZE} bytes: leave it out")]
    NotAtomicSize {
        /// What the user gave, with its flag.
        given: String,
    },
    /// A list that is never full.
    #[error(
        "--recv-post-list {recv_post_list} is above the receives posted at a time, -r {rx_depth}: give --recv-post-list \
         {rx_depth} or less"
    )]
    ReceiveListAboveDepth {
        /// Receives posted by one call.
        recv_post_list: u32,
        /// Receives posted at a time.
        rx_depth: u32,
    },
    /// Both ways have no reverse.
    #[error("-b and --reversed do not go together, as both sides measure with -b: leave one of them out")]
    BothWaysReversed,
    /// What was sent last is not known.
    #[error("-D {seconds} and --data-validation do not go together: give -n in place of -D")]
    ValidationOfDuration {
        /// How long.
        seconds: u32,
    },
    /// The verbs have no such thing.
    #[error(
        "-c {connection} has no {operation}: give -c RC{}",
        if *connection == ConnectionType::Ud && !operation.fetches() { ", or -c UC" } else { "" }
    )]
    NotOverConnection {
        /// The type of the connection.
        connection: ConnectionType,
        /// The operation.
        operation: TestOperation,
    },
    /// A datagram is one packet.
    #[error(
        "{flag} {given} is above the MTU of {device} port {port}, {limit}, which no datagram exceeds: give {flag} {limit} \
         or less"
    )]
    SizeAboveMtu {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size.
        given: u64,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// Its MTU.
        limit: u32,
    },
    /// Receives that nobody takes.
    #[error("-r {given} with {operation}, which takes no receives: leave -r out, or add --imm")]
    NoReceives {
        /// What the user gave.
        given: u32,
        /// The operation.
        operation: TestOperation,
    },
    /// More queue pairs than perftest has.
    #[error(
        "-q {given} is above the most queue pairs of a test, {MOST_QUEUE_PAIRS}: give -q {MOST_QUEUE_PAIRS} or less"
    )]
    TooManyQueuePairs {
        /// What the user gave.
        given: u32,
    },
    /// Latency is measured on one queue pair of a thread.
    #[error(
        "-q {given} is above the limit of a latency test, {limit}{}: leave -q out, or measure bw",
        if *limit > 1 { ", one for each thread" } else { "" }
    )]
    QueuePairsInLatency {
        /// What the user gave.
        given: u32,
        /// How many there may be.
        limit: u32,
    },
    /// Latency is that of one message at a time.
    #[error("-b has no meaning in a latency test: leave -b out, or measure bw")]
    BidirectionalLatency,
    /// The peer cannot answer what it does not notice.
    #[error(
        "--latency pingpong with {operation}, of which the peer's program learns nothing: give --latency completion, or \
         leave it out"
    )]
    NothingToAnswer {
        /// The operation.
        operation: TestOperation,
    },
    /// The device has no atomic operations.
    #[error("{device} has no atomic operations (atomic_cap): choose another device with -d")]
    NoAtomics {
        /// The device's name.
        device: String,
    },
    /// The device has less of something.
    #[error(
        "{flag} {given}{} is above {name} of {device}, {limit}: give {flag} {most} or less",
        if *count > u64::from(*given) { format!(", {count} with all queue pairs,") } else { String::new() }
    )]
    AboveDevice {
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: u32,
        /// How many that makes.
        count: u64,
        /// The attribute of the device.
        name: &'static str,
        /// The device's name.
        device: String,
        /// What it can do.
        limit: u32,
        /// What may be given.
        most: u32,
    },
    /// The port sends no such message.
    #[error(
        "{flag} {given} is above max_msg_sz of {device} port {port}, {limit}: give {flag} {limit} or less"
    )]
    SizeAbovePort {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size.
        given: u64,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// What it can do.
        limit: u32,
    },
    /// A mix of one kind.
    #[error(
        "a mix with {reads} % reads is none: give --ratio read=PERCENT with 1 to 99, or measure read or write"
    )]
    NoMix {
        /// What the user gave.
        reads: u8,
    },
    /// Reads bring bytes to where writes send them from.
    #[error(
        "mix and --data-validation do not go together: leave it out, or measure read and write by themselves"
    )]
    ValidationOfMix,
    /// A device, or port, that nobody uses.
    #[error(
        "-d names {devices} devices or ports, and {flag} {given} is fewer: give {flag} {devices} or more"
    )]
    DevicesAbove {
        /// Devices or ports.
        devices: u32,
        /// The flag.
        flag: &'static str,
        /// Its value.
        given: u32,
    },
    /// No list of devices.
    #[error(
        "-d {given} is no list of devices: give NAME or NAME:PORT with a port from 1 to 255, and commas in between"
    )]
    NoSuchDeviceName {
        /// What the user gave.
        given: String,
    },
    /// A port of which device?
    #[error("-i and -d {given} do not go together: give each device its port, NAME:PORT")]
    PortOfSeveral {
        /// What the user gave.
        given: String,
    },
    /// Ports of one device, which have their numbers.
    #[error(
        "--dualport is of one device, -d NAME, and of its ports 1 and 2: leave -i and the list -d {given} out, or --dualport"
    )]
    DualPortOf {
        /// What the user gave.
        given: String,
    },
    /// Twice the same.
    #[error("-d names {given} twice: leave one of them out, and give more --threads")]
    SameDevice {
        /// The device.
        given: String,
    },
    /// The device's clock is in completions alone.
    #[error(
        "--clock device and {flag} do not go together: measure lat --latency completion, or leave --clock out"
    )]
    NotOfDeviceClock {
        /// The other flag.
        flag: &'static str,
    },
    /// Two rates.
    #[error("--rate and --rate_limit do not go together: leave one of them out")]
    TwoRates,
    /// A flag of a rate, without one.
    #[error("{flag} has no effect without {rate}: add {rate}, or leave {flag} out")]
    OfNoRate {
        /// The flag.
        flag: &'static str,
        /// What it is about.
        rate: &'static str,
    },
    /// No time is that short.
    #[error(
        "--rate {given} {unit} is outside of what there is, 1 to {limit}: give a rate in between, or leave it out"
    )]
    NoSuchRate {
        /// What the user gave.
        given: u64,
        /// The highest.
        limit: u64,
        /// What of.
        unit: &'static str,
    },
    /// A rate says when each message is sent.
    #[error("{flag} and --rate do not go together: {remedy}")]
    NotWithRate {
        /// The other flag.
        flag: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Two warm-ups.
    #[error("--warmup and --perform-warm-up do not go together: leave one of them out")]
    TwoWarmUps,
    /// Where messages come to is not known.
    #[error(
        "--warmup {seconds}s and --data-validation do not go together, as it is not known where the first messages \
         come to then: give a number of messages, such as --warmup 100"
    )]
    ValidationAfterTime {
        /// How long.
        seconds: u32,
    },
    /// The same, where messages may be lost before.
    #[error(
        "--data-validation with a warm-up over -c {connection}, of which messages may be lost: leave the warm-up out, or \
         give -c RC"
    )]
    ValidationAfterLosses {
        /// The type of the connection.
        connection: ConnectionType,
    },
    /// A thread without a queue pair.
    #[error(
        "--threads {threads} is above the queue pairs that they share, -q {queue_pairs}: give --threads {queue_pairs} or less, \
         or -q {threads} or more"
    )]
    ThreadsAboveQueuePairs {
        /// Threads.
        threads: u32,
        /// Queue pairs.
        queue_pairs: u32,
    },
    /// More threads than any test has.
    #[error(
        "--threads {given} is above the most threads of a test, {MOST_THREADS}: give --threads {MOST_THREADS} or less"
    )]
    TooManyThreads {
        /// What the user gave.
        given: u32,
    },
    /// The server gives one client less memory.
    #[error(
        "the test takes {} bytes of the server's memory, {messages} for messages and about {queues} for queues, and a client \
         is given {limit}: give a smaller -s or --max-msg-size, -q, -t or -r, or have the server give more with `stride-perf \
         serve --max-memory BYTES`",
        messages.saturating_add(*queues)
    )]
    MoreThanServed {
        /// What the messages need.
        messages: u64,
        /// What the queues need.
        queues: u64,
        /// The server's limit.
        limit: u64,
    },
    /// There are no such sizes.
    #[error(transparent)]
    SizeSweep(#[from] SizeSweepError),
    /// There is no such way.
    #[error(transparent)]
    Way(#[from] PathOptionsError),
    /// There are no such queues.
    #[error(transparent)]
    Queues(#[from] QueueError),
    /// Writes cannot be reordered.
    #[error(transparent)]
    Ordering(#[from] OrderingError),
    /// Nobody sees what is waited for.
    #[error(transparent)]
    Memory(#[from] UnseenError),
}
