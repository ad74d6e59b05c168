//! The conformance suite: one set of cases at the level of the C verbs, run on several devices.
//!
//! The oracle is SoftRoCE, the kernel's software device, in an old and a new release: a case
//! expects what SoftRoCE answers. Where SoftRoCE lacks a verb or is known to be wrong, the case is
//! skipped there and counted as skipped. Such a case cites its authority: the manual page or the
//! InfiniBand Architecture Specification, volume 1 ("IBTA").
//!
//! The specification is not free to read, and its releases number sections differently. It is
//! therefore cited by chapter (9: transport layer, 10: software transport interface, 11: software
//! transport verbs) and topic. A section number is given only where public sources repeat it: the
//! kernel's comments and patches, or the RoCE v2 annex.
//!
//! `docs/soft-rnic-conformance.md` lists every difference, and `page` checks that list against
//! the cases.
//!
//! The test program has four parts. Each runs in a separate process, because a process has one
//! software device. `CONFORMANCE_SUITE` names the only part to run, and so does a filter that
//! begins with its name: `cargo test -p conformance -- soft_inline::ud`.
//!
//! | part | runs on |
//! | --- | --- |
//! | `system` | the system's device, skipped without one; `cargo xtask softroce --suite` runs it in virtual machines |
//! | `soft_inline`, `soft_deferred` | the software device in its two modes; the feature `soft` enables them |
//! | `soft_small` | the software device with small limits, for the cases that count objects |
//! | `soft_ib` | the software device with an InfiniBand link |
//!
//! `CONFORMANCE_DEVICE` names the device to use; `SIDEWAY_TEST_REQUIRE_DEVICE=1` makes a missing
//! device a failure. `--include-ignored` also runs the cases that SoftRoCE is known to fail, which
//! shows whether it still does.
//!
//! Modules depend downwards only: `runner` and `cases` use `kit`, which wraps the verbs so that a
//! case needs no unsafe code and about ten lines.

use std::process::ExitCode;

#[macro_use]
extern crate test_harness;

#[macro_use]
mod kit;
mod cases;
mod page;
mod runner;
mod table;

use kit::TestTarget;

/// Names the only part of the program to run, in the process that was started with it.
const PART: &str = "CONFORMANCE_SUITE";

/// The devices that the suite runs on; each has a part of the program.
const TARGETS: &[TestTarget] = if cfg!(feature = "soft") {
    &[
        TestTarget::System,
        TestTarget::SoftInline,
        TestTarget::SoftDeferred,
        TestTarget::SoftSmall,
        TestTarget::SoftIb,
    ]
} else {
    &[TestTarget::System]
};

/// Runs the suite over each device, each in a separate process, as the program's arguments say.
pub fn run() -> ExitCode {
    let parts: Vec<_> = TARGETS.iter().map(|target| target.part()).collect();
    test_harness::run_parts(PART, &parts, |part| {
        let target = TARGETS.iter().find(|target| target.part() == part).expect("each part has a target");
        let suite = match target {
            TestTarget::SoftSmall => cases::of_small_device(),
            TestTarget::SoftIb => cases::of_infiniband(),
            _ => cases::all(),
        };
        runner::run(suite.of_part(part), *target)
    })
}
