//! Options: a struct that grows at its end.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::time::Duration;

use trespass::{Bootstrap, Builder, Config, Policy};

use crate::boundary::{bytes, text};
use crate::error::CallFailure;

/// `trespass_options`. A number is 0 for the default and -1 for zero, so that a struct of zeros is
/// one of defaults, and an older program's struct is one with zeros at its end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct COptions {
    /// Bytes of the struct as the program knows it.
    pub size: usize,
    /// `Builder::devices`, separated by commas; null for none.
    pub device: *const c_char,
    /// `Builder::user_data`.
    pub user_data: *const c_void,
    /// Bytes of `user_data`.
    pub user_data_length: usize,
    /// The numbers, in the order of the header.
    pub numbers: [i64; NUMBERS],
}

/// How many numbers there are.
pub const NUMBERS: usize = 48;

/// The bytes after which no version of the struct ends: more is a size that nobody has set.
const LARGEST: usize = 1 << 16;

/// Makes the builder's methods of the numbers, in the order of the struct.
macro_rules! numbers {
    ($($name:literal $setter:ident $convert:ident;)*) => {
        /// The names of the numbers, in the order of the struct.
        pub const NAMES: [&str; NUMBERS] = [$($name),*];

        fn set_numbers(mut builder: Builder, numbers: &[i64; NUMBERS]) -> Result<Builder, CallFailure> {
            let mut numbers = numbers.iter();
            $(
                let value = numbers.next().copied().unwrap_or_default();
                if value != 0 {
                    builder = builder.$setter($convert($name, value)?);
                }
            )*
            Ok(builder)
        }
    };
}

numbers! {
    "policy" policy policy;
    "bootstrap" bootstrap bootstrap;
    "max_msg" max_msg number;
    "rcvbuf" rcvbuf number;
    "sndbuf" sndbuf number;
    "backlog" backlog number;
    "bind_patience_ms" bind_patience milliseconds;
    "reuse_port" reuse_port answer;
    "handshake_deadline_ms" handshake_deadline milliseconds;
    "probe_timeout_ms" probe_timeout milliseconds;
    "linger_ms" linger milliseconds;
    "exit_timeout_ms" exit_timeout milliseconds;
    "keepalive_ms" keepalive interval;
    "control_keepalive_ms" control_keepalive interval;
    "spin_us" spin microseconds;
    "worker_spin_us" worker_spin microseconds;
    "trace_interval_ms" trace_interval interval;
    "coalescing" coalescing answer;
    "rendezvous" rendezvous answer;
    "immediate" immediate answer;
    "eager_max" eager_max number;
    "inline_max" inline number;
    "rx_slots" rx_slots number;
    "slot_size" slot_size number;
    "reserve" reserve number;
    "srq" srq answer;
    "srq_size" srq_size number;
    "max_rts" max_rts number;
    "rd_atomic" rd_atomic number;
    "read_piece" read_piece number;
    "staged_block" staged_block number;
    "registrations" registrations number;
    "pool_initial" pool_initial number;
    "pool_prewarm" pool_prewarm number;
    "pool_max" pool_max number;
    "pool_high_water" pool_high_water number;
    "huge_pages" huge_pages answer;
    "gid_index" gid_index optional;
    "path_mtu" path_mtu optional;
    "traffic_class" traffic_class number;
    "service_level" service_level number;
    "hop_limit" hop_limit number;
    "ack_timeout" ack_timeout number;
    "retry_count" retry_count number;
    "rnr_retry" rnr_retry number;
    "min_rnr_timer" min_rnr_timer number;
    "rails_after" rails_after number;
    "rail_timeout_ms" rail_timeout milliseconds;
}

fn refused(name: &str, value: i64, bound: &str) -> CallFailure {
    CallFailure::new(libc::EINVAL, format!("{name} = {value} is refused: it must be {bound}"))
}

/// A number without its coding: -1 is zero.
fn number<T: TryFrom<i64>>(name: &str, value: i64) -> Result<T, CallFailure> {
    let bound = "at least 1, 0 for the default, or TRESPASS_ZERO";
    let number = match value {
        -1 => 0,
        1.. => value,
        _ => return Err(refused(name, value, bound)),
    };
    T::try_from(number).map_err(|_| refused(name, value, "smaller"))
}

fn optional<T: TryFrom<i64>>(name: &str, value: i64) -> Result<Option<T>, CallFailure> {
    number(name, value).map(Some)
}

fn milliseconds(name: &str, value: i64) -> Result<Duration, CallFailure> {
    number(name, value).map(Duration::from_millis)
}

fn microseconds(name: &str, value: i64) -> Result<Duration, CallFailure> {
    number(name, value).map(Duration::from_micros)
}

/// A time between two events, where zero is that there are none.
fn interval(name: &str, value: i64) -> Result<Option<Duration>, CallFailure> {
    milliseconds(name, value).map(|interval| Some(interval).filter(|interval| !interval.is_zero()))
}

fn answer(name: &str, value: i64) -> Result<bool, CallFailure> {
    match value {
        1 => Ok(true),
        -1 => Ok(false),
        _ => Err(refused(name, value, "TRESPASS_YES, TRESPASS_NO, or 0 for the default")),
    }
}

fn policy(name: &str, value: i64) -> Result<Policy, CallFailure> {
    match value {
        1 => Ok(Policy::RequireRdma),
        2 => Ok(Policy::TcpOnly),
        _ => Err(refused(name, value, "TRESPASS_AUTO, TRESPASS_REQUIRE_RDMA or TRESPASS_TCP_ONLY")),
    }
}

fn bootstrap(name: &str, value: i64) -> Result<Bootstrap, CallFailure> {
    match value {
        1 => Ok(Bootstrap::RdmaCm),
        _ => Err(refused(name, value, "TRESPASS_BY_TCP or TRESPASS_BY_RDMA_CM")),
    }
}

impl COptions {
    /// Copies the part of a struct that both the program and this library know.
    ///
    /// # Safety
    ///
    /// `options` is not null, and has as many readable bytes as its first member says.
    unsafe fn read(options: *const Self) -> Result<Self, CallFailure> {
        let start = options.cast::<u8>();
        // SAFETY: by the caller: a struct has its size at least. Nobody says that it is aligned.
        let size = unsafe { options.cast::<usize>().read_unaligned() };
        let known = size_of::<Self>();
        if !(size_of::<usize>()..=LARGEST).contains(&size) {
            let words = format!("options.size = {size} is refused: begin with TRESPASS_OPTIONS_INIT");
            return Err(CallFailure::new(libc::EINVAL, words));
        }
        let mut copy = MaybeUninit::<Self>::zeroed();
        // SAFETY: by the caller the source has `size` bytes, and the destination has `known` ones.
        unsafe { copy.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(start, size.min(known)) };
        for at in known..size {
            // SAFETY: by the caller: it is one of the `size` bytes.
            if unsafe { start.add(at).read() } != 0 {
                let words = format!(
                    "byte {at} of the options is set, and this library knows {known} bytes of them: install \
                     a library as new as the program's header, or leave that option alone"
                );
                return Err(CallFailure::new(libc::E2BIG, words));
            }
        }
        // SAFETY: zeros are valid for each member, and so is what a C program writes there.
        Ok(unsafe { copy.assume_init() })
    }

    /// # Safety
    ///
    /// That of the [crate](crate#safety), for both pointers.
    unsafe fn builder(&self) -> Result<Builder, CallFailure> {
        let mut builder = set_numbers(Builder::new(), &self.numbers)?;
        if !self.device.is_null() {
            // SAFETY: the pointer has what this function demands of its caller.
            let device = unsafe { text("device", self.device) }?;
            builder = if device.contains(',') { builder.devices([device]) } else { builder.device(device) };
        }
        // SAFETY: the pointer has what this function demands of its caller.
        let user_data = unsafe { bytes("user_data", self.user_data, self.user_data_length) }?;
        Ok(builder.user_data(user_data))
    }
}

/// The configuration that a program asks for.
///
/// # Safety
///
/// That of the [crate](crate#safety).
pub(crate) unsafe fn config(options: *const COptions) -> Result<Config, CallFailure> {
    if options.is_null() {
        return Ok(Builder::new().build()?);
    }
    // SAFETY: by the caller; it is not null.
    let options = unsafe { COptions::read(options) }?;
    // SAFETY: the pointer has what this function demands of its caller.
    Ok(unsafe { options.builder() }?.build()?)
}
