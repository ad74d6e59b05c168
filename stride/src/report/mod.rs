//! What the user sees: one table on standard output, everything else on standard error.

mod echo;
mod output;
mod row;
mod table;

pub use echo::EchoRow;
pub use output::Output;
pub use row::{BandwidthRow, LatencyRow, Row};
pub use table::{heading, line, software};
