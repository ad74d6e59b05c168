//! A peer that says anything while a connection is made. The target itself, and the tests that run it on a stable compiler, are in
//! `trespass/src/handshake/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trespass::testing::hostile_handshake(data));
