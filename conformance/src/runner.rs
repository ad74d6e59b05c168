//! Runs the suite on a test device and compares the result with the committed documents.

use std::process::ExitCode;
use std::time::Duration;

use test_harness::RunOptions;

use crate::kit::{SoftRoce, Suite, TestDevice, TestTarget};
use crate::page;
use crate::table::{self, Column};

/// The time limit of a case, longer under Miri and emulation. Each wait inside a case has a
/// shorter limit.
const CASE_LIMIT: Duration =
    Duration::from_secs(if cfg!(any(miri, target_arch = "aarch64")) { 300 } else { 60 });

/// Runs the cases that the program's arguments select. A run of all cases also checks the
/// documents.
pub(crate) fn run(suite: Suite, target: TestTarget) -> ExitCode {
    let arguments = test_harness::arguments();
    let mut dut = TestDevice::find(target);
    if let Ok(dut) = &mut dut {
        dut.try_all = arguments.include_ignored;
    }
    let options = RunOptions {
        required: test_harness::device_is_required() || target != TestTarget::System,
        limit: CASE_LIMIT,
        advice: "`cargo xtask softroce --suite --test system` runs them in a virtual machine with SoftRoCE.",
    };
    let (code, reports) = suite.run_and_report(&arguments, &dut, options);
    let dut = dut.ok().filter(|dut| !dut.try_all);
    let (Some(dut), Some(reports)) = (dut, reports) else { return code };
    let column = column(&dut);
    if column.is_none() && dut.softroce.is_none() {
        return code;
    }
    if arguments.nocapture {
        page::print(&reports);
    }
    let has_gaps = matches!(column, Some(Column::RoceOld | Column::RoceNew));
    let page = page::is_current(&reports, has_gaps);
    let table = column.is_none_or(|column| table::is_current(column, &reports));
    if page && table { code } else { ExitCode::FAILURE }
}

/// The device's column in the committed table, which has none for hardware, and none for the newest
/// SoftRoCE, because that changes from day to day.
fn column(dut: &TestDevice) -> Option<Column> {
    match (dut.target, dut.softroce) {
        (TestTarget::SoftInline, _) => Some(Column::Inline),
        (TestTarget::SoftDeferred, _) => Some(Column::Deferred),
        (TestTarget::System, Some(SoftRoce::Old)) => Some(Column::RoceOld),
        (TestTarget::System, Some(SoftRoce::New)) => Some(Column::RoceNew),
        (TestTarget::System, Some(SoftRoce::Newest) | None) => None,
        (TestTarget::SoftSmall | TestTarget::SoftIb, _) => None,
    }
}
