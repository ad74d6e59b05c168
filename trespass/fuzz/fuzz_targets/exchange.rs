//! Fuzzes either side of a handshake by the connection manager with any input from the peer. The
//! code of the target is in `trespass/src/handshake/hostile_cm.rs`, with tests that run it on a
//! stable compiler.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trespass::testing::hostile_exchange(data));
