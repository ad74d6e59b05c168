//! A key-value store over trespass, with a line for each request and answer. It uses RDMA where
//! available. `store_tcp` is the same program over TCP.
//!
//! ```sh
//! store server 127.0.0.1:7000
//! store client 127.0.0.1:7000 set colour green   # ok
//! store client 127.0.0.1:7000 get colour         # green
//! ```

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use clap::{Parser, Subcommand};
use rdma_examples::program::{self, Failure};
use trespass::{Listener, Stream};

type Store = Mutex<BTreeMap<String, String>>;

/// The largest length of a line.
const LINE: u64 = 64 * 1024;

/// Stores values under keys.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Serves clients until it is stopped.
    Server {
        /// The address to listen at.
        addr: String,
    },
    /// Sends a request to a server.
    Client {
        /// The server's address.
        addr: String,
        /// `get KEY` or `set KEY VALUE`.
        #[arg(required = true)]
        request: Vec<String>,
    },
}

fn main() -> ExitCode {
    program::run(|| match program::arguments::<Arguments>()?.role {
        Role::Server { addr } => serve(&addr),
        Role::Client { addr, request } => ask(&addr, &request.join(" ")),
    })
}

fn serve(addr: &str) -> Result<(), Failure> {
    let listener = Listener::bind(addr)?;
    println!("listening at {}", listener.local_addr()?);
    let store = Arc::new(Store::default());
    for stream in listener.incoming() {
        let (stream, store) = (stream?, Arc::clone(&store));
        thread::spawn(move || {
            if let Err(error) = answer_all(stream, &store) {
                eprintln!("a client: {error}");
            }
        });
    }
    Ok(())
}

/// Answers a client until it is gone.
fn answer_all(stream: Stream, store: &Store) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(request) = line(&mut stream)? {
        let answer = answer(&request, store) + "\n";
        stream.get_mut().write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn answer(request: &str, store: &Store) -> String {
    let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
    let words: Vec<_> = request.splitn(3, ' ').collect();
    match words[..] {
        ["get", key] => store.get(key).cloned().unwrap_or_default(),
        ["set", key, value] => {
            store.insert(key.to_owned(), value.to_owned());
            "ok".to_owned()
        }
        _ => format!("neither `get KEY` nor `set KEY VALUE`: {request}"),
    }
}

fn ask(addr: &str, request: &str) -> Result<(), Failure> {
    let mut stream = Stream::connect(addr)?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    match line(&mut BufReader::new(stream))? {
        Some(answer) => println!("{answer}"),
        None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has gone").into()),
    }
    Ok(())
}

/// The next line without its end; `None` at the end of the stream.
fn line(stream: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let len = stream.take(LINE).read_line(&mut line)?;
    if len as u64 == LINE && !line.ends_with('\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a line of more than {LINE} bytes")));
    }
    Ok((len > 0).then(|| line.trim_end().to_owned()))
}
