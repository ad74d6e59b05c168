//! perftest's choice of the inline size for a latency test of writes, by the device's vendor.

/// The largest message that perftest's `ib_write_lat` copies into the work request on a device of this
/// vendor; 0 for one it does not know.
pub fn default_inline_size(vendor_id: u32) -> u32 {
    match vendor_id {
        // Mellanox, under its three numbers.
        0x02c9 | 0x15b3 | 0x119f => 220,
        // Broadcom; Alibaba.
        0x14e4 | 0x1ded => 96,
        // Amazon; Huawei.
        0x1d0f | 0x19e5 => 32,
        // Intel.
        0x8086 => 48,
        _ => 0,
    }
}
