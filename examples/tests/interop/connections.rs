//! The programs of the connection manager, with each other and with the C programs of Debian's
//! rdmacm-utils.
//!
//! No call tells whether a port of the connection manager has a listener. Therefore a client
//! without one tries again.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Output, RunningProgram, c_program, example};
use crate::test_device::{TestDevice, tcp_port};
use crate::{InteropTest, Needs};

/// The time limit until a server listens.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The program on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PingPongProgram {
    C,
    Ours,
}

use PingPongProgram::{C, Ours};

/// All combinations of server and client with at least one example of this package.
const PAIRS: [(PingPongProgram, PingPongProgram); 3] = [(Ours, C), (C, Ours), (Ours, Ours)];

impl PingPongProgram {
    fn name(self) -> &'static str {
        match self {
            C => "c",
            Ours => "ours",
        }
    }

    fn program(self, name: &str) -> Result<PathBuf, String> {
        match self {
            C => c_program(name).ok_or_else(|| format!("the C program {name} is gone")),
            Ours => example(name),
        }
    }
}

pub(crate) fn add(tests: &mut Vec<InteropTest>) {
    for (server, client) in PAIRS {
        let needs = |program| if server == client { Needs::Nothing } else { Needs::C(program) };
        let sides = format!("{}_serves_{}", server.name(), client.name());
        for (name, flags) in [
            ("ten_pings", "-v -V -C 10"),
            ("the_longest", "-v -V -C 5 -S 65535"),
            ("the_shortest", "-v -V -C 5 -S 26"),
        ] {
            tests.push(InteropTest::new(format!("rping::{sides}::{name}"), needs("rping"), move |dut| {
                rping(dut, server, client, flags)
            }));
        }
        tests.push(InteropTest::new(format!("rping::{sides}::many_in_turn"), needs("rping"), move |dut| {
            persistent(dut, server, client)
        }));
        for (name, flags) in [("connections", "-c 20"), ("threads", "-c 50 -n 3")] {
            let needs = if server == client { Needs::Nothing } else { Needs::Cmtime };
            tests.push(InteropTest::new(format!("cmtime::{sides}::{name}"), needs, move |dut| {
                cmtime(dut, server, client, flags)
            }));
        }
    }
    tests.push(InteropTest::new("cmtime::ours_serves_ours::earlier", Needs::Nothing, earlier));
    tests.push(InteropTest::new("rping::finds_nobody", Needs::Nothing, finds_nobody));
    for server in [Ours, C] {
        let needs = if server == Ours { Needs::Nothing } else { Needs::C("rping") };
        tests.push(InteropTest::new(
            format!("rping::survives_its_server::{}", server.name()),
            needs,
            move |dut| survives_its_server(dut, server),
        ));
    }
    tests.push(InteropTest::new("rping::survives_its_client", Needs::Nothing, survives_its_client));
    tests.push(InteropTest::new("many_clients::a_thousand", Needs::Nothing, a_thousand));
    tests.push(InteropTest::new("many_clients::one_too_many", Needs::Nothing, one_too_many));
}

/// Runs a client until a server listens.
fn call(
    dut: &TestDevice,
    program: &str,
    client: PingPongProgram,
    port: u16,
    flags: &str,
) -> Result<Output, String> {
    let path = client.program(program)?;
    let flags = flags.replace("ADDRESS", &dut.address).replace("PORT", &port.to_string());
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let start = Instant::now();
    loop {
        let output = RunningProgram::start(&path, &flags, &[])?.finish()?;
        let words = [&output.stdout, &output.stderr];
        // The messages of the C program and of the example.
        let nobody = ["RDMA_CM_EVENT_REJECTED, error", "InvalidServiceId"];
        let found = !nobody.iter().any(|nobody| words.iter().any(|words| words.contains(nobody)));
        if found || start.elapsed() > WAIT_LIMIT {
            return Ok(output);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn serve(
    dut: &TestDevice,
    program: &str,
    server: PingPongProgram,
    port: u16,
    flags: &str,
) -> Result<RunningProgram, String> {
    let flags = flags.replace("ADDRESS", &dut.address).replace("PORT", &port.to_string());
    RunningProgram::start(&server.program(program)?, &flags.split_whitespace().collect::<Vec<_>>(), &[])
}

/// The output of a client and of its server, which must both succeed.
fn both_ok(client: Output, mut serving: RunningProgram) -> Result<(String, String), String> {
    match client.ok() {
        Ok(client) => Ok((client, serving.finish()?.ok()?)),
        Err(client) => {
            serving.kill();
            Err(format!("{client}\nits server: {}", serving.finish()?))
        }
    }
}

/// The rest of the lines that begin with the label.
fn lines<'said>(said: &'said str, label: &str) -> Vec<&'said str> {
    said.lines().filter_map(|line| line.strip_prefix(label)).collect()
}

fn rping(
    dut: &TestDevice,
    server: PingPongProgram,
    client: PingPongProgram,
    flags: &str,
) -> Result<(), String> {
    let port = tcp_port()?;
    let serving = serve(dut, "rping", server, port, &format!("-s -a ADDRESS -p PORT {flags}"))?;
    let client = call(dut, "rping", client, port, &format!("-c -a ADDRESS -p PORT {flags}"))?;
    let (client, server) = both_ok(client, serving)?;
    let (sent, read) = (lines(&client, "ping data: "), lines(&server, "server ping data: "));
    let count = flags.split_whitespace().skip_while(|word| *word != "-C").nth(1).and_then(|n| n.parse().ok());
    if Some(sent.len()) == count && sent == read { Ok(()) } else { Err(format!("{client}\n{server}")) }
}

/// One persistent server, and clients one after the other, then three at the same time.
fn persistent(dut: &TestDevice, server: PingPongProgram, client: PingPongProgram) -> Result<(), String> {
    let port = tcp_port()?;
    let _serving = serve(dut, "rping", server, port, "-s -P -a ADDRESS -p PORT")?;
    let call = || call(dut, "rping", client, port, "-c -V -v -C 20 -a ADDRESS -p PORT")?.ok();
    let mut said = vec![call()?, call()?];
    // The C server keeps only the last request until its thread has taken it, and may lose one of
    // two.
    let at_once = if server == Ours { 3 } else { 1 };
    thread::scope(|scope| {
        let calls: Vec<_> = (0..at_once).map(|_| scope.spawn(call)).collect();
        for call in calls {
            said.push(call.join().map_err(|_| "a call panicked".to_owned())??);
        }
        Ok::<_, String>(())
    })?;
    if said.iter().all(|said| lines(said, "ping data: ").len() == 20) { Ok(()) } else { Err(said.join("\n")) }
}

/// The example's client detects the release of rdma-core's server, and its server that of the
/// client.
fn cmtime(
    dut: &TestDevice,
    server: PingPongProgram,
    client: PingPongProgram,
    flags: &str,
) -> Result<(), String> {
    let agrees = server == client || knows_threads()?;
    // Earlier releases have neither flag.
    let flags = if agrees { flags } else { flags.split(" -n").next().unwrap_or_default() };
    let port = tcp_port()?;
    // On one device the queue pair numbers that both sides invent must differ.
    let numbers = if agrees { "-q 5000" } else { "" };
    let mut serving = serve(dut, "cmtime", server, port, &format!("-p PORT {flags} {numbers}"))?;
    if agrees {
        serving.wait_for("listened", |_| test_harness::is_listening(port))?;
    }
    let client = call(dut, "cmtime", client, port, &format!("-s ADDRESS -b ADDRESS -p PORT {flags}"))?;
    if agrees {
        let (client, server) = both_ok(client, serving)?;
        new_tables(&client)?;
        return new_tables(&server);
    }
    earlier_table(&client.ok()?)
}

/// Whether the C program is of rdma-core 52 or later.
fn knows_threads() -> Result<bool, String> {
    usage_of_cmtime().map(|usage| usage.is_none_or(|usage| usage.contains("num_threads")))
}

/// Whether the C program is of rdma-core 59 or later, which connects any number of peers to each
/// other, as a controller tells them.
pub(crate) fn cmtime_has_a_controller() -> bool {
    matches!(usage_of_cmtime(), Ok(Some(usage)) if usage.contains("controller"))
}

fn usage_of_cmtime() -> Result<Option<String>, String> {
    let Some(path) = c_program("cmtime") else { return Ok(None) };
    Ok(Some(RunningProgram::start(&path, &["-?"], &[])?.finish()?.stdout))
}

/// Two tables of 17 steps: with queue pairs and without.
fn new_tables(said: &str) -> Result<(), String> {
    let rows = said.lines().filter(|line| {
        let figures = line.split_whitespace().rev().take_while(|word| word.parse::<u64>().is_ok());
        figures.count() == 6 && line.len() > 60
    });
    let rows: Vec<&str> = rows.collect();
    let steps = ["full connect ", "create id ", "cm connect ", "destroy qp "];
    let all = steps.iter().all(|step| rows.iter().filter(|row| row.starts_with(step)).count() == 2);
    let kinds = lines(said, "qp_conn ").len() == 1 && lines(said, "cm_conn ").len() == 1;
    if rows.len() == 34 && all && kinds { Ok(()) } else { Err(format!("unexpected tables: {said}")) }
}

/// A table of 8 steps, and no errors.
fn earlier_table(said: &str) -> Result<(), String> {
    let steps = [
        "create id",
        "bind addr",
        "resolve addr",
        "resolve route",
        "create qp",
        "connect",
        "disconnect",
        "destroy",
    ];
    let rows: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("step ")).skip(1).collect();
    let found = rows.iter().zip(steps).filter(|(row, step)| row.starts_with(step) && row.contains(": "));
    if rows.len() == steps.len() && found.count() == steps.len() && !said.contains("rror") {
        Ok(())
    } else {
        Err(format!("unexpected table: {said}"))
    }
}

fn earlier(dut: &TestDevice) -> Result<(), String> {
    let port = tcp_port()?;
    let _serving = serve(dut, "cmtime", Ours, port, "-p PORT")?;
    earlier_table(&call(dut, "cmtime", Ours, port, "--earlier -s ADDRESS -b ADDRESS -p PORT -c 30")?.ok()?)
}

fn finds_nobody(dut: &TestDevice) -> Result<(), String> {
    let port = tcp_port()?.to_string();
    let output =
        RunningProgram::start(&example("rping")?, &["-c", "-a", &dut.address, "-p", &port, "-C", "1"], &[])?
            .finish()?;
    let said = output.error_line(1)?;
    if said.contains("InvalidServiceId") && said.contains(&port) { Ok(()) } else { Err(said) }
}

/// The server is killed during a ping; the example's client ends with an error.
fn survives_its_server(dut: &TestDevice, server: PingPongProgram) -> Result<(), String> {
    let port = tcp_port()?;
    let mut serving = serve(dut, "rping", server, port, "-s -v -a ADDRESS -p PORT")?;
    let output = thread::scope(|scope| {
        let client = scope.spawn(|| call(dut, "rping", Ours, port, "-c -a ADDRESS -p PORT"));
        let was_pinged = serving.wait_for("was pinged", |stdout| stdout.contains("server ping data: "));
        serving.kill();
        was_pinged?;
        client.join().map_err(|_| "the client's thread panicked".to_owned())?
    })?;
    // The connection manager or the queue pair reports it, whichever comes first.
    let said = output.error_line(1)?;
    let reasons = ["hung up", "Failed status", "InvalidServiceId", "end of the connection"];
    if reasons.iter().any(|reason| said.contains(reason)) { Ok(()) } else { Err(said) }
}

/// The client is killed during a ping; the example's server ends.
fn survives_its_client(dut: &TestDevice) -> Result<(), String> {
    let port = tcp_port()?;
    let serving = serve(dut, "rping", Ours, port, "-s -v -a ADDRESS -p PORT")?;
    let flags = ["-c", "-a", &dut.address, "-p", &port.to_string()];
    let start = Instant::now();
    // Repeats until a client has reached the server and sent a ping.
    loop {
        let mut client = RunningProgram::start(&example("rping")?, &flags, &[])?;
        // The client ends by itself if no server listens yet.
        match client.wait_for("found the server", |_| serving.has_said("server ping data: ")) {
            Ok(()) => {
                client.kill();
                break;
            }
            Err(why) if start.elapsed() > WAIT_LIMIT => return Err(why),
            Err(_) => {}
        }
    }
    let output = serving.finish()?;
    // The device may also report that the client, which is being killed, is not gone yet.
    let well = output.code == Some(0) && output.stderr.contains("server DISCONNECT EVENT...\n");
    let reasons = ["Failed status", "during a ping"];
    let told = output.code == Some(1) && reasons.iter().any(|reason| output.stderr.contains(reason));
    if well || told { Ok(()) } else { Err(output.to_string()) }
}

fn a_thousand(dut: &TestDevice) -> Result<(), String> {
    let port = tcp_port()?;
    let serving = serve(dut, "many_clients", Ours, port, "-b ADDRESS -p PORT -n 1000")?;
    let client = call(dut, "many_clients", Ours, port, "ADDRESS -p PORT -n 1000")?;
    let (client, server) = both_ok(client, serving)?;
    let expected = "1000 clients came, 1000 at a time at most: 1000 messages in, 1000 out, in ";
    let well = server.starts_with(expected) && server.ends_with("; 0 rejected, 0 lost\n");
    let told = client == "1000 clients connected, asked, were answered and hung up\n";
    if well && told { Ok(()) } else { Err(format!("{client}{server}")) }
}

fn one_too_many(dut: &TestDevice) -> Result<(), String> {
    let port = tcp_port()?;
    let _serving = serve(dut, "many_clients", Ours, port, "-b ADDRESS -p PORT -m 3")?;
    let flags = "ADDRESS -p PORT -n ";
    let said = call(dut, "many_clients", Ours, port, &format!("{flags}4"))?.error_line(1)?;
    if !said.contains("ConsumerReject") || !said.ends_with(": its reason is `no more clients`") {
        return Err(said);
    }
    // The killed clients' queue pairs are destroyed with their processes, so that new ones can be
    // created.
    let start = Instant::now();
    loop {
        let output = call(dut, "many_clients", Ours, port, &format!("{flags}3"))?;
        if output.code == Some(0) {
            return Ok(());
        }
        if start.elapsed() > WAIT_LIMIT {
            return Err(output.to_string());
        }
        thread::sleep(Duration::from_millis(50));
    }
}
