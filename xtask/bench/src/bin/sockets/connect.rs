//! A connect, a request, its reply and the close, one after the other.

use std::time::Instant;

use anyhow::Result;

use crate::carrier::Carrier;
use crate::cpu;
use crate::server::{Server, Service};
use crate::verbs::Verbs;
use crate::{print_sample, take_turns};

pub(crate) fn measure(count: u32, rounds: u32) -> Result<()> {
    let start = |carrier| Server::start(carrier, Service::Echo);
    let (mut std, mut tcp, mut rdma) = (start(Carrier::Std)?, start(Carrier::Tcp)?, start(Carrier::Rdma)?);
    let verbs = Verbs::open()?;
    for round in 0..=rounds {
        let figures = take_turns(round, |which| match which {
            0 | 4 => batch(&mut std, count),
            1 => batch(&mut tcp, count),
            2 => batch(&mut rdma, count),
            _ => verbs.one_by_one(count),
        })?;
        if round > 0 {
            let [std, tcp, rdma, alone, again]: [Batch; 5] = figures;
            let sample = |row, of: fn(Batch) -> f64| {
                let figures = [("std", of(std)), ("tcp", of(tcp)), ("rdma", of(rdma))];
                print_sample(row, &[&figures[..], &[("alone", of(alone)), ("again", of(again))]].concat())
            };
            sample("connect", |batch| batch.time)?;
            sample("connect-cpu", |batch| batch.cpu)?;
        }
    }
    Ok(())
}

/// The nanoseconds for each connection: the time, and the CPU time of both processes.
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) time: f64,
    pub(crate) cpu: f64,
}

/// The server waits for the end of each connection before the next.
fn batch(server: &mut Server, count: u32) -> Result<Batch> {
    let (own, of_server, start) = (cpu::time(), server.cpu_time()?, Instant::now());
    for _ in 0..count {
        let mut stream = server.connect()?;
        stream.request::<false>()?;
    }
    let time = start.elapsed().as_nanos() as f64;
    let cpu = cpu::time() - own + server.cpu_time()? - of_server;
    Ok(Batch { time: time / f64::from(count), cpu: cpu / f64::from(count) })
}

/// Makes connections over one carrier only, for a profiler.
pub(crate) fn repeat(carrier: &str, count: u32) -> Result<()> {
    let mut server = Server::start(Carrier::parse(carrier)?, Service::Echo)?;
    let Batch { time, cpu } = batch(&mut server, count)?;
    print_sample(carrier, &[("each", time), ("cpu", cpu)])
}
