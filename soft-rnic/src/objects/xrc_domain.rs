//! XRC domains, which connect XRC target queue pairs with the shared receive queues that they may
//! deliver to.
//!
//! The inode of its file identifies a domain, so all processes that have the file open share the
//! domain. The processes only need to agree on whether it exists (`O_CREAT`, `O_EXCL`). Each
//! process that has it open keeps a [`XrcdPresence`], which ends with the process. A domain without
//! a file has a random number.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::completion::{Cq, CqOptions};
use super::context::{Context, CountGuard};
use super::protection_domain::Pd;
use super::use_ref::{CountsUses, UseCount, UseRef};
use crate::node::{XrcdPresence, random};
use crate::platform::fork::identity;

/// The identity of a domain on this host: the inode, then the file system combined with the
/// device's number.
pub(crate) type XrcdId = [u64; 2];

/// Stands for the file system of a domain without a file. File systems have numbers of 32 bits.
const NO_FILE: u64 = 1 << 40;
const DEVICE_SHIFT: u32 = 56;

/// One opened handle of a domain.
pub(crate) struct Xrcd {
    counted: CountGuard,
    id: XrcdId,
    /// Shows other processes that the domain is open; `None` for a domain without a file.
    shared: Mutex<Option<Arc<XrcdPresence>>>,
    /// The protection domain and completion queue of XRC targets, whose attributes name neither.
    pd: UseRef<Pd>,
    cq: UseRef<Cq>,
    users: UseCount,
}

/// The domains with a file that this process has open.
#[derive(Default)]
pub(crate) struct XrcDomains(Mutex<Vec<(XrcdId, Weak<XrcdPresence>)>>);

impl XrcDomains {
    fn lock(&self) -> MutexGuard<'_, Vec<(XrcdId, Weak<XrcdPresence>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Xrcd {
    /// Opens the domain of the file behind `fd`, or a domain without a file if `fd` is -1.
    ///
    /// # Errors
    ///
    /// An errno, as the kernel returns it. `EBADF`: no such descriptor. `EAGAIN`: the domain does
    /// not exist and `O_CREAT` is not set. `EINVAL`: it exists and `O_EXCL` is set.
    pub(crate) fn open(context: &Arc<Context>, fd: c_int, oflags: c_int) -> Result<Arc<Self>, c_int> {
        let counted = context.count(|counts| &counts.xrcd, u32::MAX)?;
        let device = u64::from(context.device().number) << DEVICE_SHIFT;
        let (id, shared) = if fd == -1 {
            let number = random().first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            ([number, NO_FILE | device], None)
        } else {
            let (file_system, inode) = identity(fd).ok_or(libc::EBADF)?;
            let id = [inode, file_system & (NO_FILE - 1) | device];
            (id, Some(enter(context, id, oflags)?))
        };
        let pd = Pd::new(context)?;
        let cq = Cq::new(context, None, CqOptions { capacity: 1, ..CqOptions::default() })?;
        Ok(Arc::new(Self {
            counted,
            id,
            shared: Mutex::new(shared),
            pd: UseRef::new(&pd),
            cq: UseRef::new(&cq),
            users: UseCount::default(),
        }))
    }

    /// Closes this handle of the domain (`ibv_close_xrcd`).
    ///
    /// # Errors
    ///
    /// `EBUSY` if a shared receive queue or an XRC target still uses it.
    pub(crate) fn close(&self) -> Result<(), c_int> {
        self.context().check_process()?;
        if self.users.is_used() {
            return Err(libc::EBUSY);
        }
        self.leave();
        self.pd.release();
        self.cq.release();
        self.pd.deallocate()?;
        self.cq.get().retire();
        self.counted.count_out();
        Ok(())
    }

    /// Ends this handle's presence in the domain.
    fn leave(&self) {
        // The lock makes this atomic to a thread that opens the domain: it finds the domain open or
        // closed.
        let _domains = self.context().rnic().xrc_domains().lock();
        drop(self.shared.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    pub(crate) fn id(&self) -> XrcdId {
        self.id
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        self.pd.get()
    }

    pub(crate) fn cq(&self) -> &Arc<Cq> {
        self.cq.get()
    }
}

/// Opens the domain of a file: reuses the presence of this process, or creates one.
fn enter(context: &Context, id: XrcdId, oflags: c_int) -> Result<Arc<XrcdPresence>, c_int> {
    let (create, exclusive) = (oflags & libc::O_CREAT != 0, oflags & libc::O_EXCL != 0);
    let rnic = context.rnic();
    let mut domains = rnic.xrc_domains().lock();
    domains.retain(|(_, presence)| presence.strong_count() > 0);
    let own = domains.iter().find(|(other, _)| *other == id).and_then(|(_, presence)| presence.upgrade());
    if let Some(presence) = own {
        return if exclusive { Err(libc::EINVAL) } else { Ok(presence) };
    }
    let presence = Arc::new(rnic.node().enter_domain(id, |there| match there {
        false if !create => Err(libc::EAGAIN),
        true if exclusive => Err(libc::EINVAL),
        _ => Ok(()),
    })?);
    domains.push((id, Arc::downgrade(&presence)));
    Ok(presence)
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        self.leave();
    }
}

impl CountsUses for Xrcd {
    fn users(&self) -> &UseCount {
        &self.users
    }
}
