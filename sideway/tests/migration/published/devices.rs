//! Lists the devices, their ports and their GIDs.

use std::error::Error;
use std::fmt::Write;

use sideway::ibverbs::device::{DeviceInfo, DeviceList};
use sideway::ibverbs::device_context::{Mtu, PortState};

pub(crate) fn run() -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    let list = DeviceList::new()?;
    for device in &list {
        let context = device.open()?;
        let attr = context.query_device()?;
        let transport = device.transport_type();
        writeln!(text, "{}: {:?} ({})", device.name(), transport, transport as i32)?;
        writeln!(text, "  node_guid {:#018x}", device.guid().as_u64())?;
        writeln!(text, "  firmware {}", attr.firmware_version())?;
        writeln!(text, "  hardware {:#x}", attr.hardware_version())?;
        writeln!(text, "  atomics {:?}", attr.atomic_capability())?;
        writeln!(text, "  reads served at a time {}", attr.max_res_rd_atomic())?;
        for port_num in 1..=attr.phys_port_cnt() {
            let port = context.query_port(port_num)?;
            let (state, mtu) = (port.port_state(), port.active_mtu());
            writeln!(text, "  port {port_num}: state {:?} ({})", state, state as u32)?;
            writeln!(text, "    mtu {}", 128 << (mtu as u32))?;
            if state == PortState::Active && mtu == Mtu::Mtu256 {
                writeln!(text, "    the mtu is the smallest: messages are cut into many packets")?;
            }
        }
        for entry in context.query_gid_table()? {
            writeln!(text, "  gid {} {}", entry.gid_index(), entry.gid())?;
        }
    }
    Ok(text)
}
