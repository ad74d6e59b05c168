//! The tree of device files that a program sees instead of the system's.
//!
//! It is a folder of `/dev/shm`, because this program becomes the one that it runs, so that nobody
//! is left to remove it. All runs of a user with the same devices share one.

mod contents;
pub(crate) mod namespace;

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{env, process};

use anyhow::{Context as _, Result};
use soft_rnic::Config;

use contents::{Contents, Entry};

/// The beginning of a tree's name.
const PREFIX: &str = "soft-rnic-files-";
/// Within a tree: all entries as text. Two trees with the same text are equal. Each run sets the
/// file's time.
const LISTING: &str = "listing";
/// How long a tree is kept for programs that are started later with `--print-env`, or that run.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The device files of a configuration.
pub(crate) struct DeviceFiles {
    pub(crate) tree: PathBuf,
    contents: Contents,
}

impl DeviceFiles {
    /// Finds this user's tree for the devices of this configuration, or makes it.
    pub(crate) fn of(config: Config) -> Result<Self> {
        let contents = contents::of_devices(config)?;
        let listing = listing(&contents);
        let parents = parents();
        let mut failed = None;
        for parent in &parents {
            match existing(parent, &listing).map_or_else(|| made(parent, &contents, &listing), Ok) {
                Ok(tree) => return Ok(Self { tree, contents }),
                Err(error) => failed.get_or_insert(error),
            };
        }
        let tried: Vec<_> = parents.iter().map(|parent| parent.display().to_string()).collect();
        let error = failed.unwrap_or_else(|| ErrorKind::NotFound.into());
        Err(error).with_context(|| format!("no device files can be made in {}", tried.join(", ")))
    }
}

/// The folders that may have the trees. The first two are in memory, and every user can read the
/// first. `realpath` has resolved the paths.
fn parents() -> Vec<PathBuf> {
    let candidates = [
        Some(PathBuf::from("/dev/shm")),
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some(env::temp_dir()),
    ];
    candidates.into_iter().flatten().filter_map(|folder| folder.canonicalize().ok()).collect()
}

fn listing(contents: &Contents) -> String {
    contents.iter().map(|(path, entry)| format!("{path} {entry:?}\n")).collect()
}

/// Looks for an equal tree of this user, and removes old ones.
fn existing(parent: &Path, listing: &str) -> Option<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let trees = fs::read_dir(parent).ok()?.flatten();
    let mut found = None;
    for tree in trees.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())) {
        // Another user may have made a folder of this name.
        let Ok(state) = tree.metadata() else { continue };
        if state.uid() != own || !state.is_dir() || state.mode() & 0o022 != 0 {
            continue;
        }
        let of_tree = tree.path().join(LISTING);
        if fs::read_to_string(&of_tree).is_ok_and(|other| other == listing) {
            let _ = File::open(&of_tree).and_then(|file| file.set_modified(SystemTime::now()));
            found.get_or_insert(tree.path());
        } else if is_old(&of_tree) {
            // Another run may remove it at the same time.
            let _ = fs::remove_dir_all(tree.path());
        }
    }
    found
}

/// Whether no run has used a tree for long.
fn is_old(listing: &Path) -> bool {
    let used = fs::metadata(listing).and_then(|state| state.modified());
    used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age > KEPT))
}

/// Makes a tree under another name, so that no run finds half of it.
fn made(parent: &Path, contents: &Contents, listing: &str) -> io::Result<PathBuf> {
    let number = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
    let name = format!("{}-{number:x}", process::id());
    let unfinished = parent.join(format!(".{PREFIX}{name}"));
    folder(&unfinished)?;
    let tree = parent.join(format!("{PREFIX}{name}"));
    let done = fill(&unfinished, contents, listing).and_then(|()| fs::rename(&unfinished, &tree));
    if done.is_err() {
        let _ = fs::remove_dir_all(&unfinished);
    }
    done.map(|()| tree)
}

fn fill(tree: &Path, contents: &Contents, listing: &str) -> io::Result<()> {
    contents.iter().try_for_each(|(path, entry)| place(&tree.join(path), entry))?;
    file(&tree.join(LISTING), listing)
}

/// Makes an entry, and the folders above it.
fn place(path: &Path, entry: &Entry) -> io::Result<()> {
    if let Some(above) = path.parent() {
        folders(above)?;
    }
    match entry {
        Entry::File(text) => file(path, text),
        Entry::Link(to) => symlink(to, path),
        Entry::Folder => folders(path),
    }
}

/// Programs that change their user read the files, too, whatever the mask of this process is.
fn file(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

/// Makes a folder and those above it.
fn folders(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), folders)?;
    folder(path)
}

/// Makes a folder, which must not exist.
fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}
