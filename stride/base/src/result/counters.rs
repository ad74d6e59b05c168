//! The port's hardware counters during a measurement.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::device::LocalDevice;

/// The kernel's folders of counters below a port; perftest's names for them begin the same way.
const FOLDERS: [&str; 2] = ["counters", "hw_counters"];

/// Counters that stay 0 in a healthy network: packets that were lost, late or refused, and
/// congestion.
const TROUBLES: [&str; 9] = [
    "hw_counters/packet_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/out_of_buffer",
    "hw_counters/rp_cnp_handled",
    "counters/port_xmit_discards",
    "counters/port_rcv_errors",
];

/// The counters of ports, by name.
#[derive(Clone, Debug)]
pub struct PortCounters {
    /// The prefix of each port's counters, and their folder.
    ports: Vec<(String, PathBuf)>,
    values: BTreeMap<String, u64>,
}

impl PortCounters {
    /// Reads the counters of the system's ports; `None` if the kernel has none, as for software
    /// devices. With several ports each name starts with the device and the port.
    pub fn of(devices: &[LocalDevice]) -> Option<Self> {
        let port = |device: &LocalDevice| {
            let (name, port) = (&device.limits.device, device.port);
            let folder = Path::new("/sys/class/infiniband").join(name).join("ports").join(port.to_string());
            let prefix = if devices.len() > 1 { format!("{name}:{port}/") } else { String::new() };
            (prefix, folder)
        };
        // A software device may share its name with a kernel device, so its folder is not looked
        // up.
        Self::below(devices.iter().filter(|device| !device.is_soft).map(port).collect())
    }

    fn below(ports: Vec<(String, PathBuf)>) -> Option<Self> {
        let of_port = |(prefix, port): &(String, PathBuf)| {
            let all = FOLDERS.iter().flat_map(|folder| numbers(port, folder)).collect::<Vec<_>>();
            all.into_iter().map(|(name, count)| (format!("{prefix}{name}"), count)).collect::<Vec<_>>()
        };
        let values = ports.iter().flat_map(of_port).collect::<BTreeMap<_, _>>();
        (!values.is_empty()).then_some(Self { ports, values })
    }

    /// The increase of each counter; counters that cannot be read any more, or were reset, are left
    /// out.
    pub fn until_now(&self) -> BTreeMap<String, u64> {
        let now = Self::below(self.ports.clone()).map(|now| now.values).unwrap_or_default();
        let since =
            |(name, before): (&String, &u64)| Some((name.clone(), now.get(name)?.checked_sub(*before)?));
        self.values.iter().filter_map(since).collect()
    }
}

/// The counters that indicate trouble, as text.
pub fn troubles(counted: &BTreeMap<String, u64>) -> Option<String> {
    let is_trouble = |name: &String| TROUBLES.iter().any(|trouble| name.ends_with(trouble));
    let some = counted.iter().filter(|(name, count)| **count > 0 && is_trouble(name));
    let found: Vec<_> = some.map(|(name, count)| format!("{name} {count}")).collect();
    (!found.is_empty()).then(|| found.join(", "))
}

fn numbers(port: &Path, folder: &str) -> Vec<(String, u64)> {
    let Ok(entries) = fs::read_dir(port.join(folder)) else { return Vec::new() };
    let number = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        Some((format!("{folder}/{}", entry.file_name().to_str()?), text.trim().parse().ok()?))
    };
    entries.flatten().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_report_differences() {
        let port = std::env::temp_dir().join(format!("stride-counters-{}", std::process::id()));
        let set = |name: &str, value: &str| fs::write(port.join(name), value).unwrap();
        let below = |prefix: &str| PortCounters::below(vec![(prefix.to_owned(), port.clone())]);
        assert!(below("").is_none());
        for folder in FOLDERS {
            fs::create_dir_all(port.join(folder)).unwrap();
        }
        assert!(below("").is_none());
        set("counters/port_xmit_data", "1000\n");
        set("counters/VL15_dropped", "N/A (no PMA)\n");
        set("counters/was_reset", "7\n");
        set("hw_counters/packet_seq_err", "5\n");
        set("hw_counters/lifespan", "gone\n");
        let (before, prefixed) = (below("").unwrap(), below("a:1/").unwrap());
        assert_eq!(troubles(&before.until_now()), None);
        set("counters/port_xmit_data", "1500\n");
        set("counters/was_reset", "0\n");
        set("hw_counters/packet_seq_err", "8\n");
        set("hw_counters/came_later", "8\n");
        let counted = before.until_now();
        let expected = [("counters/port_xmit_data", 500), ("hw_counters/packet_seq_err", 3)];
        assert_eq!(counted, expected.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!(troubles(&counted).as_deref(), Some("hw_counters/packet_seq_err 3"));
        assert_eq!(troubles(&prefixed.until_now()).as_deref(), Some("a:1/hw_counters/packet_seq_err 3"));
        fs::remove_dir_all(&port).unwrap();
        assert!(before.until_now().is_empty());
    }
}
