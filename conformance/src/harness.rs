//! Cases, the device that they run on, and what comes of them.

use std::process::ExitCode;
use std::time::Duration;

use rdma_mummy_sys::Provider;
pub(crate) use test_harness::{Outcome, Skip};
use test_harness::{Terms, remark};

use crate::cases;
use crate::kit::{Cm, Device, Flavour, devices, set_variable};
use crate::page;
use crate::table::{self, Column};

/// Names the device to use.
const DEVICE: &str = "CONFORMANCE_DEVICE";

/// Set by whoever started the guest: `old` or `new`.
const RELEASE: &str = "SOFTROCE_RDMA_CORE";

/// How long a case may take; Miri and emulators are slow. Everything in a case that waits has a shorter limit of its own.
const CASE_LIMIT: Duration =
    Duration::from_secs(if cfg!(any(miri, target_arch = "aarch64")) { 300 } else { 60 });

/// The vendor that SoftRoCE reports.
const SOFTROCE_VENDOR: u32 = 0xff_ffff;

/// Names the only part of the program to run, in the process that was started with it.
const PART: &str = "CONFORMANCE_SUITE";

/// The parts of the program.
const PARTS: &[&str] = if cfg!(feature = "soft") { &["system", "soft_inline", "soft_deferred"] } else { &["system"] };

/// Whose devices a part of the program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Those of the system's libibverbs.
    System,
    /// The software device that executes a request while it is posted.
    SoftInline,
    /// The software device that leaves a request outstanding until progress is made.
    SoftDeferred,
}

/// Adds functions twice: with classic posting and polling, and with extended.
macro_rules! both {
    ($suite:ident: $($function:ident),* $(,)?) => {$(
        $suite.add(module_path!(), stringify!($function), "classic", |rig| {
            $function(rig, $crate::kit::Flavour::Classic)
        });
        $suite.add(module_path!(), stringify!($function), "extended", |rig| {
            $function(rig, $crate::kit::Flavour::Extended)
        });
    )*};
}

/// Cases over a rig.
pub(crate) type Suite = test_harness::Suite<Rig>;

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
    softroce: Option<SoftRoce>,
    pub(crate) target: Target,
    /// Whether to run what the device is known to fail (`--include-ignored`).
    try_all: bool,
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

    /// Its column of the committed table: other devices have none.
    fn column(&self) -> Option<Column> {
        match (self.target, self.softroce) {
            (Target::SoftInline, _) => Some(Column::Inline),
            (Target::SoftDeferred, _) => Some(Column::Deferred),
            (Target::System, Some(SoftRoce::Old)) => Some(Column::RoceOld),
            (Target::System, Some(SoftRoce::New)) => Some(Column::RoceNew),
            (Target::System, None) => None,
        }
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

    /// The provider's connection manager.
    pub(crate) fn cm(&self) -> Result<Cm, Skip> {
        let cm = Cm::of(self.provider).map_err(Skip)?;
        match cm.channel() {
            Ok(_) => Ok(cm),
            Err(error) => Err(Skip(format!("the system has no connection manager (error {error})"))),
        }
    }

    /// Skips the case on SoftRoCE, of any release.
    pub(crate) fn not_softroce(&self, reason: &str) -> Outcome {
        remark(format!("SoftRoCE {reason}"));
        self.skips(self.softroce.is_some(), format!("SoftRoCE {reason}"))
    }

    /// Skips the case on this release of SoftRoCE.
    pub(crate) fn not_on(&self, release: SoftRoce, reason: &str) -> Outcome {
        remark(format!("SoftRoCE ({release:?}) {reason}"));
        self.skips(self.softroce == Some(release), format!("SoftRoCE {reason}"))
    }

    fn skips(&self, excused: bool, reason: String) -> Outcome {
        if excused && !self.try_all { Err(Skip(reason)) } else { Ok(()) }
    }

    /// Skips the case on the system's devices, whichever they are, and even where all are tried: it would end the program.
    pub(crate) fn not_on_system(&self, reason: &str) -> Outcome {
        remark(reason.to_owned());
        if self.target == Target::System { Err(Skip(reason.to_owned())) } else { Ok(()) }
    }

    /// The right answer, and SoftRoCE's where it is known to give another.
    pub(crate) fn expects<T>(&self, right: T, softroce: T) -> T {
        remark("SoftRoCE answers otherwise".to_owned());
        if self.softroce.is_some() { softroce } else { right }
    }

    /// The right answer, and that of this release of SoftRoCE.
    pub(crate) fn expects_of<T>(&self, release: SoftRoce, right: T, softroce: T) -> T {
        remark(format!("SoftRoCE ({release:?}) answers otherwise"));
        if self.softroce == Some(release) { softroce } else { right }
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

/// Runs the suite over each device, in a process of its own, as the program's arguments say.
pub fn run() -> ExitCode {
    test_harness::run_parts(PART, PARTS, |part| {
        let target = match part {
            "system" => Target::System,
            "soft_inline" => Target::SoftInline,
            "soft_deferred" => Target::SoftDeferred,
            part => unreachable!("{part} is not one of the parts"),
        };
        run_part(part, target)
    })
}

fn run_part(part: &'static str, target: Target) -> ExitCode {
    let arguments = test_harness::arguments();
    let mut rig = Rig::find(target);
    if let Ok(rig) = &mut rig {
        rig.try_all = arguments.include_ignored;
    }
    let terms = Terms {
        required: test_harness::device_is_required() || target != Target::System,
        limit: CASE_LIMIT,
        advice: "`cargo xtask softroce --suite --test system` runs them in a virtual machine with SoftRoCE.",
    };
    let (code, told) = cases::all().of_part(part).run_and_tell(&arguments, &rig, terms);
    let column = rig.ok().and_then(|rig| if rig.try_all { None } else { rig.column() });
    match (column, told) {
        (Some(column), Some(told)) => {
            if arguments.nocapture {
                page::print(&told);
            }
            let on_softroce = matches!(column, Column::RoceOld | Column::RoceNew);
            let (page, table) = (page::holds(&told, on_softroce), table::holds(column, &told));
            if page && table { code } else { ExitCode::FAILURE }
        }
        _ => code,
    }
}
