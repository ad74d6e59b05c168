//! Tests of GPU memory on a real GPU. Without a GPU each test is ignored, with the missing part as
//! the reason; with `SIDEWAY_TEST_REQUIRE_GPU=1` that is a failure.
//!
//! The program needs nothing but the C library and NVIDIA's driver, so that it can be taken to a
//! machine with a GPU: `cargo test -p sideway --features cuda --test cuda --no-run`. If the machine
//! has InfiniBand devices that support dma-bufs, memory is also registered with the first one.
#![allow(missing_docs, reason = "a test program")]

use std::os::fd::AsFd;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::memory_region::RegisterMemoryRegionError;
use sideway::memory::cuda::{CudaDevice, CudaError};

const REQUIRE: &str = "SIDEWAY_TEST_REQUIRE_GPU";

const LEN: usize = 3 * 4096 + 5;

type Case = fn(&CudaDevice) -> Result<Completion, Failed>;

fn main() -> ExitCode {
    let required = std::env::var_os(REQUIRE).is_some_and(|value| !value.is_empty());
    let cases: [(&str, Case); 5] = [
        ("a_device_says_what_it_is", describe),
        ("bytes_come_back", bytes_come_back),
        ("memory_is_exported_as_a_dma_buf", exported),
        ("memory_is_freed", freed),
        ("memory_is_registered_with_a_nic", registered),
    ];
    let mut trials: Vec<_> = cases
        .into_iter()
        .map(|(name, case)| {
            Trial::ignorable_test(name, move || match CudaDevice::open(0) {
                Ok(device) => case(&device),
                Err(error) if required => Err(error.to_string().into()),
                Err(error) => Ok(Completion::ignored_with(error.to_string())),
            })
        })
        .collect();
    trials.push(Trial::test("a_gpu_that_is_not_there_is_a_typed_error", || {
        match CudaDevice::open(u32::MAX) {
            Err(CudaError::NoSuchDevice { ordinal: u32::MAX, .. } | CudaError::NoLibrary { .. }) => Ok(()),
            // A driver without a GPU.
            Err(CudaError::Driver { call: "cuInit", .. }) => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn words(error: impl std::fmt::Display) -> Failed {
    error.to_string().into()
}

fn describe(device: &CudaDevice) -> Result<Completion, Failed> {
    assert!(CudaDevice::count().map_err(words)? > device.ordinal());
    let name = device.name().map_err(words)?;
    assert!(!name.is_empty());
    println!("{name}, dma-bufs: {}", device.exports_dma_bufs().map_err(words)?);
    Ok(Completion::Completed)
}

fn bytes_come_back(device: &CudaDevice) -> Result<Completion, Failed> {
    for len in [1, LEN, 8 << 20] {
        let mut buffer = device.allocate(len).map_err(words)?;
        let mut found = vec![1; len];
        buffer.copy_to_slice(0, &mut found).map_err(words)?;
        assert!(found.iter().all(|byte| *byte == 0), "new memory is zeroed");
        let bytes: Vec<u8> = (0..len).map(|n| (n * 31 + n / 256) as u8).collect();
        buffer.copy_from_slice(0, &bytes).map_err(words)?;
        buffer.copy_to_slice(0, &mut found).map_err(words)?;
        assert_eq!(found, bytes);
        buffer.copy_from_slice(len / 2, &[200]).map_err(words)?;
        let mut one = [0];
        buffer.copy_to_slice(len / 2, &mut one).map_err(words)?;
        assert_eq!(one, [200]);
        assert!(matches!(buffer.copy_to_slice(len, &mut one), Err(CudaError::OutOfBuffer(_))));
    }
    Ok(Completion::Completed)
}

fn exported(device: &CudaDevice) -> Result<Completion, Failed> {
    let buffer = device.allocate(LEN).map_err(words)?;
    let dma_buf = match buffer.export() {
        // The driver reports it: it has closed kernel modules.
        Err(error @ (CudaError::NoDmaBuf { .. } | CudaError::MissingSymbol { .. })) => {
            return Ok(Completion::ignored_with(error.to_string()));
        }
        exported => exported.map_err(words)?,
    };
    let page = rustix::param::page_size();
    assert_eq!(dma_buf.len, LEN.next_multiple_of(page));
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dma_buf.fd));
    let target = std::fs::read_link(&link).map_err(words)?;
    assert!(target.to_string_lossy().contains("dmabuf"), "{}", target.display());
    let info = std::fs::read_to_string(link.replace("/fd/", "/fdinfo/")).map_err(words)?;
    println!("{}: {}", target.display(), info.replace('\n', ", "));
    // Seeking to the end returns a dma-buf's length.
    let end = rustix::fs::seek(dma_buf.fd.as_fd(), rustix::fs::SeekFrom::End(0)).map_err(words)?;
    assert_eq!(end, dma_buf.len as u64);
    Ok(Completion::Completed)
}

/// Allocates more than any GPU has, one buffer after the other.
fn freed(device: &CudaDevice) -> Result<Completion, Failed> {
    for _ in 0..1000 {
        device.allocate(1 << 30).map_err(words)?;
    }
    Ok(Completion::Completed)
}

fn registered(device: &CudaDevice) -> Result<Completion, Failed> {
    let nic = DeviceList::new().map_err(|error| error.to_string()).and_then(|list| {
        let device = list.first().map_err(|error| error.to_string())?;
        device.open().map_err(|error| error.to_string())
    });
    let context = match nic {
        Ok(context) => context,
        Err(error) => return Ok(Completion::ignored_with(error)),
    };
    let pd = context.alloc_pd().map_err(words)?;
    let access = AccessFlags::LocalWrite | AccessFlags::RemoteWrite;
    match device.allocate(LEN).map_err(words)?.register(&pd, access) {
        Ok(mut region) => {
            assert_eq!(region.addr(), region.buffer().device_ptr());
            region.buffer_mut().fill(7).map_err(words)?;
            let mut last = [0];
            region.buffer().copy_to_slice(LEN - 1, &mut last).map_err(words)?;
            assert_eq!(last, [7]);
            Ok(Completion::Completed)
        }
        Err(
            error @ (RegisterMemoryRegionError::Unsupported(_)
            | RegisterMemoryRegionError::Cuda(CudaError::NoDmaBuf { .. })),
        ) => Ok(Completion::ignored_with(error.to_string())),
        Err(error) => Err(words(error)),
    }
}
