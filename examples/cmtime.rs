//! Measures the steps of opening and closing connections. Either side can be rdma-core's `cmtime`.
//!
//! ```text
//! $ cargo run --example cmtime -- -c 100                    # on one side
//! $ cargo run --example cmtime -- -s 127.0.0.1 -c 100       # on the other
//! ...
//! step             avg/iter  total(us)    us/conn    sum(us)    max(us)    min(us)
//! full connect          ...
//! ```
//!
//! All connections complete a step before the next one begins. Since rdma-core 52 both sides
//! synchronise by TCP. If nothing listens on the TCP port, the client behaves like a client of an
//! earlier release. The server listens for both kinds of clients.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rdma_examples::cm_steps::{Route, RunContext, StepOptions, Sync, client, earlier, server};
use rdma_examples::devices;
use rdma_examples::program::{self, Failure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sideway::rdmacm::{EventChannel, PortSpace};

/// Measures each step of opening and closing connections. Either side can be rdma-core's cmtime.
#[derive(Parser)]
struct Arguments {
    /// The server's name or address; without it this side is the server.
    #[arg(short, long, value_name = "ADDRESS")]
    server: Option<String>,

    /// The local address to bind to.
    #[arg(short, long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,

    /// The number of connections; since rdma-core 52 it must be the same on both sides.
    #[arg(short, long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,

    /// The server's port.
    #[arg(short, long, default_value_t = 7471)]
    port: u16,

    /// The first queue pair number that connections without queue pairs report.
    #[arg(short = 'q', long, default_value_t = 1000)]
    base_qpn: u32,

    /// The number of worker threads.
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: u32,

    /// The number of retries of a failed address or route resolution.
    #[arg(short, long, default_value_t = 2)]
    retries: u32,

    /// The time limit for resolving an address or a route, in milliseconds.
    #[arg(short, long, default_value_t = 2000)]
    timeout: u64,

    /// Behave like rdma-core before 52.
    #[arg(long)]
    earlier: bool,
}

fn main() -> ExitCode {
    program::run(cmtime)
}

fn cmtime() -> Result<(), Failure> {
    let arguments: Arguments = program::arguments()?;
    let context = RunContext::new(EventChannel::from_provider(devices::provider()?)?);
    let options = StepOptions {
        connections: arguments.connections,
        threads: arguments.threads,
        timeout: Duration::from_millis(arguments.timeout),
        retries: arguments.retries,
        pretended: None,
    };
    match &arguments.server {
        Some(name) => run_client(&arguments, &context, options, name),
        None => serve(&arguments, &context, options),
    }
}

fn run_client(
    arguments: &Arguments,
    context: &RunContext,
    options: StepOptions,
    name: &str,
) -> Result<(), Failure> {
    let server = devices::resolve(name, arguments.port)?;
    let route = Route { source: arguments.bind.map(|source| (source, 0).into()), server };
    let sync = if arguments.earlier { None } else { Sync::connect(server)? };
    match sync {
        Some(mut sync) => client::run(context, options, route, &mut sync, arguments.base_qpn),
        None => earlier::run_client(context, options, route),
    }
}

fn serve(arguments: &Arguments, context: &RunContext, options: StepOptions) -> Result<(), Failure> {
    let address = SocketAddr::new(arguments.bind.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), arguments.port);
    let listener = context.channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(address)?;
    listener.listen(0)?;
    if arguments.earlier {
        return earlier::serve(context);
    }
    let by_tcp = TcpListener::bind(address)
        .map_err(|error| Failure::setup(format_args!("cannot listen at {address} by TCP: {error}")))?;
    let mut ready = [PollFd::new(&by_tcp, PollFlags::IN), PollFd::new(&context.channel, PollFlags::IN)];
    while let Err(Errno::INTR) = poll(&mut ready, None) {}
    // A client that synchronises by TCP does so before it connects.
    if ready[0].revents().is_empty() {
        return earlier::serve(context);
    }
    server::run(context, options, &mut Sync::accept(&by_tcp)?, arguments.base_qpn)
}
