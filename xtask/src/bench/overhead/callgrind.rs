//! What callgrind wrote: instructions by object and function.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Instructions of the functions themselves, without what they called.
#[derive(Debug, Default)]
pub(super) struct Counts(BTreeMap<(String, String), f64>);

impl Counts {
    /// Reads callgrind's format. (A line after `calls=` is what a call cost as a whole; it is left out.)
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut counts = Self::default();
        let (mut objects, mut functions) = (Names::default(), Names::default());
        let (mut object, mut function) = (String::new(), String::new());
        let mut of_a_call = false;
        let mut ours = false;
        for line in text.lines() {
            if line == "events: Ir" {
                ours = true;
            } else if let Some(name) = line.strip_prefix("ob=") {
                object = objects.get(name)?;
            } else if let Some(name) = line.strip_prefix("cob=") {
                objects.get(name)?;
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = functions.get(name)?;
            } else if let Some(name) = line.strip_prefix("cfn=") {
                functions.get(name)?;
            } else if line.starts_with("calls=") {
                of_a_call = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                if !core::mem::take(&mut of_a_call) {
                    let cost = line.split_whitespace().nth(1).unwrap_or("0");
                    let cost: f64 = cost.parse().with_context(|| format!("not callgrind's: {line}"))?;
                    *counts.0.entry((object.clone(), function.clone())).or_default() += cost;
                }
            }
        }
        ensure!(ours && !counts.0.is_empty(), "callgrind wrote no instruction counts");
        Ok(counts)
    }

    /// What this run has more than a shorter one, by operation.
    pub(super) fn more_than(&self, shorter: &Self, operations: u64) -> Self {
        let mut counts = self.0.clone();
        for (key, count) in &mut counts {
            *count = (*count - shorter.0.get(key).copied().unwrap_or_default()) / operations as f64;
        }
        Self(counts)
    }

    /// Everything in an object.
    pub(super) fn of_object(&self, object: &Path) -> f64 {
        self.0.iter().filter(|((ob, _), _)| is(ob, object)).map(|(_, count)| count).sum()
    }

    /// Everything in the others.
    pub(super) fn outside(&self, object: &Path) -> f64 {
        self.0.iter().filter(|((ob, _), _)| !is(ob, object)).map(|(_, count)| count).sum()
    }

    /// The functions of an object that ran for operations.
    pub(super) fn functions_of(&self, object: &Path) -> Vec<String> {
        let ran = |((ob, _), count): &(&(String, String), &f64)| is(ob, object) && **count > 0.001;
        self.0.iter().filter(ran).map(|((_, function), _)| function.clone()).collect()
    }
}

fn is(name: &str, object: &Path) -> bool {
    Path::new(name).canonicalize().is_ok_and(|name| Some(name) == object.canonicalize().ok())
        || Path::new(name) == object
}

/// `(3) name` the first time, `(3)` from then on.
#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn get(&mut self, text: &str) -> Result<String> {
        let Some((number, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')')) else {
            return Ok(text.to_owned());
        };
        let name = name.trim_start();
        if !name.is_empty() {
            self.0.insert(number.to_owned(), name.to_owned());
        }
        self.0.get(number).cloned().with_context(|| format!("callgrind names {number} nowhere"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "version: 1\nevents: Ir\n\nob=(1) /p\nfl=(1) a.c\nfn=(1) main\n16 10\n+2 5\ncob=(2) /l\n\
                       cfn=(2) post\ncalls=3 50\n+1 900\n20 1\n\nob=(2)\nfn=(2)\n50 900\n\nob=(1)\nfn=(1)\n* 4\n";

    #[test]
    fn calls_are_not_counted_with_the_caller() {
        let counts = Counts::parse(RUN).unwrap();
        assert_eq!(counts.of_object(Path::new("/p")), 20.0);
        assert_eq!(counts.outside(Path::new("/p")), 900.0);
        assert_eq!(counts.functions_of(Path::new("/p")), ["main"]);
    }

    #[test]
    fn an_operation_is_what_the_longer_run_has_more() {
        let long = RUN.replace("16 10", "16 110").replace("50 900", "50 2900");
        let counts = Counts::parse(&long).unwrap().more_than(&Counts::parse(RUN).unwrap(), 100);
        assert_eq!((counts.of_object(Path::new("/p")), counts.outside(Path::new("/p"))), (1.0, 20.0));
        assert!(Counts::parse("nothing").is_err());
    }
}
