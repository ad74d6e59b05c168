//! The other process.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sideway::ibverbs::connect::Endpoint;
use sideway::memory::BufferKind;

use crate::reference;
use crate::side::{HALF, Side};

/// How long a message of the latency rows is.
const MESSAGE: usize = 64;

#[derive(Serialize, Deserialize)]
struct Hello {
    endpoint: Endpoint,
    rkey: u32,
    address: u64,
}

impl Hello {
    fn of(side: &Side) -> Self {
        Self { endpoint: side.endpoint(), rkey: side.memory.rkey(), address: side.at(HALF) }
    }
}

/// What the measuring process asks for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Order {
    EchoWrites(u32),
    EchoSends(u32),
}

/// The measuring process's end.
pub(crate) struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    pub(crate) rkey: u32,
    pub(crate) address: u64,
}

impl Peer {
    pub(crate) fn start(side: &mut Side, kind: BufferKind) -> Result<Self> {
        let kind = if kind == BufferKind::Shared { "shared" } else { "malloc" };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", kind])
            .env("SOFT_RNIC_LOG", "warn")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut to = child.stdin.take().context("a pipe")?;
        let mut from = BufReader::new(child.stdout.take().context("a pipe")?);
        tell(&mut to, &Hello::of(side))?;
        let theirs: Hello = hear(&mut from)?.context("the other process has ended")?;
        side.connect(&theirs.endpoint)?;
        let ready: Option<()> = hear(&mut from)?;
        ready.context("the other process has ended")?;
        Ok(Self { child, to: Some(to), from, rkey: theirs.rkey, address: theirs.address })
    }

    /// Leaves the device time for what it does in the background after the first messages.
    pub(crate) fn settle(&mut self) -> Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(50));
        ensure!(self.child.try_wait()?.is_none(), "the other process has ended");
        Ok(())
    }

    /// Writes that are echoed; half of what a pair takes.
    pub(crate) fn writes(&mut self, side: &mut Side, count: u32) -> Result<f64> {
        let target = Some((self.rkey, self.address));
        side.flag(HALF + MESSAGE - 1).store(0, Release);
        self.order(Order::EchoWrites(count))?;
        let start = Instant::now();
        for number in 1..=count {
            side.post_inline(target, &[mark(number); MESSAGE])?;
            side.complete(1)?;
            wait(side, mark(number));
        }
        self.done(start, count)
    }

    /// The same with messages.
    pub(crate) fn sends(&mut self, side: &mut Side, count: u32) -> Result<f64> {
        side.receive()?;
        self.order(Order::EchoSends(count))?;
        let start = Instant::now();
        for number in 1..=count {
            side.post_inline(None, &[mark(number); MESSAGE])?;
            side.complete(2)?; // The message's own, and the echo's.
            if number < count {
                side.receive()?;
            }
        }
        self.done(start, count)
    }

    fn order(&mut self, order: Order) -> Result<()> {
        let to = self.to.as_mut().context("the other process was told to end")?;
        tell(to, &order)?;
        let ready: Option<()> = hear(&mut self.from)?;
        ready.context("the other process has ended")
    }

    fn done(&mut self, start: Instant, count: u32) -> Result<f64> {
        let half = start.elapsed().as_nanos() as f64 / f64::from(count) / 2.0;
        let ready: Option<()> = hear(&mut self.from)?;
        ready.context("the other process has ended").map(|()| half)
    }

    /// Its memory, as the kernel sees it.
    pub(crate) fn raw(&self) -> reference::Remote {
        reference::Remote { pid: self.child.id().cast_signed(), address: self.address }
    }

    /// Lets it end.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.to = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "the other process failed: {status}");
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It has ended already, unless this process failed.
        let _ = self.child.wait();
    }
}

/// The other process: does what it is told, until nobody tells it anything more.
pub(crate) fn serve(kind: BufferKind) -> Result<()> {
    reference::pin(1)?;
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    let Some(theirs) = hear::<Hello>(&mut from)? else { bail!("nobody told where to connect to") };
    let mut side = Side::new(kind)?;
    tell(&mut to, &Hello::of(&side))?;
    side.connect(&theirs.endpoint)?;
    tell(&mut to, &())?;
    while let Some(order) = hear::<Order>(&mut from)? {
        match order {
            Order::EchoWrites(count) => {
                tell(&mut to, &())?;
                for number in 1..=count {
                    wait(&side, mark(number));
                    side.post_inline(Some((theirs.rkey, theirs.address)), &[mark(number); MESSAGE])?;
                    side.complete(1)?;
                }
            }
            Order::EchoSends(count) => {
                side.receive()?;
                tell(&mut to, &())?;
                for number in 1..=count {
                    side.complete(1)?;
                    if number < count {
                        side.receive()?;
                    }
                    side.post_inline(None, &[mark(number); MESSAGE])?;
                    side.complete(1)?;
                }
            }
        }
        // What the last round left must not be taken for the next one's first.
        side.flag(HALF + MESSAGE - 1).store(0, Release);
        tell(&mut to, &())?;
    }
    Ok(())
}

/// Differs from one message to the next, and from 0.
fn mark(number: u32) -> u8 {
    (number % 255) as u8 + 1
}

/// Waits for the last byte of a message.
fn wait(side: &Side, mark: u8) {
    let flag = side.flag(HALF + MESSAGE - 1);
    while flag.load(Acquire) != mark {
        std::hint::spin_loop();
    }
}

fn tell(to: &mut impl std::io::Write, what: &impl Serialize) -> Result<()> {
    writeln!(to, "{}", serde_json::to_string(what)?)?;
    Ok(to.flush()?)
}

/// Nothing, if nobody speaks any more.
fn hear<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}
