//! The conformance suite: one set of cases at the level of the C verbs, for many devices.
//!
//! A case says what the verbs promise. The oracle is SoftRoCE, the kernel's software device: its answers
//! decide, in an old and a new release, and where it cannot judge, because it lacks something or is known
//! to be wrong, the case cites what it follows, and is a counted skip there: the manual page, or the InfiniBand
//! Architecture Specification, volume 1 ("IBTA"). That is not free to read, and its releases number sections differently,
//! so it is cited by chapter (9: transport layer, 10: software transport interface, 11: software transport verbs) and topic;
//! with a section's number only where public sources (the kernel's comments and patches, the RoCE v2 annex) have it, too.
//! `docs/soft-rnic-conformance.md` lists every difference, and the suite holds it to what the cases say (`page`).
//!
//! The test program has three parts, each in a process of its own, because a process has one software device. `CONFORMANCE_SUITE`
//! names the only one to run, and so does a filter that begins with it: `cargo test -p conformance -- soft_inline::ud`.
//!
//! | part | runs on |
//! | --- | --- |
//! | `system` | the system's device, skipped without one; `cargo xtask softroce --suite` runs it in virtual machines |
//! | `soft_inline`, `soft_deferred` | the software device in its two modes; the feature `soft` switches them on |
//!
//! `CONFORMANCE_DEVICE` names the device to use; `SIDEWAY_TEST_REQUIRE_DEVICE=1` makes a missing one a failure.
//! `--include-ignored` also runs what SoftRoCE is known to fail, to see whether it still does.
//!
//! The module `kit` wraps the verbs so that a case needs no unsafe code and is some ten lines long.

#[macro_use]
extern crate test_harness;

#[macro_use]
mod harness;
mod cases;
mod kit;
mod page;
mod table;

pub use harness::run;
