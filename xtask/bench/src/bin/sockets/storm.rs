//! Many clients that connect at once, each with a thread, a request and a reply.

use std::sync::Barrier;
use std::thread::{Builder, scope};

use anyhow::{Context, Result};

use crate::carrier::{Carrier, Stream};
use crate::cpu;
use crate::server::{Server, Service, allow_descriptors};
use crate::verbs::Verbs;
use crate::{print_sample, take_turns};

/// Bytes of a client's stack.
const STACK: usize = 256 << 10;

/// The result of a storm.
#[derive(Clone, Copy, Default)]
struct Storm {
    /// The percentage of the clients that got their reply and that the server has counted, too.
    served: f64,
    /// Of both processes, in nanoseconds, with closing all connections.
    cpu: f64,
}

pub(crate) fn measure(count: u32, rounds: u32) -> Result<()> {
    allow_descriptors()?;
    let start = |carrier| Server::start(carrier, Service::Once);
    let (mut std, mut tcp, mut rdma) = (start(Carrier::Std)?, start(Carrier::Tcp)?, start(Carrier::Rdma)?);
    let verbs = Verbs::open()?;
    // Each storm counts, because each must serve all.
    for round in 1..=rounds {
        let [std, tcp, rdma, alone, again] = take_turns(round, |which| match which {
            0 | 4 => storm(&mut std, count),
            1 => storm(&mut tcp, count),
            2 => storm(&mut rdma, count),
            _ => Ok(Storm { served: 0.0, cpu: verbs.all_at_once(count)? }),
        })?;
        let served = [("std", std.served), ("tcp", tcp.served), ("rdma", rdma.served)];
        print_sample("storm-served", &served)?;
        let figures = [
            ("std", std.cpu),
            ("tcp", tcp.cpu),
            ("rdma", rdma.cpu),
            ("alone", alone.cpu),
            ("again", again.cpu),
        ];
        print_sample("storm-cpu", &figures)?;
    }
    Ok(())
}

fn storm(server: &mut Server, count: u32) -> Result<Storm> {
    let own_before = cpu::time();
    let server_before = server.cpu_time()?;
    let replies = clients(server, count)?.len();
    cpu::wait_for_closing()?;
    server.close_all()?;
    let cpu = cpu::time() - own_before + server.cpu_time()? - server_before;
    let served = server.served()?.min(replies as f64) / f64::from(count);
    Ok(Storm { served: 100.0 * served, cpu })
}

/// The streams of the clients that got their reply. All are open at the same time.
fn clients(server: &Server, count: u32) -> Result<Vec<Stream>> {
    let begin = Barrier::new(count as usize);
    let client = || {
        begin.wait();
        let mut stream = server.connect()?;
        stream.request::<false>()?;
        Ok::<_, anyhow::Error>(stream)
    };
    scope(|scope| {
        let spawn = |_| Builder::new().stack_size(STACK).spawn_scoped(scope, client);
        let clients = (0..count).map(spawn).collect::<Result<Vec<_>, _>>().context("a client's thread")?;
        let mut served = Vec::new();
        for client in clients {
            match client.join() {
                Ok(Ok(stream)) => served.push(stream),
                Ok(Err(error)) => eprintln!("sockets: a client is not served: {error:#}"),
                Err(_) => eprintln!("sockets: a client has panicked"),
            }
        }
        Ok(served)
    })
}
