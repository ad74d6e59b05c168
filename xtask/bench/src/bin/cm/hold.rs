//! What one more connection costs, where there are few, and where there are many.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::caller::Caller;
use crate::server::{Server, say};

/// A client with so many connections to a server of its own. For each number that comes in, makes and ends so many more, one after the
/// other, and says what each cost, to make and to end, in nanoseconds.
pub(crate) fn hold(there: u32) -> Result<()> {
    let server = Server::start("rdma", u32::MAX)?;
    let mut caller = Caller::new(server.port)?;
    caller.connect(64, there as usize)?;
    say("held")?;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        let count: u32 = line.trim().parse()?;
        let (mut making, mut ending) = (0, 0);
        for _ in 0..count {
            let start = Instant::now();
            caller.connect(1, 1)?;
            making += start.elapsed().as_nanos();
            let start = Instant::now();
            caller.end_last()?;
            ending += start.elapsed().as_nanos();
        }
        let each = |time: u128| time as f64 / f64::from(count);
        say(&format!("{:.1} {:.1}", each(making), each(ending)))?;
        line.clear();
    }
    Ok(())
}

/// In turns: where there are many, where there are few, and where there are few again.
pub(crate) fn compare([many, few]: [u32; 2], count: u32, samples: u32) -> Result<()> {
    let mut holders = [many, few, few].map(|there| Server::run(&["hold", &there.to_string()]));
    for holder in &mut holders {
        let holder = holder.as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        anyhow::ensure!(holder.word()? == "held", "a process did not come to hold its connections");
    }
    for turn in 0..=samples {
        let mut figures = [[0.0; 2]; 3];
        for step in 0..3 {
            let who = ((step + turn) % 3) as usize;
            let holder = holders[who].as_mut().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            holder.tell(&count.to_string())?;
            let said = holder.word()?;
            let (making, ending) = said.split_once(' ').context("two figures")?;
            figures[who] = [making.parse()?, ending.parse()?];
        }
        if turn > 0 {
            let [many, few, again] = figures;
            println!("sample {} {} {}", many[0], few[0], again[0]);
            println!("ending {} {} {}", many[1], few[1], again[1]);
        }
    }
    Ok(())
}
