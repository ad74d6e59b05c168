//! What the shared objects export, and that what programs and providers import is there.
//!
//! A check of programs that this machine lacks is listed and counted as ignored, with what it
//! lacks.

mod calls;
mod elf;
#[path = "../support/library.rs"]
mod library;
mod lists;

use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A check that ran, or why it could not.
pub(crate) type CheckResult = Result<Result<(), Skipped>, String>;

/// A check's name, and what it does.
type Check = (&'static str, fn() -> CheckResult);

/// What a check lacks on this machine.
pub(crate) struct Skipped(pub(crate) String);

fn main() -> ExitCode {
    if let Some(library) = std::env::var_os(calls::TELL_PATH) {
        return calls::tell_path(&library).map_or_else(
            |error| {
                println!("{error}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    let tests: [Check; 19] = [
        ("exactly_the_committed_lists", lists::exactly_the_committed_lists),
        ("librdmacm_is_its_list_and_jumps", lists::librdmacm_is_its_list_and_jumps),
        ("default_versions_are_rdma_cores", lists::default_versions_are_rdma_cores),
        ("librdmacms_default_versions_are_rdma_cores", lists::librdmacms_default_versions_are_rdma_cores),
        ("default_versions_are_the_newest_rdma_cores", lists::default_versions_are_the_newest_rdma_cores),
        ("imports_of_the_newest_providers", lists::imports_of_the_newest_providers),
        ("imports_of_the_providers", lists::imports_of_the_providers),
        ("imports_of_the_programs", lists::imports_of_the_programs),
        ("programs_start_without_complaint", lists::programs_start_without_complaint),
        ("nothing_runs_at_load", calls::nothing_runs_at_load),
        ("every_symbol_by_its_version", calls::every_symbol_by_its_version),
        ("the_loader_takes_it", calls::the_loader_takes_it),
        ("both_libraries_have_one_device", calls::both_libraries_have_one_device),
        ("private_functions_fail", calls::private_functions_fail),
        ("sysfs_files", calls::sysfs_files),
        ("more_rights_than_the_user", calls::more_rights_than_the_user),
        ("structs_of_the_kernel", calls::structs_of_the_kernel),
        ("old_programs_port_attributes", calls::old_programs_port_attributes),
        ("a_provider_loads_over_it", calls::a_provider_loads_over_it),
    ];
    let trial = |(name, test): Check| {
        Trial::ignorable_test(name, move || match test().map_err(Failed::from)? {
            Ok(()) => Ok(Completion::Completed),
            Err(Skipped(reason)) => Ok(Completion::ignored_with(reason)),
        })
    };
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, tests.into_iter().map(trial).collect()).exit_code()
}

/// The shared object with the device.
pub(crate) fn library() -> Result<PathBuf, String> {
    shared_object("libibverbs.so.1")
}

/// Any of the two.
pub(crate) fn shared_object(soname: &str) -> Result<PathBuf, String> {
    library::folder().map(|folder| folder.join(soname))
}
