//! The accepting process.

use std::io::{Read, stdin};
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};
use xtask_bench::process::{ServerProcess, print_line};

use crate::carrier::{Carrier, CarrierListener, Stream};
use crate::cpu;

/// How the accepting thread serves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// It answers the requests of one connection after the other, each until its end.
    Echo,
    /// It answers one request, and keeps the connection.
    Once,
    /// It keeps the connection.
    Keep,
}

impl Service {
    const ALL: [Self; 3] = [Self::Echo, Self::Once, Self::Keep];

    fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Once => "once",
            Self::Keep => "keep",
        }
    }
}

/// The connections that the accepting thread has served.
#[derive(Default)]
struct Served {
    kept: Vec<Stream>,
    served: u32,
}

/// A server in another process.
pub(crate) struct Server {
    pub(crate) carrier: Carrier,
    process: ServerProcess,
}

impl Server {
    /// Starts it, and makes the first connection, with which a process opens its device.
    pub(crate) fn start(carrier: Carrier, service: Service) -> Result<Self> {
        let process = ServerProcess::start(&["serve", carrier.name(), service.name()])?;
        let mut server = Self { carrier, process };
        let mut first = server.connect()?;
        if service != Service::Keep {
            first.request::<false>()?;
        }
        drop(first);
        server.close_all()?;
        server.served()?;
        Ok(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.process.port
    }

    pub(crate) fn connect(&self) -> Result<Stream> {
        self.carrier.connect(self.process.port).with_context(|| format!("over {}", self.carrier.name()))
    }

    /// Its CPU time in nanoseconds.
    pub(crate) fn cpu_time(&mut self) -> Result<f64> {
        self.number("cpu")
    }

    /// The connections that it has served since the last answer.
    pub(crate) fn served(&mut self) -> Result<f64> {
        self.number("served")
    }

    /// Has it read the kept connections to their ends. Returns the number of bytes.
    pub(crate) fn read_all(&mut self) -> Result<f64> {
        self.number("read")
    }

    /// Has it drop the kept connections, and waits until they are closed.
    pub(crate) fn close_all(&mut self) -> Result<()> {
        self.number("close").map(drop)
    }

    fn number(&mut self, command: &str) -> Result<f64> {
        self.process.send_line(command)?;
        let said = self.process.read_line()?;
        said.parse().with_context(|| format!("not a number: {said}"))
    }
}

/// Accepts connections until standard input ends.
pub(crate) fn serve(carrier: &str, service: &str) -> Result<()> {
    allow_descriptors()?;
    let service = Service::ALL.into_iter().find(|known| known.name() == service);
    let service = service.context("a service is echo, once or keep")?;
    let listener = Carrier::parse(carrier)?.listen()?;
    let port = listener.port()?;
    let all = Arc::new(Mutex::new(Served::default()));
    let accepting = all.clone();
    thread::spawn(move || {
        let Err(error) = accept_all(&listener, service, &accepting);
        eprintln!("sockets: the server does not accept any more: {error:#}");
        exit(1)
    });
    print_line(&port.to_string())?;
    let mut line = String::new();
    while stdin().read_line(&mut line)? > 0 {
        let number = match line.trim() {
            "cpu" => cpu::time(),
            "served" => f64::from(std::mem::take(&mut lock(&all).served)),
            "read" => read_kept(&all)?,
            "close" => {
                lock(&all).kept.clear();
                cpu::wait_for_closing()?;
                0.0
            }
            other => bail!("not a command: {other}"),
        };
        print_line(&number.to_string())?;
        line.clear();
    }
    Ok(())
}

/// The commands and the accepting thread use the connections in turn.
fn lock(all: &Mutex<Served>) -> MutexGuard<'_, Served> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept_all(
    listener: &CarrierListener,
    service: Service,
    all: &Mutex<Served>,
) -> Result<std::convert::Infallible> {
    loop {
        let mut stream = listener.accept()?;
        let served = match service {
            Service::Echo => stream.answer_all().map(drop),
            Service::Once => stream.answer_one().map_err(Into::into),
            Service::Keep => Ok(()),
        };
        if let Err(error) = &served {
            eprintln!("sockets: a connection is not served: {error:#}");
        }
        let mut all = lock(all);
        all.served += u32::from(served.is_ok());
        if service != Service::Echo {
            all.kept.push(stream);
        }
    }
}

fn read_kept(all: &Mutex<Served>) -> Result<f64> {
    let kept = std::mem::take(&mut lock(all).kept);
    let (mut buffer, mut bytes) = (vec![0; 1 << 16], 0);
    for mut stream in kept {
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                read => bytes += read,
            }
        }
    }
    Ok(bytes as f64)
}

/// Raises the limit of descriptors to what this process may have, because a connection needs
/// several.
pub(crate) fn allow_descriptors() -> Result<()> {
    const NEEDED: u64 = 8192;
    let mut limit = getrlimit(Resource::Nofile);
    ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= NEEDED),
        "1,000 connections need {NEEDED} descriptors, and this process may have {:?}: raise `ulimit -n`",
        limit.maximum
    );
    if limit.current.is_some_and(|current| current < NEEDED) {
        limit.current = Some(NEEDED);
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}
