//! One end of a connection, and the role that answers the other's commands.

use std::ptr;
use std::time::Duration;

use rdma_mummy_sys::types::*;

use crate::kit::{QpAddress, TestDevice, TestMemory, Timing, dereg, lib, post_shared, rkey, until};
use crate::rights::become_nobody;
use crate::role::{ChildRole, say, told};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const TIMING: Timing = Timing { timeout: 12, retry_cnt: 3 };
pub(crate) const LEN: usize = 100_000;
/// The length of the longest message.
pub(crate) const LONG: usize = 1 << 31;
/// How much of its end is compared.
pub(crate) const TAIL: usize = 1 << 20;
/// The number of receives that an endpoint posts at first.
pub(crate) const RECEIVES: u64 = 4;

/// One end of a connection.
pub(crate) struct TestEndpoint {
    pub(crate) device: TestDevice,
    pub(crate) memory: TestMemory,
    pub(crate) mr: *mut ibv_mr,
    pub(crate) cq: crate::kit::TestCq,
    pub(crate) qp: crate::kit::TestQp,
    srq: *mut ibv_srq,
}

impl TestEndpoint {
    pub(crate) fn new() -> Self {
        Self::on(TestDevice::open())
    }

    pub(crate) fn on(device: TestDevice) -> Self {
        Self::with(device, ptr::null_mut())
    }

    fn with(device: TestDevice, srq: *mut ibv_srq) -> Self {
        let memory = TestMemory::private(LEN);
        let (mr, cq) = (memory.register(device), device.cq(16, ptr::null_mut()));
        let qp = device.qp(ibv_qp_type::IBV_QPT_RC, cq, srq, 8);
        qp.init();
        let side = Self { device, memory, mr, cq, qp, srq };
        (0..RECEIVES).for_each(|id| side.receive(id));
        side
    }

    /// Posts a receive for all of the memory.
    fn receive(&self, id: u64) {
        let sge = self.memory.sge(self.mr, 0, LEN);
        let posted =
            if self.srq.is_null() { self.qp.receive(id, sge) } else { post_shared(self.srq, id, sge) };
        assert_eq!(posted, 0);
    }

    pub(crate) fn connect(&self, to: &QpAddress) {
        self.qp.connect(to, TIMING);
    }

    pub(crate) fn address(&self) -> QpAddress {
        // SAFETY: a GID is plain bytes.
        let gid = unsafe { self.device.gid().raw };
        QpAddress { qpn: self.qp.number(), gid, addr: self.memory.base.addr() as u64, rkey: rkey(self.mr) }
    }

    /// Sends, reads or writes all of the memory; returns the status.
    pub(crate) fn run(&self, opcode: ibv_wr_opcode, to: &QpAddress) -> ibv_wc_status {
        assert_eq!(self.qp.post(7, opcode, self.memory.sge(self.mr, 0, LEN), to, ptr::null_mut()), 0);
        until("the request", PATIENCE, || self.cq.poll().filter(|wc| wc.wr_id == 7)).status
    }

    pub(crate) fn close(self) {
        self.take_down().close();
    }

    pub(crate) fn take_down(self) -> TestDevice {
        assert_eq!(self.qp.destroy(), 0);
        if !self.srq.is_null() {
            // SAFETY: no queue pair uses the shared receive queue any more.
            assert_eq!(unsafe { (lib().ibv_destroy_srq)(self.srq) }, 0);
        }
        // A test may have deregistered the region already.
        assert!(self.mr.is_null() || dereg(self.mr) == 0);
        self.cq.destroy();
        self.memory.free();
        self.device
    }
}

/// The partner role: answers requests, and obeys commands.
pub(crate) fn play(arguments: &[String]) {
    let role = arguments.first().map(String::as_str);
    if role == Some("nobody") {
        become_nobody();
    }
    let device = TestDevice::open();
    let srq = if role == Some("shared") { device.srq(8) } else { ptr::null_mut() };
    let side = TestEndpoint::with(device, srq);
    side.memory.fill(0x33);
    say(&side.address().to_string());
    let to: QpAddress = told().expect("a line").parse().expect("an address");
    side.qp.connect(&to, TIMING);
    // SAFETY: the child only makes system calls.
    if role == Some("parent") && unsafe { libc::fork() } == 0 {
        // SAFETY: the child only makes system calls, and outlives its parent by design.
        unsafe {
            libc::close(1);
            libc::sleep(3);
            libc::_exit(0);
        }
    }
    say("ready");
    let mut long: Option<TestMemory> = None;
    while let Some(line) = told() {
        let answer = match line.as_str() {
            "write" => side.run(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &to).0.to_string(),
            "hole" => {
                // SAFETY: the page belongs to `side.memory`, and this process does not access it
                // again.
                let unmapped = unsafe { libc::munmap(side.memory.base.add(10 * 4096).cast(), 4096) };
                if unmapped == 0 { "done" } else { "it stays" }.to_owned()
            }
            "long" => {
                let memory = TestMemory::folded(LONG);
                let mr = memory.register(device);
                long = Some(memory);
                QpAddress { addr: memory.base.addr() as u64, rkey: rkey(mr), ..side.address() }.to_string()
            }
            line if line.starts_with("tail ") => {
                let byte = line[5..].parse().expect("a byte");
                format!("{:?}", long.expect("it was asked for").part_differs(LONG - TAIL, TAIL, byte))
            }
            "receive" => {
                side.receive(9);
                "done".to_owned()
            }
            "poll" => {
                let wc = side.cq.one("a message", PATIENCE);
                format!("{} {} {}", wc.wr_id, wc.status.0, wc.byte_len)
            }
            line if line.starts_with("byte ") => {
                side.memory.byte(line[5..].parse().expect("where")).to_string()
            }
            _ => side.memory.byte(LEN - 1).to_string(),
        };
        say(&answer);
    }
}

/// Connects to a partner.
pub(crate) fn meet(mut partner: ChildRole) -> (TestEndpoint, ChildRole, QpAddress) {
    let side = TestEndpoint::new();
    let to: QpAddress = partner.hear().parse().expect("an address");
    partner.tell(&side.address().to_string());
    side.qp.connect(&to, TIMING);
    assert_eq!(partner.hear(), "ready");
    (side, partner, to)
}
