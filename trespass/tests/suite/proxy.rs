//! A TCP proxy on this host that ends a connection on which one side is silent for too long, as
//! proxies and load balancers do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Carries connections to a server.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    /// Bytes from clients, and from servers.
    carried: [AtomicU64; 2],
    /// Connections that it ended because a side was silent.
    ended: AtomicU64,
    /// The sockets of clients and of servers.
    sockets: Mutex<Vec<[TcpStream; 2]>>,
}

impl Proxy {
    /// Ends a connection if either side sends nothing for `limit`.
    pub(crate) fn new(server: SocketAddr, limit: Duration) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(server.ip(), 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let accepting = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut carrying = Vec::new();
                loop {
                    let client = listener.accept().unwrap().0;
                    if shared.ends.load(Ordering::Relaxed) {
                        break;
                    }
                    let pair = [client, TcpStream::connect(server).unwrap()];
                    pair.iter().for_each(|socket| socket.set_nodelay(true).unwrap());
                    let copies = pair.each_ref().map(|socket| socket.try_clone().unwrap());
                    shared.sockets.lock().unwrap().push(copies);
                    let shared = shared.clone();
                    carrying.push(thread::spawn(move || carry(&pair, limit, &shared)));
                }
                carrying.into_iter().for_each(|thread| thread.join().unwrap());
            })
        };
        Self { addr, shared, accepting: Some(accepting) }
    }

    /// The bytes that clients have sent so far, and those that servers have sent.
    pub(crate) fn carried(&self) -> [u64; 2] {
        self.shared.carried.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// How many connections it has ended because a side was silent.
    pub(crate) fn ended(&self) -> u64 {
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Sends as much to both sides of each connection as they take. Returns the number of bytes.
    #[allow(dead_code, reason = "one of two programs floods")]
    pub(crate) fn flood(&self) -> usize {
        let mut count = 0;
        for mut socket in self.shared.sockets.lock().unwrap().iter().flatten() {
            socket.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
            loop {
                match socket.write(&[7; 16 << 10]) {
                    Ok(taken) => count += taken,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        break;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        count
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let sockets = self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in sockets.iter().flatten() {
            // It may have ended.
            let _ = socket.shutdown(Shutdown::Both);
        }
        drop(sockets);
        drop(TcpStream::connect(self.addr));
        let joined = self.accepting.take().unwrap().join();
        assert!(joined.is_ok() || thread::panicking(), "the proxy has panicked");
    }
}

/// Returns whether the connection goes on. A side that was flooded may take nothing more.
fn send(mut to: &TcpStream, bytes: &[u8]) -> bool {
    let sent = to.write_all(bytes);
    sent.map_or_else(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), |()| true)
}

/// Carries bytes both ways, until a side ends or is silent for too long. Then both sides end.
fn carry(pair: &[TcpStream; 2], limit: Duration, shared: &Shared) {
    let mut heard = [Instant::now(); 2];
    let mut buffer = vec![0; 16 << 10];
    let is_silent = loop {
        let silence = heard.iter().map(Instant::elapsed).max().unwrap();
        if silence >= limit {
            break true;
        }
        let timeout = Timespec::try_from(limit - silence).unwrap();
        let mut fds = pair.each_ref().map(|socket| PollFd::new(socket, PollFlags::IN));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
        let readable = fds.map(|fd| !fd.revents().is_empty());
        let mut has_ended = false;
        for from in (0..2).filter(|from| readable[*from]) {
            let count = (&pair[from]).read(&mut buffer).unwrap_or(0);
            heard[from] = Instant::now();
            // Counted before anybody can have them.
            shared.carried[from].fetch_add(count as u64, Ordering::Relaxed);
            has_ended |= count == 0 || !send(&pair[1 - from], &buffer[..count]);
        }
        if has_ended {
            break false;
        }
    };
    shared.ended.fetch_add(is_silent.into(), Ordering::Relaxed);
    for socket in pair {
        // The other side may have ended it.
        let _ = socket.shutdown(Shutdown::Both);
    }
}
