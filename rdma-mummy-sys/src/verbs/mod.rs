//! The inline functions of `infiniband/verbs.h`, by their C names.
//!
//! A function that only calls through the operations of the objects it is given has exactly the parameters
//! of its C original. One that needs an exported function takes the table that has it first:
//! [`ibv_query_port`]`(lib, context, ..)`. A name that the C header gives by a macro (`ibv_reg_mr`, ...) is
//! the name here.
//!
//! # What fails how
//!
//! An operation that the device, its driver or the loaded release does not have fails with `EOPNOTSUPP`: as
//! the returned value where the function returns an `int`, else as `errno` beside a null pointer. Where the C
//! original relies on an operation that every driver has, and would crash, this holds too, except on the
//! data path: there the caller promises that the operation is there, so that a call costs what it costs in C.
//!
//! # Which operations are there
//!
//! No struct of the library may be read past its end, and the ends differ between releases:
//!
//! - [`verbs_context`](crate::types::verbs_context) grows at its front and carries its own size.
//!   [`verbs_get_ctx_op!`](crate::verbs_get_ctx_op) compares it before it reads.
//! - [`ibv_qp_ex`](crate::types::ibv_qp_ex) and [`ibv_cq_ex`](crate::types::ibv_cq_ex) grow at their end
//!   and carry no size. What a program knows is what it asked for: a library refuses to create a queue pair
//!   with `send_ops_flags`, or a completion queue with `wc_flags`, that it has never heard of. So a field
//!   that came with a flag may be read if, and only if, the object was created with that flag (or with a
//!   flag whose field lies behind it). All other fields have been there since the struct was. Past its end
//!   lies memory of the driver: not zero, not a function. [`qp_ex_op!`](crate::qp_ex_op) and
//!   [`cq_ex_op!`](crate::cq_ex_op) apply this rule.
//! - `ibv_context` with its classic operations has not changed in any release that can be loaded.

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
