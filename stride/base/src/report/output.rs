//! The destinations of the table, the notes and the result files.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::live::{self, LiveProgress, SECOND};
use super::{Expectations, ResultRow, footer, heading, line, perftest};
use crate::cli::{CompatArg, OutputArgs};
use crate::device::LocalDevice;
use crate::error::Error;
use crate::plan::{RunPlan, TestPlan, TestPoint};
use crate::progress::TestProgress;
use crate::result::{
    ConnectionRecord, DeviceInfo, Files, ParameterRecord, PayloadPath, PeerRecord, ResultPaths, RunRecord,
    SizeDetails, SizeResult, Status,
};

/// The exit status of a run whose figures miss an expectation.
pub const MISSED: u8 = 1;

/// The streams and files of a side. Clones share them.
#[derive(Clone)]
pub struct Output(Arc<Mutex<Sinks>>);

struct Sinks {
    table: Box<dyn Write + Send>,
    notes: Box<dyn Write + Send>,
    outputs: Option<RunOutputs>,
    /// The program whose columns the table uses, if not this one's.
    compat: Option<CompatArg>,
    /// Whether notes go to a terminal.
    is_terminal: bool,
    /// Whether the terminal's last line is a status that will be overwritten.
    has_status: bool,
    /// Whether the run has ended, so that later figures are ignored.
    has_ended: bool,
}

/// The files and live output of a run.
struct RunOutputs {
    record: RunRecord,
    began: Instant,
    files: Files,
    expectations: Expectations,
    missed: bool,
    /// The last failure to write a file, which the user has seen.
    failed: Option<String>,
    moved: PayloadPath,
    /// The size that is being measured.
    live: Option<LiveProgress>,
}

impl Output {
    /// The table on standard output, the notes on standard error.
    pub fn standard() -> Self {
        Self::over(Box::new(io::stdout()), Box::new(io::stderr()), None)
    }

    /// No output, for the second side in one process, which would repeat the first.
    pub fn silent() -> Self {
        Self::over(Box::new(io::sink()), Box::new(io::sink()), None)
    }

    /// Standard output, standard error, and the files that the user asked for. If a file uses
    /// standard output, the table goes to standard error.
    ///
    /// # Errors
    ///
    /// A file cannot be written, or an expectation does not fit the test.
    pub fn of_run(args: &OutputArgs, plan: &RunPlan, words: Vec<OsString>) -> Result<Self, Error> {
        let expectations = Expectations::new(args, &plan.test)?;
        let targets = ResultPaths::from(args);
        let files = Files::new(&targets, plan.test.cells())?;
        let record = RunRecord::new(in_text(words), plan.role.name());
        let outputs = RunOutputs { expectations, ..RunOutputs::new(record, files) };
        let output = Self::over(table_of(&targets), Box::new(io::stderr()), Some(outputs));
        output.sinks().is_terminal = io::stderr().is_terminal();
        output.sinks().compat = args.compat;
        Ok(output)
    }

    /// The streams of a server that serves many clients.
    ///
    /// # Errors
    ///
    /// A file cannot be written, or its format holds a single run.
    pub fn of_server(args: &OutputArgs, words: Vec<OsString>) -> Result<Self, Error> {
        Expectations::none(args)?;
        let targets = ResultPaths::from(args);
        targets.check_many_runs()?;
        let files = Files::new(&targets, std::iter::empty())?;
        let outputs = RunOutputs::new(RunRecord::new(in_text(words), "server"), files);
        let output = Self::over(table_of(&targets), Box::new(io::stderr()), Some(outputs));
        output.sinks().compat = args.compat;
        Ok(output)
    }

    /// The output for one client of such a server. Notes start with the client's name, and the
    /// table is printed at once when it is complete if other clients are served at the same time.
    pub fn of_client(&self, peer: &str, has_neighbours: bool) -> Self {
        let notes = Box::new(PrefixedStderr { name: peer.to_owned() });
        let sinks = self.sinks();
        let Some(outputs) = &sinks.outputs else { return Self::silent() };
        let run = RunRecord {
            device: outputs.record.device.clone(),
            ..RunRecord::new(outputs.record.command.clone(), "server")
        };
        let table: Box<dyn Write + Send> = if outputs.files.take_standard_output() {
            Box::new(io::sink())
        } else if has_neighbours {
            Box::new(BufferedTable(Vec::new()))
        } else {
            Box::new(IgnoreWriteErrors(io::stdout()))
        };
        let output = Self::over(table, notes, Some(RunOutputs::new(run, outputs.files.shared())));
        output.sinks().compat = sinks.compat;
        output
    }

    fn over(table: Box<dyn Write + Send>, notes: Box<dyn Write + Send>, outputs: Option<RunOutputs>) -> Self {
        let (compat, is_terminal) = (None, false);
        let sinks = Sinks { table, notes, outputs, compat, is_terminal, has_status: false, has_ended: false };
        Self(Arc::new(Mutex::new(sinks)))
    }

    /// A thread that panicked while writing has written what it could.
    fn sinks(&self) -> MutexGuard<'_, Sinks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, keep: impl FnOnce(&mut RunRecord)) {
        if let Some(outputs) = &mut self.sinks().outputs {
            keep(&mut outputs.record);
        }
    }

    /// Keeps which device is used, and tells the user.
    pub fn device(&mut self, device: &LocalDevice) {
        self.keep(|record| match record.device {
            None => record.device = Some(DeviceInfo::new(device)),
            Some(_) => record.other_devices.push(DeviceInfo::new(device)),
        });
        self.note(&device.description);
    }

    /// Keeps who is at the other end.
    pub fn peer(&mut self, address: &str, version: Option<&str>) {
        let (address, version) = (address.to_owned(), version.map(str::to_owned));
        self.keep(|record| record.peer = Some(PeerRecord { address, version }));
    }

    /// Keeps what carries the messages, and tells the user.
    pub fn connection(&mut self, transport: &str, description: &str) {
        let (transport, words) = (transport.to_owned(), description.to_owned());
        self.keep(|record| record.connection = Some(ConnectionRecord { transport, description: words }));
        self.note(description);
    }

    /// Prints the table's heading, and what else the figures have to be read with.
    pub fn heading(&mut self, test: &TestPlan, over: Option<String>) -> io::Result<()> {
        let mut sinks = self.sinks();
        if let Some(outputs) = &mut sinks.outputs {
            outputs.record.parameters = Some(ParameterRecord::new(test));
            outputs.moved = PayloadPath::now();
        }
        let mut heading = heading(test, over.as_deref());
        if let (Some(CompatArg::Perftest), Some(columns)) = (sinks.compat, perftest::columns(test)) {
            let own = heading.rfind('\n').map_or(0, |end| end + 1);
            heading.replace_range(own.., columns);
        }
        sinks.table_line(&heading)
    }

    /// Prints a line of the table.
    pub fn table_line(&mut self, line: &str) -> io::Result<()> {
        self.sinks().table_line(line)
    }

    /// Starts a measurement: the workload reports its progress, which the user sees once a second.
    pub fn begin(&mut self, point: TestPoint, test: &TestPlan) -> Arc<TestProgress> {
        let progress = Arc::new(TestProgress::of_threads(test.thread_count()));
        let mut sinks = self.sinks();
        let Some(outputs) = &mut sinks.outputs else { return progress };
        let mut live = LiveProgress::new(point, test, Arc::clone(&progress));
        let (output, of_this) = (self.clone(), Arc::clone(&progress));
        let ticker = thread::Builder::new().name("live".to_owned()).spawn(move || output.watch(&of_this));
        live.ticker = ticker.ok().map(|ticker| ticker.thread().clone());
        outputs.live = Some(live);
        progress
    }

    /// Prints progress once a second until the measurement ends.
    fn watch(&self, progress: &Arc<TestProgress>) {
        let mut next = Instant::now() + SECOND;
        loop {
            thread::park_timeout(next.saturating_duration_since(Instant::now()));
            let mut sinks = self.sinks();
            let is_terminal = sinks.is_terminal;
            let live = sinks.outputs.as_mut().and_then(|outputs| outputs.live.as_mut());
            let Some(live) = live.filter(|live| Arc::ptr_eq(&live.progress, progress)) else { return };
            if Instant::now() >= next {
                next += SECOND;
                let seen = live.tick(is_terminal);
                sinks.status(&seen);
            }
        }
    }

    /// Prints a row at once.
    pub fn row(&mut self, row: &ResultRow) -> io::Result<()> {
        self.measured(row, SizeDetails::default())
    }

    /// Prints a row and writes its details to the files. A row that arrives after
    /// [`finish`](Self::finish) is dropped, because the user has already seen the partial result.
    pub fn measured(&mut self, row: &ResultRow, details: SizeDetails) -> io::Result<()> {
        let mut sinks = self.sinks();
        if sinks.has_ended {
            return Ok(());
        }
        let complaints = sinks.outputs.as_mut().map(|outputs| outputs.add(row, details)).unwrap_or_default();
        let theirs = sinks.compat.and_then(|CompatArg::Perftest| perftest::line(row));
        let printed = sinks.table_line(&theirs.unwrap_or_else(|| line(row)));
        complaints.iter().for_each(|complaint| sinks.note(complaint));
        printed
    }

    /// Ends the table with the cost of its rows, if that was measured.
    pub fn footer(&mut self) -> io::Result<()> {
        let mut sinks = self.sinks();
        let cost = sinks.outputs.as_ref().and_then(|outputs| footer(&outputs.record.results));
        cost.map_or(Ok(()), |cost| sinks.table_line(&cost))
    }

    /// Prints a note in one piece, because the other side may write to the same terminal. A failure
    /// is ignored, because the notes may have no reader.
    pub fn note(&mut self, note: impl fmt::Display) {
        let note = note.to_string();
        let mut sinks = self.sinks();
        if let Some(outputs) = &mut sinks.outputs {
            outputs.record.notes.push(note.clone());
        }
        sinks.note(&note);
    }

    /// Prints a note that belongs to no run, so that no record keeps it.
    pub fn log(&self, line: impl fmt::Display) {
        self.sinks().note(&line.to_string());
    }

    /// Ends the run and writes the final results to files. Returns the exit status.
    ///
    /// # Errors
    ///
    /// The reason why the run ended early, or why a file could not be written.
    pub fn finish(&mut self, done: Result<(), Error>) -> Result<u8, Error> {
        let mut sinks = self.sinks();
        sinks.has_ended = true;
        let Some(mut outputs) = sinks.outputs.take() else { return done.map(|()| 0) };
        sinks.clear();
        if matches!(&done, Err(error) if error.interrupted().is_some())
            && let Some(words) = outputs.interrupt()
        {
            // A failure is ignored, because the table may have no reader any more.
            let _ = sinks.table_line(&words);
        }
        let lines = outputs.finish(&done);
        lines.iter().for_each(|line| sinks.note(line));
        done?;
        match outputs.failed {
            Some(failed) => Err(Error::Files(failed)),
            None if outputs.missed => Ok(MISSED),
            None => Ok(0),
        }
    }
}

impl Sinks {
    /// Shows a status that the next one overwrites; without a terminal it is an ordinary line.
    fn status(&mut self, text: &str) {
        if self.is_terminal {
            self.has_status = true;
            let _ = self.notes.write_all(format!("\r\x1b[2K{text}").as_bytes());
            let _ = self.notes.flush();
        } else {
            self.note(text);
        }
    }

    /// Erases the status.
    fn clear(&mut self) {
        if std::mem::take(&mut self.has_status) {
            let _ = self.notes.write_all(b"\r\x1b[2K");
        }
    }

    fn table_line(&mut self, line: &str) -> io::Result<()> {
        self.clear();
        writeln!(self.table, "{line}")?;
        self.table.flush()
    }

    fn note(&mut self, note: &str) {
        self.clear();
        let _ = self.notes.write_all(format!("{note}\n").as_bytes());
    }
}

fn in_text(words: Vec<OsString>) -> Vec<String> {
    words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// If a file uses standard output, the table goes to standard error.
fn table_of(targets: &ResultPaths) -> Box<dyn Write + Send> {
    if targets.take_standard_output() { Box::new(io::stderr()) } else { Box::new(io::stdout()) }
}

/// Notes about one of several clients.
struct PrefixedStderr {
    name: String,
}

impl Write for PrefixedStderr {
    fn write(&mut self, note: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(note);
        let named: String = text.lines().map(|line| format!("{}: {line}\n", self.name)).collect();
        io::stderr().write_all(named.as_bytes()).map(|()| note.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A server goes on if its table has no reader any more.
struct IgnoreWriteErrors<W>(W);

impl<W: Write> Write for IgnoreWriteErrors<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// A table that is printed when it is complete.
struct BufferedTable(Vec<u8>);

impl Write for BufferedTable {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for BufferedTable {
    fn drop(&mut self) {
        let _ = io::stdout().lock().write_all(&self.0);
    }
}

impl RunOutputs {
    fn new(record: RunRecord, files: Files) -> Self {
        Self {
            record,
            began: Instant::now(),
            files,
            expectations: Expectations::default(),
            missed: false,
            failed: None,
            moved: PayloadPath::default(),
            live: None,
        }
    }

    /// Adds a row; returns warnings for the user.
    fn add(&mut self, row: &ResultRow, details: SizeDetails) -> Vec<String> {
        let now = PayloadPath::now();
        let payload_path = now.since(std::mem::replace(&mut self.moved, now));
        let intervals = self.end_live().map(|live| live.intervals).unwrap_or_default();
        self.record.results.push(SizeResult { payload_path, intervals, ..SizeResult::new(row, details) });
        self.record.elapsed_s = self.began.elapsed().as_secs_f64();
        let mut lines = self.expectations.check(row);
        self.missed |= !lines.is_empty();
        if let Err(error) = self.files.add(&self.record) {
            // Each cause is reported once, because a full disk affects every row.
            let text = error.to_string();
            if self.failed.as_ref() != Some(&text) {
                lines.push(format!("warning: {text}"));
            }
            self.failed = Some(text);
        }
        lines
    }

    /// Ends the live progress, and returns it.
    fn end_live(&mut self) -> Option<LiveProgress> {
        let live = self.live.take()?;
        live.ticker.as_ref().inspect(|ticker| ticker.unpark());
        Some(live)
    }

    /// Keeps the partial result of an interrupted size; returns it as text.
    fn interrupt(&mut self) -> Option<String> {
        let size = self.end_live()?.interrupted()?;
        let words = live::words(&size);
        self.record.results.push(size);
        if let Err(error) = self.files.add(&self.record) {
            self.failed = Some(error.to_string());
        }
        Some(words)
    }

    /// Writes the final results; returns warnings for the user.
    fn finish(&mut self, done: &Result<(), Error>) -> Vec<String> {
        let lines = if done.is_ok() { self.expectations.unmet() } else { Vec::new() };
        self.missed |= !lines.is_empty();
        self.record.elapsed_s = self.began.elapsed().as_secs_f64();
        (self.record.status, self.record.error) = match done {
            Ok(()) => (Status::Finished, None),
            Err(error) if error.interrupted().is_some() => (Status::Interrupted, None),
            Err(error) => (Status::Failed, Some(error.one_line())),
        };
        // A file whose writing failed before is complete now, except for lines, which are lost.
        match self.files.finish(&self.record) {
            Err(error) => self.failed = Some(error.to_string()),
            Ok(()) if self.files.lost_none() => self.failed = None,
            Ok(()) => {}
        }
        lines
    }
}

impl From<&OutputArgs> for ResultPaths {
    fn from(args: &OutputArgs) -> Self {
        let OutputArgs { json, jsonl, csv, hgrm, force, .. } = args.clone();
        Self { json, jsonl, csv, hgrm, force }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::report::BandwidthRow;

    /// Sends everything that is written to a channel.
    struct ChannelWriter(mpsc::Sender<Vec<u8>>);

    impl Write for ChannelWriter {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.send(text.to_vec()).map_err(io::Error::other)?;
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A server's record would grow with each stranger.
    #[test]
    fn a_logged_line_is_printed_and_not_kept() {
        let (sender, written) = mpsc::channel();
        let files = Files::new(&ResultPaths::default(), std::iter::empty()).unwrap();
        let outputs = RunOutputs::new(RunRecord::new(Vec::new(), "server"), files);
        let output = Output::over(Box::new(io::sink()), Box::new(ChannelWriter(sender)), Some(outputs));
        let kept = || output.sinks().outputs.as_ref().unwrap().record.notes.len();
        output.clone().note("kept");
        output.log("a stranger");
        assert_eq!(kept(), 1);
        let bytes: Vec<u8> = written.try_iter().flatten().collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), "kept\na stranger\n");
    }

    #[test]
    fn an_interrupted_measurement_is_in_no_table() {
        let (sender, written) = mpsc::channel();
        let mut output = Output::over(Box::new(ChannelWriter(sender)), Box::new(io::sink()), None);
        let row = ResultRow::Bandwidth(BandwidthRow {
            size: 64,
            iterations: 5000,
            seconds: 1.0,
            gigabits_per_second: 1.0,
            million_messages_per_second: 1.0,
        });
        output.clone().row(&row).unwrap();
        assert!(written.try_iter().flatten().count() > 0);
        output.finish(Ok(())).unwrap();
        output.row(&row).unwrap();
        assert_eq!(written.try_iter().flatten().count(), 0);
    }
}
