//! The CPU time of many open connections while nothing happens.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::carrier::Carrier;
use crate::cpu;
use crate::server::{Server, Service, allow_descriptors};
use crate::{print_sample, take_turns};

/// The time after the last connect until nothing happens any more.
const SETTLING: Duration = Duration::from_millis(500);

pub(crate) fn measure(count: u32, seconds: u32, rounds: u32) -> Result<()> {
    allow_descriptors()?;
    let start = |carrier| Server::start(carrier, Service::Keep);
    let (mut std, mut tcp, mut rdma) = (start(Carrier::Std)?, start(Carrier::Tcp)?, start(Carrier::Rdma)?);
    for round in 1..=rounds {
        let [std, tcp, rdma] = take_turns(round, |which| {
            idle([&mut std, &mut tcp, &mut rdma][which], count, Duration::from_secs(seconds.into()))
        })?;
        print_sample("idle", &[("std", std), ("tcp", tcp), ("rdma", rdma)])?;
    }
    Ok(())
}

/// The CPU nanoseconds of both processes for each second.
fn idle(server: &mut Server, count: u32, time: Duration) -> Result<f64> {
    let streams = (0..count).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
    sleep(SETTLING);
    let (own, of_server, start) = (cpu::time(), server.cpu_time()?, Instant::now());
    sleep(time);
    let used = cpu::time() - own + server.cpu_time()? - of_server;
    let used = used / start.elapsed().as_secs_f64();
    let served = server.served()?;
    ensure!(served == f64::from(count), "the server had {served} connections of {count}");
    drop(streams);
    server.read_all()?;
    cpu::wait_for_closing()?;
    server.close_all()?;
    Ok(used)
}
