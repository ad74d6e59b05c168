//! The output for the user: a table on standard output, notes on standard error, and files for
//! other programs.

mod echo;
mod expectations;
mod live;
mod output;
mod perftest;
mod rated;
mod row;
mod table;

pub use echo::EchoRow;
pub use echo::TITLE as ECHO;
pub use expectations::{Expectations, ExpectationsError};
pub use output::{MISSED, Output};
pub use rated::RatedRow;
pub use row::{BandwidthRow, LatencyRow, Measured, ResultRow};
pub use table::footer;
pub use table::{defined, duration};
pub use table::{heading, line, software};
