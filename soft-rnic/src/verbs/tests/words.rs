//! Names and rates, compared with the installed libibverbs if available.

use std::ffi::CStr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Provider, Verbs};
use test_harness::report_skip;

use crate::verbs::testing::table;

/// The installed library. Without one, a test reports that, and only checks its samples.
fn system(test: &str) -> Option<&'static Verbs> {
    if cfg!(miri) {
        return None;
    }
    let provider = Provider::system();
    if let Err(error) = &provider {
        report_skip(test, format_args!("not compared with the system's libibverbs: {error}"));
    }
    provider.ok().map(Provider::verbs)
}

/// A value that an older library does not know is "unknown" there.
fn compare(what: &str, ours: &CStr, theirs: &CStr) {
    assert!(theirs == ours || (theirs == c"unknown" && ours != theirs), "{what}: {ours:?}, not {theirs:?}");
}

#[test]
fn names_match_libibverbs() {
    let ours = table();
    macro_rules! word {
        ($lib:expr, $function:ident, $value:expr) => {
            // SAFETY: the functions take any value and return a string that lives as long as the library.
            unsafe { CStr::from_ptr(($lib.$function)($value)) }
        };
    }
    assert_eq!(
        word!(ours, ibv_wc_status_str, ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
        c"Work Request Flushed Error"
    );
    assert_eq!(word!(ours, ibv_node_type_str, ibv_node_type::IBV_NODE_CA), c"InfiniBand channel adapter");
    assert_eq!(word!(ours, ibv_port_state_str, ibv_port_state::IBV_PORT_ACTIVE), c"active");
    assert_eq!(word!(ours, ibv_event_type_str, ibv_event_type(77)), c"unknown");
    // Only newer libraries have this function.
    let opcode = ours.ibv_wr_opcode_str.expect("the table has it");
    for (value, expected) in
        [(ibv_wr_opcode::IBV_WR_RDMA_READ, c"rdma-read"), (ibv_wr_opcode(77), c"unknown")]
    {
        // SAFETY: the functions take any value and return a string that lives as long as the
        // library.
        assert_eq!(unsafe { CStr::from_ptr(opcode(value)) }, expected);
    }
    let Some(theirs) = system("names_match_libibverbs") else { return };
    for value in (0..64).chain([u32::MAX]) {
        macro_rules! check {
            ($($function:ident($make:expr);)*) => {$(
                let (our, their) = (word!(ours, $function, $make), word!(theirs, $function, $make));
                compare(&format!("{}({value})", stringify!($function)), our, their);
            )*};
        }
        check! {
            ibv_wc_status_str(ibv_wc_status(value));
            ibv_node_type_str(ibv_node_type(value as i32));
            ibv_port_state_str(ibv_port_state(value));
            ibv_event_type_str(ibv_event_type(value));
        }
    }
}

#[test]
fn rates_match_libibverbs() {
    let ours = table();
    // SAFETY: the functions take any value.
    unsafe {
        assert_eq!((ours.ibv_rate_to_mult)(ibv_rate::IBV_RATE_100_GBPS), -1);
        assert_eq!((ours.ibv_rate_to_mbps)(ibv_rate::IBV_RATE_100_GBPS), 103_125);
        assert_eq!((ours.mult_to_ibv_rate)(0), ibv_rate::IBV_RATE_MAX);
        assert_eq!((ours.mbps_to_ibv_rate)(850_000), ibv_rate::IBV_RATE_800_GBPS);
        let Some(theirs) = system("rates_match_libibverbs") else { return };
        for value in 0..64 {
            let rate = ibv_rate(value);
            assert_eq!((ours.ibv_rate_to_mult)(rate), (theirs.ibv_rate_to_mult)(rate), "rate {value}");
            assert_eq!((ours.ibv_rate_to_mbps)(rate), (theirs.ibv_rate_to_mbps)(rate), "rate {value}");
            let mbps = (theirs.ibv_rate_to_mbps)(rate);
            assert_eq!((ours.mbps_to_ibv_rate)(mbps), (theirs.mbps_to_ibv_rate)(mbps), "{mbps} Mb/s");
        }
        for mult in -2..1000 {
            assert_eq!((ours.mult_to_ibv_rate)(mult), (theirs.mult_to_ibv_rate)(mult), "multiple {mult}");
        }
    }
}
