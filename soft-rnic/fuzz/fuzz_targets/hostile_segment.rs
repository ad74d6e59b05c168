//! Fuzzes the shared segment of a hostile peer. The target function, and the tests that run its
//! corpus on a stable compiler, are in `soft-rnic/src/shared/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| soft_rnic::testing::hostile_segment(data));
