//! The CUDA driver library, loaded on first use: a table of its functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::CudaError;

/// `CUresult`.
pub(super) type Result = c_uint;
/// `CUdeviceptr`.
pub(super) type Address = c_ulonglong;
/// `CUcontext`.
pub(super) type Context = *mut c_void;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
pub(super) const DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
pub(super) const SYNC_MEMOPS: c_int = 6;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(super) const DMA_BUF_FD: c_int = 1;

macro_rules! driver {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ty),*);)*) => {
        /// The driver's functions, named after their symbols.
        pub(super) struct Driver {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($arg),*) -> Result,)*
            /// `None` before CUDA 11.7.
            pub(super) mem_get_handle:
                Option<unsafe extern "C" fn(*mut c_void, Address, usize, c_int, c_ulonglong) -> Result>,
        }

        impl Driver {
            /// # Safety
            ///
            /// `library` must be the CUDA driver.
            unsafe fn of(library: &Library) -> std::result::Result<Self, CudaError> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the caller guarantees the CUDA driver, and this symbol has this
                        // prototype in every release.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> Result>(concat!($symbol, "\0").as_bytes())
                        };
                        *symbol.map_err(|_| CudaError::MissingSymbol { symbol: $symbol, since: "418 or later" })?
                    },)*
                    // SAFETY: the caller guarantees the CUDA driver, and this symbol has the same
                    // prototype in all releases that export it.
                    mem_get_handle: unsafe { library.get(c"cuMemGetHandleForAddressRange".to_bytes_with_nul()) }
                        .ok()
                        .map(|symbol| *symbol),
                })
            }
        }
    };
}

driver! {
    init = "cuInit": fn(c_uint);
    get_error_name = "cuGetErrorName": fn(Result, *mut *const c_char);
    get_error_string = "cuGetErrorString": fn(Result, *mut *const c_char);
    device_get_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut c_int, c_int);
    device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    device_get_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain": fn(*mut Context, c_int);
    primary_ctx_release = "cuDevicePrimaryCtxRelease_v2": fn(c_int);
    ctx_push = "cuCtxPushCurrent_v2": fn(Context);
    ctx_pop = "cuCtxPopCurrent_v2": fn(*mut Context);
    mem_alloc = "cuMemAlloc_v2": fn(*mut Address, usize);
    mem_free = "cuMemFree_v2": fn(Address);
    memcpy_to_device = "cuMemcpyHtoD_v2": fn(Address, *const c_void, usize);
    memcpy_to_host = "cuMemcpyDtoH_v2": fn(*mut c_void, Address, usize);
    memset = "cuMemsetD8_v2": fn(Address, u8, usize);
    pointer_set_attribute = "cuPointerSetAttribute": fn(*const c_void, c_int, Address);
}

impl Driver {
    /// The driver, loaded and initialised once in a process. It is never closed.
    pub(super) fn load() -> std::result::Result<&'static Self, CudaError> {
        static DRIVER: OnceLock<std::result::Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(|| Self::open("libcuda.so.1")).as_ref().map_err(Clone::clone)
    }

    fn open(name: &str) -> std::result::Result<Self, CudaError> {
        // SAFETY: loading runs only the constructors of the driver's library, as in any CUDA
        // program.
        let library = match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => library,
            Err(libloading::Error::DlOpen { source }) => {
                return Err(CudaError::NoLibrary { reason: source.to_string() });
            }
            Err(error) => return Err(CudaError::NoLibrary { reason: error.to_string() }),
        };
        // SAFETY: a library with this name is the CUDA driver.
        let driver = unsafe { Self::of(&library) };
        // Leaked, because the functions may be called until the process ends.
        std::mem::forget(library);
        driver?.initialised()
    }

    /// Calls `cuInit`, which must precede all other calls.
    pub(super) fn initialised(self) -> std::result::Result<Self, CudaError> {
        // SAFETY: the flags must be 0, and they are.
        self.check("cuInit", unsafe { (self.init)(0) })?;
        Ok(self)
    }

    /// Converts the result of a call into an error with the driver's text.
    pub(super) fn check(&self, call: &'static str, result: Result) -> std::result::Result<(), CudaError> {
        if result == 0 {
            return Ok(());
        }
        let words = |ask: unsafe extern "C" fn(Result, *mut *const c_char) -> Result| {
            let mut words = std::ptr::null();
            // SAFETY: the driver writes a static string or null to `words`, a local variable.
            unsafe {
                match ask(result, &raw mut words) {
                    0 if !words.is_null() => CStr::from_ptr(words).to_string_lossy().into_owned(),
                    _ => "a result that this driver does not know".to_owned(),
                }
            }
        };
        let (name, description) = (words(self.get_error_name), words(self.get_error_string));
        Err(CudaError::Driver { call, result, name, description })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::alloc::{Layout, alloc, dealloc};
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    /// A fake driver for tests. Its GPU memory is host memory, and each call can be made to fail.
    #[derive(Default)]
    struct Fake {
        fails: Option<(&'static str, Result)>,
        /// The length of each allocation, by address. As with CUDA, addresses are not page-aligned.
        allocations: BTreeMap<u64, (usize, *mut u8)>,
        contexts: i64,
        pushed: Vec<usize>,
        exported: Option<(u64, usize)>,
    }

    thread_local! {
        static FAKE: RefCell<Fake> = RefCell::default();
        static DMA_BUF: Cell<c_int> = const { Cell::new(1) };
    }

    fn call(name: &'static str, does: impl FnOnce(&mut Fake)) -> Result {
        FAKE.with_borrow_mut(|fake| match fake.fails {
            Some((failing, result)) if failing == name => result,
            _ => {
                does(fake);
                0
            }
        })
    }

    /// Makes the next call with this name, and all later ones, fail.
    pub(in super::super) fn fail(name: &'static str, result: Result) {
        FAKE.with_borrow_mut(|fake| fake.fails = Some((name, result)));
    }

    pub(in super::super) fn export_dma_bufs(can: bool) {
        DMA_BUF.set(can.into());
    }

    /// The last exported range: address and length.
    pub(in super::super) fn exported() -> Option<(u64, usize)> {
        FAKE.with_borrow(|fake| fake.exported)
    }

    /// The number of live allocations, retained contexts, and contexts on the stack.
    pub(in super::super) fn left() -> (usize, i64, usize) {
        FAKE.with_borrow(|fake| (fake.allocations.len(), fake.contexts, fake.pushed.len()))
    }

    unsafe extern "C" fn init(flags: c_uint) -> Result {
        assert_eq!(flags, 0);
        call("cuInit", |_| {})
    }
    unsafe extern "C" fn get_error_name(result: Result, words: *mut *const c_char) -> Result {
        let name = match result {
            2 => c"CUDA_ERROR_OUT_OF_MEMORY",
            100 => c"CUDA_ERROR_NO_DEVICE",
            _ => return 1,
        };
        // SAFETY: the caller's pointer is valid, as in the real driver's contract.
        unsafe { words.write(name.as_ptr()) };
        0
    }
    unsafe extern "C" fn get_error_string(_: Result, words: *mut *const c_char) -> Result {
        // SAFETY: the caller's pointer is valid, as in the real driver's contract.
        unsafe { words.write(c"it says".as_ptr()) };
        0
    }
    unsafe extern "C" fn device_get_count(count: *mut c_int) -> Result {
        // SAFETY: the caller's pointer is valid, as in the real driver's contract.
        call("cuDeviceGetCount", |_| unsafe { count.write(2) })
    }
    unsafe extern "C" fn device_get(device: *mut c_int, ordinal: c_int) -> Result {
        // SAFETY: the caller's pointer is valid, as in the real driver's contract.
        call("cuDeviceGet", |_| unsafe { device.write(ordinal + 40) })
    }
    unsafe extern "C" fn device_get_name(name: *mut c_char, len: c_int, device: c_int) -> Result {
        assert!(len > 5 && device >= 40);
        // SAFETY: the caller's buffer has more than 6 bytes.
        call("cuDeviceGetName", |_| unsafe { name.copy_from(c"a GPU".as_ptr(), 6) })
    }
    unsafe extern "C" fn device_get_attribute(value: *mut c_int, which: c_int, _: c_int) -> Result {
        assert_eq!(which, DMA_BUF_SUPPORTED);
        // SAFETY: the caller's pointer is valid, as in the real driver's contract.
        call("cuDeviceGetAttribute", |_| unsafe { value.write(DMA_BUF.get()) })
    }
    unsafe extern "C" fn primary_ctx_retain(context: *mut Context, device: c_int) -> Result {
        call("cuDevicePrimaryCtxRetain", |fake| {
            fake.contexts += 1;
            // SAFETY: the caller's pointer is valid, as in the real driver's contract.
            unsafe { context.write(std::ptr::without_provenance_mut(device as usize)) };
        })
    }
    unsafe extern "C" fn primary_ctx_release(_: c_int) -> Result {
        call("cuDevicePrimaryCtxRelease", |fake| fake.contexts -= 1)
    }
    unsafe extern "C" fn ctx_push(context: Context) -> Result {
        call("cuCtxPushCurrent", |fake| fake.pushed.push(context.addr()))
    }
    unsafe extern "C" fn ctx_pop(_: *mut Context) -> Result {
        call("cuCtxPopCurrent", |fake| assert!(fake.pushed.pop().is_some()))
    }
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len + 256, 4096).unwrap()
    }
    unsafe extern "C" fn mem_alloc(address: *mut Address, len: usize) -> Result {
        call("cuMemAlloc", |fake| {
            assert!(!fake.pushed.is_empty());
            // SAFETY: the layout's size is not 0.
            let start = unsafe { alloc(layout(len)) };
            let at = start.expose_provenance() as u64 + 256;
            fake.allocations.insert(at, (len, start));
            // SAFETY: the caller's pointer is valid, as in the real driver's contract.
            unsafe { address.write(at) };
        })
    }
    unsafe extern "C" fn mem_free(address: Address) -> Result {
        call("cuMemFree", |fake| {
            let (len, start) = fake.allocations.remove(&address).expect("it was allocated");
            // SAFETY: `start` was allocated with this layout, and is freed once.
            unsafe { dealloc(start, layout(len)) };
        })
    }
    impl Fake {
        fn within(&self, address: Address, len: usize) -> *mut u8 {
            assert!(!self.pushed.is_empty());
            let (start, (all, _)) = self.allocations.range(..=address).next_back().expect("it was allocated");
            assert!(address + len as u64 <= start + *all as u64, "outside of the allocation");
            std::ptr::with_exposed_provenance_mut(address as usize)
        }
    }
    unsafe extern "C" fn memcpy_to_device(to: Address, from: *const c_void, len: usize) -> Result {
        // SAFETY: `within` checks the range, and the caller's bytes are readable.
        call("cuMemcpyHtoD", |fake| unsafe { fake.within(to, len).copy_from(from.cast(), len) })
    }
    unsafe extern "C" fn memcpy_to_host(to: *mut c_void, from: Address, len: usize) -> Result {
        // SAFETY: `within` checks the range, and the caller's buffer is writable.
        call("cuMemcpyDtoH", |fake| unsafe { fake.within(from, len).copy_to(to.cast(), len) })
    }
    unsafe extern "C" fn memset(at: Address, byte: u8, len: usize) -> Result {
        // SAFETY: `within` checks the range.
        call("cuMemsetD8", |fake| unsafe { fake.within(at, len).write_bytes(byte, len) })
    }
    unsafe extern "C" fn pointer_set_attribute(value: *const c_void, which: c_int, at: Address) -> Result {
        // SAFETY: the caller passes a `c_uint`.
        assert_eq!((unsafe { value.cast::<c_uint>().read() }, which), (1, SYNC_MEMOPS));
        call("cuPointerSetAttribute", |fake| assert!(!fake.within(at, 1).is_null()))
    }
    unsafe extern "C" fn mem_get_handle(
        handle: *mut c_void,
        at: Address,
        len: usize,
        kind: c_int,
        flags: c_ulonglong,
    ) -> Result {
        assert_eq!((kind, flags, at % 4096, len % 4096), (DMA_BUF_FD, 0, 0, 0));
        call("cuMemGetHandleForAddressRange", |fake| {
            fake.within(at, len);
            fake.exported = Some((at, len));
            let file = rustix::fs::memfd_create(c"dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            // SAFETY: the caller's pointer is valid for a descriptor.
            unsafe { handle.cast::<c_int>().write(std::os::fd::IntoRawFd::into_raw_fd(file)) };
        })
    }

    /// The fake driver.
    pub(in super::super) fn fake() -> &'static Driver {
        FAKE.set(Fake::default());
        DMA_BUF.set(1);
        Box::leak(Box::new(Driver {
            init,
            get_error_name,
            get_error_string,
            device_get_count,
            device_get,
            device_get_name,
            device_get_attribute,
            primary_ctx_retain,
            primary_ctx_release,
            ctx_push,
            ctx_pop,
            mem_alloc,
            mem_free,
            memcpy_to_device,
            memcpy_to_host,
            memset,
            pointer_set_attribute,
            mem_get_handle: Some(mem_get_handle),
        }))
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens a library")]
    fn a_library_that_is_not_there_is_an_error_with_the_loaders_words() {
        let Err(error) = Driver::open("libcuda-that-is-not-there.so.1") else { panic!("it is there") };
        let CudaError::NoLibrary { reason } = &error else { panic!("{error}") };
        assert!(reason.contains("libcuda-that-is-not-there.so.1"), "{reason}");
        assert!(error.to_string().contains("comes with the NVIDIA driver"), "{error}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "opens a library")]
    fn a_library_that_is_anothers_is_an_error_that_names_the_symbol() {
        let Err(error) = Driver::open("libc.so.6") else { panic!("it is CUDA") };
        let expected = CudaError::MissingSymbol { symbol: "cuInit", since: "418 or later" };
        assert_eq!(error, expected);
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks its tables")]
    fn a_driver_without_a_gpu_says_so() {
        let driver = fake();
        fail("cuInit", 100);
        let driver = Driver { mem_get_handle: None, ..*driver };
        let Err(error) = driver.initialised() else { panic!("there is one") };
        let text = error.to_string();
        assert!(
            text.contains("cuInit failed: CUDA_ERROR_NO_DEVICE (100): it says; there is no GPU"),
            "{text}"
        );
        // A result that the driver itself does not know.
        let error = fake().check("cuMemFree", 7777).unwrap_err();
        assert!(error.to_string().contains("a result that this driver does not know (7777)"), "{error}");
    }
}
