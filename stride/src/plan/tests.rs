//! Each rule, and every command line of the project's first announcement.

use super::*;
use crate::cli;

fn plan(flags: &str) -> Result<Plan, PlanError> {
    let words = ["stride-perf", "write"].into_iter().chain(flags.split_whitespace());
    Plan::new(cli::parse(words).unwrap_or_else(|usage| panic!("{flags}: {usage:?}")))
}

fn test(flags: &str) -> TestPlan {
    plan(flags).unwrap_or_else(|error| panic!("{flags}: {error}")).test
}

fn refused(flags: &str) -> String {
    plan(flags).expect_err(flags).to_string()
}

#[test]
fn defaults_are_perftests() {
    let bw = plan("bw").unwrap();
    assert_eq!(bw.role, Role::Server);
    assert_eq!(bw.local, LocalOptions { tcp_port: 18515, ..LocalOptions::default() });
    assert_eq!(bw.test.sizes, Sizes::One { size: 65536 });
    assert_eq!((bw.test.iterations, bw.test.depth(), bw.test.post_list), (5000, 128, 1));
    assert_eq!(bw.test.inline_size, None);
    assert!(bw.warnings.is_empty());

    let lat = test("lat");
    assert_eq!(lat.measure, Measure::Latency(LatencyDefinition::PingPong));
    assert_eq!(lat.sizes, Sizes::One { size: 2 });
    assert_eq!((lat.iterations, lat.depth(), lat.completion_interval()), (1000, 1, 1));
    assert_eq!(test("latency --latency completion").measure, Measure::Latency(LatencyDefinition::Completion));
}

#[test]
fn the_depth_is_at_most_the_iterations() {
    assert_eq!(test("bw -n 50").depth(), 50);
    assert_eq!(test("bw -n 5000000000 -t 4294967295").depth(), u32::MAX);
}

#[test]
fn moderation_follows_the_size() {
    assert_eq!(test("bw -s 8192").completion_interval(), 100);
    assert_eq!(test("bw -s 8193").completion_interval(), 1);
    assert_eq!(test("bw -a").completion_interval(), 100);
    assert_eq!(test("bw -s 65536 -Q 7").completion_interval(), 7);
}

#[test]
fn moderation_is_at_most_the_depth() {
    assert_eq!(test("bw -s 64 -t 16").completion_interval(), 16);
    assert_eq!(test("bw -s 64 -n 20").completion_interval(), 20);
    assert_eq!(test("bw -s 64 -Q 1000").completion_interval(), 128);
}

#[test]
fn moderation_follows_the_post_list() {
    assert_eq!(test("bw -l 64 -n 6400").completion_interval(), 64);
    assert_eq!(test("bw -s 64 -l 64 -n 6400 -Q 16").completion_interval(), 16);
    let text = refused("bw -l 64 -n 6400 -Q 30");
    assert_eq!(text, "-l 64 is not a multiple of -Q 30: give -Q 64 or leave -Q out");
}

#[test]
fn chains_must_come_out_even() {
    assert_eq!(refused("bw -l 64"), "-n 5000 is not a multiple of -l 64: give -n 5056");
    let text = refused("bw -l 200 -n 6400");
    assert!(text.starts_with("-l 200 is above the number of messages under way, -t 128"), "{text}");
    assert!(refused("lat -l 2").contains("limit of a latency test, 1"));
}

#[test]
fn counts_are_not_zero() {
    assert!(refused("bw -s 0").starts_with("-s 0 is below the smallest message, 1 byte"));
    assert!(refused("bw -n 0").starts_with("-n 0 is below the least number of iterations, 5"));
    assert!(refused("bw -n 4").starts_with("-n 4 is below the least number of iterations, 5"));
    assert!(refused("bw -t 0").starts_with("-t 0 is below"));
    assert!(refused("bw -l 0").starts_with("-l 0 is below"));
    assert!(refused("bw -Q 0").starts_with("-Q 0 is below"));
    assert!(refused("bw -a --max-msg-size 1").starts_with("--max-msg-size 1 is below"));
    assert!(refused("bw -i 0").starts_with("-i 0 is outside"));
    assert!(refused("bw -i 256").starts_with("-i 256 is outside"));
}

#[test]
fn flags_without_effect_are_named() {
    let warned = |flags: &str| plan(flags).unwrap().warnings;
    assert!(warned("bw -a -s 64")[0].starts_with("-s 64 has no effect with -a"));
    assert!(warned("bw --max-msg-size 64")[0].starts_with("--max-msg-size 64 has no effect without -a"));
    assert!(warned("lat -Q 5")[0].starts_with("-Q 5 has no effect on latency"));
    assert!(warned("bw -s 1M -Q 5")[0].starts_with("-Q 5 with messages above 8192 bytes"));
    assert!(warned("bw -a -Q 5").is_empty());
}

#[test]
fn a_device_limits_the_plan() {
    let (device, port) = ("rxe0".to_owned(), 1);
    let limits = DeviceLimits { device, port, max_qp_wr: 1000, max_cqe: 900, max_msg_sz: 8 << 20 };
    let refused = |flags: &str| test(flags).check(&limits).expect_err(flags).to_string();
    assert_eq!(test("bw -t 900").check(&limits), Ok(()));
    assert_eq!(test("bw -a").check(&limits), Ok(()));
    assert_eq!(refused("bw -t 1001"), "-t 1001 is above max_qp_wr of rxe0, 1000: give -t 1000 or less");
    assert_eq!(refused("bw -t 901"), "-t 901 is above max_cqe of rxe0, 900: give -t 900 or less");
    assert_eq!(
        refused("bw -s 8388609"),
        "-s 8388609 is above max_msg_sz of rxe0 port 1, 8388608: give -s 8388608 or less"
    );
    assert!(refused("bw -a --max-msg-size 16M").starts_with("--max-msg-size 16777216 is above"));
}

#[test]
fn differences_are_named_with_both_values() {
    let (client, server) = (test("bw -n 1000000 -a"), test("bw -n 100000 -a -Q 1"));
    let lines: Vec<_> = differences(&client, &server).iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "iterations (-n) 1000000 (the server has 100000)",
            "CQ moderation (-Q) the default (the server has 1)",
        ]
    );
    assert!(differences(&client, &client).is_empty());
    assert_eq!(differences(&test("lat"), &test("bw")).len(), 4);
}

#[test]
fn the_announcements_lines_run_as_they_stand() {
    let bw = plan("bw -d mlx5_0 -n 100000 -a --max-msg-size 8388608").unwrap();
    assert_eq!(bw.role, Role::Server);
    assert_eq!(bw.local.device.as_deref(), Some("mlx5_0"));
    assert_eq!((bw.test.iterations, bw.test.sizes), (100_000, Sizes::PowersOfTwo { max: 8 << 20 }));
    let bw = plan("bw -d mlx5_1 127.0.0.1 -n 1000000 -a --max-msg-size 8388608").unwrap();
    assert_eq!(bw.role, Role::Client("127.0.0.1".into()));
    assert_eq!(bw.test.iterations, 1_000_000);
    let maxed = plan("bw -d mlx5_0 -n 102400 -a --max-msg-size 8388608 -l 64 -t 4096").unwrap();
    assert_eq!((maxed.test.post_list, maxed.test.depth(), maxed.test.completion_interval()), (64, 4096, 64));
    let maxed = plan("bw -d mlx5_1 -n 102400 -a --max-msg-size 8388608 127.0.0.1 -l 64 -t 4096").unwrap();
    assert_eq!(maxed.role, Role::Client("127.0.0.1".into()));
    let lat = plan("lat -d mlx5_0 -n 100000 -a --max-msg-size 8388608").unwrap();
    assert_eq!(lat.role, Role::Server);
    let lat = plan("lat -d mlx5_1 -n 100000 -a --max-msg-size 8388608 127.0.0.1").unwrap();
    assert_eq!(lat.role, Role::Client("127.0.0.1".into()));
    assert_eq!((lat.test.iterations, lat.test.sizes), (100_000, Sizes::PowersOfTwo { max: 8 << 20 }));
}

#[test]
fn a_plan_says_what_follows_from_it() {
    assert_eq!(
        test("bw -a -n 50").to_string(),
        "write bw, messages of 2 to 8388608 bytes, 50 iterations, depth 50, post list 1, CQ moderation 50"
    );
    assert!(
        test("lat").to_string().starts_with("write lat (ping-pong), messages of 2 bytes, 1000 iterations")
    );
}

#[test]
fn a_plan_survives_the_wire() {
    for flags in ["bw -a -Q 3", "lat --latency completion -s 4K -I 64", "bw -l 8 -n 80"] {
        let sent = test(flags);
        let text = serde_json::to_string(&sent).unwrap();
        assert_eq!(serde_json::from_str::<TestPlan>(&text).unwrap(), sent, "{text}");
    }
}

#[test]
fn the_kind_of_memory_is_this_sides_own() {
    use sideway::memory::BufferKind;
    let (shared, malloc) = (plan("bw --buffer shared").unwrap(), plan("bw --buffer malloc").unwrap());
    assert_eq!(shared.local.buffer, Some(BufferKind::Shared));
    assert_eq!(malloc.local.buffer, Some(BufferKind::Private));
    assert_eq!(shared.test, malloc.test);
}

#[test]
fn calls_are_perftests_unless_asked_for() {
    assert_eq!(
        (Calls::default_for(0x15b3), Calls::default_for(0xff_ffff)),
        (Calls::Extended, Calls::Classic)
    );
    assert_eq!(plan("bw").unwrap().local.calls, None);
    assert_eq!(plan("lat --calls classic").unwrap().local.calls, Some(Calls::Classic));
    assert_eq!(plan("bw --calls extended").unwrap().local.calls, Some(Calls::Extended));
}

#[test]
fn inline_sizes_are_perftests() {
    assert_eq!(default_inline_size(0x02c9), 220);
    assert_eq!(default_inline_size(0xff_ffff), 0);
}

fn messages(flags: &str) -> Result<Plan, PlanError> {
    let words = ["stride-perf", "msg"].into_iter().chain(flags.split_whitespace());
    Plan::new(cli::parse(words).unwrap_or_else(|usage| panic!("{flags}: {usage:?}")))
}

#[test]
fn the_grid_is_all_of_it_or_what_was_chosen() {
    let cells = |flags: &str| {
        let test = messages(flags).unwrap().test;
        let sizes: Vec<u64> = test.sizes.iter().collect();
        (sizes, test.in_flight().collect::<Vec<_>>())
    };
    let sizes = [128, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];
    assert_eq!(cells("grid"), (sizes.to_vec(), vec![1, 4, 16, 64, 256]));
    assert_eq!(cells("grid --api pool").0, sizes[..5]);
    assert_eq!(cells("grid --max-msg-size 4K").0, sizes[..2]);
    assert_eq!(cells("grid -s 100 -t 7"), (vec![100], vec![7]));
    assert_eq!(cells("grid -a --max-msg-size 16").0, [2, 4, 8, 16]);
    // What has no answers has no number in flight that anything follows from.
    assert_eq!(cells("bw -t 9").1, [9]);
}

#[test]
fn requests_are_as_many_as_were_asked_for_or_fewer_long_ones() {
    let count = |flags: &str, size| messages(flags).unwrap().test.iterations_of(size, 4);
    assert_eq!((count("grid", 128), count("grid", 8 << 20)), (100_000, 128));
    assert_eq!((count("grid -n 5000", 128), count("grid -n 5000", 8 << 20)), (5000, 5000));
    assert_eq!(count("lat -n 5000", 8 << 20), 5000);
}

#[test]
fn the_depth_of_the_grid_counts_and_its_bounds_are_kept() {
    assert!(messages("grid -t 512").unwrap().warnings.is_empty());
    assert!(messages("grid --max-msg-size 1M").unwrap().warnings.is_empty());
    assert!(!messages("bw -t 512").unwrap().warnings.is_empty());
    let refused = |flags| messages(flags).expect_err(flags).to_string();
    assert!(refused("grid --max-msg-size 127").contains("first size of the grid, 128"));
    assert!(refused("grid -t 0").contains("-t 0"));
    assert!(refused("grid --api pool -t 1025").contains("1024"));
    let test = TestPlan { operation: Operation::Write, ..messages("grid").unwrap().test };
    assert_eq!(test.validate(), Err(PlanError::EchoOfWrites));
}
