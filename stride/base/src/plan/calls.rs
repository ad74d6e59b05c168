//! The calls that post and poll: perftest's choice, by the device's vendor.

/// One of the two interfaces that verbs have for the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostingCalls {
    /// `ibv_post_send` and `ibv_poll_cq`, which every device has.
    Classic,
    /// `ibv_wr_*` and `ibv_start_poll`; what a device lacks of them is classic.
    Extended,
}

impl PostingCalls {
    /// What is posted with on a device of this vendor. perftest knows three whose own way `ibv_wr_*` is; the others
    /// translate one into the other, if they have both.
    pub fn default_for(vendor_id: u32) -> Self {
        match vendor_id {
            // Mellanox, under its three numbers; Amazon; Huawei.
            0x02c9 | 0x15b3 | 0x119f | 0x1d0f | 0x19e5 => Self::Extended,
            _ => Self::Classic,
        }
    }
}
