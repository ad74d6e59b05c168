//! Tables of objects by index. The index also names the object in the segment.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How many freed indices rest before one is reused, so that a stale index seldom names a new
/// object. A larger number would spread the objects over more pages.
pub(crate) const RESTING: usize = 256;

/// A table of limited size. A freed index rests before it is reused.
pub(crate) struct ObjectTable<T> {
    capacity: usize,
    slots: RwLock<TableSlots<T>>,
}

struct TableSlots<T> {
    objects: Vec<Option<Arc<T>>>,
    free: VecDeque<u32>,
}

impl<T> ObjectTable<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, slots: RwLock::new(TableSlots { objects: Vec::new(), free: VecDeque::new() }) }
    }

    fn read(&self) -> RwLockReadGuard<'_, TableSlots<T>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, TableSlots<T>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an index, for [`put`](Self::put). `None` if the table is full.
    pub(crate) fn reserve(&self) -> Option<u32> {
        let mut slots = self.write();
        if slots.objects.len() < self.capacity && slots.free.len() < RESTING {
            slots.objects.push(None);
            return Some(slots.objects.len() as u32 - 1);
        }
        slots.free.pop_front()
    }

    /// Stores an object under an index that was reserved, here or elsewhere.
    pub(crate) fn put(&self, index: u32, object: Arc<T>) {
        let mut slots = self.write();
        let end = index as usize + 1;
        if slots.objects.len() < end {
            slots.objects.resize_with(end, || None);
        }
        slots.objects[index as usize] = Some(object);
    }

    /// Takes an object out. Its index stays reserved.
    pub(crate) fn take(&self, index: u32) -> Option<Arc<T>> {
        self.write().objects.get_mut(index as usize)?.take()
    }

    pub(crate) fn release(&self, index: u32) {
        self.write().free.push_back(index);
    }

    pub(crate) fn get(&self, index: u32) -> Option<Arc<T>> {
        self.read().objects.get(index as usize)?.clone()
    }

    /// All objects that the table has now.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.read().objects.iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_indices_are_reused_last() {
        let table = ObjectTable::new(2);
        assert_eq!((table.reserve(), table.reserve(), table.reserve()), (Some(0), Some(1), None));
        table.put(1, Arc::new('b'));
        assert_eq!(table.get(1).as_deref(), Some(&'b'));
        assert!(table.get(0).is_none() && table.get(9).is_none());
        assert_eq!(table.all().len(), 1);
        assert_eq!(table.take(1).as_deref(), Some(&'b'));
        assert!(table.get(1).is_none() && table.reserve().is_none());
        table.release(1);
        table.release(0);
        assert_eq!((table.reserve(), table.reserve(), table.reserve()), (Some(1), Some(0), None));
    }

    #[test]
    fn index_reserved_elsewhere_can_be_put() {
        let table = ObjectTable::new(8);
        table.put(5, Arc::new(5));
        assert_eq!(table.get(5).as_deref(), Some(&5));
        assert!(table.get(4).is_none());
    }
}
