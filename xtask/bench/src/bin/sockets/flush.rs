//! A request, a flush and its reply over an open connection, compared with the same without a flush.

use std::time::Instant;

use anyhow::Result;

use crate::carrier::{Carrier, Stream};
use crate::server::{Server, Service};
use crate::{median, print_sample, take_turns};

pub(crate) fn measure(count: u32, rounds: u32) -> Result<()> {
    let start = |carrier| Server::start(carrier, Service::Echo);
    let (std, tcp, rdma) = (start(Carrier::Std)?, start(Carrier::Tcp)?, start(Carrier::Rdma)?);
    let (mut std, mut tcp, mut rdma) = (std.connect()?, tcp.connect()?, rdma.connect()?);
    for round in 0..=rounds {
        let [std, tcp, rdma, reference, again] = take_turns(round, |which| match which {
            0 => batch::<true>(&mut std, count),
            1 => batch::<true>(&mut tcp, count),
            2 => batch::<true>(&mut rdma, count),
            _ => batch::<false>(&mut rdma, count),
        })?;
        if round > 0 {
            let figures =
                [("std", std), ("tcp", tcp), ("rdma", rdma), ("reference", reference), ("again", again)];
            print_sample("flush", &figures)?;
        }
    }
    Ok(())
}

/// The median in nanoseconds.
fn batch<const FLUSH: bool>(stream: &mut Stream, count: u32) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        stream.request::<FLUSH>()?;
        times.push(start.elapsed().as_nanos() as f64);
    }
    median(&mut times)
}
