//! A runtime whose tasks wait does nothing.

use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use tokio::io::AsyncReadExt;

use super::fixture::{Fixture, LONG};

pub(crate) fn add(suite: &mut test_harness::Suite<Fixture>) {
    cases!(suite: waiting_tasks_use_no_processor);
}

/// The times that the system has scheduled each thread of this process.
fn switches() -> u64 {
    let of_thread = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let counts = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
        counts.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().map(of_thread).sum()
}

fn waiting_tasks_use_no_processor(fixture: &Fixture) -> Outcome {
    const WHILE: Duration = Duration::from_secs(1);
    fixture.run(async {
        let (listener, _) = fixture.listener().await;
        let accepting = tokio::spawn(async move { listener.accept().await.map(drop) });
        let mut waiting = Vec::new();
        for _ in 0..10 {
            let (client, server) = fixture.streams().await;
            for mut stream in [client, server] {
                waiting.push(tokio::spawn(async move { stream.read_u8().await }));
            }
        }
        // What the connects have left may take some time.
        let deadline = Instant::now() + LONG / 2;
        loop {
            let before = switches();
            tokio::time::sleep(WHILE).await;
            let during = switches() - before;
            // This task's own wake-up is some of them.
            if during <= 8 {
                break;
            }
            assert!(Instant::now() < deadline, "the threads ran {during} times in {WHILE:?}");
        }
        waiting.iter().for_each(|task| task.abort());
        accepting.abort();
    });
    Ok(())
}
