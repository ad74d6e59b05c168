//! The choice between classic and extended calls, by perftest's rule for the device's vendor.

/// The two interfaces of verbs for the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostingCalls {
    /// `ibv_post_send` and `ibv_poll_cq`, which every device supports.
    Classic,
    /// `ibv_wr_*` and `ibv_start_poll`; classic calls replace those that a device lacks.
    Extended,
}

impl PostingCalls {
    /// The default for a device of this vendor. perftest lists three vendors whose native interface
    /// is `ibv_wr_*`; other libraries translate one interface into the other.
    pub fn default_for(vendor_id: u32) -> Self {
        match vendor_id {
            // Mellanox, under its three numbers; Amazon; Huawei.
            0x02c9 | 0x15b3 | 0x119f | 0x1d0f | 0x19e5 => Self::Extended,
            _ => Self::Classic,
        }
    }
}
