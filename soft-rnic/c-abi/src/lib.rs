//! The software device of `soft-rnic` as `libibverbs.so.1` and `librdmacm.so.1`, for unmodified C
//! programs.
//!
//! `cargo xtask soft-libs` builds the shared objects of this crate; `soft-rnic run -- PROGRAM`
//! starts a program with them. Every function calls the one of the same name in
//! [`soft_rnic::verbs::table`] or [`soft_rnic::rdmacm::table`], so that a C program runs the code
//! that a Rust program runs.
//!
//! This is the only crate of the family that exports C names. It is a static library and nothing
//! else, so that no Rust program can come to depend on it.
//!
//! Both libraries share one device: `libibverbs.so.1` contains all of the code, and
//! `librdmacm.so.1` contains a jump for each of its functions. One pair of shared objects serves
//! the programs, and the libraries of hardware providers, of rdma-core 44 to 65:
//!
//! - Each public function has the default symbol version that it has in rdma-core. The variants of
//!   symbol version `IBVERBS_1.0`, for programs from before 2007, are left out.
//! - libmlx5, libefa and other providers import private functions of libibverbs, in a version node
//!   that changes from release to release. All of these functions exist here and fail. The
//!   providers find no device that they support, so that none of their code runs.
//!
//! Loading the library runs no code. A panic ends the process, because it must not unwind into C.

#[macro_use]
mod export;
mod libibverbs;
mod librdmacm;
