//! The processors that a side's threads run on.
//!
//! With `--threads`, each thread gets a processor on the device's NUMA node, if the system reports
//! one. Of processors that share a core, the first of each core comes first. Memory that a thread
//! allocates is near to it, because the system takes it from the node of the processor that first
//! writes to it. A client takes the first processors and a server the last, so that both can run on
//! one machine.

use std::fs;
use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::plan::TestPlan;

/// A thread cannot be started or pinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The process may not use the processor any more.
    #[error(
        "cannot run a thread on processor {processor}: {source}; give fewer --threads, or leave --threads out"
    )]
    Pin {
        /// The processor's number.
        processor: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system cannot create another thread.
    #[error("cannot begin a thread: {0}; give fewer --threads")]
    Spawn(io::Error),
}

/// Other work on this machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// None that this program knows of.
    None,
    /// The other side of the test, in this process.
    Peer,
    /// Other tests of the same server.
    Others,
}

/// The processors that this process may use, the best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors {
    /// Alternates between the devices; each processor is near to its device.
    processors: Vec<usize>,
    devices: usize,
}

impl Processors {
    /// The processors on the devices' NUMA nodes, or all processors for a node that is unknown or
    /// has none.
    pub fn near(nodes: &[Option<u32>]) -> Self {
        let allowed = allowed();
        let near = |node: &Option<u32>| {
            let of_node: Vec<usize> = node.map(processors_of).unwrap_or_default();
            let near: Vec<usize> = allowed.iter().copied().filter(|cpu| of_node.contains(cpu)).collect();
            cores_first(if near.is_empty() { allowed.clone() } else { near }, first_of_core)
        };
        Self { processors: in_turn(nodes.iter().map(near).collect()), devices: nodes.len().max(1) }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.processors.len()).unwrap_or(u32::MAX)
    }

    /// A processor for each thread of a side of this test; empty without `--threads`, or if they
    /// are too many.
    pub fn place(&self, test: &TestPlan, is_client: bool, neighbours: Neighbours) -> Vec<usize> {
        let (threads, all) = (test.thread_count() as usize, self.processors.len());
        // A side without work occupies no processor.
        let both =
            if neighbours == Neighbours::Peer && test.both_sides_work() { 2 * threads } else { threads };
        let is_idle = neighbours == Neighbours::Peer && !is_client && !test.both_sides_work();
        if test.threads.is_none() || neighbours == Neighbours::Others || is_idle || both > all {
            return Vec::new();
        }
        // A multiple of the number of devices, so that the first thread gets the first device.
        let first = if is_client { 0 } else { (all - threads) / self.devices * self.devices };
        self.processors[first..first + threads].to_vec()
    }
}

/// Restricts this thread to one processor.
///
/// # Errors
///
/// The system does not allow it.
pub fn pin(processor: usize) -> Result<(), PlacementError> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).map_err(|error| PlacementError::Pin { processor, source: error.into() })
}

/// Processor time of this thread, in user and kernel mode, in nanoseconds.
pub fn processor_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The NUMA node of a device, if the system reports one; the kernel writes -1 for none.
pub fn node_of(device: &str) -> Option<u32> {
    let text =
        fs::read_to_string(Path::new("/sys/class/infiniband").join(device).join("device/numa_node")).ok()?;
    text.trim().parse().ok()
}

fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn processors_of(node: u32) -> Vec<usize> {
    let list = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
    list.map(|list| numbers(&list)).unwrap_or_default()
}

/// Takes from each list in turn without repetition; when a list is used up, the others go on.
fn in_turn(lists: Vec<Vec<usize>>) -> Vec<usize> {
    let mut taken = Vec::new();
    let all = lists.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
    while taken.len() < all {
        for list in &lists {
            let next = list.iter().find(|cpu| !taken.contains(*cpu));
            let other = || lists.iter().flatten().find(|cpu| !taken.contains(*cpu));
            if let Some(cpu) = next.or_else(other) {
                taken.push(*cpu);
            }
        }
    }
    taken
}

/// The first processor of the core that contains this one.
fn first_of_core(cpu: usize) -> usize {
    let list = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
    list.ok().and_then(|list| numbers(&list).first().copied()).unwrap_or(cpu)
}

/// One processor of each core, then the others.
fn cores_first(cpus: Vec<usize>, first_of_core: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut cores = Vec::new();
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for cpu in cpus {
        let core = first_of_core(cpu);
        if cores.contains(&core) {
            others.push(cpu);
        } else {
            cores.push(core);
            first.push(cpu);
        }
    }
    first.extend(others);
    first
}

/// Parses the kernel's list format: `0-3,8`. Parts that cannot be parsed are ignored.
fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?.min(CpuSet::MAX_CPU))
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::plan::RunPlan;

    fn test(flags: &str) -> TestPlan {
        let words = format!("stride-perf {flags}");
        RunPlan::new(cli::parse(words.split_whitespace()).unwrap()).unwrap().test
    }

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("5"), [5]);
        assert_eq!(numbers(""), [] as [usize; 0]);
        assert_eq!(numbers("x,2-y,7"), [7]);
        assert_eq!(numbers("0-99999999999").len(), CpuSet::MAX_CPU + 1);
    }

    #[test]
    fn cores_come_before_their_second_threads() {
        assert_eq!(cores_first(vec![0, 1, 2, 3], |cpu| cpu / 2), [0, 2, 1, 3]);
        assert_eq!(cores_first(vec![1, 3], |cpu| cpu / 2), [1, 3]);
    }

    #[test]
    fn each_device_has_near_processors_in_turn() {
        assert_eq!(in_turn(vec![vec![0, 1], vec![4, 5]]), [0, 4, 1, 5]);
        assert_eq!(in_turn(vec![vec![0, 2, 1, 3], vec![0, 2, 1, 3]]), [0, 2, 1, 3]);
        assert_eq!(in_turn(vec![vec![0], vec![4, 5, 6]]), [0, 4, 5, 6]);
        assert_eq!(in_turn(Vec::new()), [] as [usize; 0]);
        let two = Processors { processors: vec![0, 4, 1, 5, 2], devices: 2 };
        assert_eq!(two.place(&test("write bw --threads 2"), false, Neighbours::None), [1, 5]);
    }

    #[test]
    fn two_sides_of_a_machine_are_apart_where_they_can_be() {
        let four = Processors { processors: vec![0, 2, 1, 3], devices: 1 };
        let place = |flags: &str, is_client, neighbours| four.place(&test(flags), is_client, neighbours);
        assert_eq!(place("write bw", true, Neighbours::None), [] as [usize; 0]);
        assert_eq!(place("write bw --threads 1", true, Neighbours::None), [0]);
        let two = "send bw --threads 2";
        assert_eq!(place(two, true, Neighbours::None), [0, 2]);
        assert_eq!(place(two, false, Neighbours::None), [1, 3]);
        assert_eq!(
            (place(two, true, Neighbours::Peer), place(two, false, Neighbours::Peer)),
            (vec![0, 2], vec![1, 3])
        );
        // Too few for the threads of both sides, which all work: the system schedules them.
        assert!(place("send bw --threads 3", true, Neighbours::Peer).is_empty());
        assert!(place("send bw --threads 5", true, Neighbours::None).is_empty());
        // A side that only waits occupies no processor.
        assert_eq!(place("write bw --threads 3", true, Neighbours::Peer), [0, 2, 1]);
        assert!(place("write bw --threads 3", false, Neighbours::Peer).is_empty());
        assert!(place(two, true, Neighbours::Others).is_empty());
    }

    #[test]
    fn sleep_is_no_processor_time() {
        let before = processor_time();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let slept = processor_time() - before;
        assert!(slept < 50_000_000, "{slept}");
        let start = std::time::Instant::now();
        let mut turns = 0u64;
        while processor_time() - before < slept + 1_000_000 {
            turns += 1;
            assert!(start.elapsed().as_secs() < 60, "{turns}");
        }
    }

    #[test]
    fn a_thread_can_be_had_on_each_processor() {
        let Processors { processors, .. } = Processors::near(&[None]);
        assert!(!processors.is_empty());
        for processor in processors {
            let allowed =
                std::thread::spawn(move || pin(processor).map(|()| allowed())).join().unwrap().unwrap();
            assert_eq!(allowed, [processor]);
        }
        let text = pin(CpuSet::MAX_CPU - 1).unwrap_err().to_string();
        assert!(text.contains("give fewer --threads"), "{text}");
    }
}
