//! Connections of workers, which complete in one queue for each worker.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::SocketAddr;

use super::*;
use crate::handshake::Transport;
use crate::worker::{Event as Told, Key, Worker};

/// Two workers that one thread polls, and their connections: the ends of the one, and of the other.
struct Both {
    workers: [Worker; 2],
    listener: Key,
    ends: Vec<[Key; 2]>,
    told: [Vec<Told>; 2],
}

impl Both {
    fn new(configs: [Builder; 2]) -> Self {
        let mut workers = configs.map(|config| {
            let config = config.pool_initial(0).pool_prewarm(0).build().expect("valid");
            Worker::new(&config).expect("a worker")
        });
        let listener = workers[1].listen("127.0.0.1:0", Kind::SeqPacket).expect("a port");
        Self { workers, listener, ends: Vec::new(), told: Default::default() }
    }

    fn poll(&mut self) {
        for (worker, told) in self.workers.iter_mut().zip(&mut self.told) {
            worker.poll(told, Some(Duration::ZERO)).expect("polled");
        }
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let give_up = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < give_up, "{what}: {:?}", self.told);
            self.poll();
        }
    }

    /// Makes so many connections more.
    fn connect(&mut self, count: usize) {
        let addr = self.workers[1].local_addr(self.listener).expect("bound");
        let first = self.ends.len();
        let keys: Vec<Key> =
            (0..count).map(|_| self.workers[0].connect(addr, Kind::SeqPacket).expect("begun")).collect();
        let (mut connected, mut accepted) = (0, HashMap::<SocketAddr, Key>::new());
        self.until("connected", |both| {
            for told in both.told.iter_mut().flat_map(|told| told.drain(..)) {
                match told {
                    Told::Connected { .. } => connected += 1,
                    Told::Accepted { key, peer, .. } => drop(accepted.insert(peer, key)),
                    Told::Failed { error, .. } => panic!("{error}"),
                    _ => (),
                }
            }
            connected == count && accepted.len() == count
        });
        for key in keys {
            assert_eq!(self.workers[0].transport(key).expect("open"), Transport::Rdma);
            let local = self.workers[0].local_addr(key).expect("open");
            self.ends.push([key, accepted[&local]]);
        }
        assert_eq!(self.ends.len(), first + count);
    }

    /// A message of every connection from one worker to the other, all under way at a time.
    fn exchange(&mut self, from: usize, len: usize) {
        let ends = self.ends.clone();
        let given: Vec<_> = (0..ends.len()).map(|at| pattern(len, at as u64 + 7)).collect();
        for (end, given) in ends.iter().zip(&given) {
            self.workers[from].send(end[from], given).expect("taken");
        }
        let mut buffer = vec![0; len];
        for (end, given) in ends.iter().zip(&given) {
            self.until("arrived", |both| match both.workers[1 - from].recv(end[1 - from], &mut buffer) {
                Ok(count) => count == len,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    false
                }
            });
            assert!(buffer == *given);
        }
        self.told.iter_mut().for_each(Vec::clear);
    }

    fn end(self) {
        let pools = self.workers.each_ref().map(|worker| worker.pool().clone());
        drop(self);
        nothing_is_left(pools);
    }
}

fn queues() -> u32 {
    soft::statistics().expect("a device").completion_queues
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn connections_of_a_worker_share_a_completion_queue() {
    let _turn = turn();
    let mut both = Both::new([config(), config()]);
    both.connect(1);
    both.exchange(0, 100);
    assert_eq!(queues(), 2);
    // More than the queue has room for at first.
    both.connect(30);
    assert_eq!(queues(), 2);
    for len in [1, 5000, 60_000, 300_000] {
        both.exchange(0, len);
        both.exchange(1, len);
    }
    both.end();
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_worker_goes_on_where_its_completion_queue_cannot_grow() {
    let _turn = turn();
    rules("errno=EOPNOTSUPP call=resize_cq");
    let mut both = Both::new([config(), config()]);
    both.connect(20);
    assert!(queues() > 2, "the last ones have queues of their own");
    both.exchange(0, 5000);
    both.exchange(1, 300_000);
    both.end();
}

/// What was under way when a connection was closed completes for nobody else, whoever has its place, or its queue pair's number, then.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn what_one_connection_has_left_is_not_the_next_one_s() {
    let _turn = turn();
    let mut both = Both::new([config().linger(Duration::ZERO), config().linger(Duration::ZERO)]);
    both.connect(3);
    for round in 0..40 {
        let [ours, theirs] = both.ends.remove(round % 3);
        both.workers[0].send(ours, &pattern(200_000, 1)).expect("taken");
        both.workers[1].send(theirs, &pattern(3000, 2)).expect("taken");
        if round % 2 == 0 {
            both.poll();
        }
        both.workers[round % 2].close([ours, theirs][round % 2]);
        both.connect(1);
        both.exchange(round % 2, 2000);
        both.workers[1 - round % 2].close([ours, theirs][1 - round % 2]);
    }
    both.until("buried", |both| both.workers.iter().all(|worker| worker.desk.pairs() == (3, 0)));
    both.end();
}

/// A worker whose completion queue fails says so on each of its connections.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_completion_queue_that_fails_ends_all_its_connections() {
    let _turn = turn();
    let mut both = Both::new([config(), config()]);
    both.connect(3);
    both.exchange(0, 100);
    rules("errno=EIO call=req_notify_cq");
    let ends = both.ends.clone();
    both.workers[0].send(ends[0][0], b"x").expect("taken");
    let mut dead = HashSet::new();
    both.until("all have failed", |both| {
        for (index, worker) in both.workers.iter_mut().enumerate() {
            for end in &ends {
                if let Err(error) = worker.recv(end[index], &mut [0; 8])
                    && error.kind() != ErrorKind::WouldBlock
                {
                    dead.insert((index, end[index]));
                }
            }
        }
        dead.len() == 2 * ends.len()
    });
    faults::clear();
    both.end();
}
