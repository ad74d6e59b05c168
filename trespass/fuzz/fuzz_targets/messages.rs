//! Fuzzes the decoding of one handshake message with any bytes. The code of the target is in
//! `trespass/src/wire/hostile.rs`, with tests that run it on a stable compiler.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trespass::testing::hostile_message(data));
