//! Cases, the device that they run on, and what comes of them.

use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rdma_mummy_sys::Provider;

use crate::cases;
use crate::kit::{Device, Flavour, devices, set_variable};

/// Names the device to use.
const DEVICE: &str = "CONFORMANCE_DEVICE";

/// Where this is set, a missing device is a failure.
const REQUIRE: &str = "SIDEWAY_TEST_REQUIRE_DEVICE";

/// Set by whoever started the guest: `old` or `new`.
const RELEASE: &str = "SOFTROCE_RDMA_CORE";

/// How long a case may take; Miri and emulators are slow. Everything in a case that waits has a shorter limit of its own.
const CASE_LIMIT: Duration =
    Duration::from_secs(if cfg!(any(miri, target_arch = "aarch64")) { 300 } else { 60 });

/// The vendor that SoftRoCE reports.
const SOFTROCE_VENDOR: u32 = 0xff_ffff;

/// Whose devices a test program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Those of the system's libibverbs.
    System,
    /// The software device that executes a request while it is posted.
    SoftInline,
    /// The software device that leaves a request outstanding until progress is made.
    SoftDeferred,
}

/// Why this device cannot run a case.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

/// What comes of a case; it fails by a panic.
pub(crate) type Outcome = Result<(), Skip>;

/// Leaves a case that this device cannot run.
macro_rules! skip {
    ($($reason:tt)*) => { return Err($crate::harness::Skip(format!($($reason)*))) };
}

/// Adds functions as cases of the suite; the names are theirs, with the module's.
macro_rules! cases {
    ($suite:ident: $($function:ident),* $(,)?) => {
        $($suite.add(module_path!(), stringify!($function), "", $function);)*
    };
}

/// Adds functions twice: with classic posting and polling, and with extended.
macro_rules! both {
    ($suite:ident: $($function:ident),* $(,)?) => {$(
        $suite.add(module_path!(), stringify!($function), "[classic]", |rig| {
            $function(rig, $crate::kit::Flavour::Classic)
        });
        $suite.add(module_path!(), stringify!($function), "[extended]", |rig| {
            $function(rig, $crate::kit::Flavour::Extended)
        });
    )*};
}

/// A case's name and what it does.
type Case = (String, fn(&Rig) -> Outcome);

/// The cases, in the order in which they run.
#[derive(Default)]
pub(crate) struct Suite {
    cases: Vec<Case>,
}

impl Suite {
    pub(crate) fn add(&mut self, module: &str, name: &str, flavour: &str, case: fn(&Rig) -> Outcome) {
        let module = module.rsplit("::").next().unwrap_or_default();
        self.cases.push((format!("{module}::{name}{flavour}"), case));
    }
}

/// Which SoftRoCE a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SoftRoce {
    /// rdma-core 44 and kernel 6.1.
    Old,
    /// rdma-core 56 and kernel 6.12.
    New,
}

/// The device that the cases use, and another one to talk to if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    pub(crate) provider: Provider,
    pub(crate) name: String,
    pub(crate) peer: Option<String>,
    pub(crate) softroce: Option<SoftRoce>,
    pub(crate) target: Target,
    /// Whether to run what the device is known to fail (`--include-ignored`).
    pub(crate) try_all: bool,
}

impl Rig {
    fn find(target: Target) -> Result<Self, String> {
        let provider = match target {
            Target::System => Provider::system().map_err(|error| error.to_string())?,
            Target::SoftInline => soft("inline"),
            Target::SoftDeferred => soft("deferred"),
        };
        let wanted = std::env::var(DEVICE).ok().filter(|name| !name.is_empty());
        let usable: Vec<Device> = devices(provider)
            .map_err(|error| format!("the device list fails with error {error}"))?
            .iter()
            .filter_map(|name| Device::open(provider, name).ok())
            .filter(Device::is_usable)
            .collect();
        let chosen =
            usable.iter().find(|device| wanted.as_deref().is_none_or(|wanted| wanted == device.name()));
        let Some(chosen) = chosen else {
            return Err("there is no RDMA device with an active port and an address".to_owned());
        };
        let peer = usable.iter().find(|device| device.name() != chosen.name());
        let is_softroce =
            target == Target::System && chosen.query().is_ok_and(|attr| attr.vendor_id == SOFTROCE_VENDOR);
        let release = std::env::var(RELEASE).unwrap_or_default();
        let softroce = is_softroce.then_some(if release == "old" { SoftRoce::Old } else { SoftRoce::New });
        Ok(Self {
            provider,
            name: chosen.name().to_owned(),
            peer: peer.map(|device| device.name().to_owned()),
            softroce,
            target,
            try_all: false,
        })
    }

    /// A context of its own for each call.
    pub(crate) fn open(&self) -> Device {
        Device::open(self.provider, &self.name).unwrap()
    }

    /// The other device.
    pub(crate) fn open_peer(&self) -> Result<Device, Skip> {
        match &self.peer {
            Some(name) => Ok(Device::open(self.provider, name).unwrap()),
            None => Err(Skip("there is no second device".to_owned())),
        }
    }

    /// Skips the case on SoftRoCE, of any release.
    pub(crate) fn not_softroce(&self, reason: &str) -> Outcome {
        if self.softroce.is_some() && !self.try_all {
            Err(Skip(format!("SoftRoCE {reason}")))
        } else {
            Ok(())
        }
    }

    /// Skips the case on this release of SoftRoCE.
    pub(crate) fn not_on(&self, release: SoftRoce, reason: &str) -> Outcome {
        if self.softroce == Some(release) { self.not_softroce(reason) } else { Ok(()) }
    }

    /// The right answer, and SoftRoCE's where it is known to give another.
    pub(crate) fn expects<T>(&self, right: T, softroce: T) -> T {
        if self.softroce.is_some() { softroce } else { right }
    }

    /// Skips the case where extended posting on SoftRoCE loses inline data or lengths of a list.
    pub(crate) fn not_softroce_extended(&self, flavour: Flavour, reason: &str) -> Outcome {
        if flavour == Flavour::Extended { self.not_softroce(reason) } else { Ok(()) }
    }
}

/// The software device's provider, in this mode: with two devices, unless the environment says otherwise.
fn soft(mode: &str) -> Provider {
    set_variable("SOFT_RNIC_MODE", mode);
    for (name, value) in [("SOFT_RNIC_DEVICES", "2"), ("SOFT_RNIC_PORTS", "2")] {
        if std::env::var_os(name).is_none() {
            set_variable(name, value);
        }
    }
    soft_rnic::provider()
}

/// Runs the suite as the program's arguments say.
pub fn run(target: Target) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // One after the other: several would only wait for the same processors.
    arguments.test_threads.get_or_insert(1);
    let mut rig = Rig::find(target);
    if let Ok(rig) = &mut rig {
        rig.try_all = arguments.include_ignored;
    }
    let variable = std::env::var_os(REQUIRE).is_some_and(|value| value != "0" && !value.is_empty());
    let required = variable || target != Target::System;
    let missing = rig.as_ref().err().cloned();
    let cases = cases::all().cases;
    if let Some(reason) = missing.as_ref().filter(|_| !arguments.list) {
        println!(
            "{} cases have nothing to run on: {reason}. `cargo xtask softroce --suite --test system` runs them in \
             a virtual machine with SoftRoCE.",
            cases.len()
        );
    }
    let trials = cases.into_iter().map(|case| trial(case, rig.clone(), required)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let failed = conclusion.num_failed;
    if !arguments.list {
        let (passed, ignored) = (conclusion.num_passed, conclusion.num_ignored);
        println!("device tests: {} ran, {ignored} skipped, {failed} failed", passed + failed);
    }
    let missing = required && missing.is_some() && !arguments.list;
    if failed == 0 && !missing { ExitCode::SUCCESS } else { ExitCode::from(101) }
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
