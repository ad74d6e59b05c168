//! A file that is replaced as a whole, repeatedly, so that a reader never sees a partial one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file whose content is replaced atomically: it is written to a temporary file, which is then
/// renamed. A device or a pipe is written to directly, once, at the end.
#[derive(Debug)]
pub(super) struct ReplacedFile {
    path: PathBuf,
    beside: PathBuf,
    /// Whether this run created the file at the path; another one is replaced only with --force.
    is_ours: bool,
    is_special: bool,
}

impl ReplacedFile {
    /// Checks before the measurement that the file can be created; creates nothing yet.
    ///
    /// # Errors
    ///
    /// The file exists and may not be replaced, or its folder is not writable.
    pub(super) fn new(path: &Path, force: bool) -> io::Result<Self> {
        let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
            return Err(ErrorKind::IsADirectory.into());
        }
        if !is_special && !force && path.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let mut name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        // The target of a symbolic link is replaced, and not the link.
        let path =
            if force { path.canonicalize().unwrap_or_else(|_| path.to_owned()) } else { path.to_owned() };
        let new = Self { beside: path.with_file_name(name), path, is_ours: force, is_special };
        if is_special {
            OpenOptions::new().write(true).open(&new.path)?;
        } else {
            File::create(&new.beside)?;
            fs::remove_file(&new.beside)?;
        }
        Ok(new)
    }

    /// Whether the path is a device or a pipe, which can be written only once.
    pub(super) fn is_special(&self) -> bool {
        self.is_special
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
        if self.is_special {
            return write(&mut OpenOptions::new().write(true).open(&self.path)?);
        }
        let written = File::create(&self.beside).and_then(|mut file| {
            write(&mut file)?;
            // Some file systems report only here that they are full.
            file.sync_data()
        });
        let published = written.and_then(|()| self.publish());
        if published.is_err() {
            let _ = fs::remove_file(&self.beside);
        }
        published
    }

    fn publish(&mut self) -> io::Result<()> {
        if self.is_ours {
            return fs::rename(&self.beside, &self.path);
        }
        // Unlike a rename, a link fails if another program has created the file in between.
        match fs::hard_link(&self.beside, &self.path) {
            Ok(()) => fs::remove_file(&self.beside)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
            // The file system does not support links.
            Err(_) => fs::rename(&self.beside, &self.path)?,
        }
        self.is_ours = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
