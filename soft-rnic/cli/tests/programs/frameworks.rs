//! Programs and libraries that other projects build on verbs, unmodified: UCX, libfabric, MPI, NIXL,
//! Mooncake, fio, qperf, QEMU. `.ci/run programs` installs their packages.

use std::env;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::ProgramTest;
use crate::pair::free_port;
use crate::place::ProgramRunner;
use crate::process::{LIMIT, ProgramOutcome, RunningProgram};

/// Names the Python program that has the wheels of NIXL and Mooncake.
const PYTHON: &str = "SOFT_RNIC_PYTHON";

/// The variable by which UCX uses the device alone.
const UCX: [&str; 1] = ["UCX_NET_DEVICES=soft0:1"];

/// Tests of `ucx_perftest`: transports, arguments.
const UCX_TESTS: [(&str, &str); 7] = [
    ("rc,ud", "-t tag_lat -s 65536 -n 300"),
    ("rc,ud", "-t tag_bw -s 1000 -n 300"),
    ("rc,ud", "-t ucp_put_bw -s 65536 -n 300"),
    ("rc,ud", "-t ucp_get -s 65536 -n 300"),
    ("ud,self", "-t tag_bw -s 65536 -n 100"),
    ("rc", "-d soft0:1 -x rc_verbs -t put_lat -D zcopy -n 300"),
    ("ud", "-d soft0:1 -x ud_verbs -t am_lat -n 300"),
];

/// Tests of `fi_pingpong`: provider, type of endpoint, flags.
const PING_PONGS: [(&str, &str, &[&str]); 3] = [
    ("verbs", "msg", &["-d", "soft0"]),
    ("verbs", "dgram", &["-d", "soft0-dgram"]),
    ("verbs;ofi_rxm", "rdm", &[]),
];

/// The addresses with which each runs. The test is skipped where the host has none.
const ADDRESSES: [HostAddress; 4] =
    [HostAddress::LoopbackV4, HostAddress::OwnV4, HostAddress::LoopbackV6, HostAddress::OwnV6];

/// An address of this host, by its name in [`ProgramTest`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostAddress {
    LoopbackV4,
    /// One that programs elsewhere could use.
    OwnV4,
    LoopbackV6,
    OwnV6,
}

impl HostAddress {
    const fn name(self) -> &'static str {
        match self {
            Self::LoopbackV4 => "127.0.0.1",
            Self::OwnV4 => "own IPv4 address",
            Self::LoopbackV6 => "::1",
            Self::OwnV6 => "own IPv6 address",
        }
    }

    fn find(self) -> Option<IpAddr> {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        interfaces
            .into_iter()
            .filter(|interface| !interface.is_link_local())
            .map(|interface| interface.ip())
            .find(|address| match self {
                Self::LoopbackV4 => *address == Ipv4Addr::LOCALHOST,
                Self::LoopbackV6 => *address == Ipv6Addr::LOCALHOST,
                Self::OwnV4 | Self::OwnV6 => address.is_ipv6() == self.is_v6() && !address.is_loopback(),
            })
    }

    const fn is_v6(self) -> bool {
        matches!(self, Self::LoopbackV6 | Self::OwnV6)
    }
}

/// Whether this host has the address; `None` if `name` is no address.
pub(crate) fn has_address(name: &str) -> Option<bool> {
    let address = ADDRESSES.into_iter().find(|address| address.name() == name)?;
    Some(address.find().is_some())
}

/// qperf's tests of reliable connections, which can connect by rdma_cm.
const QPERF: [&str; 12] = [
    "rc_lat",
    "rc_bw",
    "rc_bi_bw",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// Its other tests, which address a peer by a LID. (The distribution's qperf has no XRC.)
const QPERF_BY_LID: [&str; 9] = [
    "uc_lat",
    "uc_bw",
    "uc_bi_bw",
    "uc_rdma_write_bw",
    "uc_rdma_write_lat",
    "uc_rdma_write_poll_lat",
    "ud_lat",
    "ud_bw",
    "ud_bi_bw",
];

pub(crate) fn add(tests: &mut Vec<ProgramTest>) {
    let mut add = |test: ProgramTest| tests.push(test.of_other_packages());
    add(ProgramTest::new("ucx_info lists soft0", &["ucx_info"], lists_soft0));
    for (transports, arguments) in UCX_TESTS {
        let name = format!("ucx_perftest {transports} {arguments}");
        add(ProgramTest::new(name, &["ucx_perftest"], move |place| ucx(place, transports, arguments)));
    }
    for (provider, kind, flags) in PING_PONGS {
        for address in ADDRESSES {
            let name = format!("fi_pingpong {provider} {kind} {}", address.name());
            add(ProgramTest::new(name, &["fi_pingpong", address.name()], move |place| {
                let family: &[&str] = if address.is_v6() { &["-6"] } else { &[] };
                ping_pong(place, &[&["-p", provider, "-e", kind], flags, family].concat(), address)
            }));
        }
    }
    // `fi_pingpong` uses its address for TCP alone, and asks the device for another.
    for address in [HostAddress::LoopbackV4, HostAddress::OwnV4, HostAddress::OwnV6] {
        let name = format!("fi_info finds {}", address.name());
        add(ProgramTest::new(name, &["fi_info", address.name()], move |place| finds(place, address)));
    }
    for (way, run) in [
        ("ucx", &["--mca", "pml", "ucx"][..]),
        (
            "libfabric",
            &[
                "--mca",
                "pml",
                "cm",
                "--mca",
                "mtl",
                "ofi",
                "--mca",
                "mtl_ofi_provider_include",
                "verbs;ofi_rxm",
            ],
        ),
    ] {
        add(ProgramTest::new(format!("OpenMPI over {way}"), &["mpirun.openmpi", "python3"], move |place| {
            let flags =
                [&["-np", "2", "--oversubscribe", "--allow-run-as-root", "--mca", "btl", "^openib"], run]
                    .concat();
            two_ranks(place, "mpirun.openmpi", &flags, "openmpi")
        }));
    }
    add(ProgramTest::new("MPICH over ucx", &["mpiexec.mpich", "python3"], |place| {
        two_ranks(place, "mpiexec.mpich", &["-n", "2"], "mpich")
    }));
    for (verb, size, depths) in
        [("write", "4m", ["8", "8"]), ("read", "4m", ["8", "8"]), ("send", "1m", ["16", "4"])]
    {
        add(ProgramTest::new(format!("fio {verb}"), &["fio"], move |place| fio(place, verb, size, depths)));
    }
    for test in QPERF {
        add(ProgramTest::new(format!("qperf {test} by rdma_cm"), &["qperf"], move |place| {
            qperf(place, &[], &["-cm", "1"], test)
        }));
    }
    for test in QPERF.into_iter().chain(QPERF_BY_LID) {
        add(ProgramTest::new(format!("qperf {test} by LID"), &["qperf"], move |place| {
            qperf(place, &["--link", "ib"], &[], test)
        }));
    }
    add(ProgramTest::new("ib_send_bw to a multicast group", &["ib_send_bw"], multicast));
    add(ProgramTest::new("QEMU migrates by rdma", &["qemu-system-x86_64"], migrate));
    add(ProgramTest::new("NIXL, two agents", &[PYTHON], |place| {
        let variables = ["UCX_TLS=rc,ud,self", "UCX_NET_DEVICES=soft0:1", "UCX_IB_GID_INDEX=1"];
        let ended = by_wheel(place, &variables, "two_agents.py")?;
        ended.says("write: DONE, equal bytes: True")
    }));
    add(ProgramTest::new("Mooncake, two engines", &[PYTHON], |place| {
        let ended = by_wheel(place, &[], "two_engines.py")?;
        ended.says("write: 0, equal bytes: True")?;
        let log = "installTransport, type=rdma";
        if ended.stderr.contains(log) { Ok(()) } else { Err(format!("{log:?} is missing: {ended}")) }
    }));
}

/// Whether the Python program with the wheels exists; `None` if `name` is another program.
pub(crate) fn has_python(name: &str) -> Option<bool> {
    (name == PYTHON).then(|| env::var_os(PYTHON).is_some_and(|python| Path::new(&python).is_file()))
}

/// The package to install for a program of these tests.
pub(crate) fn package(program: &str) -> Option<&'static str> {
    let packages = [
        ("ucx_", "ucx-utils"),
        ("fi_", "libfabric-bin"),
        ("mpirun.openmpi", "openmpi-bin"),
        ("mpiexec.mpich", "mpich"),
        ("python3", "python3"),
        ("fio", "fio"),
        ("qperf", "qperf"),
        ("qemu", "qemu-system-x86"),
        (PYTHON, "wheels nixl-cu12, nixl, mooncake-transfer-engine-non-cuda, numpy"),
    ];
    packages.iter().find(|(prefix, _)| program.starts_with(prefix)).map(|(_, package)| *package)
}

/// Starts a program with further environment variables.
fn start(
    place: &ProgramRunner,
    variables: &[&str],
    program: &str,
    arguments: &[&str],
) -> Result<RunningProgram, String> {
    place.start(&[], "env", &[variables, &[program], arguments].concat())
}

fn lists_soft0(place: &ProgramRunner) -> Result<(), String> {
    let ended = place.run(&[], "ucx_info", &["-d"])?;
    ended.says("Transport: rc_verbs")?;
    ended.says("Transport: ud_verbs")?;
    ended.says("Device: soft0:1")
}

/// Runs a server and a client that are started as a user would start them. Both must succeed.
fn pair(
    place: &ProgramRunner,
    variables: &[&str],
    server: (&str, &[&str]),
    port: &str,
    client: (&str, &[&str]),
) -> Result<(ProgramOutcome, ProgramOutcome), String> {
    let listens = port.parse().map_err(|_| "a port is a number")?;
    let serving = start(place, variables, server.0, server.1)?
        .wait_until("listened", |_| test_harness::is_listening(listens))?;
    let client = start(place, variables, client.0, client.1)?.finish_within(LIMIT)?;
    client.well()?;
    let server = serving.finish_within(LIMIT)?;
    server.well()?;
    Ok((client, server))
}

fn ucx(place: &ProgramRunner, transports: &str, arguments: &str) -> Result<(), String> {
    let port = free_port()?.to_string();
    let transports = format!("UCX_TLS={transports}");
    let flags: Vec<&str> = arguments.split(' ').collect();
    let client = [&["-p", &port, "-w", "10", "127.0.0.1"], &flags[..]].concat();
    let variables = [&UCX[..], &[&transports]].concat();
    let (client, _) =
        pair(place, &variables, ("ucx_perftest", &["-p", &port]), &port, ("ucx_perftest", &client))?;
    client.says("Final:")
}

/// Waits for the last line of the clients' and the server's tables. The programs then end, except
/// that with rxm one may wait for ever: docs/soft-rnic-c.md.
fn ping_pong(place: &ProgramRunner, flags: &[&str], address: HostAddress) -> Result<(), String> {
    let address = address.find().ok_or("the host has the address")?.to_string();
    let port = free_port()?.to_string();
    let is_rxm = flags.contains(&"verbs;ofi_rxm");
    let longest = if flags.contains(&"dgram") { "4k " } else { "1m " };
    let complete = |said: &str| said.lines().any(|line| line.starts_with(longest) && line.contains("=10"));
    let listens = port.parse().map_err(|_| "a port is a number")?;
    // Over rxm a side may not end on a busy machine (docs/soft-rnic-c.md), so that its lines would
    // stay in its buffer.
    let by_line = ["-oL", "fi_pingpong"];
    let server = place
        .start(&[], "stdbuf", &[&by_line[..], &["-B", &port, "-c"], flags].concat())?
        .wait_until("listened", |_| test_harness::is_listening(listens))?;
    let client = [&by_line[..], &["-P", &port, "-c"], flags, &[&address]].concat();
    let client = place.start(&[], "stdbuf", &client)?;
    if is_rxm {
        client.wait_until("printed the last line", complete)?;
        server.wait_until("printed the last line", complete)?;
        return Ok(());
    }
    for side in [client, server] {
        let ended = side.finish_within(LIMIT)?;
        if !complete(ended.well()?) {
            return Err(format!("no line of {longest}: {ended}"));
        }
    }
    Ok(())
}

/// libfabric has a message endpoint at the address. It finds one of IPv6 only if it is told the
/// family (docs/soft-rnic-c.md).
fn finds(place: &ProgramRunner, address: HostAddress) -> Result<(), String> {
    let found = address.find().ok_or("the host has the address")?;
    let text = found.to_string();
    let ask = ["-v", "-p", "verbs", "-t", "FI_EP_MSG", "-s", &text];
    let family = if address.is_v6() { "FI_SOCKADDR_IN6" } else { "FI_SOCKADDR_IN" };
    let told = place.run(&[], "fi_info", &[&ask[..], &["-a", family]].concat())?;
    told.well()?;
    told.says("name: soft0")?;
    let scheme = if address.is_v6() { "in6" } else { "in" };
    told.says(&format!("src_addr: fi_sockaddr_{scheme}://{}", SocketAddr::new(found, 0)))?;
    let untold = place.run(&[], "fi_info", &ask)?;
    if untold.status.success() == address.is_v6() {
        return Err(format!("without the family: {untold}"));
    }
    Ok(())
}

fn script(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn two_ranks(place: &ProgramRunner, launcher: &str, flags: &[&str], kind: &str) -> Result<(), String> {
    let variables = [&UCX[..], &["UCX_TLS=rc,ud,self"]].concat();
    let program = script("two_ranks.py");
    let arguments = [flags, &["python3", &program, kind]].concat();
    let ended = start(place, &variables, launcher, &arguments)?.finish_within(LIMIT)?;
    ended.well()?;
    ended.says("rank 0: equal bytes of 6 sizes")?;
    ended.says("rank 1: equal bytes of 6 sizes")
}

/// fio asks for no retry of a SEND to a peer without a receive, so the server posts enough of them
/// for all.
fn fio(place: &ProgramRunner, verb: &str, size: &str, depths: [&str; 2]) -> Result<(), String> {
    let port = free_port()?;
    let common = [
        "--ioengine=rdma".to_owned(),
        format!("--port={port}"),
        format!("--verb={verb}"),
        format!("--size={size}"),
        "--bs=64k".to_owned(),
        "--thread".to_owned(),
    ];
    let common: Vec<&str> = common.iter().map(String::as_str).collect();
    let depths = depths.map(|depth| format!("--iodepth={depth}"));
    let server = [&common[..], &["--name=server", "--rw=read", &depths[0]]].concat();
    let client = [&common[..], &["--name=client", "--rw=write", "--hostname=127.0.0.1", &depths[1]]].concat();
    let server = place
        .start(&[], "fio", &server)?
        .wait_until("listened", |said| said.contains("waiting for connection"))?;
    let client = place.start(&[], "fio", &client)?.finish_within(LIMIT)?;
    client.well()?;
    client.says(&format!("io={}KiB", if size == "4m" { 4096 } else { 1024 }))?;
    client.says("err= 0")?;
    server.finish_within(LIMIT)?.well().map(|_| ())
}

fn qperf(place: &ProgramRunner, options: &[&str], flags: &[&str], test: &str) -> Result<(), String> {
    let port = free_port()?;
    let listen = port.to_string();
    let server = place
        .start(options, "qperf", &["-lp", &listen])?
        .wait_until("listened", |_| test_harness::is_listening(port))?;
    let client = [&["-lp", &listen, "-t", "1"], flags, &["127.0.0.1", test]].concat();
    let ended = place.run(options, "qperf", &client)?;
    drop(server);
    ended.well()?;
    ended.says("=")
}

/// A server and a client of a multicast group. perftest refuses a GID of IPv4 with a group.
fn multicast(place: &ProgramRunner) -> Result<(), String> {
    let port = free_port()?.to_string();
    let flags = ["-d", "soft0", "-x", "0", "-F", "-c", "UD", "-g", "-n", "1000", "-p", &port];
    let client = [&flags[..], &["127.0.0.1"]].concat();
    let (client, server) = pair(place, &[], ("ib_send_bw", &flags), &port, ("ib_send_bw", &client))?;
    for side in [&client, &server] {
        let row = side.stdout.lines().find(|line| line.trim_start().starts_with("4096 "));
        let figures: Vec<f64> = row
            .map(|row| row.split_whitespace().filter_map(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        if figures.get(1) != Some(&1000.0) || figures.get(3).is_none_or(|average| *average <= 0.0) {
            return Err(format!("no row of 1000 messages: {side}"));
        }
    }
    Ok(())
}

/// Moves a running virtual machine, without a disk, from one process to another. It runs on there.
fn migrate(place: &ProgramRunner) -> Result<(), String> {
    const MACHINE: &str = "-M pc -accel tcg -m 64 -display none -nodefaults";
    let to = format!("rdma:127.0.0.1:{}", free_port()?);
    let start = |arguments: &[&str]| {
        let port = free_port()?;
        let monitor = format!("tcp:127.0.0.1:{port},server=on,wait=off");
        let machine: Vec<&str> = MACHINE.split(' ').chain(["-monitor", &monitor]).collect();
        let machine = place.start(&[], "qemu-system-x86_64", &[&machine[..], arguments].concat())?;
        let machine = machine.wait_until("listened", |_| test_harness::is_listening(port))?;
        Ok::<_, String>((machine, port))
    };
    let (mut target, at_target) = start(&["-incoming", &to])?;
    let (mut source, at_source) = start(&[])?;
    // The target answers once it waits for the machine.
    answers(&mut target, at_target, "info status", "paused (inmigrate)")?;
    answers(&mut source, at_source, "info status", "running")?;
    monitor(at_source, &format!("migrate -d {to}"))?;
    answers(&mut source, at_source, "info migrate", "Migration status: completed")?;
    answers(&mut target, at_target, "info status", "VM status: running")?;
    answers(&mut source, at_source, "info status", "paused (postmigrate)")
}

/// Gives a command to QEMU's monitor at this port, and returns the answer.
fn monitor(port: u16, command: &str) -> Result<String, String> {
    const PROMPT: &str = "(qemu) ";
    let failed = |error: std::io::Error| format!("the monitor, for {command}: {error}");
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
    connection.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    let until_prompt = |mut connection: &TcpStream| {
        let (mut said, mut piece) = (String::new(), [0; 4096]);
        while !said.ends_with(PROMPT) {
            let length = connection.read(&mut piece).map_err(failed)?;
            if length == 0 {
                return Err(format!("the monitor ended: {said}"));
            }
            said += &String::from_utf8_lossy(&piece[..length]);
        }
        Ok(said)
    };
    until_prompt(&connection)?;
    connection.write_all(format!("{command}\n").as_bytes()).map_err(failed)?;
    let said = until_prompt(&connection)?;
    // It echoes the command, with a line for each character.
    Ok(said.split_once("\r\n").map_or(said.as_str(), |(_, answer)| answer).to_owned())
}

/// Gives a command to the monitor repeatedly, until the answer has these words.
fn answers(machine: &mut RunningProgram, port: u16, command: &str, words: &str) -> Result<(), String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = monitor(port, command)?;
        if answer.contains(words) {
            return Ok(());
        }
        if machine.has_ended() || answer.contains("failed") || Instant::now() > deadline {
            return Err(format!("{command}: {answer:?}, and not {words:?}"));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Runs a script with the wheels.
fn by_wheel(place: &ProgramRunner, variables: &[&str], name: &str) -> Result<ProgramOutcome, String> {
    let python = env::var(PYTHON).map_err(|error| format!("{PYTHON}: {error}"))?;
    let ended = start(place, variables, &python, &[&script(name)])?.finish_within(LIMIT)?;
    ended.well()?;
    Ok(ended)
}
