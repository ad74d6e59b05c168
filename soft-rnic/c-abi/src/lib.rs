//! The software device of `soft-rnic` as `libibverbs.so.1` and `librdmacm.so.1`, for C programs that know nothing of it.
//!
//! `cargo xtask soft-libs` makes the shared objects of this crate; `soft-rnic run -- PROGRAM` starts a program
//! over them. Every function is the one of the same name in [`soft_rnic::verbs::table`] or
//! [`soft_rnic::rdmacm::table`], so that a C program runs the code that a Rust program runs.
//!
//! This is the one crate of the family that exports C names. It is a static library and nothing else, so that
//! no Rust program can come to depend on it.
//!
//! Both are one program with one device: `libibverbs.so.1` has all of the code, and `librdmacm.so.1` is a jump for
//! each of its functions. One pair of shared objects serves the programs, and the libraries of hardware providers, of rdma-core 44 to 65:
//!
//! - Each public function has the default symbol version that it has in rdma-core. The variants of symbol
//!   version `IBVERBS_1.0` for programs of before 2007 are left out.
//! - libmlx5, libefa and their like import private functions of libibverbs, under a node of symbols that changes
//!   from release to release. All of them are here, and fail: the providers find no device of theirs, so that
//!   nothing of them ever runs.
//!
//! Nothing runs when the library is loaded. A panic ends the process: it must not unwind into C.

#[macro_use]
mod export;
mod libibverbs;
mod librdmacm;
