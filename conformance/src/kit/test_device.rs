//! The device under test, and how a case says where it cannot run.

use rdma_mummy_sys::Provider;
use rdma_mummy_sys::types::ibv_device_attr;
use test_harness::note;
pub(crate) use test_harness::{Outcome, Skip};

use super::lids;
use super::{Cm, Device, Flavour, devices, set_variable};

/// Names the device to use.
const DEVICE: &str = "CONFORMANCE_DEVICE";

/// The SoftRoCE release of the guest, `old`, `new` or `newest`; set by the command that starts the
/// guest.
const RELEASE: &str = "SOFTROCE_RDMA_CORE";

/// The vendor ID that SoftRoCE reports.
pub(crate) const SOFTROCE_VENDOR: u32 = 0xff_ffff;

/// The provider whose devices a test program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestTarget {
    /// The system's libibverbs.
    System,
    /// The software device that executes a request while it is posted.
    SoftInline,
    /// The software device that leaves a request outstanding until progress is made.
    SoftDeferred,
    /// The software device with small limits.
    SoftSmall,
    /// The software device with an InfiniBand link, whose ports are addressed by LIDs.
    SoftIb,
}

impl TestTarget {
    /// The part of the test program that runs on it; the names of its tests begin with it.
    pub(crate) const fn part(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::SoftInline => "soft_inline",
            Self::SoftDeferred => "soft_deferred",
            Self::SoftSmall => "soft_small",
            Self::SoftIb => "soft_ib",
        }
    }
}

/// Adds each function as two cases: with classic posting and polling, and with extended.
macro_rules! both {
    ($suite:ident: $($function:ident),* $(,)?) => {$(
        $suite.add(module_path!(), stringify!($function), "classic", |dut| {
            $function(dut, $crate::kit::Flavour::Classic)
        });
        $suite.add(module_path!(), stringify!($function), "extended", |dut| {
            $function(dut, $crate::kit::Flavour::Extended)
        });
    )*};
}

pub(crate) type Suite = test_harness::Suite<TestDevice>;

/// The SoftRoCE releases that the suite knows, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SoftRoce {
    /// rdma-core 44 and kernel 6.1.
    Old,
    /// rdma-core 56 and kernel 6.12.
    New,
    /// Those of Debian's unstable release: rdma-core 65 and kernel 7.2 in November 2026.
    Newest,
}

impl SoftRoce {
    /// The release of the guest. SoftRoCE of a host counts as new.
    fn of_guest() -> Self {
        match std::env::var(RELEASE).as_deref() {
            Ok("old") => Self::Old,
            Ok("newest") => Self::Newest,
            _ => Self::New,
        }
    }
}

/// The device under test, and a second device to talk to if the provider lists one.
#[derive(Clone, Debug)]
pub(crate) struct TestDevice {
    pub(crate) provider: Provider,
    pub(crate) name: String,
    pub(crate) peer: Option<String>,
    pub(crate) softroce: Option<SoftRoce>,
    pub(crate) target: TestTarget,
    /// Also run the cases that the device is known to fail (`--include-ignored`).
    pub(crate) try_all: bool,
}

impl TestDevice {
    pub(crate) fn find(target: TestTarget) -> Result<Self, String> {
        let provider = match target {
            TestTarget::System => Provider::system().map_err(|error| error.to_string())?,
            TestTarget::SoftInline => soft("inline"),
            TestTarget::SoftDeferred => soft("deferred"),
            TestTarget::SoftSmall => {
                set_variable("SOFT_RNIC_LIMITS", SMALL);
                soft("inline")
            }
            TestTarget::SoftIb => {
                set_variable("SOFT_RNIC_LINK", "ib");
                soft("inline")
            }
        };
        let wanted = std::env::var(DEVICE).ok().filter(|name| !name.is_empty());
        let usable: Vec<Device> = devices(provider)
            .map_err(|error| format!("listing the RDMA devices failed with error {error}"))?
            .iter()
            .filter_map(|name| Device::open(provider, name).ok())
            .filter(Device::is_usable)
            .collect();
        lids::remember(&usable);
        let chosen =
            usable.iter().find(|device| wanted.as_deref().is_none_or(|wanted| wanted == device.name()));
        let Some(chosen) = chosen else {
            return Err("no RDMA device has an active port with an address".to_owned());
        };
        let peer = usable.iter().find(|device| device.name() != chosen.name());
        let is_softroce = target == TestTarget::System
            && chosen.query().is_ok_and(|attr| attr.vendor_id == SOFTROCE_VENDOR && !is_soft_rnic(&attr));
        let softroce = is_softroce.then(SoftRoce::of_guest);
        Ok(Self {
            provider,
            name: chosen.name().to_owned(),
            peer: peer.map(|device| device.name().to_owned()),
            softroce,
            target,
            try_all: false,
        })
    }

    /// Whether LIDs address its ports, and not GIDs alone.
    pub(crate) fn is_infiniband(&self) -> bool {
        self.target == TestTarget::SoftIb
    }

    /// Opens a new context on each call.
    pub(crate) fn open(&self) -> Device {
        Device::open(self.provider, &self.name).unwrap()
    }

    /// Opens the second device.
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

    /// Skips the case on every release of SoftRoCE.
    pub(crate) fn not_softroce(&self, reason: &str) -> Outcome {
        note(format!("SoftRoCE {reason}"));
        self.skip_if(self.softroce.is_some(), format!("SoftRoCE {reason}"))
    }

    /// Skips the case on this release of SoftRoCE.
    pub(crate) fn not_on(&self, release: SoftRoce, reason: &str) -> Outcome {
        note(format!("SoftRoCE ({release:?}) {reason}"));
        self.skip_if(self.softroce == Some(release), format!("SoftRoCE {reason}"))
    }

    /// Skips the case on this release of SoftRoCE and on later ones.
    pub(crate) fn not_since(&self, release: SoftRoce, reason: &str) -> Outcome {
        note(format!("SoftRoCE (since {release:?}) {reason}"));
        self.skip_if(self.softroce >= Some(release), format!("SoftRoCE {reason}"))
    }

    /// The same, even with `--include-ignored`, because the case could end the kernel.
    pub(crate) fn never_since(&self, release: SoftRoce, reason: &str) -> Outcome {
        note(format!("SoftRoCE (since {release:?}) {reason}"));
        if self.softroce >= Some(release) { Err(Skip(format!("SoftRoCE {reason}"))) } else { Ok(()) }
    }

    fn skip_if(&self, excused: bool, reason: String) -> Outcome {
        if excused && !self.try_all { Err(Skip(reason)) } else { Ok(()) }
    }

    /// Skips the case on every device of the system, even with `--include-ignored`, because it
    /// would end the test program.
    pub(crate) fn not_on_system(&self, reason: &str) -> Outcome {
        note(reason.to_owned());
        if self.target == TestTarget::System { Err(Skip(reason.to_owned())) } else { Ok(()) }
    }

    /// The correct answer, or on SoftRoCE the deviating one that it is known to give.
    pub(crate) fn expects<T>(&self, right: T, softroce: T) -> T {
        note("SoftRoCE answers otherwise".to_owned());
        if self.softroce.is_some() { softroce } else { right }
    }

    /// The correct answer, or the deviating one of this release of SoftRoCE and of later ones.
    pub(crate) fn expects_since<T>(&self, release: SoftRoce, right: T, softroce: T) -> T {
        note(format!("SoftRoCE (since {release:?}) answers otherwise"));
        if self.softroce >= Some(release) { softroce } else { right }
    }

    /// Skips the extended flavour on SoftRoCE, whose library loses inline data or the lengths of a
    /// scatter/gather list there.
    pub(crate) fn not_softroce_extended(&self, flavour: Flavour, reason: &str) -> Outcome {
        if flavour == Flavour::Extended { self.not_softroce(reason) } else { Ok(()) }
    }
}

/// The software device's provider in this mode. It lists two devices with two ports each unless
/// the environment sets other numbers.
/// The limits of [`TestTarget::SoftSmall`]: each is above what the cases need beside the objects
/// that they count.
const SMALL: &str = "max_pd=5,max_mr=6,max_mw=3,max_mr_size=65536,max_cq=9,max_cqe=8,max_qp=4,max_qp_wr=8,\
    max_sge=2,max_inline_data=16,max_qp_rd_atom=2,max_ah=3,max_mcast_grp=2,max_mcast_qp_attach=2,\
    max_total_mcast_qp_attach=3,max_srq=3,max_srq_wr=4,max_srq_sge=2,max_dm_size=8192";

/// Whether the firmware is soft-rnic's, whose C libraries may be the system's here. It has the same
/// vendor as SoftRoCE.
fn is_soft_rnic(attr: &ibv_device_attr) -> bool {
    attr.fw_ver.map(|byte| byte as u8).starts_with(b"soft-")
}

fn soft(mode: &str) -> Provider {
    set_variable("SOFT_RNIC_MODE", mode);
    for (name, value) in [("SOFT_RNIC_DEVICES", "2"), ("SOFT_RNIC_PORTS", "2")] {
        if std::env::var_os(name).is_none() {
            set_variable(name, value);
        }
    }
    soft_rnic::provider()
}
