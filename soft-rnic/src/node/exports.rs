//! Exported memory: memory of this process that peers may map.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mailbox::{Mailbox, ServiceCommand};
use super::message::{ExportId, ExportRange};
use crate::platform::fork::OwnedFile;
use crate::platform::mappings::{Mapping, reopen_file};
use crate::platform::memory::FileMapping;

/// The most memories that a process exports at a time.
pub(crate) const MAX_EXPORTS: usize = if cfg!(any(miri, loom)) { 16 } else { 1 << 12 };

/// The origin of exported memory.
#[derive(Debug)]
enum ExportOrigin {
    /// Allocated by the device, and exported until it is removed.
    Allocated(Arc<FileMapping>),
    /// Mapped by the program, and exported while it contains regions.
    Found { mapping: Mapping, file: OwnedFile },
}

#[derive(Debug)]
struct ExportedMemory {
    origin: ExportOrigin,
    range: ExportRange,
    /// The number of regions in the memory; below, how many of them peers may write.
    regions: usize,
    writable_regions: usize,
}

impl ExportedMemory {
    fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            ExportOrigin::Allocated(memory) => memory.file(),
            ExportOrigin::Found { file, .. } => file.get().ok(),
        }
    }
}

#[derive(Debug, Default)]
struct ExportTable {
    exports: Vec<(u32, Option<ExportedMemory>)>,
    /// Unused indices. The one that has been unused for the longest time comes first.
    free: VecDeque<u32>,
    /// The indices of added memories, by address. (This type of map is compiled for the heap, too.)
    allocated: BTreeMap<u64, u64>,
}

/// A file for a peer to map.
#[derive(Debug)]
pub(crate) struct ExportFile {
    pub(crate) file: OwnedFd,
    pub(crate) writable: bool,
    pub(crate) range: ExportRange,
}

/// The exported memory of this process.
#[derive(Debug)]
pub(crate) struct Exports {
    table: Mutex<ExportTable>,
    mailbox: Arc<Mailbox>,
    any_shm: bool,
}

impl ExportTable {
    fn insert(&mut self, export: ExportedMemory) -> io::Result<ExportId> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.exports.len() < MAX_EXPORTS => {
                self.exports.push((0, None));
                self.exports.len() as u32 - 1
            }
            None => return Err(io::ErrorKind::OutOfMemory.into()),
        };
        let (epoch, range) = &mut self.exports[index as usize];
        *epoch = epoch.wrapping_add(1);
        *range = Some(export);
        Ok(ExportId { index, epoch: *epoch })
    }

    fn get(&mut self, export: ExportId) -> Option<&mut ExportedMemory> {
        let (epoch, found) = self.exports.get_mut(export.index as usize)?;
        found.as_mut().filter(|_| *epoch == export.epoch)
    }

    fn remove(&mut self, export: ExportId) -> Option<ExportedMemory> {
        let (epoch, found) = self.exports.get_mut(export.index as usize)?;
        let removed = if *epoch == export.epoch { found.take()? } else { return None };
        self.free.push_back(export.index);
        Some(removed)
    }
}

impl Exports {
    pub(crate) fn new(mailbox: Arc<Mailbox>, any_shm: bool) -> Self {
        Self { table: Mutex::default(), mailbox, any_shm }
    }

    fn table(&self) -> MutexGuard<'_, ExportTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exports memory that the device has allocated, until [`remove`](Self::remove).
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if [`MAX_EXPORTS`] memories are exported already.
    pub(crate) fn add(&self, memory: Arc<FileMapping>) -> io::Result<ExportId> {
        let base = memory.base().addr().get() as u64;
        let range = ExportRange { base, len: memory.len() as u64, offset: 0 };
        let export = ExportedMemory {
            origin: ExportOrigin::Allocated(memory),
            range,
            regions: 0,
            writable_regions: 0,
        };
        let mut table = self.table();
        let id = table.insert(export)?;
        table.allocated.insert(base, id.index.into());
        Ok(id)
    }

    /// The added memory that contains the whole address range.
    pub(crate) fn find(&self, address: usize, len: usize) -> Option<ExportId> {
        let table = self.table();
        let (_, index) = table.allocated.range(..=address as u64).next_back()?;
        let index = *index as u32;
        let (epoch, export) = table.exports.get(index as usize)?;
        let ExportRange { base, len: shared, .. } = export.as_ref()?.range;
        let offset = address as u64 - base;
        (offset <= shared && len as u64 <= shared - offset).then_some(ExportId { index, epoch: *epoch })
    }

    /// Exports a shared mapping of a memory file that the program made, if peers may map it too.
    ///
    /// Callers must look the mapping up each time, because the program may have mapped other memory
    /// there. The memory stays exported until each region that was counted in with
    /// [`note_access`](Self::note_access) has been counted out.
    pub(crate) fn find_mapped(&self, mapping: Mapping) -> Option<ExportId> {
        let mut table = self.table();
        let known = table.exports.iter().position(|(_, export)| {
            matches!(export, Some(ExportedMemory { origin: ExportOrigin::Found { mapping: known, .. }, .. }) if *known == mapping)
        });
        if let Some(index) = known {
            return Some(ExportId { index: index as u32, epoch: table.exports[index].0 });
        }
        let file = mapping.shareable_file(self.any_shm)?;
        let range = ExportRange {
            base: mapping.start as u64,
            len: (mapping.end - mapping.start) as u64,
            offset: mapping.offset,
        };
        let origin = ExportOrigin::Found { mapping, file: OwnedFile::new(file) };
        table.insert(ExportedMemory { origin, range, regions: 0, writable_regions: 0 }).ok()
    }

    /// Counts a region in the memory in (`came` is true) or out. Peers may map the memory writable
    /// while it has a `writable` region.
    pub(crate) fn note_access(&self, id: ExportId, came: bool, writable: bool) {
        let mut table = self.table();
        let Some(export) = table.get(id) else { return };
        let change = |count: usize| if came { count + 1 } else { count.saturating_sub(1) };
        export.regions = change(export.regions);
        if writable {
            export.writable_regions = change(export.writable_regions);
        }
        if export.regions == 0 && matches!(export.origin, ExportOrigin::Found { .. }) {
            let removed = table.remove(id);
            drop(table);
            self.tell(id, removed);
        }
    }

    /// Stops exporting added memory. Peers unmap it when they have no transfer in it.
    pub(crate) fn remove(&self, id: ExportId) {
        let mut table = self.table();
        let removed = table.remove(id);
        if let Some(ExportedMemory { range, .. }) = &removed {
            table.allocated.remove(&range.base);
        }
        drop(table);
        self.tell(id, removed);
    }

    fn tell(&self, id: ExportId, removed: Option<ExportedMemory>) {
        if removed.is_some() {
            self.mailbox.post(ServiceCommand::ExportGone(id));
        }
    }

    /// Opens the memory's file for a peer, writable only if a region allows that.
    pub(crate) fn open_for_peer(&self, id: ExportId, write: bool) -> Option<ExportFile> {
        let mut table = self.table();
        let export = table.get(id)?;
        let writable = write && export.writable_regions > 0;
        let file = reopen_file(export.file()?, writable)
            .inspect_err(|error| log::debug!("exported memory could not be opened for a peer: {error}"))
            .ok()?;
        Some(ExportFile { file, writable, range: export.range })
    }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;
    use crate::platform::mappings::Survey;
    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::mm::{MapFlags, ProtFlags};

    /// The export of the mapping at an address.
    fn look(exports: &Exports, address: usize, len: usize) -> Option<ExportId> {
        let mapping = Survey::of(address, len).expect("/proc").shared?;
        exports.find_mapped(mapping)
    }

    fn exports() -> Exports {
        Exports::new(Arc::default(), false)
    }

    #[test]
    fn added_memory_is_found_until_it_is_removed() {
        let exports = exports();
        let memory = Arc::new(FileMapping::create(c"test", 8192).expect("memory"));
        let base = memory.base().addr().get();
        let id = exports.add(Arc::clone(&memory)).expect("room");
        assert_eq!(exports.find(base, 8192), Some(id));
        assert_eq!(exports.find(base + 8191, 1), Some(id));
        assert_eq!(exports.find(base + 8191, 2), None);
        assert_eq!(exports.find(base - 1, 1), None);
        assert_eq!(exports.find(usize::MAX, usize::MAX), None);
        assert!(!exports.open_for_peer(id, true).expect("an offer").writable, "no region may be written");
        exports.note_access(id, true, true);
        assert!(exports.open_for_peer(id, true).expect("an offer").writable);
        assert!(!exports.open_for_peer(id, false).expect("an offer").writable);
        exports.note_access(id, false, true);
        assert!(!exports.open_for_peer(id, true).expect("an offer").writable);
        exports.remove(id);
        assert_eq!(exports.find(base, 1), None);
        assert!(exports.open_for_peer(id, false).is_none());
        let again = exports.add(memory).expect("room");
        assert_ne!(again, id);
        assert!(exports.open_for_peer(id, false).is_none() && exports.open_for_peer(again, false).is_some());
    }

    #[test]
    fn a_read_only_offer_cannot_be_mapped_to_write() {
        let exports = exports();
        let id = exports.add(Arc::new(FileMapping::create(c"test", 4096).expect("memory"))).expect("room");
        let file = exports.open_for_peer(id, false).expect("an offer").file;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let mapped = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(core::ptr::null_mut(), 4096, protection, MapFlags::SHARED, &file, 0)
        };
        assert_eq!(mapped.err(), Some(rustix::io::Errno::ACCESS));
    }

    /// Maps a memory file as a program would.
    fn mapped(seals: SealFlags, flags: MapFlags) -> (OwnedFd, usize) {
        let file = rustix::fs::memfd_create("program", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .expect("a memory file");
        rustix::fs::ftruncate(&file, 16384).expect("room");
        rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(core::ptr::null_mut(), 12288, protection, flags, &file, 4096)
        };
        (file, base.expect("a mapping").addr())
    }

    fn unmap(base: usize) {
        // SAFETY: `mapped` made this mapping with this length, and nothing refers to it.
        unsafe { rustix::mm::munmap(core::ptr::with_exposed_provenance_mut(base), 12288) }.expect("munmap");
    }

    #[test]
    fn mapped_memory_is_found_if_it_is_sealed_and_open() {
        let exports = exports();
        let (file, base) = mapped(SealFlags::SHRINK, MapFlags::SHARED);
        let id = look(&exports, base + 4096, 100).expect("found");
        assert_eq!(look(&exports, base, 12288), Some(id));
        assert_eq!(look(&exports, base, 12289), None);
        exports.note_access(id, true, false);
        // Once the mapping has been found, the program's descriptor need not stay open.
        drop(file);
        let offer = exports.open_for_peer(id, true).expect("an offer");
        assert_eq!(offer.range, ExportRange { base: base as u64, len: 12288, offset: 4096 });
        drop(offer);
        assert_eq!(look(&exports, base, 1), Some(id));
        exports.note_access(id, false, false);
        assert!(exports.open_for_peer(id, false).is_none());
        assert_eq!(look(&exports, base, 1), None, "it is closed");
        unmap(base);
        assert_eq!(look(&exports, base, 1), None, "it is not mapped");
    }

    #[test]
    fn shrinkable_or_private_memory_is_not_exported() {
        let exports = exports();
        let (_unsealed, base) = mapped(SealFlags::GROW, MapFlags::SHARED);
        assert_eq!(look(&exports, base, 1), None);
        unmap(base);
        let (_private, base) = mapped(SealFlags::SHRINK, MapFlags::PRIVATE);
        assert_eq!(look(&exports, base, 1), None);
        unmap(base);
        let heap = [0_u8; 100];
        assert_eq!(look(&exports, heap.as_ptr().addr(), 100), None);
    }

    #[test]
    fn files_in_dev_shm_are_shared_on_request() {
        let path = format!("/dev/shm/soft-rnic-test-{}", std::process::id());
        let file =
            std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(12288).expect("room");
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let base = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(core::ptr::null_mut(), 12288, protection, MapFlags::SHARED, &file, 0)
        };
        let base = base.expect("a mapping").addr();
        drop(file);
        let asked = Exports::new(Arc::default(), true);
        let found = (look(&exports(), base, 12288), look(&asked, base, 12288));
        std::fs::remove_file(&path).expect("the file");
        assert_eq!(found.0, None);
        let id = found.1.expect("found");
        assert!(asked.open_for_peer(id, false).is_some());
        unmap(base);
    }
}
