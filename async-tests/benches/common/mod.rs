//! What the benchmarks have in common: the device, servers as processes, and statistics.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use sideway::soft;

/// Names what the process serves, if it is a server.
pub(crate) const SERVES: &str = "TRESPASS_BENCH_SERVES";
/// The group of software devices that the processes share.
pub(crate) const FABRIC: &str = "TRESPASS_BENCH_FABRIC";

/// Makes software devices the default, which this process shares with its servers. Returns their name.
pub(crate) fn set_device() -> String {
    let mut config = soft::Config::from_env().expect("a valid environment");
    config.fabric = env::var(FABRIC).unwrap_or_else(|_| format!("bench-{}", std::process::id()));
    let fabric = config.fabric.clone();
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    fabric
}

/// The seconds that work takes.
pub(crate) fn timed(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

pub(crate) fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The ratio of the medians of every other value and of the rest.
pub(crate) fn noise(times: &[f64]) -> f64 {
    let half = |first| median(&times.iter().copied().skip(first).step_by(2).collect::<Vec<_>>());
    half(0) / half(1)
}

/// A server process, which is killed when this is dropped.
pub(crate) struct EchoServer {
    process: Child,
    pub(crate) addr: SocketAddr,
}

impl EchoServer {
    pub(crate) fn start(kind: &str, fabric: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.env(SERVES, kind).env(FABRIC, fabric).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this program starts");
        let mut line = String::new();
        let told = process.stdout.take().expect("a pipe");
        BufReader::new(told).read_line(&mut line).expect("an address");
        Self { process, addr: line.trim().parse().expect("an address") }
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
