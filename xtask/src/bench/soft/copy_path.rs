//! The path over which the software device copied payload.

use std::fmt;

use anyhow::{Result, ensure};

/// The device's counters, summed over one or more processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::bench) struct CopyPathCounts {
    own: u64,
    direct: u64,
    vm: u64,
    call: u64,
}

/// A path of the software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum CopyPath {
    Own,
    Direct,
    Vm,
    /// A short message lies in the receive request's slot, and is not counted.
    Slot,
}

impl CopyPathCounts {
    /// Sums the counters in the processes' standard error.
    pub(in crate::bench) fn parse(text: &str) -> Result<Self> {
        let mut paths = Self::default();
        let mut found = false;
        for line in text.lines() {
            let Some((_, counts)) = line.split_once("soft-rnic: info: payload of messages: ") else {
                continue;
            };
            let numbers: Vec<u64> = counts.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            ensure!(numbers.len() == 4, "unexpected output of the device: {line}");
            found = true;
            paths.own += numbers[0];
            paths.direct += numbers[1];
            paths.vm += numbers[2];
            paths.call += numbers[3];
        }
        ensure!(found, "the device printed no copy paths: {text}");
        Ok(paths)
    }

    /// Checks that the payload took this path, except for a few messages before the connection
    /// settled.
    pub(in crate::bench) fn must_be(self, path: CopyPath, what: &str) -> Result<()> {
        let all = self.own + self.direct + self.vm + self.call;
        let expected = match path {
            CopyPath::Own => self.own,
            CopyPath::Direct => self.direct,
            CopyPath::Vm => self.vm,
            CopyPath::Slot => {
                ensure!(all <= 200, "{what}: payload took another path than the slot: {self:?}");
                return Ok(());
            }
        };
        ensure!(all > 0, "{what}: no payload was copied");
        ensure!(
            all - expected <= 200.max(all / 100),
            "{what}: expected the path {path}, but the device reports {self:?}"
        );
        Ok(())
    }
}

impl CopyPathCounts {
    /// Checks that at least 19 of 20 messages of a short run took this path.
    pub(in crate::bench) fn must_mostly_be(self, path: CopyPath) -> Result<()> {
        let all = self.own + self.direct + self.vm + self.call;
        let other = match path {
            CopyPath::Own => all - self.own,
            CopyPath::Direct => all - self.direct,
            CopyPath::Vm => all - self.vm,
            CopyPath::Slot => return self.must_be(path, "a run"),
        };
        ensure!(all > 0, "no payload was copied");
        ensure!(
            other <= all / 20,
            "the payload of {other} of {all} messages did not take the path {path}: {self:?}"
        );
        Ok(())
    }
}

impl CopyPathCounts {
    /// The most used path, for rows that do not require one.
    pub(in crate::bench) fn most(self) -> String {
        let Self { own, direct, vm, call } = self;
        let paths = [(own, CopyPath::Own), (direct, CopyPath::Direct), (vm, CopyPath::Vm)];
        match paths.into_iter().max_by_key(|(count, _)| *count) {
            Some((count, path)) if count > 200 && count > call => path.to_string(),
            _ if call > 200 => "the owner's thread".to_owned(),
            _ => CopyPath::Slot.to_string(),
        }
    }
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "own process",
            Self::Direct => "direct",
            Self::Vm => "process_vm",
            Self::Slot => "receive slot",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_went_another_way_is_an_error() {
        let said = |direct: u64, vm: u64| {
            format!(
                "x\n 64 100 1.0soft-rnic: info: payload of messages: 0 within the process, {direct} by shared memory, {vm} by \
                 process_vm, 0 by the owner\n"
            )
        };
        let paths = CopyPathCounts::parse(&said(5000, 3)).unwrap();
        assert!(paths.must_be(CopyPath::Direct, "row").is_ok());
        assert!(paths.must_be(CopyPath::Vm, "row").is_err() && paths.must_be(CopyPath::Slot, "row").is_err());
        assert!(CopyPathCounts::parse(&said(5000, 5000)).unwrap().must_be(CopyPath::Direct, "row").is_err());
        assert!(CopyPathCounts::parse("nothing").is_err());
        assert_eq!(
            (paths.most(), CopyPathCounts { direct: 3, ..CopyPathCounts::default() }.most()),
            ("direct".into(), "receive slot".into())
        );
    }

    #[test]
    fn a_short_run_may_not_go_another_way_altogether() {
        let paths = |direct, vm| CopyPathCounts { direct, vm, ..CopyPathCounts::default() };
        assert!(paths(0, 150).must_be(CopyPath::Direct, "row").is_ok());
        assert!(
            paths(0, 150).must_mostly_be(CopyPath::Direct).is_err()
                && paths(0, 0).must_mostly_be(CopyPath::Vm).is_err()
        );
        assert!(
            paths(0, 3).must_mostly_be(CopyPath::Slot).is_ok()
                && paths(5000, 0).must_mostly_be(CopyPath::Slot).is_err()
        );
        assert!(paths(148, 2).must_mostly_be(CopyPath::Direct).is_ok());
        assert!(paths(100_000, 2000).must_mostly_be(CopyPath::Direct).is_ok());
        assert!(paths(100_000, 9000).must_mostly_be(CopyPath::Direct).is_err());
    }
}
