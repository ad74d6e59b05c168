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
    let column = dut.ok().and_then(|dut| if dut.try_all { None } else { column(&dut) });
    match (column, reports) {
        (Some(column), Some(reports)) => {
            if arguments.nocapture {
                page::print(&reports);
            }
            let on_softroce = matches!(column, Column::RoceOld | Column::RoceNew);
            let (page, table) =
                (page::is_current(&reports, on_softroce), table::is_current(column, &reports));
            if page && table { code } else { ExitCode::FAILURE }
        }
        _ => code,
    }
}

/// The device's column in the committed table, which has none for hardware.
fn column(dut: &TestDevice) -> Option<Column> {
    match (dut.target, dut.softroce) {
        (TestTarget::SoftInline, _) => Some(Column::Inline),
        (TestTarget::SoftDeferred, _) => Some(Column::Deferred),
        (TestTarget::System, Some(SoftRoce::Old)) => Some(Column::RoceOld),
        (TestTarget::System, Some(SoftRoce::New)) => Some(Column::RoceNew),
        (TestTarget::System, None) | (TestTarget::SoftSmall | TestTarget::SoftIb, _) => None,
    }
}
