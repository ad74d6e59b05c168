//! The record of a run: the structure that every result file is written from.
//!
//! serde's names of its fields are the keys of the JSON document. `schema/result.schema.json` and
//! the guide describe them, and tests compare all three.

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
