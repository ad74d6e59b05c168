//! What programs see of the device outside of the verbs: device files, and libraries with other
//! names.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::pair::free_port;
use crate::place::ProgramRunner;
use crate::process::{LIMIT, on_path};
use crate::{ProgramTest, probe};

/// What a shell and the programs of coreutils find, and what they print.
const LOOKS: [(&str, &str); 14] = [
    (
        "[ -c /dev/infiniband/soft1 ] && [ -r /dev/infiniband/soft1 ] && [ -w /dev/infiniband/soft1 ] && echo yes",
        "yes",
    ),
    ("stat -c '%F %a' /dev/infiniband/soft0", "character special file 666"),
    ("stat -L -c '%F %a' /dev/infiniband/rdma_cm", "character special file 666"),
    ("echo x >/dev/infiniband/soft0 && wc -c </dev/infiniband/soft0", "0"),
    ("ls /dev/infiniband", "rdma_cm\nsoft0\nsoft1"),
    ("ls -l /sys/class/infiniband | wc -l", "3"),
    ("cd /sys/class/infiniband && echo *", "soft0 soft1"),
    ("readlink -f /sys/class/infiniband/soft0/../..", "/sys/devices/virtual"),
    (
        "realpath /sys/class/infiniband/soft1 /dev/infiniband/soft0",
        "/sys/devices/virtual/infiniband/soft1\n/dev/infiniband/soft0",
    ),
    ("cat /sys/class/infiniband/soft1/ports/2/gid_attrs/types/0", "RoCE v2"),
    ("cat /sys/class/infiniband/soft1/ports/2/gids/1", "0000:0000:0000:0000:0000:ffff:7f00:0102"),
    ("cat /sys/class/infiniband/soft0/ports/1/gid_attrs/ndevs/1", "lo"),
    (
        "[ -d /sys/class/infiniband/soft0/device/net/lo ] && cat /sys/class/infiniband_verbs/soft1/ibdev",
        "soft1",
    ),
    (
        "[ ! -e /dev/infiniband/soft2 ] && cat /sys/class/infiniband/soft2/node_type 2>&1 | sed 's/.*: //'",
        "No such file or directory",
    ),
];

const TWO: [&str; 4] = ["--devices", "2", "--ports", "2"];

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    let mut add = |name: &str, programs: &[&'static str], run: fn(&ProgramRunner) -> Result<(), String>| {
        tests.push(ProgramTest::new(name, programs, run).for_each_change());
    };
    add("device files are found by a shell", &["sh", "stat", "realpath"], found_by_a_shell);
    add("device files are found by threads and children", &[], found_by_threads);
    add("device files of two runs are one tree", &["sh"], one_tree);
    add("device files by --print-env", &["sh"], by_print_env);
    add("two runs copy by process_vm", &["ib_write_bw"], |place| by_process_vm(place, &[]));
    add("a program of a renamed libibverbs", &["ibv_devices"], renamed);
    add("a renamed libibverbs by dlopen", &["ibv_devices"], renamed_by_dlopen);
    let mut add = |name: &str, needs: &[&'static str], run: fn(&ProgramRunner) -> Result<(), String>| {
        tests.push(ProgramTest::new(name, needs, run).for_each_change().optional());
    };
    add("no room for device files is a warning", &[MOUNT_NAMESPACE, "ibv_devices"], no_room);
    add("device files in a mount namespace", &[MOUNT_NAMESPACE], |place| in_namespace(place, "mount"));
    add("device files in a user namespace", &[USER_NAMESPACE], |place| in_namespace(place, "user-namespace"));
    add("runs of a fabric share a user namespace", &[USER_NAMESPACE], one_namespace);
    add("two runs in a user namespace copy by process_vm", &[USER_NAMESPACE, "ib_write_bw"], |place| {
        by_process_vm(place, &["--files", "user-namespace"])
    });
}

/// What the system must allow for a test.
const MOUNT_NAMESPACE: &str = "right to make mount namespaces (CAP_SYS_ADMIN)";
const USER_NAMESPACE: &str = "right to make user namespaces";

/// Whether the system allows this, if it is the name of such a right.
pub(crate) fn has_namespace(name: &str) -> Option<bool> {
    let flag = match name {
        MOUNT_NAMESPACE => "-m",
        USER_NAMESPACE => "-Um",
        _ => return None,
    };
    Some(Command::new("unshare").args([flag, "true"]).status().is_ok_and(|status| status.success()))
}

/// Without the preloaded library, as for a static program.
fn in_namespace(place: &ProgramRunner, how: &str) -> Result<(), String> {
    let script = "[ -c /dev/infiniband/soft1 ] && [ -w /dev/infiniband/soft1 ] && [ -w /dev/null ] \
        && [ -d /proc/self/fd ] && [ -e /sys/class/net/lo/ifindex ] \
        && cat /sys/class/infiniband/soft1/ports/2/gid_attrs/types/0 /sys/class/infiniband_verbs/soft1/ibdev";
    let options = [&TWO[..], &["--no-preload", "--files", how]].concat();
    let ended = place.run(&options, "sh", &["-c", script])?;
    if ended.well()? != "RoCE v2\nsoft1\n" || !ended.stderr.is_empty() {
        return Err(format!("not the device: {ended}"));
    }
    // This process sees none of it.
    let seen = Path::new("/dev/infiniband/soft1").exists();
    if seen { Err("the node is outside of the namespace, too".to_owned()) } else { Ok(()) }
}

/// In a namespace in which every folder for the files is read-only.
fn no_room(place: &ProgramRunner) -> Result<(), String> {
    let script = format!(
        "mount -t tmpfs -o ro none /dev/shm && mount -t tmpfs -o ro none /mnt && \
         exec '{}' run --lib-dir '{}' ibv_devices",
        launcher(),
        place.folder().display()
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .envs([("TMPDIR", "/mnt"), ("XDG_RUNTIME_DIR", "/mnt")])
        .output()
        .map_err(|error| error.to_string())?;
    let [said, warned] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    if said.contains("soft0")
        && warned.contains("no device files can be made in /dev/shm, /mnt, /mnt: Read-only")
    {
        Ok(())
    } else {
        Err(format!("no device, or no warning: {said}{warned}"))
    }
}

fn one_namespace(place: &ProgramRunner) -> Result<(), String> {
    const SCRIPT: &str = "readlink /proc/self/ns/user; pwd; [ -c /dev/infiniband/soft0 ] && exec sleep 600";
    let start = |place: &ProgramRunner| {
        place
            .start(&["--files", "user-namespace"], "sh", &["-c", SCRIPT])?
            .wait_until("printed its namespace", |said| said.lines().count() == 2)
    };
    let first = start(place)?;
    let second = start(place)?;
    let other = start(&ProgramRunner::new(crate::INLINE)?)?;
    let own = fs::read_link("/proc/self/ns/user").map_err(|error| error.to_string())?;
    let (first, second, other) = (first.printed(), second.printed(), other.printed());
    if first != second || first == other || first.starts_with(&*own.to_string_lossy()) {
        return Err(format!("{first:?} and {second:?} should be one, {other:?} another"));
    }
    Ok(())
}

fn found_by_a_shell(place: &ProgramRunner) -> Result<(), String> {
    for (script, expected) in LOOKS {
        let ended = place.run(&TWO, "sh", &["-c", script])?;
        if ended.well()?.trim_end() != expected || !ended.stderr.is_empty() {
            return Err(format!("not {expected:?}: {ended}"));
        }
    }
    // Without the library the same script finds nothing, unless the system has a device.
    let ended = place.run(&["--no-preload"], "sh", &["-c", "ls /dev/infiniband/soft0"])?;
    if ended.status.success() { Err(format!("a node without the library: {ended}")) } else { Ok(()) }
}

fn found_by_threads(place: &ProgramRunner) -> Result<(), String> {
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let own = own.to_str().ok_or("a path that is text")?;
    place.run(&[], "env", &[&format!("{}=files", probe::VARIABLE), own])?.says("found by 8 threads")
}

fn one_tree(place: &ProgramRunner) -> Result<(), String> {
    let tree = |options: &[&str]| -> Result<String, String> {
        let ended = place.run(options, "sh", &["-c", "echo $SOFT_RNIC_FILES"])?;
        Ok(ended.well()?.trim_end().to_owned())
    };
    let (first, second, other) = (tree(&[])?, tree(&[])?, tree(&TWO)?);
    if first.is_empty() || first != second || first == other {
        return Err(format!("{first:?} and {second:?} should be one, {other:?} another"));
    }
    // Within a run, a run is the same.
    let inner = format!(
        "'{}' run --lib-dir '{}' sh -c 'echo $LD_PRELOAD $SOFT_RNIC_FILES'",
        launcher(),
        place.folder().display()
    );
    let ended = place.run(&[], "sh", &["-c", &format!("echo $LD_PRELOAD $SOFT_RNIC_FILES; {inner}")])?;
    let lines: Vec<&str> = ended.well()?.lines().collect();
    if lines.len() == 2 && lines[0] == lines[1] { Ok(()) } else { Err(format!("two equal lines: {ended}")) }
}

fn launcher() -> &'static str {
    env!("CARGO_BIN_EXE_soft-rnic")
}

fn by_print_env(place: &ProgramRunner) -> Result<(), String> {
    let folder = place.folder().display();
    let script = format!(
        "eval \"$('{}' run --lib-dir '{folder}' --devices 3 --print-env)\"; ls /sys/class/infiniband",
        launcher()
    );
    let output = Command::new("sh").args(["-c", &script]).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if said == "soft0\nsoft1\nsoft2\n" { Ok(()) } else { Err(format!("{said:?}: {output:?}")) }
}

/// Large writes between two runs go by `process_vm_writev`, which the kernel refuses between user
/// namespaces.
fn by_process_vm(place: &ProgramRunner, options: &[&str]) -> Result<(), String> {
    let port = free_port()?.to_string();
    let flags = ["-d", "soft0", "-x", "0", "-F", "-s", "262144", "--run_infinitely", "-D", "1", "-p", &port];
    let listens = port.parse().map_err(|_| "a port is a number")?;
    let _server = place
        .start(options, "ib_write_bw", &flags)?
        .wait_until("listened", |_| test_harness::is_listening(listens))?;
    let client = place.start(options, "ib_write_bw", &[&flags[..], &["127.0.0.1"]].concat())?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let shown = Command::new(launcher()).args(["status", "--json", "--fabric", place.fabric()]).output();
        let shown = shown.map_err(|error| error.to_string())?;
        let value: Value = serde_json::from_slice(&shown.stdout).map_err(|error| error.to_string())?;
        let processes = value["processes"].as_array().cloned().unwrap_or_default();
        let of_client = processes.iter().find(|process| process["pid"] == client.pid());
        let paths: Vec<&Value> = of_client
            .and_then(|process| process["statistics"]["peers"].as_array())
            .map(|peers| peers.iter().map(|peer| &peer["paths"]).collect())
            .unwrap_or_default();
        let sum = |path: &str| paths.iter().filter_map(|of| of[path]["messages"].as_u64()).sum::<u64>();
        if sum("call") > 0 {
            return Err(format!("a copy by a call: {value:#}"));
        }
        if sum("process_vm") > 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("no copy by process_vm: {value:#}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A folder with a copy of a file of rdma-core, in which the library has another name of the same
/// length, as in a Python wheel.
fn with_renamed(file: &Path, name: &str) -> Result<PathBuf, String> {
    const NAMES: [(&[u8], &[u8]); 2] =
        [(b"libibverbs.so.1\0", b"libibverbs-a.so\0"), (b"librdmacm.so.1\0", b"librdmacm-a.so\0")];
    let mut bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    for (old, new) in NAMES {
        while let Some(at) = bytes.windows(old.len()).position(|window| window == old) {
            bytes[at..at + new.len()].copy_from_slice(new);
        }
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("renamed-{}", std::process::id()));
    let path = folder.join(name);
    let made = fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(file, &path))
        .and_then(|_| fs::write(&path, bytes));
    made.map(|()| path).map_err(|error| format!("{}: {error}", folder.display()))
}

/// The system's library, as the loader finds it for a program.
fn systems_library() -> Result<PathBuf, String> {
    let program = on_path("ibv_devices").ok_or("ibv_devices is there")?;
    let shown = Command::new("ldd").arg(program).output().map_err(|error| format!("ldd: {error}"))?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let line = shown.lines().find_map(|line| line.trim().strip_prefix("libibverbs.so.1 => "));
    let path = line.and_then(|line| line.split_whitespace().next());
    path.map(PathBuf::from).ok_or(format!("no libibverbs.so.1 in {shown}"))
}

fn renamed(place: &ProgramRunner) -> Result<(), String> {
    let library = with_renamed(&systems_library()?, "libibverbs-a.so")?;
    let program = with_renamed(&on_path("ibv_devices").ok_or("ibv_devices is there")?, "ibv_devices")?;
    let folder = library.parent().ok_or("it has a folder")?.display();
    let path = format!("LD_LIBRARY_PATH={folder}");
    let program = program.to_str().ok_or("a path that is text")?;
    // The copy of the library is found, so that the program would start without ours.
    let ended = place.run(&["--no-preload"], "env", &[&path, program])?;
    if ended.stdout.contains("soft0") || ended.stderr.contains("shared libraries") {
        return Err(format!("the program should use the copy: {ended}"));
    }
    place.run(&[], "env", &[&path, program])?.says("soft0")
}

fn renamed_by_dlopen(place: &ProgramRunner) -> Result<(), String> {
    let library = with_renamed(&systems_library()?, "libibverbs-1b2c3d4e.so.1.14.44.0")?;
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let own = own.to_str().ok_or("a path that is text")?;
    let variable = format!("{}={}", probe::VARIABLE, library.display());
    place.run(&TWO, "env", &[&variable, own])?.says("2 devices")
}
