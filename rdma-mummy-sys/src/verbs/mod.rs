//! The inline functions of `infiniband/verbs.h`, by their C names.
//!
//! A function that only uses the operations of its objects has the parameters of its C original. A
//! function that needs an exported function takes the table with it first: [`ibv_query_port`]`(lib,
//! context, ..)`. A name that is a macro in the C header (`ibv_reg_mr`, ...) is a function here.
//!
//! # Failures
//!
//! An operation that the device, its driver or the loaded release lacks fails with `EOPNOTSUPP`. A
//! function that returns an `int` returns this number; others return null and set `errno`. This
//! also holds where the C original would crash, because it relies on an operation of every driver.
//! The data path is the exception: there the caller must guarantee that the operation exists, so
//! that a call costs what it costs in C.
//!
//! # Existing operations
//!
//! No struct of the library may be read past its end, and the ends differ between releases:
//!
//! - [`verbs_context`](crate::types::verbs_context) grows at its front and contains its size.
//!   [`verbs_get_ctx_op!`](crate::verbs_get_ctx_op) compares the size before it reads.
//! - [`ibv_qp_ex`](crate::types::ibv_qp_ex) and [`ibv_cq_ex`](crate::types::ibv_cq_ex) grow at
//!   their end and contain no size. A program knows the flags that it created the object with, and
//!   a library refuses unknown `send_ops_flags` and `wc_flags`. Therefore a field that came with a
//!   flag may be read only if the object was created with this flag, or with one whose field lies
//!   behind it. All other fields are as old as the struct. Behind the end lies memory of the
//!   driver: neither zero nor a function. [`qp_ex_op!`](crate::qp_ex_op) and
//!   [`cq_ex_op!`](crate::cq_ex_op) apply this rule.
//! - `ibv_context` with its classic operations is the same in all releases that can be loaded.

#[macro_use]
mod context;
mod flow;
mod memory;
mod objects;
mod poll;
mod post;
mod queues;

pub use context::*;
pub use flow::*;
pub use memory::*;
pub use objects::*;
pub use poll::*;
pub use post::*;
pub use queues::*;
