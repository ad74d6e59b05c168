//! The configuration of a pool, and its checks.

use super::PoolError;
use super::classes::{CHUNK_UNIT, GROUPS, LARGEST_SLOT, SMALLEST_SLOT};
use super::core::CACHED_PART;
use super::state::large_chunk;

/// Whether the memory uses huge pages of 2 MiB, which the system's administrator must reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// Do not use them. This is the default, because reserved pages are usually meant for another
    /// program.
    #[default]
    Never,
    /// Use them if any are left, otherwise ordinary pages. A software device always gets ordinary
    /// pages, because its fast path needs them.
    Wanted,
    /// Fail without them. Without the feature `rdma` they are never available.
    Required,
}

/// The configuration of a pool. Sizes are in bytes; memory comes in multiples of 2 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Size of the smallest class, into which connections receive. Default: 8 KiB.
    pub slot_size: usize,
    /// Memory that is mapped at once, but neither present nor registered until it is needed.
    /// Default: 64 MiB.
    pub initial: usize,
    /// The part of the initial memory that is touched, and registered, at once. Default: 4 MiB.
    pub prewarm: usize,
    /// The most memory that the pool uses. Default: 1 GiB.
    pub max: usize,
    /// Whether the memory uses huge pages.
    pub huge_pages: HugePages,
    /// The part of `max` reserved for slots for sending; at least an eighth of `max`. Default:
    /// none.
    pub send_slots: usize,
    /// The part of `max` reserved for slots for receiving, in addition to those in threads' caches.
    /// Default: none.
    pub receive_slots: usize,
    /// The part of `max` reserved for staged blocks for receiving. Default: none.
    pub receive_staged: usize,
    /// The part of `receive_slots` that permanently posted receives leave for arriving data.
    /// Default: none.
    pub receive_margin: usize,
    /// Bytes of [adopted](super::Pool::adopt) memory that stay registered while they are not being
    /// sent. Default: 64 MiB.
    pub registrations: usize,
    /// Percentage of `max` in use at which the high-water callbacks are called. Default: 80.
    pub high_water: u8,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            slot_size: 8 << 10,
            initial: 64 << 20,
            prewarm: 4 << 20,
            max: 1 << 30,
            huge_pages: HugePages::Never,
            send_slots: 0,
            receive_slots: 0,
            receive_staged: 0,
            receive_margin: 0,
            registrations: 64 << 20,
            high_water: 80,
        }
    }
}

impl PoolConfig {
    /// The smallest `max`: room for a piece of each kind of memory, and some to spare.
    pub const LEAST_MAX: usize = 4 * CHUNK_UNIT;

    /// A limit above any machine's memory.
    const MOST_ASKED: usize = usize::MAX / 4;

    /// The part of a pool with this maximum (a multiple of 2 MiB) that is reserved for each group:
    /// the configured size, and at least an eighth, except that receiving gets nothing if nothing
    /// was configured for it.
    pub(super) fn parts(&self, max: usize) -> [usize; GROUPS] {
        let eighth = (max / 8 / CHUNK_UNIT * CHUNK_UNIT).max(CHUNK_UNIT);
        let sending = eighth.max(self.send_slots.next_multiple_of(CHUNK_UNIT));
        // A group that lacks less than a chunk may find only larger chunks.
        let whole = |bytes: usize| match bytes {
            0 => 0,
            bytes => bytes.max(max / 8).next_multiple_of(CHUNK_UNIT) + large_chunk(max) - CHUNK_UNIT,
        };
        // Slots in the caches of sleeping threads are not available.
        let slots = match self.receive_slots {
            0 => 0,
            bytes => bytes.max(max / 8) + max / CACHED_PART,
        };
        [sending, eighth, whole(slots), whole(self.receive_staged)]
    }

    /// The smallest `max` that satisfies the reservations for receiving.
    #[must_use]
    pub fn least_max(&self) -> usize {
        let fits = |max: &usize| self.parts(*max).into_iter().sum::<usize>() <= *max;
        let asked = self.send_slots + self.receive_slots + self.receive_staged;
        let begin = asked.max(Self::LEAST_MAX).next_multiple_of(CHUNK_UNIT);
        // Each further chunk adds less than its size to the reserved parts.
        (begin..).step_by(CHUNK_UNIT).find(fits).unwrap_or(usize::MAX)
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// The error names the invalid value.
    pub fn check(&self) -> Result<(), PoolError> {
        let Self { slot_size, initial, prewarm, max, high_water, .. } = *self;
        if !(SMALLEST_SLOT..=LARGEST_SLOT).contains(&slot_size) || !slot_size.is_multiple_of(64) {
            return Err(PoolError::SlotSize { slot_size });
        }
        let asked = [self.send_slots, self.receive_slots, self.receive_staged].into_iter();
        if asked.fold(0, usize::saturating_add) > Self::MOST_ASKED {
            return Err(PoolError::NoRoomToReceive {
                max,
                least: usize::MAX,
                slots: self.receive_slots,
                staged: self.receive_staged,
            });
        }
        if max < Self::LEAST_MAX {
            return Err(PoolError::MaxTooSmall { max });
        }
        let least = self.least_max();
        if max < least {
            return Err(PoolError::NoRoomToReceive {
                max,
                least,
                slots: self.receive_slots,
                staged: self.receive_staged,
            });
        }
        if initial > max {
            return Err(PoolError::InitialAboveMax { initial, max });
        }
        if prewarm > initial {
            return Err(PoolError::PrewarmAboveInitial { prewarm, initial });
        }
        if !(1..=100).contains(&high_water) {
            return Err(PoolError::HighWater { high_water });
        }
        #[cfg(not(feature = "rdma"))]
        if self.huge_pages == HugePages::Required {
            return Err(PoolError::NoHugePages);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_can_be_made() {
        PoolConfig::default().check().unwrap();
    }

    #[test]
    fn each_wrong_value_is_named() {
        let wrong = |change: fn(&mut PoolConfig), word: &str| {
            let mut config = PoolConfig::default();
            change(&mut config);
            let text = config.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        wrong(|config| config.prewarm = config.initial + 1, "prewarm 67108865");
        wrong(|config| config.initial = config.max + 1, "initial 1073741825");
        wrong(|config| (config.max, config.initial, config.prewarm) = (8_388_607, 0, 0), "8388607");
        wrong(|config| config.slot_size = 8191, "8191");
        wrong(|config| config.slot_size = 0, "slot size 0");
        wrong(|config| config.slot_size = 65_600, "65600");
        wrong(|config| config.high_water = 0, "0 %");
        wrong(|config| config.high_water = 101, "101 %");
        #[cfg(not(feature = "rdma"))]
        wrong(|config| config.huge_pages = HugePages::Required, "huge pages");
    }
}
