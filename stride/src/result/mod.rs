//! What is known of a run: the one structure that every file of results is written from.
//!
//! The names of its fields, as serde writes them, are those of the JSON document; `schema/result.schema.json` and
//! `docs/stride.md` describe them, and tests hold the three together.

mod counters;
mod device;
mod files;
mod flat;
mod histogram;
mod host;
mod path;
mod record;
mod replaced;

pub use counters::{Counters, troubles};
pub use device::DeviceInfo;
pub use files::{Files, FilesError, Targets};
pub use flat::{COLUMNS, FlatRow};
pub use histogram::Distribution;
pub use host::Host;
pub(crate) use path::PayloadPath;
pub use record::{
    Connection, Details, Interval, Parameters, Peer, Record, SideResult, SizeResult, Status, Tool,
};
