//! The completion times of requests, by the device's clock.
//!
//! ```text
//! $ cargo run --example timestamps -- -n 2
//! soft0: a clock of 1000000 kHz, read to within 20ns
//!                ticks |      since the last |         time by ticks (UTC) |              by the device
//! ---------------------+---------------------+-----------------------------+---------------------------
//!       29382019482711 |                   - |   1795275592.401938475 s    |   1795275592.401938480 s
//! ```
//!
//! A completion has a timestamp in ticks of the device's clock, which a [`ClockConverter`] converts
//! to time. Some devices also report the time of day.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Parser;
use rdma_examples::devices::DeviceArg;
use rdma_examples::loopback::LoopbackQp;
use rdma_examples::program::{self, Failure, say};
use rdma_examples::text_table::TextTable;
use sideway::ibverbs::clock::ClockConverter;
use sideway::ibverbs::completion::{
    CreateCompletionQueueError, GenericCompletionQueue, WorkCompletionFields,
};
use sideway::ibverbs::connect::LocalPath;

/// Shows the timestamps of completions.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    device: DeviceArg,

    /// The number of writes.
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    writes: u64,
}

/// The time limit of a write.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    program::run(timestamps)
}

fn timestamps() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let context = arguments.device.open()?;
    let clock = ClockConverter::new(&context)?;
    let (pd, path) = (context.alloc_pd()?, LocalPath::choose(&context, 1, None)?);

    let ticks = WorkCompletionFields::STANDARD | WorkCompletionFields::CompletionTimestamp;
    let both = ticks | WorkCompletionFields::CompletionTimestampWallclock;
    let mut builder = context.create_cq_builder();
    // A generic queue without timestamps would be created where they are not supported, so that the
    // program asks for them with an extended queue first.
    let fields = match builder.setup_wc_flags(both).build_ex() {
        Ok(_) => both,
        Err(CreateCompletionQueueError::Unsupported(_)) => {
            builder.setup_wc_flags(ticks).build_ex()?;
            ticks
        }
        Err(error) => return Err(error.into()),
    };
    let mut qp = LoopbackQp::new(&pd, &path, builder.setup_wc_flags(fields))?;

    say(format_args!(
        "{}: a clock of {} kHz, read to within {:?}",
        context.name(),
        clock.khz(),
        clock.uncertainty()
    ))?;
    let mut table = TextTable::new(["ticks", "since the last", "time by ticks", "by the device"]);
    let mut last = None;
    for wr_id in 0..arguments.writes {
        qp.write(wr_id)?;
        let (ticks, wallclock) = stamps(&mut qp.cq)?;
        table.push([
            ticks.to_string(),
            last.map_or_else(String::new, |last| format!("{:?}", clock.elapsed(last, ticks))),
            since_1970(clock.system_time(ticks)),
            wallclock.map_or_else(String::new, |nanos| {
                since_1970(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos))
            }),
        ]);
        last = Some(ticks);
    }
    say(table)
}

/// The timestamps of the next completion.
fn stamps(cq: &mut GenericCompletionQueue) -> Result<(u64, Option<u64>), Failure> {
    let start = Instant::now();
    while start.elapsed() < IDLE_LIMIT {
        let mut poller = cq.start_poll().map_err(Failure::work)?;
        if let Some(wc) = poller.next() {
            let ticks =
                wc.completion_timestamp().ok_or_else(|| Failure::work("a completion without a timestamp"))?;
            return Ok((ticks, wc.completion_timestamp_wallclock()));
        }
        poller.finish().map_err(Failure::work)?;
    }
    Err(Failure::work("a write does not complete"))
}

fn since_1970(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:09} s", since.as_secs(), since.subsec_nanos())
}
