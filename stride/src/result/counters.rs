//! What the port counted while it was measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel has them, below a port; the names that perftest knows them by begin so, too.
const FOLDERS: [&str; 2] = ["counters", "hw_counters"];

/// What should not be counted while all goes well: packets that were lost, late or refused, and congestion.
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

/// A port's counters, by name.
#[derive(Clone, Debug)]
pub struct Counters {
    port: PathBuf,
    values: BTreeMap<String, u64>,
}

impl Counters {
    /// Those of a port of the system's, as they are now; none where the kernel has none, as of software devices.
    pub fn of(device: &str, port: u8) -> Option<Self> {
        Self::below(&Path::new("/sys/class/infiniband").join(device).join("ports").join(port.to_string()))
    }

    fn below(port: &Path) -> Option<Self> {
        let values = FOLDERS.iter().flat_map(|folder| numbers(port, folder)).collect::<BTreeMap<_, _>>();
        (!values.is_empty()).then(|| Self { port: port.to_owned(), values })
    }

    /// How much was counted since; what can be read no more, or was set back, is left out.
    pub fn until_now(&self) -> BTreeMap<String, u64> {
        let now = Self::below(&self.port).map(|now| now.values).unwrap_or_default();
        let since =
            |(name, before): (&String, &u64)| Some((name.clone(), now.get(name)?.checked_sub(*before)?));
        self.values.iter().filter_map(since).collect()
    }
}

/// What of this is a sign of trouble, in words.
pub fn troubles(counted: &BTreeMap<String, u64>) -> Option<String> {
    let some =
        |name: &&str| counted.get(*name).filter(|count| **count > 0).map(|count| format!("{name} {count}"));
    let found: Vec<_> = TROUBLES.iter().filter_map(some).collect();
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
    fn what_was_counted_is_the_difference() {
        let port = std::env::temp_dir().join(format!("stride-counters-{}", std::process::id()));
        let set = |name: &str, value: &str| fs::write(port.join(name), value).unwrap();
        assert!(Counters::below(&port).is_none());
        for folder in FOLDERS {
            fs::create_dir_all(port.join(folder)).unwrap();
        }
        assert!(Counters::below(&port).is_none());
        set("counters/port_xmit_data", "1000\n");
        set("counters/VL15_dropped", "N/A (no PMA)\n");
        set("counters/was_reset", "7\n");
        set("hw_counters/packet_seq_err", "5\n");
        set("hw_counters/lifespan", "gone\n");
        let before = Counters::below(&port).unwrap();
        assert_eq!(troubles(&before.until_now()), None);
        set("counters/port_xmit_data", "1500\n");
        set("counters/was_reset", "0\n");
        set("hw_counters/packet_seq_err", "8\n");
        set("hw_counters/came_later", "8\n");
        let counted = before.until_now();
        let expected = [("counters/port_xmit_data", 500), ("hw_counters/packet_seq_err", 3)];
        assert_eq!(counted, expected.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!(troubles(&counted).as_deref(), Some("hw_counters/packet_seq_err 3"));
        fs::remove_dir_all(&port).unwrap();
        assert!(before.until_now().is_empty());
    }

    #[test]
    fn a_device_that_is_not_the_kernels_has_none() {
        assert!(Counters::of("no_such_device", 1).is_none());
    }
}
