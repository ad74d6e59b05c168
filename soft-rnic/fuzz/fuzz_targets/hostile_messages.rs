//! A peer's connection manager that says anything. The target itself, and the test that runs it on a stable compiler, are in
//! `soft-rnic/src/cm/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| soft_rnic::testing::hostile_messages(data));
