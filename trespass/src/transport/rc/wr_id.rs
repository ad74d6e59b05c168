//! The encoding of work request ids (`wr_id`): the kind of the request, the generation of its queue
//! pair, and a count.
//!
//! Pairs of one completion queue have generations that differ, so that what is left of one is not taken for the next one's that the device
//! gives the same number.

/// What a number says, beside the pair. Requests of a kind count from 0, and over again after 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    /// Something sent.
    Send(u32),
    /// A receive.
    Receive(u32),
    /// What the handshake sends, before anything else is sent.
    Probe,
}

const RECEIVE: u64 = 1 << 63;
const PROBE: u64 = 1 << 62;
/// Generations are less than this.
pub(super) const GENERATIONS: u32 = 1 << 30;

/// The number of a request.
pub(super) fn encode(generation: u32, request: WrId) -> u64 {
    let pair = u64::from(generation % GENERATIONS) << 32;
    match request {
        WrId::Send(count) => pair | u64::from(count),
        WrId::Receive(count) => RECEIVE | pair | u64::from(count),
        WrId::Probe => PROBE | pair,
    }
}

/// The generation, and the request. Whatever a device says is one.
pub(super) fn decode(number: u64) -> (u32, WrId) {
    let generation = (number >> 32) as u32 % GENERATIONS;
    let count = number as u32;
    let request = match (number & RECEIVE != 0, number & PROBE != 0) {
        (true, _) => WrId::Receive(count),
        (false, true) => WrId::Probe,
        (false, false) => WrId::Send(count),
    };
    (generation, request)
}

/// The count that ends in `low`, the first one from `first` on.
pub(super) fn extend(first: u64, low: u32) -> u64 {
    first + u64::from(low.wrapping_sub(first as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_what_it_was_made_of() {
        for generation in [0, 1, GENERATIONS - 1] {
            for request in
                [WrId::Send(0), WrId::Send(u32::MAX), WrId::Receive(7), WrId::Receive(u32::MAX), WrId::Probe]
            {
                assert_eq!(decode(encode(generation, request)), (generation, request));
            }
        }
        assert_eq!(encode(0, WrId::Send(3)), 3);
    }

    #[test]
    fn counts_go_on_beyond_what_a_number_has_room_for() {
        for first in [0, 5, (1 << 32) - 1, 1 << 32, (1 << 40) + 17] {
            for ahead in [0, 1, 100, u64::from(u32::MAX)] {
                assert_eq!(extend(first, (first + ahead) as u32), first + ahead);
            }
        }
    }
}
