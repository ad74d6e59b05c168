//! Many queue pairs on one completion channel, and the device's asynchronous
//! events, in an event loop of one thread: with epoll.
//!
//! ```text
//! $ cargo run --example event_loop_epoll
//! 8 queue pairs made 1000 writes each, in 8000 wake-ups
//! ```
//!
//! epoll tells of a descriptor as long as it is readable. So it is enough to
//! take one event each time that it tells: one system call to sleep, one for
//! the event. `event_loop_mio` is the same with mio, which tells once.

use std::process::ExitCode;

use clap::Parser;
use rdma_examples::crew::Crew;
use rdma_examples::devices;
use rdma_examples::program::{self, Failure, note, say};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use sideway::ibverbs::event::AsyncEventType;

/// Waits for completions and asynchronous events with epoll.
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

const COMPLETIONS: u64 = 0;
const DEVICE: u64 = 1;

/// How long nothing may happen.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

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

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let readable = epoll::EventFlags::IN;
    epoll::add(&epoll, &channel, epoll::EventData::new_u64(COMPLETIONS), readable)?;
    epoll::add(&epoll, &events, epoll::EventData::new_u64(DEVICE), readable)?;

    crew.start()?;
    let (mut wake_ups, mut ready) = (0u64, Vec::with_capacity(2));
    while !crew.is_done() {
        ready.clear();
        let wait = || epoll::wait(&epoll, spare_capacity(&mut ready), Some(&PATIENCE));
        if rustix::io::retry_on_intr(wait)? == 0 {
            return Err(Failure::work("nothing happened for 30 s"));
        }
        for found in ready.drain(..) {
            match found.data.u64() {
                COMPLETIONS => {
                    if let Some(event) = channel.try_next().map_err(Failure::work)? {
                        wake_ups += 1;
                        crew.go_on(event.cq_context())?;
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
