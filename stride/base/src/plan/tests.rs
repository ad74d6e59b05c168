//! Tests of each rule, and of every command line in the project's announcement.

use std::time::Duration;

use super::*;
use crate::cli;
use crate::seconds::Seconds;

fn plan(flags: &str) -> Result<RunPlan, PlanError> {
    plan_of("write", flags)
}

fn plan_of(operation: &str, flags: &str) -> Result<RunPlan, PlanError> {
    let words = ["stride-perf", operation].into_iter().chain(flags.split_whitespace());
    RunPlan::new(cli::parse(words).unwrap_or_else(|usage| panic!("{flags}: {usage:?}")))
}

fn test_of(operation: &str, flags: &str) -> TestPlan {
    plan_of(operation, flags).unwrap_or_else(|error| panic!("{operation} {flags}: {error}")).test
}

fn refused_of(operation: &str, flags: &str) -> String {
    plan_of(operation, flags).expect_err(flags).to_string()
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
    assert_eq!(bw.role, SideRole::Server);
    assert_eq!(bw.local, LocalOptions { tcp_port: 18515, any_size: true, ..LocalOptions::default() });
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

/// Limits of a capable device.
pub(super) fn limits() -> DeviceLimits {
    DeviceLimits {
        device: "mlx5_0".to_owned(),
        port: 1,
        max_qp: 100_000,
        mtu: 4096,
        max_qp_wr: 32768,
        max_cqe: 1 << 22,
        max_msg_sz: 8 << 20,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 8,
        has_atomics: true,
        pkeys: 128,
        has_xrc: true,
        max_sge: 30,
        max_sge_rd: 20,
        num_comp_vectors: 4,
        max_srq: 1000,
        max_srq_wr: 32767,
    }
}

#[test]
fn a_device_limits_the_plan() {
    let (device, port) = ("rxe0".to_owned(), 1);
    let limits = DeviceLimits { max_qp_wr: 1000, max_cqe: 900, device, port, ..limits() };
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
    let found = differences(&client, &server);
    let values: Vec<_> = found.iter().map(|found| (found.name, &*found.client, &*found.server)).collect();
    assert_eq!(
        values,
        [("iterations (-n)", "1000000", "100000"), ("CQ moderation (-Q)", "the default", "1")]
    );
    assert!(differences(&client, &client).is_empty());
    assert_eq!(differences(&test("lat"), &test("bw")).len(), 4);
}

#[test]
fn the_announcements_lines_run_as_they_stand() {
    let bw = plan("bw -d mlx5_0 -n 100000 -a --max-msg-size 8388608").unwrap();
    assert_eq!(bw.role, SideRole::Server);
    assert_eq!(bw.local.device.as_deref(), Some("mlx5_0"));
    assert_eq!((bw.test.iterations, bw.test.sizes), (100_000, Sizes::PowersOfTwo { max: 8 << 20 }));
    let bw = plan("bw -d mlx5_1 127.0.0.1 -n 1000000 -a --max-msg-size 8388608").unwrap();
    assert_eq!(bw.role, SideRole::Client("127.0.0.1".into()));
    assert_eq!(bw.test.iterations, 1_000_000);
    let maxed = plan("bw -d mlx5_0 -n 102400 -a --max-msg-size 8388608 -l 64 -t 4096").unwrap();
    assert_eq!((maxed.test.post_list, maxed.test.depth(), maxed.test.completion_interval()), (64, 4096, 64));
    let maxed = plan("bw -d mlx5_1 -n 102400 -a --max-msg-size 8388608 127.0.0.1 -l 64 -t 4096").unwrap();
    assert_eq!(maxed.role, SideRole::Client("127.0.0.1".into()));
    let lat = plan("lat -d mlx5_0 -n 100000 -a --max-msg-size 8388608").unwrap();
    assert_eq!(lat.role, SideRole::Server);
    let lat = plan("lat -d mlx5_1 -n 100000 -a --max-msg-size 8388608 127.0.0.1").unwrap();
    assert_eq!(lat.role, SideRole::Client("127.0.0.1".into()));
    assert_eq!((lat.test.iterations, lat.test.sizes), (100_000, Sizes::PowersOfTwo { max: 8 << 20 }));
}

#[test]
fn a_plan_says_what_follows_from_it() {
    assert_eq!(
        test("bw -a -n 50").to_string(),
        "write bw over RC, messages of 2 to 8388608 bytes, 50 iterations, depth 50, post list 1, CQ moderation 50"
    );
    assert!(
        test("lat")
            .to_string()
            .starts_with("write lat (ping-pong) over RC, messages of 2 bytes, 1000 iterations")
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
    use crate::memory::MemoryKind;
    use sideway::memory::BufferKind;
    let (shared, malloc) = (plan("bw --buffer shared").unwrap(), plan("bw --buffer malloc").unwrap());
    assert_eq!(shared.local.buffer, Some(MemoryKind::Host(BufferKind::Shared)));
    assert_eq!(malloc.local.buffer, Some(MemoryKind::Host(BufferKind::Private)));
    assert_eq!(shared.test, malloc.test);
    let kind = |flags: &str| plan(flags).unwrap().local.buffer.unwrap();
    for flags in ["bw --use-hugepages", "bw --use_hugepages", "bw --buffer huge"] {
        assert_eq!(kind(flags), MemoryKind::Host(BufferKind::HUGE_2_MIB));
    }
    assert_eq!((kind("bw --buffer dma-buf"), kind("bw --dm")), (MemoryKind::DmaBuf, MemoryKind::Device));
    assert_eq!(
        (kind("bw --use-cuda host"), kind("bw --use_cuda=3")),
        (MemoryKind::Cuda(0), MemoryKind::Cuda(3))
    );
    // A test cannot wait for bytes that the processor cannot see.
    for flags in ["lat --dm", "lat --use-cuda"] {
        assert!(refused(flags).contains("does not see the last byte"), "{flags}");
        assert!(plan(&format!("{flags} --latency completion")).is_ok());
        assert!(plan_of("send", flags).is_ok());
    }
}

#[test]
fn calls_are_perftests_unless_asked_for() {
    assert_eq!(
        (PostingCalls::default_for(0x15b3), PostingCalls::default_for(0xff_ffff)),
        (PostingCalls::Extended, PostingCalls::Classic)
    );
    assert_eq!(plan("bw").unwrap().local.calls, None);
    assert_eq!(plan("lat --calls classic").unwrap().local.calls, Some(PostingCalls::Classic));
    assert_eq!(plan("bw --calls extended").unwrap().local.calls, Some(PostingCalls::Extended));
}

#[test]
fn inline_sizes_are_perftests() {
    let of_mellanox = |operation| default_inline_size(operation, ConnectionType::Rc, 0x02c9);
    assert_eq!(default_inline_size(TestOperation::Send, ConnectionType::Ud, 0x15b3), 188);
    assert_eq!((of_mellanox(TestOperation::Write), of_mellanox(TestOperation::Send)), (220, 236));
    assert_eq!((of_mellanox(TestOperation::WriteImm), of_mellanox(TestOperation::Read)), (220, 0));
    assert_eq!(default_inline_size(TestOperation::Send, ConnectionType::Rc, 0xff_ffff), 0);
}

#[test]
fn each_operation_has_its_own_flags() {
    assert_eq!(test_of("write", "bw").operation, TestOperation::Write);
    for flag in ["--imm", "--write_with_imm"] {
        assert_eq!(test_of("write", &format!("lat {flag} -r 7")).operation, TestOperation::WriteImm);
    }
    assert_eq!(test_of("send", "bw").operation, TestOperation::Send);
    assert_eq!(test_of("send", "bw --send_with_imm").operation, TestOperation::SendImm);
    assert_eq!(test_of("atomic", "bw").operation, TestOperation::FetchAdd);
    for kind in ["--atomic-type compare-swap", "--atomic_type CMP_AND_SWAP", "-A CMP_AND_SWAP"] {
        assert_eq!(test_of("atomic", &format!("bw {kind}")).operation, TestOperation::CompareSwap);
    }
    assert_eq!(test_of("atomic", "lat --atomic_type=FETCH_AND_ADD").operation, TestOperation::FetchAdd);
    for (operation, flags) in
        [("read", "bw -I 8"), ("read", "lat --imm"), ("atomic", "bw -r 4"), ("send", "bw -o 2")]
    {
        let words = format!("stride-perf {operation} {flags}");
        assert!(matches!(cli::parse(words.split_whitespace()), Err(cli::Usage::Wrong(_))), "{words}");
    }
    assert!(refused_of("write", "bw -r 4").contains("-r 4 with write, which takes no receives"));
}

#[test]
fn sends_have_perftests_receives() {
    assert_eq!(test_of("send", "bw").receive_depth(), 512);
    assert_eq!(test_of("send", "bw -n 100").receive_depth(), 100);
    assert_eq!(test_of("send", "lat -r 3").receive_depth(), 3);
    assert_eq!(test_of("write", "bw --imm").receive_depth(), 512);
    assert_eq!((test_of("write", "bw").receive_depth(), test_of("read", "bw").receive_depth()), (0, 0));
    assert!(refused_of("send", "bw -r 0").starts_with("-r 0 is below"));
}

#[test]
fn one_sided_operations_have_one_latency() {
    for operation in ["read", "atomic"] {
        assert_eq!(test_of(operation, "lat").measure, Measure::Latency(LatencyDefinition::Completion));
        let text = refused_of(operation, "lat --latency pingpong");
        assert!(text.contains("the peer's program learns nothing"), "{text}");
    }
}

#[test]
fn atomics_have_one_size() {
    assert_eq!(test_of("atomic", "bw -s 8").sizes, Sizes::One { size: 8 });
    assert!(
        refused_of("atomic", "bw -s 16").starts_with("-s 16 with atomic operations, which are of 8 bytes")
    );
    assert!(refused_of("atomic", "lat -a").starts_with("-a with atomic operations"));
    let limits = DeviceLimits { has_atomics: false, ..limits() };
    let text = test_of("atomic", "bw").check(&limits).unwrap_err().to_string();
    assert!(text.contains("mlx5_0 has no atomic operations"), "{text}");
}

#[test]
fn reads_under_way_are_what_both_devices_can() {
    let of = |flags: &str, answered| test_of("read", flags).outstanding(&limits(), answered);
    assert_eq!((of("bw", 16), of("bw", 4), of("bw -o 2", 16), of("bw", 0)), (8, 4, 2, 1));
    assert_eq!((test_of("read", "bw").answered(&limits()), test("bw").answered(&limits())), (16, 1));
    assert_eq!(test("bw").outstanding(&limits(), 16), 1);
    let text = test_of("read", "bw -o 9").check(&limits()).unwrap_err().to_string();
    assert_eq!(text, "-o 9 is above max_qp_init_rd_atom of mlx5_0, 8: give -o 8 or less");
    assert!(refused_of("read", "bw -o 0").starts_with("-o 0 is below"));
}

#[test]
fn many_queue_pairs_share_the_completion_queue() {
    assert_eq!(test("bw -q 16").queue_pairs, 16);
    assert!(refused("bw -q 0").starts_with("-q 0 is below"));
    assert!(refused("bw -q 16385").contains("the most queue pairs of a test, 16384"));
    assert!(refused("lat -q 2").contains("the limit of a latency test, 1"));
    let limits = DeviceLimits { max_qp: 100, max_cqe: 1000, ..limits() };
    let refused = |test: TestPlan| test.check(&limits).unwrap_err().to_string();
    assert_eq!(refused(test("bw -q 101")), "-q 101 is above max_qp of mlx5_0, 100: give -q 100 or less");
    assert_eq!(
        refused(test("bw -q 10")),
        "-t 128, 1280 with all queue pairs, is above max_cqe of mlx5_0, 1000: give -t 100 or less"
    );
    assert!(
        refused(test_of("send", "bw -q 2 -t 8"))
            .starts_with("-r 512, 1024 with all queue pairs, is above max_cqe")
    );
}

#[test]
fn both_ways_is_of_bandwidth() {
    assert!(test("bw -b").bidirectional);
    assert!(test("bw -b -q 2").to_string().ends_with(", 2 queue pairs, bidirectional"));
    assert!(refused("lat -b").starts_with("-b has no meaning in a latency test"));
}

#[test]
fn each_connection_has_its_operations() {
    for line in [
        "write bw -c UC",
        "write lat -c uc --imm",
        "send bw -c UC",
        "send lat -c UD",
        "send bw --imm -c UD -s 64",
    ] {
        let (operation, flags) = line.split_once(' ').unwrap();
        assert!(!test_of(operation, flags).connection.is_reliable(), "{line}");
    }
    assert_eq!(refused_of("write", "bw -c UD"), "-c UD has no write: give -c RC, or -c UC");
    assert_eq!(refused_of("write", "bw --imm -c UD"), "-c UD has no write-imm: give -c RC, or -c UC");
    assert_eq!(refused_of("read", "bw -c UC"), "-c UC has no read: give -c RC");
    assert_eq!(refused_of("atomic", "lat -c UD"), "-c UD has no atomic fetch-add: give -c RC");
}

#[test]
fn datagrams_are_packets() {
    let of = |flags: &str| plan_of("send", flags).unwrap();
    let fitted = |flags: &str| {
        let plan = of(flags);
        plan.test.fitted(&limits(), plan.local.any_size)
    };
    assert_eq!(fitted("bw -c UD").sizes, Sizes::One { size: 4096 });
    assert_eq!(fitted("lat -c UD").sizes, Sizes::One { size: 2 });
    assert_eq!(fitted("bw -c UD -a").sizes, Sizes::PowersOfTwo { max: 4096 });
    assert_eq!(fitted("bw -c UC").sizes, Sizes::One { size: 65536 });
    let text = fitted("bw -c UD -s 4097").check(&limits()).unwrap_err().to_string();
    assert_eq!(
        text,
        "-s 4097 is above the MTU of mlx5_0 port 1, 4096, which no datagram exceeds: give -s 4096 or less"
    );
    let text = fitted("bw -c UD -a --max-msg-size 8K").check(&limits()).unwrap_err().to_string();
    assert!(text.starts_with("--max-msg-size 8192 is above the MTU"), "{text}");
}

#[test]
fn receives_of_what_may_be_lost_are_many() {
    assert_eq!(test_of("send", "bw -c UD").receive_depth(), 1000);
    assert_eq!(test_of("send", "bw -c UC -n 1000000").receive_depth(), 16000);
    assert_eq!(test_of("send", "bw -c UC -r 9").receive_depth(), 9);
    let limits = DeviceLimits { max_qp_wr: 4000, ..limits() };
    assert_eq!(test_of("send", "bw -c UC -n 1000000").fitted(&limits, true).receive_depth(), 4000);
}

#[test]
fn a_test_may_take_a_time() {
    let test = test("bw -D 10 -s 64 -l 64");
    assert_eq!(
        (test.duration, test.depth(), test.completion_interval()),
        (Some(Seconds::whole(10)), 128, 64)
    );
    assert!(test.to_string().contains("messages of 64 bytes, 10 s, depth 128"), "{test}");
    assert_eq!(test_of("send", "lat -D 1").receive_depth(), 512);
    assert!(refused("bw -D 0").starts_with("-D 0 leaves no time"));
    assert!(
        refused("bw -D 3 --data-validation").starts_with("-D 3 and --data-validation do not go together")
    );
    assert!(plan("bw -D 3 -n 7").unwrap().warnings[0].starts_with("-n 7 has no effect with -D 3"));
}

#[test]
fn a_reversed_test_has_other_parts() {
    let parts = |flags: &str, is_client| {
        let SideTasks { measures, serves } = test(flags).parts(is_client);
        (measures, serves)
    };
    assert_eq!((parts("bw", true), parts("bw", false)), ((true, false), (false, true)));
    assert_eq!(
        (parts("lat --reversed", true), parts("bw --reversed", false)),
        ((false, true), (true, false))
    );
    assert_eq!((parts("bw -b", true), parts("bw -b", false)), ((true, true), (true, true)));
    assert!(refused("bw -b --reversed").starts_with("-b and --reversed do not go together"));
}

#[test]
fn lists_of_receives_fit_the_queue() {
    assert_eq!(test_of("send", "bw --recv-post-list 16").recv_post_list, 16);
    assert_eq!(test_of("write", "bw --imm --recv_post_list 512").recv_post_list, 512);
    assert!(refused_of("send", "bw --recv-post-list 0").starts_with("--recv-post-list 0 is below"));
    let text = refused_of("send", "bw -r 8 --recv-post-list 9");
    assert!(text.starts_with("--recv-post-list 9 is above the receives posted at a time, -r 8"), "{text}");
}

fn messages(flags: &str) -> Result<RunPlan, PlanError> {
    let words = ["stride-perf", "msg"].into_iter().chain(flags.split_whitespace());
    RunPlan::new(cli::parse(words).unwrap_or_else(|usage| panic!("{flags}: {usage:?}")))
}

#[test]
fn the_grid_is_all_of_it_or_what_was_chosen() {
    let cells = |flags: &str| {
        let test = messages(flags).unwrap().test;
        let sizes: Vec<u64> = test.sizes.iter().collect();
        let cells: Vec<TestPoint> = test.cells().collect();
        let in_flight: Vec<_> =
            cells.iter().take_while(|point| point.size == sizes[0]).map(|point| point.in_flight).collect();
        assert_eq!(cells.len(), sizes.len() * in_flight.len());
        (sizes, in_flight)
    };
    let sizes = [128, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];
    assert_eq!(cells("grid"), (sizes.to_vec(), [1, 4, 16, 64, 256].map(Some).to_vec()));
    assert_eq!(cells("grid --api pool").0, sizes[..5]);
    assert_eq!(cells("grid --max-msg-size 4K").0, sizes[..2]);
    assert_eq!(cells("grid -s 100 -t 7"), (vec![100], vec![Some(7)]));
    assert_eq!(cells("grid -a --max-msg-size 16").0, [2, 4, 8, 16]);
    // Tests without answers have no number in flight.
    assert_eq!(cells("bw -t 9").1, [None]);
}

#[test]
fn each_side_polls_for_itself() {
    for measure in ["bw", "lat", "grid"] {
        let [asleep, polling] =
            ["", " --poll"].map(|flag| messages(&format!("{measure} --transport rdma{flag}")).unwrap());
        assert!(!asleep.local.poll && polling.local.poll, "{measure}");
        assert!(polling.warnings.is_empty(), "{measure}");
        // The option stays on this side.
        assert_eq!(asleep.test, polling.test);
    }
    let warnings = messages("lat --transport tcp --poll").unwrap().warnings;
    assert_eq!(warnings, ["--poll has no effect with --transport tcp: leave it out"]);
}

#[test]
fn a_cork_is_for_bandwidth_and_the_client_alone() {
    let [plain, corked] = ["bw", "bw --cork"].map(|flags| messages(flags).unwrap());
    assert!(!plain.local.cork && corked.local.cork && corked.warnings.is_empty());
    assert_eq!(plain.test, corked.test);
    for flags in ["lat --cork", "grid --cork", "bw --api pool --cork"] {
        let RunPlan { local, warnings, .. } = messages(flags).unwrap();
        assert!(!local.cork, "nothing says that it is corked: {flags}");
        assert!(warnings.iter().any(|line| line.starts_with("--cork has no effect on")), "{flags}");
    }
}

#[test]
fn the_server_of_a_mux_delays_its_answers() {
    let of = |flags: &str| messages(&format!("grid --api mux {flags}")).unwrap();
    let (plain, delayed) = (of(""), of("--delay-us 7"));
    assert_eq!((plain.local.delay, delayed.local.delay), (Duration::ZERO, Duration::from_micros(7)));
    assert_eq!(plain.test, delayed.test);
    assert!(delayed.warnings.is_empty() && of("--loopback --delay-us 7").warnings.is_empty());
    assert_eq!(
        of("--delay-us 7 server").warnings,
        ["--delay-us 7 has no effect on a client: give it to the server"]
    );
}

#[test]
fn requests_are_as_many_as_were_asked_for_or_fewer_long_ones() {
    let count = |flags: &str, size| {
        let test = messages(flags).unwrap().test;
        let in_flight = matches!(test.measure, Measure::Echo(_)).then_some(4);
        test.messages_of(TestPoint { size, in_flight })
    };
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
    assert!(refused("grid --api mux -t 1025").contains("give -t 1024 or less"));
    assert!(refused("bw --api mux").contains("use `msg grid`, or --api copy"));
    assert!(refused("lat --api mux").contains("use `msg grid`, or --api copy"));
    assert!(refused("grid --delay-us 7").contains("--delay-us 7 needs --api mux"));
    // A peer may send a plan that no command line produces.
    let grid = messages("grid").unwrap().test;
    for operation in [TestOperation::Write, TestOperation::Send, TestOperation::Read, TestOperation::FetchAdd]
    {
        let test = TestPlan { operation, ..grid.clone() };
        assert_eq!(test.validate(), Err(PlanError::EchoOfPairs { operation }));
    }
    assert_eq!(
        TestPlan { queue_pairs: 2, ..grid.clone() }.validate(),
        Err(PlanError::QueuePairsInLatency { given: 2, limit: 1 })
    );
    assert_eq!(TestPlan { bidirectional: true, ..grid }.validate(), Err(PlanError::BidirectionalLatency));
}
