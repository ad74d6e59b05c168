//! Protection domains and parent domains.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::context::{Context, CountGuard};
use super::thread_domain::Td;
use super::use_ref::{CountsUses, UseCount, UseRef};
use crate::shared::entry::domain;

/// A protection domain. Peers and descriptors compare its number.
#[derive(Debug)]
pub(crate) struct Pd {
    counted: CountGuard,
    number: u32,
    users: UseCount,
    /// For a parent domain: the domains that it consists of.
    parts: Option<ParentDomain>,
    gone: AtomicBool,
}

/// The parts of a parent domain, which extends a protection domain.
#[derive(Debug)]
struct ParentDomain {
    pd: UseRef<Pd>,
    td: Option<UseRef<Td>>,
}

impl Pd {
    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    ///
    /// As [`Context::count`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, c_int> {
        /// Numbers are never reused, so that the descriptors of an old key and a new queue pair
        /// cannot agree by chance.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Relaxed);
        if number >= domain::END {
            NEXT.fetch_sub(1, Relaxed);
            return Err(libc::ENOMEM);
        }
        let pd = Self::of(context, number, None)?;
        context.enter_domain(&pd);
        Ok(pd)
    }

    /// Creates a parent domain. It has the number of `pd`, because objects of both domains work
    /// together (`man ibv_alloc_parent_domain`).
    ///
    /// # Errors
    ///
    /// As [`Context::count`].
    pub(crate) fn extend(pd: &Arc<Self>, td: Option<&Arc<Td>>) -> Result<Arc<Self>, c_int> {
        let parts = ParentDomain { pd: UseRef::new(pd), td: td.map(UseRef::new) };
        Self::of(pd.context(), pd.number, Some(parts))
    }

    fn of(context: &Arc<Context>, number: u32, parts: Option<ParentDomain>) -> Result<Arc<Self>, c_int> {
        let counted = context.count(|counts| &counts.pd, context.rnic().limits().max_pd)?;
        Ok(Arc::new(Self {
            counted,
            number,
            users: UseCount::default(),
            parts,
            gone: AtomicBool::new(false),
        }))
    }

    /// Deallocates the domain, for the pointer that allocated it or for an imported one.
    ///
    /// # Errors
    ///
    /// `EBUSY` if an object uses it, `EINVAL` if it was deallocated before.
    pub(crate) fn deallocate(&self) -> Result<(), c_int> {
        self.context().check_process()?;
        if self.users.is_used() {
            return Err(libc::EBUSY);
        }
        if self.gone.swap(true, Relaxed) {
            return Err(libc::EINVAL);
        }
        self.counted.count_out();
        if let Some(ParentDomain { pd, td }) = &self.parts {
            pd.release();
            td.iter().for_each(UseRef::release);
        }
        Ok(())
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl CountsUses for Pd {
    fn users(&self) -> &UseCount {
        &self.users
    }
}
