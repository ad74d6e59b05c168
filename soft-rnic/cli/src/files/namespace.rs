//! A mount namespace with the device files, for programs that call the kernel without the C library
//! (static programs, those in Go).
//!
//! Nobody can make folders in sysfs, and one in `/dev` would be seen by all. So `/dev` and
//! `/sys/class` become folders in memory, with a bind mount or a link for each entry that the system
//! has there.

use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::{env, process};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::process::{Pid, PidfdFlags, getegid, geteuid, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces, unshare_unsafe};

use super::contents::{Contents, Entry};
use super::{DeviceFiles, LISTING};

/// The folders in memory, and what this module puts there.
const DEVICES: &str = "/dev";
const CLASSES: &str = "/sys/class";
const NODES: &str = "dev/infiniband/";
const VIRTUAL: &str = "sys/devices/virtual/";

/// Moves this process into a new mount namespace, which needs CAP_SYS_ADMIN.
pub(crate) fn enter_mount(files: &DeviceFiles) -> Result<()> {
    leave(UnshareFlags::NEWNS).context(
        "a mount namespace needs CAP_SYS_ADMIN; without it, use --files user-namespace or preload",
    )?;
    make_mounts(&files.contents, "soft-rnic")
}

/// Moves this process into the user's namespaces of this fabric, or makes them. There is one pair
/// for each user and fabric, because the kernel refuses `process_vm_writev` between user namespaces.
pub(crate) fn enter_user(files: &DeviceFiles, fabric: &str) -> Result<()> {
    let name = format!("soft-rnic:{fabric}");
    // Two first runs at once make one pair.
    let lock = File::open(files.tree.join(LISTING))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if has_mounts(process::id(), &name) {
        return Ok(());
    }
    if let Some(member) = fs::read_dir("/proc")?.flatten().find_map(|entry| member(&entry, &name)) {
        return join(member).with_context(|| format!("cannot join the namespaces of process {member}"));
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    leave(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).context(
        "the system refuses a user namespace (a container's seccomp profile, or \
         kernel.apparmor_restrict_unprivileged_userns); use --files preload",
    )?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    make_mounts(&files.contents, &name)
}

/// Leaves namespaces of this process for new ones.
fn leave(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: no flag unshares the table of descriptors, so every thread keeps its descriptors.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

/// Whether a process has the mounts of this name.
fn has_mounts(pid: u32, name: &str) -> bool {
    let mark = format!(" - tmpfs {name} ");
    fs::read_to_string(format!("/proc/{pid}/mountinfo"))
        .is_ok_and(|mounts| mounts.lines().any(|line| line.contains(&mark)))
}

/// The number of a process of this user that has the mounts of this name.
fn member(entry: &DirEntry, name: &str) -> Option<u32> {
    let pid = entry.file_name().to_str()?.parse().ok()?;
    let own = geteuid().as_raw();
    (entry.metadata().ok()?.uid() == own && has_mounts(pid, name)).then_some(pid)
}

fn join(member: u32) -> Result<()> {
    let folder = env::current_dir()?;
    let pid = Pid::from_raw(i32::try_from(member)?).context("a process has a number")?;
    let member = pidfd_open(pid, PidfdFlags::empty())?;
    let namespaces = ThreadNameSpaceType::USER | ThreadNameSpaceType::MOUNT;
    move_into_thread_name_spaces(rustix::fd::AsFd::as_fd(&member), namespaces)?;
    // Moving has changed the working directory to the root.
    Ok(env::set_current_dir(folder)?)
}

/// Makes the mounts in the namespace of this process. The name marks them.
fn make_mounts(contents: &Contents, name: &str) -> Result<()> {
    // Mounts of the system still arrive here, and none of these leaves.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let null = PathBuf::from("/dev/null");
    let made = in_memory(DEVICES, &["infiniband"], name).and_then(|()| nodes(contents, &null));
    made.context("the device nodes cannot be mounted")?;
    let classes: Vec<&str> = contents.iter().filter_map(|(path, _)| class_of(path)).collect();
    let made = in_memory(CLASSES, &classes, name).and_then(|()| attributes(contents));
    made.context("the device's attributes cannot be mounted")
}

/// Puts a folder in memory over this one. It has the same entries, except those of these names.
fn in_memory(folder: &str, without: &[&str], name: &str) -> io::Result<()> {
    let before = File::open(folder)?;
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let kinds = entries.iter().map(DirEntry::file_type).collect::<io::Result<Vec<_>>>()?;
    let links: Vec<_> = entries.iter().map(|entry| fs::read_link(entry.path())).collect();
    mount(name, folder, "tmpfs", MountFlags::NOSUID, c"mode=755")?;
    let before = PathBuf::from(format!("/proc/self/fd/{}", before.as_raw_fd()));
    for ((entry, kind), link) in entries.iter().zip(kinds).zip(links) {
        let (place, source) = (entry.path(), before.join(entry.file_name()));
        if without.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        let bound = if kind.is_symlink() {
            symlink(link?, &place)
        } else {
            let made = if kind.is_dir() { fs::create_dir(&place) } else { File::create(&place).map(drop) };
            made.and_then(|()| Ok(mount_bind_recursive(&source, &place)?))
        };
        match bound {
            // The entry has vanished.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// Binds a node for each that the tree has.
fn nodes(contents: &Contents, null: &Path) -> io::Result<()> {
    fs::create_dir(Path::new(DEVICES).join("infiniband"))?;
    for (path, _) in contents.iter().filter(|(path, _)| path.starts_with(NODES)) {
        let place = Path::new("/").join(path);
        File::create(&place)?;
        mount_bind_recursive(null, &place)?;
    }
    Ok(())
}

/// The class of an entry: the component after the folder of virtual devices.
fn class_of(path: &str) -> Option<&str> {
    path.strip_prefix(VIRTUAL)?.split('/').next()
}

/// Writes the attributes into the folders of the classes. The devices are folders there, no links.
fn attributes(contents: &Contents) -> io::Result<()> {
    let of_class = contents.iter().filter_map(|(path, entry)| match entry {
        Entry::Link(_) => None,
        _ => path.strip_prefix(VIRTUAL).or_else(|| path.strip_prefix("sys/class/")).map(|rest| (rest, entry)),
    });
    of_class.into_iter().try_for_each(|(rest, entry)| super::place(&Path::new(CLASSES).join(rest), entry))
}
