//! Many queue pairs on one completion channel, and the device's asynchronous
//! events, in an event loop of one thread: with mio.
//!
//! ```text
//! $ cargo run --example event_loop_mio
//! 8 queue pairs made 1000 writes each, in 8000 wake-ups
//! ```
//!
//! mio tells once that a descriptor has become readable. So whatever is there
//! has to be taken before the next sleep: [`try_next`] until it has nothing.
//! `event_loop_epoll` is the same with epoll itself.
//!
//! [`try_next`]: sideway::ibverbs::completion::CompletionChannel::try_next

use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rdma_examples::crew::Crew;
use rdma_examples::devices;
use rdma_examples::program::{self, Failure, note, say};
use sideway::ibverbs::event::AsyncEventType;

/// Waits for completions and asynchronous events with mio.
#[derive(Parser)]
struct Arguments {
    /// The device [default: the first]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    ib_dev: Option<String>,

    /// The number of queue pairs
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    queue_pairs: u32,

    /// The number of writes of each
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    writes: u32,
}

const COMPLETIONS: Token = Token(0);
const DEVICE: Token = Token(1);

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    program::run(event_loop)
}

fn event_loop() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let list = devices::list()?;
    let context = devices::one(&list, arguments.ib_dev.as_deref())?.open()?;
    let events = context.async_events()?;
    let mut channel = context.create_comp_channel()?;
    let mut crew = Crew::new(&context, &channel, arguments.queue_pairs, arguments.writes)?;

    let mut poll = Poll::new()?;
    let register = |fd: &dyn AsFd, token| {
        poll.registry().register(&mut SourceFd(&fd.as_fd().as_raw_fd()), token, Interest::READABLE)
    };
    register(&channel, COMPLETIONS)?;
    register(&events, DEVICE)?;

    crew.start()?;
    let (mut wake_ups, mut ready) = (0u64, Events::with_capacity(2));
    while !crew.is_done() {
        poll.poll(&mut ready, Some(PATIENCE))?;
        if ready.is_empty() {
            return Err(Failure::work("nothing happened for 30 s"));
        }
        for found in &ready {
            if found.token() == COMPLETIONS {
                while let Some(event) = channel.try_next().map_err(Failure::work)? {
                    wake_ups += 1;
                    crew.go_on(event.cq_context())?;
                }
            } else {
                while let Some(event) = events.try_next().map_err(Failure::work)? {
                    note(format_args!("{}: {:?}", event.event_type(), event.element()));
                    if event.event_type() == AsyncEventType::DeviceFatal {
                        return Err(Failure::work("the device is gone"));
                    }
                }
            }
        }
    }
    let (pairs, writes) = (arguments.queue_pairs, arguments.writes);
    say(format_args!("{pairs} queue pairs made {writes} writes each, in {wake_ups} wake-ups"))
}
