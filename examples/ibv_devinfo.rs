//! The capabilities of a device and its ports: `ibv_devinfo`, with its flags and lines.
//!
//! ```text
//! $ cargo run --example ibv_devinfo -- -d rxe0
//! hca_id: rxe0
//!         transport:                      InfiniBand (0)
//!         node_guid:                      5054:00ff:fe36:7656
//! ...
//! ```
//!
//! [`rdma_examples::devinfo`] lists the lines of rdma-core's program that are left out.

use std::process::ExitCode;

use clap::Parser;
use rdma_examples::program::{self, Failure};
use rdma_examples::{devices, devinfo};
use sideway::ibverbs::device::DeviceList;

/// Shows the capabilities of devices and their ports.
#[derive(Parser)]
struct Arguments {
    /// The device to show [default: all]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    ib_dev: Option<String>,

    /// The port to show [default: all]
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: Option<u8>,

    /// Show only the names of the devices.
    #[arg(short, long)]
    list: bool,

    /// Show all attributes
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    program::run(ibv_devinfo)
}

fn ibv_devinfo() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let list = devices::list()?;
    if arguments.list {
        return program::say(names(&list));
    }
    for device in devices::all(&list, arguments.ib_dev.as_deref())? {
        // The text ends with an empty line, which separates devices.
        let text = devinfo::describe(&device, arguments.ib_port, arguments.verbose)?;
        program::say(text.strip_suffix('\n').unwrap_or(&text))?;
    }
    Ok(())
}

/// An empty list is a valid result.
fn names(list: &DeviceList) -> String {
    let plural = if list.len() == 1 { "" } else { "s" };
    let mut text = format!("{} HCA{plural} found:\n", list.len());
    for device in list.iter() {
        text += &format!("\t{}\n", device.name());
    }
    text
}
