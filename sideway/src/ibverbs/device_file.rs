//! The kernel's device files: why this process cannot open a device that the kernel has.
//!
//! libibverbs leaves out devices without a file, and reports that a file cannot be opened as if it
//! was missing. So errors look at the files themselves.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// The folders of the kernel's RDMA devices.
#[derive(Clone)]
pub(super) struct DeviceFolders {
    /// The devices: `/sys/class/infiniband`.
    devices: PathBuf,
    /// Their files by number, each with the name of its device: `/sys/class/infiniband_verbs`.
    numbers: PathBuf,
    /// The files: `/dev/infiniband`.
    files: PathBuf,
}

impl Default for DeviceFolders {
    fn default() -> Self {
        #[cfg(test)]
        if let Some(folders) = tests::REPLACED.with_borrow(Clone::clone) {
            return folders;
        }
        Self {
            devices: "/sys/class/infiniband".into(),
            numbers: "/sys/class/infiniband_verbs".into(),
            files: "/dev/infiniband".into(),
        }
    }
}

impl DeviceFolders {
    /// The kernel's devices, if none of them has a file here.
    pub(super) fn devices_without_files(&self) -> Vec<String> {
        let devices = names(&self.devices);
        let has_file = |device: &String| self.file_of(device).is_some_and(|file| file.exists());
        if devices.iter().any(has_file) { Vec::new() } else { devices }
    }

    /// Why the file of a device cannot be opened, and what to do. `None` if it can, or if the kernel
    /// does not tell which file it is.
    pub(super) fn why_not_opened(&self, device: &str) -> Option<String> {
        let file = self.file_of(device)?;
        let may = accessat(CWD, &file, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS);
        refusal(&file, may.err()?.into())
    }

    /// The file of a device, if the kernel has the device.
    fn file_of(&self, device: &str) -> Option<PathBuf> {
        let is_of = |number: &String| {
            let name = fs::read_to_string(self.numbers.join(number).join("ibdev"));
            name.is_ok_and(|name| name.trim() == device)
        };
        names(&self.numbers).iter().find(|number| is_of(number)).map(|number| self.files.join(number))
    }
}

/// The names in a folder, sorted; none if there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// What a refusal of a device file means.
fn refusal(file: &Path, error: io::Error) -> Option<String> {
    let path = file.display();
    match error.raw_os_error()? {
        libc::ENOENT => Some(format!(
            "{path} does not exist: load ib_uverbs (`modprobe ib_uverbs`); a container gets it by \
             `--device {path}`"
        )),
        libc::EACCES => {
            let owner = fs::metadata(file).map_or_else(
                |_| "unknown".to_owned(),
                |file| {
                    format!("{:04o}, owner {}:{}", file.permissions().mode() & 0o7777, file.uid(), file.gid())
                },
            );
            Some(format!("this user may not open {path} (mode {owner}): change its mode or the udev rule"))
        }
        libc::EPERM => Some(format!(
            "{path} is there, and the rules of the container forbid it: start the container with `--device {path}`"
        )),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// The folders that this thread takes for the kernel's.
        pub(in super::super) static REPLACED: RefCell<Option<DeviceFolders>> = const { RefCell::new(None) };
    }

    /// The kernel's folders with one device, `mlx5_0`, whose file is `uverbs3`.
    pub(in super::super) fn one_device(test: &str) -> (PathBuf, DeviceFolders) {
        let root = std::env::temp_dir().join(format!("sideway-device-file-{}-{test}", std::process::id()));
        let folders = DeviceFolders {
            devices: root.join("infiniband"),
            numbers: root.join("verbs"),
            files: root.join("dev"),
        };
        fs::create_dir_all(folders.devices.join("mlx5_0")).unwrap();
        fs::create_dir_all(folders.numbers.join("uverbs3")).unwrap();
        fs::write(folders.numbers.join("uverbs3/ibdev"), "mlx5_0\n").unwrap();
        (root, folders)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot ask for the rights of a file")]
    fn a_device_without_a_file_is_named_with_the_containers_option() {
        let (root, folders) = one_device("absent");
        let path = root.join("dev/uverbs3").display().to_string();
        assert_eq!(folders.devices_without_files(), ["mlx5_0"]);
        let expected = format!(
            "{path} does not exist: load ib_uverbs (`modprobe ib_uverbs`); a container gets it by `--device {path}`"
        );
        assert_eq!(folders.why_not_opened("mlx5_0"), Some(expected));
        assert_eq!(folders.why_not_opened("mlx5_1"), None, "the kernel does not have it");
        fs::create_dir_all(&folders.files).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(folders.devices_without_files(), [""; 0]);
        assert_eq!(folders.why_not_opened("mlx5_0"), None, "it can be opened");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know the owner of a file")]
    fn a_file_that_may_not_be_opened_is_named_with_its_mode() {
        let (root, _) = one_device("forbidden");
        let path = root.join("uverbs3");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let (user, group) = fs::metadata(&path).map(|file| (file.uid(), file.gid())).unwrap();
        let says = |errno| refusal(&path, io::Error::from_raw_os_error(errno));
        let shown = path.display();
        let expected = format!(
            "this user may not open {shown} (mode 0600, owner {user}:{group}): change its mode or the udev rule"
        );
        assert_eq!(says(libc::EACCES), Some(expected));
        let expected = format!(
            "{shown} is there, and the rules of the container forbid it: start the container with `--device {shown}`"
        );
        assert_eq!(says(libc::EPERM), Some(expected));
        assert_eq!(says(libc::EIO), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_system_without_devices_has_none_without_files() {
        let root = std::env::temp_dir().join("sideway-device-file-nowhere");
        let folders = DeviceFolders { devices: root.clone(), numbers: root.clone(), files: root };
        assert_eq!(folders.devices_without_files(), [""; 0]);
        assert_eq!(folders.why_not_opened("mlx5_0"), None);
    }
}
