//! Conversions of static rates: to a multiple of 2.5 Gb/s, and to Mb/s.

use std::ffi::c_int;

use rdma_mummy_sys::types::ibv_rate;

/// The rate, its multiple of 2.5 Gb/s (0 if it is none), and its value in Mb/s.
const RATES: [(ibv_rate, c_int, c_int); 23] = {
    use ibv_rate as R;
    [
        (R::IBV_RATE_2_5_GBPS, 1, 2_500),
        (R::IBV_RATE_5_GBPS, 2, 5_000),
        (R::IBV_RATE_10_GBPS, 4, 10_000),
        (R::IBV_RATE_20_GBPS, 8, 20_000),
        (R::IBV_RATE_30_GBPS, 12, 30_000),
        (R::IBV_RATE_40_GBPS, 16, 40_000),
        (R::IBV_RATE_60_GBPS, 24, 60_000),
        (R::IBV_RATE_80_GBPS, 32, 80_000),
        (R::IBV_RATE_120_GBPS, 48, 120_000),
        (R::IBV_RATE_14_GBPS, 0, 14_062),
        (R::IBV_RATE_56_GBPS, 0, 56_250),
        (R::IBV_RATE_112_GBPS, 0, 112_500),
        (R::IBV_RATE_168_GBPS, 0, 168_750),
        (R::IBV_RATE_25_GBPS, 0, 25_781),
        (R::IBV_RATE_100_GBPS, 0, 103_125),
        (R::IBV_RATE_200_GBPS, 0, 206_250),
        (R::IBV_RATE_300_GBPS, 0, 309_375),
        (R::IBV_RATE_28_GBPS, 11, 28_125),
        (R::IBV_RATE_50_GBPS, 20, 53_125),
        (R::IBV_RATE_400_GBPS, 160, 425_000),
        (R::IBV_RATE_600_GBPS, 240, 637_500),
        (R::IBV_RATE_800_GBPS, 320, 850_000),
        (R::IBV_RATE_1200_GBPS, 480, 1_275_000),
    ]
};

pub(super) unsafe extern "C" fn rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|known| known.0 == rate && known.1 != 0).map_or(-1, |known| known.1)
}

pub(super) unsafe extern "C" fn mult_to_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|known| known.1 == mult && mult != 0).map_or(ibv_rate::IBV_RATE_MAX, |known| known.0)
}

pub(super) unsafe extern "C" fn rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

pub(super) unsafe extern "C" fn mbps_to_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|known| known.2 == mbps).map_or(ibv_rate::IBV_RATE_MAX, |known| known.0)
}
