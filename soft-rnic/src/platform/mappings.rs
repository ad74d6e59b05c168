//! `/proc/self/maps`: the memory mappings of this process and their files.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, SealFlags, fcntl_get_seals, fstat};

/// A file's device and inode, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    major: u32,
    minor: u32,
    inode: u64,
}

impl FileId {
    fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = fstat(file)?;
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Ok(Self { major, minor, inode: stat.st_ino })
    }
}

/// Consecutive addresses that map consecutive bytes of one file, shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    pub(crate) path: PathBuf,
}

/// The mappings in a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Whether all of the range is mapped and readable.
    pub(crate) readable: bool,
    /// Whether all of the range is mapped and writable.
    pub(crate) writable: bool,
    /// The shared mapping of a file that contains the whole range, if one does.
    pub(crate) shared: Option<Mapping>,
}

impl Survey {
    const NOTHING: Self = Self { readable: false, writable: false, shared: None };

    /// Surveys a range of addresses, which is not empty.
    ///
    /// # Errors
    ///
    /// `/proc/self/maps` cannot be read.
    pub(crate) fn of(address: usize, len: usize) -> io::Result<Self> {
        // Miri and loom have no `/proc`, and their memory is never shared.
        if cfg!(any(miri, loom)) {
            return Ok(Self { readable: true, writable: true, shared: None });
        }
        let maps = BufReader::new(std::fs::File::open("/proc/self/maps")?);
        Self::search(maps.split(b'\n'), address, len)
    }

    /// Expects the lines in the order of their addresses.
    fn search(
        lines: impl Iterator<Item = io::Result<Vec<u8>>>,
        address: usize,
        len: usize,
    ) -> io::Result<Self> {
        let Some(end) = address.checked_add(len) else { return Ok(Self::NOTHING) };
        let (mut readable, mut writable, mut covered) = (true, true, address);
        let mut run: Option<Mapping> = None;
        for line in lines {
            let line = line?;
            let Some(line) = MapsLine::parse(&line) else { continue };
            if line.start <= covered && covered < line.end && covered < end {
                covered = line.end;
                readable &= line.permissions.starts_with('r');
                writable &= line.permissions[1..].starts_with('w');
            }
            match (&mut run, line.mapping()) {
                (Some(run), Some(next)) if next.continues(run) => run.end = next.end,
                // This line lies behind the range.
                _ if line.start >= end => break,
                (run, next) => *run = next,
            }
        }
        let mapped = covered >= end;
        let shared = run.filter(|run| run.contains(address, len));
        Ok(Self { readable: mapped && readable, writable: mapped && writable, shared })
    }
}

fn hexadecimal(text: &str) -> Option<usize> {
    usize::from_str_radix(text, 16).ok()
}

/// A line of `/proc/self/maps`.
struct MapsLine<'a> {
    start: usize,
    end: usize,
    /// `rwxs`, with `-` for a permission that is missing and `p` for a private mapping.
    permissions: &'a str,
    /// Offset, device and inode; then blanks and the path, which may contain any bytes.
    rest: &'a [u8],
}

impl<'a> MapsLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(3, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (start, end) = text()?.split_once('-')?;
        let permissions = text().filter(|permissions| permissions.is_ascii() && permissions.len() == 4)?;
        Some(Self { start: hexadecimal(start)?, end: hexadecimal(end)?, permissions, rest: fields.next()? })
    }

    /// The mapping of a shared file, if the line describes one.
    fn mapping(&self) -> Option<Mapping> {
        if !self.permissions.ends_with('s') {
            return None;
        }
        let mut fields = self.rest.splitn(4, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let offset = u64::from_str_radix(text()?, 16).ok()?;
        let (major, minor) = text()?.split_once(':')?;
        let inode: u64 = text()?.parse().ok().filter(|inode| *inode != 0)?;
        let path = fields.next()?.trim_ascii_start();
        Some(Mapping {
            start: self.start,
            end: self.end,
            offset,
            file: FileId { major: hexadecimal(major)? as u32, minor: hexadecimal(minor)? as u32, inode },
            path: PathBuf::from(OsStr::from_bytes(path)),
        })
    }
}

impl Mapping {
    fn contains(&self, address: usize, len: usize) -> bool {
        len != 0 && self.start <= address && address.checked_add(len).is_some_and(|end| end <= self.end)
    }

    fn continues(&self, before: &Self) -> bool {
        self.start == before.end
            && self.file == before.file
            && before.offset.checked_add((before.end - before.start) as u64) == Some(self.offset)
    }

    /// The file of this mapping, if peers may map it too: a memory file that cannot shrink and that
    /// is still open in this process; or, with `any_shm`, a file in `/dev/shm`.
    pub(crate) fn shareable_file(&self, any_shm: bool) -> Option<OwnedFd> {
        if self.path.as_os_str().as_bytes().starts_with(b"/memfd:") {
            return self.open_memory_file();
        }
        if !any_shm || !self.path.starts_with("/dev/shm") {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&self.path, flags, Mode::empty()).ok()?;
        (FileId::of(file.as_fd()).ok()? == self.file).then_some(file)
    }

    fn open_memory_file(&self) -> Option<OwnedFd> {
        std::fs::read_dir("/proc/self/fd").ok()?.flatten().find_map(|entry| {
            let named = std::fs::read_link(entry.path()).ok()?;
            if named != self.path {
                return None;
            }
            // Reopened instead of duplicated, because another thread may close the number at any
            // time.
            let file = reopen(&entry.path(), true).or_else(|_| reopen(&entry.path(), false)).ok()?;
            let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
            (sealed && FileId::of(file.as_fd()).ok()? == self.file).then_some(file)
        })
    }
}

fn reopen(path: &Path, writable: bool) -> io::Result<OwnedFd> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    Ok(rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// Opens another descriptor of a file, with only the given access.
///
/// # Errors
///
/// `/proc` is not mounted, or the file does not allow the access.
pub(crate) fn reopen_file(file: BorrowedFd<'_>, writable: bool) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    reopen(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), writable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(text: &str, address: usize, len: usize) -> Survey {
        let lines = text.lines().map(|line| Ok(line.as_bytes().to_vec()));
        Survey::search(lines, address, len).expect("text")
    }

    fn search(text: &str, address: usize, len: usize) -> Option<Mapping> {
        survey(text, address, len).shared
    }

    const MAPS: &str = "\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 123                        /usr/bin/cat
7f0000000000-7f0000002000 rw-s 00000000 00:01 1035                       /memfd:a (deleted)
7f0000002000-7f0000003000 r--s 00002000 00:01 1035                       /memfd:a (deleted)
7f0000003000-7f0000004000 rw-s 00000000 00:01 1035                       /memfd:a (deleted)
7f0000004000-7f0000005000 rw-s 00000000 00:01 1036                       /memfd:with space (deleted)
7f0000005000-7f0000006000 rw-p 00000000 00:00 0
7f0000006000-7f0000007000 rw-p 00001000 00:01 1036                       /memfd:private (deleted)
";

    #[test]
    fn parts_of_one_mapping_are_put_together() {
        let whole = search(MAPS, 0x7f00_0000_1000, 0x2000).expect("two lines");
        assert_eq!((whole.start, whole.end, whole.offset), (0x7f00_0000_0000, 0x7f00_0000_3000, 0));
        assert_eq!(whole.path, Path::new("/memfd:a (deleted)"));
        assert_eq!(search(MAPS, 0x7f00_0000_2000, 0x1000), Some(whole));
        // The second mapping shows the same file, but not the bytes that follow.
        assert_eq!(search(MAPS, 0x7f00_0000_2000, 0x1001), None);
        assert_eq!(search(MAPS, 0x7f00_0000_3000, 0x1000).map(|found| found.end), Some(0x7f00_0000_4000));
        assert_eq!(search(MAPS, 0x7f00_0000_4000, 1).map(|found| found.file.inode), Some(1036));
    }

    #[test]
    fn permissions_are_those_of_every_part() {
        let permissions = |address, len| {
            let Survey { readable, writable, .. } = survey(MAPS, address, len);
            (readable, writable)
        };
        assert_eq!(permissions(0x7f00_0000_0000, 0x2000), (true, true));
        assert_eq!(permissions(0x7f00_0000_1fff, 1), (true, true));
        assert_eq!(permissions(0x7f00_0000_1fff, 2), (true, false), "the second is read-only");
        assert_eq!(permissions(0x7f00_0000_2000, 0x2000), (true, false));
        assert_eq!(permissions(0x7f00_0000_3000, 0x4000), (true, true), "over several mappings");
        assert_eq!(permissions(0x7f00_0000_6000, 0x1001), (false, false), "beyond the last");
        assert_eq!(permissions(0x55d0_c000_0000, 0x1001), (false, false), "into a hole");
        assert_eq!(permissions(0x55d0_bfff_ffff, 2), (false, false), "out of a hole");
        assert_eq!(permissions(0, 8), (false, false));
        assert_eq!(permissions(usize::MAX, 8), (false, false));
        let secret = "1000-2000 rw-p 0 0:0 0\n2000-3000 ---p 0 0:0 0\n3000-4000 -w-p 0 0:0 0\n";
        for (address, expected) in [(0x1000, (true, true)), (0x2000, (false, false)), (0x3000, (false, true))]
        {
            let Survey { readable, writable, .. } = survey(secret, address, 0x1000);
            assert_eq!((readable, writable), expected, "{address:#x}");
        }
    }

    #[test]
    fn private_mapping_is_not_found() {
        for (address, len) in [
            (0x55d0_c000_0000, 16),
            (0x7f00_0000_5000, 1),
            (0x7f00_0000_6000, 1),
            (0x7f00_0000_0000, 0),
            (0, 8),
        ] {
            assert_eq!(search(MAPS, address, len), None, "{address:#x}");
        }
        assert_eq!(search(MAPS, usize::MAX, 8), None);
        assert_eq!(search("junk\n-\nzz-zz rw-s 0 0:0 1 /x\n", 0, 1), None);
    }
}
