//! The shared object, loaded into this process and called.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::{CString, OsStr};
use std::path::Path;
use std::process::Command;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rdma_mummy_sys::Provider;
use rdma_mummy_sys::types::{ibv_ah_attr, ibv_device, ibv_qp_attr, ibv_sa_path_rec, ibv_wc_status};
use test_harness::{Grant, PrivilegedCopy};

use crate::lists::{expected, system_library};
use crate::{CheckResult, Skipped, library};

/// The library whose path of sysfs the program prints, instead of running tests.
pub(crate) const TELL_PATH: &str = "SOFT_RNIC_TELL_PATH";

/// The open shared object. It is marked never to be unloaded, so that addresses stay good.
struct OpenLibrary(*mut c_void);

impl OpenLibrary {
    fn new() -> Result<Self, String> {
        // SAFETY: it is the library under test, which runs nothing when it is loaded.
        let library = unsafe { Library::open(Some(library()?), RTLD_NOW | RTLD_LOCAL) };
        Ok(Self(library.map_err(|error| error.to_string())?.into_raw()))
    }

    fn find(&self, name: &str, version: &str) -> Result<*mut c_void, String> {
        let strings = [name, version].map(|text| CString::new(text).expect("symbols have no NUL"));
        // SAFETY: the handle is open, the strings end with a NUL.
        let found = unsafe { libc::dlvsym(self.0, strings[0].as_ptr(), strings[1].as_ptr()) };
        if found.is_null() { Err(format!("no {name}@{version}")) } else { Ok(found) }
    }

    /// A function of the library, as a pointer of its type.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to that C function.
    unsafe fn function<F: Copy>(&self, name: &str, version: &str) -> Result<F, String> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: both are pointers; the caller says that the type is right.
        self.find(name, version).map(|found| unsafe { core::mem::transmute_copy(&found) })
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// Loaded before any program, the library changes nothing for one that has no use for it.
pub(crate) fn nothing_runs_at_load() -> CheckResult {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ls /proc/$$/fd /proc/$$/task"]).env("SOFT_RNIC_LOG", "trace");
    let text = |command: &mut Command| {
        let output = command.output().map_err(|error| error.to_string())?;
        // The shell's own number is in no line but those of its only thread.
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Ok::<_, String>((output.status.code(), text.lines().count()))
    };
    let without = text(&mut command)?;
    let with = text(command.env("LD_PRELOAD", library()?))?;
    ensure(without.0 == Some(0) && with == without, &format!("without: {without:?}, with: {with:?}"))?;
    Ok(Ok(()))
}

pub(crate) fn every_symbol_by_its_version() -> CheckResult {
    let open = OpenLibrary::new()?;
    for symbol in expected() {
        let by_version = open.find(&symbol.name, &symbol.version)?;
        let name = CString::new(symbol.name.as_str()).expect("symbols have no NUL");
        // SAFETY: the handle is open, the name ends with a NUL.
        let plain = unsafe { libc::dlsym(open.0, name.as_ptr()) };
        if symbol.is_default && plain != by_version {
            return Err(format!("{symbol:?} is not what its plain name finds"));
        }
    }
    let wrong = open.find("ibv_open_device", "IBVERBS_1.0");
    ensure(wrong.is_err(), "the layout of before IBVERBS_1.1 is not had here")?;
    Ok(Ok(()))
}

/// Every function of every release up to the newest, in the version that each of them gave it.
pub(crate) fn the_loader_takes_it() -> CheckResult {
    let library = library()?;
    let provider = Provider::from_folder(library.parent().unwrap_or(Path::new(".")));
    let verbs = provider.map_err(|error| error.to_string())?.verbs();
    verbs.ibv_query_qp_data_in_order().map_err(|error| error.to_string())?;
    verbs.ibv_create_comp_cntr().map_err(|error| error.to_string())?;
    // SAFETY: it takes any value and returns a constant.
    let text = unsafe { CStr::from_ptr((verbs.ibv_wc_status_str)(ibv_wc_status::IBV_WC_SUCCESS)) };
    ensure(!text.is_empty(), "a status has a name")?;
    Ok(Ok(()))
}

/// librdmacm has all functions of the newest release, and its devices are those of libibverbs.
pub(crate) fn both_libraries_have_one_device() -> CheckResult {
    let library = library()?;
    let provider = Provider::from_folder(library.parent().unwrap_or(Path::new(".")));
    let provider = provider.map_err(|error| error.to_string())?;
    let (verbs, cm) = (provider.verbs(), provider.rdmacm().map_err(|error| error.to_string())?);
    cm.rdma_write_cm_event().map_err(|error| error.to_string())?;
    cm.repoll_create().map_err(|error| error.to_string())?;
    // SAFETY: the C prototypes, used as the manual says.
    unsafe {
        let mut count = 0;
        let contexts = (cm.rdma_get_devices)(&mut count);
        ensure(!contexts.is_null() && count > 0, &format!("no device: {}", std::io::Error::last_os_error()))?;
        let device = (*contexts.read()).device;
        let list = (verbs.ibv_get_device_list)(core::ptr::null_mut());
        ensure(!list.is_null() && list.read() == device, "the same device in both")?;
        (verbs.ibv_free_device_list)(list);
        (cm.rdma_free_devices)(contexts);
        let socket = (cm.rsocket)(libc::AF_INET, libc::SOCK_STREAM, 0);
        ensure(socket >= 0, "an rsocket")?;
        let fcntl = cm.rfcntl().map_err(|error| error.to_string())?;
        ensure(fcntl(socket, libc::F_GETFL) == libc::O_RDWR, "rfcntl with two arguments")?;
        ensure(fcntl(socket, libc::F_SETFL, libc::O_NONBLOCK) == 0, "rfcntl with three")?;
        ensure(fcntl(socket, libc::F_GETFL) == libc::O_RDWR | libc::O_NONBLOCK, "what was set")?;
        ensure((cm.rclose)(socket) == 0, "its end")?;
        *libc::__errno_location() = 0;
        ensure(fcntl(socket, libc::F_GETFL) == -1 && errno() == libc::EBADF, "no rsocket any more")?;
    }
    Ok(Ok(()))
}

pub(crate) fn private_functions_fail() -> CheckResult {
    let open = OpenLibrary::new()?;
    for node in ["34", "57", "59", "64", "65"] {
        let version = format!("IBVERBS_PRIVATE_{node}");
        // SAFETY: these functions look at no argument.
        unsafe {
            *libc::__errno_location() = 0;
            let alloc_pd: extern "C" fn() -> c_int = open.function("ibv_cmd_alloc_pd", &version)?;
            ensure(alloc_pd() == libc::EOPNOTSUPP && errno() == libc::EOPNOTSUPP, "ibv_cmd_alloc_pd")?;
            *libc::__errno_location() = 0;
            let open_device: extern "C" fn() -> *mut c_void = open.function("verbs_open_device", &version)?;
            ensure(open_device().is_null() && errno() == libc::EOPNOTSUPP, "verbs_open_device")?;
            let register: extern "C" fn() =
                open.function(&format!("verbs_register_driver_{node}"), &version)?;
            register();
            let flag: *mut bool = open.find("verbs_allow_disassociate_destroy", &version)?.cast();
            ensure(!flag.read(), "a flag that nobody set")?;
            flag.write(true);
            flag.write(false);
        }
    }
    Ok(Ok(()))
}

pub(crate) fn sysfs_files() -> CheckResult {
    type ReadSysfs = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> c_int;
    let open = OpenLibrary::new()?;
    // SAFETY: the C prototypes; the buffer is as long as is said, the strings end with a NUL.
    unsafe {
        let path: extern "C" fn() -> *const c_char = open.function("ibv_get_sysfs_path", "IBVERBS_1.0")?;
        ensure(CStr::from_ptr(path()) == c"/sys", "/sys")?;
        let read: ReadSysfs = open.function("ibv_read_sysfs_file", "IBVERBS_1.0")?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sysfs");
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        std::fs::write(folder.join("board_id"), "SOFT\n").map_err(|error| error.to_string())?;
        let folder = CString::new(folder.into_os_string().into_encoded_bytes()).expect("no NUL in a path");
        let mut buffer = [0x55 as c_char; 8];
        let mut get = |name: &CStr, size| read(folder.as_ptr(), name.as_ptr(), buffer.as_mut_ptr(), size);
        ensure(get(c"board_id", 5) == 4, "text and NUL fit exactly")?;
        ensure(get(c"board_id", 4) == -1 && errno() == libc::ENAMETOOLONG, "no place for the NUL")?;
        ensure(get(c"board_id", 0) == -1, "no place at all")?;
        ensure(get(c"nothing", 8) == -1 && errno() == libc::ENOENT, "a file that is not there")?;
        ensure(CStr::from_ptr(buffer.as_ptr()) == c"SOFT", "the text without its newline")?;
        ensure(buffer[5] == 0x55, "nothing written behind the NUL")?;
    }
    Ok(Ok(()))
}

/// The child process's part of [`more_rights_than_the_user`].
pub(crate) fn tell_path(library: &OsStr) -> Result<(), String> {
    // SAFETY: it is the library under test, which runs nothing when it is loaded.
    let open = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_LOCAL) };
    let open = OpenLibrary(open.map_err(|error| error.to_string())?.into_raw());
    // SAFETY: the C prototype; the result ends with a NUL.
    unsafe {
        let path: extern "C" fn() -> *const c_char = open.function("ibv_get_sysfs_path", "IBVERBS_1.0")?;
        println!("{}", CStr::from_ptr(path()).to_string_lossy());
    }
    Ok(())
}

/// A program with more rights than its user takes no path from that user.
pub(crate) fn more_rights_than_the_user() -> CheckResult {
    let library = library()?;
    let mut ran = false;
    for copy in Grant::ALL.into_iter().filter_map(|grant| PrivilegedCopy::new("more_rights", grant)) {
        let output = copy.run(|command| {
            command.env(TELL_PATH, &library).env("SYSFS_PATH", "/elsewhere");
        });
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure(text == "/sys\n", &text)?;
        ran = true;
    }
    Ok(if ran { Ok(()) } else { Err(Skipped("no program gets more rights than its user here".into())) })
}

/// Bytes that are all different, as far as there are bytes.
fn pattern<const N: usize>() -> [u8; N] {
    core::array::from_fn(|index| index as u8 + 1)
}

/// The four bytes, in this machine's order, that stand at an offset of the pattern.
fn word(offset: u8) -> u32 {
    u32::from_ne_bytes([1, 2, 3, 4].map(|byte| byte + offset))
}

pub(crate) fn structs_of_the_kernel() -> CheckResult {
    type Copy<To, From> = unsafe extern "C" fn(*mut To, *const From);
    let open = OpenLibrary::new()?;
    #[repr(C, align(8))]
    struct KernelStruct<const N: usize>([u8; N]);
    // SAFETY: the C prototypes; the kernel's structs have these sizes, and any bytes are some.
    unsafe {
        let copy: Copy<ibv_ah_attr, KernelStruct<32>> =
            open.function("ibv_copy_ah_attr_from_kern", "IBVERBS_1.1")?;
        let mut ah = ibv_ah_attr::default();
        copy(&mut ah, &KernelStruct(pattern()));
        ensure(ah.grh.dgid.raw == pattern::<16>() && ah.grh.flow_label == word(16), "the route's GID")?;
        let bytes = [ah.grh.sgid_index, ah.grh.hop_limit, ah.grh.traffic_class, ah.sl, ah.src_path_bits];
        ensure(bytes == [21, 22, 23, 27, 28], "the route's bytes")?;
        ensure([ah.static_rate, ah.is_global, ah.port_num] == [29, 30, 31], "the port")?;
        ensure(ah.dlid == u16::from_ne_bytes([25, 26]), "the LID")?;

        let copy: Copy<ibv_qp_attr, KernelStruct<144>> =
            open.function("ibv_copy_qp_attr_from_kern", "IBVERBS_1.0")?;
        let mut qp = ibv_qp_attr { rate_limit: 77, ..Default::default() };
        copy(&mut qp, &KernelStruct(pattern()));
        ensure(qp.qp_state.0 == word(4) && qp.qp_access_flags == word(36), "the first words")?;
        ensure(qp.ah_attr.grh.dgid.raw[0] == 41 && qp.alt_ah_attr.grh.dgid.raw[0] == 73, "both routes")?;
        ensure(qp.cap.max_send_wr == word(104) && qp.cap.max_inline_data == word(120), "the capacity")?;
        ensure(qp.alt_pkey_index == u16::from_ne_bytes([127, 128]), "the keys' indices")?;
        let bytes = [qp.en_sqd_async_notify, qp.min_rnr_timer, qp.port_num, qp.rnr_retry, qp.alt_timeout];
        ensure(bytes == [129, 133, 134, 137, 139], "the last bytes")?;
        ensure(qp.rate_limit == 77, "what the kernel's struct lacks stays")?;

        let from: Copy<ibv_sa_path_rec, KernelStruct<64>> =
            open.function("ibv_copy_path_rec_from_kern", "IBVERBS_1.0")?;
        let to: Copy<KernelStruct<64>, ibv_sa_path_rec> =
            open.function("ibv_copy_path_rec_to_kern", "IBVERBS_1.0")?;
        let mut kernel = KernelStruct(pattern());
        // The path's MTU is a word there and a byte here.
        kernel.0[48..52].copy_from_slice(&5u32.to_ne_bytes());
        let (mut path, mut back) = (ibv_sa_path_rec::default(), KernelStruct([0; 64]));
        from(&mut path, &kernel);
        to(&mut back, &path);
        ensure(path.mtu == 5 && path.hop_limit == 55 && path.preference == 64, "the path's bytes")?;
        ensure(back.0 == kernel.0, "there and back again")?;
    }
    Ok(Ok(()))
}

/// A program of before `port_cap_flags2` has a struct of 48 bytes.
pub(crate) fn old_programs_port_attributes() -> CheckResult {
    const OLD_SIZE: usize = 48;
    let library = library()?;
    let provider = Provider::from_folder(library.parent().unwrap_or(Path::new(".")));
    let verbs = provider.map_err(|error| error.to_string())?.verbs();
    // SAFETY: the C prototypes, used as the manual says; the buffer is longer than the struct.
    unsafe {
        let mut count = 0;
        let list: *mut *mut ibv_device = (verbs.ibv_get_device_list)(&mut count);
        ensure(!list.is_null() && count > 0, &format!("no device: {}", std::io::Error::last_os_error()))?;
        let context = (verbs.ibv_open_device)(*list);
        (verbs.ibv_free_device_list)(list);
        ensure(!context.is_null(), "the device cannot be opened")?;
        let mut buffer = [0x5au64; 16];
        let result = (verbs.ibv_query_port)(context, 1, buffer.as_mut_ptr().cast());
        (verbs.ibv_close_device)(context);
        ensure(result == 0, &format!("ibv_query_port: {result}"))?;
        let bytes = core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), size_of_val(&buffer));
        let untouched = 0x5au64.to_ne_bytes();
        ensure(bytes[..8] != untouched, "the state was written")?;
        ensure(bytes[OLD_SIZE..].chunks(8).all(|word| word == untouched), "written past the old struct")?;
    }
    Ok(Ok(()))
}

/// A hardware provider's library, whose constructor announces a driver to ours.
pub(crate) fn a_provider_loads_over_it() -> CheckResult {
    let Some(provider) = system_library("libmlx5.so.1").or_else(|| system_library("libefa.so.1")) else {
        return Ok(Err(Skipped("neither libmlx5 nor libefa (Debian: ibverbs-providers)".into())));
    };
    // In a process of its own, where no other libibverbs is loaded first.
    let mut command = Command::new("/bin/true");
    let preload = format!("{} {}", library()?.display(), provider.display());
    let output = command.env("LD_PRELOAD", preload).env("LD_BIND_NOW", "1").output();
    let output = output.map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success() && words.is_empty(), &format!("{}: {words}", output.status))?;
    Ok(Ok(()))
}
