//! A probe whether `process_vm_writev` and `process_vm_readv` reach the memory of a peer.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::iovec;

use crate::platform::vm::{self, Vm, VmError};
use crate::shared::segment::Segment;

/// Random bytes that cannot be guessed.
pub(crate) fn random() -> [u8; 16] {
    let word = || RandomState::new().build_hasher().finish();
    let mut bytes = [0; 16];
    let (low, high) = bytes.split_at_mut(8);
    low.copy_from_slice(&word().to_ne_bytes());
    high.copy_from_slice(&word().to_ne_bytes());
    bytes
}

/// Writes a random number to the address that the peer gave for its segment, and looks for it in
/// the segment; then reads it back. Success proves that the process number is the peer's.
pub(crate) fn probe(
    (pid, identity_page): (u32, u64),
    segment: &Segment,
    (offset, address): (u64, u64),
    warned: &AtomicBool,
) -> Option<Vm> {
    let Some(vm) = Vm::of(pid, identity_page) else {
        warn_vm_unavailable(warned, pid, "it is in another pid namespace");
        return None;
    };
    match try_out(vm, segment, offset, address) {
        Ok(true) => Some(vm),
        Ok(false) => {
            warn_vm_unavailable(warned, pid, "its segment is not at the address that it gave");
            None
        }
        Err(VmError::Gone) => None,
        Err(VmError::Forbidden(error)) => {
            let error = std::io::Error::from_raw_os_error(error);
            warn_vm_unavailable(warned, pid, &format!("{}: {error}", vm::reason(pid)));
            None
        }
        Err(VmError::Fault) => {
            warn_vm_unavailable(warned, pid, "its memory cannot be reached");
            None
        }
        Err(VmError::Failed(error)) => {
            warn_vm_unavailable(warned, pid, &std::io::Error::from_raw_os_error(error).to_string());
            None
        }
    }
}

/// Whether the system copies within this process: it reads a number on the stack.
pub(crate) fn probe_own(identity_page: u64) -> Option<Vm> {
    if cfg!(any(miri, loom)) {
        return None;
    }
    let vm = Vm::own(identity_page);
    let number = random();
    let mut copy = [0; 16];
    // SAFETY: both are on the stack, and have the same length.
    let read = unsafe { vm.read_own(copy.as_mut_ptr(), number.as_ptr(), number.len()) };
    match read {
        Ok(()) => (copy == number).then_some(vm),
        Err(error) => {
            log::info!("the system does not copy within this process: {error:?}");
            None
        }
    }
}

/// Logs the warning once per process.
pub(crate) fn warn_vm_unavailable(warned: &AtomicBool, pid: u32, reason: &str) {
    if !warned.swap(true, Ordering::Relaxed) {
        log::warn!(
            "process_vm_writev to process {pid} is not possible ({reason}); payload takes a slower path through \
             that process"
        );
    }
}

fn try_out(vm: Vm, segment: &Segment, offset: u64, address: u64) -> Result<bool, VmError> {
    let mut number = random();
    let expected = u128::from_ne_bytes(number);
    let remote = [vm::remote(address, number.len())];
    let local = [iovec { iov_base: (&raw mut number).cast(), iov_len: number.len() }];
    // SAFETY: the local bytes are on the stack. The remote ones are the probe area of the peer's
    // segment, as its welcome named it, in the address space of another process; `vm` checks that
    // they are mapped.
    if unsafe { vm.write(&local, &remote)? } != number.len() || find(segment, offset) != Some(expected) {
        return Ok(false);
    }
    number = [0; 16];
    let local = [iovec { iov_base: (&raw mut number).cast(), iov_len: number.len() }];
    // SAFETY: the local bytes are on the stack, and `local` was just made from them.
    let read = unsafe { vm.read(&local, &remote)? };
    Ok(read == number.len() && u128::from_ne_bytes(number) == expected)
}

/// The number at this offset in the segment.
fn find(segment: &Segment, offset: u64) -> Option<u128> {
    let word = |offset| {
        let place = segment.heap(offset, 8)?.cast::<u64>();
        // SAFETY: `heap` has checked that the word lies in the mapping, which `segment` keeps. It
        // is aligned, and accessed as an atomic only.
        place.is_aligned().then(|| unsafe { AtomicU64::from_ptr(place.as_ptr()) }.load(Ordering::Relaxed))
    };
    let (low, high) = (word(offset)?, word(offset.checked_add(8)?)?);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_ne_bytes());
    bytes[8..].copy_from_slice(&high.to_ne_bytes());
    Some(u128::from_ne_bytes(bytes))
}
