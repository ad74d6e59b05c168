//! A slab: values by number.
//!
//! A number contains the generation of its slot, so that it never names a second value.

/// Values by number.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<SlabSlot<T>>,
    free: Vec<u32>,
    /// The generation of a new slot.
    first: u32,
}

#[derive(Debug)]
struct SlabSlot<T> {
    /// Never 0, so that no number is 0.
    generation: u32,
    value: Option<Box<T>>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::starting_at(1)
    }
}

fn number(generation: u32, slot: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

impl<T> Slab<T> {
    /// A slab whose numbers begin with this generation, or 1 instead of 0.
    pub(super) fn starting_at(generation: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), first: generation.max(1) }
    }

    pub(super) fn insert(&mut self, value: T) -> u64 {
        let value = Some(Box::new(value));
        if let Some(slot) = self.free.pop() {
            let place = &mut self.slots[slot as usize];
            place.value = value;
            return number(place.generation, slot);
        }
        let slot = self.slots.len() as u32;
        self.slots.push(SlabSlot { generation: self.first, value });
        number(self.first, slot)
    }

    fn slot(&self, number: u64) -> Option<&SlabSlot<T>> {
        self.slots.get(number as u32 as usize).filter(|slot| u64::from(slot.generation) == number >> 32)
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.slot(number)?.value.as_deref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(number as u32 as usize)?;
        slot.value.as_deref_mut().filter(|_| u64::from(slot.generation) == number >> 32)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        self.get(number)?;
        let index = number as u32;
        let slot = &mut self.slots[index as usize];
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(index);
        Some(*value)
    }

    /// All values and their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let slots = self.slots.iter().enumerate();
        slots
            .filter_map(|(index, slot)| Some((number(slot.generation, index as u32), slot.value.as_deref()?)))
    }

    #[cfg(any(fuzzing, all(test, not(loom))))]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_former_number_is_nobodys() {
        let mut slab = Slab::default();
        let [a, b] = ['a', 'b'].map(|value| slab.insert(value));
        assert_eq!((slab.get(a), slab.get(b), slab.get(0)), (Some(&'a'), Some(&'b'), None));
        assert_eq!((slab.remove(a), slab.remove(a)), (Some('a'), None));
        let c = slab.insert('c');
        assert_eq!((slab.get(a), slab.get(c), slab.len()), (None, Some(&'c'), 2));
        assert_eq!(slab.get_mut(a), None);
        let all: Vec<_> = slab.iter().collect();
        assert_eq!(all, [(c, &'c'), (b, &'b')]);
        assert_eq!((slab.get(u64::MAX), slab.get(b ^ 1 << 40)), (None, None));
    }

    #[test]
    fn the_first_generation_is_chosen() {
        for (chosen, first) in [(0, 1), (1, 1), (7, 7), (u32::MAX, u32::MAX)] {
            let mut slab = Slab::starting_at(chosen);
            let [a, b] = ['a', 'b'].map(|value| slab.insert(value));
            assert_eq!([a, b], [number(first, 0), number(first, 1)]);
            slab.remove(a);
            let c = slab.insert('c');
            assert!(c != a && c >> 32 != 0);
        }
    }
}
