//! A peer of the control connection that says anything. The target itself, and the tests that run
//! it on a stable compiler, are in `stride/src/session/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stride::testing::hostile_control(data));
