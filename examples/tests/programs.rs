//! The programs without a device or library: one line on stderr, and exit code 2. No test here
//! needs an RDMA device or a library.

use crate::common::{Output, example, run, run_with};

const PROGRAMS: [&str; 10] = [
    "show_gids",
    "ibv_devinfo",
    "rc_pingpong",
    "rc_pingpong_split",
    "uc_pingpong",
    "ud_pingpong",
    "srq_pingpong",
    "xsrq_pingpong",
    "atomic_counters",
    "worker",
];
const PING_PONGS: [&str; 2] = ["rc_pingpong", "rc_pingpong_split"];

/// Runs a program that must use the library but cannot find it.
fn without_library(name: &str, arguments: &[&str]) -> Output {
    without_library_by(name, arguments, "system")
}

fn without_library_by(name: &str, arguments: &[&str], provider: &str) -> Output {
    let environment = [("RDMA_MUMMY_LIB_DIR", "/nonexistent"), ("SIDEWAY_PROVIDER", provider)];
    run_with(&example(name).unwrap(), arguments, &environment).unwrap()
}

#[test]
fn no_library_is_an_error_that_names_what_is_missing() {
    for name in PROGRAMS {
        let line = without_library(name, &[]).error(2).unwrap();
        assert!(line.contains("libibverbs.so.1") && line.contains("/nonexistent"), "{name}: {line}");
    }
}

#[test]
fn programs_of_the_connection_manager_name_what_is_missing() {
    for (name, arguments) in [
        ("rping", &["-s"][..]),
        ("rping", &["-c", "-a", "127.0.0.1"]),
        ("cmtime", &[]),
        ("cmtime", &["-s", "127.0.0.1"]),
        ("many_clients", &[]),
    ] {
        let line = without_library(name, arguments).error(2).unwrap();
        assert!(line.contains("libibverbs.so.1") && line.contains("/nonexistent"), "{name}: {line}");
    }
    for (name, arguments, expected) in [
        ("rping", &[][..], "--server"),
        ("rping", &["-s", "-c", "-a", "127.0.0.1"], "cannot be used with"),
        ("rping", &["-c"], "--address"),
        ("rping", &["-s", "-S", "25"], "25 is not in 26..=65535"),
        ("cmtime", &["-c", "0"], "0 is not in 1.."),
        ("many_clients", &["-n", "0"], "0 is not in 1..=100000"),
    ] {
        let line = without_library(name, arguments).error(2).unwrap();
        assert!(line.contains(expected), "{name} {arguments:?}: {line}");
    }
}

#[test]
fn arguments_are_judged_before_a_library_is_looked_for() {
    for name in PING_PONGS {
        for (arguments, expected) in [
            (&["-s", "0"][..], "0 is not in 1.."),
            (&["-n", "0"], "0 is not in 1.."),
            (&["-m", "1500"], "256, 512, 1024, 2048 or 4096"),
            (&["-o"], "-o (--odp) is not supported"),
            (&["-x"], "unexpected argument '-x' found"),
        ] {
            let line = without_library(name, arguments).error(2).unwrap();
            assert!(line.contains(expected), "{name} {arguments:?}: {line}");
        }
    }
    let line = without_library("ibv_devinfo", &["-i", "0"]).error(2).unwrap();
    assert!(line.contains("0 is not in 1..=255"), "{line}");
}

#[test]
fn a_host_with_a_port_in_it_is_explained() {
    for (name, arguments) in [
        ("rc_pingpong", &["127.0.0.1:7000"][..]),
        ("rping", &["-c", "-a", "127.0.0.1:7000"]),
        ("cmtime", &["-s", "127.0.0.1:7000"]),
    ] {
        let environment = [("SIDEWAY_PROVIDER", "soft")];
        let output = run_with(&example(name).unwrap(), arguments, &environment).unwrap();
        let line = output.error_line(2).unwrap();
        let expected = "; the port is given apart (-p 7000), and the host is 127.0.0.1";
        assert!(line.contains(expected), "{name}: {line}");
    }
}

#[test]
fn a_link_local_address_without_an_interface_is_explained() {
    for (name, arguments) in [
        ("rc_pingpong", &["fe80::1"][..]),
        ("xsrq_pingpong", &["fe80::1"]),
        ("rping", &["-c", "-a", "fe80::1"]),
        ("rping", &["-s", "-a", "fe80::1"]),
        ("cmtime", &["-s", "fe80::1"]),
        ("many_clients", &["fe80::1"]),
        ("liveness", &["client", "[fe80::1]:7000"]),
    ] {
        let environment = [("SIDEWAY_PROVIDER", "soft")];
        let output = run_with(&example(name).unwrap(), arguments, &environment).unwrap();
        let line = output.error_line(2).unwrap();
        let expected = "a link-local address needs the interface that leads there: fe80::1%eth0";
        assert!(line.ends_with(expected), "{name}: {line}");
    }
}

#[test]
fn an_unknown_provider_is_an_error() {
    let environment = [("SIDEWAY_PROVIDER", "nonsense")];
    let output = run_with(&example("show_gids").unwrap(), &[], &environment).unwrap();
    let line = output.error(2).unwrap();
    assert!(line.contains("SIDEWAY_PROVIDER=nonsense"), "{line}");
}

/// The named device does not exist, so that every program ends soon.
#[test]
fn a_software_device_in_place_of_the_systems_is_noticed_once() {
    let notices = |name: &str, provider: &str| {
        let output = without_library_by(name, &["-d", "no-such-device"], provider);
        let lines = output.stderr.lines().filter(|line| line.starts_with("notice: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for name in PROGRAMS {
        // An empty variable counts as unset.
        for provider in ["", "auto"] {
            let [line] = &notices(name, provider)[..] else { panic!("{:?}", notices(name, provider)) };
            for word in ["libibverbs.so.1", "software devices", "never of hardware"] {
                assert!(line.contains(word), "{name}: {line}");
            }
        }
        for provider in ["system", "soft"] {
            assert!(notices(name, provider).is_empty(), "{name}, {provider}");
        }
    }
}

#[test]
fn help_is_on_stdout_and_no_error() {
    for name in PROGRAMS {
        let text = run(&example(name).unwrap(), &["--help"]).unwrap().ok().unwrap();
        assert!(text.contains("Usage: ") && text.contains("--ib-dev"), "{name}: {text}");
    }
}
