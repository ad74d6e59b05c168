//! The verbs, safe to use in a case: objects with owners, waits with deadlines, completions as
//! values.
//!
//! # Safety
//!
//! This is the only module of the crate with unsafe code. It rests on three rules:
//!
//! - An object is destroyed once. `RawHandle` returns its pointer only while the object lives, and
//!   each dependent object holds a counted reference to it.
//! - The device accesses memory only through a key, and a [`Mr`] holds its [`Buf`], whose bytes are
//!   copied and never borrowed. A request may name any address, because the device must refuse it
//!   by its key. Every provider promises that; the suite finds those that do not. With a key of
//!   [`Pd::reg_everything`], a request names addresses of a [`Buf`] or a [`Hole`] alone.
//! - Verbs are thread-safe (`man 7 ibverbs`), except extended posting and polling. [`Qp`] and
//!   [`Cq`] lock these.

#[macro_use]
mod test_device;

mod cm;
mod cq;
mod device;
mod domain;
mod event;
mod handle;
mod hole;
mod lids;
mod memory;
mod node;
mod qp;
mod special_region;
mod srq;
mod state;
mod unsupported;
mod window;
mod wr;
mod xrc;

pub(crate) use test_device::TestTarget;

pub(crate) use cm::{
    Cm, CmChannel, CmDevice, CmId, ConnectRequest, ConnectedPair, EventCopy, Hints, IdWithChannel, Info,
    Kind, Param, Space,
};
pub(crate) use cq::{CompChannel, Cq, CqInit, STANDARD, Wc};
pub(crate) use device::{Device, devices, event_name, lists_without_count, set_variable, status_name};
pub(crate) use domain::{ImportedMr, ParentDomain, Td, close, duplicate, other_descriptor};
pub(crate) use event::AsyncEvent;
pub(crate) use handle::{WAIT_LIMIT, poll_until};
pub(crate) use hole::Hole;
pub(crate) use lids::lid_of;
pub(crate) use memory::{Ah, Buf, Mr, Pd, pattern};
pub(crate) use node::{
    EVERYTHING, Node, NodeOptions, OPTIONAL_BITS, PeerLocation, QKEY, QpAddress, ah_attr, gid_of, pair,
    pair_at, raw_gid, unlike_pair,
};
pub(crate) use qp::{Qp, QpChange, QpInit};
pub(crate) use special_region::{BufferFile, Dm, SpecialMr};
pub(crate) use srq::{Srq, SrqInit};
pub(crate) use state::{STATES, TYPES, node, node_in};
pub(crate) use test_device::{Outcome, SOFTROCE_VENDOR, Skip, SoftRoce, Suite, TestDevice};
pub(crate) use unsupported::{is_absent, operation_name, port_state_name, rate};
pub(crate) use window::{BindRange, Mw, next_key};
pub(crate) use wr::{Recv, RemoteAddr, Sge, Wr};
pub(crate) use xrc::{Inode, Xrcd};

/// Classic posting and polling, or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Classic,
    Extended,
}
