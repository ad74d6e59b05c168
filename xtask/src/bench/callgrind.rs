//! Callgrind's output: instructions by object and function.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// An object, and a function in it.
type Function = (String, String);

/// Instructions of each function without its callees, and the call graph.
#[derive(Clone, Debug, Default)]
pub(super) struct InstructionCounts {
    own: BTreeMap<Function, f64>,
    calls: BTreeMap<(Function, Function), CallEdge>,
    /// By instruction address, with `--dump-instr=yes`.
    addresses: BTreeMap<(Function, u64), f64>,
}

/// The calls of one function by another.
#[derive(Clone, Copy, Debug, Default)]
struct CallEdge {
    count: f64,
    /// Including all callees.
    instructions: f64,
}

/// The instructions of a program for each operation.
#[derive(Clone, Debug, Default)]
pub(super) struct TimedLoop {
    /// Instructions of the program and its callees, without the library.
    pub(super) own: f64,
    /// In addition, instructions that only some operations execute while they wait, counted in
    /// full.
    pub(super) by_chance: f64,
    /// The number of calls into other objects, by name.
    pub(super) foreign: BTreeMap<String, f64>,
    /// How often each instruction ran, by address, with `--dump-instr=yes`.
    pub(super) times: BTreeMap<u64, f64>,
}

/// How the operations of a loop are grouped, which separates them from the rest of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopShape {
    /// The largest number of operations that are posted or completed together.
    pub(super) list: u64,
    /// Whether an operation waits for the peer; the waiting does not count.
    pub(super) waits: bool,
}

/// The tolerance for a count for each operation to be a whole number, because a program does other
/// things, too.
const WHOLE: f64 = 0.03;

impl InstructionCounts {
    /// Parses callgrind's format. The line after `calls=` is the inclusive cost of the calls.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut counts = Self::default();
        let (mut objects, mut functions) = (NameTable::default(), NameTable::default());
        let (mut object, mut function) = (String::new(), String::new());
        let (mut callee_object, mut callee) = (None, String::new());
        let mut called: Option<f64> = None;
        let (mut address, mut positions) = (0, 1);
        let mut ours = false;
        for line in text.lines() {
            if line == "events: Ir" {
                ours = true;
            } else if let Some(names) = line.strip_prefix("positions:") {
                positions = names.split_whitespace().count();
            } else if let Some(name) = line.strip_prefix("ob=") {
                object = objects.get(name)?;
            } else if let Some(name) = line.strip_prefix("cob=") {
                callee_object = Some(objects.get(name)?);
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = functions.get(name)?;
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = functions.get(name)?;
            } else if let Some(count) = line.strip_prefix("calls=") {
                called = Some(number(count, 0, line)?);
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                let cost = number(line, positions, line)?;
                if positions > 1 {
                    address = follow(address, line)?;
                }
                let caller = (object.clone(), function.clone());
                let Some(count) = called.take() else {
                    if positions > 1 {
                        *counts.addresses.entry((caller.clone(), address)).or_default() += cost;
                    }
                    *counts.own.entry(caller).or_default() += cost;
                    continue;
                };
                // The output names a callee's object only if it differs from the caller's.
                let callee = (callee_object.take().unwrap_or_else(|| object.clone()), callee.clone());
                let calls = counts.calls.entry((caller, callee)).or_default();
                calls.count += count;
                calls.instructions += cost;
            }
        }
        ensure!(ours && !counts.own.is_empty(), "callgrind wrote no instruction counts");
        Ok(counts)
    }

    /// The difference to a shorter run, divided by the number of operations.
    pub(super) fn more_than(&self, shorter: &Self, operations: u64) -> Self {
        let mut counts = self.clone();
        let each = |long: f64, short: f64| (long - short) / operations as f64;
        for (key, count) in &mut counts.own {
            *count = each(*count, shorter.own.get(key).copied().unwrap_or_default());
        }
        for (key, count) in &mut counts.addresses {
            *count = each(*count, shorter.addresses.get(key).copied().unwrap_or_default());
        }
        for (key, calls) in &mut counts.calls {
            let short = shorter.calls.get(key).copied().unwrap_or_default();
            calls.count = each(calls.count, short.count);
            calls.instructions = each(calls.instructions, short.instructions);
        }
        counts
    }

    /// Instructions of all functions.
    pub(super) fn total(&self) -> f64 {
        self.own.values().sum()
    }

    /// The total of one object.
    pub(super) fn of_object(&self, object: &Path) -> f64 {
        self.own.iter().filter(|((ob, _), _)| is(ob, object)).map(|(_, count)| count).sum()
    }

    /// The total of the other objects.
    pub(super) fn outside(&self, object: &Path) -> f64 {
        self.own.iter().filter(|((ob, _), _)| !is(ob, object)).map(|(_, count)| count).sum()
    }

    /// The functions of an object that ran for operations.
    pub(super) fn functions_of(&self, object: &Path) -> Vec<String> {
        let ran = |((ob, _), count): &(&Function, &f64)| is(ob, object) && **count > 0.001;
        self.own.iter().filter(ran).map(|((_, function), _)| function.clone()).collect()
    }
}

impl InstructionCounts {
    /// The part of a longer run's difference that belongs to the operations.
    ///
    /// It consists of the functions of `object` that call `library` for each operation, their
    /// callers and their callees. Other work of the program, such as measuring the clock rate, is
    /// not proportional to the operations and does not count.
    pub(super) fn timed_loop(&self, object: &Path, library: &Path, steady: LoopShape) -> Result<TimedLoop> {
        let seldom = 0.5 / steady.list as f64;
        let each: Vec<_> = self.calls.iter().filter(|(_, calls)| calls.count >= seldom).collect();
        let inside = |function: &Function| is(&function.0, object);
        let mut functions: BTreeSet<&Function> = each
            .iter()
            .filter(|((caller, callee), _)| inside(caller) && is(&callee.0, library))
            .map(|((caller, _), _)| caller)
            .collect();
        ensure!(!functions.is_empty(), "{} calls {} for no operation", object.display(), library.display());
        let mut known = 0;
        while known < functions.len() {
            known = functions.len();
            for ((caller, callee), _) in &each {
                if inside(caller)
                    && inside(callee)
                    && (functions.contains(caller) || functions.contains(callee))
                {
                    functions.extend([caller, callee]);
                }
            }
        }
        let mut timed = TimedLoop::default();
        for ((_, address), times) in
            self.addresses.iter().filter(|((function, _), _)| functions.contains(function))
        {
            *timed.times.entry(*address).or_default() += times;
        }
        (timed.own, timed.by_chance) = match steady.waits {
            false => (functions.iter().filter_map(|function| self.own.get(function)).sum(), 0.0),
            true => without_waiting(&timed.times.values().copied().collect::<Vec<_>>())?,
        };
        let outside =
            self.calls.iter().filter(|((caller, callee), _)| functions.contains(caller) && !inside(callee));
        for ((_, callee), calls) in outside {
            if !is(&callee.0, library) && calls.count >= seldom {
                timed.own += calls.instructions;
                *timed.foreign.entry(callee.1.clone()).or_default() += calls.count;
            }
        }
        Ok(timed)
    }
}

/// The instructions of an operation that does not have to wait, from how often each instruction ran
/// for an operation.
///
/// Waiting is a loop with many rounds for some operations. Its instructions run once in each round;
/// those on its exit path run once for each operation, or twice if two waits share them. If all of
/// them are on the exit path, the loop is only its test. Other instructions run for each operation
/// or for none, and work done once in many rounds does not count.
///
/// The second result has the instructions that only some operations reach, because they look before
/// or after the event that they wait for. They count in full, as if each operation executed them.
fn without_waiting(times: &[f64]) -> Result<(f64, f64)> {
    let is_steady = |times: f64| is_whole(times) && times < 3.5;
    let (steady, mut rest): (Vec<f64>, Vec<f64>) = times.iter().partition(|times| is_steady(**times));
    rest.sort_by(f64::total_cmp);
    let longest = rest.last().copied().unwrap_or_default();
    let mut sum = steady.iter().map(|times| times.round()).sum::<f64>();
    let mut by_chance = 0.0;
    while let Some(most) = rest.pop() {
        let is_of_loop = |times: &f64| is_whole(most - times) && most - times < 3.5;
        let (mut rounds, others): (Vec<f64>, Vec<f64>) = rest.iter().partition(|times| is_of_loop(times));
        rounds.push(most);
        rest = others;
        let fewest = rounds.iter().copied().fold(most, f64::min);
        let has_body = most - fewest > 0.5;
        if most > 1.0 && (has_body || most == longest) {
            let once = if has_body { 0.0 } else { 1.0 };
            sum += rounds.iter().map(|times| (times - fewest).round() + once).sum::<f64>();
            continue;
        }
        // A single look before the loop happens by chance. Work done once in N operations is
        // regular.
        let is_chance = most < 1.0 && !is_whole(1.0 / most);
        let is_seldom = most < 0.1 || most < longest / 100.0;
        ensure!(
            is_seldom || is_chance,
            "one instruction ran {most} times for each operation, another {longest} times"
        );
        if !is_seldom {
            by_chance += rounds.len() as f64;
        }
    }
    Ok((sum, by_chance))
}

fn is_whole(times: f64) -> bool {
    (times - times.round()).abs() < WHOLE
}

/// The address of a line, which may be relative to the previous one.
fn follow(before: u64, line: &str) -> Result<u64> {
    let word = line.split_whitespace().next().unwrap_or_default();
    let value = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    let address = match (word.strip_prefix('+'), word.strip_prefix('-')) {
        _ if word == "*" => Ok(before),
        (Some(further), _) => value(further).map(|by| before.wrapping_add(by)),
        (_, Some(back)) => value(back).map(|by| before.wrapping_sub(by)),
        _ => value(word),
    };
    address.with_context(|| format!("not callgrind's: {line}"))
}

fn number(words: &str, index: usize, line: &str) -> Result<f64> {
    let word = words.split_whitespace().nth(index).unwrap_or("0");
    word.parse().with_context(|| format!("not callgrind's: {line}"))
}

fn is(name: &str, object: &Path) -> bool {
    Path::new(name).canonicalize().is_ok_and(|name| Some(name) == object.canonicalize().ok())
        || Path::new(name) == object
}

/// Callgrind defines a name as `(3) name` and refers to it as `(3)` afterwards.
#[derive(Default)]
struct NameTable(BTreeMap<String, String>);

impl NameTable {
    fn get(&mut self, text: &str) -> Result<String> {
        let Some((number, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')')) else {
            return Ok(text.to_owned());
        };
        let name = name.trim_start();
        if !name.is_empty() {
            self.0.insert(number.to_owned(), name.to_owned());
        }
        self.0.get(number).cloned().with_context(|| format!("callgrind never defines the name {number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "version: 1\nevents: Ir\n\nob=(1) /p\nfl=(1) a.c\nfn=(1) main\n16 10\n+2 5\ncob=(2) /l\n\
                       cfn=(2) post\ncalls=3 50\n+1 900\n20 1\n\nob=(2)\nfn=(2)\n50 900\n\nob=(1)\nfn=(1)\n* 4\n";

    #[test]
    fn calls_are_not_counted_with_the_caller() {
        let counts = InstructionCounts::parse(RUN).unwrap();
        assert_eq!(counts.of_object(Path::new("/p")), 20.0);
        assert_eq!(counts.outside(Path::new("/p")), 900.0);
        assert_eq!(counts.functions_of(Path::new("/p")), ["main"]);
    }

    #[test]
    fn a_loop_is_what_calls_for_each_operation() {
        let run = |n: u64, clock: u64| {
            format!(
                "events: Ir\nob=(1) /p\nfn=(1) main\n1 50\ncfn=(2) run\ncalls=1 1\n1 9999\ncfn=(3) clock\n\
                 calls=1 1\n1 {clock}\n\nfn=(2)\n1 {}\ncfn=(4) one\ncalls={n} 1\n1 {}\n\nfn=(4)\n1 {}\n\
                 cob=(2) /l\ncfn=(5) post\ncalls={n} 1\n1 {}\ncfn=(6) note\ncalls={n} 1\n1 {}\n\nfn=(6)\n1 {}\n\n\
                 fn=(3)\n1 {clock}\n\nob=(2)\nfn=(5)\n1 {}\n",
                10 * n + 7,
                100 * n,
                20 * n,
                70 * n,
                2 * n,
                2 * n,
                70 * n,
            )
        };
        let counts = |n, clock| InstructionCounts::parse(&run(n, clock)).unwrap();
        let each = counts(300, 7_000_000).more_than(&counts(100, 1000), 200);
        let steady = LoopShape { list: 1, waits: false };
        let timed = each.timed_loop(Path::new("/p"), Path::new("/l"), steady).unwrap();
        assert_eq!((timed.own, timed.foreign.len()), (32.0, 0));
        assert!(each.timed_loop(Path::new("/l"), Path::new("/p"), steady).is_err());
        // With another library the callees belong to the program.
        let other = each.timed_loop(Path::new("/p"), Path::new("/p"), steady).unwrap();
        assert_eq!((other.own, other.foreign), (102.0, BTreeMap::from([("post".to_owned(), 1.0)])));
    }

    #[test]
    fn waiting_is_left_out() {
        // Two instructions for each operation, a test of two, one that waits, and one that is rare.
        assert_eq!(without_waiting(&[1.0, 1.004, 1.03, 1.03, 0.03, 0.0]).unwrap(), (4.0, 0.0));
        assert_eq!(without_waiting(&[1.0, 1.004, 15.94, 15.94, 14.94, 0.003]).unwrap(), (4.0, 0.0));
        assert_eq!(without_waiting(&[1.0, 3.3, 2.3]).unwrap(), (2.0, 0.0));
        // A loop that is only its test, and one with an exit path that two waits share.
        assert_eq!(without_waiting(&[1.0, 1.004, 1.0, 1.0, 4900.65, 4900.65, 1.2]).unwrap(), (6.0, 0.0));
        assert_eq!(without_waiting(&[1.0, 2.0, 6.4, 4.4]).unwrap(), (5.0, 0.0));
        // Two separate waits; the shorter one often has no rounds.
        assert_eq!(without_waiting(&[1.0, 59.03, 58.03, 1.87, 1.87, 0.87]).unwrap(), (4.0, 0.0));
        assert_eq!(without_waiting(&[1.0, 590.03, 589.03, 1.87, 0.87, 0.3]).unwrap(), (3.0, 0.0));
        // A look before the loop that few operations reach; and work for every third operation.
        assert_eq!(without_waiting(&[1.0, 1.0, 0.361, 0.361, 0.22]).unwrap(), (2.0, 3.0));
        assert!(without_waiting(&[1.0, 0.333, 0.333]).is_err());
        assert!(without_waiting(&[1.0, 15.5, 0.5]).is_err());
    }

    #[test]
    fn instructions_are_told_by_their_addresses() {
        let text = "positions: instr line\nevents: Ir\nob=(1) /p\nfn=(1) run\n0x10 1 100\n+4 * 300\n\
                    cob=(2) /l\ncfn=(2) post\ncalls=100 0x99\n* * 5000\n-4 +1 1\n\nob=(2)\nfn=(2)\n0x99 3 5000\n";
        let counts = InstructionCounts::parse(text).unwrap();
        let times = |address| counts.addresses.get(&(("/p".to_owned(), "run".to_owned()), address)).copied();
        assert_eq!((times(0x10), times(0x14)), (Some(101.0), Some(300.0)));
        assert_eq!(counts.of_object(Path::new("/p")), 401.0);
        assert_eq!(counts.of_object(Path::new("/l")), 5000.0);
    }

    #[test]
    fn an_operation_is_what_the_longer_run_has_more() {
        let long = RUN.replace("16 10", "16 110").replace("50 900", "50 2900");
        let counts =
            InstructionCounts::parse(&long).unwrap().more_than(&InstructionCounts::parse(RUN).unwrap(), 100);
        assert_eq!((counts.of_object(Path::new("/p")), counts.outside(Path::new("/p"))), (1.0, 20.0));
        assert!(InstructionCounts::parse("nothing").is_err());
    }
}
