//! The same measurement over the kernel's TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};
use xtask_bench::process::{HOST, ServerProcess, end_with_parent, print_line};

/// Accepts connections until standard input ends, like `server::serve`. If `answers`, it sends a
/// byte on each accepted connection.
pub(crate) fn serve(batch: u32, answers: bool) -> Result<()> {
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&listener, &SocketAddr::from((HOST, 0)))?;
    rustix::net::listen(&listener, 1024)?;
    let listener = TcpListener::from(listener);
    print_line(&listener.local_addr()?.port().to_string())?;
    end_with_parent(std::process::exit);
    loop {
        let mut connections = Vec::new();
        for _ in 0..batch {
            let mut guest = listener.accept()?.0;
            if answers {
                guest.write_all(&[1])?;
            }
            connections.push(guest);
        }
        print_line("batch")?;
        for mut guest in connections {
            guest.read_to_end(&mut Vec::new())?;
        }
        print_line("ready")?;
    }
}

/// Opens `batch` connections, `window` at a time, and closes them before it returns. Returns the
/// nanoseconds for each, until the server has the last one.
pub(crate) fn batch(server: &mut ServerProcess, answers: bool, window: u32, batch: u32) -> Result<f64> {
    let address = SocketAddr::from((HOST, server.port));
    let start = Instant::now();
    let connected = match window {
        1 => (0..batch).map(|_| connect_one(address, answers)).collect::<Result<Vec<_>, _>>()?,
        _ => connect_many(address, window as usize, batch as usize)?,
    };
    server.expect("batch")?;
    let time = start.elapsed().as_nanos() as f64 / f64::from(batch);
    drop(connected);
    Ok(time)
}

fn connect_one(address: SocketAddr, answers: bool) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    if answers {
        stream.read_exact(&mut [0])?;
    }
    Ok(stream)
}

fn connect_many(address: SocketAddr, window: usize, batch: usize) -> Result<Vec<TcpStream>> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (mut started, mut connected) = (Vec::with_capacity(batch), 0);
    let mut ready = Vec::with_capacity(window);
    while connected < batch {
        while started.len() < batch.min(connected + window) {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP))?;
            match connect(&socket, &address) {
                Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
                Err(error) => return Err(error).context("connect"),
            }
            let data = epoll::EventData::new_u64(started.len() as u64);
            epoll::add(&epoll, &socket, data, epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT)?;
            started.push(TcpStream::from(socket));
        }
        ready.clear();
        epoll::wait(&epoll, spare_capacity(&mut ready), None)?;
        for event in &ready {
            let event: &epoll::Event = event;
            socket_error(&started[event.data.u64() as usize])??;
            connected += 1;
        }
    }
    Ok(started)
}
