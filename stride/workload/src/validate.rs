//! Validation of the bytes that a test moved (`--data-validation`).
//!
//! Before a size is measured, each side fills the source of the peer's bytes with its pattern, and
//! their destination with different bytes. Afterwards it compares the destination, outside of the
//! measurement. If many messages arrived at one location, the last one's bytes remain there.

use super::latency::mark;
use stride_base::buffers::{BufferLayout, Cycle};
use stride_base::error::{Error, ValidationError};
use stride_base::memory::TestMemory;
use stride_base::plan::{Measure, SideTasks, TestOperation, TestPlan};

/// The operands of a validated compare and swap: the expected value, and its replacement.
pub(super) const SWAP: (u64, u64) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);

/// The seeds of a queue pair's patterns, which both sides know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seeds {
    /// The seed of this side's bytes.
    pub(super) own: u64,
    /// The seed of the peer's bytes.
    pub(super) peer: u64,
}

/// A message whose bytes remain in memory after the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FinalMessage {
    /// Its offset here.
    at: u64,
    /// Its offset at the sender.
    from: u64,
    /// The mark in its last byte, if it has one.
    mark: Option<u8>,
}

/// A test with messages of one size, over one side's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validation<'a> {
    pub(super) test: &'a TestPlan,
    pub(super) memory: &'a TestMemory,
    pub(super) layout: BufferLayout,
    pub(super) size: u64,
    /// Whether the peer writes the last byte of messages as a mark.
    pub(super) is_marked: bool,
    /// Whether the peer sends inline: then every message has the first one's bytes.
    pub(super) is_inline: bool,
    /// The path of receives through the memory, and the length of the header before each message.
    pub(super) receives: (Cycle, u64),
}

/// A byte of a queue pair's pattern for messages of this size.
pub(super) fn pattern(seed: u64, size: u64, place: u64) -> u8 {
    let mixed =
        (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd134_2543_de82_ef95) ^ size;
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes()[0]
}

impl Validation<'_> {
    /// Fills both halves of a queue pair's memory.
    ///
    /// # Errors
    ///
    /// Copying to the memory failed.
    pub(super) fn prepare(&self, pair: usize, seeds: Seeds) -> Result<(), Error> {
        let Self { test, layout, size, .. } = *self;
        let (memory, half) = (self.memory, layout.half());
        let (send, receive) = (layout.send_offset(pair), layout.receive_offset(pair));
        let own = |place| pattern(seeds.own, size, place);
        // Differs from the expected byte at every position.
        let other = |place| !pattern(seeds.peer, size, place);
        match test.operation {
            TestOperation::CompareSwap => {
                memory.fill(receive, half, |place| SWAP.0.to_ne_bytes()[place as usize % 8])?;
                memory.fill(send, half, |_| 0)?;
            }
            operation if operation.fetches() => {
                memory.fill(receive, half, own)?;
                memory.fill(send, half, other)?;
            }
            _ => {
                memory.fill(send, half, own)?;
                memory.fill(receive, half, other)?;
            }
        }
        Ok(())
    }

    /// Validates a queue pair's memory.
    ///
    /// # Errors
    ///
    /// The bytes differ.
    pub(super) fn verify(&self, pair: usize, seeds: Seeds, parts: SideTasks) -> Result<(), Error> {
        match self.test.operation {
            operation if operation.is_atomic() => {
                if parts.serves {
                    self.verify_atomics(pair, seeds)?;
                }
            }
            operation if operation.fetches() => {
                if parts.measures {
                    self.verify_messages(pair, seeds, self.layout.send_offset(pair))?;
                }
            }
            _ => {
                if self.test.messages_come_to(parts) {
                    self.verify_messages(pair, seeds, self.layout.receive_offset(pair))?;
                }
            }
        }
        Ok(())
    }

    fn verify_messages(&self, pair: usize, seeds: Seeds, half: u64) -> Result<(), Error> {
        let size = self.size;
        for FinalMessage { at, from, mark } in self.arrived() {
            let expected = |place| match mark {
                Some(mark) if place + 1 == size => mark,
                _ => pattern(seeds.peer, size, from + place),
            };
            self.expect(pair, half, at, size, expected)?;
        }
        Ok(())
    }

    /// Each number was added to, or replaced, once per message.
    fn verify_atomics(&self, pair: usize, seeds: Seeds) -> Result<(), Error> {
        let cycle = self.layout.cycle(self.size);
        for slot in 0..cycle.slots() {
            let at = cycle.nth(slot);
            let times = self.times(slot, cycle);
            let before = u64::from_ne_bytes(std::array::from_fn(|place| {
                pattern(seeds.own, self.size, at + place as u64)
            }));
            let number = match self.test.operation {
                TestOperation::FetchAdd => before.wrapping_add(times),
                _ if times > 0 => SWAP.1,
                _ => SWAP.0,
            };
            let half = self.layout.receive_offset(pair);
            self.expect(pair, half, at, 8, |place| number.to_ne_bytes()[place as usize])?;
        }
        Ok(())
    }

    /// The number of messages at this location.
    fn times(&self, slot: u64, cycle: Cycle) -> u64 {
        let (iterations, list) = (self.test.iterations, u64::from(self.test.post_list));
        let of = |messages: u64| (messages + cycle.slots() - 1 - slot) / cycle.slots();
        match self.test.measure {
            Measure::Latency(_) if slot == 0 => iterations,
            Measure::Latency(_) => 0,
            _ if list > 1 => iterations / list * of(list),
            _ => of(iterations),
        }
    }

    fn expect(
        &self,
        pair: usize,
        half: u64,
        offset: u64,
        length: u64,
        expected: impl Fn(u64) -> u8,
    ) -> Result<(), Error> {
        match self.memory.first_difference(half + offset, length, &expected)? {
            None => Ok(()),
            Some((place, found)) => {
                let expected = expected(place);
                Err(ValidationError::Changed { size: self.size, pair, offset, place, found, expected }.into())
            }
        }
    }

    /// The last message at each location.
    fn arrived(&self) -> Vec<FinalMessage> {
        let (cycle, iterations) = (self.layout.cycle(self.size), self.test.iterations);
        let (list, is_latency) =
            (u64::from(self.test.post_list), matches!(self.test.measure, Measure::Latency(_)));
        let sends = matches!(self.test.operation, TestOperation::Send | TestOperation::SendImm);
        let (receives, header) = self.receives;
        let mut arrived: Vec<FinalMessage> = Vec::new();
        // This many messages reach every location.
        let places = list.max(cycle.slots()).max(receives.slots());
        for number in iterations.saturating_sub(places)..iterations {
            let offset = match list {
                _ if is_latency => 0,
                1 => cycle.nth(number),
                list => cycle.nth(number % list),
            };
            let at = if sends { receives.nth(number) + header } else { offset };
            let from = if self.is_inline { 0 } else { offset };
            // A completion reports the arrival of any other message.
            let is_marked = is_latency && self.is_marked && self.test.operation == TestOperation::Write;
            let mark = is_marked.then(|| mark(number + 1));
            arrived.retain(|other| other.at != at);
            arrived.push(FinalMessage { at, from, mark });
        }
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_in_everything() {
        let of =
            |seed, size, from| (from..from + 64).map(|place| pattern(seed, size, place)).collect::<Vec<_>>();
        let one = of(1, 64, 0);
        for other in [of(2, 64, 0), of(1, 65, 0), of(1, 64, 64), of(1, 64, 1)] {
            let same = one.iter().zip(&other).filter(|(one, other)| one == other).count();
            assert!(same < 8, "{same}");
        }
    }
}
