//! Fuzzes the CM messages of a hostile peer. The target function, and the test that runs its corpus
//! on a stable compiler, are in `soft-rnic/src/cm/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| soft_rnic::testing::hostile_messages(data));
