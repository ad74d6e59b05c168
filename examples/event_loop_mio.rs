//! Many queue pairs on one completion channel, and the device's asynchronous events, in an event
//! loop of one thread with mio.
//!
//! ```text
//! $ cargo run --example event_loop_mio
//! 8 queue pairs made 1000 writes each, in 8000 wake-ups
//! ```
//!
//! mio reports once that a descriptor has become readable. Therefore the loop must take all pending
//! events before it sleeps: it calls [`try_next`] until no event is left. `event_loop_epoll` is the
//! same with epoll itself.
//!
//! [`try_next`]: sideway::ibverbs::completion::CompletionChannel::try_next

use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rdma_examples::loopback::{LoopbackArgs, LoopbackQps};
use rdma_examples::program::{self, Failure, note, say};
use sideway::ibverbs::event::AsyncEventType;

/// Waits for completions and asynchronous events with mio.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    loopback: LoopbackArgs,
}

const COMPLETIONS: Token = Token(0);
const DEVICE: Token = Token(1);

/// The time limit without an event.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    program::run(event_loop)
}

fn event_loop() -> Result<(), Failure> {
    let Arguments { loopback: arguments } = program::arguments()?;
    let context = arguments.open_device()?;
    let events = context.async_events()?;
    let mut channel = context.create_comp_channel()?;
    let mut loopback = LoopbackQps::new(&context, &channel, arguments.queue_pairs, arguments.writes)?;

    let mut poll = Poll::new()?;
    let register = |fd: &dyn AsFd, token| {
        poll.registry().register(&mut SourceFd(&fd.as_fd().as_raw_fd()), token, Interest::READABLE)
    };
    register(&channel, COMPLETIONS)?;
    register(&events, DEVICE)?;

    loopback.start()?;
    let (mut wake_ups, mut ready) = (0u64, Events::with_capacity(2));
    while !loopback.is_done() {
        poll.poll(&mut ready, Some(IDLE_LIMIT))?;
        if ready.is_empty() {
            return Err(Failure::work("nothing happened for 30 s"));
        }
        for found in &ready {
            if found.token() == COMPLETIONS {
                while let Some(event) = channel.try_next().map_err(Failure::work)? {
                    wake_ups += 1;
                    loopback.handle_completions(event.cq_context())?;
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
