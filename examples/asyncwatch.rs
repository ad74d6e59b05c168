//! Prints the asynchronous events of a device: `ibv_asyncwatch`, with its flags and lines.
//!
//! ```text
//! $ cargo run --example asyncwatch
//! soft0: async event FD 7
//!   event_type IBV_EVENT_PORT_ERR (10), port 1
//! ```
//!
//! It runs until it is interrupted or the device is gone. A software device generates an event if a
//! fault rule asks for it:
//!
//! ```text
//! $ SOFT_RNIC_FAULTS='port_down=1s call=open_device' cargo run --example asyncwatch
//! ```

use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

use clap::Parser;
use rdma_examples::devices::DeviceArg;
use rdma_examples::program::{self, Failure, note, say};
use sideway::ibverbs::event::{AsyncElement, AsyncEvent, AsyncEventType};

/// Prints the asynchronous events of a device.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    device: DeviceArg,
}

fn main() -> ExitCode {
    program::run(asyncwatch)
}

fn asyncwatch() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let context = arguments.device.open()?;
    let events = context.async_events()?;
    say(format_args!("{}: async event FD {}", context.name(), events.as_fd().as_raw_fd()))?;
    loop {
        let event = events.wait().map_err(Failure::work)?;
        say(line(&event))?;
        // The C program prints the port's number only.
        if !matches!(event.element(), AsyncElement::Port(_) | AsyncElement::Device) {
            note(format_args!("{}: {:?}", event.event_type(), event.element()));
        }
    }
}

fn line(event: &AsyncEvent) -> String {
    let kind = event.event_type();
    let port = match event.element() {
        AsyncElement::Port(port) => port,
        _ => 0,
    };
    format!("  event_type {} ({}), port {port}", name(kind), kind.raw())
}

/// The names of the events that the C program knows.
fn name(kind: AsyncEventType) -> &'static str {
    match kind {
        AsyncEventType::DeviceFatal => "IBV_EVENT_DEVICE_FATAL",
        AsyncEventType::PortActive => "IBV_EVENT_PORT_ACTIVE",
        AsyncEventType::PortError => "IBV_EVENT_PORT_ERR",
        AsyncEventType::LidChange => "IBV_EVENT_LID_CHANGE",
        AsyncEventType::PkeyChange => "IBV_EVENT_PKEY_CHANGE",
        AsyncEventType::SubnetManagerChange => "IBV_EVENT_SM_CHANGE",
        AsyncEventType::ClientReregister => "IBV_EVENT_CLIENT_REREGISTER",
        AsyncEventType::GidChange => "IBV_EVENT_GID_CHANGE",
        _ => "unexpected",
    }
}
