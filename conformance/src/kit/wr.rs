//! Work requests as values.

use rdma_mummy_sys::types::*;

use super::{Ah, BindRange, Mw};

/// A range of local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

impl Sge {
    pub(super) fn raw(self) -> ibv_sge {
        ibv_sge { addr: self.addr, length: self.length, lkey: self.lkey }
    }
}

/// An address in a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteAddr {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

#[derive(Clone, Debug)]
pub(super) enum WrData {
    List(Vec<Sge>),
    Inline(Vec<u8>),
}

/// A send request.
#[derive(Clone, Debug)]
pub(crate) struct Wr {
    pub(super) id: u64,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) remote: RemoteAddr,
    pub(super) imm: u32,
    /// The operands of atomics: the compare or add value, and the swap value.
    pub(super) operands: (u64, u64),
    pub(super) flags: u32,
    pub(super) data: WrData,
    pub(super) to: Option<(Ah, u32, u32)>,
    /// The shared receive queue at the peer of an XRC pair.
    pub(super) srqn: Option<u32>,
    /// The window of a bind, its new key, and the range.
    pub(super) bind: Option<(Mw, u32, BindRange)>,
}

impl Wr {
    /// A signaled request with this opcode.
    pub(crate) fn new(id: u64, opcode: ibv_wr_opcode) -> Self {
        Self {
            id,
            opcode,
            remote: RemoteAddr { addr: 0, rkey: 0 },
            imm: 0,
            operands: (0, 0),
            flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            data: WrData::List(Vec::new()),
            to: None,
            srqn: None,
            bind: None,
        }
    }

    pub(crate) fn send(id: u64) -> Self {
        Self::new(id, ibv_wr_opcode::IBV_WR_SEND)
    }

    pub(crate) fn send_imm(id: u64, imm: u32) -> Self {
        Self { imm, ..Self::new(id, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM) }
    }

    pub(crate) fn write(id: u64, remote: RemoteAddr) -> Self {
        Self { remote, ..Self::new(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE) }
    }

    pub(crate) fn write_imm(id: u64, remote: RemoteAddr, imm: u32) -> Self {
        Self { remote, imm, ..Self::new(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM) }
    }

    pub(crate) fn read(id: u64, remote: RemoteAddr) -> Self {
        Self { remote, ..Self::new(id, ibv_wr_opcode::IBV_WR_RDMA_READ) }
    }

    pub(crate) fn cmp_swp(id: u64, remote: RemoteAddr, compare: u64, swap: u64) -> Self {
        Self { remote, operands: (compare, swap), ..Self::new(id, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP) }
    }

    pub(crate) fn fetch_add(id: u64, remote: RemoteAddr, add: u64) -> Self {
        Self { remote, operands: (add, 0), ..Self::new(id, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD) }
    }

    /// Binds a window of type 2.
    pub(crate) fn bind(id: u64, mw: &Mw, rkey: u32, part: &BindRange) -> Self {
        let bind = Some((mw.clone(), rkey, part.clone()));
        Self { bind, ..Self::new(id, ibv_wr_opcode::IBV_WR_BIND_MW) }
    }

    pub(crate) fn local_inv(id: u64, rkey: u32) -> Self {
        Self { imm: rkey, ..Self::new(id, ibv_wr_opcode::IBV_WR_LOCAL_INV) }
    }

    pub(crate) fn send_inv(id: u64, rkey: u32) -> Self {
        Self { imm: rkey, ..Self::new(id, ibv_wr_opcode::IBV_WR_SEND_WITH_INV) }
    }

    /// An extended pair takes the value itself; a classic one needs it in a scatter/gather entry,
    /// or inline.
    pub(crate) fn atomic_write(id: u64, remote: RemoteAddr, value: u64) -> Self {
        Self { remote, operands: (value, 0), ..Self::new(id, ibv_wr_opcode::IBV_WR_ATOMIC_WRITE) }
    }

    pub(crate) fn flush(id: u64, remote: RemoteAddr, len: u64, placement: u32, level: u32) -> Self {
        let operands = (len, u64::from(placement) | u64::from(level) << 8);
        Self { remote, operands, ..Self::new(id, ibv_wr_opcode::IBV_WR_FLUSH) }
    }

    /// Appends a range of local memory.
    pub(crate) fn sge(mut self, sge: Sge) -> Self {
        match &mut self.data {
            WrData::List(list) => list.push(sge),
            WrData::Inline(_) => panic!("this request has inline data"),
        }
        self
    }

    pub(crate) fn list(self, list: &[Sge]) -> Self {
        list.iter().fold(self, |wr, sge| wr.sge(*sge))
    }

    pub(crate) fn inline(mut self, bytes: &[u8]) -> Self {
        self.data = WrData::Inline(bytes.to_vec());
        self.flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        self
    }

    /// The destination of a datagram.
    pub(crate) fn to(mut self, ah: &Ah, qpn: u32, qkey: u32) -> Self {
        self.to = Some((ah.clone(), qpn, qkey));
        self
    }

    /// The shared receive queue that a request of an XRC pair is for.
    pub(crate) fn srqn(mut self, srqn: u32) -> Self {
        self.srqn = Some(srqn);
        self
    }

    /// Generates no completion on success.
    pub(crate) fn quiet(mut self) -> Self {
        self.flags &= !ibv_send_flags::IBV_SEND_SIGNALED.0;
        self
    }

    pub(crate) fn solicited(mut self) -> Self {
        self.flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
        self
    }

    pub(crate) fn fenced(mut self) -> Self {
        self.flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        self
    }
}

/// A receive request.
#[derive(Clone, Debug)]
pub(crate) struct Recv {
    pub(super) id: u64,
    pub(super) list: Vec<Sge>,
}

impl Recv {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, list: Vec::new() }
    }

    pub(crate) fn sge(mut self, sge: Sge) -> Self {
        self.list.push(sge);
        self
    }

    pub(crate) fn list(self, list: &[Sge]) -> Self {
        list.iter().fold(self, |recv, sge| recv.sge(*sge))
    }

    /// Calls with the requests as a linked list, and converts the first refused request to its
    /// index.
    pub(super) fn post(
        requests: &[Self],
        call: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
    ) -> Result<(), (i32, usize)> {
        let mut lists: Vec<Vec<ibv_sge>> =
            requests.iter().map(|recv| recv.list.iter().map(|sge| sge.raw()).collect()).collect();
        let mut chain: Vec<ibv_recv_wr> = requests
            .iter()
            .zip(&mut lists)
            .map(|(recv, list)| ibv_recv_wr {
                wr_id: recv.id,
                sg_list: list.as_mut_ptr(),
                num_sge: list.len() as i32,
                ..Default::default()
            })
            .collect();
        let first = chain.as_mut_ptr();
        for n in 1..chain.len() {
            // SAFETY: both pointers are to elements of the vector, which nothing else accesses
            // until the call returns.
            unsafe { (*first.add(n - 1)).next = first.add(n) };
        }
        let mut bad = std::ptr::null_mut();
        match call(first, &raw mut bad) {
            0 => Ok(()),
            error => Err((error, index(first, bad))),
        }
    }
}

/// The index of an array element that a pointer points to.
pub(super) fn index<T>(first: *mut T, element: *mut T) -> usize {
    if element.is_null() { usize::MAX } else { (element.addr() - first.addr()) / size_of::<T>() }
}
