//! CUDA driver errors, with their remedies.

use crate::memory::OutOfSlice;

/// Something about a GPU's memory failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not there.
    #[error(
        "libcuda.so.1 cannot be opened: {reason}; it comes with the NVIDIA driver, not with the CUDA toolkit"
    )]
    NoLibrary {
        /// The loader's own words.
        reason: String,
    },
    /// The library is too old, or another's.
    #[error("libcuda.so.1 has no {symbol}; update the NVIDIA driver ({since})")]
    MissingSymbol {
        /// The function of the CUDA driver, such as `cuMemAlloc_v2`.
        symbol: &'static str,
        /// Which driver has it.
        since: &'static str,
    },
    /// There is no GPU of that number.
    #[error(
        "there is no CUDA device {ordinal}: there are {count}; CUDA_VISIBLE_DEVICES says which the driver shows"
    )]
    NoSuchDevice {
        /// The number, from 0.
        ordinal: u32,
        /// The number of devices that the driver reports.
        count: u32,
    },
    /// The GPU's driver hands out no dma-bufs.
    #[error(
        "CUDA device {ordinal} ({name}) exports no dma-buf: the open kernel modules of the NVIDIA driver (515 or later) and \
         Linux 5.12 or later are needed"
    )]
    NoDmaBuf {
        /// The GPU's number.
        ordinal: u32,
        /// The GPU's name, as the driver reports it.
        name: String,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {name} ({result}): {description}{}", advice(*.result))]
    Driver {
        /// The function of the CUDA driver, such as `cuMemAlloc_v2`.
        call: &'static str,
        /// What it returned (`CUresult`).
        result: u32,
        /// The same in CUDA's words.
        name: String,
        /// What that means, says the driver.
        description: String,
    },
    /// No bytes were asked for, or more than there are addresses.
    #[error("a GPU buffer of {len} bytes cannot be")]
    Length {
        /// How many.
        len: usize,
    },
    /// The buffer has not so many bytes.
    #[error(transparent)]
    OutOfBuffer(#[from] OutOfSlice),
}

debug_as_text!(CudaError);

/// The remedy for a result of the driver.
fn advice(result: u32) -> &'static str {
    match result {
        2 => "; the GPU's memory is used up: `nvidia-smi` says by whom",
        34 => "; this is the toolkit's stub of the library: put the driver's own before it",
        46 => "; another process has the GPU to itself (its compute mode)",
        100 => "; there is no GPU, or CUDA_VISIBLE_DEVICES hides it: `nvidia-smi -L` lists them",
        802 => "; the GPU's fabric is not up yet: is nvidia-fabricmanager running?",
        803 => "; library and kernel module are of different drivers: reboot, or load the right module",
        _ => "",
    }
}
