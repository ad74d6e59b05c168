//! The encoding of work request ids (`wr_id`): the kind of the request, the generation of its queue
//! pair, and a count.
//!
//! The queue pairs of one completion queue have different generations. A device may reuse a
//! destroyed pair's number; the generation keeps the old pair's late completions apart from the new
//! pair's.

/// The part of a `wr_id` that names a request of its queue pair. Requests of each kind are counted
/// from 0, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    /// A send, or a READ or WRITE, which share the send queue.
    Send(u32),
    /// A receive. For a shared receive queue the count is the index of the slot.
    Receive(u32),
    /// A send of the handshake; these come before all others.
    Probe,
}

const RECEIVE: u64 = 1 << 63;
const PROBE: u64 = 1 << 62;
/// Generations are below this, because 30 bits of the `wr_id` hold them.
pub(super) const GENERATIONS: u32 = 1 << 30;

/// The `wr_id` of a request.
pub(super) fn encode(generation: u32, request: WrId) -> u64 {
    let pair = u64::from(generation % GENERATIONS) << 32;
    match request {
        WrId::Send(count) => pair | u64::from(count),
        WrId::Receive(count) => RECEIVE | pair | u64::from(count),
        WrId::Probe => PROBE | pair,
    }
}

/// The generation and the request of a `wr_id`. Every value decodes, because a faulty device may
/// report any.
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

/// Extends a count of 32 bits to 64: the smallest one from `first` on that ends in `low`.
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
