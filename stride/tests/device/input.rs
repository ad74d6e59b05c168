//! Errors in the command line that need a device to be found.

use std::path::Path;
use std::process::Command;

use crate::common::{Running, command, run};
use crate::harness::{Device, Outcome, Test};

pub(crate) const TESTS: &[Test] = &[
    ("an_unknown_device_is_refused_with_those_known", an_unknown_device_is_refused_with_those_known),
    ("a_port_that_is_not_there_is_refused", a_port_that_is_not_there_is_refused),
    ("a_port_that_is_down_is_refused", a_port_that_is_down_is_refused),
    ("gid_indices_outside_the_table_are_refused", gid_indices_outside_the_table_are_refused),
    ("an_empty_gid_is_refused", an_empty_gid_is_refused),
    ("depths_above_the_devices_are_refused", depths_above_the_devices_are_refused),
    ("sizes_above_the_ports_are_refused", sizes_above_the_ports_are_refused),
    ("inline_sizes_above_the_devices_are_refused", inline_sizes_above_the_devices_are_refused),
    ("the_memory_lock_limit_is_named", the_memory_lock_limit_is_named),
    ("a_client_is_told_why_its_test_is_refused", a_client_is_told_why_its_test_is_refused),
];

/// The error's single line names the value, the limit and the remedy.
#[track_caller]
fn refused(flags: &str, words: &[&str]) {
    let ended = run(flags);
    let line = ended.refused();
    for word in words {
        assert!(line.contains(word), "{flags}: no `{word}` in {line}");
    }
}

fn an_unknown_device_is_refused_with_those_known(device: &Device) -> Outcome {
    for role in ["", "--loopback", "127.0.0.1"] {
        let mut words = vec!["no_such_device"];
        words.extend(device.known.iter().map(String::as_str));
        refused(&format!("write bw -d no_such_device {role}"), &words);
    }
    Outcome::Ran
}

fn a_port_that_is_not_there_is_refused(device: &Device) -> Outcome {
    refused(&device.flags("write bw --loopback -i 200"), &["-i 200", &device.name, "ports"]);
    Outcome::Ran
}

fn a_port_that_is_down_is_refused(_: &Device) -> Outcome {
    if std::env::var_os("SOFTROCE_OUT").is_none() {
        return Outcome::Skipped("only in a guest may a test make a device of its own");
    }
    let script = "ip link add down0 type veth peer name down1 && rdma link add rxedown type rxe netdev down0";
    if !Command::new("sh").args(["-c", script]).status().is_ok_and(|status| status.success()) {
        return Outcome::Skipped("a device whose port is down cannot be made");
    }
    let ended = run("write bw --loopback -d rxedown");
    let _ = Command::new("ip").args(["link", "del", "down0"]).status();
    let line = ended.refused();
    for word in ["port 1 of rxedown", "not active", "ip link set"] {
        assert!(line.contains(word), "{line}");
    }
    Outcome::Ran
}

fn gid_indices_outside_the_table_are_refused(device: &Device) -> Outcome {
    let length = device.gid_table_length;
    for index in [length, 256, 100_000] {
        if index >= length {
            let last = (length - 1).min(255).to_string();
            let flags = device.flags(&format!("write bw --loopback -x {index}"));
            refused(&flags, &[&index.to_string(), &last, &device.name]);
        }
    }
    Outcome::Ran
}

fn an_empty_gid_is_refused(device: &Device) -> Outcome {
    let Some(index) = (0..device.gid_table_length.min(256)).find(|index| !device.gid_indices.contains(index))
    else {
        return Outcome::Skipped("the port has no empty GID");
    };
    refused(
        &device.flags(&format!("write bw --loopback -x {index}")),
        &[&format!("GID index {index}"), "is empty", "show_gids"],
    );
    Outcome::Ran
}

fn depths_above_the_devices_are_refused(device: &Device) -> Outcome {
    let limit = device.max_qp_wr.min(device.max_cqe);
    let name = if device.max_qp_wr <= device.max_cqe { "max_qp_wr" } else { "max_cqe" };
    for depth in [limit + 1, u32::MAX] {
        let flags = device.flags(&format!("write bw --loopback -n 5000000000 -t {depth}"));
        let ended = run(&flags);
        let line = ended.refused();
        assert!(line.contains(&format!("-t {depth}")) && line.contains("give -t"), "{line}");
        if depth == limit + 1 {
            assert!(line.contains(name) && line.contains(&limit.to_string()), "{line}");
        }
    }
    Outcome::Ran
}

fn sizes_above_the_ports_are_refused(device: &Device) -> Outcome {
    let limit = device.max_msg_sz.to_string();
    let above = device.max_msg_sz + 1;
    refused(
        &device.flags(&format!("write bw --loopback -s {above}")),
        &[&format!("-s {above}"), "max_msg_sz", &limit, &format!("give -s {limit}")],
    );
    refused(&device.flags("send bw -e -X 70000"), &["-X 70000", "num_comp_vectors", "give -X"]);
    let above = device.max_msg_sz.next_power_of_two() * 2;
    refused(&device.flags(&format!("write lat -a --max-msg-size {above}")), &["--max-msg-size", &limit]);
    Outcome::Ran
}

fn inline_sizes_above_the_devices_are_refused(device: &Device) -> Outcome {
    refused(&device.flags("write bw --loopback -n 5 -I 1000000000"), &["1000000000", &device.name, "-I 0"]);
    Outcome::Ran
}

fn the_memory_lock_limit_is_named(device: &Device) -> Outcome {
    if device.is_soft {
        return Outcome::Skipped("a software device locks no memory");
    }
    // Root may exceed the limit unless it drops the capability.
    let setpriv = "setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock";
    let works = format!("{setpriv} true");
    if !Command::new("sh").args(["-c", &works]).status().is_ok_and(|status| status.success()) {
        return Outcome::Skipped("setpriv, or the right to use it, is missing");
    }
    let program = command("");
    let program = Path::new(program.get_program()).display();
    let flags = device.flags("write bw --loopback -n 5 -s 4M");
    let script = format!("ulimit -l 64 && exec {setpriv} '{program}' {flags}");
    let ended = Running::start(Command::new("sh").args(["-c", &script])).end();
    let line = ended.refused();
    for word in ["RLIMIT_MEMLOCK", "65536", "8388608", "ulimit -l"] {
        assert!(line.contains(word), "{line}");
    }
    Outcome::Ran
}

/// A server validates the plan of its client, and goes on waiting.
fn a_client_is_told_why_its_test_is_refused(device: &Device) -> Outcome {
    let mut server = Running::start(&mut command(&device.flags("write bw -p 0")));
    let waiting = server.await_line("waiting for a client on TCP port");
    let port: u16 = waiting.rsplit(' ').next().unwrap().parse().unwrap();
    let reason = crate::peers::request_impossible_test(port);
    assert!(reason.contains("-n 1 is below"), "{reason}");
    server.await_line("-n 1 is below");
    run(&device.flags(&format!("write bw -n 5 -s 64 127.0.0.1 -p {port}"))).succeeded();
    server.end().succeeded();
    Outcome::Ran
}
