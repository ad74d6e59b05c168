//! A file that is replaced as a whole, repeatedly, so that a reader never sees a partial one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Names that are tried for a temporary file; each has 64 random bits.
const TRIES: usize = 8;

/// The most symbolic links in a row, which is the kernel's limit.
const MOST_LINKS: usize = 40;

/// `O_NOFOLLOW`.
pub(super) const NO_LINKS: i32 = OFlags::NOFOLLOW.bits() as i32;

/// A file whose content is replaced atomically: it is written to a temporary file, which is then
/// renamed. A device or a pipe is written to directly, once, at the end.
///
/// Another user may write in the folder. So the temporary file has a random name and must be new,
/// and a symbolic link at the path is replaced and never followed, unless it is this user's or
/// root's, and leads to a device or a pipe.
#[derive(Debug)]
pub(super) struct ReplacedFile {
    path: PathBuf,
    /// Whether this run created the file at the path; another one is replaced only with --force.
    is_ours: bool,
    /// The device or pipe, opened once, so that nobody can put a file in its place.
    special: Option<File>,
}

/// Opens a device or a pipe for writing. `None` if the path has none, or if one of the symbolic
/// links at its end is another user's, who could choose the device.
///
/// # Errors
///
/// The device cannot be opened, or a file has taken its place.
pub(super) fn open_special(path: &Path) -> io::Result<Option<File>> {
    if !fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(None);
    }
    let Some(file) = open_by_trusted_links(path)? else { return Ok(None) };
    if file.metadata()?.is_file() {
        return Err(ErrorKind::AlreadyExists.into());
    }
    Ok(Some(file))
}

/// Opens what exists at the path, and follows the links of root and of this user alone.
fn open_by_trusted_links(path: &Path) -> io::Result<Option<File>> {
    let user = rustix::process::geteuid().as_raw();
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        match OpenOptions::new().write(true).custom_flags(NO_LINKS).open(&at) {
            Err(error) if is_link(&error) => {}
            opened => return opened.map(Some),
        }
        if ![0, user].contains(&at.symlink_metadata()?.uid()) {
            return Ok(None);
        }
        let target = at.parent().unwrap_or(Path::new("")).join(at.read_link()?);
        // A link of /proc/self/fd leads to an open pipe, which has no path.
        if target.symlink_metadata().is_err() {
            return OpenOptions::new().write(true).open(&at).map(Some);
        }
        at = target;
    }
    Err(Errno::LOOP.into())
}

/// Whether an open failed because of [`NO_LINKS`].
pub(super) fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// Creates a file beside `path`, of a name that did not exist. Returns it with its path.
fn create_beside(path: &Path, mut number: impl FnMut() -> io::Result<u64>) -> io::Result<(File, PathBuf)> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let mut last = ErrorKind::AlreadyExists.into();
    for _ in 0..TRIES {
        let mut beside: OsString = name.to_owned();
        beside.push(format!(".{:016x}.partial", number()?));
        let beside = path.with_file_name(beside);
        // O_EXCL: a link at the name is an error, wherever it leads.
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((file, beside)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

impl ReplacedFile {
    /// Checks before the measurement that the file can be created; leaves nothing yet.
    ///
    /// # Errors
    ///
    /// The file exists and may not be replaced, or its folder is not writable.
    pub(super) fn new(path: &Path, force: bool) -> io::Result<Self> {
        let special = open_special(path)?;
        if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
            return Err(ErrorKind::IsADirectory.into());
        }
        if special.is_none() {
            if !force && path.symlink_metadata().is_ok() {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let (_, beside) = create_beside(path, random)?;
            fs::remove_file(beside)?;
        }
        Ok(Self { path: path.to_owned(), is_ours: force, special })
    }

    /// Whether the path is a device or a pipe, which can be written only once.
    pub(super) fn is_special(&self) -> bool {
        self.special.is_some()
    }

    /// Replaces the content.
    ///
    /// # Errors
    ///
    /// Writing failed; the content is unchanged.
    pub(super) fn write(&mut self, content: &str) -> io::Result<()> {
        self.write_with(|file| file.write_all(content.as_bytes()))
    }

    fn write_with(&mut self, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        if let Some(file) = &mut self.special {
            return write(file);
        }
        let (mut file, beside) = create_beside(&self.path, random)?;
        // Some file systems report only at the end that they are full.
        let written = write(&mut file).and_then(|()| file.sync_data());
        let published = written.and_then(|()| self.publish(&beside));
        if published.is_err() {
            let _ = fs::remove_file(&beside);
        }
        published
    }

    fn publish(&mut self, beside: &Path) -> io::Result<()> {
        if self.is_ours {
            return fs::rename(beside, &self.path);
        }
        // Unlike a rename, a link fails if another program has created the file in between.
        match fs::hard_link(beside, &self.path) {
            Ok(()) => fs::remove_file(beside)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
            // The file system does not support links.
            Err(_) => fs::rename(beside, &self.path)?,
        }
        self.is_ours = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("stride-replaced-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn an_existing_file_is_only_replaced_by_force_and_then_at_once() {
        let folder = folder("force");
        let path = folder.join("a.json");
        let mut file = ReplacedFile::new(&path, false).unwrap();
        assert!(names(&folder).is_empty());
        file.write("one").unwrap();
        file.write("two").unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names(&folder)),
            ("two".to_owned(), vec!["a.json".to_owned()])
        );
        assert_eq!(ReplacedFile::new(&path, false).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let mut forced = ReplacedFile::new(&path, true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        forced.write("three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn links_that_another_user_left_are_not_followed() {
        let folder = folder("links");
        let (victim, path) = (folder.join("victim"), folder.join("a.json"));
        fs::write(&victim, "precious").unwrap();
        // The name that was used before, and the first of the names that are tried now.
        let planted = [std::process::id().to_string(), format!("{:016x}", 7)];
        for name in &planted {
            symlink(&victim, folder.join(format!("a.json.{name}.partial"))).unwrap();
        }
        let mut numbers = [7, 8].into_iter();
        let (_, beside) = create_beside(&path, || Ok(numbers.next().unwrap())).unwrap();
        assert_eq!(beside, folder.join("a.json.0000000000000008.partial"));
        let error = create_beside(&path, || Ok(7)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        ReplacedFile::new(&path, false).unwrap().write("ours").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "ours");
        // The user allows that the file is replaced, and not one that a link names.
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        ReplacedFile::new(&path, true).unwrap().write("forced").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "forced");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_link_to_a_device_is_followed_unless_another_user_made_it() {
        let folder = folder("device-links");
        let (device, ours, path) = (folder.join("device"), folder.join("ours"), folder.join("a.json"));
        symlink("/dev/null", &device).unwrap();
        symlink("device", &ours).unwrap();
        assert!(ReplacedFile::new(&ours, false).unwrap().is_special());
        assert!(ReplacedFile::new(Path::new("/dev/null"), false).unwrap().is_special());
        if !rustix::process::geteuid().is_root() {
            let name = "a_link_to_a_device_is_followed_unless_another_user_made_it";
            test_harness::report_skip(name, "its last part: only root can make links for another user");
            return fs::remove_dir_all(&folder).unwrap();
        }
        std::os::unix::fs::lchown(&device, Some(54_321), None).unwrap();
        for link in [&device, &ours] {
            assert!(open_special(link).unwrap().is_none(), "{}", link.display());
            let refused = ReplacedFile::new(link, false).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        }
        fs::rename(&device, &path).unwrap();
        ReplacedFile::new(&path, true).unwrap().write("forced").unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_full_disk_loses_nothing_that_was_there() {
        let folder = folder("full");
        let path = folder.join("a.json");
        let mut file = ReplacedFile::new(&path, false).unwrap();
        let full = |file: &mut File| {
            file.write_all(b"half of ")?;
            Err(ErrorKind::StorageFull.into())
        };
        assert_eq!(file.write_with(full).unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(names(&folder).is_empty());
        file.write("whole").unwrap();
        assert_eq!(file.write_with(full).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((fs::read_to_string(&path).unwrap(), names(&folder).len()), ("whole".to_owned(), 1));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_came_about_meanwhile_is_left_alone() {
        let folder = folder("meanwhile");
        let path = folder.join("a.json");
        let mut file = ReplacedFile::new(&path, false).unwrap();
        fs::write(&path, "another's").unwrap();
        assert_eq!(file.write("ours").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!((fs::read_to_string(&path).unwrap(), names(&folder).len()), ("another's".to_owned(), 1));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn where_no_file_can_be_is_known_at_once() {
        let folder = folder("nowhere");
        assert_eq!(ReplacedFile::new(&folder, false).unwrap_err().kind(), ErrorKind::IsADirectory);
        let path = folder.join("missing").join("a.json");
        assert_eq!(ReplacedFile::new(&path, false).unwrap_err().kind(), ErrorKind::NotFound);
        let mut null = ReplacedFile::new(Path::new("/dev/null"), false).unwrap();
        null.write("anything").unwrap();
        let mut full = ReplacedFile::new(Path::new("/dev/full"), false).unwrap();
        assert_eq!(full.write("anything").unwrap_err().kind(), ErrorKind::StorageFull);
        fs::remove_dir_all(&folder).unwrap();
    }
}
