//! The protocols of a segment, in every order that the memory model allows.
//!
//! Each test is a model that loom runs to the end: all interleavings (or all with so many preemptions, where that is said),
//! and all values that a load may see. What a transfer touches is a loom cell: two accesses that are not ordered are an
//! error, whatever they read. Death is a thread that stops after a step, for every step; that it has ended is the proof
//! that the others wait for. Models named `..._is_missed` leave a step of the protocol out and must fail: they
//! show that the model sees what the step is for.
//!
//! `soft-rnic/tests/models.txt` lists them all; CI compares it with what ran.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

mod completion;
mod generation;
mod limit;
mod ring;
mod rpc;
mod slot;

/// Places in a model where a thread may let the others go first.
///
/// loom looks for another order where two accesses depend on one another, but knows only the last access to each atomic: a
/// load is forgotten when another thread's load follows, and then that thread's store is never tried before the first
/// load. So each model is run with each choice of these places at which the thread yields.
#[derive(Clone, Copy)]
struct Turns(u32);

impl Turns {
    const PLACES: u32 = 3;

    fn at(self, place: u32) {
        assert!(place < Self::PLACES);
        if self.0 >> place & 1 != 0 {
            thread::yield_now();
        }
    }
}

/// Every interleaving.
fn explore(model: impl Fn(Turns) + Copy + Sync + Send + 'static) {
    check(None, model);
}

/// Every interleaving with at most this many preemptions: of those models that would take minutes otherwise.
fn explore_bounded(preemptions: usize, model: impl Fn(Turns) + Copy + Sync + Send + 'static) {
    check(Some(preemptions), model);
}

fn check(preemptions: Option<usize>, model: impl Fn(Turns) + Copy + Sync + Send + 'static) {
    for choice in 0..1 << Turns::PLACES {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || model(Turns(choice)));
    }
}

/// A peer's thread, which has its own hold on what is shared.
fn spawn<T: 'static, R: 'static>(shared: &Arc<T>, run: impl FnOnce(&T) -> R + 'static) -> JoinHandle<R> {
    let shared = shared.clone();
    thread::spawn(move || run(&shared))
}

/// Waits for the peers: of how many it is true.
fn how_many(peers: impl IntoIterator<Item = JoinHandle<bool>>) -> u32 {
    peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum()
}

/// Where a thread that is to die stops: `alive` is false from the step on.
struct Life(usize);

impl Life {
    fn alive(&mut self) -> bool {
        let alive = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        alive
    }
}

/// Memory that only those may touch at the same time who only read it.
struct Memory(UnsafeCell<u64>);

// SAFETY: loom checks each access.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        // SAFETY: loom fails the model if another access is not ordered with this one.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|place| unsafe { *place })
    }
}
