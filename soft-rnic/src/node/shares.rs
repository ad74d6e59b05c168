//! Own memory that peers may map, so that they reach it without the system's help.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mailbox::{Command, Mailbox};
use super::message::{Place, ShareId};
use crate::platform::fork::OwnedFile;
use crate::platform::mappings::{Mapping, reopen_file};
use crate::platform::memory::Memory;

/// Pieces of memory that a process shares at a time.
pub(crate) const MAX_SHARES: usize = if cfg!(any(miri, loom)) { 16 } else { 1 << 12 };

/// Where the bytes come from.
#[derive(Debug)]
enum Origin {
    /// Allocated by the device, and added until it is removed.
    Allocated(Arc<Memory>),
    /// Found where the program mapped it, and shared while regions lie in it.
    Found { mapping: Mapping, file: OwnedFile },
}

#[derive(Debug)]
struct Share {
    origin: Origin,
    place: Place,
    /// Regions that lie in it, and those of them that peers may write.
    regions: usize,
    writable_regions: usize,
}

impl Share {
    fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            Origin::Allocated(memory) => memory.file(),
            Origin::Found { file, .. } => file.get().ok(),
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    shares: Vec<(u32, Option<Share>)>,
    /// Empty places, the longest empty first.
    free: VecDeque<u32>,
    allocated: BTreeMap<u64, u32>,
}

/// A file for a peer to map.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) file: OwnedFd,
    pub(crate) writable: bool,
    pub(crate) place: Place,
}

/// The shareable memory of this process.
#[derive(Debug)]
pub(crate) struct Shares {
    table: Mutex<Table>,
    mailbox: Arc<Mailbox>,
    any_shm: bool,
}

impl Table {
    fn insert(&mut self, share: Share) -> io::Result<ShareId> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.shares.len() < MAX_SHARES => {
                self.shares.push((0, None));
                self.shares.len() as u32 - 1
            }
            None => return Err(io::ErrorKind::OutOfMemory.into()),
        };
        let (epoch, place) = &mut self.shares[index as usize];
        *epoch = epoch.wrapping_add(1);
        *place = Some(share);
        Ok(ShareId { index, epoch: *epoch })
    }

    fn get(&mut self, share: ShareId) -> Option<&mut Share> {
        let (epoch, found) = self.shares.get_mut(share.index as usize)?;
        found.as_mut().filter(|_| *epoch == share.epoch)
    }

    fn remove(&mut self, share: ShareId) -> Option<Share> {
        let (epoch, found) = self.shares.get_mut(share.index as usize)?;
        let removed = if *epoch == share.epoch { found.take()? } else { return None };
        self.free.push_back(share.index);
        Some(removed)
    }
}

impl Shares {
    pub(crate) fn new(mailbox: Arc<Mailbox>, any_shm: bool) -> Self {
        Self { table: Mutex::default(), mailbox, any_shm }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares memory of the device's own making, which it keeps until [`remove`](Self::remove).
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if there are [`MAX_SHARES`] already.
    pub(crate) fn add(&self, memory: Arc<Memory>) -> io::Result<ShareId> {
        let base = memory.base().addr().get() as u64;
        let place = Place { base, len: memory.len() as u64, offset: 0 };
        let share = Share { origin: Origin::Allocated(memory), place, regions: 0, writable_regions: 0 };
        let mut table = self.table();
        let id = table.insert(share)?;
        table.allocated.insert(base, id.index);
        Ok(id)
    }

    /// The added memory that all of these addresses lie in.
    pub(crate) fn find(&self, address: usize, len: usize) -> Option<ShareId> {
        let table = self.table();
        let (_, index) = table.allocated.range(..=address as u64).next_back()?;
        let (epoch, share) = table.shares.get(*index as usize)?;
        let Place { base, len: shared, .. } = share.as_ref()?.place;
        let offset = address as u64 - base;
        (offset <= shared && len as u64 <= shared - offset)
            .then_some(ShareId { index: *index, epoch: *epoch })
    }

    /// A shared mapping of a memory file, made by the program, if peers may map it too. It is to be looked for anew each
    /// time, because the program may have mapped other memory there. What is found stays shared until as many regions have
    /// gone as have come with [`note_access`](Self::note_access).
    pub(crate) fn find_mapped(&self, mapping: Mapping) -> Option<ShareId> {
        let mut table = self.table();
        let known = table.shares.iter().position(|(_, share)| {
            matches!(share, Some(Share { origin: Origin::Found { mapping: known, .. }, .. }) if *known == mapping)
        });
        if let Some(index) = known {
            return Some(ShareId { index: index as u32, epoch: table.shares[index].0 });
        }
        let file = mapping.shareable_file(self.any_shm)?;
        let place = Place {
            base: mapping.start as u64,
            len: (mapping.end - mapping.start) as u64,
            offset: mapping.offset,
        };
        let origin = Origin::Found { mapping, file: OwnedFile::new(file) };
        table.insert(Share { origin, place, regions: 0, writable_regions: 0 }).ok()
    }

    /// A region in the memory came (`true`) or went. Peers get to write it while some region is `writable` by them.
    pub(crate) fn note_access(&self, id: ShareId, came: bool, writable: bool) {
        let mut table = self.table();
        let Some(share) = table.get(id) else { return };
        let change = |count: usize| if came { count + 1 } else { count.saturating_sub(1) };
        share.regions = change(share.regions);
        if writable {
            share.writable_regions = change(share.writable_regions);
        }
        if share.regions == 0 && matches!(share.origin, Origin::Found { .. }) {
            let removed = table.remove(id);
            drop(table);
            self.tell(id, removed);
        }
    }

    /// Stops to share memory that was added. Peers unmap it when they have no transfer there.
    pub(crate) fn remove(&self, id: ShareId) {
        let mut table = self.table();
        let removed = table.remove(id);
        if let Some(Share { place, .. }) = &removed {
            table.allocated.remove(&place.base);
        }
        drop(table);
        self.tell(id, removed);
    }

    fn tell(&self, id: ShareId, removed: Option<Share>) {
        if removed.is_some() {
            self.mailbox.post(Command::ShareGone(id));
        }
    }

    /// What a peer that asks for it is given: never more than some region grants.
    pub(crate) fn offer(&self, id: ShareId, write: bool) -> Option<Offer> {
        let mut table = self.table();
        let share = table.get(id)?;
        let writable = write && share.writable_regions > 0;
        let file = reopen_file(share.file()?, writable)
            .inspect_err(|error| log::debug!("a share could not be opened for a peer: {error}"))
            .ok()?;
        Some(Offer { file, writable, place: share.place })
    }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;
    use crate::platform::mappings::Survey;
    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::mm::{MapFlags, ProtFlags};

    /// What is found at an address.
    fn look(shares: &Shares, address: usize, len: usize) -> Option<ShareId> {
        let mapping = Survey::of(address, len).expect("/proc").shared?;
        shares.find_mapped(mapping)
    }

    fn shares() -> Shares {
        Shares::new(Arc::default(), false)
    }

    #[test]
    fn added_memory_is_found_until_it_is_removed() {
        let shares = shares();
        let memory = Arc::new(Memory::create(c"test", 8192).expect("memory"));
        let base = memory.base().addr().get();
        let id = shares.add(Arc::clone(&memory)).expect("room");
        assert_eq!(shares.find(base, 8192), Some(id));
        assert_eq!(shares.find(base + 8191, 1), Some(id));
        assert_eq!(shares.find(base + 8191, 2), None);
        assert_eq!(shares.find(base - 1, 1), None);
        assert_eq!(shares.find(usize::MAX, usize::MAX), None);
        assert!(!shares.offer(id, true).expect("an offer").writable, "no region may be written");
        shares.note_access(id, true, true);
        assert!(shares.offer(id, true).expect("an offer").writable);
        assert!(!shares.offer(id, false).expect("an offer").writable);
        shares.note_access(id, false, true);
        assert!(!shares.offer(id, true).expect("an offer").writable);
        shares.remove(id);
        assert_eq!(shares.find(base, 1), None);
        assert!(shares.offer(id, false).is_none());
        let again = shares.add(memory).expect("room");
        assert_ne!(again, id);
        assert!(shares.offer(id, false).is_none() && shares.offer(again, false).is_some());
    }

    #[test]
    fn a_read_only_offer_cannot_be_mapped_to_write() {
        let shares = shares();
        let id = shares.add(Arc::new(Memory::create(c"test", 4096).expect("memory"))).expect("room");
        let file = shares.offer(id, false).expect("an offer").file;
        // SAFETY: a new mapping, if it is made at all.
        let mapped = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(core::ptr::null_mut(), 4096, protection, MapFlags::SHARED, &file, 0)
        };
        assert_eq!(mapped.err(), Some(rustix::io::Errno::ACCESS));
    }

    /// A memory file of the program's, mapped.
    fn mapped(seals: SealFlags, flags: MapFlags) -> (OwnedFd, usize) {
        let file = rustix::fs::memfd_create("program", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .expect("a memory file");
        rustix::fs::ftruncate(&file, 16384).expect("room");
        rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
        // SAFETY: a new mapping.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(core::ptr::null_mut(), 12288, protection, flags, &file, 4096)
        };
        (file, base.expect("a mapping").addr())
    }

    fn unmap(base: usize) {
        // SAFETY: mapped by `mapped` with this length, and nothing refers to it.
        unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(base), 12288) }.expect("munmap");
    }

    #[test]
    fn mapped_memory_is_found_if_it_is_sealed_and_open() {
        let shares = shares();
        let (file, base) = mapped(SealFlags::SHRINK, MapFlags::SHARED);
        let id = look(&shares, base + 4096, 100).expect("found");
        assert_eq!(look(&shares, base, 12288), Some(id));
        assert_eq!(look(&shares, base, 12289), None);
        shares.note_access(id, true, false);
        // Once found, it need not be open any more.
        drop(file);
        let offer = shares.offer(id, true).expect("an offer");
        assert_eq!(offer.place, Place { base: base as u64, len: 12288, offset: 4096 });
        drop(offer);
        assert_eq!(look(&shares, base, 1), Some(id));
        shares.note_access(id, false, false);
        assert!(shares.offer(id, false).is_none());
        assert_eq!(look(&shares, base, 1), None, "it is closed");
        unmap(base);
        assert_eq!(look(&shares, base, 1), None, "it is not mapped");
    }

    #[test]
    fn what_could_shrink_or_is_private_is_not_shared() {
        let shares = shares();
        let (_unsealed, base) = mapped(SealFlags::GROW, MapFlags::SHARED);
        assert_eq!(look(&shares, base, 1), None);
        unmap(base);
        let (_private, base) = mapped(SealFlags::SHRINK, MapFlags::PRIVATE);
        assert_eq!(look(&shares, base, 1), None);
        unmap(base);
        let heap = [0_u8; 100];
        assert_eq!(look(&shares, heap.as_ptr().addr(), 100), None);
    }

    #[test]
    fn files_in_dev_shm_are_shared_on_request() {
        let path = format!("/dev/shm/soft-rnic-test-{}", std::process::id());
        let file =
            std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(12288).expect("room");
        // SAFETY: a new mapping.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(core::ptr::null_mut(), 12288, protection, MapFlags::SHARED, &file, 0)
        };
        let base = base.expect("a mapping").addr();
        drop(file);
        let asked = Shares::new(Arc::default(), true);
        let found = (look(&shares(), base, 12288), look(&asked, base, 12288));
        std::fs::remove_file(&path).expect("the file");
        assert_eq!(found.0, None);
        let id = found.1.expect("found");
        assert!(asked.offer(id, false).is_some());
        unmap(base);
    }
}
