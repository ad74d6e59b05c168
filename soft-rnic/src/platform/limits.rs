//! Resource limits: checked before the system enforces them without a word, and named afterwards.

use std::io;
#[cfg(not(any(miri, loom)))]
use std::io::{BufReader, Read};

use rustix::process::{Resource, getrlimit};

/// The limit in force; `None` if there is none.
fn limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).current
}

/// How many descriptors this process may have; `None` if there is no limit.
pub(crate) fn descriptors() -> Option<usize> {
    limit(Resource::Nofile).and_then(|most| usize::try_from(most).ok())
}

/// Checks that a memory file may have this length. The system would end the process with SIGXFSZ.
///
/// # Errors
///
/// `FileTooLarge`, with the limit.
pub(crate) fn check_file_length(length: usize) -> io::Result<()> {
    let Some(most) = limit(Resource::Fsize).filter(|most| (length as u64) > *most) else { return Ok(()) };
    let message = format!(
        "a memory file of {length} bytes is needed, and RLIMIT_FSIZE allows {most}: raise it (ulimit -f)"
    );
    Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
}

/// Checks that the system lets this process have this many mappings more.
///
/// # Errors
///
/// `OutOfMemory`, with the limit.
#[cfg(not(any(miri, loom)))]
pub(crate) fn check_mappings(more: usize) -> io::Result<()> {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let Some(most) = most.and_then(|text| text.trim().parse::<usize>().ok()) else { return Ok(()) };
    // A list of all would need room, which may be a mapping.
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else { return Ok(()) };
    let there = BufReader::new(maps).bytes().map_while(Result::ok).filter(|byte| *byte == b'\n').count();
    // The system refuses to change mappings a little earlier.
    const SPARE: usize = 8;
    if there + more + SPARE <= most {
        return Ok(());
    }
    let message = format!(
        "{more} mappings are needed; {there} exist, and vm.max_map_count allows {most}: raise it (sysctl)"
    );
    Err(io::Error::new(io::ErrorKind::OutOfMemory, message))
}

/// The error of a mapping of this length that the system refused, with the limit that may be the
/// cause.
pub(crate) fn unmappable(errno: rustix::io::Errno, length: usize) -> io::Error {
    use rustix::io::Errno;
    if let Some(most) = limit(Resource::Memlock).filter(|_| errno == Errno::AGAIN) {
        // After `mlockall`, mappings are locked.
        let message = format!(
            "{length} bytes are to be locked, and RLIMIT_MEMLOCK allows {most}: raise it (ulimit -l)"
        );
        return io::Error::new(io::ErrorKind::OutOfMemory, message);
    }
    #[cfg(not(any(miri, loom)))]
    if let (Errno::NOMEM, Err(error)) = (errno, check_mappings(1)) {
        return error;
    }
    match limit(Resource::As).filter(|_| errno == Errno::NOMEM) {
        None => errno.into(),
        Some(most) => {
            let used = address_space_used().map_or("unknown".to_owned(), |used| used.to_string());
            let message = format!(
                "{length} bytes of address space are needed; {used} are in use, and RLIMIT_AS allows {most}: raise \
                 it (ulimit -v)"
            );
            io::Error::new(io::ErrorKind::OutOfMemory, message)
        }
    }
}

/// Bytes of this process's mappings.
fn address_space_used() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split(' ').next()?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// The likely reason why the system refused another thread.
pub(crate) fn why_no_thread() -> String {
    /// The stack of a thread, its guard page, and the allocator's arena.
    const STACK: u64 = 4 << 20;
    if let (Some(most), Some(used)) = (limit(Resource::As), address_space_used())
        && used + STACK > most
    {
        return format!("{used} bytes of address space are in use, and RLIMIT_AS (ulimit -v) allows {most}");
    }
    if let Some((now, most)) = tasks_of_cgroup().filter(|(now, most)| now >= most) {
        return format!("the control group has {now} tasks, and its pids.max is {most}");
    }
    match limit(Resource::Nproc) {
        Some(most) => format!("this user may have {most} threads (RLIMIT_NPROC)"),
        None => "see the system's limits kernel.threads-max, kernel.pid_max and vm.max_map_count".to_owned(),
    }
}

/// The tasks of this process's control group (version 2), and the most that it may have.
fn tasks_of_cgroup() -> Option<(u64, u64)> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let number = |name: &str| {
        let file = std::fs::read_to_string(format!("/sys/fs/cgroup{group}/pids.{name}")).ok()?;
        file.trim().parse().ok()
    };
    Some((number("current")?, number("max")?))
}
