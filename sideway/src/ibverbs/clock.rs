//! The device's hardware clock, and the conversion of its ticks into time.
//!
//! Completions can carry the time at which the work completed, in ticks of the device
//! ([`CompletionTimestamp`](super::completion::WorkCompletionFields::CompletionTimestamp)). A
//! [`ClockConverter`] turns ticks into time. If the device supports it, a completion carries the
//! time of day itself
//! ([`CompletionTimestampWallclock`][wallclock]).
//!
//! [wallclock]: super::completion::WorkCompletionFields::CompletionTimestampWallclock
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
    /// Reads the device's clock, in ticks (`ibv_query_rt_values_ex`).
    ///
    /// The timestamp of a completion may have fewer bits
    /// ([`completion_timestamp_mask`](super::device_attr::DeviceAttr::completion_timestamp_mask)).
    ///
    /// # Errors
    ///
    /// Fails if the device has no clock, or none that can be read.
    ///
    /// # References
    ///
    /// `man ibv_query_rt_values_ex`
    #[doc(alias = "query_rt_values_ex")]
    pub fn query_raw_clock(&self) -> Result<u64, Error> {
        const RAW_CLOCK: u32 = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        let mut values = ibv_values_ex { comp_mask: RAW_CLOCK, ..ibv_values_ex::default() };
        // SAFETY: `self` keeps the context open, and `values` is initialised.
        let result = unsafe { verbs::ibv_query_rt_values_ex(self.as_raw().as_ptr(), &raw mut values) };
        let unsupported = || Unsupported::new(self, VERB, "clock that can be read").into();
        match check(result) {
            Ok(()) if values.comp_mask & RAW_CLOCK == 0 => Err(unsupported()),
            // Devices put the ticks into the nanoseconds and leave the seconds at zero.
            Ok(()) => Ok((values.raw_clock.tv_sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(values.raw_clock.tv_nsec as u64)),
            Err(source) if Unsupported::is_meant_by(&source) => Err(unsupported()),
            Err(source) => Err(Error::os(VERB, source)),
        }
    }
}

/// Converts ticks of a device's clock into time.
///
/// Clocks drift apart: the time of day is as accurate as the device's stated frequency and the last
/// [`synchronise`](Self::synchronise). Differences depend on the frequency only.
#[derive(Clone, Debug)]
pub struct ClockConverter {
    context: DeviceContext,
    /// Ticks in a millisecond, as the device states them.
    khz: u64,
    mask: u64,
    /// The device's clock at `time`.
    ticks: u64,
    time: SystemTime,
    uncertainty: Duration,
}

impl ClockConverter {
    /// The number of attempts to read both clocks; the one that took the least time counts.
    const TRIES: usize = 8;

    /// Reads the frequency (`hca_core_clock`) and both clocks.
    ///
    /// # Errors
    ///
    /// Fails if the device does not state its frequency, or has no clock that can be read.
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

    /// Reads both clocks again, to correct for drift since the last call.
    ///
    /// # Errors
    ///
    /// Fails as [`query_raw_clock`](DeviceContext::query_raw_clock) does.
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

    /// The clock's frequency in kHz, that is, ticks in a millisecond.
    pub fn khz(&self) -> u64 {
        self.khz
    }

    /// The largest possible offset between the two readings of the last
    /// [`synchronise`](Self::synchronise).
    pub fn uncertainty(&self) -> Duration {
        self.uncertainty
    }

    /// The time from one timestamp to a later one. The counter may have wrapped around between
    /// them, once.
    pub fn elapsed(&self, earlier: u64, later: u64) -> Duration {
        self.duration(later.wrapping_sub(earlier) & self.mask)
    }

    /// The time of day at a timestamp. It must be less than half of the counter's period away from
    /// the last [`synchronise`](Self::synchronise).
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
