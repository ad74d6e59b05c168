//! Serves the files of a folder as windows: a client opens a file by its name, gets the key of its
//! window, and reads it from front to back, some parts ahead.
//!
//! ```sh
//! window_files serve 127.0.0.1:7000 FOLDER
//! window_files read 127.0.0.1:7000 NAME --to COPY
//! window_files read 127.0.0.1:7000 NAME --parts 1,8,16
//! ```

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::{Parser, Subcommand};
use rdma_examples::program::{self, Failure, say};
use trespass::window::{Access, ReaderConfig, Window, WindowConfig, WindowKey, WindowReader, Windows};
use trespass::{Listener, Stream};

/// Files as windows, over RDMA or TCP.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Serves files to any number of clients.
    Serve {
        /// The address to listen at.
        addr: String,
        /// The folder with the files.
        folder: PathBuf,
    },
    /// Reads a file.
    Read {
        /// The server's address.
        addr: String,
        /// The name of the file in the server's folder.
        name: String,
        /// The parts ahead of the program; with several numbers the file is read once with each.
        #[arg(long, value_delimiter = ',', default_value = "8")]
        parts: Vec<usize>,
        /// The bytes of a part.
        #[arg(long, default_value_t = 1 << 20)]
        part: usize,
        /// Files of up to this many bytes are fetched at once.
        #[arg(long, default_value_t = 0)]
        whole_below: u64,
        /// Where to write the file.
        #[arg(long)]
        to: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    program::run(|| match program::arguments::<Arguments>()?.role {
        Role::Serve { addr, folder } => serve(&addr, &folder),
        Role::Read { addr, name, parts, part, whole_below, to } => {
            let config = ReaderConfig::new().part(part).whole_below(whole_below);
            read(&addr, &name, &parts, &config, to.as_deref())
        }
    })
}

fn serve(addr: &str, folder: &Path) -> Result<(), Failure> {
    let listener = Listener::bind(addr)?;
    say(format_args!("listening at {}", listener.local_addr()?))?;
    thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = stream?;
            let peer = stream.peer_addr()?;
            scope.spawn(move || match serve_client(stream, folder) {
                // The client has closed the connection.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => eprintln!("client {peer}: {error}"),
                Ok(()) => {}
            });
        }
        Ok(())
    })
}

/// Answers each name with the key of a window. While it waits for names, it performs the client's
/// operations.
fn serve_client(stream: Stream, folder: &Path) -> io::Result<()> {
    let windows = Windows::over(stream, &WindowConfig::new())?;
    let mut open: HashMap<String, Window> = HashMap::new();
    loop {
        let name = String::from_utf8_lossy(&windows.next_message()?).into_owned();
        let answer = match open_file(&windows, &mut open, folder, &name) {
            Ok(key) => [&[0][..], &key.to_bytes()].concat(),
            Err(error) => [&[1][..], error.to_string().as_bytes()].concat(),
        };
        windows.send_message(&answer)?;
    }
}

/// Offers a file that is not offered yet.
fn open_file(
    windows: &Windows,
    open: &mut HashMap<String, Window>,
    folder: &Path,
    name: &str,
) -> io::Result<WindowKey> {
    if let Some(window) = open.get(name) {
        return Ok(window.key().clone());
    }
    // A name with folders could lead out of the served one.
    let is_name = matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
    if !is_name {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name:?} is not the name of a file"),
        ));
    }
    let content = fs::read(folder.join(name))?;
    let len = content.len();
    let block = windows.pool().adopt(content);
    let window = windows.offer(block, len, Access::READ, None).map_err(|(error, _)| error)?;
    Ok(open.entry(name.to_owned()).or_insert(window).key().clone())
}

fn read(
    addr: &str,
    name: &str,
    parts: &[usize],
    config: &ReaderConfig,
    to: Option<&Path>,
) -> Result<(), Failure> {
    let windows = Windows::connect(addr)?;
    windows.send_message(name.as_bytes()).map_err(Failure::work)?;
    let answer = windows.next_message().map_err(Failure::work)?;
    let key = match answer.split_first() {
        Some((0, key)) => WindowKey::from_bytes(key).map_err(Failure::work)?,
        Some((_, error)) => return Err(Failure::work(String::from_utf8_lossy(error))),
        None => return Err(Failure::work("the server gave no answer")),
    };
    for parts in parts {
        let config = config.clone().prefetch_parts(*parts);
        let mut reader = WindowReader::new(&windows, key.clone(), &config).map_err(Failure::work)?;
        let began = Instant::now();
        let bytes = copy(&mut reader, to)?;
        let (took, stats) = (began.elapsed().as_secs_f64(), reader.stats());
        let rate = bytes as f64 / took / 1e6;
        say(format_args!(
            "{parts} parts ahead: {bytes} bytes in {took:.3} s ({rate:.0} MB/s), {} of {} parts ahead, over {}",
            stats.ahead,
            stats.parts,
            windows.transport()
        ))?;
    }
    Ok(())
}

/// Reads all, and writes it if there is a file for it.
fn copy(reader: &mut WindowReader, to: Option<&Path>) -> Result<u64, Failure> {
    let of_file = |error: io::Error| Failure::setup(error);
    let mut file = to.map(File::create).transpose().map_err(of_file)?;
    let (mut buffer, mut total) = (vec![0; 256 << 10], 0);
    loop {
        let len = reader.read(&mut buffer).map_err(Failure::work)?;
        if len == 0 {
            return Ok(total);
        }
        if let Some(file) = &mut file {
            file.write_all(&buffer[..len]).map_err(of_file)?;
        }
        total += len as u64;
    }
}
