//! The device's clock, and what its ticks are in time.
//!
//! Completions can carry the moment when the work completed, in ticks of the device
//! ([`CompletionTimestamp`](super::completion::WorkCompletionFields::CompletionTimestamp)). A [`ClockConverter`] turns
//! ticks into time. Where the device can, a completion carries the time of day itself
//! ([`CompletionTimestampWallclock`](super::completion::WorkCompletionFields::CompletionTimestampWallclock)).
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::clock::ClockConverter;
//! use sideway::ibverbs::device::DeviceList;
//!
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let context = list.first()?.open()?;
//! let clock = ClockConverter::new(&context)?;
//! let (earlier, later) = (context.query_raw_clock()?, context.query_raw_clock()?);
//! println!("{:?} between {:?} and then", clock.elapsed(earlier, later), clock.system_time(earlier));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::time::{Duration, Instant, SystemTime};

use rdma_mummy_sys::types::{ibv_values_ex, ibv_values_mask};
use rdma_mummy_sys::verbs;

use super::device_context::DeviceContext;
use super::{Unsupported, check};
use crate::error::Error;

const VERB: &str = "ibv_query_rt_values_ex";

impl DeviceContext {
    /// The device's clock, in its ticks (`ibv_query_rt_values_ex`), of which a completion's timestamp may have fewer
    /// bits ([`completion_timestamp_mask`](super::device_attr::DeviceAttr::completion_timestamp_mask)).
    ///
    /// # Errors
    ///
    /// The device has no clock that can be read.
    ///
    /// # References
    ///
    /// `man ibv_query_rt_values_ex`
    pub fn query_raw_clock(&self) -> Result<u64, Error> {
        const RAW_CLOCK: u32 = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        let mut values = ibv_values_ex { comp_mask: RAW_CLOCK, ..ibv_values_ex::default() };
        // SAFETY: the context is open, and `values` is initialised.
        let result = unsafe { verbs::ibv_query_rt_values_ex(self.as_raw().as_ptr(), &raw mut values) };
        let unsupported = || Unsupported::new(self, VERB, "clock that can be read").into();
        match check(result) {
            Ok(()) if values.comp_mask & RAW_CLOCK == 0 => Err(unsupported()),
            // Devices put the ticks into the nanoseconds and leave the seconds alone.
            Ok(()) => Ok((values.raw_clock.tv_sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(values.raw_clock.tv_nsec as u64)),
            Err(source) if Unsupported::is_meant_by(&source) => Err(unsupported()),
            Err(source) => Err(Error::os(VERB, source)),
        }
    }
}

/// Turns ticks of a device's clock into time.
///
/// Clocks drift apart: the conversion to the time of day is as good as the frequency that the device states and as the
/// last [`synchronise`](Self::synchronise). Differences only depend on the frequency.
#[derive(Clone, Debug)]
pub struct ClockConverter {
    context: DeviceContext,
    /// Ticks in a millisecond.
    khz: u64,
    mask: u64,
    /// A moment by both clocks.
    ticks: u64,
    time: SystemTime,
    uncertainty: Duration,
}

impl ClockConverter {
    /// How often a moment is looked for that both clocks agree on.
    const TRIES: usize = 8;

    /// Reads the frequency (`hca_core_clock`), and both clocks.
    ///
    /// # Errors
    ///
    /// The device does not state its frequency, or has no clock that can be read.
    pub fn new(context: &DeviceContext) -> Result<Self, Error> {
        let attr = context.query_device()?;
        if attr.hca_core_clock() == 0 {
            return Err(Unsupported::new(context, "ibv_query_device_ex", "clock of known frequency").into());
        }
        let mask = match attr.completion_timestamp_mask() {
            0 => u64::MAX,
            mask => mask,
        };
        let mut converter = Self {
            context: context.clone(),
            khz: attr.hca_core_clock(),
            mask,
            ticks: 0,
            time: SystemTime::UNIX_EPOCH,
            uncertainty: Duration::MAX,
        };
        converter.synchronise()?;
        Ok(converter)
    }

    /// Reads both clocks again, as drift demands.
    ///
    /// # Errors
    ///
    /// As [`query_raw_clock`](DeviceContext::query_raw_clock).
    pub fn synchronise(&mut self) -> Result<(), Error> {
        let mut best = Duration::MAX;
        for _ in 0..Self::TRIES {
            let (before, time) = (Instant::now(), SystemTime::now());
            let ticks = self.context.query_raw_clock()?;
            let took = before.elapsed();
            if took < best {
                best = took;
                (self.ticks, self.time, self.uncertainty) = (ticks, time + took / 2, took / 2);
            }
        }
        Ok(())
    }

    /// Ticks in a millisecond.
    pub fn khz(&self) -> u64 {
        self.khz
    }

    /// How far the two clocks may have been apart when they were read.
    pub fn uncertainty(&self) -> Duration {
        self.uncertainty
    }

    /// The time from one timestamp to a later one; the counter may have begun anew between them, once.
    pub fn elapsed(&self, earlier: u64, later: u64) -> Duration {
        self.duration(later.wrapping_sub(earlier) & self.mask)
    }

    /// The time of day at a timestamp that is less than half of the counter's period away from the last
    /// [`synchronise`](Self::synchronise).
    pub fn system_time(&self, timestamp: u64) -> SystemTime {
        let since = timestamp.wrapping_sub(self.ticks) & self.mask;
        let until = self.ticks.wrapping_sub(timestamp) & self.mask;
        let time = if since <= until {
            self.time.checked_add(self.duration(since))
        } else {
            self.time.checked_sub(self.duration(until))
        };
        time.unwrap_or(self.time)
    }

    fn duration(&self, ticks: u64) -> Duration {
        let nanos = u128::from(ticks) * 1_000_000 / u128::from(self.khz);
        Duration::new(
            u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX),
            (nanos % 1_000_000_000) as u32,
        )
    }
}
