//! Fuzzes a connection with any frames from the peer. The code of the target is in
//! `trespass/src/protocol/hostile.rs`, with tests that run it on a stable compiler.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trespass::testing::hostile_frames(data));
