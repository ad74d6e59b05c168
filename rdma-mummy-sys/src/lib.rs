//! The raw ABI of libibverbs, librdmacm, mlx5dv and efadv, loaded with `dlopen` at run time.
//!
//! A program that uses this crate does not link to these libraries. It starts on a machine without
//! rdma-core, and the first use reports the missing library ([`LoadError`]).
//!
//! - [`types`] has the structs, constants and enumerations of the C headers. Enumerations are
//!   newtypes, so that an unknown value is not undefined behaviour.
//! - [`Provider`] is one loaded set of libraries. It is a value, so that a process can open
//!   several. [`Provider::open`] finds the default one.
//! - [`Verbs`], [`RdmaCm`], [`Mlx5dv`] and [`Efadv`] are its function tables. A function of every
//!   rdma-core is a field. A later one is a method that returns the function or a
//!   [`MissingSymbol`]. [`library_table!`] defines the table of another library, which
//!   [`Provider::library`] loads.
//! - [`verbs`], [`rdmacm`], [`mlx5dv`] and [`efadv`] are the inline functions of the C headers.
//!
//! Add it with `cargo add rdma-mummy-sys --path CLONE/rdma-mummy-sys`, or `--git URL`. Never add it
//! by the bare name, which belongs to another project on the public registry.
//!
//! # Safety
//!
//! Every function is as unsafe as the C function. If a library is older, a struct that it allocated
//! may be shorter than its type in this crate. Never make a reference to such a struct, and never
//! read a field that the library's size or flags do not announce.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("rdma-mummy-sys needs Linux: RDMA verbs are an interface of its kernel");
#[cfg(all(target_os = "linux", not(target_pointer_width = "64")))]
compile_error!("rdma-mummy-sys needs a 64-bit processor: its bindings are made for x86-64 and aarch64");

// On other targets only the error above is compiled.
#[cfg(target_os = "linux")]
#[doc(hidden)]
#[macro_use]
pub mod table;
#[cfg(target_os = "linux")]
#[macro_use]
pub mod field;
#[cfg(target_os = "linux")]
#[rustfmt::skip]
mod bindings;
#[cfg(target_os = "linux")]
pub mod efadv;
#[cfg(target_os = "linux")]
mod environment;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod library;
#[cfg(target_os = "linux")]
pub mod mlx5dv;
#[cfg(target_os = "linux")]
mod provider;
#[cfg(target_os = "linux")]
pub mod rdmacm;
#[cfg(target_os = "linux")]
pub mod verbs;

#[cfg(target_os = "linux")]
pub use bindings::tables::{Efadv, Mlx5dv, RdmaCm, Verbs};
#[cfg(target_os = "linux")]
pub use bindings::types;
#[cfg(target_os = "linux")]
pub use environment::secure_var_os;
#[cfg(target_os = "linux")]
pub use error::{Attempt, LoadError, MissingSymbol};
#[cfg(target_os = "linux")]
pub use library::Library;
#[cfg(target_os = "linux")]
pub use provider::{LIB_DIR_VARIABLE, Provider};
#[cfg(target_os = "linux")]
pub use table::LibraryTable;
