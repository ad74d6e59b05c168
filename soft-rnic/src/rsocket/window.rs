//! Credit-based flow control: no message is sent without a posted receive.
//!
//! A side begins with one *credit* for each receive of the other side, and each message takes one.
//! Every message returns credits for the receives that its sender has reposted. A separate credit
//! message is due when a quarter of a side's receives are unreported.
//!
//! Credit messages need credits, too, so data leaves the last [`RESERVE`] to them. Between two
//! messages from the other side, a side can use up all its receives at most once, which makes four
//! credit messages. The end of the stream is one more message. Therefore a side that has read can
//! always return credits.

/// The credits that data leaves to control messages.
pub(super) const RESERVE: u32 = 8;

/// The credit counters of one side.
#[derive(Debug)]
pub(super) struct CreditWindow {
    /// The number of the peer's receives, and how many of them are free.
    theirs: u32,
    credits: u32,
    /// The number of our receives, and how many reposted ones the peer does not know of yet.
    ours: u32,
    unreturned_credits: u32,
}

impl CreditWindow {
    pub(super) fn new(ours: u16, theirs: u16) -> Self {
        Self { theirs: theirs.into(), credits: theirs.into(), ours: ours.into(), unreturned_credits: 0 }
    }

    pub(super) fn has_room_for_data(&self) -> bool {
        self.credits > RESERVE
    }

    pub(super) fn has_room(&self) -> bool {
        self.credits > 0
    }

    /// Takes a credit for a message; returns the credits that the message returns to the peer.
    pub(super) fn send(&mut self) -> u16 {
        self.credits -= 1;
        let returned = self.unreturned_credits.min(u16::MAX.into());
        self.unreturned_credits -= returned;
        returned as u16
    }

    /// Adds credits that the peer returned; returns `false` if the peer returned more than it has
    /// receives.
    #[must_use]
    pub(super) fn gain(&mut self, credits: u16) -> bool {
        self.credits += u32::from(credits);
        self.credits <= self.theirs
    }

    /// Counts a reposted receive; returns `false` if the peer sends without credits.
    #[must_use]
    pub(super) fn note_received(&mut self) -> bool {
        self.unreturned_credits += 1;
        self.unreturned_credits <= self.ours
    }

    /// Whether a credit message is due.
    pub(super) fn is_due(&self) -> bool {
        self.unreturned_credits >= self.ours / 4
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::message::LEAST_SLOTS;
    use super::*;

    /// A side that sends as much as it can, and reads only when told to.
    struct WindowSide {
        window: CreditWindow,
        /// The messages in its receives: whether each is data, and the credits that it returns.
        received: std::collections::VecDeque<(bool, u16)>,
        data: u32,
    }

    fn send(from: &mut WindowSide, to: &mut WindowSide, is_data: bool) {
        let credits = from.window.send();
        to.received.push_back((is_data, credits));
        assert!(to.received.len() as u32 <= to.window.ours, "no receive");
    }

    /// Takes received messages; data stays in its receive unless the side reads it.
    fn read(side: &mut WindowSide, other: &mut WindowSide, most: usize) {
        let mut unread = 0;
        while let Some(&(is_data, credits)) = side.received.get(unread) {
            assert!(side.window.gain(credits));
            side.received[unread].1 = 0;
            if is_data && side.data as usize >= most {
                unread += 1;
                continue;
            }
            side.received.remove(unread);
            side.data += u32::from(is_data);
            assert!(side.window.note_received());
            if side.window.is_due() {
                assert!(side.window.has_room(), "a side that has read can return credits");
                send(side, other, false);
            }
        }
        side.data = 0;
    }

    /// In any order of reads and writes, each message finds a receive, no credit is lost, and in
    /// the end both sides can send again.
    #[test]
    fn nobody_is_stuck_or_overrun() {
        let mut random = 1_u64;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for (one, two) in [(LEAST_SLOTS, LEAST_SLOTS), (16, 200), (64, 17), (128, 128)] {
            let side = |ours, theirs| WindowSide {
                window: CreditWindow::new(ours, theirs),
                received: std::collections::VecDeque::new(),
                data: 0,
            };
            let mut sides = [side(one, two), side(two, one)];
            let rounds = if cfg!(miri) { 60 } else { 20_000 };
            for _ in 0..rounds {
                let [a, b] = &mut sides;
                let (from, to) = if next(2) == 0 { (a, b) } else { (b, a) };
                match next(3) {
                    0 => read(from, to, next(40) as usize),
                    _ => {
                        for _ in 0..next(200) {
                            if from.window.has_room_for_data() {
                                send(from, to, true);
                            }
                        }
                    }
                }
            }
            for _ in 0..8 {
                let [a, b] = &mut sides;
                read(a, b, usize::MAX);
                read(b, a, usize::MAX);
            }
            for side in &sides {
                assert!(side.window.has_room_for_data(), "{:?}", side.window);
            }
            let total = |a: &CreditWindow, b: &CreditWindow| (a.credits + b.unreturned_credits, b.ours);
            let [a, b] = &sides;
            assert_eq!(total(&a.window, &b.window).0, total(&a.window, &b.window).1);
            assert_eq!(total(&b.window, &a.window).0, total(&b.window, &a.window).1);
        }
    }

    #[test]
    fn more_than_there_are_receives_cannot_be() {
        let mut window = CreditWindow::new(16, 16);
        assert!(!window.gain(1));
        let mut window = CreditWindow::new(16, 16);
        assert!((0..16).all(|_| window.note_received()));
        assert!(!window.note_received());
    }
}
