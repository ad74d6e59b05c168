//! Loom models of the shared-memory protocols, in every order that the memory model allows.
//!
//! Loom runs each test to the end: all interleavings (or those with a bounded number of
//! preemptions, where the test gives one) and all values that a load may see. A loom cell stands
//! for the memory that a transfer touches: two unordered accesses are an error, whatever they read.
//! A death is a thread that stops after a step, for every step; the thread's end is the proof of
//! death that the others wait for. Models named `..._is_missed` leave out a step of the protocol
//! and must fail, which shows that the model detects the absence of that step.
//!
//! `soft-rnic/tests/models.txt` lists all models; CI compares it with the models that ran.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

mod completion;
mod generation;
mod limit;
mod offer;
mod ring;
mod rpc;
mod slot;

/// Places in a model where a thread may let the others go first.
///
/// Loom tries another order where two accesses depend on one another, but remembers only the last
/// access to each atomic. It forgets a load when another thread's load follows, and then never
/// tries that thread's store before the first load. So each model runs once for each set of places
/// at which the thread yields.
#[derive(Clone, Copy)]
struct YieldPoints(u32);

impl YieldPoints {
    const PLACES: u32 = 3;

    fn at(self, place: u32) {
        assert!(place < Self::PLACES);
        if self.0 >> place & 1 != 0 {
            thread::yield_now();
        }
    }
}

/// Explores every interleaving.
fn explore(model: impl Fn(YieldPoints) + Copy + Sync + Send + 'static) {
    check(None, model);
}

/// Explores every interleaving with at most `preemptions` preemptions, for models that would
/// otherwise take minutes.
fn explore_bounded(preemptions: usize, model: impl Fn(YieldPoints) + Copy + Sync + Send + 'static) {
    check(Some(preemptions), model);
}

fn check(preemptions: Option<usize>, model: impl Fn(YieldPoints) + Copy + Sync + Send + 'static) {
    for choice in 0..1 << YieldPoints::PLACES {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || model(YieldPoints(choice)));
    }
}

/// Starts a peer's thread, which holds a reference to the shared state.
fn spawn<T: 'static, R: 'static>(shared: &Arc<T>, run: impl FnOnce(&T) -> R + 'static) -> JoinHandle<R> {
    let shared = shared.clone();
    thread::spawn(move || run(&shared))
}

/// Waits for the peers, and counts those that returned true.
fn how_many(peers: impl IntoIterator<Item = JoinHandle<bool>>) -> u32 {
    peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum()
}

/// How many steps a thread runs before it dies: `alive` is false after that.
struct LifeUntil(usize);

impl LifeUntil {
    fn alive(&mut self) -> bool {
        let alive = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        alive
    }
}

/// A word of memory that many threads may read at a time, or one may write.
struct CheckedCell(UnsafeCell<u64>);

// SAFETY: loom checks each access and fails the model if two of them race.
unsafe impl Send for CheckedCell {}
// SAFETY: loom checks each access and fails the model if two of them race.
unsafe impl Sync for CheckedCell {}

impl CheckedCell {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        // SAFETY: loom fails the model if another access is not ordered with this one.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom fails the model if a write is not ordered with this read.
        self.0.with(|place| unsafe { *place })
    }
}
