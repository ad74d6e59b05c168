//! The output of `ibv_devinfo` about a device, line for line like rdma-core's program, so that
//! scripts can parse either.
//!
//! The tests compare it with rdma-core 44 and 56. Later additions are left out: completion counters
//! (`max_comp_cntr`, `comp_cntr_caps`; rdma-core 65) and a port's `effective_speed` (rdma-core 62).

mod capabilities;
mod device;
mod flags;
mod port;

use sideway::ibverbs::device::Device;

use crate::program::Failure;

/// The lines about a device and one of its ports, or all of them.
///
/// # Errors
///
/// The device does not open or answer, or has no such port.
pub fn describe(device: &Device<'_>, port: Option<u8>, verbose: bool) -> Result<String, Failure> {
    let context = device.open()?;
    let attr = context.query_device()?;
    let ports = attr.phys_port_cnt();
    if let Some(port) = port.filter(|port| *port > ports) {
        let name = device.name();
        return Err(Failure::setup(format_args!("{name} has no port {port}: its ports are 1 to {ports}")));
    }

    let mut lines = OutputLines::default();
    device::identity(&mut lines, device, &attr);
    if verbose {
        device::limits(&mut lines, &attr);
        capabilities::all(&mut lines, &attr);
        lines.field(1, "num_comp_vectors", context.num_comp_vectors());
    }
    for number in 1..=ports {
        if port.is_none_or(|port| port == number) {
            port::all(&mut lines, &context, device.transport_type(), number, verbose)?;
        }
    }
    Ok(lines.text)
}

/// Output that grows line by line.
#[derive(Debug, Default)]
struct OutputLines {
    text: String,
}

impl OutputLines {
    fn line(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    /// Appends `label: value` after `indent` tabs. More tabs align the values of the same depth.
    fn field(&mut self, indent: usize, label: &str, value: impl std::fmt::Display) {
        const TAB: usize = 8;
        let values_at = if indent < 3 { 40 } else { 48 };
        let end = indent * TAB + label.len() + 1;
        let tabs = values_at / TAB - (end / TAB).min(values_at / TAB - 1);
        self.line(&format!("{}{label}:{}{value}", "\t".repeat(indent), "\t".repeat(tabs)));
    }
}

#[cfg(test)]
mod tests {
    use super::OutputLines;

    #[test]
    fn values_stand_below_one_another() {
        let mut lines = OutputLines::default();
        lines.field(1, "transport", "InfiniBand (0)");
        lines.field(1, "max_total_mcast_qp_attach", 7);
        lines.field(1, "max_res_rd_atom", 8);
        lines.field(3, "state", "PORT_ACTIVE (4)");
        lines.field(3, "init_type_reply", 0);
        lines.field(1, "a_label_that_is_longer_than_its_column", 1);
        let expected = [
            "\ttransport:\t\t\tInfiniBand (0)",
            "\tmax_total_mcast_qp_attach:\t7",
            "\tmax_res_rd_atom:\t\t8",
            "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
            "\t\t\tinit_type_reply:\t0",
            "\ta_label_that_is_longer_than_its_column:\t1",
            "",
        ];
        assert_eq!(lines.text, expected.join("\n"));
    }
}
