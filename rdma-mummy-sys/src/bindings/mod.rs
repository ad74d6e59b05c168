//! The generated part of the crate, which `cargo xtask bindings` makes from the C headers.

#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
mod layout_aarch64;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod layout_x86_64;
#[allow(missing_docs, non_camel_case_types, unused_imports)]
pub(crate) mod tables;
/// Types and constants of the C headers, by their C names.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unused_imports,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc
)]
pub mod types;
