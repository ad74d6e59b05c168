//! Either side of a handshake by the connection manager, with a peer that says anything. The target itself, and the tests that run it on a
//! stable compiler, are in `trespass/src/handshake/hostile_cm.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trespass::testing::hostile_exchange(data));
