//! One message of the handshake, of any bytes. The target itself, and the tests that run it on a stable compiler, are in
//! `trespass/src/wire/hostile.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trespass::testing::hostile_message(data));
