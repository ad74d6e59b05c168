//! Tests of the fallback: if RDMA is not possible, both sides use TCP and report the reason.

use std::io::{Read, Write};

use super::*;
use crate::config::environment::DeviceName;
use crate::handshake::Side as Which;
use crate::wire::Cause;

fn find_named(name: &str, port: Option<u8>, gid_index: Option<u8>) -> Result<String, Unavailable> {
    let local = "127.0.0.1:1".parse().expect("an address");
    find(local, &[named(name, port)], gid_index).map(|place| place.describe())
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn the_socket_s_address_names_the_device() {
    let _guard = serialize();
    let place = find("127.0.0.1:1".parse().expect("an address"), &[], None).expect("soft0");
    let words = place.describe();
    assert!(words.starts_with("soft0 port 1, GID index ") && words.contains("127.0.0.1"), "{words}");
    let other_family = find("[::1]:1".parse().expect("an address"), &[], None).expect("soft0");
    assert_eq!(other_family.describe(), words);
    let again = find("127.0.0.1:2".parse().expect("an address"), &[], None).expect("soft0");
    assert!(std::sync::Arc::ptr_eq(&place.device, &again.device), "it is opened once");
    let named = find_named("soft0", Some(1), None).expect("soft0");
    assert!(named.starts_with("soft0 port 1, GID index "), "{named}");
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn missing_devices_are_reported() {
    let _guard = serialize();
    let cases = [
        (find_named("mlx5_9", None, None), Cause::DeviceNotFound, "mlx5_9"),
        (find_named("soft0", Some(7), None), Cause::DeviceNotFound, "port 7"),
        (find_named("soft0", None, Some(250)), Cause::NoGid, "250"),
    ];
    for (found, cause, word) in cases {
        let error = found.expect_err("there is no such thing");
        assert_eq!(error.cause, cause, "{}", error.detail);
        assert!(error.detail.contains(word), "{}", error.detail);
    }
    let elsewhere =
        find("192.0.2.77:1".parse().expect("an address"), &[], None).expect_err("nobody's address");
    assert_eq!(elsewhere.cause, Cause::NoGid);
    assert!(elsewhere.detail.contains("192.0.2.77"), "{}", elsewhere.detail);
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn of_several_names_the_one_with_the_address_or_the_first_usable_is_taken() {
    let _guard = serialize();
    let find_among = |local: &str, names: &str| {
        let names = DeviceName::parse_list("devices", names).expect("allowed");
        find(local.parse().expect("an address"), &names, None).map(|place| place.describe())
    };
    let by_address = find_among("127.0.0.1:1", "mlx5_9,soft0:1").expect("soft0");
    assert!(by_address.starts_with("soft0 port 1") && by_address.contains("127.0.0.1"), "{by_address}");
    let usable = find_among("192.0.2.77:1", "mlx5_9,soft0:1").expect("soft0");
    assert!(usable.starts_with("soft0 port 1"), "{usable}");
    let error = find_among("127.0.0.1:1", "soft0:7,mlx5_9").expect_err("none of both exists");
    assert_eq!(error.cause, Cause::DeviceNotFound);
    assert!(error.detail.contains("port 7") && error.detail.contains("`mlx5_9`"), "{}", error.detail);
}

/// The only device of a configuration gives its listener's address.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_single_device_names_the_address_of_a_listener() {
    let _guard = serialize();
    let builder = config().device("soft0:1").port(0);
    let path =
        find("0.0.0.0:0".parse().expect("an address"), &[named("soft0", Some(1))], None).expect("soft0");
    let gid = path.path.gid().and_then(|gid| gid.to_ipv4_mapped()).expect("soft0 prefers an IPv4 address");
    let addresses = builder.build().expect("valid").bind_addrs().expect("known");
    assert_eq!(addresses, [(gid, 0).into()]);
    let error = config().device("soft0:7").bind_configured().map(drop).expect_err("soft0 has no such port");
    let text = error.to_string();
    assert!(
        text.starts_with("the address of device soft0:7 is unknown: ") && text.contains("port 7"),
        "{text}"
    );
}

fn named(name: &str, port: Option<u8>) -> DeviceName {
    DeviceName { name: name.to_owned(), port }
}

/// Checks that both sides fall back to TCP and that no queue pair is left. Returns the reasons of
/// the client and the server.
fn falls_back(here: Builder, there: Builder) -> [crate::handshake::FallbackReason; 2] {
    let (here, there) = (here.build().expect("valid"), there.build().expect("valid"));
    let pools = [pool(), pool()];
    let mut sides = handshakes(Kind::Stream, &here, &there, [&pools[0], &pools[1]]);
    let reasons = run_handshakes(&mut sides).map(|end| end.path.map(drop).expect_err("no RDMA"));
    drop(sides);
    nothing_is_left(pools);
    reasons
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_side_without_the_device_has_both_use_tcp() {
    let _guard = serialize();
    let [ours, theirs] = falls_back(config().device("mlx5_9"), config());
    assert_eq!((ours.side(), ours.cause()), (Which::Local, Cause::DeviceNotFound));
    assert_eq!((theirs.side(), theirs.cause()), (Which::Peer, Cause::DeviceNotFound));
    let [ours, theirs] = falls_back(config(), config().gid_index(Some(250)));
    assert_eq!((ours.side(), ours.cause()), (Which::Peer, Cause::NoGid));
    assert_eq!((theirs.side(), theirs.cause()), (Which::Local, Cause::NoGid));
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_port_that_goes_down_is_noticed_at_once() {
    let _guard = serialize();
    let ask = || find("127.0.0.1:1".parse().expect("an address"), &[], None);
    ask().expect("soft0");
    faults::port_down(0, 1).expect("down");
    assert_eq!(ask().expect_err("it is down").cause, Cause::PortNotActive);
    faults::port_up(0, 1).expect("up");
    ask().expect("soft0");
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_path_on_which_nothing_comes_through_is_not_used() {
    let _guard = serialize();
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors =
        format!("a connection takes up to 4, and the limit is {}", descriptors.expect("limited"));
    for (rule, cause, words) in [
        // The probe gets neither an answer nor an error in time.
        ("delay=20s opcode=send", Cause::SoftProbeTimedOut, ""),
        (
            "status=retry_exc_err opcode=send nth=1",
            Cause::ProbeFailed,
            "this process itself has the peer's number",
        ),
        ("qp_fatal opcode=send nth=1", Cause::ProbeFailed, ""),
        ("errno=ENOMEM call=create_qp", Cause::QueuePairs, "all processes together have "),
        ("errno=EMFILE call=create_comp_channel", Cause::Descriptors, &descriptors),
        ("errno=EINVAL call=modify_qp nth=1", Cause::Connect, ""),
    ] {
        rules(rule);
        let short = || config().probe_timeout(Duration::from_millis(100));
        let reasons = falls_back(short(), short());
        let is_named =
            |reason: &crate::FallbackReason| reason.cause() == cause && reason.detail().contains(words);
        assert!(reasons.iter().any(is_named), "{rule}: {reasons:?}");
        faults::clear();
    }
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn more_than_the_device_has_is_refused_with_the_numbers() {
    let _guard = serialize();
    let [ours, _] = falls_back(config().rx_slots(32_768).slot_size(512), config());
    assert_eq!(ours.cause(), Cause::PoolExhausted);
    assert!(
        ours.detail().contains("32768 receive slots of 512 bytes now, and pool_max is "),
        "{}",
        ours.detail()
    );
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn without_memory_for_the_receives_tcp_is_used() {
    let _guard = serialize();
    let config = config().build().expect("valid");
    let mut small = PoolConfig::default();
    (small.initial, small.prewarm, small.max) = (0, 0, PoolConfig::LEAST_MAX);
    let pools = [pool(), Pool::new(&small).expect("memory")];
    let mut taken = Vec::new();
    taken.extend(std::iter::from_fn(|| pools[1].take(8192)));
    let mut sides = handshakes(Kind::Stream, &config, &config, [&pools[0], &pools[1]]);
    let reasons = run_handshakes(&mut sides).map(|end| end.path.map(drop).expect_err("no RDMA"));
    assert_eq!(reasons[1].cause(), Cause::PoolExhausted, "{reasons:?}");
    drop((sides, taken));
    nothing_is_left(pools);
}

/// Checks that data passes in both directions of a connection whose pool starts empty. Returns the
/// reason if the connection uses TCP.
fn comes_through(max: usize) -> Result<(), crate::handshake::FallbackReason> {
    let wanted = pattern(3 << 20, 1);
    // The process shares pools by configuration, so each maximum gets a separate one.
    let config = config().pool_initial(0).pool_prewarm(0).pool_max(max).build().expect("valid");
    let listener = config.bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("bound");
    let accepting = std::thread::spawn(move || listener.accept().expect("a client").0);
    let mut ends = [config.connect(addr).expect("connected"), accepting.join().expect("accepted")];
    for end in &ends {
        end.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        end.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    }
    for _ in 0..2 {
        let (mut got, [here, there]) = (vec![0; wanted.len()], &mut ends);
        std::thread::scope(|scope| {
            scope.spawn(|| here.write_all(&wanted).expect("written"));
            there.read_exact(&mut got).unwrap_or_else(|error| panic!("{error}: {:?}", there.pool().stats()));
        });
        assert!(got == wanted);
        ends.reverse();
    }
    let reason = ends[0].fallback_reason().cloned();
    if reason.is_some() {
        ends[0].buffer(100_000).expect("memory that needs no device");
    }
    reason.map_or(Ok(()), Err)
}

/// Simulates a process that may lock no memory, or too little to send from.
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn where_the_device_registers_nothing_tcp_goes_on() {
    let _guard = serialize();
    for registered in 0..2 {
        rules(&format!("errno=ENOMEM call=reg_mr from={}", registered + 1));
        let reason = comes_through((60 + 2 * registered) << 20).expect_err("no memory for RDMA");
        assert_eq!(reason.cause(), Cause::LockedMemory, "{reason}");
        assert!(reason.detail().contains("limit"), "{reason}");
        faults::clear();
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts a process")]
fn where_the_device_registers_little_nothing_hangs() {
    for regions in 1..=6 {
        let args = ["fallback::with_few_regions", "--ignored"];
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let events = run_again(command.args(args).env("SOFT_RNIC_LIMITS", format!("max_mr={regions}")));
        assert!(events.contains(" 1 passed"), "{events}");
    }
}

#[test]
#[ignore = "`where_the_device_registers_little_nothing_hangs` runs it in a process of its own"]
fn with_few_regions() {
    let _guard = serialize();
    if let Err(reason) = comes_through(64 << 20) {
        assert_eq!(reason.cause(), Cause::LockedMemory, "{reason}");
    }
}
