//! The system calls of one thread, as strace has written them down.

use std::collections::HashMap;

/// One line of strace, or the two lines of a call that others interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its name, for example `read`.
    pub name: String,
    /// Its arguments, for example `3, "", 64`.
    pub arguments: String,
    /// Its result, for example `0`.
    pub result: String,
}

/// The calls of the thread that calls `mark`, between the first mark and the second one, between the
/// third and the fourth, and so on. `text` is the output of `strace -f -o FILE`.
///
/// # Panics
///
/// If the last mark has no partner.
#[must_use]
pub fn calls_between(text: &str, mark: &str) -> Vec<Vec<SystemCall>> {
    let calls = complete(text);
    let marks: Vec<usize> = (0..calls.len()).filter(|at| calls[*at].1 == mark).collect();
    assert!(marks.len().is_multiple_of(2), "{} marks:\n{text}", marks.len());
    let between = |marks: &[usize]| {
        let thread = calls[marks[0]].0;
        let calls = calls[marks[0] + 1..marks[1]].iter();
        calls.filter(|(caller, _, _)| *caller == thread).map(|(_, name, rest)| call(name, rest)).collect()
    };
    marks.chunks_exact(2).map(between).collect()
}

/// The calls of all threads between the first call of `mark` and the last one, without the marks.
#[must_use]
pub fn calls_within(text: &str, mark: &str) -> Vec<SystemCall> {
    let calls = complete(text);
    let is_mark = |call: &(&str, &str, String)| call.1 == mark;
    let (first, last) = (calls.iter().position(is_mark), calls.iter().rposition(is_mark));
    let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
    let within = calls[first..last].iter().filter(|call| !is_mark(call));
    within.map(|(_, name, rest)| call(name, rest)).collect()
}

fn call(name: &str, rest: &str) -> SystemCall {
    let (arguments, result) = rest.rsplit_once(" = ").unwrap_or((rest, ""));
    let arguments = arguments.trim_end().strip_suffix(')').unwrap_or(arguments).trim_end();
    SystemCall { name: name.to_owned(), arguments: arguments.to_owned(), result: result.to_owned() }
}

/// The calls in the order in which they began: the thread, the name, and the rest of the line. strace
/// writes a call in two lines if another thread makes a call before it returns.
fn complete(text: &str) -> Vec<(&str, &str, String)> {
    let (mut calls, mut unfinished) = (Vec::new(), HashMap::new());
    for (thread, line) in text.lines().filter_map(|line| line.split_once(' ')) {
        let line = line.trim_start();
        if let Some((_, end)) = line.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>")) {
            if let Some(begun) = unfinished.remove(thread) {
                let (_, _, rest): &mut (&str, &str, String) = &mut calls[begun];
                rest.push_str(end);
            }
        } else if let Some((name, rest)) = line.split_once('(').filter(|(name, _)| is_name(name)) {
            let begun = rest.strip_suffix("<unfinished ...>");
            if begun.is_some() {
                unfinished.insert(thread, calls.len());
            }
            calls.push((thread, name, begun.unwrap_or(rest).to_owned()));
        }
    }
    calls
}

/// Signals and exits have other lines.
fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_two_lines_is_one_and_other_threads_are_left_out() {
        let text = "7 brk(NULL) = 0x1\n7  mark(0) = 0\n7 poll([{fd=3}], 1, <unfinished ...>\n\
            8 read(4, \"\", 1) = 0\n7 <... poll resumed>50)   = 0 (Timeout)\n7 --- SIGINT {si_signo=2} ---\n\
            7 mark(0) = 0\n7 brk(NULL) = 0x1\n8 +++ exited with 0 +++\n";
        let poll = call("poll", "[{fd=3}], 1, 50) = 0 (Timeout)");
        assert_eq!(calls_between(text, "mark"), [[poll.clone()]]);
        assert_eq!(calls_within(text, "mark"), [poll, call("read", "4, \"\", 1) = 0")]);
        let SystemCall { name, arguments, result } = call("poll", "[{fd=3}], 1, 50)   = 0 (Timeout)");
        assert_eq!([&*name, &*arguments, &*result], ["poll", "[{fd=3}], 1, 50", "0 (Timeout)"]);
    }
}
