//! Lists the GIDs of all ports. RoCE addresses peers by GID, and programs name a GID by its index
//! (`-g`, `-x`, `sgid_index`).
//!
//! ```text
//! $ cargo run --example show_gids
//!   Dev   | Port | Index |                   GID                   |    IPv4     |  Ver   | Netdev
//! --------+------+-------+-----------------------------------------+-------------+--------+--------
//!  mlx5_0 |  1   |   3   | 0000:0000:0000:0000:0000:ffff:ac1e:0818 | 172.30.8.24 | RoCEv2 | enp8s0
//! ```

use std::process::ExitCode;

use clap::Parser;
use rdma_examples::program::{self, Failure};
use rdma_examples::{devices, text_table::TextTable};
use sideway::ibverbs::address::GidEntry;

/// Lists the GIDs of all ports.
#[derive(Parser)]
struct Arguments {
    /// The device whose GIDs to list [default: all]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    ib_dev: Option<String>,
}

fn main() -> ExitCode {
    program::run(show_gids)
}

fn show_gids() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let mut table = TextTable::new(["Dev", "Port", "Index", "GID", "IPv4", "Ver", "Netdev"]);
    let list = devices::list()?;
    for device in devices::all(&list, arguments.ib_dev.as_deref())? {
        let context = device.open()?;
        for entry in context.query_gid_table()? {
            table.push(row(device.name(), &entry));
        }
    }
    program::say(table)
}

fn row(device: String, entry: &GidEntry) -> [String; 7] {
    let gid = entry.gid();
    [
        device,
        entry.port_num().to_string(),
        entry.gid_index().to_string(),
        gid.to_string(),
        gid.to_ipv4_mapped().map_or_else(String::new, |address| address.to_string()),
        entry.gid_type().to_string(),
        // An InfiniBand port has none, and one of another network namespace has no name in this
        // one.
        entry.netdev_name().unwrap_or_default(),
    ]
}
