//! The verbs, safe to use in a case: objects with owners, waits with deadlines, completions as values.
//!
//! # Safety
//!
//! This is the only module of the crate with unsafe code. Its rests on three things:
//!
//! - An object is destroyed once: `Raw` hands its pointer out only while the object lives, and whoever
//!   depends on it holds a counted reference to it.
//! - The device touches memory only by a key, and a [`Mr`] holds its [`Buf`], whose bytes are never referred to,
//!   only copied. A request may name any address: the device has to refuse it by its key. That is what
//!   a provider promises; a device that does not is what the suite is to find.
//! - Verbs are thread-safe (`man 7 ibverbs`), except for what needs a lock of the caller's: the extended
//!   posting and polling, which are locked here by [`Qp`] and [`Cq`].

mod absent;
mod cm;
mod cq;
mod device;
mod domain;
mod event;
mod memory;
mod node;
mod qp;
mod raw;
mod region;
mod srq;
mod state;
mod window;
mod wr;
mod xrc;

pub(crate) use absent::{is_absent, operation_name, port_state_name, rate};
pub(crate) use cm::{Cm, CmChannel, CmId, Hints, Info, Kind, Pair, Param, Request, Seen, Side, Site, Space};
pub(crate) use cq::{Channel, Cq, CqInit, STANDARD, Wc};
pub(crate) use device::{Device, devices, event_name, lists_without_count, set_variable, status_name};
pub(crate) use domain::{ImportedMr, Parent, Td, close, duplicate, other_descriptor};
pub(crate) use event::Event;
pub(crate) use memory::{Ah, Buf, Mr, Pd, pattern};
pub(crate) use node::{
    EVERYTHING, Node, Options, Peer, Place, QKEY, ah_attr, gid_of, pair, pair_at, raw_gid, unlike_pair,
};
pub(crate) use qp::{Change, Qp, QpInit};
pub(crate) use raw::{PATIENCE, until};
pub(crate) use region::{BufferFile, Dm, Region};
pub(crate) use srq::{Srq, SrqInit};
pub(crate) use state::{STATES, TYPES, node, node_in};
pub(crate) use window::{Mw, Part, next_key};
pub(crate) use wr::{Recv, Remote, Sge, Wr};
pub(crate) use xrc::{Inode, Xrcd};

/// Classic posting and polling, or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Classic,
    Extended,
}
