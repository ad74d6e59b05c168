//! Result files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::flat::csv_of;
use super::replaced::{NO_LINKS, ReplacedFile, is_link, open_special};
use super::{FlatRow, RunRecord};
use crate::plan::TestPoint;

/// The paths of the results by format. `-` is standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultPaths {
    /// One JSON document.
    pub json: Option<PathBuf>,
    /// JSON lines.
    pub jsonl: Option<PathBuf>,
    /// Comma-separated values.
    pub csv: Option<PathBuf>,
    /// The distribution of latencies.
    pub hgrm: Option<PathBuf>,
    /// Whether existing files are replaced.
    pub force: bool,
}

/// Results cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// Two formats use standard output.
    #[error("{first} - and {second} - both want standard output: give one of them a file")]
    TwoOnStandardOutput {
        /// The flag of the first.
        first: &'static str,
        /// The flag of the second.
        second: &'static str,
    },
    /// Two formats use the same file.
    #[error("{first} and {second} both name {}: give one of them another file", path.display())]
    SameFile {
        /// The flag of the first.
        first: &'static str,
        /// The flag of the second.
        second: &'static str,
        /// The path of the file.
        path: PathBuf,
    },
    /// Distributions cannot be written to standard output.
    #[error("--hgrm - is not possible, as there may be several distributions: give a file")]
    HgrmOnStandardOutput,
    /// The format holds a single run, and a server has many.
    #[error("{flag} is of one run, and serve has many: give --jsonl, or give {flag} to the clients")]
    OfOneRun {
        /// The flag of the format.
        flag: &'static str,
    },
    /// The file exists already.
    #[error("{flag} {} exists: give another name, or --force to replace it", path.display())]
    Exists {
        /// The flag that names it.
        flag: &'static str,
        /// The path of the file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("{flag}: cannot write {}: {source}{}", path.display(), remedy(source))]
    Write {
        /// The flag that names it.
        flag: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make its folder first",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "; what was written of it before is as it was"
        }
        _ => "",
    }
}

impl ResultPaths {
    fn flags(&self) -> [(&'static str, Option<&PathBuf>); 4] {
        [
            ("--json", self.json.as_ref()),
            ("--jsonl", self.jsonl.as_ref()),
            ("--csv", self.csv.as_ref()),
            ("--hgrm", self.hgrm.as_ref()),
        ]
    }

    /// Whether a format uses standard output, so that the table must go elsewhere.
    pub fn take_standard_output(&self) -> bool {
        self.flags().iter().any(|(_, path)| path.is_some_and(|path| is_standard_output(path)))
    }

    /// Refuses formats that hold a single run.
    pub fn check_many_runs(&self) -> Result<(), FilesError> {
        let of_one = self.flags().into_iter().find(|(flag, path)| *flag != JsonLines::FLAG && path.is_some());
        of_one.map_or(Ok(()), |(flag, _)| Err(FilesError::OfOneRun { flag }))
    }

    fn check(&self) -> Result<(), FilesError> {
        if self.hgrm.as_deref().is_some_and(is_standard_output) {
            return Err(FilesError::HgrmOnStandardOutput);
        }
        let given: Vec<_> = self.flags().into_iter().filter_map(|(flag, path)| Some((flag, path?))).collect();
        for (index, (second, path)) in given.iter().enumerate() {
            let Some((first, _)) = given[..index].iter().find(|(_, other)| other == path) else { continue };
            return Err(match is_standard_output(path) {
                true => FilesError::TwoOnStandardOutput { first, second },
                false => FilesError::SameFile { first, second, path: (*path).clone() },
            });
        }
        Ok(())
    }
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file that is replaced as a whole, or standard output, which is written at the end.
#[derive(Debug)]
struct ResultFile {
    flag: &'static str,
    path: PathBuf,
    /// `None` for standard output.
    file: Option<ReplacedFile>,
}

impl ResultFile {
    fn new(flag: &'static str, path: &Path, force: bool) -> Result<Self, FilesError> {
        let path = path.to_owned();
        if is_standard_output(&path) {
            return Ok(Self { flag, path, file: None });
        }
        match ReplacedFile::new(&path, force) {
            Ok(file) => Ok(Self { flag, path, file: Some(file) }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(FilesError::Exists { flag, path })
            }
            Err(source) => Err(FilesError::Write { flag, path, source }),
        }
    }

    /// Writes the content; standard output only at the end, because it can be written only once.
    fn write(&mut self, at_end: bool, content: impl FnOnce() -> String) -> Result<(), FilesError> {
        let written = match &mut self.file {
            Some(file) if at_end || !file.is_special() => file.write(&content()),
            None if at_end => print_whole(&content()),
            _ => Ok(()),
        };
        written.map_err(|source| FilesError::Write { flag: self.flag, path: self.path.clone(), source })
    }
}

fn print_whole(content: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(content.as_bytes())?;
    stdout.flush()
}

/// A file to which this run and others append lines.
#[derive(Debug)]
struct JsonLines {
    path: PathBuf,
    /// `None` for standard output.
    file: Option<File>,
}

impl JsonLines {
    const FLAG: &str = "--jsonl";

    fn new(path: &Path, force: bool) -> Result<Self, FilesError> {
        let path = path.to_owned();
        if is_standard_output(&path) {
            return Ok(Self { path, file: None });
        }
        let opened = open_lines(&path).and_then(|mut file| {
            // Lines of other runs stay, unless the user gave --force.
            if force && file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            end_last_line(&mut file)?;
            Ok(file)
        });
        match opened {
            Ok(file) => Ok(Self { path, file: Some(file) }),
            Err(source) => Err(FilesError::Write { flag: Self::FLAG, path, source }),
        }
    }

    /// Appends a line. A line that does not fit is not started.
    fn append(&mut self, line: &str) -> Result<(), FilesError> {
        let written = match &mut self.file {
            None => print_whole(line),
            Some(file) => append_whole(file, line),
        };
        written.map_err(|source| FilesError::Write { flag: Self::FLAG, path: self.path.clone(), source })
    }
}

/// Opens a file for appending. A symbolic link is not followed, because another user may have left
/// it, except by [`open_special`].
fn open_lines(path: &Path) -> io::Result<File> {
    if let Some(special) = open_special(path)? {
        return Ok(special);
    }
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).custom_flags(NO_LINKS);
    options.open(path).map_err(|error| match is_link(&error) {
        true => io::Error::other("it is a symbolic link, which is not followed; give the file that it names"),
        false => error,
    })
}

/// Ends an incomplete line of another program, which would otherwise corrupt the next one.
fn end_last_line(file: &mut File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" { Ok(()) } else { file.write_all(b"\n") }
}

fn append_whole(file: &mut File, line: &str) -> io::Result<()> {
    let metadata = file.metadata()?;
    let written = file.write_all(line.as_bytes());
    if written.is_err() && metadata.is_file() {
        file.set_len(metadata.len())?;
    }
    written
}

/// All result files of a run.
#[derive(Debug, Default)]
pub struct Files {
    json: Option<ResultFile>,
    csv: Option<ResultFile>,
    /// Several runs of one process may share the lines.
    lines: Option<Arc<Mutex<JsonLines>>>,
    /// Whether a line or a distribution was lost; each is written only once.
    lost: bool,
    /// One for each row, if any.
    hgrm: Vec<ResultFile>,
}

impl Files {
    /// Checks before the measurement that the files can be written.
    ///
    /// # Errors
    ///
    /// A file cannot be written, or exists already.
    pub fn new(targets: &ResultPaths, cells: impl Iterator<Item = TestPoint>) -> Result<Self, FilesError> {
        targets.check()?;
        let document = |flag, path: &Option<PathBuf>| {
            path.as_deref().map(|path| ResultFile::new(flag, path, targets.force)).transpose()
        };
        let mut files = Self {
            json: document("--json", &targets.json)?,
            csv: document("--csv", &targets.csv)?,
            lines: None,
            lost: false,
            hgrm: Vec::new(),
        };
        if let Some(path) = &targets.hgrm {
            let paths = hgrm_paths(path, &cells.collect::<Vec<_>>());
            let documents = paths.iter().map(|path| ResultFile::new("--hgrm", path, targets.force));
            files.hgrm = documents.collect::<Result<_, _>>()?;
        }
        // The last, because it creates its file at once.
        let lines = targets.jsonl.as_deref().map(|path| JsonLines::new(path, targets.force)).transpose()?;
        files.lines = lines.map(|lines| Arc::new(Mutex::new(lines)));
        Ok(files)
    }

    /// Writes the results after a row was added.
    ///
    /// # Errors
    ///
    /// A file could not be written; its earlier content is unchanged.
    pub fn add(&mut self, record: &RunRecord) -> Result<(), FilesError> {
        let appended = match (&self.lines, record.results.last()) {
            (Some(lines), Some(last)) => {
                let line = FlatRow::new(record, last).to_json_line();
                lines.lock().unwrap_or_else(PoisonError::into_inner).append(&line)
            }
            _ => Ok(()),
        };
        let distribution = self.add_distribution(record);
        let once = appended.and(distribution);
        self.lost |= once.is_err();
        let again = self.write(record, false);
        once.and(again)
    }

    /// Whether every line and distribution was written.
    pub fn lost_none(&self) -> bool {
        !self.lost
    }

    /// Whether the lines use standard output.
    pub fn take_standard_output(&self) -> bool {
        let lines = self.lines.as_ref().map(|lines| lines.lock().unwrap_or_else(PoisonError::into_inner));
        lines.is_some_and(|lines| lines.file.is_none())
    }

    /// The files that another run of this process appends to as well: the lines only.
    pub fn shared(&self) -> Self {
        Self { lines: self.lines.clone(), ..Self::default() }
    }

    fn add_distribution(&mut self, record: &RunRecord) -> Result<(), FilesError> {
        let index = record.results.len().saturating_sub(1);
        let histogram = record.results.last().and_then(|last| last.histogram.as_ref());
        match (self.hgrm.get_mut(index), histogram) {
            (Some(document), Some(histogram)) => document.write(true, || histogram.to_hgrm()),
            _ => Ok(()),
        }
    }

    /// Writes the final results. A run without results leaves no file.
    ///
    /// # Errors
    ///
    /// A file could not be written; its earlier content is unchanged.
    pub fn finish(&mut self, record: &RunRecord) -> Result<(), FilesError> {
        if record.results.is_empty() {
            [&mut self.json, &mut self.csv].into_iter().for_each(|document| {
                document.take_if(|document| document.file.is_some());
            });
        }
        self.write(record, true)
    }

    fn write(&mut self, record: &RunRecord, at_end: bool) -> Result<(), FilesError> {
        let json = self.json.as_mut().map_or(Ok(()), |json| {
            json.write(at_end, || serde_json::to_string(record).expect("strings and numbers are JSON") + "\n")
        });
        let csv = self.csv.as_mut().map_or(Ok(()), |csv| {
            csv.write(at_end, || csv_of(record.results.iter().map(|size| FlatRow::new(record, size))))
        });
        json.and(csv)
    }
}

/// The file of each row; with one row the given path itself.
fn hgrm_paths(path: &Path, cells: &[TestPoint]) -> Vec<PathBuf> {
    if cells.len() == 1 {
        return vec![path.to_owned()];
    }
    let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
    cells
        .iter()
        .map(|point| match &extension {
            Some(extension) => path.with_extension(format!("{}.{extension}", point.name())),
            None => PathBuf::from(format!("{}.{}", path.display(), point.name())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_not_appended_through_a_link() {
        let folder = std::env::temp_dir().join(format!("stride-lines-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (victim, path) = (folder.join("victim"), folder.join("a.jsonl"));
        std::fs::write(&victim, "precious\n").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        for force in [false, true] {
            let text = JsonLines::new(&path, force).unwrap_err().to_string();
            assert!(text.contains("symbolic link"), "{text}");
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
