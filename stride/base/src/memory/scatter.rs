//! Keeps mlx5's library from copying small messages to memory that the processor cannot reach.
//!
//! An mlx5 device may put a small answer or message into the completion, from which its library
//! copies it to the address in the request. For memory on the device or a GPU, that address is not
//! valid in this process.
//!
//! # Safety
//!
//! Only `main` writes the environment, before a second thread exists.

#![allow(unsafe_code)]

use super::{MemoryError, MemoryKind};

/// The library reads this variable when it creates a queue pair.
const VARIABLE: &str = "MLX5_SCATTER_TO_CQE";

/// Whether the processor cannot reach this kind of memory.
fn is_out_of_reach(kind: Option<MemoryKind>) -> bool {
    matches!(kind, Some(MemoryKind::Device | MemoryKind::Cuda(_)))
}

/// Tells mlx5's library to copy nothing, if memory of this kind needs that.
///
/// # Safety
///
/// No other thread exists that may read the environment.
pub unsafe fn avoid(kind: Option<MemoryKind>) {
    if is_out_of_reach(kind) {
        // SAFETY: the caller guarantees that no other thread reads the environment.
        unsafe { std::env::set_var(VARIABLE, "0") };
    }
}

/// Refuses memory that this vendor's library might copy to.
pub(super) fn check(kind: MemoryKind, device: &str, vendor_id: u32) -> Result<(), MemoryError> {
    let is_mlx5 = matches!(vendor_id, 0x02c9 | 0x15b3 | 0x119f);
    match is_mlx5
        && is_out_of_reach(Some(kind))
        && std::env::var_os(VARIABLE).is_none_or(|value| value != "0")
    {
        true => Err(MemoryError::Scatters { kind, device: device.to_owned() }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sideway::memory::BufferKind;

    use super::*;

    #[test]
    fn only_memory_out_of_reach_is_refused_and_only_of_mlx5() {
        // No test in this module sets the variable.
        let refused = |kind, vendor_id| check(kind, "a device", vendor_id).is_err();
        assert!(refused(MemoryKind::Device, 0x15b3) && refused(MemoryKind::Cuda(1), 0x02c9));
        assert!(!refused(MemoryKind::Device, 0) && !refused(MemoryKind::Host(BufferKind::Shared), 0x15b3));
        assert!(!refused(MemoryKind::DmaBuf, 0x15b3));
        let text = check(MemoryKind::Device, "mlx5_0", 0x15b3).unwrap_err().to_string();
        assert!(text.contains("mlx5_0") && text.contains("MLX5_SCATTER_TO_CQE=0"), "{text}");
    }
}
