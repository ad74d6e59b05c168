//! Cases, the device that they run on, and what comes of them.

use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use sideway::ibverbs::connect::LocalPath;
use sideway::ibverbs::device::DeviceList;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::port::PortState;

use crate::suite::{conclude, device_is_required};

/// Names the device to use.
const DEVICE: &str = "SIDEWAY_TEST_DEVICE";

/// How long a case may take. Everything in a case that waits has a shorter limit of its own.
const CASE_LIMIT: Duration = Duration::from_secs(90);

/// Why this device cannot run a case.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

/// What comes of a case; it fails by a panic.
pub(crate) type Outcome = Result<(), Skip>;

/// Leaves a case that this device cannot run.
macro_rules! skip {
    ($($reason:tt)*) => { return Err($crate::harness::Skip(format!($($reason)*))) };
}

/// A case's name and what it does.
type Case = (String, fn(&Rig) -> Outcome);

#[derive(Default)]
pub(crate) struct Suite {
    cases: Vec<Case>,
}

/// Adds functions as cases of the suite; the names are theirs, with the module's.
macro_rules! cases {
    ($suite:ident: $($function:ident),* $(,)?) => {
        $($suite.add(module_path!(), stringify!($function), "", $function);)*
    };
}

/// Adds a function with a flavour of queue pairs as parameter, once for each.
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

/// Adds a function with a flavour of completion queues as parameter, once for each.
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

/// Adds a function with both flavours as parameters, once for each combination.
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

impl Suite {
    pub(crate) fn add(&mut self, module: &str, name: &str, flavours: &str, case: fn(&Rig) -> Outcome) {
        let module = module.rsplit("::").next().unwrap_or_default();
        let flavours = if flavours.is_empty() { String::new() } else { format!("[{flavours}]") };
        self.cases.push((format!("{module}::{name}{flavours}"), case));
    }

    pub(crate) fn run(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        // One after the other: several would only wait for the same processors.
        arguments.test_threads.get_or_insert(1);
        let rig = Rig::find();
        let required = device_is_required();
        if let Some(reason) = rig.as_ref().err().filter(|_| !arguments.list) {
            println!(
                "{} device tests have nothing to run on: {reason}. `cargo xtask softroce --suite` runs them in a \
                 virtual machine with SoftRoCE.",
                self.cases.len()
            );
        }
        let trials = self.cases.into_iter().map(|case| trial(case, rig.clone(), required)).collect();
        conclude(&arguments, &libtest_mimic::run(&arguments, trials))
    }
}

fn trial((name, case): Case, rig: Result<Rig, String>, required: bool) -> Trial {
    match rig {
        Ok(rig) => Trial::ignorable_test(name.clone(), move || {
            let watchdog = Watchdog::start(name);
            let outcome = case(&rig);
            drop(watchdog);
            Ok(match outcome {
                Ok(()) => Completion::Completed,
                Err(Skip(reason)) => Completion::ignored_with(reason),
            })
        }),
        Err(reason) if required => Trial::test(name, move || Err(Failed::from(reason))),
        Err(_) => Trial::ignorable_test(name, || Ok(Completion::ignored_with("no device"))),
    }
}

/// Ends the whole program if a case does not end, which nothing else could.
struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    fn start(name: String) -> Self {
        let (alive, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(CASE_LIMIT) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{name} did not end within {CASE_LIMIT:?}");
                std::process::exit(101);
            }
        });
        Self { _alive: alive }
    }
}

/// The device that the cases use, and another one to talk to if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    pub(crate) name: String,
    pub(crate) port: u8,
    pub(crate) peer: Option<(String, u8)>,
}

impl Rig {
    /// The first device with an active port and an address, or the one that the environment names.
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

    /// A context of its own for each call.
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
