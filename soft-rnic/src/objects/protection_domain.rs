//! Protection domains: what belongs together.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::context::{Context, CountGuard};
use super::thread_domain::Td;
use super::use_ref::{CountsUses, UseCount, UseRef};
use crate::shared::entry::domain;

/// A protection domain. Its number is what peers and descriptors compare.
#[derive(Debug)]
pub(crate) struct Pd {
    counted: CountGuard,
    number: u32,
    users: UseCount,
    /// What a parent domain consists of.
    parts: Option<ParentDomain>,
    gone: AtomicBool,
}

/// A parent domain extends a protection domain.
#[derive(Debug)]
struct ParentDomain {
    pd: UseRef<Pd>,
    td: Option<UseRef<Td>>,
}

impl Pd {
    /// # Errors
    ///
    /// As [`Context::count`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, c_int> {
        /// Numbers are not used again: a key's descriptor and a queue pair's must not agree by chance.
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

    /// A parent domain: the same domain by another pointer, as what is made with either is to meet what is made with the other
    /// (`man ibv_alloc_parent_domain`).
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

    /// Ends the domain, by whatever pointer: it may have been imported.
    ///
    /// # Errors
    ///
    /// `EBUSY` if something in it is left, `EINVAL` if it has ended before.
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
