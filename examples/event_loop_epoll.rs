//! Many queue pairs on one completion channel, and the device's asynchronous events, in an event
//! loop of one thread with epoll.
//!
//! ```text
//! $ cargo run --example event_loop_epoll
//! 8 queue pairs made 1000 writes each, in 8000 wake-ups
//! ```
//!
//! epoll reports a descriptor as long as it is readable. Therefore the loop takes one event each
//! time: one system call to sleep, and one for the event. `event_loop_mio` is the same with mio,
//! which reports a descriptor once.

use std::process::ExitCode;

use clap::Parser;
use rdma_examples::loopback::{LoopbackArgs, LoopbackQps};
use rdma_examples::program::{self, Failure, note, say};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use sideway::ibverbs::event::AsyncEventType;

/// Waits for completions and asynchronous events with epoll.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    loopback: LoopbackArgs,
}

const COMPLETIONS: u64 = 0;
const DEVICE: u64 = 1;

/// The time limit without an event.
const IDLE_LIMIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

fn main() -> ExitCode {
    program::run(event_loop)
}

fn event_loop() -> Result<(), Failure> {
    let Arguments { loopback: arguments } = program::arguments()?;
    let context = arguments.open_device()?;
    let events = context.async_events()?;
    let mut channel = context.create_comp_channel()?;
    let mut loopback = LoopbackQps::new(&context, &channel, arguments.queue_pairs, arguments.writes)?;

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let readable = epoll::EventFlags::IN;
    epoll::add(&epoll, &channel, epoll::EventData::new_u64(COMPLETIONS), readable)?;
    epoll::add(&epoll, &events, epoll::EventData::new_u64(DEVICE), readable)?;

    loopback.start()?;
    let (mut wake_ups, mut ready) = (0u64, Vec::with_capacity(2));
    while !loopback.is_done() {
        ready.clear();
        let wait = || epoll::wait(&epoll, spare_capacity(&mut ready), Some(&IDLE_LIMIT));
        if rustix::io::retry_on_intr(wait)? == 0 {
            return Err(Failure::work("nothing happened for 30 s"));
        }
        for found in ready.drain(..) {
            match found.data.u64() {
                COMPLETIONS => {
                    if let Some(event) = channel.try_next().map_err(Failure::work)? {
                        wake_ups += 1;
                        loopback.handle_completions(event.cq_context())?;
                    }
                }
                _ => {
                    if let Some(event) = events.try_next().map_err(Failure::work)? {
                        note(format_args!("{}: {:?}", event.event_type(), event.element()));
                        if event.event_type() == AsyncEventType::DeviceFatal {
                            return Err(Failure::work("the device is gone"));
                        }
                    }
                }
            }
        }
    }
    let (pairs, writes) = (arguments.queue_pairs, arguments.writes);
    say(format_args!("{pairs} queue pairs made {writes} writes each, in {wake_ups} wake-ups"))
}
