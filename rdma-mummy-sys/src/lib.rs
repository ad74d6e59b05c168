//! The raw ABI of libibverbs, librdmacm, mlx5dv and efadv, loaded with `dlopen` at run time.
//!
//! A program that uses this crate links against none of these libraries: it
//! starts on a machine without rdma-core, and the first use says what is
//! missing ([`LoadError`]).
//!
//! - [`types`] holds the structs, constants and enumerations of the C headers.
//!   Enumerations are newtypes: a value that this crate has never heard of is
//!   a value, not undefined behaviour.
//! - [`Provider`] is one loaded set of libraries. It is a value, so that several
//!   can be open in one process; [`Provider::open`] finds the default one.
//! - [`Verbs`], [`RdmaCm`], [`Mlx5dv`] and [`Efadv`] are its function tables.
//!   A function that every rdma-core has is a field to call; one that came
//!   later is a method that returns the function or a [`MissingSymbol`].
//! - [`verbs`], [`rdmacm`] and [`mlx5dv`] are the inline functions of the C headers.
//!
//! # Safety
//!
//! Everything here is as unsafe as the C functions are. A struct that was
//! allocated by a library may be shorter than its type in this crate, when the
//! library is older: never make a reference to one, and never read a field
//! that the library's size or flags do not announce.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!("rdma-mummy-sys needs Linux: RDMA verbs are an interface of its kernel");

#[macro_use]
mod table;
#[doc(hidden)]
#[macro_use]
pub mod field;
#[rustfmt::skip]
mod bindings;
mod error;
mod library;
pub mod mlx5dv;
mod provider;
pub mod rdmacm;
pub mod verbs;

pub use bindings::tables::{Efadv, Mlx5dv, RdmaCm, Verbs};
pub use bindings::types;
pub use error::{Attempt, LoadError, MissingSymbol};
pub use provider::{LIB_DIR_VARIABLE, Provider};
