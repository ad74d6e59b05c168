//! The programs that sleep until an event occurs, each over a separate software device.

use crate::common::{RunningProgram, example, run_with};

const SOFT: (&str, &str) = ("SIDEWAY_PROVIDER", "soft");

#[test]
fn asyncwatch_prints_the_lines_of_c() {
    let faults = ("SOFT_RNIC_FAULTS", "port_down=20ms call=open_device");
    let mut running =
        RunningProgram::start(&example("asyncwatch").unwrap(), &["-d", "soft0"], &[SOFT, faults]).unwrap();
    running.wait_for("told of the port", |stdout| stdout.contains("PORT_ACTIVE")).unwrap();
    running.kill();
    let stdout = running.finish().unwrap().stdout;
    let [first, rest @ ..] = &stdout.lines().collect::<Vec<_>>()[..] else { panic!("{stdout}") };
    let fd = first.strip_prefix("soft0: async event FD ").unwrap_or_else(|| panic!("{first}"));
    fd.parse::<i32>().unwrap();
    assert_eq!(
        rest,
        ["  event_type IBV_EVENT_PORT_ERR (10), port 1", "  event_type IBV_EVENT_PORT_ACTIVE (9), port 1"]
    );
}

#[test]
fn asyncwatch_ends_with_its_device() {
    let faults = ("SOFT_RNIC_FAULTS", "device_fatal call=open_device");
    let output = run_with(&example("asyncwatch").unwrap(), &[], &[SOFT, faults]).unwrap();
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stdout.contains("  event_type IBV_EVENT_DEVICE_FATAL (8), port 0\n"), "{output}");
    assert!(
        output.stderr.contains("error: ibv_get_async_event failed for device soft0: the device is gone"),
        "{output}"
    );
}

#[test]
fn event_loops_end_when_all_is_done() {
    for name in ["event_loop_epoll", "event_loop_mio"] {
        for mode in ["inline", "deferred"] {
            let environment = [SOFT, ("SOFT_RNIC_MODE", mode)];
            let output = run_with(&example(name).unwrap(), &["-q", "5", "-n", "200"], &environment).unwrap();
            let stdout = output.ok().unwrap();
            assert!(stdout.starts_with("5 queue pairs made 200 writes each, in "), "{name}: {stdout}");
        }
    }
}

#[test]
fn event_loops_end_when_the_device_does() {
    let faults = ("SOFT_RNIC_FAULTS", "device_fatal nth=50");
    for name in ["event_loop_epoll", "event_loop_mio"] {
        let output = run_with(&example(name).unwrap(), &[], &[SOFT, faults]).unwrap();
        assert_eq!(output.code, Some(1), "{output}");
    }
}

#[test]
fn timestamps_rise() {
    let output = run_with(&example("timestamps").unwrap(), &["-n", "5"], &[SOFT]).unwrap();
    let stdout = output.ok().unwrap();
    assert!(stdout.starts_with("soft0: a clock of 1000000 kHz, "), "{stdout}");
    let ticks: Vec<u64> =
        stdout.lines().filter_map(|line| line.split('|').next()?.trim().parse().ok()).collect();
    assert!(ticks.len() == 5 && ticks.is_sorted(), "{stdout}");
}

#[test]
fn asyncwatch_names_the_devices_that_there_are() {
    let output = run_with(&example("asyncwatch").unwrap(), &["-d", "soft9"], &[SOFT]).unwrap();
    let line = output.error(2).unwrap();
    assert!(line.contains("soft9") && line.contains("soft0"), "{line}");
}
