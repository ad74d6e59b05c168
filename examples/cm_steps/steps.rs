//! The steps of opening and closing a connection, their times, and the printed tables.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A step, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CmStep {
    /// From creating the identifier to the established connection.
    FullConnect,
    /// `rdma_create_id`.
    CreateId,
    /// `rdma_bind_addr`.
    Bind,
    /// `rdma_resolve_addr`, and its event.
    ResolveAddr,
    /// `rdma_resolve_route`, and its event.
    ResolveRoute,
    /// `ibv_create_qp`.
    CreateQp,
    /// `rdma_init_qp_attr` for `Init`.
    InitQpAttr,
    /// `ibv_modify_qp` to `Init`.
    InitQp,
    /// `rdma_init_qp_attr` for `ReadyToReceive`.
    RtrQpAttr,
    /// `ibv_modify_qp` to `ReadyToReceive`.
    RtrQp,
    /// `rdma_init_qp_attr` for `ReadyToSend`.
    RtsQpAttr,
    /// `ibv_modify_qp` to `ReadyToSend`.
    RtsQp,
    /// From `rdma_connect` to the established connection.
    Connect,
    /// `rdma_establish`.
    Establish,
    /// `rdma_disconnect`.
    Disconnect,
    /// `rdma_destroy_id`.
    DestroyId,
    /// `ibv_destroy_qp`.
    DestroyQp,
}

impl CmStep {
    /// The number of steps.
    pub const COUNT: usize = 17;

    /// The steps with their names in the table of rdma-core 52 and later.
    const NAMED: [(Self, &str); Self::COUNT] = [
        (Self::FullConnect, "full connect"),
        (Self::CreateId, "create id"),
        (Self::Bind, "bind addr"),
        (Self::ResolveAddr, "resolve addr"),
        (Self::ResolveRoute, "resolve route"),
        (Self::CreateQp, "create qp"),
        (Self::InitQpAttr, "init qp attr"),
        (Self::InitQp, "init qp"),
        (Self::RtrQpAttr, "rtr qp attr"),
        (Self::RtrQp, "rtr qp"),
        (Self::RtsQpAttr, "rts qp attr"),
        (Self::RtsQp, "rts qp"),
        (Self::Connect, "cm connect"),
        (Self::Establish, "establish"),
        (Self::Disconnect, "disconnect"),
        (Self::DestroyId, "destroy id"),
        (Self::DestroyQp, "destroy qp"),
    ];

    /// The steps in the table of earlier releases, with their names there.
    const EARLIER: [(Self, &str); 8] = [
        (Self::CreateId, "create id"),
        (Self::Bind, "bind addr"),
        (Self::ResolveAddr, "resolve addr"),
        (Self::ResolveRoute, "resolve route"),
        (Self::CreateQp, "create qp"),
        (Self::Connect, "connect"),
        (Self::Disconnect, "disconnect"),
        (Self::DestroyId, "destroy"),
    ];
}

/// Start and end of each step, for one connection or for all together. Threads may share it.
#[derive(Debug, Default)]
pub struct Times([[AtomicU64; 2]; CmStep::COUNT]);

impl Times {
    /// Records the start of a step.
    pub fn start(&self, step: CmStep) {
        self.0[step as usize][0].store(now(), Ordering::Relaxed);
    }

    /// Records that a step started together with another one.
    pub fn start_with(&self, step: CmStep, other: CmStep) {
        self.0[step as usize][0].store(self.0[other as usize][0].load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Records the end of a step.
    pub fn end(&self, step: CmStep) {
        self.0[step as usize][1].store(now(), Ordering::Relaxed);
    }

    /// The duration of a step in nanoseconds; `None` if the step was not performed.
    pub fn took(&self, step: CmStep) -> Option<u64> {
        let [start, end] = &self.0[step as usize];
        let (start, end) = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
        (start != 0 && end != 0).then(|| end.saturating_sub(start))
    }
}

/// The monotonic clock in nanoseconds, plus one so that it is never 0. Each step reads it twice, so
/// that it must be cheap.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + 1
}

/// The times of one step over all connections, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StepTimes {
    /// Until the last connection completed it.
    total: u64,
    sum: u64,
    max: u64,
    min: u64,
}

fn row(step: CmStep, all: &Times, each: &[&Times]) -> StepTimes {
    let took = || each.iter().filter_map(|times| times.took(step));
    StepTimes {
        total: all.took(step).unwrap_or(0),
        sum: took().sum(),
        max: took().max().unwrap_or(0),
        min: took().min().unwrap_or(0),
    }
}

/// The table of rdma-core 52 and later.
pub fn table(all: &Times, each: &[&Times], threads: u32, has_pairs: bool) -> String {
    let connections = each.len().max(1) as u64;
    let kind = if has_pairs { "qp_conn" } else { "cm_conn" };
    let mut table = format!(
        "{kind}        {:>10}\nthreads        {threads:>10}\nstep             avg/iter  total(us)    us/conn    sum(us)    max(us)    min(us)",
        each.len()
    );
    for (step, name) in CmStep::NAMED {
        let StepTimes { total, sum, max, min } = row(step, all, each);
        // Connections are opened at the same time, so that the sum of their times means nothing.
        let sum = if step == CmStep::FullConnect { 0 } else { sum };
        let columns = [total / connections, total, sum / connections, sum, max, min].map(|ns| ns / 1000);
        let _ = write!(table, "\n{name:<13} ");
        for column in columns {
            let _ = write!(table, " {column:>10}");
        }
    }
    table
}

/// The table of earlier releases.
pub fn earlier_table(all: &Times, each: &[&Times]) -> String {
    let connections = each.len().max(1) as f64;
    let mut table = String::from("step              total ms     max ms     min us  us / conn");
    for (step, name) in CmStep::EARLIER {
        if step == CmStep::Bind && all.took(step).is_none() {
            continue;
        }
        let StepTimes { total, max, min, .. } = row(step, all, each);
        let us = |ns: u64| ns as f64 / 1000.;
        let _ = write!(
            table,
            "\n{name:<13}: {:>11.2}{:>11.2}{:>11.2}{:>11.2}",
            us(total) / 1000.,
            us(max) / 1000.,
            us(min),
            us(total) / connections
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(step: CmStep, start: u64, end: u64) -> Times {
        let mut times = Times::default();
        times.0[step as usize] = [start, end].map(AtomicU64::new);
        times
    }

    #[test]
    fn a_step_that_was_not_done_takes_no_time() {
        let times = Times::default();
        assert_eq!(times.took(CmStep::Connect), None);
        times.start(CmStep::Connect);
        assert_eq!(times.took(CmStep::Connect), None);
        times.end(CmStep::Connect);
        assert!(times.took(CmStep::Connect).is_some());
    }

    #[test]
    fn tables_have_the_shape_of_c() {
        let all = times(CmStep::Connect, 1, 30_001);
        let each = [times(CmStep::Connect, 1, 10_001), times(CmStep::Connect, 1, 20_001)];
        let each: Vec<_> = each.iter().collect();
        let table = table(&all, &each, 3, true);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[0], "qp_conn                 2");
        assert_eq!(lines[1], "threads                 3");
        assert_eq!(lines.len(), 3 + CmStep::COUNT);
        assert_eq!(
            lines[15],
            "cm connect             15         30         15         30         20         10"
        );
        let earlier = earlier_table(&all, &each);
        let lines: Vec<_> = earlier.lines().collect();
        assert_eq!(lines.len(), 8, "{earlier}");
        assert_eq!(lines[5], "connect      :        0.03       0.02      10.00      15.00");
    }
}
