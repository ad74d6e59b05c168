//! Errors in the command line that need no device to be found.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use test_harness::report_skip;

use crate::common::{Ended, Running, command, run};

/// The error's single line names the value, the limit and the remedy.
#[track_caller]
fn refused(flags: &str, words: &[&str]) {
    let ended = run(flags);
    let line = ended.refused();
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
    for word in words {
        assert!(line.contains(word), "{flags}: no `{word}` in {line}");
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    refused("write bw -s 0", &["-s 0", "1 byte", "give -s 1 or more"]);
    refused("write lat -s 0 127.0.0.1", &["-s 0"]);
    refused("write bw -a --max-msg-size 1", &["--max-msg-size 1", "give --max-msg-size 2 or more"]);
    refused("write bw -s 1T", &["'1T'", "K, M, G"]);
}

#[test]
fn counts_out_of_range_are_refused() {
    refused("write bw -n 0", &["-n 0", "5", "give -n 5 or more"]);
    refused("write lat -n 4", &["-n 4", "5"]);
    refused("write bw -t 0", &["-t 0", "give -t 1 or more"]);
    refused("write bw -Q 0", &["-Q 0"]);
    refused("write bw -l 0", &["-l 0"]);
    refused("write bw -i 0", &["-i 0", "1 to 255"]);
    refused("write bw -p 65536", &["65536", "65535"]);
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    refused("write bw -l 64", &["-n 5000", "-l 64", "give -n 5056"]);
    refused("write bw -l 256 -n 5120", &["-l 256", "-t 128"]);
    refused("write bw -l 8 -n 80 -Q 3", &["-l 8", "-Q 3"]);
    refused("write lat -l 2", &["-l 2", "1", "leave -l out"]);
    refused("write bw --loopback 127.0.0.1", &["--loopback", "[SERVER]"]);
    refused("write bw --latency completion", &["--latency"]);
    refused("write bw one two", &["'two'"]);
}

#[test]
fn flags_of_other_operations_are_refused() {
    refused("atomic bw -s 16", &["-s 16", "8 bytes", "leave it out"]);
    refused("atomic lat -a", &["-a", "8 bytes"]);
    refused("atomic bw --atomic-type xor", &["'xor'", "fetch-add", "compare-swap"]);
    refused("read lat --latency pingpong", &["--latency pingpong", "read", "--latency completion"]);
    refused("read bw -I 8", &["'-I'"]);
    refused("read bw -o 256", &["256", "255"]);
    refused("write bw -r 8", &["-r 8", "takes no receives", "--imm"]);
    refused("send bw -r 0", &["-r 0", "give -r 1 or more"]);
    refused("send lat -q 2", &["-q 2", "1", "leave -q out"]);
    refused("send lat -b", &["-b", "leave -b out"]);
    refused("write bw -q 16385", &["-q 16385", "16384"]);
    refused("write bw -c UD", &["-c UD has no write", "-c UC"]);
    refused("atomic bw -c uc", &["-c UC has no atomic fetch-add", "give -c RC"]);
    refused("send bw -D 0", &["-D 0", "give -D 1 or more"]);
    refused("send bw -D 2 --data-validation", &["-D 2", "--data-validation", "give -n"]);
    refused("send bw -b --reversed", &["-b", "--reversed"]);
    refused("send bw -r 4 --recv-post-list 5", &["--recv-post-list 5", "-r 4"]);
    refused("send bw -c DC", &["'DC'", "RC, UC, UD"]);
}

#[test]
fn loads_that_cannot_be_are_refused() {
    refused("write bw --threads 3 -q 2", &["--threads 3", "-q 2", "give --threads 2 or less"]);
    refused("write bw --threads 257", &["--threads 257", "256"]);
    refused("write bw --threads many", &["'many'", "or auto"]);
    refused("write bw --warmup 2ms", &["'2ms'", "number of messages, or of seconds"]);
    refused("write bw --warmup 5 --perform_warm_up", &["--warmup", "--perform-warm-up"]);
    refused("write bw --rate 0", &["--rate 0", "1 to 1000000000"]);
    refused("write bw --rate 5MB", &["'5MB'", "Gb/s"]);
    refused(
        "write lat --latency pingpong --rate 5",
        &["--latency pingpong", "--rate", "--latency completion"],
    );
    refused("write bw -b --rate 5", &["-b", "--rate", "--reversed"]);
    refused("mix bw --ratio read=100", &["100 % reads", "1 to 99"]);
    refused("mix bw --ratio read=30,write=60", &["100 together"]);
    refused("mix bw --data-validation", &["mix", "--data-validation"]);
    refused("mix lat --latency pingpong", &["--latency pingpong", "completion"]);
    refused("mix bw -c UC", &["-c UC has no mix", "-c RC"]);
    refused("write bw -d a,b --threads 1", &["-d names 2", "--threads 1", "give --threads 2"]);
    refused("write bw -d a,b -i 1", &["-i", "-d a,b", "NAME:PORT"]);
    refused("write bw -d a:0", &["-d a:0", "1 to 255"]);
    refused("write bw -d a,a", &["a twice"]);
    refused("write lat --latency pingpong --clock device", &["--clock device", "--latency pingpong"]);
    refused("read lat --rate 5 --clock device", &["--clock device", "--rate"]);
    refused("write bw --burst-size 5", &["--burst-size", "--rate"]);
}

#[test]
fn ways_that_there_are_not_are_refused() {
    refused("write bw -m 1500", &["-m 1500", "give -m 256, 512, 1024, 2048 or 4096"]);
    refused("send lat -S 16", &["-S 16", "service level", "15", "give -S 15 or less"]);
    refused("read bw --tclass 256", &["--tclass 256", "255"]);
    refused("write bw -u 32", &["-u 32", "timeout of a queue pair, 31"]);
    refused("write bw --retry_count 8", &["--retry-count 8", "7"]);
    refused("write bw -R -T 256", &["-T 256", "255"]);
    refused("write bw -T 8", &["-T 8 without -R", "--tclass 8"]);
    refused("write bw -R -m 512 --tclass 9 -S 1", &["-m 512, -S 1, --tclass 9 and -R do not go together"]);
    refused("send bw -R -c UD", &["-R and -c UD", "give -c RC"]);
    refused("send bw -c UC -u 5 --retry-count 2", &["-u 5, --retry-count 2 and -c UC", "give -c RC"]);
}

#[test]
fn queues_that_there_are_not_are_refused() {
    refused("write lat -e", &["-e and --latency pingpong of write", "--latency completion", "--imm"]);
    refused("send bw -X 1", &["-X 1", "-e"]);
    refused("send bw -a --min-msg-size 16M", &["--min-msg-size 16777216", "8388608"]);
    refused("send bw -a --step-factor 0.5", &["--step-factor 0.5", "1 or more"]);
    refused("send bw -a --step-factor 1", &["--step-factor 1", "--step-addition"]);
    refused("send bw -a --step-addition 1", &["10000", "--step-factor"]);
    refused("send bw -a --step-factor two", &["two", "a number"]);
    refused("send bw --compat iperf", &["iperf", "perftest"]);
    refused("send bw --cqe-poll 0", &["--cqe-poll 0", "give --cqe-poll 1 or more"]);
    refused("write bw --use-srq", &["--use-srq with write", "takes no receives", "--imm"]);
    refused("read lat --use_srq", &["--use-srq with read", "leave --use-srq out"]);
    refused("send bw --use-srq -q 2 --data-validation", &["--use-srq", "-q 2", "--data-validation", "send"]);
    refused("send bw -c XRC -q 2 --data-validation", &["-c XRC", "-q 2", "--data-validation", "send"]);
    refused("write bw -c XRC -R", &["-R and -c XRC", "give -c RC"]);
    refused("send bw --sge 0", &["--sge 0", "give --sge 1 or more"]);
    refused("send bw --sge 65", &["--sge 65", "this program", "64"]);
    refused("atomic bw --sge 2", &["--sge 2 with atomic fetch-add", "leave --sge out"]);
    refused("write lat --sge 3 -I 64", &["--sge 3 and -I 64"]);
    refused("send lat --cqe-poll 16", &["--cqe-poll 16", "1", "measure bw"]);
}

#[test]
fn loads_that_do_not_go_with_ways_or_queues_are_refused() {
    refused("write bw -R --threads 2", &["--threads 2 and -R", "one thread", "leave --threads 2 out, or -R"]);
    refused("write bw -R -d a,b", &["-d, of 2 devices", "and -R", "one device"]);
    refused("write bw -e --rate 5", &["-e and --rate", "leave -e out"]);
    refused("send bw --use-srq -q 4 --threads 2 --data-validation", &["--use-srq", "--data-validation"]);
}

#[test]
fn memory_that_cannot_be_is_refused() {
    refused("write bw --dm --use-cuda", &["--dm", "--use-cuda"]);
    refused("serve --buffer huge --dm", &["--buffer", "--dm"]);
    refused("write lat --use-cuda=1", &["CUDA device 1", "--latency completion", "--imm"]);
    refused(
        "write lat --relaxed-ordering on",
        &["--relaxed-ordering on", "last byte", "--relaxed-ordering auto"],
    );
    refused(
        "write bw --relaxed-ordering on --disable-pcie-relaxed",
        &["--relaxed-ordering", "--disable-pcie-relaxed"],
    );
    refused("write bw --use-cuda=gpu", &["'gpu'", "--use-cuda"]);
}

#[test]
fn messages_that_cannot_be_are_refused() {
    refused("msg bw -s 0", &["-s 0", "1 byte"]);
    refused("msg bw --api pool -s 5M", &["-s 5242880", "1048576", "--api copy"]);
    refused("msg bw --api pool -a --max-msg-size 8M", &["--max-msg-size 8388608", "1048576"]);
    refused("msg bw --api pool -t 1025", &["-t 1025", "1024"]);
    refused("msg lat -s 2000M", &["1073741824"]);
    refused("msg lat -n 4", &["-n 4", "5"]);
    refused("msg lat -i 1", &["-i 1", "-d"]);
    refused("msg bw -l 2", &["-l"]);
    refused("msg bw --transport ib", &["'ib'", "rdma"]);
    // These flags would have no effect, or none that is possible.
    refused("write lat --poll", &["'--poll'"]);
    refused("tcp lat --poll", &["'--poll'"]);
}

#[test]
fn help_and_version_are_on_standard_output() {
    for flags in [
        "--help",
        "write bw --help",
        "write lat -h",
        "send bw -h",
        "read lat -h",
        "atomic bw --help",
        "msg bw -h",
        "msg lat --help",
        "--version",
    ] {
        let ended = run(flags).succeeded();
        assert!(!ended.stdout.is_empty() && ended.stderr.is_empty(), "{ended:#?}");
    }
    for word in ["--max-msg-size", "--buffer", "SIDEWAY_PROVIDER=soft"] {
        assert!(run("write bw --help").stdout.contains(word), "{word}");
    }
    assert!(run("msg lat --help").stdout.contains("Builder::spin"));
    assert_eq!(run("").status.code(), Some(2));
}

#[test]
fn a_missing_library_is_named_with_its_package() {
    let ended = with_libraries(Path::new("/nonexistent"));
    let line = ended.refused();
    for word in ["libibverbs.so.1", "/nonexistent", "libibverbs1"] {
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn a_library_that_is_too_old_is_told_from_a_missing_one() {
    // A library without any function stands for the oldest one.
    let folder = Folder::new("too-old");
    symlink(a_library_without_verbs(), folder.0.join("libibverbs.so.1")).unwrap();
    let ended = with_libraries(&folder.0);
    let line = ended.refused();
    for word in ["libibverbs.so.1", "too old", "ibv_get_device_list", "newer rdma-core"] {
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn an_unknown_provider_is_named() {
    let ended = Running::start(command("write bw").env("SIDEWAY_PROVIDER", "no-such")).end();
    assert!(ended.refused().contains("no-such"), "{ended:#?}");
}

/// A run that falls back to a software device always says so, and one that was asked for a software
/// device never does.
#[test]
fn a_software_device_in_place_of_the_systems_is_noticed_once() {
    let notices = |provider: Option<&str>| {
        let mut command = command("write bw --loopback -n 5 -s 64");
        command.env("RDMA_MUMMY_LIB_DIR", "/nonexistent").env_remove("SIDEWAY_PROVIDER");
        let ended = Running::start(command.envs(provider.map(|name| ("SIDEWAY_PROVIDER", name)))).end();
        let lines = ended.stderr.lines().filter(|line| line.starts_with("notice: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for provider in [None, Some(""), Some("auto")] {
        let [line] = &notices(provider)[..] else { panic!("{provider:?}: {:?}", notices(provider)) };
        for word in ["libibverbs.so.1", "software device", "never of hardware", "SIDEWAY_PROVIDER=system"] {
            assert!(line.contains(word), "{line}");
        }
    }
    for provider in ["system", "soft"] {
        assert!(notices(Some(provider)).is_empty(), "{provider}");
    }
}

#[test]
fn no_device_is_an_error_where_there_is_none() {
    let some = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some());
    if some {
        // The tests in `device` cover the other case.
        return report_skip("no_device_is_an_error_where_there_is_none", "this system has a device");
    }
    for flags in ["write bw", "write bw 127.0.0.1", "write lat --loopback", "write bw -d mlx5_0"] {
        let ended = Running::start(command(flags).env("SIDEWAY_PROVIDER", "system")).end();
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
        let line = ended.refused();
        assert!(line.contains("no RDMA device") || line.contains("cannot load libibverbs"), "{line}");
    }
}

#[track_caller]
fn with_libraries(folder: &Path) -> Ended {
    let mut command = command("write bw --loopback");
    Running::start(command.env("RDMA_MUMMY_LIB_DIR", folder).env("SIDEWAY_PROVIDER", "system")).end()
}

/// The C library, which this process has loaded.
fn a_library_without_verbs() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let mut libraries = paths.filter(|path| path.contains("/libc.") || path.contains("/libc-"));
    libraries.next().expect("the C library is loaded").into()
}

/// A folder that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stride-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
