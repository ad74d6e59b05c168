//! The second process, and the commands that it obeys.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sideway::ibverbs::connect::Endpoint;
use sideway::memory::BufferKind;

use crate::node::{HALF, TestNode};
use crate::reference;

/// The length of a message in the latency rows.
const MESSAGE: usize = 64;

#[derive(Serialize, Deserialize)]
struct PeerAddress {
    endpoint: Endpoint,
    rkey: u32,
    address: u64,
}

impl PeerAddress {
    fn of(node: &TestNode) -> Self {
        Self { endpoint: node.endpoint(), rkey: node.memory.rkey(), address: node.at(HALF) }
    }
}

/// A command of the measuring process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum PeerCommand {
    EchoWrites(u32),
    EchoSends(u32),
}

/// The measuring process's handle of the second process.
pub(crate) struct PeerProcess {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    pub(crate) rkey: u32,
    pub(crate) address: u64,
}

impl PeerProcess {
    pub(crate) fn start(node: &mut TestNode, kind: BufferKind) -> Result<Self> {
        let kind = if kind == BufferKind::Shared { "shared" } else { "malloc" };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", kind])
            .env("SOFT_RNIC_LOG", "warn")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut to = child.stdin.take().context("a pipe")?;
        let mut from = BufReader::new(child.stdout.take().context("a pipe")?);
        send_json(&mut to, &PeerAddress::of(node))?;
        let theirs: PeerAddress = receive_json(&mut from)?.context("the other process has ended")?;
        node.connect(&theirs.endpoint)?;
        let ready: Option<()> = receive_json(&mut from)?;
        ready.context("the other process has ended")?;
        Ok(Self { child, to: Some(to), from, rkey: theirs.rkey, address: theirs.address })
    }

    /// Waits until the device has finished its background work after the first messages.
    pub(crate) fn settle(&mut self) -> Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(50));
        ensure!(self.child.try_wait()?.is_none(), "the other process has ended");
        Ok(())
    }

    /// Writes that the peer echoes: nanoseconds for one direction.
    pub(crate) fn writes(&mut self, node: &mut TestNode, count: u32) -> Result<f64> {
        let target = Some((self.rkey, self.address));
        node.flag(HALF + MESSAGE - 1).store(0, Release);
        self.command(PeerCommand::EchoWrites(count))?;
        let start = Instant::now();
        for number in 1..=count {
            node.post_inline(target, &[mark(number); MESSAGE])?;
            node.complete(1)?;
            wait(node, mark(number));
        }
        self.done(start, count)
    }

    /// Sends that the peer echoes: nanoseconds for one direction.
    pub(crate) fn sends(&mut self, node: &mut TestNode, count: u32) -> Result<f64> {
        node.receive()?;
        self.command(PeerCommand::EchoSends(count))?;
        let start = Instant::now();
        for number in 1..=count {
            node.post_inline(None, &[mark(number); MESSAGE])?;
            node.complete(2)?; // The message's own, and the echo's.
            if number < count {
                node.receive()?;
            }
        }
        self.done(start, count)
    }

    fn command(&mut self, command: PeerCommand) -> Result<()> {
        let to = self.to.as_mut().context("the other process was told to end")?;
        send_json(to, &command)?;
        let ready: Option<()> = receive_json(&mut self.from)?;
        ready.context("the other process has ended")
    }

    fn done(&mut self, start: Instant, count: u32) -> Result<f64> {
        let half = start.elapsed().as_nanos() as f64 / f64::from(count) / 2.0;
        let ready: Option<()> = receive_json(&mut self.from)?;
        ready.context("the other process has ended").map(|()| half)
    }

    /// Its memory as a target of system calls.
    pub(crate) fn raw(&self) -> reference::PeerMemory {
        reference::PeerMemory { pid: self.child.id().cast_signed(), address: self.address }
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.to = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the other process failed: {status}");
        Ok(())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended already, unless this process failed.
        let _ = self.child.wait();
    }
}

/// The second process: obeys commands until its standard input ends.
pub(crate) fn serve(kind: BufferKind) -> Result<()> {
    reference::pin(1)?;
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    let Some(theirs) = receive_json::<PeerAddress>(&mut from)? else {
        bail!("standard input ended before the peer's address")
    };
    let mut node = TestNode::new(kind)?;
    send_json(&mut to, &PeerAddress::of(&node))?;
    node.connect(&theirs.endpoint)?;
    send_json(&mut to, &())?;
    while let Some(command) = receive_json::<PeerCommand>(&mut from)? {
        match command {
            PeerCommand::EchoWrites(count) => {
                send_json(&mut to, &())?;
                for number in 1..=count {
                    wait(&node, mark(number));
                    node.post_inline(Some((theirs.rkey, theirs.address)), &[mark(number); MESSAGE])?;
                    node.complete(1)?;
                }
            }
            PeerCommand::EchoSends(count) => {
                node.receive()?;
                send_json(&mut to, &())?;
                for number in 1..=count {
                    node.complete(1)?;
                    if number < count {
                        node.receive()?;
                    }
                    node.post_inline(None, &[mark(number); MESSAGE])?;
                    node.complete(1)?;
                }
            }
        }
        // The last message of a round must not look like the first of the next one.
        node.flag(HALF + MESSAGE - 1).store(0, Release);
        send_json(&mut to, &())?;
    }
    Ok(())
}

/// A nonzero byte that differs from one message to the next.
fn mark(number: u32) -> u8 {
    (number % 255) as u8 + 1
}

/// Polls for the last byte of a message.
fn wait(node: &TestNode, mark: u8) {
    let flag = node.flag(HALF + MESSAGE - 1);
    while flag.load(Acquire) != mark {
        std::hint::spin_loop();
    }
}

fn send_json(to: &mut impl std::io::Write, what: &impl Serialize) -> Result<()> {
    writeln!(to, "{}", serde_json::to_string(what)?)?;
    Ok(to.flush()?)
}

/// Reads one line; `None` at the end of the input.
fn receive_json<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}
