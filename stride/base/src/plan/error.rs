//! Reasons why a test cannot be run, with their remedies.

use super::{
    ATOMIC_SIZE, ConnectionType, LEAST_ITERATIONS, MOST_QUEUE_PAIRS, MOST_THREADS, Measure, OrderingError,
    PathOptionsError, QueueError, SizeSweepError, TestOperation,
};
use crate::memory::UnseenError;
use crate::seconds::Seconds;

/// A test that cannot be run. The text names the value, the limit and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The message size is 0.
    #[error("-s 0 is below the smallest message, 1 byte: give -s 1 or more")]
    ZeroSize,
    /// The sizes from 2 to the maximum contain no power of two.
    #[error("--max-msg-size {given} is below the first size of -a, 2: give --max-msg-size 2 or more")]
    MaxSizeTooSmall {
        /// The maximum that the user gave.
        given: u64,
    },
    /// The maximum lies below the first size of the grid.
    #[error(
        "--max-msg-size {given} is below the first size of the grid, 128: give --max-msg-size 128 or more, or -s"
    )]
    BelowTheGrid {
        /// The maximum that the user gave.
        given: u64,
    },
    /// Only messages of trespass have answers.
    #[error("{operation} has no grid: measure msg grid")]
    EchoOfPairs {
        /// The operation that was given.
        operation: TestOperation,
    },
    /// The number of iterations is too small.
    #[error(
        "-n {given} is below the least number of iterations, {LEAST_ITERATIONS}: give -n {LEAST_ITERATIONS} or more"
    )]
    TooFewIterations {
        /// The number that the user gave.
        given: u64,
    },
    /// The user gave 0, and the least count is 1.
    #[error("{flag} 0 is below the least count, 1: give {flag} 1 or more")]
    ZeroCount {
        /// The flag that got the 0.
        flag: &'static str,
    },
    /// The user gave a duration of 0.
    #[error("{flag} 0 leaves no time to send: give {flag} 1 or more")]
    NoTime {
        /// The flag that got the 0.
        flag: &'static str,
    },
    /// Port numbers start at 1.
    #[error("-i {given} is outside the numbers of ports, 1 to 255: give -i 1 for the first port")]
    NoSuchPortNumber {
        /// The number that the user gave.
        given: u32,
    },
    /// A list of requests never fits into the send queue.
    #[error(
        "-l {post_list} is above the number of messages under way, -t {tx_depth}: \
         give -l {tx_depth} or less, or -t {post_list} or more"
    )]
    PostListAboveDepth {
        /// Messages per doorbell.
        post_list: u32,
        /// Messages in flight.
        tx_depth: u32,
    },
    /// The last list would be incomplete.
    #[error(
        "-n {iterations} is not a multiple of -l {post_list}: give -n {}",
        iterations.next_multiple_of(u64::from(*post_list))
    )]
    IterationsNotInLists {
        /// Messages of each size.
        iterations: u64,
        /// Messages per doorbell.
        post_list: u32,
    },
    /// The last message of a list would not be signaled.
    #[error("-l {post_list} is not a multiple of -Q {cq_mod}: give -Q {post_list} or leave -Q out")]
    PostListNotInIntervals {
        /// Messages per doorbell.
        post_list: u32,
        /// Messages per completion.
        cq_mod: u32,
    },
    /// A latency test posts one message at a time.
    #[error("-l {given} is above the limit of a latency test, 1: leave -l out, or measure bw")]
    PostListInLatency {
        /// The list length that the user gave.
        given: u32,
    },
    /// The size exceeds the longest message of trespass, or the largest block of its pool.
    #[error(
        "{flag} {given} is above the longest message, {limit}: give {flag} {limit} or less{}",
        if *limit < (1 << 30) { ", or --api copy" } else { "" }
    )]
    MessageTooLong {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size in bytes.
        given: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A connection of trespass accepts fewer blocks at a time.
    #[error(
        "-t {given} is above the blocks that a connection takes at a time, {limit}: give -t {limit} or less"
    )]
    TooManyBlocks {
        /// Messages in flight.
        given: u32,
        /// The limit on blocks.
        limit: u32,
    },
    /// A mux has requests and answers alone.
    #[error("--api mux is measured by grid, and this is {measure}: use `msg grid`, or --api copy")]
    MuxOfGrid {
        /// The measure that the user chose.
        measure: Measure,
    },
    /// A side of a mux accepts fewer requests at a time.
    #[error(
        "-t {given} is above the requests that each side accepts at a time, {limit}: give -t {limit} or less"
    )]
    TooManyRequests {
        /// Requests in flight.
        given: u32,
        /// Requests that a side accepts.
        limit: u32,
    },
    /// Answers are delayed by servers with a mux.
    #[error("--delay-us {given} needs --api mux: other messages are answered one after another")]
    DelayOfMux {
        /// The delay that the user gave.
        given: u32,
    },
    /// Messages of trespass find their device by this side's address, so a port needs a device.
    #[error("-i {given} of which device? Name it with -d, or leave -i out")]
    PortWithoutDevice {
        /// The port that the user gave.
        given: u8,
    },
    /// The peer's plan for TCP has several connections, both directions or a duration.
    #[error(
        "tcp is measured over one connection, one way, by a number of messages: run the same release on both sides"
    )]
    NotOfTcp,
    /// Atomic operations have a fixed size.
    #[error("{given} with atomic operations, which are of {ATOMIC_SIZE} bytes: leave it out")]
    NotAtomicSize {
        /// The size that the user gave, with its flag.
        given: String,
    },
    /// A list of receives never becomes full.
    #[error(
        "--recv-post-list {recv_post_list} is above the receives posted at a time, -r {rx_depth}: give --recv-post-list \
         {rx_depth} or less"
    )]
    ReceiveListAboveDepth {
        /// Receives per call.
        recv_post_list: u32,
        /// Receives posted at a time.
        rx_depth: u32,
    },
    /// `--bidirectional` and `--reversed` exclude each other.
    #[error("-b and --reversed do not go together, as both sides measure with -b: leave one of them out")]
    BothWaysReversed,
    /// With a duration the last messages are not known, so they cannot be validated.
    #[error("-D {seconds} and --data-validation do not go together: give -n in place of -D")]
    ValidationOfDuration {
        /// The duration.
        seconds: Seconds,
    },
    /// The verbs do not define the operation for this connection type.
    #[error(
        "-c {connection} has no {operation}: give -c RC{}",
        if *connection == ConnectionType::Ud && !operation.fetches() { ", or -c UC" } else { "" }
    )]
    NotOverConnection {
        /// The connection type.
        connection: ConnectionType,
        /// The operation that was given.
        operation: TestOperation,
    },
    /// A datagram is limited to one packet.
    #[error(
        "{flag} {given} is above the MTU of {device} port {port}, {limit}, which no datagram exceeds: give {flag} {limit} \
         or less"
    )]
    SizeAboveMtu {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size in bytes.
        given: u64,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The port's MTU in bytes.
        limit: u32,
    },
    /// The operation consumes no receives.
    #[error("-r {given} with {operation}, which takes no receives: leave -r out, or add --imm")]
    NoReceives {
        /// The number of receives that the user gave.
        given: u32,
        /// The operation that was given.
        operation: TestOperation,
    },
    /// The number exceeds perftest's limit.
    #[error(
        "-q {given} is above the most queue pairs of a test, {MOST_QUEUE_PAIRS}: give -q {MOST_QUEUE_PAIRS} or less"
    )]
    TooManyQueuePairs {
        /// The number that the user gave.
        given: u32,
    },
    /// A latency test uses one queue pair per thread.
    #[error(
        "-q {given} is above the limit of a latency test, {limit}{}: leave -q out, or measure bw",
        if *limit > 1 { ", one for each thread" } else { "" }
    )]
    QueuePairsInLatency {
        /// The number that the user gave.
        given: u32,
        /// The largest number.
        limit: u32,
    },
    /// Latency is measured in one direction, one message at a time.
    #[error("-b has no meaning in a latency test: leave -b out, or measure bw")]
    BidirectionalLatency,
    /// The peer's program does not notice these messages, so it cannot answer.
    #[error(
        "--latency pingpong with {operation}, of which the peer's program learns nothing: give --latency completion, or \
         leave it out"
    )]
    NothingToAnswer {
        /// The operation that was given.
        operation: TestOperation,
    },
    /// The device does not support atomic operations.
    #[error("{device} has no atomic operations (atomic_cap): choose another device with -d")]
    NoAtomics {
        /// The device's name.
        device: String,
    },
    /// A value exceeds a limit of the device.
    #[error(
        "{flag} {given}{} is above {name} of {device}, {limit}: give {flag} {most} or less",
        if *count > u64::from(*given) { format!(", {count} with all queue pairs,") } else { String::new() }
    )]
    AboveDevice {
        /// The flag that gave the value.
        flag: &'static str,
        /// The flag's value.
        given: u32,
        /// The resulting number of resources.
        count: u64,
        /// The attribute with the limit.
        name: &'static str,
        /// The device's name.
        device: String,
        /// The device's limit.
        limit: u32,
        /// The largest value that the flag may have.
        most: u32,
    },
    /// The size exceeds the port's longest message.
    #[error(
        "{flag} {given} is above max_msg_sz of {device} port {port}, {limit}: give {flag} {limit} or less"
    )]
    SizeAbovePort {
        /// The flag that gave the size.
        flag: &'static str,
        /// The size in bytes.
        given: u64,
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The port's limit in bytes.
        limit: u32,
    },
    /// The mix consists of one kind only.
    #[error(
        "a mix with {reads} % reads is none: give --ratio read=PERCENT with 1 to 99, or measure read or write"
    )]
    NoMix {
        /// The percentage that the user gave.
        reads: u8,
    },
    /// Reads overwrite the memory from which writes send, so the content cannot be validated.
    #[error(
        "mix and --data-validation do not go together: leave it out, or measure read and write by themselves"
    )]
    ValidationOfMix,
    /// Some devices or ports would be unused.
    #[error(
        "-d names {devices} devices or ports, and {flag} {given} is fewer: give {flag} {devices} or more"
    )]
    DevicesAbove {
        /// The number of devices or ports.
        devices: u32,
        /// The flag that is too small.
        flag: &'static str,
        /// The flag's value.
        given: u32,
    },
    /// The list of devices is malformed.
    #[error(
        "-d {given} is no list of devices: give NAME or NAME:PORT with a port from 1 to 255, and commas in between"
    )]
    NoSuchDeviceName {
        /// The list that the user gave.
        given: String,
    },
    /// `-i` does not tell which of several devices it concerns.
    #[error("-i and -d {given} do not go together: give each device its port, NAME:PORT")]
    PortOfSeveral {
        /// The list that the user gave.
        given: String,
    },
    /// `--dualport` concerns ports 1 and 2 of a single device.
    #[error(
        "--dualport is of one device, -d NAME, and of its ports 1 and 2: leave -i and the list -d {given} out, or --dualport"
    )]
    DualPortOf {
        /// The list that the user gave.
        given: String,
    },
    /// A device or port is named twice.
    #[error("-d names {given} twice: leave one of them out, and give more --threads")]
    SameDevice {
        /// The device's name.
        given: String,
    },
    /// The device's clock appears in completions only.
    #[error(
        "--clock device and {flag} do not go together: measure lat --latency completion, or leave --clock out"
    )]
    NotOfDeviceClock {
        /// The conflicting flag.
        flag: &'static str,
    },
    /// Two flags give a rate.
    #[error("--rate and --rate_limit do not go together: leave one of them out")]
    TwoRates,
    /// A flag concerns a rate that was not given.
    #[error("{flag} has no effect without {rate}: add {rate}, or leave {flag} out")]
    OfNoRate {
        /// The flag that was given.
        flag: &'static str,
        /// The missing flag.
        rate: &'static str,
    },
    /// The rate is too high or too low.
    #[error(
        "--rate {given} {unit} is outside of what there is, 1 to {limit}: give a rate in between, or leave it out"
    )]
    NoSuchRate {
        /// The rate that the user gave.
        given: u64,
        /// The highest rate.
        limit: u64,
        /// The unit of both.
        unit: &'static str,
    },
    /// The flag conflicts with a rate, which determines when each message is sent.
    #[error("{flag} and --rate do not go together: {remedy}")]
    NotWithRate {
        /// The conflicting flag.
        flag: String,
        /// What the user can do, in the imperative.
        remedy: &'static str,
    },
    /// Two flags give a warm-up.
    #[error("--warmup and --perform-warm-up do not go together: leave one of them out")]
    TwoWarmUps,
    /// After a timed warm-up the position of the first message is not known, so it cannot be
    /// validated.
    #[error(
        "--warmup {seconds}s and --data-validation do not go together, as it is not known where the first messages \
         come to then: give a number of messages, such as --warmup 100"
    )]
    ValidationAfterTime {
        /// The duration of the warm-up.
        seconds: Seconds,
    },
    /// Over an unreliable connection the warm-up may lose messages, so the position is not known,
    /// either.
    #[error(
        "--data-validation with a warm-up over -c {connection}, of which messages may be lost: leave the warm-up out, or \
         give -c RC"
    )]
    ValidationAfterLosses {
        /// The connection type.
        connection: ConnectionType,
    },
    /// Some threads would have no queue pair.
    #[error(
        "--threads {threads} is above the queue pairs that they share, -q {queue_pairs}: give --threads {queue_pairs} or less, \
         or -q {threads} or more"
    )]
    ThreadsAboveQueuePairs {
        /// The number of threads.
        threads: u32,
        /// The number of queue pairs.
        queue_pairs: u32,
    },
    /// The number of threads exceeds the limit.
    #[error(
        "--threads {given} is above the most threads of a test, {MOST_THREADS}: give --threads {MOST_THREADS} or less"
    )]
    TooManyThreads {
        /// The number that the user gave.
        given: u32,
    },
    /// The test needs more memory than the server grants a client.
    #[error(
        "the test takes {} bytes of the server's memory, {messages} for messages and about {queues} for queues, and a client \
         is given {limit}: give a smaller -s or --max-msg-size, -q, -t or -r, or have the server give more with `stride-perf \
         serve --max-memory BYTES`",
        messages.saturating_add(*queues)
    )]
    MoreThanServed {
        /// Bytes for messages.
        messages: u64,
        /// Bytes for queues, estimated.
        queues: u64,
        /// The server's limit in bytes.
        limit: u64,
    },
    /// The size sweep is invalid.
    #[error(transparent)]
    SizeSweep(#[from] SizeSweepError),
    /// The path options are invalid.
    #[error(transparent)]
    Way(#[from] PathOptionsError),
    /// The queue options are invalid.
    #[error(transparent)]
    Queues(#[from] QueueError),
    /// The device cannot guarantee the requested order of writes.
    #[error(transparent)]
    Ordering(#[from] OrderingError),
    /// The processor cannot see the memory that the test waits on.
    #[error(transparent)]
    Memory(#[from] UnseenError),
}
