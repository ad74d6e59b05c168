//! The programs over an RDMA device, alone and together with the C programs of Debian's
//! ibverbs-utils.
//!
//! A test whose device or C program is missing is ignored, with the reason; with
//! `SIDEWAY_TEST_REQUIRE_DEVICE=1` it fails. `cargo xtask softroce --suite` runs them over
//! SoftRoCE.

mod common;
#[path = "interop/connections.rs"]
mod connections;
#[path = "interop/listing.rs"]
mod listing;
#[path = "interop/ping_pong.rs"]
mod ping_pong;
#[path = "interop/refusals.rs"]
mod refusals;
#[path = "../../sideway/tests/support/suite.rs"]
mod suite;
#[path = "interop/test_device.rs"]
mod test_device;
#[path = "interop/xsrq.rs"]
mod xsrq;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use test_device::TestDevice;

/// The requirements of a test, in addition to a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A program of ibverbs-utils or rdmacm-utils.
    C(&'static str),
    /// rdmacm-utils' `cmtime` with a server and a client.
    Cmtime,
    /// Extended reliable connections.
    Xrc,
    /// Extended reliable connections, and a program of ibverbs-utils.
    XrcAndC(&'static str),
    /// The kernel's files about the device.
    Kernel,
    /// The guest of `cargo xtask softroce`, whose network is known.
    Guest,
}

impl Needs {
    fn is_xrc(self) -> bool {
        matches!(self, Self::Xrc | Self::XrcAndC(_))
    }

    /// The C program that takes part.
    fn program(self) -> Option<&'static str> {
        match self {
            Self::C(program) | Self::XrcAndC(program) => Some(program),
            Self::Cmtime => Some("cmtime"),
            Self::Nothing | Self::Xrc | Self::Kernel | Self::Guest => None,
        }
    }
}

struct InteropTest {
    name: String,
    needs: Needs,
    run: Box<TestFn>,
}

type TestFn = dyn Fn(&TestDevice) -> Result<(), String> + Send;

impl InteropTest {
    fn new(
        name: impl Into<String>,
        needs: Needs,
        run: impl Fn(&TestDevice) -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), needs, run: Box::new(run) }
    }

    /// The reason why it cannot run here.
    fn obstacle(&self, dut: Option<&TestDevice>) -> Option<String> {
        match self.needs {
            Needs::Xrc | Needs::XrcAndC(_) if dut.is_some_and(|dut| !dut.has_xrc) => {
                Some("the device has no extended reliable connections".to_owned())
            }
            _ if self.needs.program().is_some() && dut.is_some_and(|dut| dut.is_own) => {
                Some("C programs do not see a software device of this process".to_owned())
            }
            Needs::Kernel if dut.is_some_and(|dut| dut.is_soft) => {
                Some("the kernel does not know a software device".to_owned())
            }
            Needs::Cmtime if connections::cmtime_has_a_controller() => {
                Some("cmtime of rdma-core 59 and later has a controller and peers".to_owned())
            }
            Needs::Guest if dut.is_some_and(|dut| !dut.is_guest) => {
                Some("the test needs the known network of `cargo xtask softroce`".to_owned())
            }
            needs => {
                let program = needs.program().filter(|program| common::c_program(program).is_none())?;
                let package = if program.starts_with("ibv_") { "ibverbs-utils" } else { "rdmacm-utils" };
                Some(format!("the C program `{program}` is not on the PATH (Debian: {package})"))
            }
        }
    }
}

fn main() -> ExitCode {
    suite::in_each_configuration(suite::Links::Ethernet, run)
}

fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Busy-polling processes that run at the same time slow each other down.
    arguments.test_threads = Some(1);
    let required = test_harness::device_is_required();

    let dut = TestDevice::find().map(Arc::new);
    if let (Err(reason), false) = (&dut, arguments.list) {
        let fate = if required { "fail" } else { "are ignored" };
        println!("the device tests {fate}: {reason}");
    }
    let mut tests = Vec::new();
    listing::add(&mut tests);
    ping_pong::add(&mut tests);
    xsrq::add(&mut tests);
    refusals::add(&mut tests);
    connections::add(&mut tests);
    let trials = tests.into_iter().map(|test| trial(test, &dut, required)).collect();

    test_harness::print_summary(&arguments, &libtest_mimic::run(&arguments, trials), required)
}

fn trial(test: InteropTest, dut: &Result<Arc<TestDevice>, String>, required: bool) -> Trial {
    let obstacle = test.obstacle(dut.as_deref().ok());
    if let (Some(obstacle), Ok(_)) = (&obstacle, dut) {
        println!("{}: {obstacle}", test.name);
    }
    let ignored = match &obstacle {
        // The known network exists in the guest only.
        Some(_) if test.needs == Needs::Guest => true,
        // No release has both.
        Some(_) if test.needs == Needs::Cmtime && connections::cmtime_has_a_controller() => true,
        // A device may lack extended reliable connections, and a software device is unknown to the
        // kernel and to C programs.
        Some(_) if dut.as_ref().is_ok_and(|dut| !dut.has_xrc && test.needs.is_xrc()) => true,
        Some(_) if dut.as_ref().is_ok_and(|dut| dut.is_soft) => true,
        Some(_) => !required,
        None => dut.is_err() && !required,
    };
    let dut = dut.clone();
    Trial::test(test.name, move || {
        let dut = dut?;
        if let Some(obstacle) = obstacle {
            return Err(Failed::from(obstacle));
        }
        (test.run)(&dut).map_err(Failed::from)
    })
    .with_ignored_flag(ignored)
}
