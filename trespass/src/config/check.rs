//! The checks of a configuration (I20): the range of each parameter, and the relations between
//! them.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::ConfigError;
use super::environment::{DEVICE, GID_INDEX, TRANSPORT};
use super::parameters::{Bootstrap, Config, LONGEST_HANDSHAKE};
use crate::pool::{LARGEST_BLOCK, PoolConfig};
use crate::wire::{Limits, MAX_USER_DATA, Policy};

type CheckResult = Result<(), ConfigError>;

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;
const HOUR: Duration = Duration::from_secs(3600);

/// The range of the pool's slot size. A peer's may be larger.
const SLOT_SIZE: RangeInclusive<u64> = 512..=64 * KIB;
/// The range of a shared receive queue. The minimum is what one connection can be granted.
const SRQ_SIZE: RangeInclusive<u32> = 64..=1 << 20;
/// The range of the interval between two bytes of the control connection. A peer with the shortest
/// one sends a side with the longest one at most 48,000 bytes between two of its turns, fewer than
/// [`CONTROL_BYTES`](crate::transport::CONTROL_BYTES).
const CONTROL_KEEPALIVE: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;
/// The largest block of the pool.
const BLOCK: u64 = LARGEST_BLOCK as u64;

/// Checks all parameters, and returns the first error.
pub(super) fn check(config: &Config) -> CheckResult {
    frames(config)?;
    quotas(config)?;
    rendezvous(config)?;
    pool(config)?;
    route(config)?;
    bootstrap(config)?;
    times(config)?;
    addresses(config)?;
    listening(config)
}

fn frames(c: &Config) -> CheckResult {
    power_of_two("slot_size", c.slot_size.into(), SLOT_SIZE)?;
    within("rx_slots", c.rx_slots, Limits::RX_SLOTS)?;
    let most = c.rx_slots / 4;
    must(c.reserve >= 2 && c.reserve <= most, "reserve", c.reserve, || {
        (format!("from 2 to {most}, a quarter of rx_slots"), "leave it at 2, or raise rx_slots".into())
    })?;
    within("srq_size", c.srq_size, SRQ_SIZE)?;
    within("max_msg", c.max_msg, 1..=Limits::MAX_MSG)?;
    must(u64::from(c.eager_max) <= c.max_msg, "eager_max", c.eager_max, || {
        (format!("at most max_msg, {}", c.max_msg), "lower it, or raise max_msg".into())
    })?;
    let least = c.least_eager_max();
    must(u64::from(c.eager_max) >= least, "eager_max", c.eager_max, || {
        let bound = format!(
            "at least {least}, since what fits into a slot of {} is never read by the peer",
            c.slot_size
        );
        (bound, "raise it, or lower slot_size".into())
    })?;
    must(c.inline <= c.slot_size, "inline", c.inline, || {
        (format!("at most slot_size, {}", c.slot_size), "lower it; devices do not take much".into())
    })
}

fn quotas(c: &Config) -> CheckResult {
    for (name, value) in [("rcvbuf", c.rcvbuf), ("sndbuf", c.sndbuf)] {
        let least = u64::from(c.eager_max).max(2 * u64::from(c.slot_size));
        let fits = (least..=GIB).contains(&(value as u64));
        must(fits, name, value, || {
            let bound = format!("from {least}, which is the greater of eager_max and two slots, to {GIB}");
            (bound, "change it, or lower eager_max or slot_size".into())
        })?;
    }
    Ok(())
}

fn rendezvous(c: &Config) -> CheckResult {
    within("max_rts", c.max_rts, 1..=1024)?;
    within("rd_atomic", c.rd_atomic, 1..=255)?;
    must(
        c.read_piece.is_multiple_of(4096) && (4 * KIB..=BLOCK).contains(&c.read_piece.into()),
        "read_piece",
        c.read_piece,
        || {
            (
                format!("a multiple of 4096 up to {BLOCK}, the pool's largest block"),
                "1 MiB is a good value".into(),
            )
        },
    )?;
    power_of_two("staged_block", c.staged_block.into(), u64::from(c.slot_size).max(4 * KIB)..=BLOCK)?;
    within("registrations", c.registrations as u64, 0..=1 << 46)
}

fn pool(c: &Config) -> CheckResult {
    if let Some(pool) = &c.given_pool {
        return given_pool(&c.pool_config(), pool.config());
    }
    must(c.pool_prewarm <= c.pool_initial, "pool_prewarm", c.pool_prewarm, || {
        (format!("at most pool_initial, {}", c.pool_initial), "lower it, or raise pool_initial".into())
    })?;
    must(c.pool_initial <= c.pool_max, "pool_initial", c.pool_initial, || {
        (format!("at most pool_max, {}", c.pool_max), "lower it, or raise pool_max".into())
    })?;
    let pool = c.pool_config();
    let least = pool.least_max();
    must(c.pool_max >= least, "pool_max", c.pool_max, || {
        let bound = format!(
            "at least {least}, since receiving has {} bytes of slots and {} bytes of larger blocks for itself, and sending {} bytes of \
             slots",
            pool.receive_slots, pool.receive_staged, pool.send_slots
        );
        (bound, "raise it, or lower rcvbuf, sndbuf, rx_slots, slot_size or read_piece".into())
    })?;
    within("pool_high_water", c.pool_high_water, 1..=100)
}

/// A pool of the program must have what the connections need.
fn given_pool(needed: &PoolConfig, given: &PoolConfig) -> CheckResult {
    let parts =
        |pool: &PoolConfig| [pool.send_slots, pool.receive_slots, pool.receive_staged, pool.receive_margin];
    let enough = parts(given).iter().zip(parts(needed)).all(|(given, needed)| *given >= needed);
    let text = |pool: &PoolConfig| {
        let (size, receive) = (pool.slot_size, pool.receive_slots);
        format!("one with slots of {size} bytes, {receive} bytes of which are to be received into")
    };
    must(given.slot_size == needed.slot_size && enough, "pool", text(given), || {
        (text(needed), "make it with what Config::pool_config says of this configuration".into())
    })
}

fn route(c: &Config) -> CheckResult {
    let name = if c.policy_of_environment { TRANSPORT } else { "policy" };
    must(
        cfg!(feature = "rdma") || c.policy != Policy::RequireRdma,
        name,
        if c.policy_of_environment { "rdma" } else { "RequireRdma" },
        || {
            (
                "another one, since this program was built without RDMA".into(),
                "build it with the feature `rdma`".into(),
            )
        },
    )?;
    if let Some(mtu) = c.path_mtu {
        must([256, 512, 1024, 2048, 4096].contains(&mtu), "path_mtu", mtu, || {
            ("256, 512, 1024, 2048 or 4096".into(), "leave it out: the ports know theirs".into())
        })?;
    }
    within("service_level", c.service_level, 0..=15)?;
    within("hop_limit", c.hop_limit, 1..=255)?;
    must(
        (10..=3_600_000).contains(&c.rail_timeout.as_millis()),
        "rail_timeout",
        format!("{:?}", c.rail_timeout),
        || ("from 10 ms to 1 hour".into(), "3 s is the default".into()),
    )?;
    within("ack_timeout", c.ack_timeout, 1..=22)?;
    within("retry_count", c.retry_count, 0..=7)?;
    within("rnr_retry", c.rnr_retry, 0..=7)?;
    within("min_rnr_timer", c.min_rnr_timer, 0..=31)
}

/// With rdma_cm, parameters that the route determines must not be set.
fn bootstrap(c: &Config) -> CheckResult {
    if c.bootstrap == Bootstrap::Tcp {
        return Ok(());
    }
    must(cfg!(feature = "rdma"), "bootstrap", "RdmaCm", || {
        ("Tcp, since this program was built without RDMA".into(), "build it with the feature `rdma`".into())
    })?;
    let (name, value) = if c.policy_of_environment { (TRANSPORT, "tcp") } else { ("policy", "TcpOnly") };
    must(c.policy != Policy::TcpOnly, name, value, || {
        let bound = "another one, since a connection that begins by rdma_cm has no TCP connection".into();
        (bound, "choose Bootstrap::Tcp, or let it be RDMA".into())
    })?;
    must(!c.srq, "srq", true, || {
        let bound = "left out, since a connection that begins by rdma_cm has its receives for itself".into();
        (bound, "leave it out, or choose Bootstrap::Tcp".into())
    })?;
    let start = Config::default();
    let by_route = |name, value: Option<String>| {
        let Some(value) = value else { return Ok(()) };
        must(false, name, value, || {
            let bound = "left out, since the route says it where a connection begins by rdma_cm".into();
            (bound, format!("leave it out{}, or choose Bootstrap::Tcp", variable(name)))
        })
    };
    let devices: Vec<_> = c.devices.iter().map(ToString::to_string).collect();
    let name = if devices.len() > 1 { "devices" } else { "device" };
    by_route(name, (!devices.is_empty()).then(|| devices.join(",")))?;
    by_route("gid_index", c.gid_index.map(|index| index.to_string()))?;
    by_route("path_mtu", c.path_mtu.map(|mtu| mtu.to_string()))?;
    let differs = |own: u8, start: u8| (own != start).then(|| own.to_string());
    by_route("service_level", differs(c.service_level, start.service_level))?;
    by_route("hop_limit", differs(c.hop_limit, start.hop_limit))
}

/// The environment variable that overrides a parameter.
fn variable(name: &str) -> String {
    match name {
        "device" | "devices" => format!(", and unset {DEVICE}"),
        "gid_index" => format!(", and unset {GID_INDEX}"),
        _ => String::new(),
    }
}

fn times(c: &Config) -> CheckResult {
    lasting("handshake_deadline", c.handshake_deadline, Duration::from_millis(10)..=LONGEST_HANDSHAKE)?;
    lasting("probe_timeout", c.probe_timeout, Duration::from_millis(1)..=HOUR)?;
    must(c.probe_timeout < c.handshake_deadline, "probe_timeout", Shown(c.probe_timeout), || {
        let bound = format!("less than handshake_deadline, {:?}", c.handshake_deadline);
        (bound, "lower it, or raise handshake_deadline; else there is no time left for TCP".into())
    })?;
    lasting("linger", c.linger, Duration::ZERO..=HOUR)?;
    lasting("exit_timeout", c.exit_timeout, Duration::ZERO..=HOUR)?;
    if let Some(keepalive) = c.keepalive {
        lasting("keepalive", keepalive, Duration::from_millis(100)..=24 * HOUR)?;
    }
    if let Some(interval) = c.control_keepalive {
        lasting("control_keepalive", interval, CONTROL_KEEPALIVE)?;
    }
    lasting("spin", c.spin, Duration::ZERO..=Duration::from_secs(1))?;
    lasting("worker_spin", c.worker_spin, Duration::ZERO..=HOUR)?;
    if let Some(interval) = c.trace_interval {
        lasting("trace_interval", interval, Duration::from_secs(1)..=24 * HOUR)?;
    }
    Ok(())
}

fn addresses(c: &Config) -> CheckResult {
    const HOST: &str = "a host name or an IP address, without a port";
    for (name, value) in [("bind_host", &c.bind_host), ("hostname", &c.hostname)] {
        let Some(host) = value else { continue };
        must(is_host(host), name, format!("{host:?}"), || (HOST.into(), "the port is `port`".into()))?;
    }
    if let Some(host) = &c.hostname {
        let is_wildcard = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
        must(!is_wildcard, "hostname", format!("{host:?}"), || {
            ("one that clients can connect to".into(), "leave it out for the system's host name".into())
        })?;
    }
    if let Some(interface) = &c.bind_interface {
        must(!interface.is_empty(), "bind_interface", "\"\"", || {
            ("a name of an interface".into(), "`ip addr` lists them; leave it out for all".into())
        })?;
        must(c.bind_host.is_none(), "bind_interface", format!("{interface:?}"), || {
            ("left out, since bind_host says the address".into(), "set one of both".into())
        })?;
    }
    Ok(())
}

/// Whether the text may be a host. A name has no colon, and an IPv6 address may name its interface.
fn is_host(text: &str) -> bool {
    let strange = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '[' | ']' | ',');
    let ip = text.split_once('%').map_or(text, |(ip, _)| ip);
    !text.is_empty() && !text.contains(strange) && (!text.contains(':') || ip.parse::<Ipv6Addr>().is_ok())
}

fn listening(c: &Config) -> CheckResult {
    within("backlog", c.backlog, 1..=65535)?;
    lasting("bind_patience", c.bind_patience, Duration::ZERO..=HOUR)?;
    let len = c.user_data.len();
    must(len <= MAX_USER_DATA, "user_data", format!("{len} bytes"), || {
        (format!("at most {MAX_USER_DATA} bytes"), "send the rest as the first message".into())
    })
}

/// Formats the bound and the remedy only for an error.
fn must(
    holds: bool,
    parameter: &'static str,
    value: impl ToString,
    what: impl FnOnce() -> (String, String),
) -> CheckResult {
    if holds {
        return Ok(());
    }
    let (bound, remedy) = what();
    Err(ConfigError::new(parameter, value.to_string(), bound, remedy))
}

fn nearest<T: Ord + Copy + Debug>(value: T, range: &RangeInclusive<T>) -> String {
    format!("{:?} is the nearest that is allowed", value.clamp(*range.start(), *range.end()))
}

fn within<T: Ord + Copy + Debug + ToString>(
    parameter: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> CheckResult {
    must(range.contains(&value), parameter, value, || {
        (format!("from {:?} to {:?}", range.start(), range.end()), nearest(value, &range))
    })
}

fn lasting(parameter: &'static str, value: Duration, range: RangeInclusive<Duration>) -> CheckResult {
    must(range.contains(&value), parameter, Shown(value), || {
        (format!("from {:?} to {:?}", range.start(), range.end()), nearest(value, &range))
    })
}

fn power_of_two(parameter: &'static str, value: u64, range: RangeInclusive<u64>) -> CheckResult {
    must(value.is_power_of_two() && range.contains(&value), parameter, value, || {
        let near = value.clamp(*range.start(), *range.end()).next_power_of_two();
        let bound = format!("a power of two from {} to {}", range.start(), range.end());
        (bound, format!("{near} is one"))
    })
}

/// A duration as text.
struct Shown(Duration);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
