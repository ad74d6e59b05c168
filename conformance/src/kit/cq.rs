//! Completion channels, completion queues and completions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{cq_ex_op, verbs};

use super::event::{readable, set_nonblocking};
use super::handle::{RawHandle, WAIT_LIMIT, errno, poll_until};
use super::{Device, Flavour};

/// The fields that the extended queues of every release report.
pub(crate) const STANDARD: u64 = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SLID.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SL.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;

/// A completion channel.
#[derive(Clone, Debug)]
pub(crate) struct CompChannel(Arc<ChannelInner>);

#[derive(Debug)]
struct ChannelInner {
    raw: RawHandle<ibv_comp_channel>,
    device: Device,
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the channel lives. No queue that uses it does, because
        // each holds a reference to it.
        self.raw.drop(|channel| unsafe { (self.device.lib().ibv_destroy_comp_channel)(channel) });
    }
}

impl CompChannel {
    pub(crate) fn new(device: &Device) -> Result<Self, i32> {
        // SAFETY: `RawHandle` checks that the context lives.
        let channel = unsafe { (device.lib().ibv_create_comp_channel)(device.raw()) };
        Ok(Self(Arc::new(ChannelInner {
            raw: RawHandle::new("a completion channel", channel)?,
            device: device.clone(),
        })))
    }

    pub(crate) fn destroy(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the channel lives. The library refuses while a queue uses
        // it.
        self.0.raw.end(|channel| unsafe { (self.0.device.lib().ibv_destroy_comp_channel)(channel) })
    }

    pub(crate) fn fd(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the queue lives. It has this field in every release.
        unsafe { (*self.0.raw.get()).fd }
    }

    /// Whether an event arrives within the limit.
    pub(crate) fn is_ready(&self, limit: Duration) -> bool {
        readable(self.fd(), limit)
    }

    /// Makes [`event_now`](Self::event_now) return at once.
    pub(crate) fn set_nonblocking(&self) {
        set_nonblocking(self.fd());
    }

    /// Waits for an event and returns the queue's address and context. The event stays
    /// unacknowledged.
    pub(crate) fn event(&self) -> (usize, usize) {
        assert!(self.is_ready(WAIT_LIMIT), "no completion event came");
        self.event_now().unwrap()
    }

    /// The next event, or the error number; waits for one unless the channel is non-blocking.
    pub(crate) fn event_now(&self) -> Result<(usize, usize), i32> {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let lib = self.0.device.lib();
        // SAFETY: `RawHandle` checks that the channel lives, the results are local variables.
        if unsafe { (lib.ibv_get_cq_event)(self.0.raw.get(), &raw mut cq, &raw mut context) } != 0 {
            return Err(errno());
        }
        Ok((cq.addr(), context.addr()))
    }
}

/// The attributes of a new completion queue.
#[derive(Clone, Debug)]
pub(crate) struct CqInit<'a> {
    pub(crate) cqe: i32,
    pub(crate) channel: Option<&'a CompChannel>,
    /// The context that its events carry.
    pub(crate) context: usize,
    pub(crate) vector: i32,
    /// The `wc_flags` of an extended queue; `None` creates a classic one.
    pub(crate) ex: Option<u64>,
    /// `ibv_create_cq_attr_flags` of an extended queue; 0 leaves the attribute out.
    pub(crate) flags: u32,
}

impl Default for CqInit<'_> {
    fn default() -> Self {
        Self { cqe: 64, channel: None, context: 0, vector: 0, ex: None, flags: 0 }
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub(crate) struct Cq(Arc<CqInner>);

#[derive(Debug)]
struct CqInner {
    raw: RawHandle<ibv_cq>,
    wc_flags: Option<u64>,
    polling: Mutex<()>,
    _channel: Option<CompChannel>,
    device: Device,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the queue lives. No queue pair that uses it does, because
        // each holds a reference to it.
        self.raw.drop(|cq| unsafe { (self.device.lib().ibv_destroy_cq)(cq) });
    }
}

impl Cq {
    pub(crate) fn new(device: &Device, init: &CqInit<'_>) -> Result<Self, i32> {
        let channel = init.channel.map_or(std::ptr::null_mut(), |channel| channel.0.raw.get());
        let context = std::ptr::without_provenance_mut(init.context);
        let cq = match init.ex {
            // SAFETY: `RawHandle` checks that context and channel live.
            None => unsafe {
                (device.lib().ibv_create_cq)(device.raw(), init.cqe, context, channel, init.vector)
            },
            Some(wc_flags) => {
                let mut attr = ibv_cq_init_attr_ex {
                    cqe: init.cqe as u32,
                    cq_context: context,
                    channel,
                    comp_vector: init.vector as u32,
                    wc_flags,
                    ..Default::default()
                };
                if init.flags != 0 {
                    attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
                    attr.flags = init.flags;
                }
                // SAFETY: `RawHandle` checks that context and channel live, the attributes are
                // local variables.
                unsafe { verbs::ibv_create_cq_ex(device.raw(), &raw mut attr).cast() }
            }
        };
        Ok(Self(Arc::new(CqInner {
            raw: RawHandle::new("a completion queue", cq)?,
            wc_flags: init.ex,
            polling: Mutex::new(()),
            _channel: init.channel.cloned(),
            device: device.clone(),
        })))
    }

    /// Creates a queue of this flavour.
    pub(crate) fn of(device: &Device, cqe: i32, flavour: Flavour, channel: Option<&CompChannel>) -> Self {
        let ex = (flavour == Flavour::Extended).then_some(STANDARD);
        Self::new(device, &CqInit { cqe, channel, ex, ..CqInit::default() }).unwrap()
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.0.raw.get()
    }

    pub(crate) fn address(&self) -> usize {
        self.raw().addr()
    }

    /// Its capacity.
    pub(crate) fn cqe(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the queue lives. It has this field in every release.
        unsafe { (*self.raw()).cqe }
    }

    pub(crate) fn destroy(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the queue lives. The library refuses while a queue pair
        // uses it.
        self.0.raw.end(|cq| unsafe { (self.0.device.lib().ibv_destroy_cq)(cq) })
    }

    /// Gives up ownership: closing the context destroys the queue.
    pub(crate) fn forget(&self) {
        self.0.raw.forget();
    }

    pub(crate) fn resize(&self, cqe: i32) -> i32 {
        // SAFETY: `RawHandle` checks that the queue lives.
        unsafe { (self.0.device.lib().ibv_resize_cq)(self.raw(), cqe) }
    }

    pub(crate) fn moderate(&self, count: u16, period: u16) -> i32 {
        self.modify(ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0, count, period)
    }

    /// Changes the attributes in this mask.
    pub(crate) fn modify(&self, attr_mask: u32, count: u16, period: u16) -> i32 {
        let mut attr = ibv_modify_cq_attr {
            attr_mask,
            moderate: ibv_moderate_cq { cq_count: count, cq_period: period },
        };
        // SAFETY: `RawHandle` checks that the queue lives, the attributes are local variables.
        unsafe { verbs::ibv_modify_cq(self.raw(), &raw mut attr) }
    }

    /// Requests an event for the next completion, or for the next solicited one.
    pub(crate) fn arm(&self, solicited_only: bool) -> i32 {
        // SAFETY: `RawHandle` checks that the queue lives; every context has the operation.
        unsafe { verbs::ibv_req_notify_cq(self.raw(), solicited_only.into()) }
    }

    pub(crate) fn ack(&self, events: u32) {
        // SAFETY: `RawHandle` checks that the queue lives.
        unsafe { (self.0.device.lib().ibv_ack_cq_events)(self.raw(), events) };
    }

    /// Takes up to `max` completions.
    pub(crate) fn poll(&self, max: usize) -> Vec<Wc> {
        let _lock = self.lock();
        match self.0.wc_flags {
            None => self.poll_classic(max).unwrap(),
            Some(_) => std::iter::from_fn(|| self.poll_one()).take(max).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.polling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_classic(&self, max: usize) -> Result<Vec<Wc>, i32> {
        let mut batch = vec![ibv_wc::default(); max];
        // SAFETY: `RawHandle` checks that the queue lives. No poll is open, because this function
        // holds the lock. The buffer has room for `max` completions.
        let count = unsafe { verbs::ibv_poll_cq(self.raw(), max as i32, batch.as_mut_ptr()) };
        if count < 0 {
            return Err(count);
        }
        batch.truncate(count as usize);
        Ok(batch.iter().map(Wc::from_classic).collect())
    }

    /// Polls one completion at a time, because an old SoftRoCE loses count after `ibv_next_poll`.
    fn poll_one(&self) -> Option<Wc> {
        let cq = self.raw().cast::<ibv_cq_ex>();
        let mut attr = ibv_poll_cq_attr::default();
        // SAFETY: an extended queue. No poll is open, because this function holds the lock.
        match unsafe { verbs::ibv_start_poll(cq, &raw mut attr) } {
            0 => {}
            libc::ENOENT => return None,
            error => panic!("ibv_start_poll: error {error}"),
        }
        let wc = self.read();
        // SAFETY: `ibv_start_poll` above opened the poll.
        unsafe { verbs::ibv_end_poll(cq) };
        Some(wc)
    }

    /// Takes up to `max` completions with `ibv_next_poll`.
    pub(crate) fn poll_batch(&self, max: usize) -> Vec<Wc> {
        let _lock = self.lock();
        assert!(self.0.wc_flags.is_some(), "an extended queue");
        let cq = self.raw().cast::<ibv_cq_ex>();
        let mut attr = ibv_poll_cq_attr::default();
        let mut completions = Vec::new();
        // SAFETY: an extended queue. No poll is open, because this function holds the lock.
        if unsafe { verbs::ibv_start_poll(cq, &raw mut attr) } != 0 {
            return completions;
        }
        completions.push(self.read());
        // SAFETY: `ibv_start_poll` above opened the poll.
        while completions.len() < max && unsafe { verbs::ibv_next_poll(cq) } == 0 {
            completions.push(self.read());
        }
        // SAFETY: `ibv_start_poll` above opened the poll.
        unsafe { verbs::ibv_end_poll(cq) };
        completions
    }

    /// The result of `ibv_start_poll` with this unknown `comp_mask`.
    pub(crate) fn start_poll_with(&self, comp_mask: u32) -> i32 {
        let _lock = self.lock();
        let cq = self.raw().cast::<ibv_cq_ex>();
        let mut attr = ibv_poll_cq_attr { comp_mask };
        // SAFETY: an extended queue. No poll is open, because this function holds the lock.
        let result = unsafe { verbs::ibv_start_poll(cq, &raw mut attr) };
        if result == 0 {
            // SAFETY: `ibv_start_poll` above opened the poll.
            unsafe { verbs::ibv_end_poll(cq) };
        }
        result
    }

    /// Reads the current completion of an open poll with the readers that the queue was created
    /// for.
    fn read(&self) -> Wc {
        use ibv_create_cq_wc_flags as With;
        let cq = self.raw().cast::<ibv_cq_ex>();
        let wc_flags = self.0.wc_flags.unwrap_or_default();
        let has = |flag: With| wc_flags & u64::from(flag.0) != 0;
        // SAFETY: a live extended queue; these two fields are in every release.
        let (id, status) = unsafe { ((&raw const (*cq).wr_id).read(), (&raw const (*cq).status).read()) };
        let mut wc = Wc { id, status, ..Wc::default() };
        // SAFETY: the caller has an open poll with a completion. The queue was created for these
        // readers.
        unsafe {
            wc.vendor_err = verbs::ibv_wc_read_vendor_err(cq);
            if has(With::IBV_WC_EX_WITH_QP_NUM) {
                wc.qp_num = verbs::ibv_wc_read_qp_num(cq);
            }
            if has(With::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
                wc.timestamp = cq_ex_op!(cq, read_completion_ts, wc_flags).map(|read| read(cq));
            }
            if has(With::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
                wc.wallclock = cq_ex_op!(cq, read_completion_wallclock_ns, wc_flags).map(|read| read(cq));
            }
        }
        if status != ibv_wc_status::IBV_WC_SUCCESS {
            return wc;
        }
        // SAFETY: the caller has an open poll with a successful completion. The queue was created
        // for these readers.
        unsafe {
            wc.opcode = verbs::ibv_wc_read_opcode(cq);
            wc.flags = verbs::ibv_wc_read_wc_flags(cq);
            if has(With::IBV_WC_EX_WITH_BYTE_LEN) {
                wc.len = verbs::ibv_wc_read_byte_len(cq);
            }
            if has(With::IBV_WC_EX_WITH_IMM) {
                wc.invalidated =
                    wc.has(ibv_wc_flags::IBV_WC_WITH_INV).then(|| verbs::ibv_wc_read_invalidated_rkey(cq));
                wc.imm = u32::from_be(verbs::ibv_wc_read_imm_data(cq));
            }
            if has(With::IBV_WC_EX_WITH_SRC_QP) {
                wc.src_qp = verbs::ibv_wc_read_src_qp(cq);
            }
            if has(With::IBV_WC_EX_WITH_SLID) {
                wc.slid = verbs::ibv_wc_read_slid(cq) as u16;
            }
            if has(With::IBV_WC_EX_WITH_SL) {
                wc.sl = verbs::ibv_wc_read_sl(cq);
            }
            if has(With::IBV_WC_EX_WITH_DLID_PATH_BITS) {
                wc.dlid_path_bits = verbs::ibv_wc_read_dlid_path_bits(cq);
            }
        }
        wc
    }

    /// Waits for this many completions.
    pub(crate) fn wait(&self, count: usize) -> Vec<Wc> {
        let mut all = Vec::new();
        let done = poll_until(WAIT_LIMIT, || {
            all.extend(self.poll(count - all.len()));
            (all.len() >= count).then_some(())
        });
        assert!(done.is_some(), "{} of {count} completions came: {all:?}", all.len());
        all
    }

    /// Waits for one completion.
    pub(crate) fn one(&self) -> Wc {
        self.wait(1).remove(0)
    }

    /// Waits for one completion, which must be a success.
    pub(crate) fn ok(&self) -> Wc {
        let wc = self.one();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS, "{wc:?}");
        wc
    }

    /// Whether the queue is empty; panics with the completion if it is not.
    pub(crate) fn is_empty(&self) -> bool {
        let found = self.poll(1);
        if !found.is_empty() {
            eprintln!("{found:?}");
        }
        found.is_empty()
    }
}

/// A completion. After an error only `id`, `status`, `qp_num` and the vendor error are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wc {
    pub(crate) id: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) vendor_err: u32,
    pub(crate) len: u32,
    pub(crate) imm: u32,
    /// The key that the message invalidated.
    pub(crate) invalidated: Option<u32>,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) flags: u32,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
    pub(crate) timestamp: Option<u64>,
    pub(crate) wallclock: Option<u64>,
}

impl Default for Wc {
    fn default() -> Self {
        Self::from_classic(&ibv_wc::default())
    }
}

impl Wc {
    fn from_classic(wc: &ibv_wc) -> Self {
        Self {
            id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            vendor_err: wc.vendor_err,
            len: wc.byte_len,
            // SAFETY: both fields of the union are 32-bit numbers.
            imm: u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }),
            invalidated: (wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0)
                // SAFETY: both fields of the union are 32-bit numbers.
                .then_some(unsafe { wc.__bindgen_anon_1.invalidated_rkey }),
            qp_num: wc.qp_num,
            src_qp: wc.src_qp,
            flags: wc.wc_flags,
            slid: wc.slid,
            sl: wc.sl,
            dlid_path_bits: wc.dlid_path_bits,
            timestamp: None,
            wallclock: None,
        }
    }

    /// The completion in the form of the classic verbs.
    pub(super) fn classic(&self) -> ibv_wc {
        let mut wc = ibv_wc {
            wr_id: self.id,
            status: self.status,
            opcode: self.opcode,
            byte_len: self.len,
            qp_num: self.qp_num,
            src_qp: self.src_qp,
            wc_flags: self.flags,
            slid: self.slid,
            sl: self.sl,
            dlid_path_bits: self.dlid_path_bits,
            ..Default::default()
        };
        wc.__bindgen_anon_1.imm_data = self.imm.to_be();
        wc
    }

    /// Whether a flag is set.
    pub(crate) fn has(&self, flag: ibv_wc_flags) -> bool {
        self.flags & flag.0 != 0
    }
}
