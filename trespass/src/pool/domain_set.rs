//! The protection domains of a pool: one, or one for each device of connections over several
//! devices.

use std::slice;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::Source;
use crate::process::PerProcess;
use crate::protocol::DEVICES_MAX;

/// The largest number of devices in a set.
pub(crate) const MOST_DEVICES: usize = DEVICES_MAX;

/// Protection domains in a fixed order. The first belongs to the primary device. Clones, and sets
/// of the same domains in the same order, are equal.
#[derive(Clone, Debug)]
pub(crate) struct DomainSet(Domains);

#[derive(Clone, Debug)]
enum Domains {
    One(ProtectionDomain),
    Several(Arc<SharedDomains>),
}

#[derive(Debug)]
struct SharedDomains {
    domains: Vec<ProtectionDomain>,
    /// A bit for each device that has failed.
    failed: AtomicU8,
}

/// Each set of several domains that this process uses.
static SHARED: PerProcess<Mutex<Vec<Weak<SharedDomains>>>> = PerProcess::new();

fn shared() -> MutexGuard<'static, Vec<Weak<SharedDomains>>> {
    SHARED.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that the device of this domain has failed. Sets of several domains register no more memory
/// there.
pub(crate) fn note_failure(domain: &ProtectionDomain) {
    let shared = shared();
    for set in shared.iter().filter_map(Weak::upgrade) {
        if let Some(device) = position(&set.domains, domain) {
            set.failed.fetch_or(1 << device, Relaxed);
        }
    }
}

/// Both domains live, so they are the same if their addresses are.
fn position(domains: &[ProtectionDomain], domain: &ProtectionDomain) -> Option<usize> {
    domains.iter().position(|known| known.as_raw() == domain.as_raw())
}

impl DomainSet {
    /// # Panics
    ///
    /// If there is no domain, or more than [`MOST_DEVICES`].
    #[allow(dead_code, reason = "for connections over several devices")]
    pub(crate) fn new(mut domains: Vec<ProtectionDomain>) -> Self {
        assert!((1..=MOST_DEVICES).contains(&domains.len()), "a set of {} domains", domains.len());
        if domains.len() == 1 {
            return Self(Domains::One(domains.remove(0)));
        }
        let mut shared = shared();
        let addresses = |domains: &[ProtectionDomain]| -> Vec<_> {
            domains.iter().map(ProtectionDomain::as_raw).collect()
        };
        let wanted = addresses(&domains);
        shared.retain(|set| set.strong_count() > 0);
        let known = shared.iter().filter_map(Weak::upgrade).find(|set| addresses(&set.domains) == wanted);
        let set = known.unwrap_or_else(|| {
            let set = Arc::new(SharedDomains { domains, failed: AtomicU8::new(0) });
            shared.push(Arc::downgrade(&set));
            set
        });
        Self(Domains::Several(set))
    }

    pub(crate) fn domains(&self) -> &[ProtectionDomain] {
        match &self.0 {
            Domains::One(domain) => slice::from_ref(domain),
            Domains::Several(set) => &set.domains,
        }
    }

    /// The domain of the primary device.
    pub(crate) fn primary(&self) -> &ProtectionDomain {
        &self.domains()[0]
    }

    /// The index of the device with this domain.
    pub(crate) fn position(&self, domain: &ProtectionDomain) -> Option<usize> {
        position(self.domains(), domain)
    }

    /// Identifies the set, never 0: the address of the only domain, or of the allocation that equal
    /// sets of several domains share. It is unique while this set or a clone lives.
    pub(crate) fn identity(&self) -> usize {
        match &self.0 {
            Domains::One(domain) => domain.as_raw().as_ptr().addr(),
            Domains::Several(set) => Arc::as_ptr(set).addr(),
        }
    }

    /// Whether this device has failed, so that nothing is registered with it. The only device of a
    /// set is still tried.
    pub(super) fn has_failed(&self, device: usize) -> bool {
        match &self.0 {
            Domains::One(_) => false,
            Domains::Several(set) => set.failed.load(Relaxed) & 1 << device != 0,
        }
    }

    /// Whether all devices are software.
    pub(super) fn is_soft(&self) -> bool {
        self.domains().iter().all(|domain| domain.context().is_soft())
    }

    /// An error of this device, with its name.
    pub(super) fn refusal(&self, device: usize, source: impl Into<Source>) -> Source {
        DeviceRefusal { device: self.domains()[device].context().name(), source: source.into() }.into()
    }

    /// The error if no device is left that works.
    pub(super) fn no_device_works() -> Source {
        "each device of the pool has failed".into()
    }
}

impl PartialEq for DomainSet {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl From<ProtectionDomain> for DomainSet {
    fn from(domain: ProtectionDomain) -> Self {
        Self(Domains::One(domain))
    }
}

impl From<&ProtectionDomain> for DomainSet {
    fn from(domain: &ProtectionDomain) -> Self {
        domain.clone().into()
    }
}

impl From<&DomainSet> for DomainSet {
    fn from(set: &DomainSet) -> Self {
        set.clone()
    }
}

/// The reason why one device of a set refused a request.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {source}")]
struct DeviceRefusal {
    device: String,
    source: Source,
}
