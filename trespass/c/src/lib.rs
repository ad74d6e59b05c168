//! [`trespass`] for C and C++: the functions of `include/trespass.h`.
//!
//! The header is the documentation of each function, and `README.md` the introduction. This crate
//! translates and does nothing else: each function checks its arguments, calls trespass, and returns
//! the result as a function of `sys/socket.h` would, -1 or null with `errno`
//! (`docs/decisions/0027-c-interface.md`).
//!
//! `cargo xtask c-lib trespass` builds `libtrespass.so.0` and `libtrespass.a`.
//!
//! # Safety
//!
//! What all functions demand of their caller, who is a C program and cannot read `# Safety`:
//!
//! - A handle is null, or one that this library returned and that was not closed, released or moved
//!   since. A closed one is often found by its tag, but that is luck: its memory is free.
//! - A buffer is null, or has as many bytes as its length says, readable or writable as the function
//!   needs it, that no other thread changes during the call.
//! - A text is null or ends with a zero byte.
//! - A struct with a size is null, or has as many readable bytes as that member says.
//! - A pointer to a result is null or writable. Null is an error, unless the header allows it.

#![cfg(target_os = "linux")]

mod address;
mod boundary;
pub mod connecting;
pub mod connection;
pub mod error;
pub mod handle;
pub mod listener;
pub mod options;
pub mod worker;
