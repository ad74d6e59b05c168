//! The payload path over a software device.

use sideway::soft::status::Traffic;

/// The paths, and the messages that this process has moved on each.
#[derive(Clone, Copy, Debug, Default)]
pub struct PayloadPath([(&'static str, u64); 5]);

impl PayloadPath {
    /// The current counts; `None` if no software device is open.
    pub fn now() -> Self {
        let mut sums = Traffic::default().paths().map(|(path, _)| (path, 0));
        for peer in sideway::soft::statistics().map(|statistics| statistics.peers).unwrap_or_default() {
            let moved = peer.traffic.paths();
            sums.iter_mut().zip(moved).for_each(|((_, sum), (_, moved))| *sum += moved.messages);
        }
        Self(sums)
    }

    /// The path that most messages took since `earlier`, if this process moved any.
    pub fn since(self, earlier: Self) -> Option<String> {
        let ways = self.0.into_iter().zip(earlier.0);
        let counts = ways.map(|((path, now), (_, then))| (path, now.saturating_sub(then)));
        let (path, most) = counts.max_by_key(|(_, count)| *count)?;
        (most > 0).then(|| path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_of_most_messages_counts() {
        let before = PayloadPath([("self", 5), ("slot", 0), ("direct", 10), ("process_vm", 2), ("call", 0)]);
        let after = PayloadPath([("self", 5), ("slot", 0), ("direct", 11), ("process_vm", 9), ("call", 0)]);
        assert_eq!(after.since(before).as_deref(), Some("process_vm"));
        assert_eq!(after.since(after), None);
        assert_eq!(before.since(PayloadPath::default()).as_deref(), Some("direct"));
    }
}
