//! Options of rsockets, as getsockopt(2) and setsockopt(2) have them.

use std::ffi::c_int;
use std::time::Duration;

use rdma_mummy_sys::types as c;

use super::message::{LEAST_SLOTS, LONGEST, SHORTEST};
use super::queues::BufferShape;
use super::socket::{RsPhase, RsState};
use crate::objects::setup::ProcessSetup;

/// `SOL_RDMA` and its options, of `rdma/rsocket.h`.
pub(super) const SOL_RDMA: c_int = 0x10000;
pub(super) const RDMA_SQSIZE: c_int = 0;
pub(super) const RDMA_RQSIZE: c_int = 1;
pub(super) const RDMA_INLINE: c_int = 2;
pub(super) const RDMA_IOMAPSIZE: c_int = 3;
pub(super) const RDMA_ROUTE: c_int = 4;

/// Bounds of what a program may ask for.
const MOST_SLOTS: c_int = 8192;
const LEAST_BYTES: c_int = 4096;
const MOST_BYTES: c_int = 64 << 20;
const MOST_MAPPINGS: c_int = 4096;
/// `TCP_MAXSEG` has such bounds, too.
const LEAST_SEGMENT: c_int = SHORTEST as c_int;

/// What a program has set.
#[derive(Clone, Debug)]
pub(super) struct RsOptions {
    pub(super) is_nonblocking: bool,
    pub(super) reuse_address: bool,
    pub(super) v6_only: Option<bool>,
    keep_alive: [c_int; 4],
    oob_inline: bool,
    no_delay: bool,
    pub(super) linger: Option<Duration>,
    pub(super) receive_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
    send_bytes: c_int,
    receive_bytes: c_int,
    send_slots: c_int,
    receive_slots: c_int,
    inline: c_int,
    pub(super) mappings: u16,
    segment: c_int,
}

impl Default for RsOptions {
    fn default() -> Self {
        Self {
            is_nonblocking: false,
            reuse_address: false,
            v6_only: None,
            keep_alive: [0, 7200, 75, 9],
            oob_inline: false,
            no_delay: false,
            linger: None,
            receive_timeout: None,
            send_timeout: None,
            send_bytes: 512 << 10,
            receive_bytes: 512 << 10,
            send_slots: 128,
            receive_slots: 128,
            inline: 64,
            mappings: 0,
            segment: LONGEST as c_int,
        }
    }
}

impl RsOptions {
    pub(super) fn new(is_nonblocking: bool) -> Self {
        Self { is_nonblocking, ..Self::default() }
    }

    /// What the queue pair and the messages of a connection are like.
    pub(super) fn shape(&self) -> BufferShape {
        let length = |bytes: c_int, slots: c_int| {
            let length = (bytes.unsigned_abs() / slots.unsigned_abs()).next_multiple_of(64);
            length.clamp(SHORTEST, self.segment.unsigned_abs())
        };
        let most = ProcessSetup::get().map_or(0, |setup| setup.limits.max_inline_data);
        BufferShape {
            send_slots: self.send_slots as u16,
            send_length: length(self.send_bytes, self.send_slots),
            receive_slots: self.receive_slots as u16,
            receive_length: length(self.receive_bytes, self.receive_slots),
            inline: self.inline.unsigned_abs().min(most),
        }
    }

    /// A new connection of a listener has its options, but blocks, as accept(2) says.
    pub(super) fn inherited(&self) -> Self {
        Self { is_nonblocking: false, ..self.clone() }
    }
}

/// A value as C has it.
pub(super) enum OptionValue {
    Number(c_int),
    Linger(libc::linger),
    Time(libc::timeval),
}

impl OptionValue {
    pub(super) fn bytes(&self) -> &[u8] {
        fn of<T>(value: &T) -> &[u8] {
            // SAFETY: these are made of integers, without room between them, and live as long as the reference.
            unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
        }
        match self {
            Self::Number(number) => of(number),
            Self::Linger(linger) => of(linger),
            Self::Time(time) => of(time),
        }
    }
}

fn number(bytes: &[u8]) -> Result<c_int, c_int> {
    let (bytes, _) = bytes.split_first_chunk().ok_or(libc::EINVAL)?;
    Ok(c_int::from_ne_bytes(*bytes))
}

fn linger(bytes: &[u8]) -> Result<Option<Duration>, c_int> {
    let (on, rest) = bytes.split_first_chunk().ok_or(libc::EINVAL)?;
    let seconds = number(rest)?;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Ok((c_int::from_ne_bytes(*on) != 0).then(|| Duration::from_secs(seconds)))
}

/// Zero is none.
fn time(bytes: &[u8]) -> Result<Option<Duration>, c_int> {
    let (seconds, rest) = bytes.split_first_chunk().ok_or(libc::EINVAL)?;
    let (micros, _) = rest.split_first_chunk().ok_or(libc::EINVAL)?;
    let (seconds, micros) = (i64::from_ne_bytes(*seconds), i64::from_ne_bytes(*micros));
    if !(0..1_000_000).contains(&micros) {
        return Err(libc::EDOM);
    }
    let time =
        Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) + Duration::from_micros(micros as u64);
    Ok((!time.is_zero()).then_some(time))
}

fn to_time(time: Option<Duration>) -> OptionValue {
    let time = time.unwrap_or_default();
    OptionValue::Time(libc::timeval { tv_sec: time.as_secs() as i64, tv_usec: time.subsec_micros().into() })
}

/// Counts of `TCP_KEEPIDLE` and its like, and `SO_KEEPALIVE`: kept for who asks. The end of a peer is noticed at once.
fn keep_alive(level: c_int, name: c_int) -> Option<usize> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => Some(0),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => Some(1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => Some(2),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => Some(3),
        _ => None,
    }
}

impl RsState {
    /// Sizes are those of the next connection.
    pub(super) fn set_option(&mut self, level: c_int, name: c_int, value: &[u8]) -> Result<(), c_int> {
        let is_idle = self.phase == RsPhase::Idle;
        let options = &mut self.options;
        if let Some(which) = keep_alive(level, name) {
            let value = number(value)?;
            if which != 0 && !(1..=32767).contains(&value) {
                return Err(libc::EINVAL);
            }
            options.keep_alive[which] = if which == 0 { c_int::from(value != 0) } else { value };
            return Ok(());
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
                options.reuse_address = number(value)? != 0;
                return if is_idle { self.pass_on_options() } else { Ok(()) };
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                options.receive_bytes = number(value)?.clamp(LEAST_BYTES, MOST_BYTES);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                options.send_bytes = number(value)?.clamp(LEAST_BYTES, MOST_BYTES);
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => options.linger = linger(value)?,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline = number(value)? != 0,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => options.receive_timeout = time(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => options.send_timeout = time(value)?,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay = number(value)? != 0,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let value = number(value)?;
                if !(LEAST_SEGMENT..=LONGEST as c_int).contains(&value) {
                    return Err(libc::EINVAL);
                }
                options.segment = value;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if self.family != libc::AF_INET6 => {
                return Err(libc::ENOPROTOOPT);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if !is_idle => return Err(libc::EINVAL),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                options.v6_only = Some(number(value)? != 0);
                return self.pass_on_options();
            }
            (SOL_RDMA, RDMA_SQSIZE..=RDMA_IOMAPSIZE)
                if !matches!(self.phase, RsPhase::Idle | RsPhase::Listening) =>
            {
                return Err(libc::EINVAL);
            }
            (SOL_RDMA, RDMA_SQSIZE) => {
                options.send_slots = number(value)?.clamp(LEAST_SLOTS.into(), MOST_SLOTS);
            }
            (SOL_RDMA, RDMA_RQSIZE) => {
                options.receive_slots = number(value)?.clamp(LEAST_SLOTS.into(), MOST_SLOTS);
            }
            (SOL_RDMA, RDMA_INLINE) => options.inline = number(value)?.max(0),
            (SOL_RDMA, RDMA_IOMAPSIZE) => options.mappings = number(value)?.clamp(0, MOST_MAPPINGS) as u16,
            // The way is always known.
            (SOL_RDMA, RDMA_ROUTE) => return Err(libc::EOPNOTSUPP),
            _ => return Err(libc::ENOPROTOOPT),
        }
        Ok(())
    }

    pub(super) fn option(&mut self, level: c_int, name: c_int) -> Result<OptionValue, c_int> {
        let options = &self.options;
        if let Some(which) = keep_alive(level, name) {
            return Ok(OptionValue::Number(options.keep_alive[which]));
        }
        let shape = self.stream.as_ref().map_or_else(|| options.shape(), |stream| stream.queues.shape());
        let bytes = |slots: u16, length: u32| c_int::from(slots).saturating_mul(length as c_int);
        Ok(OptionValue::Number(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => core::mem::take(&mut self.error),
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.family,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => (self.phase == RsPhase::Listening).into(),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => bytes(shape.receive_slots, shape.receive_length),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => bytes(shape.send_slots, shape.send_length),
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = options.linger.map_or(0, |linger| linger.as_secs() as c_int);
                let l_onoff = options.linger.is_some().into();
                return Ok(OptionValue::Linger(libc::linger { l_onoff, l_linger: seconds }));
            }
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline.into(),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(to_time(options.receive_timeout)),
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(to_time(options.send_timeout)),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                self.stream.as_ref().map_or(shape.send_length, |stream| stream.message()) as c_int
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) if self.family == libc::AF_INET6 => {
                options.v6_only.unwrap_or(false).into()
            }
            (SOL_RDMA, RDMA_SQSIZE) => shape.send_slots.into(),
            (SOL_RDMA, RDMA_RQSIZE) => shape.receive_slots.into(),
            (SOL_RDMA, RDMA_INLINE) => shape.inline as c_int,
            (SOL_RDMA, RDMA_IOMAPSIZE) => options.mappings.into(),
            (SOL_RDMA, RDMA_ROUTE) => return Err(libc::EOPNOTSUPP),
            _ => return Err(libc::ENOPROTOOPT),
        }))
    }

    /// Tells the connection manager what a program has set.
    pub(super) fn pass_on_options(&mut self) -> Result<(), c_int> {
        // The manager takes back nothing once the address is known, and neither does it have to.
        let reuse = self.options.reuse_address.then_some(true);
        let options =
            [(c::RDMA_OPTION_ID_REUSEADDR, reuse), (c::RDMA_OPTION_ID_AFONLY, self.options.v6_only)];
        let set = options.into_iter().filter_map(|(name, is_on)| Some((name, is_on?)));
        set.map(|(name, is_on)| (name, c_int::from(is_on).to_ne_bytes())).try_for_each(|(name, value)| {
            self.manager.set_option(self.id, c::RDMA_OPTION_ID as c_int, name as c_int, &value)
        })
    }
}
