//! The test harness: tests, the device that they run on, and their results.

use std::process::ExitCode;
use std::time::Duration;

use sideway::ibverbs::connect::LocalPath;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::PortState;
use test_harness::RunOptions;
pub(crate) use test_harness::{Outcome, Skip};

/// The environment variable that names the device.
const DEVICE: &str = "SIDEWAY_TEST_DEVICE";

/// The maximum duration of a test. Every wait in a test has a shorter limit.
const CASE_LIMIT: Duration = Duration::from_secs(90);

/// Tests that run on a device.
pub(crate) type Suite = test_harness::Suite<TestDevice>;

/// Adds a generic test once for each kind of queue pair.
macro_rules! each_qp {
    ($suite:ident: $($function:ident),* $(,)?) => {$(
        each_qp!(@ $suite, $function, BasicQueuePair, ExtendedQueuePair, GenericQueuePair);
    )*};
    (@ $suite:ident, $function:ident, $($Qp:ident),*) => {$(
        $suite.add(
            module_path!(),
            stringify!($function),
            stringify!($Qp),
            $function::<sideway::ibverbs::queue_pair::$Qp>,
        );
    )*};
}

/// Adds a generic test once for each kind of completion queue.
macro_rules! each_cq {
    ($suite:ident: $($function:ident),* $(,)?) => {$(
        each_cq!(@ $suite, $function, BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue);
    )*};
    (@ $suite:ident, $function:ident, $($Cq:ident),*) => {$(
        $suite.add(
            module_path!(),
            stringify!($function),
            stringify!($Cq),
            $function::<sideway::ibverbs::completion::$Cq>,
        );
    )*};
}

/// Adds a generic test once for each combination of both kinds.
macro_rules! matrix {
    ($suite:ident: $($function:ident),* $(,)?) => {$(
        matrix!(@ $suite, $function, BasicQueuePair, ExtendedQueuePair, GenericQueuePair);
    )*};
    (@ $suite:ident, $function:ident, $($Qp:ident),*) => {$(
        matrix!(@@ $suite, $function, $Qp, BasicCompletionQueue, ExtendedCompletionQueue, GenericCompletionQueue);
    )*};
    (@@ $suite:ident, $function:ident, $Qp:ident, $($Cq:ident),*) => {$(
        $suite.add(
            module_path!(),
            stringify!($function),
            concat!(stringify!($Qp), ", ", stringify!($Cq)),
            $function::<sideway::ibverbs::queue_pair::$Qp, sideway::ibverbs::completion::$Cq>,
        );
    )*};
}

pub(crate) fn run(suite: Suite) -> ExitCode {
    let terms = RunOptions {
        required: test_harness::device_is_required(),
        limit: CASE_LIMIT,
        advice: "`cargo xtask softroce --suite` runs them in a virtual machine with SoftRoCE.",
    };
    suite.run(&test_harness::arguments(), &TestDevice::find(), terms)
}

/// The device that the tests use, and a second one as its peer if available.
#[derive(Clone, Debug)]
pub(crate) struct TestDevice {
    pub(crate) name: String,
    pub(crate) port: u8,
    pub(crate) peer: Option<(String, u8)>,
}

impl TestDevice {
    /// Whether the device is SoftRoCE, which deviates in some results. soft-rnic has the same vendor
    /// ID.
    pub(crate) fn is_softroce(&self) -> bool {
        let context = self.open();
        context.query_device().unwrap().vendor_id() == 0xff_ffff && !context.is_soft()
    }

    /// Finds the first device with an active port and an address, or the one named in the
    /// environment.
    fn find() -> Result<Self, String> {
        let list = DeviceList::new().map_err(|error| error.to_string())?;
        let wanted = std::env::var(DEVICE).ok().filter(|name| !name.is_empty());
        if let Some(name) = &wanted {
            list.find(name).map_err(|error| format!("{error} ({DEVICE})"))?;
        }
        let usable =
            list.iter().filter_map(|device| Some((device.name(), active_port(&device.open().ok()?)?)));
        let usable: Vec<(String, u8)> = usable.collect();
        let chosen = usable.iter().position(|(name, _)| wanted.as_ref().is_none_or(|wanted| wanted == name));
        match chosen {
            Some(index) => {
                let (name, port) = usable[index].clone();
                let peer = usable.into_iter().find(|(other, _)| *other != name);
                Ok(Self { name, port, peer })
            }
            None => Err(match wanted {
                Some(name) => format!("{name} has no active port with an address"),
                None => "there is no RDMA device with an active port and an address".to_owned(),
            }),
        }
    }

    pub(crate) fn list(&self) -> DeviceList {
        DeviceList::new().unwrap()
    }

    /// Opens a new context with each call.
    pub(crate) fn open(&self) -> DeviceContext {
        self.list().find(&self.name).unwrap().open().unwrap()
    }
}

fn active_port(context: &DeviceContext) -> Option<u8> {
    let ports = context.query_device().ok()?.phys_port_cnt();
    (1..=ports).find(|port| {
        context.query_port(*port).is_ok_and(|attr| attr.port_state() == PortState::Active)
            && LocalPath::choose(context, *port, None).is_ok()
    })
}
