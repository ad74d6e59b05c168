//! Packet rates (`ibv_rate`), for the [static
//! rate](super::address::AddressHandleAttribute::setup_static_rate) of an address.

use rdma_mummy_sys::types::ibv_rate as R;

c_enum! {
    /// A rate of packets (`ibv_rate`).
    ///
    /// ```
    /// use sideway::ibverbs::rate::Rate;
    ///
    /// assert_eq!(Rate::Gbps100.mbps(), Some(103_125));
    /// assert_eq!(Rate::from_mbps(40_000), Some(Rate::Gbps40));
    /// assert_eq!(Rate::Max.mbps(), None);
    /// ```
    pub struct Rate(u8) {
        /// The port's full rate.
        Max = R::IBV_RATE_MAX.0,
        /// 2.5 Gb/s.
        Gbps2_5 = R::IBV_RATE_2_5_GBPS.0,
        /// 5 Gb/s.
        Gbps5 = R::IBV_RATE_5_GBPS.0,
        /// 10 Gb/s.
        Gbps10 = R::IBV_RATE_10_GBPS.0,
        /// 14 Gb/s.
        Gbps14 = R::IBV_RATE_14_GBPS.0,
        /// 20 Gb/s.
        Gbps20 = R::IBV_RATE_20_GBPS.0,
        /// 25 Gb/s.
        Gbps25 = R::IBV_RATE_25_GBPS.0,
        /// 28 Gb/s.
        Gbps28 = R::IBV_RATE_28_GBPS.0,
        /// 30 Gb/s.
        Gbps30 = R::IBV_RATE_30_GBPS.0,
        /// 40 Gb/s.
        Gbps40 = R::IBV_RATE_40_GBPS.0,
        /// 50 Gb/s.
        Gbps50 = R::IBV_RATE_50_GBPS.0,
        /// 56 Gb/s.
        Gbps56 = R::IBV_RATE_56_GBPS.0,
        /// 60 Gb/s.
        Gbps60 = R::IBV_RATE_60_GBPS.0,
        /// 80 Gb/s.
        Gbps80 = R::IBV_RATE_80_GBPS.0,
        /// 100 Gb/s.
        Gbps100 = R::IBV_RATE_100_GBPS.0,
        /// 112 Gb/s.
        Gbps112 = R::IBV_RATE_112_GBPS.0,
        /// 120 Gb/s.
        Gbps120 = R::IBV_RATE_120_GBPS.0,
        /// 168 Gb/s.
        Gbps168 = R::IBV_RATE_168_GBPS.0,
        /// 200 Gb/s.
        Gbps200 = R::IBV_RATE_200_GBPS.0,
        /// 300 Gb/s.
        Gbps300 = R::IBV_RATE_300_GBPS.0,
        /// 400 Gb/s.
        Gbps400 = R::IBV_RATE_400_GBPS.0,
        /// 600 Gb/s.
        Gbps600 = R::IBV_RATE_600_GBPS.0,
        /// 800 Gb/s.
        Gbps800 = R::IBV_RATE_800_GBPS.0,
        /// 1200 Gb/s.
        Gbps1200 = R::IBV_RATE_1200_GBPS.0,
    }
}

display_as_debug!(Rate);

/// Each rate as a multiple of 2.5 Gb/s (0 if it is not one), and in Mb/s. The others belong to
/// links with a more efficient line code, whose rates exceed their names.
const RATES: [(Rate, u32, u32); 23] = [
    (Rate::Gbps2_5, 1, 2_500),
    (Rate::Gbps5, 2, 5_000),
    (Rate::Gbps10, 4, 10_000),
    (Rate::Gbps20, 8, 20_000),
    (Rate::Gbps30, 12, 30_000),
    (Rate::Gbps40, 16, 40_000),
    (Rate::Gbps60, 24, 60_000),
    (Rate::Gbps80, 32, 80_000),
    (Rate::Gbps120, 48, 120_000),
    (Rate::Gbps14, 0, 14_062),
    (Rate::Gbps56, 0, 56_250),
    (Rate::Gbps112, 0, 112_500),
    (Rate::Gbps168, 0, 168_750),
    (Rate::Gbps25, 0, 25_781),
    (Rate::Gbps100, 0, 103_125),
    (Rate::Gbps200, 0, 206_250),
    (Rate::Gbps300, 0, 309_375),
    (Rate::Gbps28, 11, 28_125),
    (Rate::Gbps50, 20, 53_125),
    (Rate::Gbps400, 160, 425_000),
    (Rate::Gbps600, 240, 637_500),
    (Rate::Gbps800, 320, 850_000),
    (Rate::Gbps1200, 480, 1_275_000),
];

impl Rate {
    /// The rate in Mb/s, with the line code's overhead (`ibv_rate_to_mbps`). `None` for
    /// [`Max`](Self::Max) and for unknown values.
    pub fn mbps(self) -> Option<u32> {
        RATES.iter().find(|known| known.0 == self).map(|known| known.2)
    }

    /// The rate of exactly `mbps` Mb/s (`mbps_to_ibv_rate`).
    pub fn from_mbps(mbps: u32) -> Option<Self> {
        RATES.iter().find(|known| known.2 == mbps).map(|known| known.0)
    }

    /// The rate as a multiple of 2.5 Gb/s (`ibv_rate_to_mult`); `None` if it is not a multiple.
    pub fn multiple(self) -> Option<u32> {
        RATES.iter().find(|known| known.0 == self && known.1 != 0).map(|known| known.1)
    }

    /// The rate of `multiple` times 2.5 Gb/s (`mult_to_ibv_rate`).
    pub fn from_multiple(multiple: u32) -> Option<Self> {
        RATES.iter().find(|known| known.1 == multiple && multiple != 0).map(|known| known.0)
    }
}
