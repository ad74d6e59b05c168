//! What is known of a run: the one structure that every file of results is written from.
//!
//! The names of its fields, as serde writes them, are those of the JSON document; `schema/result.schema.json` and
//! `docs/stride-results.md` describe them, and tests hold the three together.

mod counters;
mod date_time;
mod device;
mod files;
mod flat;
mod histogram;
mod host;
mod path;
mod record;
mod replaced;

pub use counters::{PortCounters, troubles};
pub use device::DeviceInfo;
pub use files::{Files, FilesError, ResultPaths};
pub use flat::{COLUMNS, FlatRow};
pub use histogram::Distribution;
pub use host::HostRecord;
pub use path::PayloadPath;
pub use record::{
    ConnectionRecord, Interval, ParameterRecord, PeerRecord, RunRecord, SideResult, SizeDetails, SizeResult,
    Status, Tool,
};
