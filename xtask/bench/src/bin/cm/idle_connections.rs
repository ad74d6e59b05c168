//! The cost of one more connection when few or many others are open.

use std::time::Instant;

use anyhow::{Context, Result};
use xtask_bench::process::{ServerProcess, print_line};

use crate::client::CmClient;

/// A client that holds `existing` connections to its server.
///
/// For each number N on standard input it opens and closes N more connections, one after the other,
/// and prints the nanoseconds to open and to close one.
pub(crate) fn idle_connections(existing: u32) -> Result<()> {
    let server = ServerProcess::start(&["serve", "rdma", &u32::MAX.to_string()])?;
    let mut client = CmClient::new(server.port)?;
    client.connect(64, existing as usize)?;
    print_line("held")?;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        let count: u32 = line.trim().parse()?;
        let (mut making, mut ending) = (0, 0);
        for _ in 0..count {
            let start = Instant::now();
            client.connect(1, 1)?;
            making += start.elapsed().as_nanos();
            let start = Instant::now();
            client.end_last()?;
            ending += start.elapsed().as_nanos();
        }
        let each = |time: u128| time as f64 / f64::from(count);
        print_line(&format!("{:.1} {:.1}", each(making), each(ending)))?;
        line.clear();
    }
    Ok(())
}

/// Measures with many, with few, and with few connections again, interleaved.
pub(crate) fn compare([many, few]: [u32; 2], count: u32, samples: u32) -> Result<()> {
    let mut processes = [many, few, few].map(|existing| ServerProcess::run(&["hold", &existing.to_string()]));
    for process in &mut processes {
        let process = process.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        anyhow::ensure!(process.read_line()? == "held", "a process failed to open its connections");
    }
    for round in 0..=samples {
        let mut figures = [[0.0; 2]; 3];
        for step in 0..3 {
            let which = ((step + round) % 3) as usize;
            let process = processes[which].as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            process.send_line(&count.to_string())?;
            let said = process.read_line()?;
            let (making, ending) = said.split_once(' ').context("two figures")?;
            figures[which] = [making.parse()?, ending.parse()?];
        }
        if round > 0 {
            let [many, few, again] = figures;
            println!("sample {} {} {}", many[0], few[0], again[0]);
            println!("ending {} {} {}", many[1], few[1], again[1]);
        }
    }
    Ok(())
}
