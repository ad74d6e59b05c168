//! The description of a side's machine.

use std::fs;

use serde::{Deserialize, Serialize};

/// The properties of a machine that figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// The host's name.
    pub name: String,
    /// The operating system's name and release.
    pub kernel: String,
    /// The processor's architecture.
    pub architecture: String,
    /// The processor's model, if the system reports one.
    pub cpu: Option<String>,
    /// Processors that this process may use.
    pub cpus: u64,
    /// The number of NUMA nodes.
    pub numa_nodes: u64,
}

impl HostRecord {
    /// Describes this machine.
    pub fn this() -> Self {
        let name = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Self {
            name: text(name.nodename()),
            kernel: format!("{} {}", text(name.sysname()), text(name.release())),
            architecture: text(name.machine()),
            cpu: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
            numa_nodes: numa_nodes(),
        }
    }
}

/// The first line that names a model; some architectures have none.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A kernel without NUMA support has one node.
fn numa_nodes() -> u64 {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return 1 };
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    let nodes = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count();
    nodes.max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_where_there_is_one() {
        let x86 = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Some CPU @ 2.10GHz\nmodel name\t: other\n";
        assert_eq!(cpu_model(x86).as_deref(), Some("Some CPU @ 2.10GHz"));
        assert_eq!(cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
    }

    #[test]
    fn this_machine_has_a_processor_and_a_kernel() {
        let host = HostRecord::this();
        assert!(host.cpus >= 1 && host.numa_nodes >= 1 && host.kernel.starts_with("Linux "), "{host:?}");
    }
}
