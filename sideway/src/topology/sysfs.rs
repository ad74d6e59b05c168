//! Reading files and folders of sysfs; whatever cannot be read is unknown.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

/// The longest file of sysfs, a page.
const LONGEST: u64 = 4096;

/// The longest name of a network interface (`IFNAMSIZ` without the final zero byte).
const LONGEST_NETDEV_NAME: usize = 15;

/// The text of a file without surrounding white space; `None` if it is empty.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The number in a file; `None` for -1, if `T` has no negative values.
pub(super) fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// The names in a folder, sorted.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The different texts of a folder's numbered files, in the order of their numbers.
pub(super) fn lines_of(folder: &Path) -> Vec<String> {
    let mut numbers: Vec<u32> = names(folder).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let mut lines = Vec::new();
    // The kernel answers EINVAL for an empty entry.
    for line in numbers.iter().filter_map(|number| text(&folder.join(number.to_string()))) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Whether the kernel allows this name of a network interface, so that it may be part of a path.
pub(super) fn is_netdev_name(name: &str) -> bool {
    let strange = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    !matches!(name, "" | "." | "..") && name.len() <= LONGEST_NETDEV_NAME && !name.contains(strange)
}
