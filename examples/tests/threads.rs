//! The programs with many threads, each over separate software devices. They check and print their
//! own results.

use crate::common::{example, run_with};

const SOFT: (&str, &str) = ("SIDEWAY_PROVIDER", "soft");

#[test]
fn no_addition_is_lost_and_no_ticket_drawn_twice() {
    for mode in ["inline", "deferred"] {
        let environment = [SOFT, ("SOFT_RNIC_MODE", mode)];
        let arguments = ["-c", "5", "-n", "300", "-t", "60"];
        let stdout =
            run_with(&example("atomic_counters").unwrap(), &arguments, &environment).unwrap().ok().unwrap();
        assert!(
            stdout.starts_with(
                "5 clients added 300 times each: the counter is at 1500\n300 tickets were drawn, "
            ),
            "{stdout}"
        );
    }
}

#[test]
fn an_atomic_that_fails_ends_the_program() {
    let faults = ("SOFT_RNIC_FAULTS", "device_fatal nth=50");
    let output = run_with(&example("atomic_counters").unwrap(), &[], &[SOFT, faults]).unwrap();
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{output}");
}

#[test]
fn every_deposit_is_answered_once() {
    for mode in ["inline", "deferred"] {
        let environment = [SOFT, ("SOFT_RNIC_MODE", mode)];
        // More workers than processors, a single worker, and the default.
        for (arguments, start) in [
            (
                &["-w", "5", "-p", "4", "-n", "500"][..],
                "5 workers keep 64 accounts: 4 producers made 500 deposits each, ",
            ),
            (
                &["-w", "1", "-p", "2", "-n", "300"],
                "1 workers keep 64 accounts: 2 producers made 300 deposits each, ",
            ),
            (&["-p", "1", "-n", "1"], ""),
        ] {
            let stdout =
                run_with(&example("worker").unwrap(), arguments, &environment).unwrap().ok().unwrap();
            assert!(stdout.starts_with(start) && stdout.contains("each was answered right"), "{stdout}");
        }
    }
}

#[test]
fn workers_end_with_their_device() {
    let faults = ("SOFT_RNIC_FAULTS", "device_fatal nth=100");
    let output = run_with(&example("worker").unwrap(), &["-w", "3"], &[SOFT, faults]).unwrap();
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{output}");
}
