//! The windows of this side, and what its peer asks of them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Notification;
use super::devices::{Registered, RegisteredKeys};
use super::error::WindowError;
use super::key::{Access, WindowKey};
use super::memory::OfferedMemory;
use super::message::{Identity, Operation, Status, WindowRange, WindowRequest};

/// The most windows at a time.
const MOST_WINDOWS: usize = 1 << 16;
/// The most notifications that wait for the program.
pub(super) const MOST_NOTIFICATIONS: usize = 4096;
/// The bytes of messages that wait for the program. Each message counts some more.
const MOST_WAITING: usize = 1 << 20;
/// What a message counts in addition to its bytes.
const MESSAGE_COST: usize = 64;

/// A window that the peer may reach.
struct OfferedWindow {
    memory: OfferedMemory,
    access: Access,
    ends: Option<Instant>,
    registered: Registered,
}

/// A place that was taken for a window.
#[derive(Clone, Copy)]
pub(super) struct WindowPlace {
    pub(super) region: u32,
    pub(super) generation: u32,
}

/// The place of a window. Its number is the region in keys.
struct RegionSlot {
    /// The generation of its window, or of its last one.
    generation: u32,
    window: Option<OfferedWindow>,
}

#[derive(Default)]
struct TableState {
    slots: Vec<RegionSlot>,
    free: Vec<u32>,
}

/// Messages for the program.
#[derive(Default)]
struct MessageQueue {
    messages: VecDeque<Vec<u8>>,
    /// What they count.
    waiting: usize,
}

/// The windows that were offered over one connection. An operation of the peer holds the lock, so that
/// none is under way after a window was taken out.
#[derive(Default)]
pub(super) struct WindowTable {
    state: Mutex<TableState>,
    /// Apart, because calls look for them under a lock of the connection, and a copy may take long.
    notifications: Mutex<VecDeque<Notification>>,
    messages: Mutex<MessageQueue>,
}

impl WindowTable {
    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notifications(&self) -> MutexGuard<'_, VecDeque<Notification>> {
        self.notifications.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn messages(&self) -> MutexGuard<'_, MessageQueue> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a window, until [`give_place_back`](Self::give_place_back) or
    /// [`revoke`](Self::revoke).
    pub(super) fn take_place(&self) -> Result<WindowPlace, WindowError> {
        let mut state = self.lock();
        let region = state.free_region().ok_or(WindowError::TooMany { most: MOST_WINDOWS })?;
        let slot = &mut state.slots[region as usize];
        slot.generation += 1;
        Ok(WindowPlace { region, generation: slot.generation })
    }

    pub(super) fn give_place_back(&self, place: WindowPlace) {
        self.lock().free(place.region);
    }

    /// Offers memory in a place.
    pub(super) fn offer(
        &self,
        place: WindowPlace,
        memory: OfferedMemory,
        registered: Registered,
        access: Access,
        lifetime: Option<Duration>,
        Identity { owner, connection }: Identity,
    ) -> WindowKey {
        let WindowPlace { region, generation } = place;
        let (base, len) = (memory.base(), memory.len() as u64);
        let RegisteredKeys { atomics, devices } = registered.keys();
        let ends = lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime));
        self.lock().slots[region as usize].window = Some(OfferedWindow { memory, access, ends, registered });
        let devices = devices.into();
        WindowKey { owner, connection, region, generation, base, len, access, atomics, devices }
    }

    /// Takes a window out. No operation that this process performs is under way, and none reaches it any
    /// more. Devices do until its registrations have ended.
    pub(super) fn revoke(&self, key: &WindowKey) -> Option<(OfferedMemory, Registered)> {
        let mut state = self.lock();
        let slot = state.slots.get_mut(key.region as usize)?;
        let window = (slot.generation == key.generation).then(|| slot.window.take()).flatten()?;
        state.free(key.region);
        Some((window.memory, window.registered))
    }

    /// Uses the memory of a window of this side, also after its lifetime.
    pub(super) fn with<R>(&self, key: &WindowKey, act: impl FnOnce(&mut OfferedMemory) -> R) -> Option<R> {
        let mut state = self.lock();
        let slot = state.slots.get_mut(key.region as usize)?;
        let window = slot.window.as_mut().filter(|_| slot.generation == key.generation)?;
        Some(act(&mut window.memory))
    }

    pub(super) fn next_notification(&self) -> Option<Notification> {
        self.notifications().pop_front()
    }

    pub(super) fn next_message(&self) -> Option<Vec<u8>> {
        let mut queue = self.messages();
        let message = queue.messages.pop_front()?;
        queue.waiting -= message.len() + MESSAGE_COST;
        Some(message)
    }

    /// Keeps a message for the program.
    pub(super) fn keep_message(&self, bytes: &[u8]) -> Status {
        let mut queue = self.messages();
        if queue.waiting >= MOST_WAITING {
            return Status::Full { waiting: queue.waiting as u64 };
        }
        queue.waiting += bytes.len() + MESSAGE_COST;
        queue.messages.push_back(bytes.to_vec());
        Status::Done { number: 0 }
    }

    /// Performs a request. A put takes its bytes from `bytes`, and a get appends them to `answer`.
    pub(super) fn perform(
        &self,
        request: &WindowRequest,
        bytes: &[u8],
        answer: &mut Vec<u8>,
        now: Instant,
    ) -> Status {
        let mut state = self.lock();
        let window = match state.find(request.region, request.generation, now) {
            Ok(window) => window,
            Err(status) => return status,
        };
        if let Err(status) = window.allows(request) {
            return status;
        }
        if matches!(request.operation, Operation::PutNotify { .. }) {
            // Only this thread can add one, because it has the lock of the table.
            let waiting = self.notifications().len();
            if waiting >= MOST_NOTIFICATIONS {
                return Status::Full { waiting: waiting as u64 };
            }
        }
        let number = window.perform(request, bytes, answer);
        if let Operation::PutNotify { number } = request.operation {
            let WindowRequest { region, generation, .. } = *request;
            self.notifications().push_back(Notification { region, generation, number });
        }
        Status::Done { number }
    }
}

impl TableState {
    fn free(&mut self, region: u32) {
        // A place whose generations are used up is not used again.
        if self.slots[region as usize].generation < u32::MAX {
            self.free.push(region);
        }
    }

    fn free_region(&mut self) -> Option<u32> {
        if let Some(region) = self.free.pop() {
            return Some(region);
        }
        if self.slots.len() >= MOST_WINDOWS {
            return None;
        }
        self.slots.push(RegionSlot { generation: 0, window: None });
        Some(self.slots.len() as u32 - 1)
    }

    /// The window of a key, if it exists and its lifetime is not over.
    fn find(&mut self, region: u32, generation: u32, now: Instant) -> Result<&mut OfferedWindow, Status> {
        let slot = self.slots.get_mut(region as usize).ok_or(Status::Unknown)?;
        if generation == 0 || generation > slot.generation {
            return Err(Status::Unknown);
        }
        if generation < slot.generation {
            return Err(Status::Revoked);
        }
        let lives = |window: &&mut OfferedWindow| window.ends.is_none_or(|ends| now < ends);
        slot.window.as_mut().filter(lives).ok_or(Status::Revoked)
    }
}

impl OfferedWindow {
    /// Whether all of a request may be performed.
    fn allows(&self, request: &WindowRequest) -> Result<(), Status> {
        if !self.access.contains(request.operation.needs()) {
            return Err(Status::Access);
        }
        let len = self.memory.len() as u64;
        let is_outside =
            |range: &WindowRange| range.offset.checked_add(range.len).is_none_or(|end| end > len);
        if let Some(index) = request.ranges.iter().position(is_outside) {
            return Err(Status::Range { index: index as u64 });
        }
        let is_atomic = request.operation.needs() == Access::ATOMIC;
        if is_atomic && self.registered.keys().atomics != 0 {
            return Err(Status::OfDevice);
        }
        if is_atomic && !request.ranges.iter().all(|range| self.memory.is_aligned(range.offset)) {
            return Err(Status::Misaligned);
        }
        Ok(())
    }

    /// Performs a request that is allowed. Returns what an atomic operation has found.
    fn perform(&mut self, request: &WindowRequest, bytes: &[u8], answer: &mut Vec<u8>) -> u64 {
        let first = request.ranges.first().map_or(0, |range| range.offset as usize);
        match request.operation {
            Operation::Hello { .. } | Operation::Message => {}
            Operation::Open { .. } | Operation::Close { .. } | Operation::Revoked => {}
            Operation::Put | Operation::PutNotify { .. } => {
                let mut rest = bytes;
                for range in &request.ranges {
                    let (piece, behind) = rest.split_at(range.len as usize);
                    self.memory.write(range.offset as usize, piece);
                    rest = behind;
                }
            }
            Operation::Get => {
                for range in &request.ranges {
                    let at = answer.len();
                    answer.resize(at + range.len as usize, 0);
                    self.memory.read(range.offset as usize, &mut answer[at..]);
                }
            }
            Operation::FetchAdd { add } => return self.memory.fetch_add(first, add),
            Operation::CompareSwap { expected, new } => {
                return self.memory.compare_swap(first, expected, new);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::super::message::tests::request;
    use super::*;
    use crate::pool::{Block, Pool, PoolConfig};

    const OWN: Identity = Identity { owner: 1, connection: 2 };

    fn block(len: usize) -> Block {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(|| Pool::new(&PoolConfig::default()).unwrap()).adopt(vec![0; len])
    }

    fn offered_for(table: &WindowTable, len: usize, access: Access, lifetime: Option<Duration>) -> WindowKey {
        let (place, memory) = (table.take_place().unwrap(), OfferedMemory::new(block(len), len));
        table.offer(place, memory, Registered::default(), access, lifetime, OWN)
    }

    fn offered(table: &WindowTable, len: usize, access: Access) -> WindowKey {
        offered_for(table, len, access, None)
    }

    fn perform(
        table: &WindowTable,
        key: &WindowKey,
        request: WindowRequest,
        bytes: &[u8],
    ) -> (Status, Vec<u8>) {
        let mut answer = Vec::new();
        let request = WindowRequest { region: key.region, generation: key.generation, ..request };
        let status = table.perform(&request, bytes, &mut answer, Instant::now());
        (status, answer)
    }

    const DONE: Status = Status::Done { number: 0 };

    #[test]
    fn ranges_are_written_and_read_in_their_order() {
        let table = WindowTable::default();
        let key = offered(&table, 32, Access::ALL);
        let put = request(Operation::Put, &[(8, 3), (0, 2), (31, 1)]);
        assert_eq!(perform(&table, &key, put, b"abcdef").0, DONE);
        let get = request(Operation::Get, &[(0, 4), (8, 4), (31, 1)]);
        assert_eq!(perform(&table, &key, get, b""), (DONE, b"de\0\0abc\0f".to_vec()));
        let read = table.with(&key, |memory| {
            let mut bytes = [0; 3];
            memory.read(8, &mut bytes);
            bytes
        });
        assert_eq!(read, Some(*b"abc"));
    }

    #[test]
    fn a_request_is_performed_whole_or_not_at_all() {
        let table = WindowTable::default();
        let key = offered(&table, 16, Access::ALL);
        let put = request(Operation::Put, &[(0, 2), (15, 2)]);
        assert_eq!(perform(&table, &key, put, b"abcd").0, Status::Range { index: 1 });
        let get = request(Operation::Get, &[(0, 2)]);
        assert_eq!(perform(&table, &key, get, b"").1, [0, 0]);
        let far = request(Operation::Get, &[(u64::MAX, 2)]);
        assert_eq!(perform(&table, &key, far, b"").0, Status::Range { index: 0 });
    }

    #[test]
    fn only_what_was_offered_is_allowed() {
        let operations = [
            (Operation::Get, Access::READ),
            (Operation::Put, Access::WRITE),
            (Operation::PutNotify { number: 1 }, Access::WRITE),
            (Operation::FetchAdd { add: 1 }, Access::ATOMIC),
            (Operation::CompareSwap { expected: 0, new: 1 }, Access::ATOMIC),
        ];
        let table = WindowTable::default();
        for access in [Access::READ, Access::WRITE, Access::ATOMIC, Access::default(), Access::ALL] {
            let key = offered(&table, 64, access);
            let at = 0_u64.wrapping_sub(key.base) % 8;
            for (operation, needed) in operations {
                let bytes = if needed == Access::WRITE { &[1; 8][..] } else { &[] };
                let (status, _) = perform(&table, &key, request(operation, &[(at, 8)]), bytes);
                let allowed = access.contains(needed);
                assert_eq!(status == Status::Access, !allowed, "{access} and {operation:?}: {status:?}");
            }
        }
    }

    #[test]
    fn atomics_need_an_aligned_address() {
        let table = WindowTable::default();
        let key = offered(&table, 64, Access::ALL);
        let at = 0_u64.wrapping_sub(key.base) % 8;
        let add = |at| perform(&table, &key, request(Operation::FetchAdd { add: 3 }, &[(at, 8)]), b"").0;
        assert_eq!((add(at), add(at)), (DONE, Status::Done { number: 3 }));
        assert_eq!(add(at + 1), Status::Misaligned);
        let swap = Operation::CompareSwap { expected: 6, new: 10 };
        assert_eq!(perform(&table, &key, request(swap, &[(at, 8)]), b"").0, Status::Done { number: 6 });
        assert_eq!(add(at), Status::Done { number: 10 });
    }

    #[test]
    fn a_key_of_an_earlier_generation_reaches_nothing() {
        let table = WindowTable::default();
        let first = offered(&table, 64, Access::ALL);
        let get = || request(Operation::Get, &[(0, 1)]);
        assert_eq!(table.revoke(&first).unwrap().0.len(), 64);
        assert_eq!(perform(&table, &first, get(), b"").0, Status::Revoked);
        assert!(table.revoke(&first).is_none() && table.with(&first, |_| ()).is_none());
        let second = offered(&table, 64, Access::ALL);
        assert_eq!((second.region, second.generation), (first.region, first.generation + 1));
        assert_eq!(perform(&table, &first, get(), b"").0, Status::Revoked);
        assert!(table.revoke(&first).is_none(), "the second one stays");
        assert_eq!(perform(&table, &second, get(), b"").0, DONE);
        for guess in [
            WindowKey { generation: 0, ..second.clone() },
            WindowKey { generation: second.generation + 1, ..second.clone() },
            WindowKey { region: 1, ..second.clone() },
            WindowKey { region: u32::MAX, ..second },
        ] {
            assert_eq!(perform(&table, &guess, get(), b"").0, Status::Unknown, "{guess:?}");
        }
    }

    #[test]
    fn a_place_with_the_last_generation_is_not_used_again() {
        let table = WindowTable::default();
        let key = offered(&table, 8, Access::READ);
        table.lock().slots[0].generation = u32::MAX;
        let last = WindowKey { generation: u32::MAX, ..key };
        assert!(table.revoke(&last).is_some());
        assert_eq!(offered(&table, 8, Access::READ).region, 1);
    }

    #[test]
    fn a_lifetime_ends() {
        let table = WindowTable::default();
        let key = offered_for(&table, 8, Access::READ, Some(Duration::from_secs(60)));
        let get = WindowRequest { region: key.region, ..request(Operation::Get, &[(0, 1)]) };
        let at =
            |later| table.perform(&get, b"", &mut Vec::new(), Instant::now() + Duration::from_secs(later));
        assert_eq!((at(1), at(61)), (DONE, Status::Revoked));
        assert!(table.with(&key, |_| ()).is_some(), "the owner still has it");
        assert!(table.revoke(&key).is_some());
    }

    #[test]
    fn notifications_wait_for_the_program_up_to_a_limit() {
        let table = WindowTable::default();
        let key = offered(&table, 8, Access::WRITE);
        let notify = |number| {
            let put = request(Operation::PutNotify { number }, &[(0, 1)]);
            perform(&table, &key, put, &[number as u8]).0
        };
        for number in 0..MOST_NOTIFICATIONS as u64 {
            assert_eq!(notify(number), DONE);
        }
        let waiting = MOST_NOTIFICATIONS as u64;
        assert_eq!(notify(9), Status::Full { waiting });
        let first = table.next_notification().unwrap();
        assert_eq!((first.region, first.generation, first.number), (key.region, key.generation, 0));
        assert_eq!(notify(9), DONE);
    }

    #[test]
    fn messages_wait_for_the_program_up_to_a_limit() {
        let table = WindowTable::default();
        let mut kept = 0_u64;
        while table.keep_message(&[kept as u8; 1000]) == DONE {
            kept += 1;
        }
        assert!((900..1100).contains(&kept), "{kept}");
        assert_eq!(table.next_message().unwrap(), [0; 1000]);
        assert_eq!(table.keep_message(b"again"), DONE);
        let rest = std::iter::from_fn(|| table.next_message()).count() as u64;
        assert_eq!((rest, table.messages().waiting), (kept, 0));
    }

    #[test]
    fn a_place_that_is_given_back_is_used_again() {
        let table = WindowTable::default();
        let place = table.take_place().unwrap();
        table.give_place_back(place);
        let key = offered(&table, 8, Access::READ);
        assert_eq!((key.region, key.generation), (place.region, place.generation + 1));
        let early = WindowKey { generation: place.generation, ..key };
        assert_eq!(perform(&table, &early, request(Operation::Get, &[(0, 1)]), b"").0, Status::Revoked);
    }

    /// What a program or a peer does.
    #[derive(Clone, Debug)]
    enum TableStep {
        Offer,
        Revoke(usize),
        /// A peer uses the key of this index, or one that it has changed.
        Use {
            key: usize,
            region: u32,
            generation: u32,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<TableStep>> {
        let step = prop_oneof![
            Just(TableStep::Offer),
            (0..20_usize).prop_map(TableStep::Revoke),
            (0..20_usize, 0..3_u32, 0..3_u32).prop_map(|(key, region, generation)| TableStep::Use {
                key,
                region,
                generation
            }),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// Each window has other bytes, so that a get shows which one it has reached.
        #[test]
        fn a_key_reaches_its_own_window_or_none(steps in steps()) {
            let table = WindowTable::default();
            let mut keys: Vec<(WindowKey, bool)> = Vec::new();
            for step in steps {
                match step {
                    TableStep::Offer => {
                        let mark = keys.len() as u8;
                        let key = offered(&table, 8, Access::READ);
                        table.with(&key, |memory| memory.write(0, &[mark; 8])).unwrap();
                        let is_same =
                            |(other, _): &(WindowKey, bool)| (other.region, other.generation) == (key.region, key.generation);
                        prop_assert!(!keys.iter().any(is_same));
                        keys.push((key, true));
                    }
                    TableStep::Revoke(at) if at < keys.len() => {
                        let (key, offered) = &mut keys[at];
                        prop_assert_eq!(table.revoke(key).is_some(), *offered);
                        *offered = false;
                    }
                    TableStep::Use { key: at, region, generation } if at < keys.len() => {
                        let key = &keys[at].0;
                        let guess = WindowKey {
                            region: key.region.wrapping_add(region),
                            generation: key.generation.wrapping_add(generation),
                            ..key.clone()
                        };
                        let (status, bytes) = perform(&table, &guess, request(Operation::Get, &[(0, 8)]), b"");
                        let of = keys.iter().position(|(key, offered)| {
                            *offered && (key.region, key.generation) == (guess.region, guess.generation)
                        });
                        match of {
                            Some(mark) => prop_assert_eq!((status, bytes), (DONE, vec![mark as u8; 8])),
                            None => {
                                prop_assert!(matches!(status, Status::Revoked | Status::Unknown));
                                prop_assert!(bytes.is_empty());
                            }
                        }
                    }
                    TableStep::Revoke(_) | TableStep::Use { .. } => {}
                }
            }
        }
    }
}
