//! What fails in a process, and when.

use std::thread;
use std::time::Duration;

use sideway::soft::faults;

use super::{RULES, RandomChoices, Run, add, counts};

/// One device works for this time, and then another one.
const EPOCH: Duration = Duration::from_secs(10);
/// All devices work for this time at the end of each epoch, so that rails come back.
const QUIET: Duration = Duration::from_secs(2);

/// What fails at a time, in both processes alike.
#[derive(Debug)]
pub(crate) struct Epoch {
    kept: usize,
    /// The only process whose devices stop, or `None` for both. Connections of both may lose all rails,
    /// because a rail may join a device that one process keeps with another that the other one stops.
    only: Option<u64>,
    /// Whether all devices may stop for a moment.
    moments: bool,
    /// Whether devices may die silently.
    silent: bool,
    /// The time until rails may come back, if that has not begun.
    left: Option<Duration>,
}

impl Epoch {
    pub(crate) fn now(run: Run) -> Self {
        let (elapsed, length) = (run.elapsed(), EPOCH.as_millis() as u64);
        let number = elapsed.as_millis() as u64 / length;
        let mut random = RandomChoices::new(run.seed + number);
        let (kept, only, moments) = (random.below(3), random.below(4) as u64, random.below(2) == 0);
        let left = (EPOCH * (number + 1) as u32).saturating_sub(elapsed).checked_sub(QUIET);
        Self {
            kept,
            only: Some(only).filter(|part| *part < 2),
            moments,
            silent: run.has_silent_devices(),
            left,
        }
    }
}

/// Changes the rules of this process until the time is over.
pub(crate) fn disturb(run: Run, part: u64) {
    let mut random = RandomChoices::new(run.seed * 2 + part);
    while !run.is_over() {
        let epoch = Epoch::now(run);
        let Some(left) = epoch.left else {
            set_rules("", 0);
            thread::sleep(QUIET / 10);
            continue;
        };
        let stops = epoch.only.is_none_or(|only| only == part);
        let rules: Vec<_> = (0..1 + random.below(4)).map(|_| rule(&mut random, &epoch, stops)).collect();
        set_rules(&rules.join("; "), random.next());
        thread::sleep(random.millis(2000).min(left));
        add(&counts().rules, faults::report().iter().map(|rule| rule.fired).sum());
    }
    set_rules("", 0);
}

fn set_rules(text: &str, seed: u64) {
    RULES.lock().unwrap().clear();
    RULES.lock().unwrap().push_str(text);
    match text {
        "" => faults::clear(),
        _ => faults::set(faults::parse(text).expect("valid rules"), seed).unwrap(),
    }
}

/// A rule that `stops` a device other than `kept`, or one that no connection should notice.
fn rule(random: &mut RandomChoices, Epoch { kept, moments, silent, .. }: &Epoch, stops: bool) -> String {
    let (kept, moments, silent) = (*kept, *moments, *silent);
    let device = (kept + 1 + random.below(2)) % 3;
    let any = random.below(3);
    let few = ["0.0003", "0.003", "0.03"][random.below(3)];
    let opcode =
        ["", "opcode=send,send_with_imm", "opcode=rdma_read", "opcode=rdma_write,atomic_fetch_and_add"]
            [random.below(4)];
    let nth = 1 + random.below(200);
    match if stops { random.below(16) } else { 10 + random.below(6) } {
        0 | 1 => format!("port_flap=20ms..2s:20ms..2s device=soft{device} nth=1"),
        2 => format!("port_flap=20ms..60ms:20ms..60ms device=soft{device} nth=1"),
        3 => format!("port_down=500ms device=soft{device} nth={nth}"),
        4 => format!("qp_fatal chance={few} device=soft{device} {opcode}"),
        5 => format!("hang chance={few} device=soft{device} {opcode}"),
        6 if silent => format!("hang=silent device=soft{device} {opcode} from={nth}"),
        7 => format!("status=retry_exc_err chance={few} device=soft{device} {opcode}"),
        8 => format!("status=fatal_err chance={few} device=soft{device} {opcode}"),
        9 => format!("errno=ENOMEM call=create_qp chance=0.3 device=soft{device}"),
        10 => "errno=EBUSY call=dereg_mr first=3".to_owned(),
        11 => format!("rate={}Mb/s device=soft{device}; rate=3Gb/s", [50, 400, 3000][random.below(3)]),
        12 => format!("drop=1 chance={few} device=soft{any} {opcode}"),
        13 => format!("delay=100us..20ms chance={few} device=soft{any} {opcode}"),
        14 => format!("hold=3:20ms chance={few} device=soft{any} {opcode}"),
        // All devices, for a moment.
        _ if !moments => format!("delay=20us..500us device=soft{any}"),
        _ => (0..3).map(|device| format!("port_down=40ms device=soft{device} nth={nth}; ")).collect(),
    }
    .trim_end_matches("; ")
    .to_owned()
}
