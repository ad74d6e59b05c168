//! What this test program does as a program over the device.

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, ExitCode};
use std::thread;

/// Names what to do: `files`, or a library to open.
pub(crate) const VARIABLE: &str = "SOFT_RNIC_PROBE";

const THREADS: usize = 8;
const ROUNDS: usize = 200;

pub(crate) fn run(what: &str) -> ExitCode {
    let done = if what == "files" { look_in_threads() } else { open_library(what) };
    match done {
        Ok(words) => {
            println!("{words}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Threads look, and start programs that look.
fn look_in_threads() -> Result<String, String> {
    let threads: Vec<_> =
        (0..THREADS).map(|_| thread::spawn(|| look().map_err(|error| error.to_string()))).collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread has panicked".to_owned())??;
    }
    Ok(format!("found by {THREADS} threads"))
}

fn look() -> io::Result<()> {
    let expect =
        |holds: bool, what: &str| if holds { Ok(()) } else { Err(io::Error::other(what.to_owned())) };
    for round in 0..ROUNDS {
        let node = fs::metadata("/dev/infiniband/soft0")?;
        expect(node.file_type().is_char_device(), "the node is no device")?;
        File::options().read(true).write(true).open("/dev/infiniband/soft0")?;
        let names: Vec<_> =
            fs::read_dir("/sys/class/infiniband")?.flatten().map(|entry| entry.file_name()).collect();
        expect(names == ["soft0"], "other devices")?;
        let target = fs::read_link("/sys/class/infiniband/soft0")?;
        expect(target.ends_with("devices/virtual/infiniband/soft0"), "another link")?;
        let resolved = fs::canonicalize("/sys/class/infiniband/soft0/ports")?;
        expect(resolved.starts_with("/sys/devices/virtual/infiniband/soft0"), "another path")?;
        for missing in ["/dev/infiniband/none", "/sys/class/infiniband/none", "/nowhere"] {
            let error = File::open(missing).err().and_then(|error| error.raw_os_error());
            expect(error == Some(2), "another errno than ENOENT")?;
        }
        if round % 50 == 0 {
            let child = Command::new("ls").arg("/dev/infiniband").output()?;
            expect(child.stdout == b"rdma_cm\nsoft0\n", "the child has seen something else")?;
        }
    }
    Ok(())
}

/// Opens a library of verbs by its name and counts the devices that it lists.
fn open_library(path: &str) -> Result<String, String> {
    let mut count: c_int = 0;
    // SAFETY: the constructors of libibverbs are harmless. Both functions have these parameters; the
    // list is freed once.
    unsafe {
        let library = libloading::Library::new(path).map_err(|error| error.to_string())?;
        let list = library.get::<unsafe extern "C" fn(*mut c_int) -> *mut c_void>(b"ibv_get_device_list");
        let free = library.get::<unsafe extern "C" fn(*mut c_void)>(b"ibv_free_device_list");
        let list = list.map_err(|error| error.to_string())?(&raw mut count);
        if list.is_null() {
            return Err(format!("no list: {}", io::Error::last_os_error()));
        }
        free.map_err(|error| error.to_string())?(list);
    }
    Ok(format!("{count} devices"))
}
