//! XRC domains: what the targets of extended reliable connections have in common with the shared receive queues that they lead to.
//!
//! A domain is known by the inode that it belongs to, so whoever has the file open means the same domain, in whichever process.
//! All that processes have to agree on is whether it is there (`O_CREAT`, `O_EXCL`): each that has it open keeps a
//! [`XrcdPresence`], which ends with the process. A domain of no file is known by a random number.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::completion::{Cq, CqOptions};
use super::context::{Context, CountGuard};
use super::protection_domain::Pd;
use super::use_ref::{CountsUses, UseCount, UseRef};
use crate::node::{XrcdPresence, random};
use crate::platform::fork::identity;

/// What a domain is known by, on this host: the inode, and its file system with the device's number.
pub(crate) type XrcdId = [u64; 2];

/// In place of a file system; the numbers of those have 32 bits.
const NO_FILE: u64 = 1 << 40;
const DEVICE_SHIFT: u32 = 56;

/// A domain as one call has opened it.
pub(crate) struct Xrcd {
    counted: CountGuard,
    id: XrcdId,
    /// What tells other processes of it, if it is a file's.
    shared: Mutex<Option<Arc<XrcdPresence>>>,
    /// What targets are made with, who have neither by their attributes.
    pd: UseRef<Pd>,
    cq: UseRef<Cq>,
    users: UseCount,
}

/// The domains of files that this process has open.
#[derive(Default)]
pub(crate) struct XrcDomains(Mutex<Vec<(XrcdId, Weak<XrcdPresence>)>>);

impl XrcDomains {
    fn lock(&self) -> MutexGuard<'_, Vec<(XrcdId, Weak<XrcdPresence>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Xrcd {
    /// Opens the domain of a descriptor's file, or with -1 one of no file.
    ///
    /// # Errors
    ///
    /// As `errno`, and as the kernel: `EBADF` there is no such descriptor, `EAGAIN` there is no such domain and none is to be made,
    /// `EINVAL` there is one and a new one is asked for.
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

    /// # Errors
    ///
    /// `EBUSY`: something of the domain is left.
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

    /// The domain is not open here any more.
    fn leave(&self) {
        // Under the lock: whoever opens the domain at this moment finds it either here or gone.
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

/// Opens the domain of a file: this process's own presence, or a new one.
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
