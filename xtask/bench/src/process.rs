//! The other process of a measurement: it runs the same program, takes commands from its standard
//! input, and reports on its standard output.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The address of all processes.
pub const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Ends this process when its parent has ended.
pub fn end_with_parent(end: fn(i32) -> !) {
    std::thread::spawn(move || {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {}
        end(0)
    });
}

/// Prints a line at once.
///
/// # Errors
///
/// Standard output is closed.
pub fn print_line(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")?;
    Ok(stdout.flush()?)
}

/// Another process that runs this program. It ends when this value is dropped.
pub struct ServerProcess {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    /// The port that it listens on; 0 if it does not listen.
    pub port: u16,
}

impl ServerProcess {
    /// Starts a process that first prints its port.
    ///
    /// # Errors
    ///
    /// The process does not start, or prints no port.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let mut server = Self::run(arguments)?;
        let said = server.read_line()?;
        server.port = said.parse().with_context(|| format!("not a port: {said}"))?;
        Ok(server)
    }

    /// Starts a process that does not listen.
    ///
    /// # Errors
    ///
    /// The process does not start.
    pub fn run(arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Self { child, to, from, port: 0 })
    }

    /// The next line of its output.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.from.read_line(&mut line)? > 0, "the other process has ended");
        Ok(line.trim_end().to_owned())
    }

    /// Writes a command to its standard input.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub fn send_line(&mut self, text: &str) -> Result<()> {
        let to = self.to.as_mut().context("a pipe")?;
        writeln!(to, "{text}")?;
        Ok(to.flush()?)
    }

    /// Waits for this line of its output.
    ///
    /// # Errors
    ///
    /// It prints another line, or has ended.
    pub fn expect(&mut self, text: &str) -> Result<()> {
        match self.read_line()? {
            said if said == text => Ok(()),
            said => bail!("the other process printed {said} instead of {text}"),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process ends when its standard input is closed.
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
