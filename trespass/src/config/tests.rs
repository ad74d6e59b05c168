//! I20: `build` refuses an invalid configuration.

use std::time::Duration;

use super::{Builder, Config, ConfigError};
use crate::config::environment::{DeviceName, Environment};
use crate::pool::{LARGEST_BLOCK, Pool, PoolConfig};
use crate::wire::Cause;
use crate::wire::{Features, HandshakeMessage, Hello, Kind, Policy, Role};

pub(crate) type Set = fn(Builder) -> Builder;

pub(crate) fn build(set: Set) -> Result<Config, ConfigError> {
    set(Builder::new()).build_in(&Environment::default())
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The smallest memory that is valid.
fn tiny(b: Builder) -> Builder {
    let b = b.slot_size(512).rx_slots(16).eager_max(1024).rcvbuf(1024).sndbuf(1024).staged_block(4096);
    b.read_piece(4096).pool_initial(0).pool_prewarm(0)
}

/// Invalid configurations, and the parameter that the error names.
const REFUSED: &[(&str, &str, Set)] = &[
    ("slot_size", "0", |b| b.slot_size(0)),
    ("slot_size", "256", |b| b.slot_size(256)),
    ("slot_size", "3000", |b| b.slot_size(3000)),
    ("slot_size", "131072", |b| b.slot_size(128 << 10)),
    ("rx_slots", "15", |b| b.rx_slots(15)),
    ("rx_slots", "0", |b| b.rx_slots(0)),
    ("rx_slots", "32769", |b| b.rx_slots(32769)),
    ("reserve", "1", |b| b.reserve(1)),
    ("reserve", "15", |b| b.reserve(15)),
    ("reserve", "5", |b| b.rx_slots(16).reserve(5)),
    ("eager_max", "1048577", |b| b.eager_max((1 << 20) + 1).max_msg(1 << 20)),
    ("eager_max", "65536", |b| b.eager_max(65536).max_msg(65535)),
    ("eager_max", "8175", |b| b.eager_max(8175)),
    ("eager_max", "65519", |b| b.slot_size(64 << 10).eager_max(65519)),
    ("max_msg", "0", |b| b.max_msg(0)),
    ("max_msg", "1073741825", |b| b.max_msg((1 << 30) + 1)),
    ("inline", "8193", |b| b.inline(8193)),
    ("rcvbuf", "16383", |b| b.rcvbuf(16383)),
    ("rcvbuf", "1073741825", |b| b.rcvbuf((1 << 30) + 1)),
    ("sndbuf", "16383", |b| b.sndbuf(16383)),
    ("sndbuf", "0", |b| b.sndbuf(0)),
    ("max_rts", "0", |b| b.max_rts(0)),
    ("max_rts", "1025", |b| b.max_rts(1025)),
    ("rd_atomic", "0", |b| b.rd_atomic(0)),
    ("read_piece", "0", |b| b.read_piece(0)),
    ("read_piece", "4097", |b| b.read_piece(4097)),
    ("read_piece", "1052672", |b| b.read_piece((1 << 20) + 4096)),
    ("staged_block", "4096", |b| b.staged_block(4096)),
    ("staged_block", "2048", |b| b.slot_size(512).staged_block(2048)),
    ("staged_block", "12288", |b| b.staged_block(12288)),
    ("staged_block", "2097152", |b| b.staged_block(2 << 20)),
    ("registrations", "18446744073709551615", |b| b.registrations(usize::MAX)),
    ("pool_prewarm", "67108865", |b| b.pool_prewarm((64 << 20) + 1)),
    ("pool_prewarm", "1", |b| b.pool_initial(0).pool_prewarm(1)),
    ("pool_initial", "67108864", |b| b.pool_max(32 << 20)),
    ("pool_max", "23068671", |b| b.pool_max((22 << 20) - 1).pool_initial(0).pool_prewarm(0)),
    ("pool_max", "8388607", |b| tiny(b).pool_max((8 << 20) - 1)),
    ("pool_max", "16777216", |b| b.pool_max(16 << 20).pool_initial(0).pool_prewarm(0).rx_slots(1024)),
    ("pool", "one with slots of 8192 bytes, 0 bytes of which are to be received into", |b| {
        b.pool(Pool::new(&PoolConfig::default()).unwrap())
    }),
    ("pool_max", "1073741824", |b| b.srq(true).srq_size(1 << 17)),
    ("pool_high_water", "0", |b| b.pool_high_water(0)),
    ("pool_high_water", "101", |b| b.pool_high_water(101)),
    ("srq_size", "63", |b| b.srq_size(63)),
    ("srq_size", "1048577", |b| b.srq_size((1 << 20) + 1)),
    ("device", "\"\"", |b| b.device("")),
    ("device", "\"mlx5_0:0\"", |b| b.device("mlx5_0:0")),
    ("device", "\"mlx5_0,mlx5_1\"", |b| b.device("mlx5_0,mlx5_1")),
    ("devices", "\"\"", |b| b.devices([""])),
    ("devices", "\"mlx5_0,mlx5_1:0\"", |b| b.devices(["mlx5_0", "mlx5_1:0"])),
    ("devices", "\"mlx5_0,mlx5_1,mlx5_0\"", |b| b.devices(["mlx5_0", "mlx5_1,mlx5_0"])),
    ("bind_host", "\"\"", |b| b.bind_host("")),
    ("bind_host", "\"10.0.0.1:59999\"", |b| b.bind_host("10.0.0.1:59999")),
    ("bind_host", "\"[::1]\"", |b| b.bind_host("[::1]")),
    ("bind_host", "\"a b\"", |b| b.bind_host("a b")),
    ("hostname", "\"worker1:59999\"", |b| b.hostname("worker1:59999")),
    ("hostname", "\"0.0.0.0\"", |b| b.hostname("0.0.0.0")),
    ("hostname", "\"::\"", |b| b.hostname("::")),
    ("bind_interface", "\"\"", |b| b.bind_interface("")),
    ("bind_interface", "\"ib0\"", |b| b.bind_interface("ib0").bind_host("10.0.0.1")),
    ("path_mtu", "1500", |b| b.path_mtu(Some(1500))),
    ("service_level", "16", |b| b.service_level(16)),
    ("hop_limit", "0", |b| b.hop_limit(0)),
    ("ack_timeout", "0", |b| b.ack_timeout(0)),
    ("ack_timeout", "23", |b| b.ack_timeout(23)),
    ("retry_count", "8", |b| b.retry_count(8)),
    ("rnr_retry", "8", |b| b.rnr_retry(8)),
    ("min_rnr_timer", "32", |b| b.min_rnr_timer(32)),
    ("probe_timeout", "0ns", |b| b.probe_timeout(Duration::ZERO)),
    ("probe_timeout", "5s", |b| b.probe_timeout(ms(5000))),
    ("probe_timeout", "300ms", |b| b.handshake_deadline(ms(200))),
    ("handshake_deadline", "9ms", |b| b.handshake_deadline(ms(9))),
    ("handshake_deadline", "601s", |b| b.handshake_deadline(ms(601_000))),
    ("linger", "3601s", |b| b.linger(ms(3_601_000))),
    ("exit_timeout", "3600.001s", |b| b.exit_timeout(ms(3_600_001))),
    ("keepalive", "99ms", |b| b.keepalive(Some(ms(99)))),
    ("control_keepalive", "0ns", |b| b.control_keepalive(Some(Duration::ZERO))),
    ("control_keepalive", "99ms", |b| b.control_keepalive(Some(ms(99)))),
    ("control_keepalive", "3600.001s", |b| b.control_keepalive(Some(ms(3_600_001)))),
    ("spin", "1.001s", |b| b.spin(ms(1001))),
    ("worker_spin", "3600.001s", |b| b.worker_spin(ms(3_600_001))),
    ("trace_interval", "999ms", |b| b.trace_interval(Some(ms(999)))),
    ("backlog", "0", |b| b.backlog(0)),
    ("backlog", "65536", |b| b.backlog(65536)),
    ("bind_patience", "3601s", |b| b.bind_patience(ms(3_601_000))),
    ("user_data", "1025 bytes", |b| b.user_data(vec![0; 1025])),
];

#[test]
fn i20_a_wrong_configuration_is_refused_by_name() {
    for (parameter, value, set) in REFUSED {
        let error = build(*set).expect_err(parameter);
        assert_eq!((error.parameter(), error.value()), (*parameter, *value), "{error}");
        assert!(!error.bound().is_empty() && !error.remedy().is_empty(), "{error}");
    }
}

/// The edges of the valid ranges.
pub(crate) const ALLOWED: &[Set] = &[
    |b| b,
    |b| b.slot_size(512).staged_block(4096),
    |b| b.slot_size(64 << 10).eager_max(1 << 20).rcvbuf(1 << 20).sndbuf(1 << 20).staged_block(1 << 20),
    |b| b.rx_slots(16).reserve(4),
    |b| b.rx_slots(32768).pool_max(4 << 30),
    |b| b.reserve(14),
    |b| b.eager_max(8176),
    |b| b.eager_max(1).max_msg(1),
    |b| b.max_msg(65536),
    |b| b.max_msg(100),
    |b| b.slot_size(64 << 10),
    |b| b.rcvbuf(65536).sndbuf(65536),
    |b| b.inline(0),
    |b| b.pool_prewarm(64 << 20),
    |b| b.pool_initial(0).pool_prewarm(0),
    |b| b.pool_initial(1 << 30),
    |b| b.pool_max(22 << 20).pool_initial(0).pool_prewarm(0),
    |b| tiny(b).pool_max(8 << 20),
    |b| {
        let pool = b.clone().build_in(&Environment::default()).unwrap().pool_config();
        b.rcvbuf(100_000).pool_max(0).pool(Pool::new(&pool).unwrap())
    },
    |b| b.srq(true),
    |b| b.srq(true).srq_size(64).rx_slots(16).slot_size(8 << 10),
    |b| b.srq(true).srq_size(1 << 16).pool_max(2 << 30),
    |b| b.path_mtu(Some(4096)).traffic_class(255).service_level(15).hop_limit(1),
    |b| b.ack_timeout(22).retry_count(0).rnr_retry(0).min_rnr_timer(31),
    |b| b.handshake_deadline(ms(10)).probe_timeout(ms(9)),
    |b| b.exit_timeout(Duration::ZERO),
    |b| b.exit_timeout(ms(3_600_000)),
    |b| b.linger(Duration::ZERO).keepalive(None).spin(Duration::ZERO).trace_interval(None),
    |b| b.control_keepalive(None),
    |b| b.control_keepalive(Some(ms(100))),
    |b| b.control_keepalive(Some(ms(3_600_000))),
    |b| b.worker_spin(ms(3_600_000)),
    |b| b.user_data(vec![0; 1024]),
    |b| b.device("soft0:2").gid_index(Some(255)),
    |b| b.devices(["soft0:1", "soft0:2", "soft1"]),
    |b| b.bind_host("0.0.0.0").hostname("worker1.example.com").port(0),
    |b| b.bind_host("fe80::1%eth0").hostname("::1"),
    |b| b.bind_interface("ib0").port(65535),
    |b| b.registrations(0).rendezvous(false).coalescing(false).immediate(false),
];

/// A valid configuration makes a valid HELLO.
#[test]
fn i20_what_is_allowed_can_be_said() {
    for (index, set) in ALLOWED.iter().enumerate() {
        let config = build(*set).unwrap_or_else(|error| panic!("{index}: {error}"));
        let terms = config.terms(Kind::SeqPacket);
        let hello = Hello {
            first_slots: None,
            devices: None,
            minor: terms.minor,
            features: terms.features,
            conn_id: 1,
            generation: 2,
            role: Role::Client,
            kind: terms.kind,
            policy: terms.policy,
            limits: terms.limits,
            path: Err(crate::wire::Unavailable::new(Cause::NoDevice, "")),
            user_data: terms.user_data,
        };
        assert_eq!(HandshakeMessage::decode(&hello.encode()), Ok(HandshakeMessage::Hello(hello)), "{index}");
    }
}

/// A valid configuration makes a pool.
#[test]
fn i20_what_is_allowed_has_a_pool() {
    for (index, set) in ALLOWED.iter().enumerate() {
        let config = build(*set).unwrap_or_else(|error| panic!("{index}: {error}"));
        let pool =
            config.given_pool.as_ref().map_or_else(|| config.pool_config(), |pool| pool.config().clone());
        pool.check().unwrap_or_else(|error| panic!("{index}: {error}"));
        assert!(config.staged_block as usize <= LARGEST_BLOCK && config.read_piece as usize <= LARGEST_BLOCK);
    }
}

#[test]
fn a_refusal_says_what_to_do() {
    let text = |set: Set| build(set).expect_err("refused").to_string();
    assert_eq!(
        text(|b| b.slot_size(3000)),
        "slot_size = 3000 is refused: it must be a power of two from 512 to 65536; 4096 is one"
    );
    assert_eq!(
        text(|b| b.rx_slots(15)),
        "rx_slots = 15 is refused: it must be from 16 to 32768; 16 is the nearest that is allowed"
    );
    assert_eq!(
        text(|b| b.pool_prewarm(1 << 30)),
        "pool_prewarm = 1073741824 is refused: it must be at most pool_initial, 67108864; lower it, or raise pool_initial"
    );
    assert_eq!(
        text(|b| b.pool_max(16 << 20).pool_initial(0).pool_prewarm(0)),
        "pool_max = 16777216 is refused: it must be at least 23068672, since receiving has 7241728 bytes of slots and 5242880 bytes of \
         larger blocks for itself, and sending 2129920 bytes of slots; raise it, or lower rcvbuf, sndbuf, rx_slots, slot_size or read_piece"
    );
}

fn named(name: &str, port: Option<u8>) -> DeviceName {
    DeviceName { name: name.to_owned(), port }
}

/// The last of both calls counts, and an empty list is none.
#[test]
fn devices_are_a_list_in_the_programs_order() {
    let devices = |set: Set| build(set).expect("allowed").devices;
    assert_eq!(
        devices(|b| b.devices(["mlx5_1:1", "mlx5_0"])),
        [named("mlx5_1", Some(1)), named("mlx5_0", None)]
    );
    assert_eq!(devices(|b| b.devices(["mlx5_1,mlx5_0"])), [named("mlx5_1", None), named("mlx5_0", None)]);
    assert_eq!(devices(|b| b.devices(["mlx5_1", "mlx5_0"]).device("soft0")), [named("soft0", None)]);
    assert_eq!(devices(|b| b.device("soft0").devices(vec![String::from("mlx5_0")])), [named("mlx5_0", None)]);
    assert_eq!(devices(|b| b.device("soft0").devices([""; 0])), []);
}

#[test]
fn the_environment_goes_before_the_program() {
    let environment = Environment {
        devices: vec![named("soft0", Some(2)), named("soft1", None)],
        gid_index: Some(7),
        transport: Some(Policy::TcpOnly),
        probe_timeout: Some(Duration::from_secs(4)),
        control_keepalive: Some(Duration::from_secs(9)),
        exit_timeout: Some(Duration::from_secs(3)),
        log: None,
    };
    let program = Builder::new().device("mlx5_0").gid_index(Some(1)).policy(Policy::Auto);
    let config = program.clone().build_in(&environment).expect("allowed");
    assert_eq!(config.devices, environment.devices);
    assert_eq!(config.gid_index, Some(7));
    assert_eq!([config.probe_timeout, config.handshake_deadline].map(|time| time.as_secs()), [4, 8]);
    assert_eq!(config.control_keepalive, environment.control_keepalive);
    assert_eq!(Some(config.exit_timeout), environment.exit_timeout);
    assert_eq!(config.policy, Policy::TcpOnly);
    let why = config.without_rdma().expect("none is looked for");
    assert_eq!((why.cause, why.detail.as_str()), (Cause::TcpOnly, "TRESPASS_TRANSPORT=tcp"));

    let config = program.build_in(&Environment::default()).expect("allowed");
    assert_eq!(config.devices, [named("mlx5_0", None)]);
    assert_eq!(config.gid_index, Some(1));
    assert_eq!(config.without_rdma().is_none(), cfg!(feature = "rdma"));
}

#[test]
fn an_interval_of_zero_in_the_environment_sends_no_bytes() {
    let environment = Environment { control_keepalive: Some(Duration::ZERO), ..Environment::default() };
    let config = Builder::new().build_in(&environment).expect("allowed");
    assert_eq!(config.control_keepalive, None);
    assert_eq!(build(|b| b).expect("allowed").control_keepalive, Some(Duration::from_secs(25)));
}

/// The environment does not hide a program's own error.
#[test]
fn a_wrong_device_is_refused_though_the_environment_names_another() {
    let environment = Environment { devices: vec![named("soft0", None)], ..Environment::default() };
    let error = Builder::new().device("a b").build_in(&environment).expect_err("refused");
    assert_eq!(error.parameter(), "device");
}

/// A build without RDMA refuses [`Policy::RequireRdma`] at once.
#[test]
fn rdma_is_not_required_where_there_cannot_be_any() {
    let environment = Environment { transport: Some(Policy::RequireRdma), ..Environment::default() };
    let of_program = Builder::new().policy(Policy::RequireRdma).build_in(&Environment::default());
    let of_environment = Builder::new().build_in(&environment);
    if cfg!(feature = "rdma") {
        assert!(of_program.is_ok() && of_environment.is_ok());
    } else {
        assert_eq!(of_program.expect_err("refused").parameter(), "policy");
        assert_eq!(of_environment.expect_err("refused").parameter(), "TRESPASS_TRANSPORT");
    }
}

/// With rdma_cm the route determines the device, and there is no TCP connection.
#[cfg(feature = "rdma")]
#[test]
fn by_rdma_cm_the_route_decides() {
    use super::Bootstrap;
    let by_cm = |set: Set| set(Builder::new().bootstrap(Bootstrap::RdmaCm)).build_in(&Environment::default());
    for set in
        [|b| b, |b: Builder| b.policy(Policy::RequireRdma), |b: Builder| b.traffic_class(96).retry_count(3)]
            as [Set; 3]
    {
        by_cm(set).expect("allowed");
    }
    let refused: [(&str, &str, Set); 8] = [
        ("policy", "TcpOnly", |b| b.policy(Policy::TcpOnly)),
        ("device", "mlx5_0:1", |b| b.device("mlx5_0:1")),
        ("devices", "mlx5_0:1,mlx5_1", |b| b.devices(["mlx5_0:1", "mlx5_1"])),
        ("gid_index", "3", |b| b.gid_index(Some(3))),
        ("path_mtu", "1024", |b| b.path_mtu(Some(1024))),
        ("service_level", "1", |b| b.service_level(1)),
        ("hop_limit", "1", |b| b.hop_limit(1)),
        ("srq", "true", |b| b.srq(true)),
    ];
    for (parameter, value, set) in refused {
        let error = by_cm(set).expect_err(parameter);
        assert_eq!((error.parameter(), error.value()), (parameter, value), "{error}");
        assert!(error.to_string().contains("rdma_cm"), "{error}");
    }
    let environment = Environment { transport: Some(Policy::TcpOnly), ..Environment::default() };
    let error = Builder::new().bootstrap(Bootstrap::RdmaCm).build_in(&environment).expect_err("refused");
    assert_eq!((error.parameter(), error.value()), ("TRESPASS_TRANSPORT", "tcp"));
}

#[cfg(not(feature = "rdma"))]
#[test]
fn without_rdma_there_is_no_connection_manager() {
    let builder = Builder::new().bootstrap(super::Bootstrap::RdmaCm);
    let error = builder.build_in(&Environment::default()).expect_err("refused");
    assert_eq!((error.parameter(), error.value()), ("bootstrap", "RdmaCm"));
    assert!(error.to_string().contains("feature `rdma`"), "{error}");
}

#[test]
fn slots_are_long_where_a_frame_costs_much_unless_something_else_was_chosen() {
    let suited = |set: Set| build(set).expect("allowed").with_long_frames();
    let long = suited(|b| b).expect("nothing was chosen");
    assert_eq!((long.slot_size, long.rx_slots), (16 << 10, 28));
    assert_eq!(long.slot_size * long.rx_slots, 56 * (8 << 10), "an idle connection has as much memory");
    assert_eq!(suited(|b| b.eager_max(10_000)).expect("it goes together").eager_max, 16_368);
    let chosen: [Set; 7] = [
        |b| b.rx_slots(56),
        |b| b.slot_size(8 << 10),
        |b| b.slot_size(16 << 10),
        |b| b.rx_slots(64),
        |b| b.srq(true),
        |b| b.pool(Pool::new(&Builder::new().build().unwrap().pool_config()).unwrap()),
        |b| b.rcvbuf(16 << 10),
    ];
    for (at, set) in chosen.into_iter().enumerate() {
        assert_eq!(suited(set), None, "choice {at}");
    }
}

/// The default of one parameter follows from another, unless the program sets it.
#[test]
fn shared_slots_are_small_unless_they_are_chosen() {
    let slots = |set: Set| build(set).expect("allowed").slot_size;
    assert_eq!([slots(|b| b), slots(|b| b.srq(true))], [8 << 10, 4 << 10]);
    assert_eq!(slots(|b| b.slot_size(8 << 10).srq(true)), 8 << 10);
    let first = |set: Set| build(set).expect("allowed").terms(Kind::Stream).first_slots;
    assert_eq!([first(|b| b), first(|b| b.srq(true))], [None, Some(5)]);
}

#[test]
fn features_are_what_is_configured() {
    let features = |set: Set| build(set).expect("allowed").terms(Kind::Stream).features;
    let both = Features::READ.with(Features::COALESCE).with(Features::WINDOWS).with(Features::IMMEDIATE);
    let both = both.with(Features::ATTEND).with(Features::KEEP).with(Features::ANNOUNCE);
    let both = both.with(Features::ACKNOWLEDGE);
    assert_eq!(features(|b| b), both);
    assert_eq!(features(|b| b.rendezvous(false)), both.without(Features::READ));
    assert_eq!(features(|b| b.coalescing(false)), both.without(Features::COALESCE));
    assert_eq!(features(|b| b.immediate(false)), both.without(Features::IMMEDIATE));
    assert_eq!(features(|b| b.srq(true)), both.with(Features::SHARED_RECEIVE));
    assert_eq!(features(|b| b.control_keepalive(None)), both.without(Features::KEEP));
}
