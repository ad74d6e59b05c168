//! The parts that several measuring programs share.

pub mod process;
