//! A peer whose frames say anything. The target itself, and the tests that run it on a stable compiler, are in
//! `trespass/src/protocol/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trespass::testing::hostile_frames(data));
