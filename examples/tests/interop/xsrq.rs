//! `xsrq_pingpong` and `ibv_xsrq_pingpong`: one server, several clients.

use std::path::PathBuf;

use crate::common::{RunningProgram, example, on_path};
use crate::test_device::{TestDevice, tcp_port};
use crate::{InteropTest, Needs};

const OURS: &str = "xsrq_pingpong";
const TWIN: &str = "ibv_xsrq_pingpong";

pub(crate) fn add(tests: &mut Vec<InteropTest>) {
    for (server, client) in [(OURS, TWIN), (TWIN, OURS), (OURS, OURS)] {
        let needs = if server == client { Needs::Xrc } else { Needs::XrcAndC(TWIN) };
        let mut add = |name: &str, clients: usize, flags: &'static [&'static str]| {
            let name = format!("{server}_serves_{client}::{name}");
            tests.push(InteropTest::new(name, needs, move |dut| play(dut, server, client, clients, flags)));
        };
        add("as_it_is", 1, &[]);
        add("1_byte", 1, &["-s", "1", "-n", "20"]);
        add("65536_bytes", 1, &["-s", "65536", "-n", "5", "-m", "4096"]);
        add("three_clients", 3, &["-n", "50"]);
        add("three_asleep", 3, &["-n", "50", "-e"]);
    }
}

fn program(name: &str) -> Result<PathBuf, String> {
    if name == OURS { example(name) } else { on_path(name).ok_or_else(|| format!("{name} is gone")) }
}

fn play(dut: &TestDevice, server: &str, client: &str, clients: usize, flags: &[&str]) -> Result<(), String> {
    let (port, count) = (tcp_port()?, clients.to_string());
    let port_text = port.to_string();
    let common = ["-d", dut.device.as_str(), "-p", port_text.as_str(), "-g", dut.gid_index.as_str()];
    let common = [&common, flags].concat();
    let mut serving =
        RunningProgram::start(&program(server)?, &[&common[..], &["-c", &count]].concat(), &[])?;
    serving.wait_for("listened", |_| test_harness::is_listening(port))?;
    let client = program(client)?;
    let arguments = [&common[..], &["127.0.0.1"]].concat();
    let playing: Vec<_> =
        (0..clients).map(|_| RunningProgram::start(&client, &arguments, &[])).collect::<Result<_, _>>()?;
    let mut words = Vec::new();
    for client in playing {
        words.push(client.finish()?.ok()?);
    }
    let server = serving.finish()?.ok()?;
    // Each client's two address lines appear at the server in reverse order.
    let lines = |text: &str, label: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(label));
        lines.map(str::to_owned).collect()
    };
    let agree = words.iter().all(|client| {
        let both_ways = [("local:", "remote:"), ("remote:", "local:")];
        both_ways.iter().all(|(here, there)| {
            let own = lines(client, here);
            own.len() == 1 && lines(&server, there).contains(&own[0]) && own[0].contains(", SRQN ")
        }) && client.ends_with("success\n")
    });
    if agree && server.ends_with("success\n") {
        Ok(())
    } else {
        Err(format!("{server}\n{}", words.join("\n")))
    }
}
