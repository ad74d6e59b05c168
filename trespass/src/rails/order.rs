//! Frames that have arrived before their turn, because they came over another rail.

use std::collections::VecDeque;

use crate::protocol::frame::Immediate;

/// A received frame.
#[derive(Debug)]
pub(super) struct ArrivedFrame<B> {
    pub(super) block: B,
    pub(super) len: usize,
    /// Replaces the header.
    pub(super) immediate: Option<Immediate>,
}

/// The frames that wait for earlier ones.
#[derive(Debug)]
pub(super) struct EarlyFrames<B> {
    /// Starts with the place of the expected frame, which is empty.
    places: VecDeque<Option<ArrivedFrame<B>>>,
    count: usize,
}

impl<B> EarlyFrames<B> {
    pub(super) fn new() -> Self {
        Self { places: VecDeque::new(), count: 0 }
    }

    /// The number of waiting frames.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Keeps a frame that is `ahead` of the expected one. Returns it if that one waits already.
    pub(super) fn keep(&mut self, ahead: usize, frame: ArrivedFrame<B>) -> Result<(), ArrivedFrame<B>> {
        if self.places.len() <= ahead {
            self.places.resize_with(ahead + 1, || None);
        }
        let place = &mut self.places[ahead];
        if place.is_some() {
            return Err(frame);
        }
        *place = Some(frame);
        self.count += 1;
        Ok(())
    }

    /// The expected frame has been handled. Returns the next one if it waits.
    pub(super) fn next(&mut self) -> Option<ArrivedFrame<B>> {
        self.places.pop_front();
        let next = self.places.front_mut()?.take();
        self.count -= usize::from(next.is_some());
        next
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: usize) -> ArrivedFrame<usize> {
        ArrivedFrame { block: number, len: 0, immediate: None }
    }

    #[test]
    fn frames_come_out_in_order() {
        let mut early = EarlyFrames::new();
        // 0 is expected; 1, 2 and 4 come first.
        for number in [2, 1, 4] {
            early.keep(number, frame(number)).unwrap();
        }
        assert_eq!(early.keep(2, frame(2)).unwrap_err().block, 2);
        assert_eq!(early.len(), 3);
        assert_eq!(early.next().unwrap().block, 1);
        assert_eq!(early.next().unwrap().block, 2);
        assert!(early.next().is_none(), "3 has not come");
        early.keep(2, frame(5)).unwrap();
        assert_eq!(early.next().unwrap().block, 4);
        assert_eq!(early.next().unwrap().block, 5);
        assert!(early.next().is_none());
        assert_eq!(early.len(), 0);
        early.keep(1, frame(8)).unwrap();
        assert_eq!(early.next().unwrap().block, 8);
    }
}
