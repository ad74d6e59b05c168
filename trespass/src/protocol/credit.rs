//! Credit-based flow control: one credit is one posted receive. All totals are cumulative and wrap
//! at 2^32.
//!
//! Data frames leave the last [`RESERVE`] credits unused, so that CREDIT, RFIN, FIN, FIN_ACK and
//! RESET can always be sent. This cannot stall, even if both sides' programs have stopped reading
//! and both windows are closed:
//!
//! 1. A control frame carries no data to hold, so its receive is reposted at once, whatever the
//!    quota. The receive is then *owed*.
//! 2. The last credit is spent only on a frame that grants something new. After both sides have
//!    spent all their credits, each therefore finds at least one credit in the other's last frame.
//! 3. A side that owes [`RETURNED`] credits to a peer that knows of fewer than it needs for the
//!    reserve sends CREDIT. With a reserve of 3 a side may spend two credits before it needs an
//!    answer, and those two make the peer owe the answer.
//! 4. One CREDIT makes a peer owe one credit, which is less than `RETURNED`. CREDITs that answer
//!    CREDITs therefore halve each time, and end. (BLOCKED is answered at once, but only data
//!    carries it.)
//!
//! A reserve of 2 has no solution. Either one frame must be answered by a CREDIT, which is a frame,
//! so that they never end; or two frames empty both sides at once.
//!
//! # Windows
//!
//! A side may start with fewer receives than it may ever post ([`CreditWindow`]), so that an idle
//! connection uses little memory. Its window doubles when the peer's last data frame says that it
//! has more ([`BLOCKED`]). A granted credit cannot be revoked, but it need not be granted again. If
//! a peer has not asked for more within [`CALM`] times its receives, its window is halved, and
//! shrinks as the credits are used.
//!
//! A window must be at least [`FIRST_SLOTS_MIN`]. With one receive less, data and a CREDIT would
//! leave a peer no credit for data, and the one credit that it is owed does not trigger a CREDIT
//! (point 4).

use super::failure::ProtocolError;
use super::frame::{BLOCKED, Header};
use super::setup::LinkType;

/// Credits that data frames never use.
pub(crate) const RESERVE: u32 = 3;
/// Credits of control frames that are returned to a peer whose window is closed.
const RETURNED: u32 = 2;

/// The smallest window: the reserve, and enough receives for data that their credits are returned.
pub(crate) const FIRST_SLOTS_MIN: u32 = RESERVE + RETURNED;
// `credit_due` relies on it.
const _: () = assert!(FIRST_SLOTS_MIN / 2 >= RETURNED);
/// The window is halved after data frames for this many times its receives, none of which left the
/// peer with more to send.
const CALM: u32 = 8;

/// The receives that a side grants: at first, and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CreditWindow {
    pub(crate) first: u32,
    pub(crate) most: u32,
}

/// The credits of both directions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Credits {
    counted: bool,
    /// Frames sent to the peer.
    sent: u32,
    /// Receives that the peer has granted.
    granted: u32,
    /// The most receives that the peer can have posted.
    peer_slots: u32,
    /// Receives posted here.
    posted: u32,
    /// Frames received.
    received: u32,
    /// Receives granted to the peer.
    announced: u32,
    /// The number of receives to have posted now.
    window: u32,
    own: (u32, u32),
    /// Data frames since the peer last had more to send, or the window last changed.
    calm: u32,
    /// Receives used by data that are not reposted before the program has read.
    withheld: u32,
    peer_blocked: bool,
}

impl Credits {
    /// Each side has granted its first slots in the handshake. This side must still post its own.
    pub(crate) fn new(link: LinkType, own: CreditWindow, peer: CreditWindow) -> Self {
        Credits::starting_at(0, link, own, peer)
    }

    /// Starts all totals at `start`, for tests of their wrap.
    pub(crate) fn starting_at(start: u32, link: LinkType, own: CreditWindow, peer: CreditWindow) -> Self {
        Credits {
            counted: link == LinkType::Rc,
            sent: start,
            granted: start.wrapping_add(peer.first),
            peer_slots: peer.most,
            posted: start,
            received: start,
            announced: start.wrapping_add(own.first),
            window: own.first,
            own: (own.first, own.most),
            calm: 0,
            withheld: 0,
            peer_blocked: false,
        }
    }

    /// Whether the link uses credits.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted
    }

    /// The number of frames that can still be sent.
    pub(crate) fn left(&self) -> u32 {
        self.granted.wrapping_sub(self.sent)
    }

    /// Whether a data frame may be sent.
    pub(crate) fn allows_data(&self) -> bool {
        !self.counted || self.left() > RESERVE
    }

    /// The number of data frames that the peer has free receives for. Not counted on TCP.
    pub(crate) fn left_for_data(&self) -> usize {
        if self.counted { self.left().saturating_sub(RESERVE) as usize } else { usize::MAX }
    }

    /// Whether a control frame may be sent.
    pub(crate) fn allows_control(&self) -> bool {
        !self.counted || self.left() > 1 || (self.left() == 1 && self.owed() > 0)
    }

    /// Whether a RESET may be sent, after which no frame needs a credit.
    pub(crate) fn allows_reset(&self) -> bool {
        !self.counted || self.left() > 0
    }

    /// Counts a frame to the peer; returns its sequence number, and the total that it grants.
    pub(crate) fn spend(&mut self) -> (u32, u32) {
        debug_assert!(!self.counted || self.left() > 0);
        let seq = self.sent;
        self.sent = self.sent.wrapping_add(1);
        if !self.counted {
            return (seq, 0);
        }
        self.announced = self.announced.wrapping_add(self.owed());
        self.peer_blocked &= self.known() <= RESERVE;
        (seq, self.announced)
    }

    /// Counts a frame from the peer: its sequence number, its grant, and whether the peer is
    /// blocked.
    #[inline]
    pub(crate) fn receive(&mut self, header: &Header) -> Result<(), ProtocolError> {
        let Header { seq, credit_total: total, flags, .. } = *header;
        if seq != self.received {
            return Err(ProtocolError::Sequence { expected: self.received, came: seq });
        }
        if self.counted && self.known() == 0 {
            return Err(ProtocolError::Overdrawn { granted: self.announced });
        }
        let impossible =
            ProtocolError::Grant { total, granted: self.granted, sent: self.sent, most: self.peer_slots };
        if self.counted {
            let left = total.wrapping_sub(self.sent);
            if left < self.left() || left > self.peer_slots {
                return Err(impossible);
            }
            self.granted = total;
        } else if total != 0 {
            return Err(impossible);
        }
        self.received = self.received.wrapping_add(1);
        if header.kind.is_data() {
            self.adapt(flags & BLOCKED != 0);
        }
        self.peer_blocked = flags & BLOCKED != 0 || (self.peer_blocked && !header.kind.is_data());
        Ok(())
    }

    /// Grows the window for a peer that has more than it holds, and shrinks it for one that has not
    /// for long.
    fn adapt(&mut self, has_more: bool) {
        let (first, most) = self.own;
        self.calm += 1;
        if has_more {
            self.window = self.window.saturating_mul(2).min(most);
        } else if self.calm / CALM >= self.window {
            self.window = (self.window / 2).max(first);
        } else {
            return;
        }
        self.calm = 0;
    }

    /// The number of frames received, which is the next one's sequence number.
    pub(crate) fn received(&self) -> u32 {
        self.received
    }

    /// How many of the frames sent to the peer were sent after its first `total`.
    pub(crate) fn sent_after(&self, total: u32) -> u32 {
        self.sent.wrapping_sub(total)
    }

    /// The total that the peer has granted.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// The number below which the peer has certainly received every frame, because it grants no more
    /// than its receives.
    pub(crate) fn received_by_peer(&self) -> u32 {
        self.granted.wrapping_sub(self.peer_slots)
    }

    /// The number of frames sent, which is the next one's sequence number.
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// The total that this side has granted.
    pub(crate) fn announced(&self) -> u32 {
        self.announced
    }

    /// Receives that are posted and unused.
    pub(crate) fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.received)
    }

    /// Posted receives that the peer does not know of.
    #[inline]
    pub(crate) fn owed(&self) -> u32 {
        let owed = self.posted.wrapping_sub(self.announced) as i32;
        owed.max(0) as u32
    }

    /// Receives that the peer knows of and has not used, as far as this side has seen.
    fn known(&self) -> u32 {
        self.announced.wrapping_sub(self.received)
    }

    /// The number of receives to post now. For TCP any number stands for reading on, and 0 for not
    /// reading.
    pub(crate) fn wanted(&self) -> u32 {
        if !self.counted {
            return if self.withheld > 0 { 0 } else { self.window };
        }
        let within = self.window.saturating_sub(self.outstanding().saturating_add(self.withheld));
        // More may be withheld than a window that has shrunk since. The receives of control frames
        // are replaced nevertheless.
        within.max(RESERVE.saturating_sub(self.outstanding()))
    }

    /// Counts `n` posted receives.
    pub(crate) fn post(&mut self, n: u32) {
        self.posted = self.posted.wrapping_add(n);
        debug_assert!(!self.counted || self.outstanding() <= self.own.1);
    }

    /// Withholds the last frame's receive for now.
    pub(crate) fn withhold(&mut self) {
        self.withheld += 1;
    }

    /// Releases all withheld receives.
    pub(crate) fn release(&mut self) {
        self.withheld = 0;
    }

    /// Whether to send a CREDIT if no other frame is sent. One reason is that half the slots are
    /// owed. Another is that the peer's last data frame said that it has more, and the credit would
    /// let it continue. The third is that the peer may be unable to send, unless only a CREDIT of
    /// the peer caused that.
    #[inline(always)]
    pub(crate) fn credit_due(&self) -> bool {
        // Usually nothing is owed, or the one receive that replaces the last frame's.
        let owed = self.owed();
        (owed >= RETURNED || self.peer_blocked) && self.owes_enough(owed)
    }

    fn owes_enough(&self, owed: u32) -> bool {
        if owed == 0 || !self.counted {
            return false;
        }
        let opens = self.outstanding() > RESERVE;
        let blocked = self.peer_blocked && opens;
        let data_stopped = owed >= RETURNED && opens && self.known() <= RESERVE;
        let reserve_used = owed >= RETURNED && self.known() + RETURNED <= RESERVE;
        // The driver may have had no room for the whole window.
        let window = self.window.min(self.outstanding().saturating_add(self.withheld).max(self.own.0));
        owed >= window / 2 || blocked || data_stopped || reserve_used
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;
    use crate::protocol::frame::FrameType;

    const SLOTS: u32 = 16;

    fn pair_of(start: u32, window: CreditWindow) -> [Credits; 2] {
        let credits = || Credits::starting_at(start, LinkType::Rc, window, window);
        let mut pair = [credits(), credits()];
        pair.iter_mut().for_each(|side| side.post(window.first));
        pair
    }

    fn pair(start: u32) -> [Credits; 2] {
        pair_of(start, CreditWindow { first: SLOTS, most: SLOTS })
    }

    fn header(kind: FrameType, flags: u8, (seq, credit_total): (u32, u32)) -> Header {
        Header { kind, flags, count: 0, seq, credit_total, len: 0 }
    }

    /// `from` sends data until only the reserve is left, and `to` reposts none of it.
    fn close_window(from: &mut Credits, to: &mut Credits, last_flags: u8) {
        while from.allows_data() {
            let flags = if from.left() == RESERVE + 1 { last_flags } else { 0 };
            to.receive(&header(FrameType::Data, flags, from.spend())).unwrap();
            to.withhold();
            assert_eq!(to.wanted(), 0);
        }
        assert_eq!(from.left(), RESERVE);
    }

    /// A window shrinks, and data then uses all that was granted before it did.
    #[test]
    fn receives_of_control_frames_are_replaced_in_a_window_that_has_shrunk() {
        let [mut from, mut to] = pair_of(0, CreditWindow { first: 5, most: SLOTS });
        let carry = |from: &mut Credits, to: &mut Credits, kind, flags| {
            to.receive(&header(kind, flags, from.spend())).unwrap();
        };
        let answer = |from: &mut Credits, to: &mut Credits| {
            to.post(to.wanted());
            from.receive(&header(FrameType::Credit, 0, to.spend())).unwrap();
            from.post(1);
        };
        while to.window < SLOTS {
            carry(&mut from, &mut to, FrameType::Data, BLOCKED);
            answer(&mut from, &mut to);
        }
        while to.window == SLOTS {
            answer(&mut from, &mut to);
            carry(&mut from, &mut to, FrameType::Data, 0);
        }
        while from.allows_data() {
            carry(&mut from, &mut to, FrameType::Data, 0);
            to.withhold();
        }
        assert!(to.withheld > to.window && to.wanted() == 0);
        carry(&mut from, &mut to, FrameType::Rfin, 0);
        assert_eq!(to.wanted(), 1);
    }

    /// The state of two sides whose programs do not read: the control frames that each has yet to
    /// send, and those in flight.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Stalled {
        sides: [Credits; 2],
        to_say: [u32; 2],
        wires: [VecDeque<(u32, u32)>; 2],
    }

    impl Stalled {
        fn next(&self) -> Vec<Stalled> {
            let mut next = Vec::new();
            for side in 0..2 {
                let mut say = |credit: bool| {
                    let mut state = self.clone();
                    state.to_say[side] -= u32::from(!credit);
                    let spent = state.sides[side].spend();
                    state.wires[1 - side].push_back(spent);
                    next.push(state);
                };
                if self.sides[side].allows_control() {
                    if self.to_say[side] > 0 {
                        say(false);
                    }
                    if self.sides[side].credit_due() {
                        say(true);
                    }
                }
                if let Some(spent) = self.wires[side].front() {
                    let mut state = self.clone();
                    state.wires[side].pop_front();
                    state.sides[side].receive(&header(FrameType::Rfin, 0, *spent)).unwrap();
                    assert_eq!(state.sides[side].wanted(), 1, "what brings no data is replaced at once");
                    state.sides[side].post(1);
                    next.push(state);
                }
            }
            next
        }
    }

    impl Stalled {
        /// Like `next`, with data to send, whose receives are reposted at once.
        fn next_of_data(&self) -> Vec<Stalled> {
            let mut next = Vec::new();
            for side in 0..2 {
                let credits = &self.sides[side];
                let says_data = self.to_say[side] > 0 && credits.allows_data();
                let says_credit = credits.credit_due() && credits.allows_control();
                for data in [true, false] {
                    if !(if data { says_data } else { says_credit }) {
                        continue;
                    }
                    let mut state = self.clone();
                    state.to_say[side] -= u32::from(data);
                    let stops = data && credits.left() <= RESERVE + 1 && state.to_say[side] > 0;
                    let (seq, total) = state.sides[side].spend();
                    // The flags travel in the sequence number, which has spare bits here.
                    let marks = u32::from(data) << 30 | u32::from(stops) << 29;
                    state.wires[1 - side].push_back((seq | marks, total));
                    next.push(state);
                }
                if let Some((marked, total)) = self.wires[side].front().copied() {
                    let mut state = self.clone();
                    state.wires[side].pop_front();
                    let kind = if marked & 1 << 30 != 0 { FrameType::Data } else { FrameType::Credit };
                    let flags = if marked & 1 << 29 != 0 { BLOCKED } else { 0 };
                    let spent = (marked & !(3 << 29), total);
                    state.sides[side].receive(&header(kind, flags, spent)).unwrap();
                    let wanted = state.sides[side].wanted();
                    state.sides[side].post(wanted);
                    next.push(state);
                }
            }
            next
        }
    }

    /// Explores every order of events. Both windows are closed to data, and both sides have more
    /// control frames than the reserve. None stalls, and the number of states is finite, so that
    /// the exchange also ends.
    #[test]
    fn control_frames_never_stall_and_never_ping_pong() {
        for slots in [SLOTS, FIRST_SLOTS_MIN] {
            control_frames_go_while_data_is_blocked(slots);
        }
    }

    fn control_frames_go_while_data_is_blocked(slots: u32) {
        for (first, second) in [(0, 5), (1, 1), (2, 3), (4, 4), (5, 3)] {
            let mut sides = pair_of(u32::MAX - 17, CreditWindow { first: slots, most: slots });
            let [a, b] = &mut sides;
            close_window(a, b, 0);
            close_window(b, a, 0);
            let start = Stalled { sides, to_say: [first, second], wires: Default::default() };
            let mut seen = HashSet::from([start.clone()]);
            let mut open = vec![start];
            let mut ends = 0;
            while let Some(state) = open.pop() {
                let next = state.next();
                if next.is_empty() {
                    assert_eq!(state.to_say, [0, 0], "stuck: {:?}", state.sides);
                    ends += 1;
                }
                open.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
                assert!(seen.len() < 200_000, "it never ends");
            }
            assert!(ends > 0);
        }
    }

    /// The quick check of `credit_due` must leave out no case.
    fn assert_due_as_owed(side: &Credits) {
        assert_eq!(side.credit_due(), side.owes_enough(side.owed()), "{side:?}");
    }

    /// Data in both directions, taken at once, in every order with its answers, through the
    /// smallest windows: either side can send again, and with nothing to send, nothing is sent.
    #[test]
    fn the_least_windows_never_stall() {
        let least = CreditWindow { first: FIRST_SLOTS_MIN, most: FIRST_SLOTS_MIN };
        let start = Stalled { sides: pair_of(0, least), to_say: [6, 6], wires: Default::default() };
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        let mut ends = 0;
        while let Some(state) = open.pop() {
            state.sides.iter().for_each(assert_due_as_owed);
            let next = state.next_of_data();
            if next.is_empty() {
                assert_eq!(state.to_say, [0, 0], "stuck: {:?}", state.sides);
                assert!(state.sides.iter().all(Credits::allows_data), "stuck: {:?}", state.sides);
                ends += 1;
            }
            open.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
            assert!(seen.len() < 500_000, "it never ends");
        }
        assert!(ends > 0);
    }

    /// The window grows while the peer has more than it holds, and shrinks again under a peer that
    /// has not.
    #[test]
    fn a_window_grows_with_use_and_shrinks_without() {
        let [mut a, mut b] = pair_of(u32::MAX - 1000, CreditWindow { first: FIRST_SLOTS_MIN, most: 64 });
        let mut say = |flags: u8| {
            assert!(a.allows_data());
            b.receive(&header(FrameType::Data, flags, a.spend())).unwrap();
            let wanted = b.wanted();
            (0..wanted).for_each(|_| {
                b.post(1);
                assert_due_as_owed(&b);
            });
            while b.credit_due() {
                a.receive(&header(FrameType::Credit, 0, b.spend())).unwrap();
                a.post(1);
            }
            (b.window, b.outstanding())
        };
        let grown: Vec<u32> = (0..5).map(|_| say(BLOCKED).0).collect();
        assert_eq!(grown, [10, 20, 40, 64, 64]);
        assert!((1..CALM * 64).all(|_| say(0).0 == 64), "too soon");
        assert_eq!(say(0).0, 32);
        assert_eq!(say(BLOCKED).0, 64);
        let mut frames = 0;
        while say(0) != (FIRST_SLOTS_MIN, FIRST_SLOTS_MIN) {
            frames += 1;
            assert!(frames < 2 * CALM * 64, "it never becomes small");
        }
        assert!(frames > CALM * 64, "at once");
        assert_eq!(say(BLOCKED), (10, 10));
    }

    /// A peer that has used its credits may continue as soon as that helps, even if half the slots
    /// are not free.
    #[test]
    fn a_peer_whose_window_is_closed_hears_of_few_credits() {
        for (flags, due_from) in [(BLOCKED, 1), (0, 2)] {
            let [mut a, mut b] = pair(0);
            close_window(&mut a, &mut b, flags);
            b.release();
            for posted in 1..=3 {
                b.post(1);
                assert_eq!(b.credit_due(), posted >= due_from, "{flags} {posted}");
            }
            let spent = b.spend();
            a.receive(&header(FrameType::Credit, 0, spent)).unwrap();
            assert!(a.allows_data() && !b.credit_due());
        }
    }

    /// Neither further frames of the peer change that, nor a grant that only makes up for them.
    #[test]
    fn a_peer_is_blocked_until_it_can_send_data_again() {
        for crossed in [true, false] {
            let [mut a, mut b] = pair(u32::MAX - 10);
            while a.left() > RESERVE + 1 {
                b.receive(&header(FrameType::Data, 0, a.spend())).unwrap();
            }
            // The peer spends a grant of one, which is in flight when it reports that it is
            // blocked, before it can send data.
            let grant = |b: &mut Credits| {
                b.post(1);
                b.spend()
            };
            let early = crossed.then(|| grant(&mut b));
            b.receive(&header(FrameType::Data, BLOCKED, a.spend())).unwrap();
            b.receive(&header(FrameType::Rfin, 0, a.spend())).unwrap();
            let granted = early.unwrap_or_else(|| grant(&mut b));
            a.receive(&header(FrameType::Data, 0, granted)).unwrap();
            assert_eq!((a.left(), b.known(), b.owed()), (RESERVE, RESERVE, 0));
            assert!(!a.allows_data() && !b.credit_due());
            b.post(1);
            assert!(b.credit_due(), "one more is enough; crossed: {crossed}");
        }
    }

    #[test]
    fn a_peer_with_an_open_window_hears_when_half_is_owed() {
        let [mut a, mut b] = pair(u32::MAX - 5);
        for sent in 1..=SLOTS / 2 {
            assert!(!b.credit_due());
            b.receive(&header(FrameType::Data, 0, a.spend())).unwrap();
            b.post(1);
            assert_eq!(b.owed(), sent);
        }
        assert!(b.credit_due());
        assert!(!a.credit_due());
        a.receive(&header(FrameType::Credit, 0, b.spend())).unwrap();
        assert_eq!(a.left(), SLOTS);
        a.post(1);
        assert!(!a.credit_due() && !b.credit_due(), "a CREDIT is not answered");
    }

    /// Half of what the driver had room for, however large the window may be by now.
    #[test]
    fn a_window_that_is_not_filled_is_told_of_by_halves_of_what_is_there() {
        let [mut a, mut b] = pair_of(0, CreditWindow { first: 8, most: 64 });
        let mut say = |flags: u8| {
            b.receive(&header(FrameType::Data, flags, a.spend())).unwrap();
            assert!(b.wanted() > 0);
            b.post(1);
            let due = b.credit_due();
            if due {
                a.receive(&header(FrameType::Credit, 0, b.spend())).unwrap();
                a.post(1);
            }
            (due, b.window, b.outstanding())
        };
        for window in [16, 32, 64] {
            assert_eq!(say(BLOCKED), (true, window, 8), "a peer that waits is told at once");
        }
        let due: Vec<bool> = (0..12).map(|_| say(0).0).collect();
        assert_eq!(due, [false, false, false, true].repeat(3));
    }

    /// Granted less used credits equal posted and announced receives, also while the totals wrap.
    #[test]
    fn credits_are_conserved_over_the_wrap() {
        let [mut a, mut b] = pair(u32::MAX - 100);
        let mut wrapped = false;
        for turn in 0..300u32 {
            let sent = 1 + turn % 7;
            for _ in 0..sent {
                assert!(a.allows_data());
                b.receive(&header(FrameType::Data, 0, a.spend())).unwrap();
            }
            assert_eq!(b.wanted(), sent);
            b.post(sent);
            assert_eq!(a.left() + b.owed(), b.outstanding());
            assert_eq!(b.outstanding(), SLOTS);
            let spent = b.spend();
            wrapped |= spent.1 < 1000;
            a.receive(&header(FrameType::Data, 0, spent)).unwrap();
            a.post(1);
            assert_eq!(a.left(), SLOTS);
        }
        assert!(wrapped);
    }
}
