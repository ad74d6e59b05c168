//! The parser of fault rules.
//!
//! A rule is an action and conditions, separated by blanks. Line ends or semicolons separate rules;
//! `#` begins a comment that ends with the line.

use std::str::FromStr;
use std::time::Duration;

use super::rule::{Action, FASTEST, MOST_COPIES, Rule, Trait, Which};
use super::words::{Call, CmMessage, ERRNOS, Opcode, QP_TYPES, RATE_UNITS, STATUSES, Step};
use crate::config::{Limits, MAX_DEVICES, MAX_PORTS};

/// A rule that cannot be parsed, with the position of the error.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("fault rule {rule:?} (line {line}, column {column}): {found:?} is not {allowed}")]
#[non_exhaustive]
pub struct RuleError {
    /// The text of the whole rule.
    pub rule: String,
    /// The line of the error; the first line is 1.
    pub line: usize,
    /// The column of the error in characters; the first column is 1.
    pub column: usize,
    /// The text at that position.
    pub found: String,
    /// What the parser accepts there.
    pub allowed: String,
}

debug_as_text!(RuleError);

/// Parses a list of rules.
///
/// # Errors
///
/// The first error in the text.
pub fn parse(text: &str) -> Result<Vec<Rule>, RuleError> {
    let mut rules = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut column = 1;
        for piece in line.split(';') {
            if !piece.trim().is_empty() {
                rules.push(rule(piece, number + 1, column)?);
            }
            column += piece.chars().count() + 1;
        }
    }
    Ok(rules)
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut rules = parse(text)?;
        match rules.pop() {
            Some(rule) if rules.is_empty() => Ok(rule),
            other => Err(RuleError {
                rule: text.to_owned(),
                line: 1,
                column: 1,
                found: text.to_owned(),
                allowed: format!("one rule, but {}", if other.is_none() { "none" } else { "several" }),
            }),
        }
    }
}

/// An error within a part of the text, with its offset in bytes.
struct ParseFailure {
    at: usize,
    found: String,
    allowed: String,
}

fn wrong<T>(at: usize, found: &str, allowed: impl Into<String>) -> Result<T, ParseFailure> {
    Err(ParseFailure { at, found: found.to_owned(), allowed: allowed.into() })
}

fn rule(piece: &str, line: usize, column: usize) -> Result<Rule, RuleError> {
    let located = |ParseFailure { at, found, allowed }: ParseFailure| RuleError {
        rule: piece.trim().to_owned(),
        line,
        column: column + piece[..at].chars().count(),
        found,
        allowed,
    };
    let mut words = words(piece);
    let Some((begin, first)) = words.next() else {
        return wrong(0, "", "a rule").map_err(located);
    };
    let mut rule = Rule::new(action(begin, first).map_err(located)?);
    for (at, word) in words {
        condition(&mut rule, at, word).map_err(located)?;
    }
    match rule.check() {
        Ok(()) => Ok(rule),
        Err(allowed) => wrong(begin, piece.trim(), allowed).map_err(located),
    }
}

/// The words of a text with their offsets.
fn words(piece: &str) -> impl Iterator<Item = (usize, &str)> {
    piece.split_whitespace().map(|word| (word.as_ptr().addr() - piece.as_ptr().addr(), word))
}

/// Splits `NAME` or `NAME=VALUE`, keeping the value's offset.
fn divide(at: usize, word: &str) -> (String, Option<(usize, &str)>) {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some((at + name.len() + 1, value))),
        None => (word, None),
    };
    (plain(name), value)
}

/// Normalises a name: `Port-Down` becomes `port_down`.
fn plain(word: &str) -> String {
    word.to_ascii_lowercase().replace('-', "_")
}

const ACTIONS: &str = "an action: drop[=TIMES], delay=TIME[..TIME], hold=COUNT[:TIME], rate=RATE, hang[=silent], status=STATUS, \
    rnr[=TIMES], flip[=BITS], split=TIME, cq_overrun, srq_limit, port_down[=TIME], port_up, \
    port_flap=TIME[..TIME]:TIME[..TIME][:TIMES], qp_fatal, device_fatal, errno=ERRNO, \
    crash=STEP, stop=STEP, pause=STEP:TIME, duplicate[=TIMES], reject[=REASON], no_gids, no_atomics, node_guid=, vendor_id=, vendor_part_id=, hw_ver=, or a limit such as \
    max_sge=1";

/// The longest wait of a held request, unless the rule gives one.
const HELD: Duration = Duration::from_secs(1);
/// The longest duration that a rule may give.
const LONGEST: Duration = Duration::from_secs(3600);

fn action(begin: usize, word: &str) -> Result<Action, ParseFailure> {
    let (name, value) = divide(begin, word);
    let end = (begin + word.len(), "");
    let needed = value.unwrap_or(end);
    let times = || value.map(|value| number(value, 1, u32::MAX.into()).map(|n| n as u32)).transpose();
    let copies = || value.map_or(Ok(1), |value| number(value, 1, MOST_COPIES.into()).map(|n| n as u32));
    let alone = |action: Action| match value {
        None => Ok(action),
        Some((at, value)) => wrong(at, value, format!("allowed: {name} has no value")),
    };
    let made_as = |of: Trait| Ok(Action::Trait(of));
    match name.as_str() {
        "drop" => Ok(Action::Drop(times()?)),
        "rnr" => Ok(Action::Rnr(times()?)),
        "flip" => Ok(Action::Flip(times()?.unwrap_or(1))),
        "delay" => times_of(needed).map(|(least, most)| Action::Delay(least, most)),
        "rate" => rate(needed).map(Action::Rate),
        "hang" => hang(value),
        "hold" => hold(needed),
        "status" => one_of(needed, STATUSES, "ibv_wc_").map(Action::Status),
        "split" => time(needed).map(Action::Split),
        "cq_overrun" => alone(Action::CqOverrun),
        "srq_limit" => alone(Action::SrqLimit),
        "port_down" => value.map(time).transpose().map(Action::PortDown),
        "port_flap" => port_flap(needed),
        "port_up" => alone(Action::PortUp),
        "qp_fatal" => alone(Action::QpFatal),
        "device_fatal" => alone(Action::DeviceFatal),
        "errno" => errno(needed).map(Action::Errno),
        "crash" => one_of(needed, Step::ALL, "").map(Action::Crash),
        "stop" => one_of(needed, Step::ALL, "").map(Action::Stop),
        "pause" => pause(needed),
        "duplicate" => Ok(Action::Duplicate(copies()?)),
        "reject" => Ok(Action::Reject(
            value.map(|value| number(value, 1, u8::MAX.into())).transpose()?.map(|n| n as u8),
        )),
        "no_gids" => alone(Action::Trait(Trait::NoGids)),
        "no_atomics" => alone(Action::Trait(Trait::NoAtomics)),
        "node_guid" => made_as(Trait::NodeGuid(number(needed, 0, u64::MAX)?)),
        "vendor_id" => made_as(Trait::VendorId(number(needed, 0, u32::MAX.into())? as u32)),
        "vendor_part_id" => made_as(Trait::VendorPartId(number(needed, 0, u32::MAX.into())? as u32)),
        "hw_ver" => made_as(Trait::HwVer(number(needed, 0, u32::MAX.into())? as u32)),
        _ if Limits::has(&name) => {
            let limit = number(needed, 0, u64::MAX)?;
            match Limits::default().set(&name, &limit.to_string()) {
                Ok(()) => made_as(Trait::Limit(name, limit)),
                Err(allowed) => wrong(needed.0, needed.1, allowed),
            }
        }
        _ => wrong(begin, word, ACTIONS),
    }
}

const CONDITIONS: &str = "a condition: device=softN, port=, qpn=, qp_type=, opcode=, size=, call=, cm=, nth=, first=, from=, every= \
    or chance=";

fn condition(rule: &mut Rule, begin: usize, word: &str) -> Result<(), ParseFailure> {
    let (name, value) = divide(begin, word);
    let Some(value) = value else { return wrong(begin, word, CONDITIONS) };
    let count = || number(value, 1, u64::MAX);
    let which = match name.as_str() {
        "device" => {
            rule.device = Some(device(value)?);
            return Ok(());
        }
        "port" => {
            rule.port = Some(number(value, 1, MAX_PORTS.into())? as u8);
            return Ok(());
        }
        "qpn" => {
            rule.qpn = Some(number(value, 1, 0xff_ffff)? as u32);
            return Ok(());
        }
        "qp_type" => {
            rule.qp_types = several(value, QP_TYPES, "ibv_qpt_")?;
            return Ok(());
        }
        "opcode" => {
            rule.opcodes = several(value, Opcode::ALL, "ibv_wr_")?;
            return Ok(());
        }
        "size" => {
            rule.size = Some(size(value)?);
            return Ok(());
        }
        "call" => {
            rule.call = Some(one_of(value, Call::ALL, "ibv_")?);
            return Ok(());
        }
        "cm" => {
            rule.cm = several(value, CmMessage::ALL, "")?;
            return Ok(());
        }
        "nth" => Which::Nth(count()?),
        "first" => Which::First(count()?),
        "from" => Which::From(count()?),
        "every" => Which::Every(count()?),
        "chance" => Which::Chance(chance(value)?),
        _ => return wrong(begin, word, CONDITIONS),
    };
    if rule.which != Which::All {
        return wrong(begin, word, "the only one of nth=, first=, from=, every=, chance=");
    }
    rule.which = which;
    Ok(())
}

fn number((at, text): (usize, &str), least: u64, most: u64) -> Result<u64, ParseFailure> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => wrong(at, text, format!("a number from {least} to {most}")),
    }
}

fn one_of<T: Copy>((at, text): (usize, &str), words: &[(&str, T)], prefix: &str) -> Result<T, ParseFailure> {
    let name = plain(text);
    let name = name.strip_prefix(prefix).unwrap_or(&name);
    let names = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    match words.iter().find(|(word, _)| plain(word) == name) {
        Some((_, value)) => Ok(*value),
        None => wrong(at, text, format!("one of {}", names())),
    }
}

fn several<T: Copy>(
    (at, text): (usize, &str),
    words: &[(&str, T)],
    prefix: &str,
) -> Result<Vec<T>, ParseFailure> {
    let mut at = at;
    text.split(',')
        .map(|part| {
            let value = one_of((at, part), words, prefix);
            at += part.len() + 1;
            value
        })
        .collect()
}

fn errno((at, text): (usize, &str)) -> Result<i32, ParseFailure> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return number((at, text), 1, 4095).map(|error| error as i32);
    }
    one_of((at, text), ERRNOS, "")
}

fn device((at, text): (usize, &str)) -> Result<u8, ParseFailure> {
    let last = MAX_DEVICES - 1;
    let number = text.strip_prefix("soft").and_then(|number| number.parse().ok());
    match number.filter(|number| *number <= last) {
        Some(number) => Ok(number),
        None => wrong(at, text, format!("a device: soft0 to soft{last}")),
    }
}

fn chance((at, text): (usize, &str)) -> Result<f64, ParseFailure> {
    match text.parse() {
        Ok(chance) if (0.0..=1.0).contains(&chance) => Ok(chance),
        _ => wrong(at, text, "a probability from 0 to 1"),
    }
}

fn time((at, text): (usize, &str)) -> Result<Duration, ParseFailure> {
    const UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let with_unit = UNITS.iter().find_map(|(unit, length)| Some((text.strip_suffix(unit)?, length)));
    let seconds = with_unit.and_then(|(number, length)| Some(number.parse::<f64>().ok()? * length));
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match duration.filter(|duration| *duration <= LONGEST) {
        Some(duration) => Ok(duration),
        None => wrong(at, text, "a time of at most an hour with its unit, such as 50us, 1.5ms or 2s"),
    }
}

/// Splits `A..B`, with both offsets; `A` alone stands for `A..A`.
fn range((at, text): (usize, &str)) -> ((usize, &str), (usize, &str)) {
    match text.split_once("..") {
        Some((first, last)) => ((at, first), (at + first.len() + 2, last)),
        None => ((at, text), (at, text)),
    }
}

/// Parses `TIME` or `TIME..TIME`.
fn times_of(value: (usize, &str)) -> Result<(Duration, Duration), ParseFailure> {
    let (first, last) = range(value);
    let (least, most) = (time(first)?, time(last)?);
    if most < least {
        return wrong(value.0, value.1, "a time, or a shorter and a longer one: 1ms..5ms");
    }
    Ok((least, most))
}

fn rate((at, text): (usize, &str)) -> Result<u64, ParseFailure> {
    // Bytes are `B`, so the case of the unit counts, except that both k and K are 1000.
    let text_of_unit = text.replace('K', "k");
    let with_unit =
        RATE_UNITS.iter().find_map(|(unit, bits)| Some((text_of_unit.strip_suffix(unit)?, *bits)));
    let rate = with_unit.and_then(|(number, bits)| Some((number.parse::<f64>().ok()? * bits as f64).round()));
    match rate.filter(|rate| (1.0..=FASTEST as f64).contains(rate)) {
        Some(rate) => Ok(rate as u64),
        None => wrong(
            at,
            text,
            "a rate from 1b/s to 1000Gb/s in bits per second with its unit, such as 800kb/s, 100Mb/s or 1.5Gb/s",
        ),
    }
}

fn hang(value: Option<(usize, &str)>) -> Result<Action, ParseFailure> {
    match value {
        None => Ok(Action::Hang { silent: false }),
        Some((_, word)) if plain(word) == "silent" => Ok(Action::Hang { silent: true }),
        Some((at, word)) => wrong(at, word, "allowed: hang, or hang=silent"),
    }
}

fn port_flap((at, text): (usize, &str)) -> Result<Action, ParseFailure> {
    let Some((down, rest)) = text.split_once(':') else {
        return wrong(at, text, "how long the port is down and up, and how often: 5ms..20ms:100ms:10");
    };
    let at_rest = at + down.len() + 1;
    let (up, times) = match rest.split_once(':') {
        Some((up, times)) => {
            let times = number((at_rest + up.len() + 1, times), 1, u32::MAX.into())?;
            (up, Some(times as u32))
        }
        None => (rest, None),
    };
    Ok(Action::PortFlap { down: times_of((at, down))?, up: times_of((at_rest, up))?, times })
}

fn hold((at, text): (usize, &str)) -> Result<Action, ParseFailure> {
    let (others, most) = match text.split_once(':') {
        Some((others, most)) => (others, time((at + others.len() + 1, most))?),
        None => (text, HELD),
    };
    Ok(Action::Hold(number((at, others), 1, u32::MAX.into())? as u32, most))
}

fn pause((at, text): (usize, &str)) -> Result<Action, ParseFailure> {
    let Some((step, lasting)) = text.split_once(':') else {
        return wrong(at, text, "a step and a time: before_copy:20ms");
    };
    Ok(Action::Pause(one_of((at, step), Step::ALL, "")?, time((at + step.len() + 1, lasting))?))
}

fn size(value: (usize, &str)) -> Result<(u64, u64), ParseFailure> {
    let (first, last) = range(value);
    let least = if first.1.is_empty() { 0 } else { number(first, 0, u64::MAX)? };
    let most = if last.1.is_empty() { u64::MAX } else { number(last, 0, u64::MAX)? };
    if most < least || value.1.is_empty() || value.1 == ".." {
        return wrong(value.0, value.1, "a number of bytes, or a range: 64, 1..64, 4096.. or ..64");
    }
    Ok((least, most))
}
