//! Which way payload went.

use std::fmt;

use anyhow::{Result, ensure};

/// What the device counted, of one or more processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::bench) struct Ways {
    own: u64,
    direct: u64,
    vm: u64,
    call: u64,
}

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Way {
    Own,
    Direct,
    Vm,
    /// A message that is short enough lies in the receive request itself: nothing is counted.
    Slot,
}

impl Ways {
    /// Adds up what processes said on their standard error.
    pub(in crate::bench) fn parse(text: &str) -> Result<Self> {
        let mut ways = Self::default();
        let mut found = false;
        for line in text.lines() {
            let Some((_, counts)) = line.split_once("soft-rnic: info: payload of messages: ") else {
                continue;
            };
            let numbers: Vec<u64> = counts.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            ensure!(numbers.len() == 4, "not what the device says: {line}");
            found = true;
            ways.own += numbers[0];
            ways.direct += numbers[1];
            ways.vm += numbers[2];
            ways.call += numbers[3];
        }
        ensure!(found, "the device did not say which way payload went: {text}");
        Ok(ways)
    }

    /// Makes sure that all but what goes before a connection is settled went this way.
    pub(in crate::bench) fn must_be(self, way: Way, what: &str) -> Result<()> {
        let all = self.own + self.direct + self.vm + self.call;
        let expected = match way {
            Way::Own => self.own,
            Way::Direct => self.direct,
            Way::Vm => self.vm,
            Way::Slot => {
                ensure!(all <= 200, "{what}: payload went another way than in the slot: {self:?}");
                return Ok(());
            }
        };
        ensure!(all > 0, "{what}: no payload went any way");
        ensure!(all - expected <= 200.max(all / 100), "{what}: payload did not go {way}, but {self:?}");
        Ok(())
    }
}

impl Ways {
    /// Makes sure that a run of a benchmark, however short, went this way: at least 19 of 20 messages.
    pub(in crate::bench) fn must_mostly_be(self, way: Way) -> Result<()> {
        let all = self.own + self.direct + self.vm + self.call;
        let other = match way {
            Way::Own => all - self.own,
            Way::Direct => all - self.direct,
            Way::Vm => all - self.vm,
            Way::Slot => return self.must_be(way, "a run"),
        };
        ensure!(all > 0, "no payload went any way");
        ensure!(other <= all / 20, "the payload of {other} messages of {all} did not go {way}: {self:?}");
        Ok(())
    }
}

impl Ways {
    /// The way that most went, where it is the row's business to say and not to choose it.
    pub(in crate::bench) fn most(self) -> String {
        let Self { own, direct, vm, call } = self;
        let ways = [(own, Way::Own), (direct, Way::Direct), (vm, Way::Vm)];
        match ways.into_iter().max_by_key(|(count, _)| *count) {
            Some((count, way)) if count > 200 && count > call => way.to_string(),
            _ if call > 200 => "the owner's thread".to_owned(),
            _ => Way::Slot.to_string(),
        }
    }
}

impl fmt::Display for Way {
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
        let ways = Ways::parse(&said(5000, 3)).unwrap();
        assert!(ways.must_be(Way::Direct, "row").is_ok());
        assert!(ways.must_be(Way::Vm, "row").is_err() && ways.must_be(Way::Slot, "row").is_err());
        assert!(Ways::parse(&said(5000, 5000)).unwrap().must_be(Way::Direct, "row").is_err());
        assert!(Ways::parse("nothing").is_err());
        assert_eq!(
            (ways.most(), Ways { direct: 3, ..Ways::default() }.most()),
            ("direct".into(), "receive slot".into())
        );
    }

    #[test]
    fn a_short_run_may_not_go_another_way_altogether() {
        let ways = |direct, vm| Ways { direct, vm, ..Ways::default() };
        assert!(ways(0, 150).must_be(Way::Direct, "row").is_ok());
        assert!(
            ways(0, 150).must_mostly_be(Way::Direct).is_err() && ways(0, 0).must_mostly_be(Way::Vm).is_err()
        );
        assert!(
            ways(0, 3).must_mostly_be(Way::Slot).is_ok() && ways(5000, 0).must_mostly_be(Way::Slot).is_err()
        );
        assert!(ways(148, 2).must_mostly_be(Way::Direct).is_ok());
        assert!(ways(100_000, 2000).must_mostly_be(Way::Direct).is_ok());
        assert!(ways(100_000, 9000).must_mostly_be(Way::Direct).is_err());
    }
}
