//! Where the table and the notes go.

use std::fmt;
use std::io::{self, Write};

use super::{Row, heading, line};
use crate::plan::TestPlan;

/// The two streams of a side.
pub struct Output {
    table: Box<dyn Write + Send>,
    notes: Box<dyn Write + Send>,
}

impl Output {
    /// The table on standard output, the notes on standard error.
    pub fn standard() -> Self {
        Self { table: Box::new(io::stdout()), notes: Box::new(io::stderr()) }
    }

    /// Neither: for the second side in one process, which would only repeat the first.
    pub fn silent() -> Self {
        Self { table: Box::new(io::sink()), notes: Box::new(io::sink()) }
    }

    /// Prints the table's heading, and what else the figures have to be read with.
    pub fn heading(&mut self, test: &TestPlan, over: Option<String>) -> io::Result<()> {
        self.table_line(&heading(test, over.as_deref()))
    }

    /// Prints a row as soon as it is known.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        self.table_line(&line(row))
    }

    /// Tells the user something beside the table, in one piece, as the other side may be writing to the same terminal. That
    /// nobody may be reading is no reason to stop.
    pub fn note(&mut self, note: impl fmt::Display) {
        let _ = self.notes.write_all(format!("{note}\n").as_bytes());
    }

    fn table_line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.table, "{line}")?;
        self.table.flush()
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}
