//! perftest's choice of the inline size for a latency test, by the device's vendor.

use super::{ConnectionType, TestOperation};

/// The largest message that perftest's latency tests send inline on a device of this vendor; 0 for
/// a vendor that perftest does not list, and for operations without inline data.
pub fn default_inline_size(operation: TestOperation, connection: ConnectionType, vendor_id: u32) -> u32 {
    if operation.fetches() {
        return 0;
    }
    match vendor_id {
        // Mellanox, under its three numbers.
        0x02c9 | 0x15b3 | 0x119f if connection == ConnectionType::Ud => 188,
        0x02c9 | 0x15b3 | 0x119f if matches!(operation, TestOperation::Send | TestOperation::SendImm) => 236,
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
