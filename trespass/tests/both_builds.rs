//! A program built without the feature `rdma` and one built with it talk to each other, whichever
//! of them listens.
//!
//! This test program has the feature, and a software device over which RDMA works. It builds the
//! other as a user would: a separate package that depends on trespass without default features,
//! with the workspace's versions, so that cargo fetches nothing. The same package has a shared library
//! that uses trespass.

#[path = "both_builds/peer.rs"]
mod peer;

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::thread;

use trespass::{Builder, Listener, Policy};

use crate::environment::VARIABLES;

/// The manifest of the package without RDMA.
fn manifest(here: &Path) -> String {
    format!(
        "[package]\nname = \"peer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [lib]\nname = \"plugin\"\npath = {:?}\ncrate-type = [\"cdylib\"]\n\n\
         [[bin]]\nname = \"peer\"\npath = {:?}\n\n\
         [dependencies]\ntrespass = {{ path = {here:?}, default-features = false }}\n\n\
         [profile.dev]\ndebug = false\n\n[workspace]\n",
        here.join("tests/both_builds/plugin.rs"),
        here.join("tests/both_builds/peer.rs")
    )
}

/// The folder of the program and the library without RDMA, which are built once per run.
fn built() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-rdma");
        let target = folder.join("target");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("Cargo.toml"), manifest(here)).unwrap();
        fs::copy(here.join("../Cargo.lock"), folder.join("Cargo.lock")).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--target-dir"]).arg(&target).current_dir(&folder);
        // The program must run on this host, even if the tests are built for another target.
        let output = cargo.env_remove("CARGO_BUILD_TARGET").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        target.join("debug")
    });
    &BUILT
}

/// The running program, which is killed when this is dropped.
struct Plain {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Plain {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(built().join("peer"));
        for name in VARIABLES {
            command.env_remove(name);
        }
        let mut child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn addr(&mut self) -> SocketAddr {
        let line = self.line();
        line.strip_prefix("listening at ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A builder with RDMA, and a device over which it works.
fn builder() -> Builder {
    static DEVICE: LazyLock<()> = LazyLock::new(|| {
        let config = sideway::soft::Config::from_env().expect("a valid environment");
        let provider = sideway::soft::provider_with(config).expect("no device is listed yet");
        sideway::set_default_provider(provider);
    });
    *DEVICE;
    Builder::new()
}

fn listener(builder: Builder) -> (Listener, String) {
    // Builds the program first, because a listener waits for a minute, and a build may take longer.
    built();
    let listener = builder.bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    (listener, addr)
}

const KINDS: [&str; 2] = ["bytes", "messages"];
const OF_THE_PEER: &str =
    "TCP: Peer BuiltWithout: the peer was built without RDMA; build it with the feature `rdma`";
const ITS_OWN: &str =
    "TCP: Local BuiltWithout: this side was built without RDMA; build it with the feature `rdma`";

#[test]
fn one_with_rdma_connects_to_one_without() {
    for kind in KINDS {
        let mut plain = Plain::start(&["listen", kind]);
        let addr = plain.addr();
        assert_eq!(peer::use_server(builder(), kind, addr).unwrap(), OF_THE_PEER, "{kind}");
        assert_eq!(plain.line(), ITS_OWN, "{kind}");
    }
}

#[test]
fn one_without_rdma_connects_to_one_with_it() {
    for kind in KINDS {
        let (mut listener, addr) = listener(builder());
        let mut plain = Plain::start(&["connect", kind, &addr]);
        assert_eq!(peer::serve(&mut listener, kind).unwrap(), OF_THE_PEER, "{kind}");
        assert_eq!(plain.line(), ITS_OWN, "{kind}");
    }
}

/// The listener keeps working afterwards.
#[test]
fn a_client_that_requires_rdma_gets_the_listener_s_reason() {
    let mut plain = Plain::start(&["listen", "bytes"]);
    let addr = plain.addr();
    let error = peer::use_server(builder().policy(Policy::RequireRdma), "bytes", addr).unwrap_err();
    assert_eq!(
        peer::refusal(&error),
        "rejected RdmaRequired: you require RDMA, and there is none: it was built without RDMA; build it with the feature `rdma`"
    );
    assert_eq!(peer::use_server(builder(), "bytes", addr).unwrap(), OF_THE_PEER);
    assert_eq!(plain.line(), ITS_OWN);
}

/// A client with RDMA still connects.
#[test]
fn a_listener_that_requires_rdma_tells_one_without_it_why() {
    let (mut listener, addr) = listener(builder().policy(Policy::RequireRdma));
    let serving = thread::spawn(move || peer::serve(&mut listener, "bytes"));
    assert_eq!(
        Plain::start(&["connect", "bytes", &addr]).line(),
        "rejected RdmaRequired: it requires RDMA, and there is none: your side was built without RDMA; build it with the feature `rdma`"
    );
    assert_eq!(peer::use_server(builder(), "bytes", addr.parse().unwrap()).unwrap(), "RDMA");
    assert_eq!(serving.join().unwrap().unwrap(), "RDMA");
}

#[test]
fn without_it_a_configuration_that_requires_rdma_is_refused() {
    assert_eq!(
        Plain::start(&["require"]).line(),
        "config policy: policy = RequireRdma is refused: it must be another one, since this program was built without RDMA; build it with \
         the feature `rdma`"
    );
}

/// Closes the library as a host of plugins does, and also its reference to itself. The threads of its
/// connections run in it.
#[test]
fn a_library_that_has_made_a_connection_stays_loaded() {
    alone!(a_library_that_has_made_a_connection_stays_loaded);
    let path = CString::new(built().join("libplugin.so").into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the library runs no code when it is loaded but that of std. `converse` is declared like
    // this in `plugin.rs`, and is called while the library is loaded, which the test shows.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
        let converse = libc::dlsym(library, c"converse".as_ptr());
        assert!(!converse.is_null());
        let converse: extern "C" fn() -> bool = std::mem::transmute(converse);
        assert!(converse());
        assert_eq!(libc::dlclose(library), 0);
        assert_eq!(libc::dlclose(library), 0, "the library has no reference to itself");
        let again = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!again.is_null(), "it was unloaded, and its thread has no code");
        assert!(converse());
    }
}
