//! The programs of the connection manager against one another and against C's (Debian: rdmacm-utils).
//!
//! Nobody can be asked whether somebody listens at a port of the connection manager: so who finds nobody there calls again.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Output, Running, c_program, example};
use crate::place::{Place, is_listening};
use crate::{Needs, Test};

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who is one of the sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Player {
    C,
    Ours,
}

use Player::{C, Ours};

/// All pairs of server and client that have one of ours in them.
const PAIRS: [(Player, Player); 3] = [(Ours, C), (C, Ours), (Ours, Ours)];

impl Player {
    fn name(self) -> &'static str {
        match self {
            C => "c",
            Ours => "ours",
        }
    }

    fn program(self, name: &str) -> Result<PathBuf, String> {
        match self {
            C => c_program(name).ok_or_else(|| format!("C's {name} is gone")),
            Ours => example(name),
        }
    }
}

pub(crate) fn add(tests: &mut Vec<Test>) {
    for (server, client) in PAIRS {
        let needs = |program| if server == client { Needs::Nothing } else { Needs::C(program) };
        let sides = format!("{}_serves_{}", server.name(), client.name());
        for (name, flags) in [
            ("ten_pings", "-v -V -C 10"),
            ("the_longest", "-v -V -C 5 -S 65535"),
            ("the_shortest", "-v -V -C 5 -S 26"),
        ] {
            tests.push(Test::new(format!("rping::{sides}::{name}"), needs("rping"), move |place| {
                rping(place, server, client, flags)
            }));
        }
        tests.push(Test::new(format!("rping::{sides}::many_in_turn"), needs("rping"), move |place| {
            persistent(place, server, client)
        }));
        for (name, flags) in [("connections", "-c 20"), ("threads", "-c 50 -n 3")] {
            tests.push(Test::new(format!("cmtime::{sides}::{name}"), needs("cmtime"), move |place| {
                cmtime(place, server, client, flags)
            }));
        }
    }
    tests.push(Test::new("cmtime::ours_serves_ours::earlier", Needs::Nothing, earlier));
    tests.push(Test::new("rping::finds_nobody", Needs::Nothing, finds_nobody));
    for server in [Ours, C] {
        let needs = if server == Ours { Needs::Nothing } else { Needs::C("rping") };
        tests.push(Test::new(
            format!("rping::survives_its_server::{}", server.name()),
            needs,
            move |place| survives_its_server(place, server),
        ));
    }
    tests.push(Test::new("rping::survives_its_client", Needs::Nothing, survives_its_client));
    tests.push(Test::new("many_clients::a_thousand", Needs::Nothing, a_thousand));
    tests.push(Test::new("many_clients::one_too_many", Needs::Nothing, one_too_many));
}

/// Runs a client until somebody listens.
fn call(place: &Place, program: &str, client: Player, port: u16, flags: &str) -> Result<Output, String> {
    let path = client.program(program)?;
    let flags = flags.replace("ADDRESS", &place.address).replace("PORT", &port.to_string());
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let start = Instant::now();
    loop {
        let output = Running::start(&path, &flags, &[])?.finish()?;
        let words = [&output.stdout, &output.stderr];
        // C's words, and ours.
        let nobody = ["RDMA_CM_EVENT_REJECTED, error", "InvalidServiceId"];
        let found = !nobody.iter().any(|nobody| words.iter().any(|words| words.contains(nobody)));
        if found || start.elapsed() > PATIENCE {
            return Ok(output);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn serve(place: &Place, program: &str, server: Player, port: u16, flags: &str) -> Result<Running, String> {
    let flags = flags.replace("ADDRESS", &place.address).replace("PORT", &port.to_string());
    Running::start(&server.program(program)?, &flags.split_whitespace().collect::<Vec<_>>(), &[])
}

/// What the lines say that begin so.
fn lines<'said>(said: &'said str, label: &str) -> Vec<&'said str> {
    said.lines().filter_map(|line| line.strip_prefix(label)).collect()
}

fn rping(place: &Place, server: Player, client: Player, flags: &str) -> Result<(), String> {
    let port = place.tcp_port()?;
    let serving = serve(place, "rping", server, port, &format!("-s -a ADDRESS -p PORT {flags}"))?;
    let client = call(place, "rping", client, port, &format!("-c -a ADDRESS -p PORT {flags}"))?.ok()?;
    let server = serving.finish()?.ok()?;
    let (sent, read) = (lines(&client, "ping data: "), lines(&server, "server ping data: "));
    let count = flags.split_whitespace().skip_while(|word| *word != "-C").nth(1).and_then(|n| n.parse().ok());
    if Some(sent.len()) == count && sent == read { Ok(()) } else { Err(format!("{client}\n{server}")) }
}

/// One server that stays, and clients that come one after the other, and three at a time.
fn persistent(place: &Place, server: Player, client: Player) -> Result<(), String> {
    let port = place.tcp_port()?;
    let _serving = serve(place, "rping", server, port, "-s -P -a ADDRESS -p PORT")?;
    let call = || call(place, "rping", client, port, "-c -V -v -C 20 -a ADDRESS -p PORT")?.ok();
    let mut said = vec![call()?, call()?];
    // C's server keeps the last request alone until its thread has taken it, so of two at once it may lose one.
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

/// Our client takes rdma-core's server for what it is, of whatever release; and our server C's client.
fn cmtime(place: &Place, server: Player, client: Player, flags: &str) -> Result<(), String> {
    let agrees = server == client || knows_threads()?;
    // Earlier releases know neither.
    let flags = if agrees { flags } else { flags.split(" -n").next().unwrap_or_default() };
    let port = place.tcp_port()?;
    // On one device, pretended queue pairs of both sides must not have the same numbers.
    let numbers = if agrees { "-q 5000" } else { "" };
    let mut serving = serve(place, "cmtime", server, port, &format!("-p PORT {flags} {numbers}"))?;
    if agrees {
        serving.wait_for("listened", |_| is_listening(port))?;
    }
    let client =
        call(place, "cmtime", client, port, &format!("-s ADDRESS -b ADDRESS -p PORT {flags}"))?.ok()?;
    if agrees {
        let server = serving.finish()?.ok()?;
        for said in [&client, &server] {
            new_tables(said)?;
        }
        return Ok(());
    }
    earlier_table(&client)
}

/// Whether C's is of rdma-core 52 or later.
fn knows_threads() -> Result<bool, String> {
    let Some(path) = c_program("cmtime") else { return Ok(true) };
    Ok(Running::start(&path, &["-?"], &[])?.finish()?.stdout.contains("num_threads"))
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
    if rows.len() == 34 && all && kinds { Ok(()) } else { Err(format!("not the tables: {said}")) }
}

/// A table of 8 steps, and no complaints.
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
        Err(format!("not the table: {said}"))
    }
}

fn earlier(place: &Place) -> Result<(), String> {
    let port = place.tcp_port()?;
    let _serving = serve(place, "cmtime", Ours, port, "-p PORT")?;
    earlier_table(&call(place, "cmtime", Ours, port, "--earlier -s ADDRESS -b ADDRESS -p PORT -c 30")?.ok()?)
}

fn finds_nobody(place: &Place) -> Result<(), String> {
    let port = place.tcp_port()?.to_string();
    let output =
        Running::start(&example("rping")?, &["-c", "-a", &place.address, "-p", &port, "-C", "1"], &[])?
            .finish()?;
    let said = output.error_line(1)?;
    if said.contains("InvalidServiceId") && said.contains(&port) { Ok(()) } else { Err(said) }
}

/// The server is killed in the middle of it; our client ends, and says so.
fn survives_its_server(place: &Place, server: Player) -> Result<(), String> {
    let port = place.tcp_port()?;
    let mut serving = serve(place, "rping", server, port, "-s -a ADDRESS -p PORT")?;
    let output = thread::scope(|scope| {
        let client = scope.spawn(|| call(place, "rping", Ours, port, "-c -a ADDRESS -p PORT"));
        thread::sleep(Duration::from_secs(1));
        serving.kill();
        client.join().map_err(|_| "the client's thread panicked".to_owned())?
    })?;
    // Either the connection manager says it, or the queue pair: whichever is first.
    let said = output.error_line(1)?;
    let reasons = ["hung up", "Failed status", "InvalidServiceId", "end of the connection"];
    if reasons.iter().any(|reason| said.contains(reason)) { Ok(()) } else { Err(said) }
}

/// The client is killed in the middle of it; our server ends.
fn survives_its_client(place: &Place) -> Result<(), String> {
    let port = place.tcp_port()?;
    let serving = serve(place, "rping", Ours, port, "-s -v -a ADDRESS -p PORT")?;
    let flags = ["-c", "-a", &place.address, "-p", &port.to_string()];
    let start = Instant::now();
    // Until a client has found the server, and sent something.
    loop {
        let mut client = Running::start(&example("rping")?, &flags, &[])?;
        // It ends by itself if nobody listens yet.
        match client.wait_for("found the server", |_| serving.has_said("server ping data: ")) {
            Ok(()) => {
                client.kill();
                break;
            }
            Err(why) if start.elapsed() > PATIENCE => return Err(why),
            Err(_) => {}
        }
    }
    let output = serving.finish()?;
    // Behind it the device may say that the client, which is being killed, is not gone yet.
    let well = output.code == Some(0) && output.stderr.contains("server DISCONNECT EVENT...\n");
    let reasons = ["Failed status", "in the middle of a ping"];
    let told = output.code == Some(1) && reasons.iter().any(|reason| output.stderr.contains(reason));
    if well || told { Ok(()) } else { Err(output.to_string()) }
}

fn a_thousand(place: &Place) -> Result<(), String> {
    let port = place.tcp_port()?;
    let serving = serve(place, "many_clients", Ours, port, "-b ADDRESS -p PORT -n 1000")?;
    let client = call(place, "many_clients", Ours, port, "ADDRESS -p PORT -n 1000")?.ok()?;
    let server = serving.finish()?.ok()?;
    let expected = "1000 clients came, 1000 at a time at most: 1000 messages in, 1000 out, in ";
    let well = server.starts_with(expected) && server.ends_with("; 0 rejected, 0 lost\n");
    let told = client == "1000 clients connected, asked, were answered and hung up\n";
    if well && told { Ok(()) } else { Err(format!("{client}{server}")) }
}

fn one_too_many(place: &Place) -> Result<(), String> {
    let port = place.tcp_port()?;
    let _serving = serve(place, "many_clients", Ours, port, "-b ADDRESS -p PORT -m 3")?;
    let flags = "ADDRESS -p PORT -n ";
    let said = call(place, "many_clients", Ours, port, &format!("{flags}4"))?.error_line(1)?;
    if !said.contains("ConsumerReject") || !said.ends_with(": it says `no more clients`") {
        return Err(said);
    }
    // Those that it had taken have gone with their process, and there is room again.
    let start = Instant::now();
    loop {
        let output = call(place, "many_clients", Ours, port, &format!("{flags}3"))?;
        if output.code == Some(0) {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(output.to_string());
        }
        thread::sleep(Duration::from_millis(50));
    }
}
