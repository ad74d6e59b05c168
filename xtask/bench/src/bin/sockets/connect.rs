//! A connect, a request, its reply and the close, one after the other.

use std::time::Instant;

use anyhow::Result;

use crate::carrier::Carrier;
use crate::server::{Server, Service};
use crate::verbs::Verbs;
use crate::{print_sample, take_turns};

pub(crate) fn measure(count: u32, rounds: u32) -> Result<()> {
    let start = |carrier| Server::start(carrier, Service::Echo);
    let (std, tcp, rdma) = (start(Carrier::Std)?, start(Carrier::Tcp)?, start(Carrier::Rdma)?);
    let verbs = Verbs::open()?;
    for round in 0..=rounds {
        let [std, tcp, rdma, alone, again] = take_turns(round, |which| match which {
            0 | 4 => batch(&std, count),
            1 => batch(&tcp, count),
            2 => batch(&rdma, count),
            _ => verbs.one_by_one(count),
        })?;
        if round > 0 {
            let figures = [("std", std), ("tcp", tcp), ("rdma", rdma), ("alone", alone), ("again", again)];
            print_sample("connect", &figures)?;
        }
    }
    Ok(())
}

/// The nanoseconds for each connection. The server waits for the end of each before the next.
fn batch(server: &Server, count: u32) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..count {
        let mut stream = server.connect()?;
        stream.request::<false>()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(count))
}

/// Makes connections over one carrier only, for a profiler.
pub(crate) fn repeat(carrier: &str, count: u32) -> Result<()> {
    let server = Server::start(Carrier::parse(carrier)?, Service::Echo)?;
    print_sample(carrier, &[("each", batch(&server, count)?)])
}
